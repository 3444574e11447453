"""The tables: how each will be read and why, and what makes that slow, lossy or impossible."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType

from floodmark.config import Config
from floodmark.doctor.check import EMBEDDED, Check, Section
from floodmark.errors import ConfigError, DataError, FloodmarkError
from floodmark.lineage import carried
from floodmark.model import Table
from floodmark.mysql import edges
from floodmark.mysql.connect import Session
from floodmark.mysql.discover import CLOCKS, discover, proposed_cursor
from floodmark.planview import mark
from floodmark.state import Log
from floodmark.store import Store
from floodmark.stored import StoredTables
from floodmark.types import fields, quote
from floodmark.units import counted
from floodmark.warehouse import LEDGER
from floodmark.warehouse.open import open_warehouse
from floodmark.work import meant, no_table

SECTION = Section("tables")
MOST = 100
SECONDS = 7.0  # then the tables that are left are only counted
TARGET_SECONDS = 3.0  # then their targets are not looked at any more
_MODES = {
    "upsert": "merged by key",
    "append": "new rows only",
    "full": "read whole by every sync",
}


def examine_tables(session: Session, config: Config, names: Sequence[str]) -> Iterator[Check]:
    """Each table that is meant: those of the command, else those of the configuration, else all."""
    try:
        found, unknown = meant(session, config, names, all_tables=not names)
    except FloodmarkError as error:
        yield SECTION.failed("tables", error)
        return
    stored = StoredTables(config, Store(config.store))
    for report in unknown:
        section = Section("tables", report.table)
        if _retired(stored, report.table):
            yield section.ok("table", "retired: sync --all leaves it out")
        elif report.error is not None:
            yield section.failed("table", report.error)
    if not found and not unknown:
        nothing = no_table(config.source)
        yield SECTION.warning("tables", nothing.message, nothing.hint or "")
    began = time.monotonic()
    with Targets(config) as targets:
        for number, name in enumerate(found):
            if number >= MOST or time.monotonic() - began > SECONDS:
                left = counted(len(found) - number, "more table")
                yield SECTION.warning(
                    "tables", f"{left} not looked at", "name those of interest: doctor -t schema.table"
                )
                return
            yield from examine_table(session, config, name, targets)


def _retired(stored: StoredTables, name: str) -> bool:
    """Whether somebody has said that the table is meant to be gone, as far as the store tells."""
    try:
        return stored.retired(name)
    except FloodmarkError:
        return False


def examine_table(session: Session, config: Config, name: str, targets: Targets) -> list[Check]:
    """One table, and its target."""
    section = Section("tables", name)
    try:
        table = discover(session, name, config.options(name), config.source.database)
        rows = edges.table_rows(session, table)
    except FloodmarkError as error:
        return [section.failed("table", error)]
    configured = config.options(table.name).mode is not None
    checks = judged(
        table,
        rows,
        config.warehouse.kind,
        configured=configured,
        large_strings=config.warehouse.large_strings,
    )
    refusal = targets.refusal(table)
    return [*checks, section.failed("target", refusal)] if refusal is not None else checks


class Targets:
    """What is in the warehouse already under the targets' names; asked for a few seconds, and not while it is away."""

    def __init__(self, config: Config) -> None:
        self._store = Store(config.store)
        self._warehouse = open_warehouse(config.warehouse, seconds=TARGET_SECONDS)
        self._until: float | None = None

    def refusal(self, table: Table) -> FloodmarkError | None:
        """Why the table's rows would not go into its target; None: they would, or it could not be asked."""
        with EMBEDDED:
            return self._refusal(table)

    def _refusal(self, table: Table) -> FloodmarkError | None:
        try:
            if self._until is None:
                self._until = time.monotonic() + TARGET_SECONDS
                self._warehouse.rows(LEDGER)  # whether it answers at all is told in a section of its own
            if time.monotonic() > self._until:
                return None
            state = Log(self._store, table.name).read()
        except FloodmarkError:
            self._until = 0.0
            return None
        try:
            known = carried(state.table, table, anew=state.read_upto is None)
            self._warehouse.changes(known, anew=state.table is None)
        except (ConfigError, DataError) as refusal:
            return refusal
        except FloodmarkError:
            self._until = 0.0
        return None

    def __enter__(self) -> Targets:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._warehouse.close()


def judged(
    table: Table, rows: int, warehouse: str, *, configured: bool = False, large_strings: bool = False
) -> list[Check]:
    """A table's facts as checks: how it is read, then what is unfortunate about it."""
    section = Section("tables", table.name)
    why = ", as configured" if configured else ""
    checks = [section.ok("reading", f"{reading(table)}{why}, about {counted(rows, 'row')}")]
    notes = list(table.notes)
    if not table.key and not configured and not any(_KEYLESS in note for note in notes):
        notes.append(f"The table {_KEYLESS}, so every sync reads all of it.")
    for note in notes:
        name, hint = _about(note, table)
        if name:
            checks.append(section.warning(name, _sentence(note), hint))
    if bound := [
        (f, said)
        for f in fields(table)
        if (said := mark(f, table, warehouse, large_strings) or "").startswith("over ")
    ]:
        listed = ", ".join(f"{f.name} ({table.column(f.column).type})" for f, _ in bound)
        done = {"error": "stop the sync", "truncate": "are cut", "null": "become NULL"}[table.overflow]
        checks.append(
            section.warning(
                "columns",
                f"{listed}: longer values than Redshift holds {done} (overflow: {table.overflow})",
                "choose `overflow` for the table: error, truncate or null; or exclude the column",
            )
        )
    return checks


def reading(table: Table) -> str:
    """`upsert by (updated_at, id), merged by key id`."""
    how = f"{table.mode}, {_MODES[table.mode]}"
    if table.mode == "upsert":
        how = f"upsert, merged by key ({', '.join(table.key)})"
    if table.cursor is None:
        return how
    cursor = table.column(table.cursor)
    index = f"index {table.cursor_index}" if table.cursor_index else "no index"
    digits = " (whole seconds)" if cursor.data_type in CLOCKS and not cursor.fraction else ""
    return f"{how}; cursor {cursor.name} {cursor.type}{digits}, {index}"


def _index(table: Table) -> str:
    # InnoDB's indexes end in the primary key by themselves.
    return f"ALTER TABLE {quote(table.schema)}.{quote(table.table)} ADD INDEX ({quote(table.order[0])})"


def _proposed(table: Table) -> str | None:
    likely = proposed_cursor(table)
    return f"set tables.{table.name}.cursor: {likely.name}" if likely else None


def _sentence(note: str) -> str:
    """A note as the other checks are worded; a column's name at its beginning stays as it is."""
    first = note.partition(" ")[0]
    return (first.lower() if first in ("No", "The", "Nothing") else first) + note[len(first) :].rstrip(".")


_KEYLESS = "has no key"
# What discovery notes, by a piece of its wording: the check's name, and what can be done.
_NOTES: tuple[tuple[str, str, Callable[[Table], str | None]], ...] = (
    # Positions are (cursor, key): equal cursors cost nothing but a moment's wait.
    ("has no sub-second digits", "", lambda _: None),
    ("No index begins with", "index", _index),
    ("can be NULL", "nullable", lambda t: f"make {t.cursor} NOT NULL, with DEFAULT CURRENT_TIMESTAMP"),
    (_KEYLESS, "key", lambda _: "add a primary key, or name a unique `key` in the configuration"),
    ("can't be the key", "key", lambda _: "add a primary key, or name a unique `key` in the configuration"),
    ("No unique index assures", "key", lambda t: f"add a unique index on ({', '.join(t.key)})"),
    (
        "No column tells",
        "cursor",
        lambda _: "add updated_at … ON UPDATE CURRENT_TIMESTAMP, or name a `cursor`",
    ),
    ("looks like the time of a row's last change", "cursor", _proposed),
    ("is not used as the cursor", "cursor", lambda _: "name it as `cursor` if it grows with every change"),
    (
        "no ON UPDATE CURRENT_TIMESTAMP",
        "cursor",
        lambda t: f"add ON UPDATE CURRENT_TIMESTAMP to {t.cursor}, or make sure that the application sets it",
    ),
    (
        "changes of old ones are not",
        "cursor",
        lambda _: "add updated_at … ON UPDATE CURRENT_TIMESTAMP if rows change",
    ),
    ("such changes are not seen", "cascades", lambda t: f"set tables.{t.name}.cascades: follow"),
    (
        "may not read every column",
        "privileges",
        lambda t: f"GRANT SELECT ON {quote(t.schema)}.{quote(t.table)}",
    ),
)


def _about(note: str, table: Table) -> tuple[str, str | None]:
    """The check that a note belongs to (none: it is not worth one), and what can be done about it."""
    for words, name, hint in _NOTES:
        if words in note:
            return name, hint(table)
    return "note", None
