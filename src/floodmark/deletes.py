"""What no cursor tells of: rows that the source no longer has, and columns that foreign keys have changed.

Both are looked for by one comparison, now and then. A key counts as deleted only when the source, asked again under
the claim, has no row of it in the `where`; and never when that would leave next to nothing, unless the user insists.
Rows that came back unchanged, and rows that differ in a column of a cascade, are read again by their keys.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime

from floodmark.compare import compare
from floodmark.config import TableOptions
from floodmark.errors import ConfigError, DataError
from floodmark.keyfile import write_keys
from floodmark.model import Key, LoadAs, Slice, Table
from floodmark.mysql import edges
from floodmark.mysql.cascades import of as cascades
from floodmark.mysql.cascades import touched
from floodmark.mysql.discover import discover
from floodmark.mysql.keys import gone, weights
from floodmark.plan import Plan, strategy_of
from floodmark.plausible import implausible
from floodmark.state import State, draft
from floodmark.units import counted
from floodmark.work import Run

# Keys that one task reads at most; few are spread over several tasks.
KEYS_PER_SLICE = 20_000
SPREAD = 8
FEWEST = 500
# Rows that are missing and read again by their keys, which the driver holds: more did not come back by themselves.
HELD = 1_000_000
FORCE = "look at the source; if that is right, run again with --force"


def check(table: Table, options: TableOptions) -> None:
    """Refuses `deletes` and `cascades` where rows can't be told apart, or not be marked."""
    where = f"tables.{table.name}.deletes"
    if options.cascades == "follow" and table.mode != "full" and not table.key:
        raise ConfigError(
            "cascades: follow needs a key: without one, rows can't be told apart",
            hint=f"set tables.{table.name}.cascades: ignore, or mode: full",
            table=table.name,
        )
    if options.deletes == "ignore" or (table.mode == "full" and options.deletes == "hard"):
        return  # a full copy has just the rows of the source, without looking for deletes
    if table.mode == "full":
        raise ConfigError(
            "deletes: soft does not go with mode full: a full copy replaces all rows, so none is left to be marked",
            hint=f"set {where}: ignore",
            table=table.name,
        )
    if not table.key:
        raise ConfigError(
            f"deletes: {options.deletes} needs a key: without one, rows can't be told apart",
            hint=f"set {where}: ignore, or mode: full",
            table=table.name,
        )


def due(state: State, options: TableOptions, now: datetime) -> bool:
    """Whether it is time to look for deletes and cascades: at most every `deletes_every`."""
    if options.deletes == "ignore" and options.cascades == "ignore":
        return False
    if state.table is None or state.table.mode == "full":
        return False
    if not state.data and not state.older.commits:
        return False  # nothing was ever replicated
    if state.deletes_at is None or (state.table.where or "").strip() != (options.where or "").strip():
        return True  # never yet, or not in the `where` that there is now
    elapsed = (now - datetime.fromisoformat(state.deletes_at)).total_seconds()
    return not 0 <= elapsed < options.deletes_every  # a time to come is another host's wrong clock


def sweep(run: Run, *, force: bool) -> bool:
    """Looks for deletes and cascades when it is time; whether there is something to load now.

    Everything of the log must have been loaded. A look that found nothing is a commit without files, which says when
    it was; whatever dies before that commit is looked for again.
    """
    options = run.options
    if not due(run.state, options, datetime.now(UTC)):
        return False
    with run.work.session("deletes") as session:
        table = discover(session, run.name, options, run.work.config.source.database)
        changing = touched(table, cascades(session, table)) if options.cascades == "follow" else ()
    check(table, options)
    if options.deletes == "ignore" and not changing:
        return False

    def totals(source: int, warehouse: int) -> None:
        if options.deletes != "ignore" and implausible(warehouse, source) and not force:
            raise _implausible(table, warehouse - source, warehouse)

    found = compare(run.work, table, run.state, only_keys=True, also=changing, totals=totals, most=HELD)
    # Missing rows came back with the cursor that they had, or into the `where` without a change: no window has them.
    # Where a cascade has changed a key, the row is missing under its new one.
    back, changed = found.missing, tuple(key for key, _ in found.different)
    read_again(run, table, (*back, *changed), purpose="deletes")
    if back:
        run.tell(
            f"{counted(len(back), 'row')} of the source, unchanged, that the target did not have: read again"
        )
    way: LoadAs = "mark" if options.deletes == "soft" else "delete"
    gone_ = found.extra if options.deletes != "ignore" else ()
    removed = remove(
        run, table, gone_, way, purpose="deletes", rows=found.rows_warehouse, force=force, always=True
    )
    if changed:
        run.tell(f"{counted(len(changed), 'row')} that foreign keys have changed: read again")
    if removed:
        done = "marked as deleted" if way == "mark" else "deleted"
        run.tell(f"{counted(removed, 'row')} that the source no longer has: {done}")
    return bool(removed or back or changed)


def read_again(run: Run, table: Table, keys: Sequence[Key], *, purpose: str) -> None:
    """Reads and commits the rows of these keys under our claim; they move no position."""
    pieces = slices(keys)
    if pieces:
        run.hold(purpose, table)
        run.read(Plan(table, strategy_of(run.request, len(pieces)), again=pieces, load_as="merge"))


def slices(keys: Sequence[Key]) -> tuple[Slice, ...]:
    """The keys as slices of one task each."""
    each = min(KEYS_PER_SLICE, max(FEWEST, -(-len(keys) // SPREAD)))
    parts = (tuple(keys[i : i + each]) for i in range(0, len(keys), each))
    return tuple(Slice("keys", n, keys=part, rows=len(part)) for n, part in enumerate(parts))


def remove(
    run: Run,
    table: Table,
    keys: Sequence[Key],
    way: LoadAs,
    *,
    purpose: str,
    rows: int,
    force: bool,
    always: bool = False,
) -> int:
    """Commits the deletes of those keys that the source, asked now, does not have; how many they are.

    `rows` is what the warehouse has; `always` commits also when there are none, which says when that was.
    """
    if not keys and not always:
        return 0
    began = time.monotonic()
    run.hold(purpose, table)
    absent: list[Key] = []
    weighed: list[bytes | None] = []
    if keys:
        with run.work.session("deletes") as session:
            absent = gone(session, table, keys)
            weighed = weights(session, table, absent)
            empty = len(absent) >= rows and edges.empty(session, table)
        if absent and not force and (empty or implausible(rows, rows - len(absent))):
            raise _implausible(table, len(absent), rows)
    if not absent and not always:
        return 0
    state = run.state
    assert state.claim is not None
    files = write_keys(
        run.work.store, table, absent, weighed, run=run.work.run, claim=state.claim.n, log=state.log
    )
    commit = draft(
        state,
        "deletes",
        run.work.run,
        schema=table.fingerprint,
        files=files,
        load_as=way,
        seconds=round(time.monotonic() - began, 3),
    )
    run.append(commit)
    run.report.rows_deleted += len(absent)
    return len(absent)


def _implausible(table: Table, deleted: int, rows: int) -> DataError:
    return DataError(
        f"{deleted:,} of the {rows:,} rows in {table.target} are gone from the source: nothing was deleted",
        hint=FORCE,
        table=table.name,
    )
