"""What no contender can pass: the same query drained and thrown away, and the same Arrow data written to Parquet.

python limits.py drain|parquet TASK. As many processes as Floodmark has connections; `drain` reads the answers off
the sockets without looking at them, so it is the server's own speed.
"""

from __future__ import annotations

import io
import itertools
import json
import multiprocessing
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from floodmark.config.load import load
from floodmark.model.types import fields
from floodmark.model.window import Slice
from floodmark.source import sql
from floodmark.source.describe import discover
from floodmark.source.rows.packets import QUERY
from floodmark.source.rows.stream import RowStream
from floodmark.source.session import Session
from floodmark.store.store import Store

SLICE = 250_000


def main() -> None:
    what, task = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
    work = {"drain": _drains, "parquet": _files}[what](task)
    context = multiprocessing.get_context("fork")
    with context.Pool(task["connections"]) as pool:
        pool.map(_nothing, range(task["connections"]))
        began = time.monotonic()
        seen = pool.map({"drain": drain, "parquet": write}[what], work, chunksize=1)
        seconds = time.monotonic() - began
    print(json.dumps({"rows": task["rows"], "bytes": sum(b for b, _ in seen), "seconds": seconds}))


def _nothing(_: int) -> None: ...


def _drains(task: dict[str, Any]) -> list[tuple[str, str, list[Any]]]:
    config = load(Path(task["config"]))
    with Session(config.source, purpose="bench") as session:
        table = discover(session, task["table"], config.options(task["table"]), config.source.database)
    edges = [*range(0, task["rows"], SLICE), task["rows"]]
    pieces = [Slice("window", i, "key", (a,), (b,)) for i, (a, b) in enumerate(itertools.pairwise(edges))]
    types = [field.arrow for field in fields(table)]
    return [(task["config"], sql.selects(table, piece)[0], types) for piece in pieces]


def drain(job: tuple[str, str, list[Any]]) -> tuple[int, float]:
    """One slice's answer, asked for as Floodmark does, byte by byte into nothing."""
    config, query, types = job
    with Session(load(Path(config)).source, purpose="bench") as session:
        wire = session._link.socket
        asked = RowStream(wire, types, 60)
        if not asked._prepared(query.encode()):
            asked._say(QUERY + query.encode())
        buffer, total, tail = bytearray(1 << 20), 0, b""
        # The answer ends with an EOF packet: five bytes of content, the first of them 0xfe.
        while not (len(tail) == 9 and tail[:3] == b"\5\0\0" and tail[4] == 0xFE) or total < 2000:
            got = wire.recv_into(buffer)
            if got == 0:
                raise SystemExit("the server hung up")
            total += got
            tail = bytes(buffer[got - 9 : got]) if got >= 9 else (tail + bytes(buffer[:got]))[-9:]
        return total, 0.0


_TABLES: dict[str, Any] = {}


def _files(task: dict[str, Any]) -> list[str]:
    """The files that Floodmark wrote, read into memory before the clock starts; forked processes share them."""
    store = Store(load(Path(task["config"])).store)
    for file in store.list("data/"):
        data = store.get(file.path)
        if data is not None and file.path.endswith(".parquet"):
            _TABLES[file.path] = (pq.read_table(io.BytesIO(data)), _dictionaries(data))
    return list(_TABLES)


def _dictionaries(data: bytes) -> list[str]:
    """The columns that were written with a dictionary."""
    group = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(0)
    columns = [group.column(i) for i in range(group.num_columns)]
    return [c.path_in_schema for c in columns if c.dictionary_page_offset is not None]


def write(path: str) -> tuple[int, float]:
    """One file written again, with the settings of the first time, into memory."""
    sink, (table, dictionaries) = io.BytesIO(), _TABLES[path]
    options: dict[str, Any] = {"compression": "zstd", "compression_level": 1, "use_dictionary": dictionaries}
    with pq.ParquetWriter(sink, table.schema, version="2.6", store_schema=False, **options) as writer:
        for batch in table.to_batches(max_chunksize=65_536):
            writer.write_batch(batch)
    return sink.tell(), 0.0


if __name__ == "__main__":
    main()
