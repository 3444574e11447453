"""A sync that finds no row to read: what it leaves behind, and what must not give way to nothing.

A table without rows is up to date once a sync has looked. That is a commit, once, so that everybody can see it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from floodmark import legacy
from floodmark.errors import TransientError
from floodmark.loader import Loader
from floodmark.plan import Plan, check_snapshot
from floodmark.state import draft
from floodmark.work import Run


class Looked(Run, Protocol):
    """The run of one table that has looked at the source."""

    loader: Loader


def settle(run: Looked, plan: Plan, claim: Callable[[], bool]) -> None:
    """There is nothing to read: makes the target of a table that was never read, and says once that it was looked at."""
    schema = plan.table.fingerprint
    if legacy.untouched(run.state) and run.loader.lacks_target(run.state, plan.table):
        if claim():  # else another run has changed the table meanwhile
            run.append(draft(run.state, "batch", run.work.run, schema=schema, load_as="replace"))
    elif not plan.waits and run.request.since is None and not run.state.looked_at and claim():
        run.append(draft(run.state, "batch", run.work.run, schema=schema, load_as=plan.load_as))


def check_gives_way(run: Looked, plan: Plan, rows: int) -> None:
    """Refuses to put so few rows into the place of what the target has, unless the user insists.

    Before a commit, because afterwards the position has moved. What can't be seen from here the load sees: it refuses, too.
    """
    before = next((d.rows for d in reversed(run.state.data) if d.load_as == "replace"), 0)
    if plan.table.mode != "full" and not run.work.options.backup_only and not run.request.force:
        with suppress(TransientError):
            before = max(before, run.work.warehouse().rows(plan.table.target))
    check_snapshot(before, rows, run.request.force)
