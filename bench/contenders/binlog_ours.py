"""Floodmark's reading of a binary log: one file off the server, the keys of one table decoded, all else skipped.

python binlog_ours.py '{"url", "file", "table", "limit"}'. Without a table, everything is skipped.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from floodmark.config.load import SourceSpec, TableOptions, source_from
from floodmark.model.changes import KeyDescription, LogPlace
from floodmark.source.binlog.dump import dump
from floodmark.source.binlog.events import ROTATE, ROWS, TABLE_MAP, table_id, table_map
from floodmark.source.binlog.keys import KeyRows
from floodmark.source.describe import discover
from floodmark.source.session import Session

HELD = 16 << 20  # bytes of keys, as a sync would hold
WARM = 1000  # rows that are read before, so that nothing is imported meanwhile


def main() -> None:
    task: dict[str, Any] = json.loads(sys.argv[1])
    spec = source_from(task["url"])
    described = {}
    if task["table"]:
        with Session(spec) as session:
            table = discover(session, task["table"], TableOptions(), None)
        columns = tuple((column.name, column.type) for column in table.columns)
        described[table.name] = KeyDescription(table.name, columns, tuple(map(table.column, table.key)))
    read(spec, task["file"], described, WARM)
    began, cpu = time.monotonic(), time.process_time()
    rows, keys = read(spec, task["file"], described, None)
    seconds, cpu = time.monotonic() - began, time.process_time() - cpu
    print(json.dumps({"rows": rows, "keys": keys, "seconds": seconds, "cpu": cpu, "part": 1.0}))


def read(
    spec: SourceSpec, file: str, described: dict[str, KeyDescription], most: int | None
) -> tuple[int, int]:
    """One file, or about `most` of its rows: how many rows and keys there were."""
    rows = keys = 0
    listened: dict[int, KeyRows] = {}
    with Session(spec, purpose="bench") as session:
        stream = dump(session, LogPlace(file, 4))
        for event in stream:
            if event.kind in ROWS:
                held = listened[table_id(event.body)]
                rows += sum(held.add(event.kind, event.body))
                if held.bytes > HELD:
                    keys += held.taken().num_rows
                if most is not None and rows > most:
                    break
            elif event.kind == TABLE_MAP and table_id(event.body) not in listened:
                number, shape = table_map(event.body)
                if shape.name in described:
                    listened[number] = KeyRows(described[shape.name], shape)
                else:
                    stream.skip.add(number)
            elif event.kind == ROTATE and stream.file != file:
                break
    return rows, keys + sum(held.taken().num_rows for held in listened.values())


if __name__ == "__main__":
    main()
