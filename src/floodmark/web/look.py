"""Looks at the store for the dashboard: lists the small objects, and reads those that have changed since the last look.

A look costs a listing for each kind of object, and a request for each changed one; MySQL and the warehouse are never
queried. A look that fails keeps what was seen before, and says since when.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Generic, TypeVar
from urllib.parse import unquote

from floodmark.commit.lease import LeaseNote, lives
from floodmark.commit.status import Day, merged
from floodmark.config.load import Config
from floodmark.model.errors import FloodmarkError
from floodmark.model.json import load
from floodmark.model.times import compact
from floodmark.services.store.store import Object, Store
from floodmark.web import parse
from floodmark.web.ledger import LedgerSeen, LedgerWatch, moment
from floodmark.web.seen import (
    Document,
    Holder,
    Part,
    Run,
    Snapshot,
    Told,
    Verified,
    killed_runs,
    latest,
    make_row,
    parts_of,
    run_at,
    worst_first,
)

log = logging.getLogger("floodmark")
T = TypeVar("T")

READERS = 32
EVERY = 5.0  # seconds between two looks while someone is watching
WATCHED = 30.0  # how long after a request someone still counts as watching
FRESH = 10.0  # what is older is looked at again before it is shown,
PATIENCE = 0.7  # but no request waits longer than this for it
FIRST = 120.0  # except for the first look
RUNS_BACK = timedelta(days=7)
RUNS_AGAIN = timedelta(days=1)  # a run is named after its start and written at its end
MOST_RUNS = 400
MOST_RUN_BYTES = 64 << 20


@dataclass
class Kept(Generic[T]):
    """The objects below one prefix, each read again only when it has changed."""

    prefix: str
    read: Callable[[bytes | None], T]
    known: dict[str, tuple[object, T]] = field(default_factory=dict)

    def look(self, store: Store, pool: ThreadPoolExecutor) -> None:
        """Reads what has changed; all or nothing."""
        self._take(store, pool, list(store.list(self.prefix)))

    def _take(self, store: Store, pool: ThreadPoolExecutor, listed: list[Object]) -> None:
        found = {one.path: (one.etag, one.bytes, one.modified) for one in listed}
        old = self.known
        changed = [path for path, mark in found.items() if path not in old or old[path][0] != mark]
        fresh = dict(zip(changed, pool.map(lambda path: self.read(store.get(path)), changed), strict=True))
        self.known = {
            path: (mark, fresh[path] if path in fresh else old[path][1]) for path, mark in found.items()
        }

    def items(self) -> dict[str, T]:
        """The values by their objects' names, without the extension."""
        return {
            unquote(path.removeprefix(self.prefix).removesuffix(".json")): value
            for path, (_, value) in self.known.items()
        }


@dataclass
class KeptRuns:
    """The newest runs' reports, which never change once they are there."""

    read: Callable[[bytes | None], Run | None]
    known: dict[str, Run | None] = field(default_factory=dict)

    def look(self, store: Store, pool: ThreadPoolExecutor, now: datetime) -> None:
        back = RUNS_AGAIN if self.known else RUNS_BACK
        listed = list(store.list("runs/", start_after=f"runs/{compact(now - back)}"))
        new: list[str] = []
        size = 0
        for one in reversed(listed):
            size += one.bytes
            if one.path in self.known or len(new) >= MOST_RUNS or size > MOST_RUN_BYTES:
                continue
            new.append(one.path)
        for path, run in zip(new, pool.map(lambda path: self.read(store.get(path)), new), strict=True):
            self.known[path] = run
        for path in sorted(self.known)[:-MOST_RUNS]:
            del self.known[path]

    def newest_first(self) -> tuple[Run, ...]:
        return tuple(run for path in sorted(self.known, reverse=True) if (run := self.known[path]))


class Looks:
    """Everything seen so far. One thread looks; any number of threads may take the snapshot."""

    def __init__(self, config: Config, scrub: parse.Scrub, ask_ledger: bool = False) -> None:
        self.config = config
        self.scrub = scrub
        self.store = Store(config.store)
        self.ledger = LedgerWatch(self.store, config.warehouse, scrub, ask_ledger)
        self._watermarks: Kept[Document | None] = Kept(
            "watermark/tables/", lambda data: parse.watermark(data, scrub)
        )
        self._checks: Kept[parse.Checked | None] = Kept(
            "status/checks/", lambda data: parse.check(data, scrub)
        )
        self._live: Kept[Holder | None] = Kept("status/live/", parse.live)
        self._months: dict[str, Kept[tuple[Day, ...]]] = {}
        self._leases: Kept[LeaseNote | None] = Kept("leases/", lambda data: _loaded(LeaseNote, data))
        self._verified: Kept[Verified | None] = Kept(
            "status/verify/", lambda data: parse.verified(data, scrub)
        )
        self._runs = KeptRuns(lambda data: parse.run(data, scrub))
        self._parts: dict[str, list[Part]] = {}
        self.snapshot = Snapshot(datetime.now(UTC), 0, read=False)
        self.failed: FloodmarkError | None = None  # why the last look failed
        self._pool = ThreadPoolExecutor(READERS, thread_name_prefix="look")
        self._kinds = ThreadPoolExecutor(8, thread_name_prefix="kinds")  # list, and wait for the readers

    def look(self, now: datetime | None = None) -> Snapshot:
        """Looks at the store and makes the next snapshot, with a new version if anything shown has changed."""
        began = now or datetime.now(UTC)
        before = self.snapshot
        try:
            kinds = (self._watermarks, self._checks, self._leases, self._live, self._verified)
            looks: list[Callable[[], None]] = [
                partial(self._runs.look, self.store, self._pool, began),
                *(partial(kept.look, self.store, self._pool) for kept in kinds),
                *(partial(kept.look, self.store, self._pool) for kept in self._last_months(began)),
            ]
            begun = [self._kinds.submit(look) for look in looks]
            wait(begun)  # all of them, also when one fails: the next look must not overtake it
            for done in begun:
                done.result()
        except FloodmarkError as error:
            self.failed = error
            said = self.scrub(error.message)
            if said != before.problem:
                log.warning("the store can't be read: %s", said, extra={"step": "look"})
            self.snapshot = replace(before, problem=said, version=before.version + (said != before.problem))
            return self.snapshot
        self.failed = None
        runs = self._all_runs(began)
        if runs != before.runs or not self._parts:
            self._parts = parts_of(runs)
        told = dict(self._told())
        ledger = self._ask_ledger(told)
        rows = worst_first(
            make_row(name, one, self._parts.get(name, []), began, ledger) for name, one in told.items()
        )
        days = {name: one.days for name, one in told.items() if one.days}
        made = Snapshot(began, before.version, tuple(rows), runs, days, ledger=ledger)
        same = before.read and before.problem is None and made.shows(before)
        self.snapshot = replace(made, version=before.version + (not same))
        return self.snapshot

    def close(self) -> None:
        for pool in (self._kinds, self._pool):
            pool.shutdown(wait=False, cancel_futures=True)

    def _all_runs(self, now: datetime) -> tuple[Run, ...]:
        """The runs by their reports, and those that were killed, newest first."""
        reported = self._runs.newest_first()
        since = compact(now - RUNS_BACK)
        parts = [part for check in self._checks.items().values() if check for part in check.killed]
        live = self._live.items()
        for name, note in self._leases.items().items():
            if note is not None and not note.released and not lives(note):
                last = live.get(name)
                told = last if last is not None and last.run == note.run else None
                rows, stage = (told.rows or 0, told.stage) if told else (0, None)
                parts.append(parse.killed_part(name, note.run, note.expires_at, rows, stage, note.owner.host))
        killed = killed_runs((p for p in parts if p.run >= since), {run.id for run in reported})
        return tuple(sorted((*reported, *killed), key=lambda run: run.id, reverse=True))

    def _ask_ledger(self, told: Mapping[str, Told]) -> LedgerSeen:
        """What the ledger last said; it is queried again when that is due."""
        published = frozenset((path, mark) for path, (mark, _) in self._watermarks.known.items())
        saved = latest(*((one.document or {}).get("updated_at") for one in told.values()))
        return self.ledger.now(published, moment(saved), any(one.holder for one in told.values()))

    def _told(self) -> Iterator[tuple[str, Told]]:
        """What the store says about each table."""
        watermarks, checks = self._watermarks.items(), self._checks.items()
        leases, live, verified = self._leases.items(), self._live.items(), self._verified.items()
        months = [month.items() for month in self._months.values()]
        targets = targets_of(self.config)
        configured = {name for name in self.config.tables if not set(name) & set("*?[")}
        # The older tool kept its watermarks in the same place, under names without a dot.
        for name in {*(name for name in watermarks if "." in name), *checks, *configured}:
            found = watermarks.get(name)
            document = found if found is not None and found["table_name"] == name else None
            check = checks.get(name)
            days = tuple(day for month in months for day in month.get(name, ()))
            told = Told(
                document=document,
                damaged=name in watermarks and document is None,
                holder=_holder(name, leases.get(name), live.get(name)),
                verified=verified.get(name),
                target=targets(name),
                days=days,
            )
            if check is not None and check.table == name:
                told = replace(
                    told,
                    looked=check.looked,
                    caught_up=check.caught_up,
                    failure=check.failure,
                    failed_at=check.failed_at,
                    success=check.success,
                    lag=check.lag,
                    lag_ids=check.lag_ids,
                    last=check.last,
                    # Today's idle runs are in the check object until a run that did something adds them.
                    days=merged((*days, check.today)) if check.today else days,
                )
            yield name, told

    def _last_months(self, now: datetime) -> list[Kept[tuple[Day, ...]]]:
        """This month's days and the last one's."""
        first = now.replace(day=1)
        names = [f"{first - timedelta(days=1):%Y%m}", f"{now:%Y%m}"]
        self._months = {
            name: self._months.get(name) or Kept(f"status/days/{name}/", parse.days) for name in names
        }
        return list(self._months.values())


def _loaded(kind: type[T], data: bytes | None) -> T | None:
    try:
        return load(kind, data or b"")
    except ValueError:
        return None


def _holder(name: str, note: LeaseNote | None, live: Holder | None) -> Holder | None:
    """Who holds the table, while the lease is alive, and how far it has got, if it says so."""
    if note is None or note.table_name != name or not lives(note):
        return None
    if live is not None and (live.table, live.run) == (name, note.run):
        return replace(live, purpose=note.purpose)
    return Holder(name, note.run, note.owner.host, note.owner.pid, note.purpose, run_at(note.run) or None)


def targets_of(config: Config) -> Callable[[str], float | None]:
    """How far each table may be behind, if the configuration says so."""
    usual = config.alerts.behind if config.alerts else None

    def target(name: str) -> float | None:
        own = config.options(name).behind
        return usual if own is None else own

    return target


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
        self._looks.close()

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
                log.exception("the dashboard could not look at the store", extra={"step": "look"})
            with self._seen:
                self._looked = time.monotonic()
                self._seen.notify_all()
            if time.monotonic() - self._wanted > WATCHED:
                self._asked.clear()
            self._ended.wait(self._every)
