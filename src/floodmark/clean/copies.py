"""Removes old published copies of watermarks: once a day by a sync, or on demand.

The primary copy and each table's newest daily copy always stay, so a recovery never lacks a copy.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from urllib.parse import unquote

from floodmark.config.load import Config
from floodmark.log.copies import introduce
from floodmark.log.document import sessions
from floodmark.log.recovery import RECORDS
from floodmark.model.changes import SOURCE_LOG
from floodmark.model.errors import FloodmarkError
from floodmark.model.times import compact, stamp
from floodmark.store.places import Place
from floodmark.store.store import Object, Store, home

log = logging.getLogger("floodmark")

# The day on which a sync last removed copies.
CLEANED = "watermark/backups/cleaned.txt"
# How long records of recoveries and runs are kept: they are small, and trends need a month.
RECORD_DAYS = 30
# What `sync --json` printed: one document for each run that did something.
RUNS = "runs/"
# A load into Redshift writes its file list here, and removes it afterwards.
MANIFESTS = "manifests/"


@dataclass(frozen=True)
class Keep:
    """How long the copies of a table are kept."""

    least: timedelta  # the shortest of all tables
    of: Callable[[str], timedelta]

    @classmethod
    def all(cls, days: float) -> Keep:
        """The same for every table."""
        return cls(timedelta(days=days), lambda table: timedelta(days=days))

    @classmethod
    def configured(cls, config: Config) -> Keep:
        """As `keep_copies` says."""

        def of(table: str) -> timedelta:
            return timedelta(seconds=config.options(table).keep_copies)

        return cls(min(of(table) for table in ("", *config.tables)), of)


@dataclass(frozen=True)
class Old:
    """What may be removed."""

    daily: tuple[Object, ...] = ()
    sessions: tuple[Object, ...] = ()
    records: tuple[Object, ...] = ()

    @property
    def all(self) -> tuple[Object, ...]:
        return (*self.daily, *self.sessions, *self.records)

    @property
    def bytes(self) -> int:
        return sum(o.bytes for o in self.all)


def choose(store: Store, keep: Keep, now: datetime) -> Old:
    """The copies that have been kept long enough."""
    found = [_chosen(store, name, keep, now) for name in ("", SOURCE_LOG)]
    return Old(*(tuple(chain.from_iterable(each)) for each in zip(*found, strict=True)))


def _chosen(store: Store, of: str, keep: Keep, now: datetime) -> tuple[Iterable[Object], ...]:
    """The daily copies, sessions' copies and records of the tables, or of the source's log of changes."""
    today = compact(now)[:8]
    folder = f"{home(of)}watermark/backups/daily/"
    daily: dict[str, list[tuple[str, Object]]] = {}
    for item in store.list(folder):
        if name := re.fullmatch(r"(.+)_(\d{8})\.json", item.path.removeprefix(folder)):
            daily.setdefault(unquote(name[1]), []).append((name[2], item))
    old_daily = [
        item
        for table, dated in daily.items()
        for day, item in sorted(dated, key=lambda d: d[0])[:-1]
        if day < min(today, compact(now - keep.of(table))[:8])
    ]
    old_records = [
        item
        for item in store.list(home(of) + RECORDS)
        if item.path.rpartition("/")[2][:8] < compact(now - timedelta(days=RECORD_DAYS))[:8]
    ]
    return old_daily, _old_sessions(store, sessions(of), keep, now), old_records


def _old_sessions(store: Store, folder: str, keep: Keep, now: datetime) -> Iterator[Object]:
    for run in store.folders(folder):
        if not re.fullmatch(r"\d{8}_\d{6}_.+", run):
            continue
        if run[:15] >= compact(now - keep.least):
            break
        for item in store.list(f"{folder}{run}/"):
            table = unquote(item.path.rpartition("/")[2].removesuffix(".json"))
            if run[:15] < compact(now - keep.of(table)):
                yield item


def _old_runs(store: Store, now: datetime) -> Iterator[Object]:
    since = f"{RUNS}{compact(now - timedelta(days=RECORD_DAYS))[:8]}"
    return (item for item in store.list(RUNS) if item.path < since)


def clean_daily(store: Store, keep: Keep, now: datetime | None = None) -> None:
    """Removes old copies of all tables, once a day, at the end of a sync; a failure is retried the next day."""
    now = now or datetime.now(UTC)
    day = stamp(now)[:10].encode()
    try:
        if store.get(CLEANED) == day:
            return
        store.put(CLEANED, day)  # first, so that only one of several syncs does it
        delete(store, choose(store, keep, now).all)
        for place in store.places:
            place.later("", partial(_clean_place, store, place, keep, now))
        # No COPY takes a day: these were left by loads that were killed.
        left = (item for item in store.list(MANIFESTS) if item.modified < now - timedelta(days=1))
        store.delete([item.path for item in (*left, *_old_runs(store, now))])
    except FloodmarkError as error:
        log.info("old copies could not be removed: %s", error.message, extra={"step": "clean"})


def _clean_place(store: Store, place: Place, keep: Keep, now: datetime) -> None:
    introduce(store, place)  # nothing is deleted in the place of another pipeline
    delete(place.store, choose(place.store, keep, now).all)


def delete(store: Store, items: Iterable[Object]) -> None:
    if paths := [o.path for o in items]:
        store.delete(paths)
        log.info("removed %d old watermark copies", len(paths), extra={"step": "clean"})
