"""`sync --verify-data`: what a run has loaded, compared with the source before the run is called a success.

Compared are the rows from the lowest cursor among the loaded files up to the watermark, along the cursor's index where
they are few. Of a snapshot only the count: what the source has changed since it was read can't be told from an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from floodmark import clock
from floodmark.compare import compare, waiting
from floodmark.errors import VerificationError
from floodmark.loader import Loader
from floodmark.model import Commit, Finding, Position, Table
from floodmark.mysql.discover import discover
from floodmark.plan import temporal
from floodmark.state import Log
from floodmark.units import counted
from floodmark.verify import findings
from floodmark.work import Run, Work


class Moved(Run, Protocol):
    """The run of one table that is to be verified."""

    log: Log
    loader: Loader


def verify_moved(run: Moved) -> None:
    """Compares what the run has loaded; differences become the report's findings and its error."""
    work = run.work
    if not work.options.verify_data or not run.loader.loaded:
        return
    with work.session("verify") as session:
        table = discover(session, run.name, run.options, work.config.source.database)
    if rows := waiting(work, table, run.state):
        run.tell(f"not verified: {counted(rows, 'row')} still wait to be loaded")
        return
    commits = [commit for commit, _ in run.log.commits(run.loader.loaded)]
    found = _snapshot(work, table, commits) if table.mode == "full" else _window(run, table, commits)
    if not found:
        return
    run.report.findings += found
    run.report.error = VerificationError(
        f"source and warehouse don't agree on what this run has loaded: {found[0].detail}"
        + (f", and {counted(len(found) - 1, 'more finding')}" if len(found) > 1 else ""),
        hint=f"floodmark verify -t {run.name} looks at the whole table, --repair mends it",
        table=run.name,
    )


def _window(run: Moved, table: Table, commits: Iterable[Commit]) -> tuple[Finding, ...]:
    read = [commit for commit in commits if commit.kind == "batch"]
    firsts = [file.first for commit in read for file in commit.files if file.first]
    if not firsts or run.state.position is None:
        return ()
    moved = sum(commit.rows for commit in read)
    differences = compare(run.work, table, run.state, since=before(table, firsts), moved=moved)
    run.tell(f"verified: {counted(differences.rows_source, 'row')} compared with the source")
    # A row that the source no longer has was deleted after it was read: for `deletes` to follow, or not.
    return findings(table, replace(differences, extra=()))


def _snapshot(work: Work, table: Table, commits: Iterable[Commit]) -> tuple[Finding, ...]:
    expected = next((c.rows for c in reversed(list(commits)) if c.load_as == "replace"), None)
    rows = work.warehouse().rows(table.target)
    if expected is None or rows == expected:
        return ()
    detail = f"{table.target} has {rows:,} rows, and the snapshot that was loaded has {expected:,}"
    return (Finding("count_mismatch", table.name, detail, {"rows": rows, "expected": expected}),)


def before(table: Table, firsts: Iterable[Position]) -> Position | None:
    """A position right before the lowest cursor; None where the cursor has no such place."""
    values = [first[0] for first in firsts]
    numbers = [value for value in values if isinstance(value, int)]
    if numbers:
        return (min(numbers) - 1,)
    if not temporal(table):
        return None
    first = min(str(value) for value in values)
    if len(first) == 10:  # a DATE
        return (clock.shifted(f"{first} 00:00:00.000000", -86_400)[:10],)
    return (clock.shifted(first, -1e-6),)
