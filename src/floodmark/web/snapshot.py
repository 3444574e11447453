"""What the dashboard sees, as values: tables, runs, the ledger, and all of it at one moment; and who looks, and when.

`Looks` reads the store; a look that fails keeps what was seen before, and says since when. `Watch` looks only while someone
is watching. The warehouse's ledger is queried rarely, in the background, and never at a sync's expense: a DuckDB file is
opened only while nobody holds a table, and for 100 ms at most; Redshift is queried only shortly after a run has published
something, when it is awake anyway. If the ledger can't be read, the pages say so.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any

from floodmark.config.load import Config, WarehouseSpec
from floodmark.load.protocol import open_warehouse
from floodmark.log.lease import LEASE_SECONDS, LeaseNote, lives
from floodmark.log.status import (
    Day,
    ErrorText,
    Killed,
    LastVerify,
    RunOutcome,
    Scrub,
    TableOutcome,
    TableStatus,
    parse,
    run_at,
)
from floodmark.model.errors import FloodmarkError
from floodmark.model.ledger import LoadSum
from floodmark.model.run import Lag
from floodmark.model.times import compact, stamp
from floodmark.status.facts import RUNS_BACK, Past, StoreFacts
from floodmark.status.health import Mark, TableFacts, TableHealth, behind_seconds, judge, limit_of, moment
from floodmark.store.store import Store

logger = logging.getLogger("floodmark")

EVERY = 5.0  # seconds between two looks while someone is watching
WATCHED = 30.0  # how long after a request someone still counts as watching
FRESH = 10.0  # what is older is looked at again before it is shown,
PATIENCE = 0.7  # but no request waits longer than this for it
FIRST = 120.0  # except for the first look

POINTS = 30  # of a sparkline

REDSHIFT_SECONDS = 10.0  # for a connection, and for the answer
REDSHIFT_EVERY = timedelta(minutes=10)
AWAKE = timedelta(minutes=10)  # after something was published, Redshift still is
DUCKDB_AFTER = timedelta(seconds=15)  # something was published
DUCKDB_EVERY = timedelta(minutes=5)
AGAIN = timedelta(seconds=30)  # after it could not be had


@dataclass(frozen=True)
class LedgerReading:
    """What the ledger last said; `problem`: why it is not newer."""

    at: str | None = None  # None: it has not been queried, or never answered
    sums: Mapping[tuple[str, int], LoadSum] = field(default_factory=dict)
    problem: str | None = None
    off: bool = False  # it must not be queried


NOT_ASKED = LedgerReading()


@dataclass(frozen=True)
class Loads:
    """A table's loads as the ledger has them, beside what was published."""

    at: str
    commits: int
    files: int
    published: int  # commits

    @property
    def agrees(self) -> bool:
        """Whether the ledger has as many commits as were published."""
        return self.commits == self.published


def loads_of(mark: Mark, seen: LedgerReading) -> Loads | None:
    """A table's loads; None where they are not known, or what was published is newer."""
    epoch, commits, _ = mark.loads
    saved = mark.document.get("backup_metadata", {}).get("saved_at")
    if (
        seen.at is None
        or not mark.log
        or not isinstance(saved, str)
        or saved > seen.at
        or epoch != mark.load_epoch
    ):
        return None
    found = seen.sums.get((mark.log, epoch))
    known = (found.commits, found.files) if found else (0, 0)
    return Loads(seen.at, *known, published=commits)


def waiting(mark: Mark, loads: Loads | None) -> int:
    """How many files wait: as published, corrected by what the ledger has or lacks beyond that."""
    if loads is None or loads.agrees:
        return mark.pending_files
    return max(0, mark.pending_files + mark.loads[2] - loads.files)


def due(
    embedded: bool,
    now: datetime,
    *,
    tried: datetime | None,
    failed: bool,
    asked_of: object,
    published: object,
    published_at: datetime | None,
    held: bool,
) -> bool:
    """Whether to query it now. `published` identifies what runs have published, `asked_of` what they had when it last answered."""
    new = published != asked_of
    if not embedded:
        awake = published_at is not None and now - published_at < AWAKE
        return new and awake and (tried is None or now - tried >= REDSHIFT_EVERY)
    if held:
        return False
    if tried is None:
        return True
    return now - tried >= (AGAIN if failed else DUCKDB_AFTER if new else DUCKDB_EVERY)


@dataclass(frozen=True)
class TableHolder:
    """The run that holds a table, and how far it has got."""

    table: str
    run: str
    host: str | None
    pid: int | None
    purpose: str | None
    since: str | None
    stage: str | None = None
    stage_since: str | None = None
    rows: int | None = None
    total: int | None = None
    files: int | None = None
    bytes: int | None = None
    told: str | None = None  # when that was written
    lag: float | None = None  # behind the source, as the run measured it
    lag_ids: int | None = None
    # At the moment of a page that shows it:
    percent: int | None = None
    rows_per_second: int | None = None
    seconds_left: float | None = None


def holder_of(facts: TableFacts) -> TableHolder | None:
    """Who holds the table, while its lease is alive, and how far it has got, if it says so."""
    lease, live = facts.lease, facts.live
    if lease is None:
        return None
    if live is None:
        since = run_at(lease.run) or None
        return TableHolder(facts.table, lease.run, lease.owner.host, lease.owner.pid, lease.purpose, since)
    stage_since = next((one.since for one in live.stages if not one.ended), None)
    return TableHolder(
        facts.table, live.run, live.host, live.pid, lease.purpose, live.since, live.stage, stage_since,
        live.rows, live.expected, live.files, live.bytes, live.updated_at, live.lag_seconds, live.lag_ids,
    )  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One table as the overview shows it."""

    name: str
    health: TableHealth
    target: float  # how far it may be behind
    lag: Lag  # as it was measured last
    looked: str | None = None
    points: tuple[float | None, ...] = ()
    last: TableOutcome | None = None
    last_success: str | None = None
    pending: int = 0
    verified: LastVerify | None = None
    holder: TableHolder | None = None
    mark: Mark | None = None
    loads: Loads | None = None  # as the ledger has them; None: not known
    # It may be that far behind by now, in whole minutes; only where that is too far.
    at_most: float | None = None

    @property
    def retired(self) -> bool:
        return self.mark is not None and self.mark.retired

    @property
    def document(self) -> Mapping[str, Any]:
        """The published watermark, without its lists of files."""
        return self.mark.document if self.mark else {}


@dataclass(frozen=True)
class Snapshot:
    """Everything at one moment; `problem` says why it is not newer."""

    at: datetime
    version: int
    rows: tuple[Row, ...] = ()
    runs: tuple[RunOutcome, ...] = ()  # newest first
    days: Mapping[str, tuple[Day, ...]] = field(default_factory=dict)
    problem: str | None = None
    read: bool = True  # False: the store was never read
    ledger: LedgerReading = NOT_ASKED

    def row(self, name: str) -> Row | None:
        return next((row for row in self.rows if row.name == name), None)

    def run(self, run: str) -> RunOutcome | None:
        return next((one for one in self.runs if one.run == run), None)

    def parts(self, table: str, most: int = 60) -> list[TableOutcome]:
        """A table's parts of the runs that are known, newest first."""
        return list(islice((part for run in self.runs for part in run.tables if part.table == table), most))

    def shows(self, other: Snapshot) -> bool:
        """Whether this one shows the same as the other."""
        here = (self.rows, self.runs, self.days, self.ledger)
        return here == (other.rows, other.runs, other.days, other.ledger)

    @property
    def refused(self) -> RunOutcome | None:
        """The last run, if it failed as a whole and no sync has got further since."""
        last = self.runs[0] if self.runs else None
        if last is None or last.error is None or any((row.looked or "") > last.at for row in self.rows):
            return None
        return last

    @property
    def holders(self) -> list[TableHolder]:
        return [row.holder for row in self.rows if row.holder is not None]


def make_row(
    facts: TableFacts,
    limit: float,
    parts: list[TableOutcome],
    days: Iterable[Day],
    now: datetime,
    ledger: LedgerReading = NOT_ASKED,
) -> Row:
    """A table's line of the overview; `parts` are its parts of runs, newest first."""
    mark, status = facts.mark or Mark(facts.table), facts.status or TableStatus(facts.table)
    loads = loads_of(mark, ledger)
    work = status.work
    last = next((part for part in parts if not part.idle), work or (parts[0] if parts else None))
    if work is not None and last is not None and work.run > last.run:
        last = work
    lag = facts.lag
    if lag.seconds is None and lag.ids is None:
        lag = next((part.lag for part in parts if part.exit_code != 3), lag)
    pending = waiting(mark, loads)
    health = judge(facts, limit, now, pending=pending)
    total = behind_seconds(facts, now)
    return Row(
        name=facts.table,
        health=health,
        lag=lag,
        looked=status.last_check_time,
        points=points(parts, days),
        last=last,
        last_success=status.success_at or _last_success(mark, status, parts),
        pending=pending,
        verified=status.verify,
        holder=holder_of(facts),
        mark=facts.mark,
        target=limit,
        loads=loads,
        at_most=total // 60 * 60 if total is not None and total > limit else None,
    )


def _last_success(mark: Mark, status: TableStatus, parts: list[TableOutcome]) -> str | None:
    """When a sync of the table last succeeded, where its status does not say so."""
    loaded = mark.document.get("last_redshift_load_time")
    if mark.error is None and status.error is None:
        killed = status.last_check_time is None and (mark.open or mark.pending_files)
        read = None if killed else mark.document.get("last_mysql_extraction_time")
        return latest(status.last_check_time, loaded, read)
    return latest(*(part.at for part in parts if part.ok), loaded)


def killed_runs(tables: Iterable[TableFacts], history: Past, since: str) -> list[RunOutcome]:
    """The runs since then that were killed: of which another run, or only the lease, tells."""
    taken_over = [(t.table, one) for t in tables if t.status for one in t.status.killed]
    known = {run.run for run in history.runs}
    found: dict[str, dict[str, TableOutcome]] = {}
    for table, one in (*taken_over, *history.killed):
        if one.run not in known and one.run >= since:
            found.setdefault(one.run, {}).setdefault(table, _killed(table, one))
    parts = {run: tuple(by_table.values()) for run, by_table in found.items()}
    return [RunOutcome(run, seconds=max(p.seconds for p in of), tables=of) for run, of in parts.items()]


def _killed(table: str, one: Killed) -> TableOutcome:
    """A table's part of a run that was killed, at the latest when its lease expired."""
    at = run_at(one.run)
    begun, ended = moment(at), moment(one.until)
    seconds = (ended - begun).total_seconds() - LEASE_SECONDS if begun and ended else 0.0
    where = "".join((f", in {one.stage}" if one.stage else "", f", on {one.host}" if one.host else ""))
    error = ErrorText(f"the run was killed{where}")
    return TableOutcome(table, one.run, at, None, max(0.0, seconds), error=error, rows_extracted=one.rows)


def parts_of(runs: Iterable[RunOutcome]) -> dict[str, list[TableOutcome]]:
    """The parts of runs by their tables, in the runs' order."""
    found: dict[str, list[TableOutcome]] = defaultdict(list)
    for part in (part for run in runs for part in run.tables):
        found[part.table].append(part)
    return found


def points(parts: list[TableOutcome], days: Iterable[Day]) -> tuple[float | None, ...]:
    """The lag over time, oldest first: of the runs that are known, else the worst of each day."""
    of_runs = [part.behind for part in parts[:POINTS]][::-1]
    known = [value for value in of_runs if value is not None]
    if len(known) >= 3:
        return tuple(of_runs)
    of_days = [worst_lag(day) for day in days][-POINTS:]
    return tuple(of_days) if len(of_days) > len(of_runs) else tuple(of_runs)


def worst_lag(day: Day) -> float | None:
    """The worst lag of a day, in seconds or ids."""
    return day.worst_lag_seconds if day.worst_lag_seconds is not None else day.worst_lag_ids


def latest(*times: object) -> str | None:
    """The latest of some moments; unknown ones are ignored."""
    return max((str(one) for one in times if one), default=None)


def worst_first(rows: Iterable[Row]) -> list[Row]:
    """The rows by health, then by how far they are behind, then by name; retired tables last."""
    return sorted(
        rows,
        key=lambda r: (r.retired, r.health.rank, -(r.at_most or r.lag.seconds or 0.0), -r.pending, r.name),
    )


class LedgerWatch:
    """Queries the ledger in a thread of its own, when it is due."""

    def __init__(
        self, store: Store, spec: WarehouseSpec, scrub: Callable[[str], str], on: bool = True
    ) -> None:
        self._store = store
        self._spec = spec
        self._scrub = scrub
        self._lock = threading.Lock()
        self._seen = LedgerReading(off=not on)
        self._tried: datetime | None = None
        self._asked_of: object = None
        self._thread: threading.Thread | None = None

    def now(self, published: object, published_at: datetime | None, held: bool) -> LedgerReading:
        """What was last seen, at once; starts a query if it is due."""
        with self._lock:
            busy = self._thread is not None and self._thread.is_alive()
            wanted = not self._seen.off and not busy and due(
                self._spec.can.embedded, datetime.now(UTC), tried=self._tried, failed=self._seen.problem is not None,
                asked_of=self._asked_of, published=published, published_at=published_at, held=held,
            )  # fmt: skip
            if wanted:
                self._tried = datetime.now(UTC)
                self._thread = threading.Thread(
                    target=self._ask, args=(published,), name="ledger", daemon=True
                )
                self._thread.start()
            return self._seen

    def wait(self) -> None:
        """Waits for the answer if the ledger is being queried; that has a time limit."""
        if self._thread is not None:
            self._thread.join()

    def _ask(self, published: object) -> None:
        began = stamp()
        try:
            warehouse = open_warehouse(self._spec, seconds=REDSHIFT_SECONDS)
            try:
                found = warehouse.ledger_sums(self._nobody_holds_a_table)
            finally:
                warehouse.close()
            seen = LedgerReading(began, {(one.log, one.epoch): one for one in found})
        except FloodmarkError as error:
            seen = replace(self._seen, problem=self._scrub(error.message))
        except Exception as error:  # a driver's surprise must not end the dashboard
            logger.debug("ledger", exc_info=True)
            seen = replace(self._seen, problem=type(error).__name__)
        with self._lock:
            self._seen = seen
            if seen.problem is None:
                self._asked_of = published

    def _nobody_holds_a_table(self) -> bool:
        notes = (parse(LeaseNote, self._store.get(one.path)) for one in self._store.list("leases/"))
        return not any(note is not None and lives(note) for note in notes)


class Looks:
    """Everything seen so far. One thread looks; any number of threads may take the snapshot."""

    def __init__(self, config: Config, scrub: Scrub, ask_ledger: bool = False) -> None:
        self.config = config
        self.scrub = scrub
        self.store = Store(config.store)
        self.facts = StoreFacts(self.store, partial(limit_of, config), scrub)
        self.ledger = LedgerWatch(self.store, config.warehouse, scrub, ask_ledger)
        self._parts: dict[str, list[TableOutcome]] = {}
        self.snapshot = Snapshot(datetime.now(UTC), 0, read=False)
        self.failed: FloodmarkError | None = None  # why the last look failed

    def look(self, now: datetime | None = None) -> Snapshot:
        """Looks at the store and makes the next snapshot, with a new version if anything shown has changed."""
        began = now or datetime.now(UTC)
        before = self.snapshot
        try:
            found, history = self.facts.history(began)
        except FloodmarkError as error:
            self.failed = error
            said = self.scrub(error.message)
            if said != before.problem:
                logger.warning("the store can't be read: %s", said, extra={"step": "look"})
            self.snapshot = replace(before, problem=said, version=before.version + (said != before.problem))
            return self.snapshot
        self.failed = None
        killed = killed_runs(found, history, compact(began - RUNS_BACK))
        runs = tuple(sorted((*history.runs, *killed), key=lambda run: run.run, reverse=True))
        if runs != before.runs or not self._parts:
            self._parts = parts_of(runs)
        # The ledger is queried again when that is due.
        saved = latest(*(one.mark.document.get("updated_at") for one in found if one.mark))
        ledger = self.ledger.now(self.facts.published, moment(saved), any(one.running for one in found))
        configured = {name for name in self.config.tables if not set(name) & set("*?[")}
        unknown = (TableFacts(name) for name in configured - {one.table for one in found})
        rows = worst_first(
            make_row(
                one,
                self.facts.limit(one.table),
                self._parts.get(one.table, []),
                history.days.get(one.table, ()),
                began,
                ledger,
            )
            for one in (*found, *unknown)
        )
        made = Snapshot(began, before.version, tuple(rows), runs, history.days, ledger=ledger)
        same = before.read and before.problem is None and made.shows(before)
        self.snapshot = replace(made, version=before.version + (not same))
        return self.snapshot


class Watch:
    """Looks at the store only while someone is watching. A context manager that ends its thread."""

    def __init__(self, looks: Looks, every: float = EVERY) -> None:
        self._looks = looks
        self._every = every
        self._asked = threading.Event()
        self._seen = threading.Condition()
        self._looked = 0.0  # monotonic, when the last look ended
        self._wanted = 0.0  # when it was last requested
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="looks", daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._asked.set()
        self._thread.join(2.0)

    @property
    def fresh(self) -> bool:
        """Whether the snapshot is fresh enough to be shown as it is."""
        return self._looked > 0 and time.monotonic() - self._looked < FRESH

    def now(self) -> Snapshot:
        """What was seen last, at once; counts as watching."""
        self._wanted = time.monotonic()
        self._asked.set()
        return self._looks.snapshot

    def current(self) -> Snapshot:
        """What is there now, if the store answers soon; else what was seen last."""
        self.now()
        patience = PATIENCE if self._looked else FIRST
        with self._seen:
            self._seen.wait_for(lambda: self.fresh, patience)
        return self._looks.snapshot

    def _run(self) -> None:
        while not self._ended.is_set():
            self._asked.wait()
            if self._ended.is_set():
                return
            try:
                self._looks.look()
            except Exception:
                logger.exception("the dashboard could not look at the store", extra={"step": "look"})
            with self._seen:
                self._looked = time.monotonic()
                self._seen.notify_all()
            if time.monotonic() - self._wanted > WATCHED:
                self._asked.clear()
            self._ended.wait(self._every)
