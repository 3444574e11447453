"""The format of data files: the table as described by the claim that wrote them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from floodmark.log.fold import Damaged, DataCommit, State
from floodmark.log.log import Log
from floodmark.model.commit import Claim, by_key
from floodmark.model.errors import DataError
from floodmark.model.ledger import Ledger
from floodmark.model.table import Table


def descriptions(log: Log, state: State, commits: Sequence[DataCommit]) -> dict[int, Table]:
    """The tables as described by claims, by claim number."""
    known = {state.described: state.table} if state.table is not None else {}
    numbers = sorted({d.described for d in commits if d.described >= 0} - set(known))
    try:
        claims = (c for c, _ in log.commits(numbers) if isinstance(c, Claim))
        return known | {c.n: c.table for c in claims if c.table is not None}
    except Damaged:
        # The claims are lost for good: use the newest description if the files have the same format.
        if state.table is None or any(d.schema != state.table.fingerprint for d in commits):
            raise
        return known | dict.fromkeys(numbers, state.table)


def description(described: dict[int, Table], commit: DataCommit, name: str) -> Table:
    """The table as it was when the commit's files were written."""
    table = described.get(commit.described)
    if table is None or table.fingerprint != commit.schema:
        raise DataError(
            f"the log has no description of the files of commit {commit.n}",
            hint=f"read the table again: floodmark watermark reset -t {name}",
        )
    return table


def loaded_as(log: Log, state: State, ledger: Ledger) -> Table | None:
    """The table as described by the newest files loaded into the target; None: none were, or it is unknown.

    After that load, the target had all its columns and could hold its values. A full snapshot brings its own
    columns.
    """
    found = _loaded(state, ledger)
    return None if not found or found[-1].load_as == "replace" else _described_by(log, state, found[-1])


@dataclass(frozen=True)
class Shaped:
    """The newest description that a load may have applied: anything else in the target was made by others."""

    table: Table | None = None  # None: unknown, or no rows were loaded since the last reset
    claim: int = -1  # the claim that described it

    def after(self, commit: DataCommit, table: Table) -> Shaped:
        """The same after loading a commit, whose files describe `table`."""
        if self.table is None or by_key(commit.load_as) or commit.described < self.claim:
            return self
        return Shaped(table, commit.described)


def shaped(log: Log, state: State, ledger: Ledger) -> Shaped:
    """The target's columns as loads may have left them, including loads before a reset."""
    found = _loaded(state, ledger)
    if not found:
        return Shaped()
    before = [d for d in state.live if d.described < state.load_epoch and not by_key(d.load_as)]
    newest = max((*before, *found), key=lambda d: d.described)
    return Shaped(_described_by(log, state, newest), newest.described)


def _loaded(state: State, ledger: Ledger) -> list[DataCommit]:
    """The loaded commits with rows; key files bring no columns."""
    loaded = ledger.loaded(state.load_epoch)
    return [d for d in state.live if (d.n, d.digest) in loaded and not by_key(d.load_as)]


def _described_by(log: Log, state: State, commit: DataCommit) -> Table | None:
    if state.table is None or commit.schema == state.table.fingerprint:
        return state.table
    try:
        described = descriptions(log, state, [commit]).get(commit.described)
    except Damaged:
        return None
    return described if described and described.fingerprint == commit.schema else None
