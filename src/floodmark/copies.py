"""The published copies: `watermark backups` shows them, `watermark cleanup` and every day's first sync remove old ones.

The primary copy and each table's newest daily copy always stay: removing copies never costs a recovery.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote

from floodmark.config import Config
from floodmark.errors import FloodmarkError
from floodmark.state import Copy, Log, copies, stamp
from floodmark.state.recover import RECORDS, recoveries
from floodmark.store import Object, Store
from floodmark.watermarks import full_name, must_exist

log = logging.getLogger("floodmark")

# When copies were last cleaned by a sync: one line, the day.
CLEANED = "watermark/backups/cleaned.txt"
# Records of recoveries and of runs are small, and recoveries' rate is only seen over a while.
RECORD_DAYS = 30
# What `sync --json` printed, one document of each run that did something.
RUNS = "runs/"
# Lists of files that a load into Redshift writes, and removes when it is done.
MANIFESTS = "manifests/"


def watermark_backups(config: Config, name: str) -> dict[str, Any]:
    """Where a table's copies are, which are valid, their size, and the latest recoveries; mends nothing."""
    store = Store(config.store)
    name = full_name(config, store, name)
    found = {
        "primary": [copies.primary(store, name)],
        "daily": list(copies.stored(store, name, "daily", copies.daily_paths(store, name))),
        "sessions": list(copies.stored(store, name, "session", copies.session_paths(store, name))),
    }
    history = Log(store, name, mend=False)
    if not any(c.data for each in found.values() for c in each) and not history.numbers():
        must_exist(config, name)
    places: dict[str, dict[str, Any]] = {}
    for place, each in found.items():
        listed = [_shown(store, history, copy) for copy in each]
        # By what they show, not by name: two runs may begin in the same second.
        newest = max((c["commit"] for c in listed if c["status"] == "valid"), default=None)
        places[place] = {
            "status": listed[0]["status"] if listed else "missing",
            "bytes": sum(c["bytes"] for c in listed),
            "commit": newest,
        }
        if place != "primary":
            valid = sum(1 for c in listed if c["status"] == "valid")
            places[place] |= {"count": len(listed), "valid": valid}
        places[place]["copies"] = listed
    return {"table_name": name, "backup_locations": places, "recoveries": recoveries(store, name)}


def judged(history: Log, stored: copies.Stored) -> str:
    """`valid`, `missing`, or what is wrong with a copy: its own content, or that the log does not know it."""
    if isinstance(stored.found, str):
        return stored.found
    state = stored.found.checkpoint.state
    return "valid" if history.confirms(state) else f"the log does not have its commit {state.n}"


def _shown(store: Store, history: Log, stored: copies.Stored) -> dict[str, Any]:
    why = judged(history, stored)
    copy = stored.found if isinstance(stored.found, Copy) else None
    shown = {
        "uri": store.uri(stored.path),
        "status": why if why in ("valid", "missing") else "damaged",
        "bytes": stored.bytes,
        "commit": copy.checkpoint.state.n if copy else None,
        "saved_at": copy.saved.get("saved_at") if copy else None,
    }
    return shown if why in ("valid", "missing") else {**shown, "detail": why}


@dataclass(frozen=True)
class Keep:
    """How long the copies of a table are kept."""

    least: timedelta  # of all tables
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
    """What may go."""

    daily: tuple[Object, ...] = ()
    sessions: tuple[Object, ...] = ()
    records: tuple[Object, ...] = ()

    @property
    def all(self) -> tuple[Object, ...]:
        return (*self.daily, *self.sessions, *self.records)

    @property
    def bytes(self) -> int:
        return sum(o.bytes for o in self.all)


def watermark_cleanup(
    config: Config, days: int = 7, dry_run: bool = False, confirm: Callable[[Old], None] = lambda old: None
) -> dict[str, Any]:
    """Removes the copies that are older than so many days; `confirm` may object by raising."""
    store = Store(config.store)
    old = choose(store, Keep.all(days), datetime.now(UTC))
    if not dry_run:
        confirm(old)
        _delete(store, old.all)
    return {
        "cleaned_daily_backups": len(old.daily),
        "cleaned_session_backups": len(old.sessions),
        "cleaned_recoveries": len(old.records),
        "bytes": old.bytes,
        "dry_run": dry_run,
    }


def choose(store: Store, keep: Keep, now: datetime) -> Old:
    """The copies that are older than their table's are kept."""
    today = now.strftime("%Y%m%d")
    daily: dict[str, list[tuple[str, Object]]] = {}
    for item in store.list(copies.DAILY):
        if name := re.fullmatch(r"(.+)_(\d{8})\.json", item.path.removeprefix(copies.DAILY)):
            daily.setdefault(unquote(name[1]), []).append((name[2], item))
    old_daily = [
        item
        for table, dated in daily.items()
        for day, item in sorted(dated, key=lambda d: d[0])[:-1]
        if day < min(today, (now - keep.of(table)).strftime("%Y%m%d"))
    ]
    old_records = [
        item
        for item in store.list(RECORDS)
        if item.path.rpartition("/")[2][:8] < (now - timedelta(days=RECORD_DAYS)).strftime("%Y%m%d")
    ]
    return Old(tuple(old_daily), tuple(_old_sessions(store, keep, now)), tuple(old_records))


def _old_sessions(store: Store, keep: Keep, now: datetime) -> Iterator[Object]:
    for run in store.folders(copies.SESSIONS):
        if not re.fullmatch(r"\d{8}_\d{6}_.+", run):
            continue
        if run[:15] >= (now - keep.least).strftime("%Y%m%d_%H%M%S"):
            break
        for item in store.list(f"{copies.SESSIONS}{run}/"):
            table = unquote(item.path.rpartition("/")[2].removesuffix(".json"))
            if run[:15] < (now - keep.of(table)).strftime("%Y%m%d_%H%M%S"):
                yield item


def _old_runs(store: Store, now: datetime) -> Iterator[Object]:
    since = f"{RUNS}{now - timedelta(days=RECORD_DAYS):%Y%m%d}"
    return (item for item in store.list(RUNS) if item.path < since)


def clean_daily(store: Store, keep: Keep, now: datetime | None = None) -> None:
    """What a sync does after its work: once a day, for all tables; what fails is left for tomorrow."""
    now = now or datetime.now(UTC)
    day = stamp(now)[:10].encode()
    try:
        if store.get(CLEANED) == day:
            return
        store.put(CLEANED, day)  # first: of several syncs at once, one is enough
        _delete(store, choose(store, keep, now).all)
        # No COPY takes an hour: what is a day old was left by a load that was killed.
        left = (item for item in store.list(MANIFESTS) if item.modified < now - timedelta(days=1))
        store.delete([item.path for item in (*left, *_old_runs(store, now))])
    except FloodmarkError as error:
        log.info("old copies could not be removed: %s", error.message, extra={"step": "clean"})


def _delete(store: Store, items: Iterable[Object]) -> None:
    if paths := [o.path for o in items]:
        store.delete(paths)
        log.info("removed %d old watermark copies", len(paths), extra={"step": "clean"})
