"""What data files look like: the table as the claim that wrote them described it."""

from __future__ import annotations

from collections.abc import Sequence

from floodmark.errors import DataError
from floodmark.model import Table, by_key
from floodmark.state.fold import Damaged, DataCommit, State
from floodmark.state.log import Log
from floodmark.warehouse import Ledger


def descriptions(log: Log, state: State, commits: Sequence[DataCommit]) -> dict[int, Table]:
    """The tables as claims described them, by the claims' numbers."""
    known = {state.described: state.table} if state.table is not None else {}
    numbers = sorted({d.described for d in commits if d.described >= 0} - set(known))
    try:
        return known | {c.n: c.table for c, _ in log.commits(numbers) if c.table is not None}
    except Damaged:
        # Claims that are lost for good: the newest description does where the files look the same.
        if state.table is None or any(d.schema != state.table.fingerprint for d in commits):
            raise
        return known | dict.fromkeys(numbers, state.table)


def description(described: dict[int, Table], commit: DataCommit) -> Table:
    """The table as it was when the commit's files were written."""
    table = described.get(commit.described)
    if table is None or table.fingerprint != commit.schema:
        raise DataError(
            f"the log does not say what the files of commit {commit.n} look like",
            hint="read the table again: floodmark watermark reset -t TABLE",
        )
    return table


def loaded_as(log: Log, state: State, ledger: Ledger) -> Table | None:
    """The table as the newest files that were loaded into the target describe it; None: none were, or nobody knows.

    All of its columns were in the target after that load, and could hold its values. A whole copy brings its own.
    """
    loaded = ledger.loaded(state.load_epoch)
    found = [d for d in state.live if (d.n, d.digest) in loaded and not by_key(d.load_as)]
    if not found or state.table is None or found[-1].load_as == "replace":
        return None
    if found[-1].schema == state.table.fingerprint:
        return state.table
    try:
        described = descriptions(log, state, found[-1:]).get(found[-1].described)
    except Damaged:
        return None
    return described if described and described.fingerprint == found[-1].schema else None
