"""Snapshots that need not be made: the source's rows are those of the last one, by its checksum.

The checksum was read in the snapshot's own transaction and stands in its commit, with the number of the claim that it
was made under: so it is of that snapshot and of no other, whoever has made one since.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from floodmark.errors import FloodmarkError
from floodmark.mysql.checksum import checksum, possible
from floodmark.mysql.connect import Session
from floodmark.plan import Plan
from floodmark.state import State
from floodmark.warehouse import Warehouse


def mark(state: State, found: str | None) -> str | None:
    """What the commit of a snapshot keeps of its checksum."""
    return None if found is None else f"snapshot {state.described} {found}"


def known(state: State) -> str | None:
    """The checksum of the last snapshot, when that is what was committed last."""
    last = state.data[-1] if state.data else None
    if last is None or last.load_as != "replace" or last.superseded:
        return None
    begin, kept = f"snapshot {last.described} ", state.overlap or ""
    return kept.removeprefix(begin) if kept.startswith(begin) else None


def only_if_changed(session: Session, plan: Plan, state: State, warehouse: Callable[[], Warehouse]) -> Plan:
    """The plan without its snapshot, where that would be the last one again and the target still has it."""
    table, before = plan.table, known(state)
    if table.mode != "full" or plan.window is None or not possible(session, table):
        return plan
    plan = replace(plan, checksum=True)
    if before is None:
        return plan
    try:
        there = warehouse().rows(table.target)
    except FloodmarkError:
        there = state.data[-1].rows  # the load will say what is wrong
    if there != state.data[-1].rows:
        return plan
    try:
        same = checksum(session, table) == before
    except FloodmarkError:
        same = False  # it took too long: the rows themselves will tell
    return replace(plan, window=None, slices=()) if same else plan
