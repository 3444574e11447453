"""Claiming a table: the claim in the log is the fencing token.

Every command that changes a table claims it first; a commit is valid only while its run holds the newest
claim. A claim applies to exactly the state it was planned on: if another run has changed the table, the
caller plans again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from floodmark.log.fold import State
from floodmark.log.lease import Holder, Lease, at_work, end_unsaid, holder, this_process
from floodmark.log.log import Log, Taken, draft
from floodmark.log.status import Killed
from floodmark.model.commit import Claim, Open
from floodmark.model.errors import ConflictError, TransientError
from floodmark.model.lineage import with_lineage
from floodmark.model.table import Table

# Attempts to plan and claim before giving up because other runs keep committing in between.
ATTEMPTS = 3

T = TypeVar("T")


@dataclass(frozen=True)
class Claimed:
    """The table is ours: the state after our claim, and the lease to release."""

    state: State
    lease: Lease
    killed: Killed | None = None  # the run that held it before and ended without releasing it


@dataclass(frozen=True)
class Changed:
    """The table is free but has changed since the plan was made: plan again on this state."""

    state: State


def claim(
    log: Log,
    state: State,
    *,
    run: str,
    purpose: str,
    table: Table | None = None,
    **fields: Any,
) -> Claimed | Changed:
    """Claims the table in exactly the given state, opening its log if there is none; `fields`: what else the claim says.

    Raises ConflictError if a live run holds the table. A crash after the claim leaves a claim without a
    lease, which the next run takes over.
    """
    killed = _killed(state, refuse_if_held(log, state, run), run)
    if table is not None:
        table = with_lineage(state.table, table, from_start=state.read_upto is None)
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
        return Changed(newer)
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


def decide_and_claim(log: Log, state: State, attempt: Callable[[State], T | Changed]) -> T:
    """Calls `attempt` to plan on a state and claim it; retries with the new state if the table changed."""
    for _ in range(ATTEMPTS):
        found = attempt(state)
        if not isinstance(found, Changed):
            return found
        state = found.state
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
            f"{held.describe()} holds the table{f' ({held.purpose})' if held.purpose else ''}; "
            f"its lease runs until {held.until}",
            hint="wait for it to end; if it crashed, a later run takes over automatically",
            table=log.table_name,
        )
    return held
