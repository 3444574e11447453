"""Checks the tables: how each will be read and why, and what makes that slow, lossy or impossible."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace

from floodmark.config.load import Config
from floodmark.load.preview import LoadPreview, look
from floodmark.load.protocol import open_warehouse
from floodmark.log.fold import State
from floodmark.log.log import Log
from floodmark.log.pipeline import Starts, StorePipeline
from floodmark.model.errors import ConfigError, DataError, FloodmarkError
from floodmark.model.note_words import clause
from floodmark.model.notes import Kind, Note, Obstacle
from floodmark.model.policies import when_too_long
from floodmark.model.run import SyncOptions
from floodmark.model.table import Table
from floodmark.model.text import counted
from floodmark.model.types import fields, quote
from floodmark.model.warehouse import Capabilities
from floodmark.plan.bound import Reading, Settled
from floodmark.plan.overlap import because, overlap_seconds, said_again, said_missed
from floodmark.plan.tables import StoredTables, meant, no_table, said_new, unlisted
from floodmark.plan.window import COUNT_EXACTLY_BELOW
from floodmark.setup.doctor.check import Check, Section, Status
from floodmark.source import ranges as edges
from floodmark.source import sql
from floodmark.source.describe import CLOCKS, Discovered, discover_with_notes
from floodmark.source.session import Session
from floodmark.source.shared_looks import SharedLooks
from floodmark.store.store import Store
from floodmark.sync.preview import Preview, preview, source_of

SECTION = Section("tables")
MOST = 100
SECONDS = 7.0  # after this, the remaining tables are only counted
TARGET_SECONDS = 3.0  # for each of the warehouse's answers
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
    store, readable = Store(config.store), True
    stored = StoredTables(config, store)
    try:
        stored.names()
    except FloodmarkError:  # its own section reports it
        readable, stored = False, StoredTables(config, store, names=())
    lost = () if names else stored.gone([*found, *(report.table for report in unknown)])
    for report in (*unknown, *lost):
        section = Section("tables", report.table)
        if stored.retired(report.table):
            yield section.ok("table", "retired: sync --all skips it")
        elif report.error is not None:
            yield section.failed("table", stored.explained(report.error, report.table))
    if new := [name for name in others if name not in stored.names()]:
        yield SECTION.warning(
            "new_tables", said_new(new), "add them to `tables`, or set defaults.new_tables: ignore"
        )
    if not found and not unknown:
        nothing = no_table(config.source)
        yield SECTION.warning("tables", nothing.message, nothing.hint)
    began = time.monotonic()
    with closing(
        Previews(session, config, store if readable else None, file_lock, everything=not names)
    ) as previews:
        for number, name in enumerate(found):
            if number >= MOST or time.monotonic() - began > SECONDS:
                left = counted(len(found) - number, "more table")
                yield SECTION.warning(
                    "tables", f"{left} not checked", "to check them: floodmark doctor -t schema.table"
                )
                return
            yield from examine_table(session, config, name, previews)


def examine_table(session: Session, config: Config, name: str, previews: Previews) -> Iterator[Check]:
    """One table: how it is read, and what would refuse its next sync."""
    section, options = Section("tables", name), config.options(name)
    try:
        found = discover_with_notes(session, name, options, config.source.database)
        rows = edges.table_rows(session, found.table)
        functions = stored_functions(session, found.table)
        trust = replace(previews.looks.trust(session), engine=found.engine)
    except FloodmarkError as error:
        yield section.failed("table", error)
        return
    preview, problem = None, None
    try:
        preview = previews.of(found)
    except (ConfigError, DataError) as error:
        problem = section.failed("sync", error)
    except FloodmarkError as error:
        problem = section.warning("sync", " ".join(error.message.split()), error.hint)
    if preview is not None:
        found = replace(found, notes=preview.plan.about)
        if preview.refused is not None:
            problem = section.failed("target" if preview.load.refused else "sync", preview.refused)
    if functions:
        found = replace(found, notes=(*found.notes, Note("unsteady_where", columns=functions)))
    yield from check_table(
        found,
        rows,
        config.warehouse.can,
        configured=options.mode is not None,
        left_out=left_out_by(preview) if preview is not None else None,
    )
    if trust.complete:  # otherwise the server's own checks say it for all tables
        state = preview.state if preview is not None else State(name)
        yield from check_overlap(Reading(found.table, state, options, trust))
    if problem is not None:
        yield problem


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


def left_out_by(preview: Preview) -> str | None:
    """How many rows the first sync skips because of its start; None if none."""
    start, before = preview.start, preview.plan.before_start
    if start is None or not before:
        return None
    about = "about " if before > COUNT_EXACTLY_BELOW else ""
    return f"the first sync skips {about}{counted(before, 'row')} at or before {start.timestamp} ({start.by})"


class Previews:
    """The tables' next syncs, over the doctor's connection and without waiting for anyone.

    The warehouse is not asked again after a failure, which its own section reports; a store that can't be read, never.
    """

    def __init__(
        self,
        session: Session,
        config: Config,
        store: Store | None,
        file_lock: threading.Lock,
        *,
        everything: bool,
    ) -> None:
        self._session, self._config, self._store, self._file_lock = session, config, store, file_lock
        self._everything = everything  # whether retired tables are left out, as by sync --all
        self._starts = Starts(Store(config.store), config)
        self._pipeline = StorePipeline(Store(config.store), config.warehouse.label)
        self._warehouse = open_warehouse(config.warehouse, seconds=TARGET_SECONDS)
        self._silent = False  # the warehouse, so far
        self.looks = SharedLooks()
        self.close = self._warehouse.close

    def of(self, found: Discovered) -> Preview | None:
        """A table's next sync; None if the store can't be read, or no sync is due. Raises what would refuse it."""
        if self._store is None:
            return None
        name = found.table.name
        log = Log(self._store, name)
        state = log.read()
        if state.retired and self._everything:
            return None
        options = self._config.options(name)
        request = SyncOptions(dry_run=True, slice_rows=options.slice_rows)
        source = source_of(self._session, found, state, options, self.looks, waits=None)
        made = preview(source, found, self._config, log, request, self._starts)
        return replace(made, load=self._load(log, made))

    def _load(self, log: Log, made: Preview) -> LoadPreview:
        if self._silent:
            return LoadPreview()
        try:
            with self._file_lock:
                ours = self._pipeline.known_id
                seen = look(self._warehouse, log, made.state, made.plan.table, ours, count=False)
        except FloodmarkError as error:
            seen = LoadPreview(unknown=error.message)
        self._silent = seen.unknown is not None
        return seen


def check_table(
    found: Discovered,
    rows: int,
    can: Capabilities,
    *,
    configured: bool = False,
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
            name, advice = _ABOUT[note.kind]
            hint = advice(table, note) if callable(advice) else advice
            # That deletes are ignored is a choice, not a problem.
            status: Status = "ok" if note.kind == "deletes" else "warning"
            checks.append(Check("tables", name, status, clause(note), hint, table.name))
    if bound := [f for f in fields(table) if can.exceeded(f) is not None]:
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


def _not_null(table: Table, note: Note) -> str:
    return f"make {table.cursor} NOT NULL, with DEFAULT CURRENT_TIMESTAMP"


_ADD_KEY = "add a primary key, or name a unique `key` in the configuration"
# What lets several connections prove that they see one moment.
_PROVE: dict[Obstacle, str] = {
    "no_binlog": "start the source with --log-bin",
    "no_gtids": "set gtid_mode = ON and enforce_gtid_consistency = ON on the source",
    "privilege": "GRANT PROCESS, REPLICATION CLIENT ON *.*",
    "replica": "set log_replica_updates (MariaDB: log_slave_updates) on the source, or read from its primary",
    "subquery": "a `where` without SELECT would do",
}
# The check that a note belongs to, and what can be done about it.
_ABOUT: dict[Kind, tuple[str, str | Callable[[Table, Note], str | None] | None]] = {
    "unfit_index": ("key", _ADD_KEY),
    "no_key": ("key", _ADD_KEY),
    "no_key_and_no_cursor": ("key", _ADD_KEY),
    "no_unique_index": ("key", lambda t, _: f"add a unique index on ({', '.join(t.key)})"),
    "unknown_collation": ("note", None),
    "no_cursor": ("cursor", "add updated_at … ON UPDATE CURRENT_TIMESTAMP, or name a `cursor`"),
    "likely_cursor": ("cursor", _chosen),
    "not_a_time": ("cursor", "name it as `cursor` if it grows with every change"),
    "unmaintained_cursor": (
        "cursor",
        lambda t, _: (
            f"add ON UPDATE CURRENT_TIMESTAMP to {t.cursor}, or make sure that the application sets it"
        ),
    ),
    "deletes": ("deletes", None),
    "updates": ("cursor", "add updated_at … ON UPDATE CURRENT_TIMESTAMP if rows change"),
    "unindexed_cursor": ("index", _index),
    "nullable_cursor": ("nullable", _not_null),
    "nullable_cursor_without_key": ("nullable", _not_null),
    "unsteady_where": (
        "where",
        "set `deletes`, whose search finds them, or run verify --repair now and then",
    ),
    "cascades": ("cascades", lambda t, _: f"set tables.{t.name}.cascades: follow"),
    "one_connection": ("snapshot", lambda _, note: _PROVE.get(note.obstacle or "lost")),
    "unseen_excludes": ("columns", "check the names"),
    "hidden_columns": (
        "privileges",
        lambda t, _: f"GRANT SELECT ON {quote(t.source.schema)}.{quote(t.source.table)}",
    ),
}
