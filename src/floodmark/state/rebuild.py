"""A lost data commit, rebuilt from its files: the last resort, when no copy carries the commit itself.

A checkpoint names the commit's files and knows its rows, bytes and digest; the files' own footers say what they
hold and which slices of which window they are. Only what agrees to the last row is taken. The rebuilt commit
stands for the lost one's digest, so the ledger still knows it.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

from floodmark.model import Commit, DataFile, Position, by_key
from floodmark.state.fold import DataCommit, State
from floodmark.store import Store


def rebuilt(
    store: Store, checkpoints: Sequence[State], n: int, later: Commit | None, before: str | None
) -> Commit | None:
    """The commit number `n`, or None when it is no data commit, or its files don't prove it.

    `later` is the commit after it, `before` the digest of the one before.
    """
    for state in checkpoints:
        data = next((d for d in state.data if d.n == n), None)
        paths = [f.path for f in state.recent_files if f.n == n]
        if (
            data is None
            or not paths
            or len(paths) != data.files
            or (later is not None and later.prev != data.digest)
        ):
            continue
        commit = _from_files(store, state, data, paths, before or "")
        if commit is not None:
            return commit
    return None


def _from_files(
    store: Store, state: State, data: DataCommit, paths: Sequence[str], before: str
) -> Commit | None:
    files: list[DataFile] = []
    footers: list[dict[str, str]] = []
    for path in paths:
        content = store.get(path, most=data.bytes)
        footer = read_footer(content) if content is not None else None
        if content is None or footer is None:
            return None
        slice_ = int(footer["slice"].rpartition("/")[2])
        first, last = _position(footer["first"]), _position(footer["last"])
        checksum = hashlib.sha256(content).hexdigest()
        files.append(
            DataFile(path, int(footer["rows"]), len(content), checksum, slice_, first, last, 0, data.at)
        )
        footers.append(footer)
    if not _proven(state, data, files, footers):
        return None
    kind = footers[0]["slice"].partition("/")[0]
    window = footers[0]["window"] if kind in ("window", "snapshot") else ""
    return Commit(
        n=data.n, id=uuid4().hex, log=state.log, kind="deletes" if by_key(data.load_as) else "batch",
        table_name=state.table_name, run=footers[0]["run"], at=data.at, prev=before,
        schema=data.schema, window_id=window or None,
        slices=tuple(sorted({f.slice for f in files})) if window else (),
        files=tuple(files), load_as=data.load_as, note="rebuilt from its files", stands_for=data.digest,
    )  # fmt: skip


def _proven(
    state: State, data: DataCommit, files: Sequence[DataFile], footers: Sequence[dict[str, str]]
) -> bool:
    """Whether these are the files of that commit: rows, bytes, table, log, schema, one attempt per slice."""
    attempts = {(f["claim"], f["slice"], f["attempt"]) for f in footers}
    return (
        sum(f.rows for f in files) == data.rows
        and sum(f.bytes for f in files) == data.bytes
        and {(f["table"], f["log"], f["schema"]) for f in footers}
        <= {(state.table_name, state.log, data.schema)}
        and len({(claim, piece) for claim, piece, _ in attempts}) == len(attempts)
        and len({(f["run"], f["window"]) for f in footers}) <= 1
    )


def read_footer(content: bytes) -> dict[str, str] | None:
    """What a data file says of itself, with its number of rows; None when it is no file of ours."""
    import pyarrow.parquet as pq  # only here: whoever reads a log does not wait for it

    try:
        metadata: Any = pq.read_metadata(io.BytesIO(content))
    except (OSError, ValueError):
        return None
    pairs = {k.decode(): v.decode() for k, v in (metadata.metadata or {}).items()}
    footer = {k.removeprefix("floodmark."): v for k, v in pairs.items() if k.startswith("floodmark.")}
    wanted = {"table", "log", "run", "claim", "window", "slice", "schema", "attempt", "first", "last"}
    return {**footer, "rows": str(metadata.num_rows)} if wanted <= set(footer) else None


def _position(text: str) -> Position | None:
    values = json.loads(text)
    return tuple(values) if values is not None else None
