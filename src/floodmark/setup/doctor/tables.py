"""Checks the tables: how each will be read and why, and what makes that slow, lossy or impossible."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import TypeVar

from floodmark.commit import system
from floodmark.commit.fold import State
from floodmark.commit.log import Log
from floodmark.commit.system import Start
from floodmark.config.load import Config
from floodmark.model.errors import ConfigError, DataError, FloodmarkError
from floodmark.model.lineage import with_lineage
from floodmark.model.note_words import clause
from floodmark.model.notes import Kind, Note, Obstacle
from floodmark.model.policies import when_too_long
from floodmark.model.table import Table
from floodmark.model.text import counted
from floodmark.model.types import fields, quote
from floodmark.plan.bound import Reading, Settled
from floodmark.plan.decide import start_position
from floodmark.plan.make import before_start
from floodmark.plan.overlap import because, overlap_seconds, said_again, said_missed
from floodmark.plan.tables import StoredTables, meant, no_table, said_new, unlisted
from floodmark.plan.takeover import watermark as legacy
from floodmark.services.mysql import one_moment, sql
from floodmark.services.mysql import ranges as edges
from floodmark.services.mysql.describe import CLOCKS, Discovered, discover_with_notes
from floodmark.services.mysql.session import Session
from floodmark.services.mysql.shared_looks import SharedLooks
from floodmark.services.mysql.trust import Trust
from floodmark.services.store.store import Store
from floodmark.services.warehouse.open import open_warehouse
from floodmark.services.warehouse.protocol import LEDGER
from floodmark.setup.doctor.check import Check, Section, Status
from floodmark.sync.preview import exceeded

T = TypeVar("T")

SECTION = Section("tables")
MOST = 100
SECONDS = 7.0  # after this, the remaining tables are only counted
TARGET_SECONDS = 3.0  # after this, targets are no longer checked
COUNTED = 200_000  # rows before the start are counted up to this; beyond it an index gives an estimate
_MODES = {
    "upsert": "merged by key",
    "append": "new rows only",
    "full": "the whole table with every sync",
}


def examine_tables(
    session: Session, config: Config, names: Sequence[str], file_lock: threading.Lock
) -> Iterator[Check]:
    """Each table of the command, else of the configuration, else of the source."""
    try:
        found, unknown = meant(session, config, names, all_tables=not names)
        others = [] if names else unlisted(session, config, found, unknown)
    except FloodmarkError as error:
        yield SECTION.failed("tables", error)
        return
    stored = StoredTables(config, Store(config.store))
    for report in unknown:
        section = Section("tables", report.table)
        if _of_store(partial(stored.retired, report.table), False):
            yield section.ok("table", "retired: sync --all skips it")
        elif report.error is not None:
            explained = partial(stored.explained, report.error, report.table)
            yield section.failed("table", _of_store(explained, report.error))
    synced: tuple[str, ...] = _of_store(stored.names, ())
    if new := [name for name in others if name not in synced]:
        yield SECTION.warning(
            "new_tables", said_new(new), "add them to `tables`, or set defaults.new_tables: ignore"
        )
    if not found and not unknown:
        nothing = no_table(config.source)
        yield SECTION.warning("tables", nothing.message, nothing.hint or "")
    began = time.monotonic()
    known = States(config)
    with Targets(config, file_lock) as targets:
        for number, name in enumerate(found):
            if number >= MOST or time.monotonic() - began > SECONDS:
                left = counted(len(found) - number, "more table")
                yield SECTION.warning(
                    "tables", f"{left} not checked", "to check them: floodmark doctor -t schema.table"
                )
                return
            yield from examine_table(session, config, name, known, targets)


def _of_store(answer: Callable[[], T], unknown: T) -> T:
    """What the store says; `unknown` if it can't be read, which its own section reports."""
    try:
        return answer()
    except FloodmarkError:
        return unknown


def examine_table(
    session: Session, config: Config, name: str, known: States, targets: Targets
) -> list[Check]:
    """One table, and its target."""
    section = Section("tables", name)
    try:
        discovered = discover_with_notes(session, name, config.options(name), config.source.database)
        table = discovered.table
        rows = edges.table_rows(session, table)
        trust = replace(known.looks.trust(session), engine=discovered.engine)
        if (note := one_connection(session, config, table, rows, trust)) is not None:
            discovered = replace(discovered, notes=(*discovered.notes, note))
        if functions := stored_functions(session, table):
            discovered = replace(
                discovered, notes=(*discovered.notes, Note("unsteady_where", columns=functions))
            )
        state = known.of(table)
        start = known.start(session, table, state) if state is not None else None
        left_out = left_out_by(session, table, rows, start) if start is not None else None
    except FloodmarkError as error:
        return [section.failed("table", error)]
    configured = config.options(table.name).mode is not None
    checks = check_table(
        discovered,
        rows,
        config.warehouse.kind,
        configured=configured,
        large_strings=config.warehouse.large_strings,
        left_out=left_out,
    )
    if known.looks.trust(session).complete:  # otherwise the server's own checks say it for all tables
        checks += check_overlap(Reading(table, state or State(table.name), config.options(table.name), trust))
    refusal = targets.refusal(table, state) if state is not None else None
    return [*checks, section.failed("target", refusal)] if refusal is not None else checks


def check_overlap(reading: Reading) -> list[Check]:
    """What of this table is read again by every sync, and what is missed all the same."""
    table, settled = reading.table, Settled(None, None)
    seconds = overlap_seconds(reading, settled) if table.cursor else 0.0
    if seconds <= 0:
        return []
    section, why = Section("tables", table.name), "; ".join(because(reading, settled))
    if not table.key:
        return [section.warning("overlap", said_missed(why), f"set tables.{table.name}.mode: full")]
    hint = f"set tables.{table.name}.overlap_seconds if rows may be committed later than that"
    said = said_again(reading, seconds, why)
    return [section.warning("overlap", said[0].lower() + said[1:].removesuffix("."), hint)]


def stored_functions(session: Session, table: Table) -> tuple[str, ...]:
    """The stored functions that an incremental table's `where` calls by their bare names."""
    called = sql.calls(table.recipe.where or "") if table.mode != "full" else set()
    if not called:
        return ()
    names = ", ".join(sql.text(name) for name in sorted(called))
    found = session.rows(
        "SELECT ROUTINE_NAME FROM information_schema.ROUTINES"
        f" WHERE ROUTINE_SCHEMA = DATABASE() AND ROUTINE_TYPE = 'FUNCTION' AND LOWER(ROUTINE_NAME) IN ({names})"
    )
    return tuple(f"the stored function {(name or b'').decode()}" for (name,) in found)


def one_connection(session: Session, config: Config, table: Table, rows: int, trust: Trust) -> Note | None:
    """Why every sync reads a large table with one connection; None if it doesn't."""
    if table.mode != "full" or rows <= config.options(table.name).slice_rows:
        return None
    found = one_moment.unfit(table) or one_moment.obstacle(session, table, trust)
    return Note("one_connection", obstacle=found) if found else None


def left_out_by(session: Session, table: Table, rows: int, start: Start) -> str | None:
    """How many rows the first sync skips because of its start; None: none, or counting them would take long."""
    if table.mode == "full" or (table.source.cursor_index is None and rows > COUNTED):
        return None
    before = before_start(session, table, start_position(table, start.timestamp), COUNTED)
    if not before:
        return None
    about = "about " if before > COUNTED else ""
    return f"the first sync skips {about}{counted(before, 'row')} at or before {start.timestamp} ({start.by})"


class States:
    """The tables' states in the store; not read again after a failure, which the store's own section reports."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._store = Store(config.store)
        self._away = False
        self.looks = SharedLooks()

    def of(self, table: Table) -> State | None:
        """The table's state; None if it can't be read."""
        if self._away:
            return None
        try:
            return Log(self._store, table.name).read()
        except FloodmarkError:
            self._away = True
            return None

    def start(self, session: Session, table: Table, state: State) -> Start | None:
        """Where a table without a position begins; None: it has one, or the older tool's, or it is unknown."""
        if state.position is not None:
            return None
        try:
            start = system.start(system.read(self._store), self._config, table.name)
            options = self._config.options(table.name)
            taken = (
                legacy.takeover(session, self._store, table, options, start)
                if legacy.untouched(state)
                else None
            )
        except FloodmarkError:
            return None
        return None if taken is not None and taken.position is not None else start


class Targets:
    """What the warehouse already has under the targets' names; queried for a few seconds at most."""

    def __init__(self, config: Config, file_lock: threading.Lock) -> None:
        self._file_lock = file_lock
        self._warehouse = open_warehouse(config.warehouse, seconds=TARGET_SECONDS)
        self._until: float | None = None

    def refusal(self, table: Table, state: State) -> FloodmarkError | None:
        """Why the table's rows can't be loaded into its target; None: they can, or the warehouse did not answer."""
        with self._file_lock:
            return self._refusal(table, state)

    def _refusal(self, table: Table, state: State) -> FloodmarkError | None:
        try:
            if self._until is None:
                self._until = time.monotonic() + TARGET_SECONDS
                self._warehouse.rows(LEDGER)  # the warehouse's own section reports whether it answers at all
            if time.monotonic() > self._until:
                return None
        except FloodmarkError:
            self._until = 0.0
            return None
        try:
            known = with_lineage(state.table, table, from_start=state.read_upto is None)
            self._warehouse.changes(known, first_load=state.table is None)
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


def check_table(
    found: Discovered,
    rows: int,
    warehouse: str,
    *,
    configured: bool = False,
    large_strings: bool = False,
    left_out: str | None = None,
) -> list[Check]:
    """A table's facts as checks: how it is read, then what needs attention."""
    table = found.table
    section = Section("tables", table.name)
    why = ", as configured" if configured else ""
    checks = [section.ok("reading", f"{reading(table)}{why}, about {counted(rows, 'row')}")]
    if left_out is not None:
        checks.append(
            section.warning("start", left_out, "to read them too, set start: null, or an earlier time")
        )
    notes = list(found.notes)
    if not table.key and not configured and all(note.kind != "no_key" for note in notes):
        notes.append(Note("no_key_and_no_cursor"))
    for note in notes:
        # Positions are (cursor, key): equal cursors cost nothing but a moment's wait.
        if note.kind != "whole_seconds":
            name, hint = _ABOUT[note.kind]
            # That deletes are ignored is a choice, not a problem.
            status: Status = "ok" if note.kind == "deletes" else "warning"
            checks.append(Check("tables", name, status, clause(note), hint(table, note), table.name))
    if bound := [f for f in fields(table) if exceeded(f, warehouse, large_strings) is not None]:
        said = []
        for policy, done in (("error", "stop the sync"), ("truncate", "are cut"), ("null", "become NULL")):
            if such := [f for f in bound if when_too_long(f, table) == policy]:
                listed = ", ".join(f"{f.name} ({table.column(f.column).type})" for f in such)
                said.append(f"{listed}: values too long for Redshift {done}")
        checks.append(
            section.warning(
                "columns",
                f"{'; '.join(said)} (overflow: {table.recipe.overflow})",
                "set the table's `overflow` to error, truncate or null; or exclude the column",
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
    index = f"index {table.source.cursor_index}" if table.source.cursor_index else "no index"
    digits = " (whole seconds)" if cursor.data_type in CLOCKS and not cursor.fraction else ""
    return f"{how}; cursor {cursor.name} {cursor.type}{digits}, {index}"


def _index(table: Table, note: Note) -> str:
    # InnoDB appends the primary key to every index.
    return f"ALTER TABLE {quote(table.source.schema)}.{quote(table.source.table)} ADD INDEX ({quote(table.order[0])})"


def _chosen(table: Table, note: Note) -> str | None:
    where = f"tables.{table.name}"
    return f"set {where}.cursor: {note.column.name} and {where}.mode: upsert" if note.column else None


def _text(hint: str | None) -> Callable[[Table, Note], str | None]:
    return lambda table, note: hint


def _not_null(table: Table, note: Note) -> str:
    return f"make {table.cursor} NOT NULL, with DEFAULT CURRENT_TIMESTAMP"


_ADD_KEY = _text("add a primary key, or name a unique `key` in the configuration")
# What lets several connections prove that they see one moment.
_PROVE: dict[Obstacle, str] = {
    "no_binlog": "start the source with --log-bin",
    "no_gtids": "set gtid_mode = ON and enforce_gtid_consistency = ON on the source",
    "privilege": "GRANT PROCESS, REPLICATION CLIENT ON *.*",
    "replica": "set log_replica_updates (MariaDB: log_slave_updates) on the source, or read from its primary",
    "subquery": "a `where` without SELECT would do",
}
# The check that a note belongs to, and what can be done about it.
_ABOUT: dict[Kind, tuple[str, Callable[[Table, Note], str | None]]] = {
    "unfit_index": ("key", _ADD_KEY),
    "no_key": ("key", _ADD_KEY),
    "no_key_and_no_cursor": ("key", _ADD_KEY),
    "no_unique_index": ("key", lambda t, _: f"add a unique index on ({', '.join(t.key)})"),
    "unknown_collation": ("note", _text(None)),
    "no_cursor": ("cursor", _text("add updated_at … ON UPDATE CURRENT_TIMESTAMP, or name a `cursor`")),
    "likely_cursor": ("cursor", _chosen),
    "not_a_time": ("cursor", _text("name it as `cursor` if it grows with every change")),
    "unmaintained_cursor": (
        "cursor",
        lambda t, _: (
            f"add ON UPDATE CURRENT_TIMESTAMP to {t.cursor}, or make sure that the application sets it"
        ),
    ),
    "deletes": ("deletes", _text(None)),
    "updates": ("cursor", _text("add updated_at … ON UPDATE CURRENT_TIMESTAMP if rows change")),
    "unindexed_cursor": ("index", _index),
    "nullable_cursor": ("nullable", _not_null),
    "nullable_cursor_without_key": ("nullable", _not_null),
    "unsteady_where": (
        "where",
        _text("set `deletes`, whose search finds them, or run verify --repair now and then"),
    ),
    "cascades": ("cascades", lambda t, _: f"set tables.{t.name}.cascades: follow"),
    "one_connection": ("snapshot", lambda _, note: _PROVE.get(note.obstacle or "lost")),
    "unseen_excludes": ("columns", _text("check the names")),
    "hidden_columns": (
        "privileges",
        lambda t, _: f"GRANT SELECT ON {quote(t.source.schema)}.{quote(t.source.table)}",
    ),
}
