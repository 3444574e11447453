"""Source against warehouse, by key: which rows are missing, extra or different. Reads both, changes neither.

Only what was promised is compared: rows of the `where`, behind the start and up to the watermark. Rows that have
changed since, or have no cursor, are left out on both sides by their keys; whether a row exists is judged by its key
alone. Nothing is reported before both sides were asked a second time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from floodmark.compared import Entry, Scope, forms, key_of
from floodmark.errors import ConfigError, ConflictError, DataError
from floodmark.load import ledger_for, pending
from floodmark.measure import entry
from floodmark.model import Column, Key, Position, Table
from floodmark.mysql import canonical as source_sql
from floodmark.mysql.connect import Session
from floodmark.mysql.edges import nth
from floodmark.mysql.failures import as_discovered
from floodmark.plan import start_position
from floodmark.reread import check as check_recipe
from floodmark.search import Printed, Search, ask
from floodmark.state import State, holder
from floodmark.state.stretches import began, stretches
from floodmark.types import comparison
from floodmark.units import counted
from floodmark.warehouse import canonical
from floodmark.work import Work

# Suspects in one question to either side.
AT_ONCE = 2000
# How often suspects are asked about while other runs change the table, and the pause between.
TRIES = 10
PAUSE = 1.0
# How long a run that is loading is waited for.
PATIENCE = 60.0


@dataclass(frozen=True)
class Differences:
    """What does not agree, asked twice."""

    missing: tuple[Key, ...] = ()  # promised by the watermark, and not in the warehouse
    extra: tuple[
        Key, ...
    ] = ()  # in the warehouse, and not at the source or outside the `where`; or there twice
    different: tuple[tuple[Key, tuple[str, ...]], ...] = ()  # with the columns that differ
    rows_source: int = 0  # compared, on either side
    rows_warehouse: int = 0
    left_out: int = 0  # rows that have changed since the watermark, or have no cursor
    agree: bool = True  # False with no key named: a table without a key, whose checksums differ
    notes: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return not self.agree or bool(self.missing or self.extra or self.different)


@as_discovered()
def compare(
    work: Work,
    table: Table,
    state: State,
    *,
    only_keys: bool = False,
    also: Sequence[str] = (),
    totals: Callable[[int, int], None] = lambda source, warehouse: None,
    since: Position | None = None,
    moved: int | None = None,
    most: int | None = None,
) -> Differences:
    """The differences between a table and its target, as the log's state promises it.

    `table` is the table as it is now (discovered), `state` the log's. Everything of the log must have been loaded.
    `only_keys` compares which rows there are, not what is in them: cheaper, and enough for deletes; and the columns that
    `also` names. `totals` is told
    the rows of both sides, those of the source all, before the differing ones are looked for, and may raise.
    `since` leaves only the rows behind a position, about `moved` of them. With more than `most` missing rows it is given up.
    """
    scope, notes = scope_of(work, table, state, only_keys, also)
    if since is not None and (scope.low is None or _sortable(since[0]) > _sortable(scope.low[0])):
        scope = replace(scope, low=since)
    found = Search(work, scope, totals, moved, most).go()
    work.progress.end(table.name, "verify")
    differences = Differences(
        rows_source=found.source.rows,
        rows_warehouse=found.warehouse.rows,
        left_out=found.beyond,
        agree=not found.suspicious,
        notes=tuple(notes),
    )
    if not found.suspects:
        return differences
    confirmed = _confirmed(work, table, state, list(found.suspects), only_keys, also)
    return replace(
        confirmed,
        rows_source=differences.rows_source,
        rows_warehouse=differences.rows_warehouse,
        left_out=differences.left_out,
        notes=differences.notes,
    )


def check_compared(table: Table, found: Differences) -> None:
    """A look that left out every row has proven nothing."""
    if not found and not found.rows_source and not found.rows_warehouse and found.left_out:
        rows = counted(found.left_out, "row")
        raise DataError(
            f"nothing could be compared: {rows} changed since the watermark or have no cursor, and there are no others",
            hint=f"run floodmark sync -t {table.name} first",
            table=table.name,
        )


# ---------------------------------------------------------------- what is compared


def scope_of(
    work: Work, table: Table, state: State, only_keys: bool, also: Sequence[str] = ()
) -> tuple[Scope, list[str]]:
    """The columns and rows that are compared, and what is said of the others."""
    if state.table is None or not (state.started or state.data or state.older.upto):
        raise ConfigError(
            "there is nothing to compare yet: the table was never synced",
            hint=f"run floodmark sync -t {table.name}",
            table=table.name,
        )
    check_recipe(table, state, work.config.options(table.name))
    kept, notes = comparable(table, state.table)
    if also or not only_keys:
        _must_fit(work, replace(table, columns=kept))
    redshift = work.config.warehouse.kind == "redshift"
    every = tuple(f for f in forms(table, redshift=redshift) if f.column in kept)
    named = {f.field.name: f for f in every}
    if redshift and (parsed := [c.name for c in kept if c.name not in {f.column.name for f in every}]):
        notes.append(f"parsed JSON is not compared: {', '.join(parsed)}")
    beside = tuple(f for f in every if f.column.name in also and f.field.name not in table.key)
    chosen = (*(named[name] for name in table.key), *beside) if only_keys else every
    order = tuple(named[name] for name in table.order if name in named)
    if table.mode == "full" or table.cursor is None:
        notes.append(
            "a table that is read whole has no watermark: changes since its last sync are differences"
        )
        return Scope(table, chosen), notes
    if state.position is None and (state.data or state.older.upto):
        return Scope(table, chosen, order, _untouched(work, table)), notes
    log = work.log(table.name)
    if not only_keys or state.moved_at is None:
        return Scope(table, chosen, order, began(log, state), state.position), notes
    # A look for deletes reads missing rows again: not those that somebody has passed over on purpose.
    seen = stretches(log, state)
    low = state.began if state.began is not None else seen.began
    return Scope(table, chosen, order, low, state.position, skipped=seen.skipped), notes


def _untouched(work: Work, table: Table) -> Position | None:
    """The start of a table without a position, behind which nothing lies yet: a sync would find nothing to do."""
    low = start_position(table, work.start(table.name).timestamp)
    with work.session("verify") as session:
        if nth(session, table, table.order, low, None, 1) is None:
            return low
    raise DataError(
        "the extraction has not come to its first end, or was reset: no watermark says which rows to compare",
        hint=f"run floodmark sync -t {table.name} first",
        table=table.name,
    )


def _must_fit(work: Work, table: Table) -> None:
    """A run that was cut short may have described columns of which nothing was loaded yet: the target lacks them."""
    lacking = [c for c in work.warehouse().changes(table) if c.kind in ("add", "rename")]
    if lacking:
        raise DataError(
            f"{table.target} does not have every column yet ({'; '.join(c.statement for c in lacking)}): "
            "until then source and warehouse can't agree",
            hint=f"run floodmark sync -t {table.name} first; if it has nothing to do, floodmark watermark reset "
            f"-t {table.name} reads the table again",
            table=table.name,
        )


def comparable(now: Table, then: Table) -> tuple[tuple[Column, ...], list[str]]:
    """The columns that are as they were when rows were last read; of the others the next sync knows."""
    before = {c.name: c for c in then.columns}
    needed = {*now.key, *now.order}
    kept = tuple(
        c
        for c in now.columns
        if c.name in needed
        or (c.name in before and (before[c.name].type, before[c.name].charset) == (c.type, c.charset))
    )
    left = [c.name for c in now.columns if c not in kept]
    notes = [f"changed since the last sync, and left out: {', '.join(left)}"] if left else []
    return kept, notes


def _sortable(value: int | str) -> tuple[int, str]:
    return (value, "") if isinstance(value, int) else (0, value)


# ---------------------------------------------------------------- asked again


def _confirmed(
    work: Work, table: Table, state: State, keys: Sequence[Printed], only_keys: bool, also: Sequence[str] = ()
) -> Differences:
    """The suspects that are differences, in a moment in which no other run changes the table."""
    for number in range(TRIES):
        if number:
            time.sleep(PAUSE)
            state = work.log(table.name).read()
        before = _loaded(work, table, state)
        if before is None:
            continue
        scope, _ = scope_of(work, table, state, only_keys, also)
        found = _judged(work, scope, keys)
        if not found or _loaded(work, table, work.log(table.name).read()) == before:
            return found
    raise ConflictError(
        "other runs keep changing the table: what differs can't be told from what is under way",
        hint="run verify again when they are done",
        table=table.name,
    )


def _loaded(work: Work, table: Table, state: State) -> object:
    """What log and ledger say, None while something waits to be loaded."""
    if waiting(work, table, state):
        return None
    return state.n, state.digest


def waiting(work: Work, table: Table, state: State) -> int:
    """How many rows of the log are not in the warehouse yet."""
    ledger = ledger_for(work.warehouse(), state, table.target)
    data = work.log(table.name).data(state, ledger.rows)
    return sum(max(1, d.rows) for d in pending(data, ledger, state.load_epoch))


def _judged(work: Work, scope: Scope, keys: Sequence[Printed]) -> Differences:
    missing: list[Key] = []
    extra: list[Key] = []
    different: dict[Key, tuple[str, ...]] = {}
    with work.session("verify") as session:
        for at in range(0, len(keys), AT_ONCE):
            some = keys[at : at + AT_ONCE]
            mine = _at_source(session, scope, some)
            theirs = _in_warehouse(work, scope, some)
            for key in some:
                row, stored = mine.get(key), theirs.get(key, [])
                if row is None:
                    row = _equal_to_mysql(session, scope, key)
                    if row is not None and row.place == "in" and stored:
                        # One key to MySQL, in other letters: its row is there, and not as it should be.
                        different[key_of(scope, row.key)] = _columns(scope, row, stored[0])
                        continue
                if row is None:
                    extra += [key_of(scope, key)] * bool(stored)
                elif row.place != "in":
                    continue
                elif not stored:
                    missing.append(key_of(scope, key))
                elif any(s.hash != row.hash for s in stored):
                    different[key_of(scope, key)] = _columns(
                        scope, row, next(s for s in stored if s.hash != row.hash)
                    )
                elif len(stored) > 1:
                    different[key_of(scope, key)] = ()
    return Differences(
        tuple(sorted((k for k in missing if k not in different), key=_place)),
        tuple(sorted(extra, key=_place)),
        tuple(sorted(different.items(), key=lambda item: _place(item[0]))),
    )


def _place(key: Key) -> list[tuple[bool, bool, int | str | None]]:
    """For keys in their order, as far as there is one."""
    return [(v is not None, isinstance(v, str), v) for v in key]


def _columns(scope: Scope, row: Entry, stored: Entry) -> tuple[str, ...]:
    """The columns that differ: the source's are elements, the warehouse's their hashes."""
    pairs = zip(scope.forms, row.columns, stored.columns, strict=True)
    return tuple(f.field.name for f, mine, theirs in pairs if canonical.element_hash(mine) != theirs)


def _at_source(session: Session, scope: Scope, keys: Sequence[Printed]) -> dict[Printed, Entry]:
    found = session.rows(source_sql.rows(scope, [key_of(scope, key) for key in keys]))
    return {e.key: e for e in (entry(scope, row) for row in found)}


def _equal_to_mysql(session: Session, scope: Scope, key: Printed) -> Entry | None:
    """The row whose key MySQL finds equal although its bytes are others."""
    if all(comparison(form.column) == "bytes" for form in scope.keys):
        return None
    found = session.rows(source_sql.rows(scope, [key_of(scope, key)]))
    return entry(scope, found[0]) if found else None


def _in_warehouse(work: Work, scope: Scope, keys: Sequence[Printed]) -> dict[Printed, list[Entry]]:
    found: dict[Printed, list[Entry]] = {}
    for hashed, *cells in ask(work, scope, lambda place: canonical.rows(place, scope, keys)):
        texts = [None if cell is None else str(cell) for cell in cells]
        key = tuple(texts[: len(scope.keys)])
        columns = tuple(text or "" for text in texts[len(scope.keys) :])
        found.setdefault(key, []).append(Entry(key, str(hashed), columns))
    return found


def loaded_state(work: Work, table: Table) -> State:
    """The log's state when all of it is loaded; waits while a live run is about to load the rest.

    Raises ConflictError when that run takes long, DataError when rows wait and nobody is at work on them.
    """
    log, until, told = work.log(table.name), time.monotonic() + PATIENCE, False
    while True:
        state = log.read()
        # Asked before the ledger: whoever is gone by now has loaded all that it is going to load.
        held = holder(log.store, log.table_name, state.claim)
        rows = waiting(work, table, state)
        if not rows:
            return state
        if held is None or not held.alive or work.interrupted:
            raise DataError(
                f"{counted(rows, 'row')} {'waits' if rows == 1 else 'wait'} to be loaded: "
                "until then source and warehouse can't agree",
                hint=f"run floodmark sync -t {table.name} first",
                table=table.name,
            )
        if time.monotonic() > until:
            raise ConflictError(
                f"{held.describe()} still has {counted(rows, 'row')} to load",
                hint="run verify again when it is done",
                table=table.name,
            )
        if not told:
            work.progress.note(table.name, f"waiting for {held.describe()} to load {counted(rows, 'row')}")
            told = True
        time.sleep(PAUSE)
