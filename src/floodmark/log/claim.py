"""Claiming a table: the claim in the log is the fencing token.

Every command that changes a table claims it first; a commit is valid only while its run holds the newest
claim. A claim applies to exactly the state it was planned on: if another run has changed the table, the
caller plans again. A sync holds its table from the first claim to the end of its run (`HeldTable`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from floodmark.log.copies import Publisher
from floodmark.log.fold import State
from floodmark.log.lease import Holder, Lease, at_work, end_unsaid, holder, this_process, who
from floodmark.log.log import K, Log, Taken, draft
from floodmark.log.status import Killed
from floodmark.model.commit import Claim, Commit, Open
from floodmark.model.errors import ConflictError, TransientError
from floodmark.model.lineage import Known, with_lineage
from floodmark.model.table import Table
from floodmark.model.window import Intent
from floodmark.store.store import Store

# Attempts to plan and claim before giving up because other runs keep committing in between.
ATTEMPTS = 3

T = TypeVar("T")


@dataclass(frozen=True)
class Claimed:
    """The table is ours: the state after our claim, and the lease to release."""

    state: State
    lease: Lease
    killed: Killed | None = None  # the run that held it before and ended without releasing it


class Changed(Exception):
    """The table is free but has changed since the plan was made: plan again on this state."""

    def __init__(self, state: State) -> None:
        super().__init__(state)
        self.state = state


def claim(
    log: Log,
    state: State,
    *,
    run: str,
    purpose: str,
    table: Table | None = None,
    **fields: Any,
) -> Claimed:
    """Claims the table in exactly the given state, opening its log if there is none; `fields`: what else the claim says.

    Raises Changed if that is no longer its state (see `decide_and_claim`), and ConflictError if a live run holds the table. A crash after the claim leaves a claim without a
    lease, which the next run takes over.
    """
    killed = _killed(state, refuse_if_held(log, state, run), run)
    if table is not None:
        table = with_lineage(state.table, table, from_start=not state.has_read)
    try:
        if state.n < 0:
            state = log.append(state, draft(state, Open, run))
        ours = draft(state, Claim, run, owner=this_process(), purpose=purpose, table=table, **fields)
        try:
            state = log.append(state, ours)
        except TransientError:
            end_unsaid(ours.id)  # it may have been written
            raise
    except Taken:
        newer = log.read()
        refuse_if_held(log, newer, run if newer.claim == state.claim else None)
        raise Changed(newer) from None
    assert state.claim is not None
    lease = Lease(log.store, log.table_name, state.claim).start()
    return Claimed(state, lease, killed)


def _killed(state: State, dead: Holder | None, run: str) -> Killed | None:
    """What is known of a run that was killed while it held the table in this state."""
    if dead is None or state.claim is None or dead.run == run:
        return None
    was = at_work("interrupted", state, dead)
    return Killed(
        dead.run, was["since"], dead.until or None, was["host"], was["pid"], was["stage"], was["rows"]
    )


def decide_and_claim(log: Log, state: State, attempt: Callable[[State], T]) -> T:
    """Calls `attempt` to plan on a state and claim it; retries with the new state if it raises Changed."""
    for _ in range(ATTEMPTS):
        try:
            return attempt(state)
        except Changed as changed:
            state = changed.state
    raise ConflictError(
        "other runs keep changing the table", hint="try again when they are done", table=log.table_name
    )


def refuse_if_held(log: Log, state: State, run: str | None) -> Holder | None:
    """Raises ConflictError (exit code 3), with holder and lease end, if another live run holds the table.

    Returns a dead holder that has not released it; None if the table is free.
    """
    if state.claim is None or state.claim.id in log.over:
        return None
    held = holder(log.store, log.table_name, state.claim)
    if held is None:
        log.over.add(state.claim.id)  # a released claim stays released
    if held is not None and held.alive and held.run != run:
        newest = log.read()
        if newest.claim != state.claim:  # our claim is stale: a later run has taken the table since
            return refuse_if_held(log, newest, None)
        raise ConflictError(
            f"{who(held.run, held.owner)} holds the table{f' ({held.purpose})' if held.purpose else ''}; "
            f"its lease runs until {held.until}",
            hint="wait for it to end; if it crashed, a later run takes over automatically",
            table=log.table_name,
        )
    return held


class HeldTable:
    """One table's log as one run reads, claims and writes it."""

    def __init__(self, store: Store, name: str, run: str) -> None:
        self.log = Log(store, name)
        self.run = run
        self.watermark = Publisher(store, name, run, log=self.log)
        self.state = State(name)
        self.known = False  # whether the state has been read from the store
        self.lease: Lease | None = None
        self.killed: Killed | None = None  # the run that we have taken the table over from
        self.last_commit = time.monotonic()

    def read(self, old: float = 0.0) -> State:
        """Reads the current state from the store; that there is none may be `old` seconds old."""
        self.state = self.log.read(old)
        self.known = True
        return self.state

    def claim(self, intent: Intent) -> None:
        """Claims the table; raises Changed if it has changed since it was read."""
        try:
            taken = claim(self.log, self.state, run=self.run, **vars(intent))
        except Changed as changed:
            self.state = changed.state
            raise
        except ConflictError:
            self.watermark.drop_due()
            raise
        self._release_lease()
        self.state, self.lease = taken.state, taken.lease
        self.killed = self.killed or taken.killed
        self.last_commit = time.monotonic()

    def hold(self, purpose: str, table: Table | None = None, known: Sequence[Known] = ()) -> None:
        """Claims the table unless we already hold it and its description in the log is current.

        `known`: see `parts_to_reread`.
        """

        def take(state: State) -> None:
            now = table
            if now is not None:
                now = with_lineage(state.table, now, from_start=not state.has_read, known=known)
            if self.lease is None or now not in (None, state.table):
                self.claim(Intent(purpose, now))

        decide_and_claim(self.log, self.state, take)

    def draft(self, kind: type[K], **fields: Any) -> K:
        """The commit that would follow; nothing is written."""
        return draft(self.state, kind, self.run, **fields)

    def append(self, commit: Commit) -> None:
        """Appends a commit to the log. The caller publishes it, because only the caller knows the ledger."""
        try:
            self.state = self.log.append(self.state, commit)
        except ConflictError:
            self.watermark.drop_due()
            raise
        self.last_commit = time.monotonic()

    def may_speak(self) -> bool:
        """Whether no other live run holds the table. Rereads the state to pick up other runs' commits."""
        if self.lease is not None:
            return True
        before = self.state.digest
        self.read()
        if self.state.digest != before:  # changed by others: our view of the copies is out of date
            self.watermark = Publisher(self.log.store, self.log.table_name, self.run, log=self.log)
        held = holder(self.log.store, self.log.table_name, self.state.claim)
        return held is None or not held.alive or held.run == self.run

    def release(self) -> None:
        """Releases the table, once everything is published."""
        try:
            self.watermark.publish_due()
        finally:  # an unreleased table keeps others waiting
            self._release_lease()

    def _release_lease(self) -> None:
        if self.lease is not None:
            self.lease.release()
