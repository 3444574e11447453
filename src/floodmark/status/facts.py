"""What the store knows, for metrics, alerts and the dashboard. Read-only; never queries MySQL or the warehouse.

A listing shows what has changed since the last look, and only that is fetched. So a look costs one LIST for each
thousand objects of a kind, and one GET for each that changed. A table whose run has died is folded from its log, once:
that run may have committed what it did not live to publish.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Generic, TypeVar
from urllib.parse import unquote

from floodmark.log.copies import glance
from floodmark.log.document import observe
from floodmark.log.lease import LeaseNote, lives
from floodmark.log.log import Log
from floodmark.log.recovery import RECORDS, Recovery
from floodmark.log.status import (
    CHECKED,
    DAYS,
    LIVE,
    TABLES,
    CheckedTables,
    Day,
    Killed,
    Live,
    Month,
    RunOutcome,
    Scrub,
    TableStatus,
    merged,
    parse,
    parse_run,
)
from floodmark.model.errors import DataError, FloodmarkError
from floodmark.model.times import compact
from floodmark.status.health import DEFAULT_LIMIT, Mark, TableFacts, mark_of
from floodmark.store.store import Store

READERS = 32
WATERMARKS = "watermark/tables/"
COPIES = "watermark/backups/"
LEASES = "leases/"
RUNS = "runs/"
# How often the copies are counted: there may be many, and their size is never urgent.
COPIES_EVERY = 600.0
RUNS_BACK = timedelta(days=7)
RUNS_AGAIN = timedelta(days=1)  # a run is named after its start and written at its end
MOST_RUNS = 400
MOST_RUN_BYTES = 64 << 20

T = TypeVar("T")
Limit = Callable[[str], float]  # how far each table may be behind its source


@dataclass
class StoredValues(Generic[T]):
    """The objects below one prefix, each read again only when it has changed."""

    prefix: str
    read: Callable[[str, bytes | None], T | None]  # by the object's name, without the extension
    known: dict[str, tuple[object, T | None]] = field(default_factory=dict)

    def look(self, store: Store, pool: ThreadPoolExecutor) -> None:
        """Reads what has changed; all or nothing."""
        listed = {
            o.path: (o.etag, o.bytes, o.modified) for o in store.list(self.prefix) if o.path.endswith(".json")
        }
        self._take(
            store, pool, [p for p, sign in listed.items() if self.known.get(p, (None,))[0] != sign], listed
        )

    def _take(
        self, store: Store, pool: ThreadPoolExecutor, stale: Sequence[str], listed: Mapping[str, object]
    ) -> None:
        fresh = dict(zip(stale, pool.map(partial(self._value, store), stale), strict=True))
        self.known = {
            path: (sign, fresh[path] if path in fresh else self.known[path][1])
            for path, sign in listed.items()
        }

    def _value(self, store: Store, path: str) -> T | None:
        data = store.get(path)
        try:
            return self.read(self._name(path), data)
        except (ValueError, OverflowError):  # numbers that none has
            return None

    def _name(self, path: str) -> str:
        return unquote(path.removeprefix(self.prefix).removesuffix(".json"))

    def items(self) -> dict[str, T | None]:
        """The values by their objects' names; None: damaged."""
        return {self._name(path): value for path, (_, value) in self.known.items()}

    def values(self) -> list[T]:
        """The values that could be read, by path."""
        return [value for _, (_, value) in sorted(self.known.items()) if value is not None]


@dataclass
class StoredRuns(StoredValues[RunOutcome]):
    """The newest runs' reports, which never change once they are there."""

    def look_back(self, store: Store, pool: ThreadPoolExecutor, now: datetime) -> None:
        """Reads those that are new."""
        back = RUNS_AGAIN if self.known else RUNS_BACK
        new: list[str] = []
        size = 0
        for one in reversed(list(store.list(RUNS, start_after=f"{RUNS}{compact(now - back)}"))):
            size += one.bytes
            if one.path not in self.known and len(new) < MOST_RUNS and size <= MOST_RUN_BYTES:
                new.append(one.path)
        newest = sorted({*self.known, *new})[-MOST_RUNS:]
        self._take(store, pool, [path for path in new if path in newest], dict.fromkeys(newest))


class StoreFacts:
    """The facts of one store, kept from look to look, without secrets. May be used from several threads."""

    def __init__(self, store: Store, limit: Limit = lambda table: DEFAULT_LIMIT, scrub: Scrub = str) -> None:
        self.store = store
        self.limit = limit
        self._lock = threading.RLock()
        self._marks = StoredValues(WATERMARKS, self._published)
        self._interrupted: dict[str, tuple[LeaseNote, Mark | None]] = {}  # of dead runs
        self._scrub = scrub
        self._statuses = StoredValues(TABLES, self._status)
        self._checked = StoredValues(CHECKED, lambda name, data: parse(CheckedTables, data))
        self._leases = StoredValues(LEASES, lambda name, data: parse(LeaseNote, data, name))
        self._live = StoredValues(LIVE, lambda name, data: parse(Live, data, name))
        self._current = [
            one.look for one in (self._marks, self._statuses, self._checked, self._leases, self._live)
        ]
        self._recoveries = StoredValues(RECORDS, lambda name, data: parse(Recovery, data))
        self._runs = StoredRuns(RUNS, lambda name, data: parse_run(data, scrub))
        self._months: dict[str, StoredValues[Month]] = {}
        self._copies: tuple[float, int] | None = None

    def _published(self, name: str, data: bytes | None) -> Mark | None:
        found = glance(data, name) if "." in name else None  # the older tool's names have no dot
        return mark_of(found.checkpoint, found.saved, self._scrub) if found else None

    def _status(self, name: str, data: bytes | None) -> TableStatus | None:
        found = parse(TableStatus, data, name)
        return found.masked(self._scrub) if found else None

    def _dead_leases(self) -> dict[str, LeaseNote]:
        notes = self._leases.items().items()
        return {name: note for name, note in notes if note and not note.released and not lives(note)}

    def _after_death(self, name: str, lease: LeaseNote, published: Mark | None) -> Mark | None:
        """The watermark with what a dead run has committed since it was published, which is read once."""
        known, mark = self._interrupted.get(name, (None, published))
        if known != lease:
            log = Log(self.store, name, repairs=False, aloud=False)
            try:
                state = log.read()
                copy = log.seen[0] if log.seen else None
                mark = mark_of(observe(state, None, copy), copy.saved if copy else {}, self._scrub)
            except DataError:  # a damaged log is reported by what needs it
                mark = published
            except FloodmarkError:
                return published
            self._interrupted[name] = lease, mark
        return mark

    def _look(self, *looks: Callable[[Store, ThreadPoolExecutor], None]) -> None:
        """All of them side by side; raises a FloodmarkError when the store can't be read."""
        with ThreadPoolExecutor(READERS, thread_name_prefix="look") as pool:
            begun = [pool.submit(look, self.store, pool) for look in looks]
            wait(begun)  # all of them, also when one fails: the next look must not overtake it
        for done in begun:
            done.result()

    def tables(self) -> tuple[TableFacts, ...]:
        """Every table, by name."""
        with self._lock:
            self._look(*self._current)
            return self._known()

    def _known(self) -> tuple[TableFacts, ...]:
        marks, statuses = self._marks.items(), self._statuses.items()
        leases, live = self._leases.items(), self._live.items()
        for checked in self._checked.values():
            statuses = {name: status and checked.on(status) for name, status in statuses.items()}
        found = []
        dead = self._dead_leases()
        # The older tool kept its watermarks in the same place, under names without a dot.
        for name in sorted({*(name for name in (*marks, *dead) if "." in name), *statuses}):
            lease, mark, damaged = leases.get(name), marks.get(name), name in marks and not marks[name]
            if name in dead and not damaged:
                mark = self._after_death(name, dead[name], mark)
            lease = lease if lease is not None and lives(lease) else None
            now = live.get(name) if lease is not None else None
            now = now if now is not None and lease is not None and now.run == lease.run else None
            running = lease is not None
            found.append(TableFacts(name, mark, statuses.get(name), damaged, running, lease, now))
        return tuple(found)

    def history(self, now: datetime) -> tuple[tuple[TableFacts, ...], Past]:
        """Every table, and what happened to them: the runs of the last days, and the days of this month and the last."""
        months = {f"{day:%Y%m}" for day in (now, now.replace(day=1) - timedelta(days=1))}
        with self._lock:
            self._months = {
                name: self._months.get(name)
                or StoredValues(f"{DAYS}{name}/", lambda name, data: parse(Month, data, name))
                for name in sorted(months)
            }
            self._look(
                lambda store, pool: self._runs.look_back(store, pool, now),
                *self._current,
                *(kept.look for kept in self._months.values()),
            )
            tables = self._known()
            return tables, Past(tuple(reversed(self._runs.values())), self._days(tables), tuple(self._dead()))

    def _days(self, tables: Iterable[TableFacts]) -> dict[str, tuple[Day, ...]]:
        days: dict[str, tuple[Day, ...]] = {}
        for month in (month for kept in self._months.values() for month in kept.values()):
            days[month.table_name] = (*days.get(month.table_name, ()), *month.days)
        for table in tables:
            # Today's idle runs are in the status until a run that did something adds them.
            if table.status is not None and table.status.today is not None:
                days[table.table] = merged((*days.get(table.table, ()), table.status.today))
        return days

    def _dead(self) -> Iterable[tuple[str, Killed]]:
        """Runs that were killed, by their leases, and how far they had got."""
        live = self._live.items()
        for name, note in self._dead_leases().items():
            last = live.get(name)
            stage, rows = (last.stage, last.rows) if last and last.run == note.run else (None, 0)
            yield name, Killed(note.run, None, note.expires_at, note.owner.host, stage=stage, rows=rows)

    def look(self) -> AllFacts:
        """Every table, the recoveries on record, and the copies."""
        with self._lock:
            self._look(self._recoveries.look, *self._current)
            recoveries = sorted(self._recoveries.values(), key=lambda one: one.at)
            return AllFacts(self._known(), tuple(recoveries), self._copies_bytes(), self.limit)

    def _copies_bytes(self) -> int:
        now = time.monotonic()
        if self._copies is None or now - self._copies[0] > COPIES_EVERY:
            self._copies = now, sum(o.bytes for o in self.store.list(COPIES))
        return self._copies[1]

    @property
    def published(self) -> frozenset[tuple[str, object]]:
        """What identifies the published watermarks: it changes whenever one of them does."""
        return frozenset((path, sign) for path, (sign, _) in self._marks.known.items())


@dataclass(frozen=True)
class AllFacts:
    """All tables, by name, and what belongs to no table."""

    tables: tuple[TableFacts, ...] = ()
    recoveries: tuple[Recovery, ...] = ()  # of the last 30 days, oldest first
    copies_bytes: int = 0  # of the daily and session copies
    limit: Limit = field(default=lambda table: DEFAULT_LIMIT, compare=False)


@dataclass(frozen=True)
class Past:
    """What happened to the tables."""

    runs: tuple[RunOutcome, ...] = ()  # newest first
    days: dict[str, tuple[Day, ...]] = field(default_factory=dict)
    killed: tuple[tuple[str, Killed], ...] = ()  # runs that nobody has taken over from yet, by table
