"""Taking a table: the claim in the log is the fence.

Whatever changes a table claims it first; a commit is good only while the newest claim is its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from floodmark.errors import ConflictError, TransientError
from floodmark.lineage import carried
from floodmark.model import Origin, Owner, Table, Window, Zone
from floodmark.state.fold import State
from floodmark.state.lease import LEASE_SECONDS, Lease, end_unsaid, holder, this_process
from floodmark.state.log import Log, Taken, draft


@dataclass(frozen=True)
class Claimed:
    """The table is ours: the state after our claim, and the lease to be released."""

    state: State
    lease: Lease


@dataclass(frozen=True)
class Changed:
    """The table is free but no longer in the state that was planned on: plan again on this one."""

    state: State


def claim(
    log: Log,
    state: State,
    *,
    run: str,
    purpose: str,
    table: Table | None = None,
    window: Window | None = None,
    reread: Window | None = None,
    strategy: str | None = None,
    zone: Zone | None = None,
    origin: Origin | None = None,
    owner: Owner | None = None,
    seconds: float = LEASE_SECONDS,
) -> Claimed | Changed:
    """Takes the table in exactly the given state, opening its log when there is none.

    Raises ConflictError when a live run holds the table. A crash after the claim leaves a claim without a lease,
    which the next run takes over.
    """
    refuse_if_held(log, state, run, seconds)
    if table is not None:
        table = carried(state.table, table, anew=state.read_upto is None)
    try:
        if state.n < 0:
            state = log.append(state, draft(state, "open", run))
        ours = draft(
            state, "claim", run,
            owner=owner or this_process(), purpose=purpose, table=table, window=window, reread=reread,
            strategy=strategy, zone=zone, origin=origin,
        )  # fmt: skip
        try:
            state = log.append(state, ours)
        except TransientError:
            end_unsaid(ours.id)  # it may have been written
            raise
    except Taken:
        newer = log.read()
        refuse_if_held(log, newer, run if newer.claim == state.claim else None, seconds)
        return Changed(newer)
    assert state.claim is not None
    return Claimed(state, Lease(log.store, log.table_name, state.claim, seconds=seconds).start())


def refuse_if_held(log: Log, state: State, run: str | None, seconds: float = LEASE_SECONDS) -> None:
    """A live run other than ours holds the table: exit code 3, with who and until when."""
    if state.claim is None or state.claim.id in log.over:
        return
    held = holder(log.store, log.table_name, state.claim, seconds=seconds)
    if held is None:
        log.over.add(state.claim.id)  # what was released stays so
    if held is not None and held.alive and held.run != run:
        raise ConflictError(
            f"{held.describe()} holds the table{f' ({held.purpose})' if held.purpose else ''}; "
            f"its lease runs until {held.until}",
            hint="wait for it to end; a crashed run is taken over by itself",
            table=log.table_name,
        )
