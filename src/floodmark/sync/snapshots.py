"""Skips a snapshot if the source's rows have the same fingerprint as the last one.

The fingerprint is computed from the very rows that are written. The commit stores it with the number of the
claim it was made under, so it identifies that one snapshot, whichever run has made another since.
"""

from __future__ import annotations

from dataclasses import replace

from floodmark.extract.jobs import jobs
from floodmark.log.fold import State
from floodmark.model.errors import FloodmarkError
from floodmark.plan.decide import Plan
from floodmark.services import Services
from floodmark.source.errors import as_discovered


def mark(state: State, found: str | None) -> str | None:
    """The fingerprint as a snapshot's commit stores it."""
    return None if found is None else f"snapshot {state.described} {found}"


def known(state: State) -> str | None:
    """The fingerprint of the last snapshot, if that was the last thing committed."""
    last = state.data.commits[-1] if state.data.commits else None
    if last is None or last.load_as != "replace" or last.superseded:
        return None
    begin, kept = f"snapshot {last.described} ", state.progress.overlap or ""
    return kept.removeprefix(begin) if kept.startswith(begin) else None


@as_discovered()
def only_if_changed(services: Services, plan: Plan, state: State) -> Plan:
    """The plan without its snapshot, if that would repeat the last one and the target still has it.

    Finding out costs one extra read of all rows, by a task that writes nothing.
    """
    before = known(state)
    if plan.table.mode != "full" or before is None or not plan.slices or state.window is not None:
        return plan  # an open window has to be closed
    try:
        there = services.warehouse().rows(plan.table.target)
    except FloodmarkError:
        there = state.data.commits[-1].rows  # the load will say what is wrong
    if plan.table != state.table or there != state.data.commits[-1].rows:
        return plan
    looks = [
        replace(job, only_look=True, hash_key=None)
        for job in jobs(services, plan, plan.passes[0], state, 1, True)
    ]
    [result] = services.submit(looks, plan.table.name)
    services.sources.check(plan.table.name, result.source)
    return (
        plan
        if result.fingerprint != before
        else replace(plan, claim=replace(plan.claim, window=None), passes=())
    )
