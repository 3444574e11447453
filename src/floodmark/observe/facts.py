"""What the store knows about every table, for metrics, alerts and dashboards. Read-only; never queries MySQL or the warehouse.

A listing shows what has changed since the last look, and only that is fetched; of each watermark only its numbers are
kept. So a look costs one LIST for each thousand objects and one GET for each that changed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from floodmark.commit.checks import CHECKS, Check, parse_check
from floodmark.commit.document import Checkpoint, Copy
from floodmark.commit.publish import examine
from floodmark.commit.recovery.recover import RECORDS, Recovery
from floodmark.commit.status import VERIFY, VerifyResult, parse_verify
from floodmark.model.json import load
from floodmark.model.times import TEMPORAL, parse_moment, parse_time
from floodmark.services.store.store import Object, Store

READERS = 16
WATERMARKS = "watermark/tables/"
COPIES = "watermark/backups/"
# How often the copies are counted: there may be many, and their size is never urgent.
COPIES_EVERY = 600.0
_UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}


@dataclass(frozen=True)
class Mark:
    """The numbers of one published watermark."""

    table: str
    rows_extracted: int = 0  # since the last reset of the extraction, rows read again included
    bytes_written: int = 0
    rows_loaded: int = 0  # since the last reset of the load
    pending_files: int = 0
    pending_rows: int = 0
    position_at: float | None = None  # the cursor's own time, as seconds since 1970
    failures: tuple[str, ...] = ()  # stages
    retired: bool = False


@dataclass(frozen=True)
class TableFacts:
    """All that the store knows about one table; None: it does not know, or what it has is damaged."""

    table: str
    mark: Mark | None = None
    check: Check | None = None
    verify: VerifyResult | None = None

    @property
    def retired(self) -> bool:
        return self.mark is not None and self.mark.retired


@dataclass(frozen=True)
class Facts:
    """All tables, by name, and what belongs to no table."""

    tables: tuple[TableFacts, ...] = ()
    recoveries: Mapping[str, int] = field(default_factory=dict)  # by source, of the last 30 days
    recovery_seconds: float | None = None  # of the latest
    copies_bytes: int = 0


def mark_of(seen: Checkpoint) -> Mark:
    """The numbers of a checkpoint."""
    state, loaded = seen.state, seen.load
    waiting = [d for d in state.live if not loaded.has(d.n)]
    return Mark(
        state.table_name,
        rows_extracted=state.totals.rows,
        bytes_written=state.totals.bytes,
        rows_loaded=loaded.rows,
        pending_files=max(state.live_files - loaded.live_files, sum(d.files for d in waiting)),
        pending_rows=sum(d.rows for d in waiting),
        position_at=_position_at(seen),
        failures=tuple(f.stage for f in seen.failures),
        retired=state.retired,
    )


def _position_at(seen: Checkpoint) -> float | None:
    """The cursor's time as a moment; None if it is not a time, or its zone is unknown."""
    state = seen.state
    table = state.table
    if not state.position or table is None or table.cursor is None:
        return None
    value = state.position[0]
    if table.recipe.unix is not None:
        return value / _UNITS[table.recipe.unix] if isinstance(value, int) else None
    kinds = [c.data_type for c in table.columns if c.name == table.cursor]
    if not kinds or kinds[0] not in TEMPORAL or not isinstance(value, str):
        return None
    offset = 0 if kinds[0] == "timestamp" else state.progress.zone.offset if state.progress.zone else None
    wall = moment(value)
    return None if wall is None or offset is None else wall - offset


def moment(text: str | None) -> float | None:
    """Seconds since 1970 of a time in a status object; None if it is not one."""
    try:
        return None if text is None else parse_moment(text).timestamp()
    except (ValueError, OverflowError):
        return None


class StoreFacts:
    """The facts of one store, kept from look to look. May be used from several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._known: dict[
            str, tuple[tuple[object, ...], Any]
        ] = {}  # by path: what the listing said, and the value
        self._copies: tuple[float, int] | None = None

    def look(self) -> Facts:
        """What the store knows now; raises a FloodmarkError when it can't be read."""
        with self._lock:
            marks = {m.table: m for m in self._read(WATERMARKS, _mark).values()}
            checks = {
                c.table_name: c for c in self._read(CHECKS, lambda path, data: parse_check(data)).values()
            }
            verified = {
                v.table_name: v for v in self._read(VERIFY, lambda path, data: parse_verify(data)).values()
            }
            recoveries = sorted(self._read(RECORDS, _recovery).values(), key=lambda r: r.at)
            copies = self._copies_bytes()
        names = sorted({*marks, *checks, *verified})
        tables = tuple(TableFacts(n, marks.get(n), checks.get(n), verified.get(n)) for n in names)
        counts: dict[str, int] = {}
        for one in recoveries:
            source = one.source or "nothing"
            counts[source] = counts.get(source, 0) + 1
        return Facts(tables, counts, recoveries[-1].seconds if recoveries else None, copies)

    def _read(self, prefix: str, parse: Callable[[str, bytes | None], Any]) -> dict[str, Any]:
        """The values of the valid objects below a prefix."""
        listed = {o.path: _sign(o) for o in self._store.list(prefix) if o.path.endswith(".json")}
        for path in [p for p in self._known if p.startswith(prefix) and p not in listed]:
            del self._known[path]
        stale = [p for p, sign in listed.items() if self._known.get(p, (None,))[0] != sign]
        with ThreadPoolExecutor(READERS, thread_name_prefix="facts") as pool:
            for path, data in zip(stale, pool.map(self._store.get, stale), strict=True):
                self._known[path] = (listed[path], parse(path, data))
        return {p: value for p in listed if (value := self._known[p][1]) is not None}

    def _copies_bytes(self) -> int:
        now = time.monotonic()
        if self._copies is None or now - self._copies[0] > COPIES_EVERY:
            self._copies = now, sum(o.bytes for o in self._store.list(COPIES))
        return self._copies[1]


def _sign(item: Object) -> tuple[object, ...]:
    return item.bytes, item.modified, item.etag


def _mark(path: str, data: bytes | None) -> Mark | None:
    name = unquote(path.rpartition("/")[2].removesuffix(".json"))
    found = examine(data, name) if "." in name else None  # the older tool's names have no dot
    return mark_of(found.checkpoint) if isinstance(found, Copy) else None


def _recovery(path: str, data: bytes | None) -> Recovery | None:
    try:
        found = load(Recovery, data or b"")
        parse_time(found.at)
        return found
    except ValueError:
        return None
