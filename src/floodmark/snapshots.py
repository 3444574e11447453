"""Snapshots that need not be made: the source's rows are those of the last one, by their fingerprint.

A snapshot's fingerprint is made of the very rows that are written and stands in its commit, with the number of the claim
that it was made under: so it is of that snapshot and of no other, whoever has made one since.
"""

from __future__ import annotations

from dataclasses import replace

from floodmark.errors import FloodmarkError
from floodmark.plan import Plan
from floodmark.state import State
from floodmark.work import Work


def mark(state: State, found: str | None) -> str | None:
    """What the commit of a snapshot keeps of its fingerprint."""
    return None if found is None else f"snapshot {state.described} {found}"


def known(state: State) -> str | None:
    """The fingerprint of the last snapshot, when that is what was committed last."""
    last = state.data[-1] if state.data else None
    if last is None or last.load_as != "replace" or last.superseded:
        return None
    begin, kept = f"snapshot {last.described} ", state.overlap or ""
    return kept.removeprefix(begin) if kept.startswith(begin) else None


def only_if_changed(work: Work, plan: Plan, state: State) -> Plan:
    """The plan without its snapshot, where that would be the last one again and the target still has it.

    To find out, all rows are read once more than they have to be, by a task that writes nothing.
    """
    before = known(state)
    if plan.table.mode != "full" or before is None or not plan.slices or state.window is not None:
        return plan  # a window that was left open has to be closed
    try:
        there = work.warehouse().rows(plan.table.target)
    except FloodmarkError:
        there = state.data[-1].rows  # the load will say what is wrong
    changed = plan.table != state.table or there != state.data[-1].rows
    if changed or read(work, plan, state) != before:
        return plan
    return replace(plan, window=None, slices=())


def read(work: Work, plan: Plan, state: State) -> str | None:
    """The fingerprint of the rows as they are now."""
    jobs = [replace(job, only_look=True) for job in work.jobs(plan, plan.slices, state, 1)]
    [result] = work.submit(jobs, plan.table.name)
    return result.fingerprint
