"""`sync --verify-data`: compares what a run has loaded with the source before the run counts as a success.

It compares the rows from the lowest cursor in the loaded files up to the watermark, along the cursor's index
if they are few, and those without a place in the change order, which every sync reads. A snapshot's rows are compared
with its digest if there is one, else counted: changes at the source since the read can't be told from errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from floodmark.log.fold import State
from floodmark.model.commit import Batch, WithFiles
from floodmark.model.position import Position
from floodmark.model.run import Finding
from floodmark.model.table import Table
from floodmark.model.times import just_before
from floodmark.services import Services
from floodmark.verify.compare import Differences, check_different, compare, described, waiting
from floodmark.verify.run import findings
from floodmark.verify.snapshot import holds, last_snapshot


@dataclass(frozen=True)
class Checked:
    """The outcome: how many rows were compared, or still waited to be loaded, and the findings."""

    compared: int | None = None
    waiting: int = 0
    findings: tuple[Finding, ...] = ()
    differences: Differences | None = None  # None: rows were only counted, or nothing was compared


def verify_loaded(services: Services, name: str, state: State, commits: Sequence[WithFiles]) -> Checked:
    """Compares what these commits have loaded into the warehouse with the source, as it is now."""
    return services.sources.twice(name, lambda: _verified(services, name, state, commits))


def _verified(services: Services, name: str, state: State, commits: Sequence[WithFiles]) -> Checked:
    with services.session("verify") as session:
        table = described(services, session, name)
    if rows := waiting(services, table, state):
        return Checked(waiting=rows)
    if table.mode == "full":
        return Checked(findings=_snapshot(services, table, state, commits))
    read = [commit for commit in commits if isinstance(commit, Batch)]
    firsts = [file.first for commit in read for file in commit.files if file.first]
    moved = sum(commit.rows for commit in read)
    if not moved or state.position is None:
        return Checked()
    since = before(table, firsts) if firsts else state.position
    differences = compare(services, table, state, since=since, expected_rows=moved)
    # A row that the source no longer has was deleted after it was read: that is up to `deletes`.
    kept = replace(differences, extra=())
    if kept:
        check_different(services, table, state)
    return Checked(kept.rows_source, findings=findings(table, kept), differences=kept)


def _snapshot(
    services: Services, table: Table, state: State, commits: Iterable[WithFiles]
) -> tuple[Finding, ...]:
    expected = next((c.rows for c in reversed(list(commits)) if c.load_as == "replace"), None)
    rows = services.warehouse().rows(table.target)
    more = {"rows": rows, "expected": expected}
    if expected is None:
        return ()
    if rows != expected:
        detail = f"{table.target} has {rows:,} rows, but the loaded snapshot has {expected:,}"
        return (Finding("count_mismatch", table.name, detail, more),)
    promised = last_snapshot(services, state)
    if promised is None or holds(services, state, promised) is not False:
        return ()
    detail = f"{table.target} has as many rows as the loaded snapshot, but not the same"
    return (Finding("different_row", table.name, detail, more),)


def before(table: Table, firsts: Iterable[Position]) -> Position | None:
    """A position right before the lowest cursor; None if the cursor's type has no such value."""
    value = just_before(table, *(first[0] for first in firsts))
    return None if value is None else (value,)
