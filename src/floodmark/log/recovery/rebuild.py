"""Rebuilds a lost data commit from its files: the last resort, when no copy carries the commit itself.

A checkpoint names the commit's files and knows its rows, bytes and digest; the files' footers say what they
hold and which slices of which window they are. Everything must agree to the last row. The rebuilt commit
stands for the lost one's digest, so the ledger still recognizes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from uuid import uuid4

from floodmark.log.fold import DataCommit, State
from floodmark.model.commit import Batch, Commit, DataFile, Deletes, by_key
from floodmark.model.parquet import Footer, data_file, read_footer
from floodmark.store.store import Store


def rebuilt(
    store: Store, checkpoints: Sequence[State], n: int, later: Commit | None, before: str | None
) -> Commit | None:
    """Commit number `n`, or None if it is not a data commit or its files don't prove it.

    `later` is the commit after it, `before` the digest of the one before.
    """
    for state in checkpoints:
        data = next((d for d in state.data.commits if d.n == n), None)
        paths = [f.path for f in state.data.recent_files if f.n == n]
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
    footers: list[Footer] = []
    for path in paths:
        content = store.get(path, most=data.bytes)
        found = read_footer(content) if content is not None else None
        if content is None or found is None:
            return None
        files.append(data_file(path, content, *found, created_at=data.at))
        footers.append(found[0])
    if not _proven(state, data, files, footers):
        return None
    window = footers[0].window if footers[0].kind in ("window", "snapshot") else None
    slices = tuple(sorted({f.slice for f in files})) if window else ()
    kind: Callable[..., Commit] = partial(Batch, window_id=window, slices=slices)
    if by_key(data.load_as):
        kind = partial(Deletes, purpose="where" if footers[0].kind == "where" else None)
    return kind(
        n=data.n, id=uuid4().hex, log=state.log, table_name=state.table_name, run=footers[0].run, at=data.at, prev=before,
        schema=data.schema, files=tuple(files), load_as=data.load_as, note="rebuilt from its files", stands_for=data.digest,
    )  # fmt: skip


def _proven(state: State, data: DataCommit, files: Sequence[DataFile], footers: Sequence[Footer]) -> bool:
    """Whether these are the commit's files: same rows, bytes, table, log, schema, one attempt per slice."""
    attempts = {(f.claim, f.kind, f.slice, f.attempt) for f in footers}
    return (
        sum(f.rows for f in files) == data.rows
        and sum(f.bytes for f in files) == data.bytes
        and {(f.table, f.log, f.schema) for f in footers} <= {(state.table_name, state.log, data.schema)}
        and len({(f.claim, f.kind, f.slice) for f in footers}) == len(attempts)
        and len({(f.run, f.window) for f in footers}) <= 1
    )
