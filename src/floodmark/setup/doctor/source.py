"""Checks the source and its tables: that it can be reached, the login, what the server says about itself, and how each
table will be read and why, with what makes that slow, lossy or impossible.

Thin functions query, pure ones decide (`check_server`, `check_table`). Checks say what a missing privilege or a replica
costs, not just that it is so. What the next sync of a table would do is the sync's own preview.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path

from floodmark.clean.copies import RUNS
from floodmark.config.load import Config, SourceSpec, TableOptions
from floodmark.load.preview import LoadPreview
from floodmark.load.preview import look as look_at_load
from floodmark.load.protocol import open_warehouse
from floodmark.log.fold import State
from floodmark.log.log import Log
from floodmark.log.pipeline import Starts, StorePipeline
from floodmark.model.errors import ConfigError, DataError, FloodmarkError
from floodmark.model.notes import Kind, Note, Obstacle, clause
from floodmark.model.open_work import MEMBERSHIPS
from floodmark.model.policies import when_too_long
from floodmark.model.run import SyncOptions
from floodmark.model.table import Table
from floodmark.model.text import counted, duration, size
from floodmark.model.times import compact
from floodmark.model.types import fields, quote
from floodmark.model.warehouse import Capabilities
from floodmark.plan.bound import Reading, Settled
from floodmark.plan.decide import COUNT_EXACTLY_BELOW
from floodmark.plan.overlap import (
    OVERLAP_SECONDS,
    because,
    overlap_seconds,
    said_again,
    said_missed,
)
from floodmark.plan.tables import NoTable, StoredTables, said_new
from floodmark.setup.doctor.check import Check, Section, Status, bastion, nearby, reach
from floodmark.source import ranges as edges
from floodmark.source import sql
from floodmark.source.binlog.fitness import Fitness, fitness, joined, log_facts, verdict
from floodmark.source.connections import SharedLooks
from floodmark.source.describe import CLOCKS, Discovered, discover_with_notes
from floodmark.source.server import ServerFacts, server_facts
from floodmark.source.session import Session, parse_version
from floodmark.store.store import Store
from floodmark.sync.news import LogNews, stored_news
from floodmark.sync.preview import Preview, preview, source_of

SECTION = Section("source")
TABLES = Section("tables")
CONNECT_SECONDS = 4
ANSWER_SECONDS = 8
SKEW_SECONDS = 30.0
# The proposed overlap is this many times as long as the longest transaction.
PROPOSED = 2
SMALL_PACKET = 16 << 20
# Connections besides the tasks': for planning several tables at once, and for queries about locks and lag.
BESIDE = 5
_LATER = ("TLS", "version", "clock", "zones", "privileges", "role", "transactions", "limits", "binary log")
MOST = 100
RECENT_DAYS = 30  # how far back the pauses between runs are looked at
RECENT_RUNS = 1000  # as many as a store lists at once
TABLES_SECONDS = 7.0  # after this, the remaining tables are only counted
TARGET_SECONDS = 3.0  # for each of the warehouse's answers
_MODES = {"upsert": "merged by key", "append": "new rows only", "full": "the whole table with every sync"}


def examine_source(config: Config, names: tuple[str, ...], file_lock: threading.Lock) -> Iterator[Check]:
    """The source, then its tables, over one connection."""
    spec, opened = config.source, list[Session]()
    failed = yield from SECTION.in_order(_way(spec, opened), ("log-in", *_LATER))
    if failed is not None:
        yield from TABLES.skipped("tables", f"see {failed} of the source")
        return
    with opened[0] as session:
        try:
            server = server_facts(session)
            yield from check_server(server, spec, TableOptions(**config.defaults).overlap_seconds)
            yield _log(session, config, server)
        except FloodmarkError as error:
            yield SECTION.failed("answer", error)
            yield from TABLES.skipped("tables", "the source does not answer")
            return
        yield from examine_tables(session, config, names, file_lock)


# ---------------------------------------------------------------- the way there


def _way(spec: SourceSpec, opened: list[Session]) -> Iterator[Check]:
    """Each step needs the one before; the last one opens the session."""
    if spec.socket is not None:
        if not Path(spec.socket).is_socket():
            hint = "check ?socket= in source.url, and that MySQL is running"
            yield SECTION.failure("socket", f"there is no socket {spec.socket}", hint)
        yield SECTION.ok("socket", spec.socket)
    elif spec.ssh is not None:
        yield from bastion(SECTION, spec.ssh, spec.host, spec.port)
    else:
        yield from reach(SECTION, spec.host, spec.port)
    opened.append(_session(spec))
    database = f", database {spec.database}" if spec.database else ""
    yield SECTION.ok("log-in", f"as {spec.user}{database}")


def _session(spec: SourceSpec) -> Session:
    return Session(spec, read_timeout=ANSWER_SECONDS, connect_timeout=CONNECT_SECONDS, purpose="doctor")


# ---------------------------------------------------------------- what the server says


def check_server(server: ServerFacts, spec: SourceSpec, overlap: float | None = None) -> Iterator[Check]:
    """The server's facts as checks. `overlap`: the configured `overlap_seconds`."""
    yield encryption(server, spec)
    yield _version(server)
    yield clock(server.skew, server.unsure, server.zone)
    yield _zones(server)
    yield _privileges(server, spec)
    yield _role(server)
    yield _transactions(server, OVERLAP_SECONDS if overlap is None else overlap)
    yield from _limits(server, spec)


def encryption(server: ServerFacts, spec: SourceSpec) -> Check:
    """Whether someone in between could read the traffic or pose as the server."""
    mode = spec.tls.mode if spec.tls else None
    private = spec.socket is not None or nearby(spec.host)
    if not server.cipher:
        if private:
            return SECTION.ok("TLS", "not encrypted; not needed, because the server is on this machine")
        if spec.ssh is not None:
            said = f"encrypted by SSH up to {spec.ssh.host}, but not from there to {spec.host}"
            return SECTION.ok("TLS", said)
        return SECTION.warning(
            "TLS",
            f"passwords and rows travel to {spec.host} in plain text",
            "enable TLS on the server and set source.tls: {mode: verify_identity, ca: …}",
        )
    how = f"{server.tls_version}, {server.cipher}"
    if spec.tls is not None and (mode in ("verify_ca", "verify_identity") or spec.tls.ca is not None):
        named = mode == "verify_identity" or spec.tls.ca is None
        checked = "authority and host name" if named else "its authority, not its host name"
        return SECTION.ok("TLS", f"{how}; certificate verified ({checked})")
    wrong = f"{how}, but the certificate is not verified: another server could pose as {spec.host}"
    hint = "set source.tls: {mode: verify_identity, ca: the server's CA}"
    fine = private and mode is None
    return SECTION.check("TLS", f"{how}; certificate not verified", None if fine else wrong, hint)


def _version(server: ServerFacts) -> Check:
    least = (10, 3) if server.mariadb else (5, 6)
    old = server.numbers and server.numbers < least
    wrong = f"{server.version} is older than any version Floodmark is tested with" if old else None
    hint = f"upgrade to {'MariaDB 10.11' if server.mariadb else 'MySQL 8'} or later"
    return SECTION.check("version", f"{'' if server.mariadb else 'MySQL '}{server.version}", wrong, hint)


def clock(skew: float, unsure: float, zone: str) -> Check:
    """The server's clock against this machine's."""
    way, wrong = "ahead of" if skew > 0 else "behind", None
    if abs(skew) - unsure > SKEW_SECONDS:
        wrong = f"the server's clock is {duration(abs(skew))} {way} this machine's; its zone is {zone}"
    hint = "synchronize both clocks (NTP): presets such as `watermark set today` use this machine's clock"
    return SECTION.check("clock", f"{abs(skew):.2f} s off this machine's; zone {zone}", wrong, hint)


def _zones(server: ServerFacts) -> Check:
    """Whether sessions write DATETIME cursors in a zone other than the server's."""
    zones, assumed = server.zones, f"DATETIME cursors are assumed to be in {server.zone}"
    if zones is None:
        return SECTION.ok("zones", f"the server does not show its sessions' time zones: {assumed}")
    if not zones:
        return SECTION.ok("zones", "all sessions are in the server's time zone")
    return SECTION.warning(
        "zones",
        f"some sessions use other time zones ({', '.join(zones)}): the CURRENT_TIMESTAMP that they write to a DATETIME"
        " cursor may be before the watermark, so every sync reads that many hours again",
        "set the table's cursor_timezone to its writers' zone, or use TIMESTAMP, which has no zone",
    )


def _privileges(server: ServerFacts, spec: SourceSpec) -> Check:
    sight = server.trust.sight
    if sight.process and (sight.locks or not parse_version(server.version).shows_locks):
        also = ", and what they have locked" if sight.locks else ""
        return SECTION.ok("privileges", f"open transactions are visible{also}")
    if sight.process:
        return SECTION.warning(
            "privileges",
            "performance_schema can't be read or is off, so an open transaction that writes to any table, or a long report"
            " in READ COMMITTED, holds back the new rows of all tables",
            f"GRANT SELECT ON performance_schema.* TO '{spec.user}'@'…'",
        )
    return SECTION.warning(
        "privileges",
        "no PROCESS privilege: open transactions can't be seen, so every sync reads the last "
        f"{OVERLAP_SECONDS:g} s before the watermark again",
        f"GRANT PROCESS ON *.* TO '{spec.user}'@'…'",
    )


def _role(server: ServerFacts) -> Check:
    again = f"the last {OVERLAP_SECONDS:g} s are read again by every sync"
    replica, kind = server.replication, server.trust.member_of
    member = MEMBERSHIPS[kind] if kind else None
    if replica is not None and not replica.running:
        return SECTION.warning(
            "role",
            f"a replica whose replication is not running: {replica.error or 'it was stopped'}",
            "START REPLICA (START SLAVE): until then nothing new arrives; if it is the primary now, RESET REPLICA ALL",
        )
    if replica is not None or server.trust.replica:
        what = "a replica, or read-only" if replica is None else "a replica"
        what += f", {member}" if member else ""
        lag = "lag unknown" if replica else "lag unknown (REPLICATION CLIENT or SLAVE MONITOR would show it)"
        if replica is not None and replica.behind is not None:
            lag = f"{replica.behind:g} s behind its primary"
        said = f"{what}, {lag}; rows arrive later than their cursor says, so {again}"
        return SECTION.warning(
            "role", said, "keep overlap_seconds above the largest lag, or read from the primary"
        )
    wrong = f"{member}, whose other members' transactions can't be seen, so {again}" if member else None
    return SECTION.check("role", "primary", wrong)


def _transactions(server: ServerFacts, overlap: float) -> Check:
    """How long transactions stay open, where the overlap has to cover what can't be seen of them."""
    if server.trust.complete:
        return SECTION.ok("transactions", "open ones are seen, and waited for however long they stay open")
    limit = (
        f"rows of a transaction that stays open for more than {overlap:g} s can be missed (overlap_seconds)"
    )
    if server.longest is None:
        return SECTION.warning(
            "transactions",
            f"{limit}, and the server does not show how long they stay open",
            "find out how long they do, and set defaults.overlap_seconds above that; where performance_schema is readable and"
            " its consumer events_transactions_history_long is enabled, doctor measures it",
        )
    longest, whose = (
        server.longest.seconds,
        "this server's, not its primary's, " if server.trust.replica else "",
    )
    known = "that the server remembers" if server.longest.remembered else "open right now"
    said = f"{limit}; the longest one {known} ({whose}as far as the user sees): {duration(longest)}"
    proposed = math.ceil(PROPOSED * longest / OVERLAP_SECONDS) * OVERLAP_SECONDS
    wrong = said if PROPOSED * longest > overlap else None
    return SECTION.check("transactions", said, wrong, f"set defaults.overlap_seconds: {proposed:g}")


def _limits(server: ServerFacts, spec: SourceSpec) -> Iterator[Check]:
    fine = f"max_allowed_packet is {size(server.max_allowed_packet)}"
    wrong = f"{fine}: longer values stop the sync (exit code 6)"
    hint = "SET GLOBAL max_allowed_packet = 67108864, and set it in the server's configuration"
    yield SECTION.check(
        "packet size", fine, wrong if server.max_allowed_packet < SMALL_PACKET else None, hint
    )
    yield _connections(server, spec)
    limit, idle = "no limit on statements", server.wait_timeout
    if server.statement_seconds:
        limit = f"the server ends statements after {duration(server.statement_seconds)}, except ours"
    wrong = f"the server closes connections that are idle for {idle} s"
    fine = f"wait_timeout {idle} s, {limit}"
    yield SECTION.check("timeouts", fine, wrong if idle < 60 else None, "raise wait_timeout to 600 or more")


def _connections(server: ServerFacts, spec: SourceSpec) -> Check:
    needed = spec.max_connections + BESIDE
    free = server.max_connections - server.connected
    if server.user_connections is not None and server.user_connections < needed:
        return SECTION.warning(
            "connections",
            f"{spec.user} is limited to {server.user_connections} connections, but a sync may need {needed}",
            f"lower source.max_connections to {max(1, server.user_connections - BESIDE)}, or raise the user's limit",
        )
    used, most = server.connected, server.max_connections
    wrong = f"{used} of the server's {most} connections are in use, and a sync may need {needed} more"
    hint = f"raise the server's max_connections, or lower source.max_connections ({spec.max_connections})"
    fine = f"{free} of {most} free; the tasks of a sync use up to {spec.max_connections}"
    return SECTION.check("connections", fine, wrong if free < needed else None, hint)


# ---------------------------------------------------------------- the binary log


def binary_log(log: Fitness, followed: bool = False) -> Check:
    """Whether changes can be followed by the binary log; with cursors, that is information: nothing needs it."""
    said = joined((verdict(log), *(found.what for found in log.said)))
    hint = joined(found.remedy for found in log.said) or None
    if followed:
        status: Status = "failure" if log.refused else "warning" if log.said else "ok"
        return Check(SECTION.name, "binary log", status, f"tables follow it; {said}", hint)
    return Check(
        SECTION.name, "binary log", "ok", f"not used, because cursors find the changes; {said}", hint
    )


def _log(session: Session, config: Config, server: ServerFacts) -> Check:
    schemas = {name.partition(".")[0] for name in config.tables} or {config.source.database or "*"}
    named = sorted(schema for schema in schemas if "*" not in schema and "?" not in schema)
    try:
        facts = log_facts(session, server.trust, lambda: _session(config.source))
    except FloodmarkError as error:  # perhaps no second connection is allowed
        said = f"whether it could be followed can't be told: {' '.join(error.message.split())}"
        return SECTION.ok("binary log", f"not used, because cursors find the changes; {said}")
    entries = (config.defaults, *config.entries.values())
    followed = any(entry.get("changes") == "binlog" for entry in entries)
    return binary_log(fitness(facts, named, longest_pause(Store(config.store))), followed)


def longest_pause(store: Store) -> float:
    """The longest time between two of the latest runs, in seconds; 0 if there were none."""
    since = compact(datetime.now(UTC) - timedelta(days=RECENT_DAYS))
    try:
        runs = list(islice(store.list(RUNS, start_after=f"{RUNS}{since}"), RECENT_RUNS))
    except FloodmarkError:  # its own section reports it
        return 0.0
    pauses = (later.modified - earlier.modified for earlier, later in pairwise(runs))
    return max((pause.total_seconds() for pause in pauses), default=0.0)


# ---------------------------------------------------------------- tables


def examine_tables(
    session: Session, config: Config, names: Sequence[str], file_lock: threading.Lock
) -> Iterator[Check]:
    """Each table of the command, else of the configuration, else of the source."""
    store, readable = Store(config.store), True
    stored = StoredTables(config, store)
    try:
        stored.names()
    except FloodmarkError:  # its own section reports it
        readable, stored = False, StoredTables(config, store, names=())
    try:
        found, unknown = stored.resolve(lambda _: nullcontext(session), names, all_tables=not names)
    except NoTable as error:
        yield TABLES.warning("tables", error.message, error.hint)
        return
    except FloodmarkError as error:
        yield TABLES.failed("tables", error)
        return
    for report in unknown:
        if report.error is not None:
            yield Section("tables", report.table).failed("table", report.error)
    for name in stored.left_out:
        yield Section("tables", name).ok("table", "retired: sync --all skips it")
    if stored.new:
        hint = "add them to `tables`, or set defaults.new_tables: ignore"
        yield TABLES.warning("new_tables", said_new(stored.new), hint)
    until = time.monotonic() + TABLES_SECONDS
    known = store if readable else None
    with closing(Previews(session, config, known, file_lock, everything=not names)) as previews:
        for number, name in enumerate(found):
            if number >= MOST or time.monotonic() > until:
                left = f"{counted(len(found) - number, 'more table')} not checked"
                yield TABLES.warning("tables", left, "to check them: floodmark doctor -t schema.table")
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
    left_out = left_out_by(preview) if preview is not None else None
    yield from check_table(found, rows, config.warehouse.can, options.mode is not None, left_out)
    if trust.complete:  # otherwise the server's own checks say it for all tables
        state = preview.state if preview is not None else State(name)
        yield from check_overlap(Reading(found.table, state, options, trust))
    if problem is not None:
        yield problem


def check_overlap(reading: Reading) -> Iterator[Check]:
    """What of this table is read again by every sync, and what is missed all the same."""
    table, settled = reading.table, Settled(None, None)
    seconds = overlap_seconds(reading, settled) if table.cursor else 0.0
    if seconds <= 0:
        return
    why = "; ".join(because(reading, settled))
    hint = f"set tables.{table.name}.overlap_seconds if rows may be committed later than that"
    if table.key:
        again = said_again(reading, seconds, why)
        said = again[0].lower() + again[1:].removesuffix(".")
    else:
        said, hint = said_missed(why), f"set tables.{table.name}.mode: full"
    yield Section("tables", table.name).warning("overlap", said, hint)


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

    @cached_property
    def _news(self) -> LogNews:
        """What the source's log says of tables that follow it, as of its last read."""
        return stored_news(Store(self._config.store), lambda: nullcontext(self._session))

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
        news = self._news.of(state) if options.changes == "binlog" else None
        source = source_of(self._session, found, state, options, self.looks, waits=None, news=news)
        made = preview(source, found, self._config, log, request, self._starts)
        return replace(made, load=self._load(log, made))

    def _load(self, log: Log, made: Preview) -> LoadPreview:
        if self._silent:
            return LoadPreview()
        try:
            with self._file_lock:
                ours = self._pipeline.known_id
                seen = look_at_load(self._warehouse, log, made.state, made.plan.table, ours, count=False)
        except FloodmarkError as error:
            seen = LoadPreview(unknown=error.message)
        self._silent = seen.unknown is not None
        return seen


def check_table(
    found: Discovered, rows: int, can: Capabilities, configured: bool = False, left_out: str | None = None
) -> Iterator[Check]:
    """A table's facts as checks: how it is read, then what needs attention."""
    table = found.table
    section = Section("tables", table.name)
    why = ", as configured" if configured else ""
    yield section.ok("reading", f"{reading(table)}{why}, about {counted(rows, 'row')}")
    if left_out is not None:
        yield section.warning("start", left_out, "to read them too, set start: null, or an earlier time")
    notes = [note for note in found.notes if note.kind != "whole_seconds"]  # they cost but a moment's wait
    if not table.key and not configured and not {"no_key", "whole_if_changed"} & {n.kind for n in notes}:
        notes.append(Note("no_key_and_no_cursor"))
    for note in notes:
        name, advice = _ABOUT[note.kind]
        hint = advice(table, note) if callable(advice) else advice
        # That deletes are ignored is a choice, not a problem.
        status: Status = "ok" if note.kind == "deletes" else "warning"
        yield Check("tables", name, status, clause(note), hint, table.name)
    if bound := [f for f in fields(table) if can.exceeded(f) is not None]:
        said = []
        for policy, done in (("error", "stop the sync"), ("truncate", "are cut"), ("null", "become NULL")):
            if such := [f for f in bound if when_too_long(f, table) == policy]:
                listed = ", ".join(f"{f.name} ({table.column(f.column).type})" for f in such)
                said.append(f"{listed}: values too long for Redshift {done}")
        hint = "set the table's `overflow` to error, truncate or null; or exclude the column"
        yield section.warning("columns", f"{'; '.join(said)} (overflow: {table.recipe.overflow})", hint)


def reading(table: Table) -> str:
    """`upsert by (updated_at, id), merged by key id`."""
    how = f"{table.mode}, {_MODES[table.mode]}"
    if table.mode == "upsert":
        how = f"upsert, merged by key ({', '.join(table.key)})"
    if table.follows:
        return f"{how}; follows the binary log"
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
    "whole_if_changed": ("key", _ADD_KEY),
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
    "unlogged_cascades": ("cascades", lambda t, _: f"set tables.{t.name}.cascades: follow"),
    "one_connection": ("snapshot", lambda _, note: _PROVE.get(note.obstacle or "lost")),
    "unseen_excludes": ("columns", "check the names"),
    "hidden_columns": (
        "privileges",
        lambda t, _: f"GRANT SELECT ON {quote(t.source.schema)}.{quote(t.source.table)}",
    ),
}
