"""The older tool's watermarks: found by the table name inside, taken over once, while a table has no state.

Such a watermark holds a time but no id, and its list of files may be incomplete. So reading resumes at that
time, inclusive, or before the oldest row of any file that was not loaded, and rows that are read twice are
merged by key. If a value is ambiguous, the earlier meaning is used, and a note says so.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Container, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from floodmark.config.load import TableOptions
from floodmark.host.temp import scratched
from floodmark.log.fold import State
from floodmark.log.pipeline import Start
from floodmark.model.errors import DataError
from floodmark.model.position import Position
from floodmark.model.table import Table
from floodmark.model.times import cursor_value, just_before, parse_time, shifted, temporal
from floodmark.source.session import Session
from floodmark.source.time_zones import ZoneClock
from floodmark.store.store import Store

# Where the older tool kept the staged files.
FILES = "incremental/"
READERS = 4
_HOUR = 3600
# MySQL servers know no time zones beyond this moment.
_LAST = 2**31 - 1
_EPOCH = datetime(1970, 1, 1)
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


@dataclass(frozen=True)
class OlderWatermark:
    """A watermark of the older tool, as far as it is usable."""

    path: str
    timestamp: str | None  # as written
    loaded: frozenset[str]  # its files that are in the warehouse, below the prefix
    listed: frozenset[str]  # all files that it names
    files: int | None  # its own count of its files


@dataclass(frozen=True)
class Takeover:
    """Where a table resumes, and what was corrected to find out."""

    position: Position | None = None  # None: nothing usable was left, and the table starts from the beginning
    notes: tuple[str, ...] = ()

    def applied(self, state: State) -> State:
        """The state once the position is taken over."""
        if self.position is None:
            return state
        return replace(state, progress=replace(state.progress, position=self.position, started=True))


def untouched(state: State) -> bool:
    """Whether the table has no state of ours: it was never read, set or reset."""
    return (
        state.position is None
        and state.window is None
        and not state.progress.started
        and not state.extraction.epoch
        and not state.totals.batches
    )


def paths(name: str) -> tuple[str, ...]:
    """Where the older tool may have kept the table's watermark."""
    if "/" in name:
        return ()
    flat = name.replace(".", "_")
    folded = (flat, flat.lower(), flat.replace("-", "_"))
    return tuple(dict.fromkeys([*(f"watermark/tables/{f}.json" for f in folded), f"watermarks/{name}.json"]))


def find(store: Store, name: str) -> tuple[list[OlderWatermark], list[str]]:
    """The table's watermarks in the older layouts, and notes on other tables' found in their place."""
    found, notes = [], []
    for path in paths(name):
        data = store.get(path)
        if data is None:
            continue
        try:
            body = json.loads(data)
            if not isinstance(body, dict):
                raise ValueError
        except (ValueError, RecursionError):
            raise _undecided(name, f"the older tool's watermark {path} can't be read", None) from None
        inside = body.get("table_name")
        if inside is None and path.startswith("watermarks/"):
            notes.append(f"{path} does not name its table; its file name says {name}")
        elif not isinstance(inside, str) or not inside:
            # `a_b.c` and `a.b_c` share one file name there.
            raise _undecided(name, f"the older tool's watermark {path} does not name its table", None)
        elif inside != name:
            notes.append(f"{path} is the older tool's watermark of {inside}, not of this table")
            continue
        found.append(_parse(path, body))
    return found, notes


def waiting(store: Store, taken: Container[str]) -> list[tuple[str, OlderWatermark]]:
    """Every readable watermark in the older layouts whose table is not yet `taken`, by the name inside."""
    found = [o.path for o in store.list("watermark/tables/") if "." not in _stem(o.path)]
    found += [o.path for o in store.list("watermarks/")]
    read = zip(found, store.each(store.get, found), strict=True)
    listed = [(path, _named(path, data)) for path, data in read]
    return sorted(
        ((one[0], _parse(path, one[1])) for path, one in listed if one and one[0] not in taken),
        key=lambda one: (one[0], one[1].path),
    )


def _stem(path: str) -> str:
    return path.rpartition("/")[2].removesuffix(".json")


def _named(path: str, data: bytes | None) -> tuple[str, dict[str, Any]] | None:
    """The table and the body of a watermark; None if the object isn't one."""
    try:
        body = json.loads(data or b"")
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict):
        return None
    name = body.get("table_name") or (_stem(path) if path.startswith("watermarks/") else None)
    return (name, body) if isinstance(name, str) else None


def timestamp(store: Store, name: str) -> str | None:
    """For display: the time in the older tool's watermark of a table, if readable."""
    try:
        return min((f.timestamp for f in find(store, name)[0] if f.timestamp), default=None)
    except DataError:
        return None


def _parse(path: str, body: dict[str, Any]) -> OlderWatermark:
    state = body.get("mysql_state")
    inner = state if isinstance(state, dict) else {}
    written = body.get("last_mysql_data_timestamp") or inner.get("last_timestamp")
    files = body.get("s3_file_count")
    loaded = frozenset(_listed(body, "processed_s3_files", "processed_files"))
    return OlderWatermark(
        path,
        str(written) if written else None,
        loaded,
        loaded | frozenset(_listed(body, "backup_s3_files", "pending_s3_files")),
        files if isinstance(files, int) else None,
    )


def _listed(body: dict[str, Any], *names: str) -> Iterator[str]:
    """Files of a watermark's lists, as paths below the prefix."""
    inner = body.get("s3_state")
    for place in (body, inner if isinstance(inner, dict) else {}):
        for name in names:
            for file in place.get(name) or ():
                _, mark, rest = str(file).partition(FILES)
                if mark:
                    yield FILES + rest


def takeover(session: Session, store: Store, table: Table, options: TableOptions, start: Start) -> Takeover:
    """Where a table without state resumes; no position if the older tool didn't know the table."""
    found, notes = find(store, table.name)
    if not found:
        return Takeover(None, tuple(notes))
    # Of two, take the one further behind: rows that are read twice are merged.
    chosen = min(found, key=lambda f: digits(f.timestamp))
    if len(found) > 1:
        notes.append(f"the older tool left two watermarks; the earlier one, {chosen.path}, is used")
    if not table.key:
        what = f"the older tool's watermark {chosen.path} can't be taken over: without a key, rows would be duplicated"
        raise _undecided(table.name, what, chosen.timestamp, full=table.mode == "full")
    if not temporal(table):
        how = "whole" if table.cursor is None else f"by {table.cursor}"
        notes.append(
            f"the older tool's watermark {chosen.path} holds a time, but the table is read {how}: not used"
        )
        return Takeover(None, tuple(notes))
    reading = OlderTimes(session, table, options)
    starts = list(_starts(reading, chosen, start, options.older_start, notes))
    loaded = frozenset().union(*(f.loaded for f in found))
    row = _oldest_unloaded(store, reading, chosen, loaded, notes)
    if row is not None:
        starts.append(row)
    if not starts:
        return Takeover(None, tuple(notes))
    begin = min(starts)
    before = just_before(table, begin)
    assert before is not None
    notes.append(
        f"taken over from the older tool's watermark {chosen.path}: continues from {shown(begin)}, inclusive"
    )
    return Takeover((before,), tuple(notes))


def _starts(
    reading: OlderTimes, found: OlderWatermark, start: Start, older_start: str | None, notes: list[str]
) -> Iterator[str]:
    """The watermark's time, or the start if it has none."""
    if found.timestamp is None:
        notes.append(f"the older tool's watermark {found.path} has no last_mysql_data_timestamp")
        if start.timestamp is None:
            start = Start(older_start, "the older tool's default")
        if start.timestamp is not None:
            notes.append(f"the table begins at {start.timestamp} ({start.by})")
            yield cursor_value(reading.table, start.timestamp)
        return
    moment = parsed(found.timestamp)
    if moment is None:
        what = f"the older tool's watermark {found.path} has the timestamp {found.timestamp!r}, which is not a time"
        raise _undecided(reading.table.name, what, None)
    value = reading.earliest(moment)
    if value > reading.latest():
        what = f"the older tool's watermark {found.path} is in the future ({found.timestamp})"
        raise _undecided(reading.table.name, what, None)
    if value != reading.plain(moment):
        notes.append(
            f"its timestamp {found.timestamp} is ambiguous; the earlier meaning is used: {shown(value)}"
        )
    yield value


def _oldest_unloaded(
    store: Store, reading: OlderTimes, found: OlderWatermark, loaded: frozenset[str], notes: list[str]
) -> str | None:
    """The oldest row in any of the older tool's files that it had not loaded."""
    table = reading.table
    there = [
        o.path
        for o in store.list(FILES)
        if o.path in found.listed or (o.path.endswith(".parquet") and belongs(o.path, table))
    ]
    if found.files is not None and found.files != len(there):
        notes.append(f"its s3_file_count is {found.files:,}, but there are {len(there):,} files")
    waiting = [path for path in there if path not in loaded]
    if not waiting:
        return None
    assert table.cursor is not None
    rows: list[str] = []
    with ThreadPoolExecutor(min(READERS, len(waiting)), thread_name_prefix="older") as pool:
        read = pool.map(lambda path: _first_row(store, path, table), waiting)
        for path, row in zip(waiting, read, strict=True):
            if row is None:
                notes.append(f"{path} holds no rows of this table: not used")
                continue
            rows.append(reading.earliest(row))
    if not rows:
        return None
    first = min(rows)
    notes.append(
        f"{len(waiting):,} of its {len(there):,} files had not been loaded; their oldest row is from {shown(first)}, "
        "so the source is read again from there"
    )
    return first


def _first_row(store: Store, path: str, table: Table) -> datetime | None:
    assert table.cursor is not None
    try:
        found = oldest(store, path, table.cursor, table.key)
    except Unreadable as error:
        raise _undecided(
            table.name, f"the older tool's file {path} had not been loaded, and {error}", None
        ) from None
    if isinstance(found, str):
        moment = parsed(found)
        if moment is None:
            what = f"the older tool's file {path} has {table.cursor} = {found!r}, which is not a time"
            raise _undecided(table.name, what, None)
        return moment
    return found


def belongs(path: str, table: Table) -> bool:
    """Whether the path is one that the older tool would have given to a file of this table."""
    parts = path.removeprefix(FILES).removesuffix(".parquet").split("/")
    flat = table.name.replace(".", "_")
    names = {n for f in (table.name, flat, flat.replace("-", "_")) for n in (f, f.lower())}
    folders = [p.removeprefix("table=") for p in parts[:-1]]
    named = (table.source.schema, table.source.table)
    if any(f in names for f in folders) or named in itertools.pairwise(folders):
        return True
    return any(
        parts[-1] == name or re.match(rf"{re.escape(name)}[_.-](\d|batch|chunk|part)", parts[-1])
        for name in names
    )


def _undecided(name: str, what: str, timestamp: str | None, full: bool = False) -> DataError:
    """The error for a watermark that exists but can't be used: the user chooses between two commands."""
    moment = parsed(timestamp) if timestamp else None
    at = f'"{moment.replace(tzinfo=None).isoformat(sep=" ")}"' if moment else "TS"
    force = "" if timestamp is None else " --force"
    go_on = f"floodmark watermark set -t {name} --timestamp {at}{force}"
    if full:
        go_on += " (with mode: append and a cursor)"
    hint = (
        f"choose: {go_on} continues after that time; floodmark watermark reset -t {name}{force} starts over"
    )
    return DataError(what, hint=hint, table=name)


# ---------------------------------------------------------------- its times


class OlderTimes:
    """What a time of the older tool, with no zone or the wrong one, can mean in the cursor's own terms.

    Of all possible meanings the earliest counts: reading too much costs time, reading too little loses rows.
    """

    def __init__(self, session: Session, table: Table, options: TableOptions) -> None:
        assert table.cursor is not None
        self.table = table
        self._kind = table.column(table.cursor).data_type
        # TIMESTAMPs are stored in UTC, but the older tool printed them in the server's zone.
        zone = "server" if self._kind == "timestamp" else options.cursor_timezone
        zoned = ZoneClock(session, zone)
        self._now, self._zone = zoned.now(), zoned.offsets

    def plain(self, moment: datetime) -> str:
        """The digits, unconverted."""
        return self._text(moment.replace(tzinfo=None))

    def earliest(self, moment: datetime) -> str:
        """The earliest value of the cursor that the time can mean."""
        digits = moment.replace(tzinfo=None)
        meant = [digits]
        if self._kind == "timestamp":
            meant.append(_shift(digits, -max(self._near(digits))))
            if moment.tzinfo is not None:
                meant.append(moment.astimezone(UTC).replace(tzinfo=None))
        elif moment.tzinfo is not None:
            utc = moment.astimezone(UTC).replace(tzinfo=None)
            meant.append(_shift(utc, min(self._near(utc))))
        return self._text(min(meant))

    def latest(self) -> str:
        """The upper limit of a plausible watermark."""
        now = datetime.fromtimestamp(self._now + _HOUR, UTC).replace(tzinfo=None)
        return self._text(now if self._kind == "timestamp" else _shift(now, max(self._near(now))))

    def _near(self, moment: datetime) -> Sequence[int]:
        """The zone's offsets around a moment, so that both sides of a shift are covered."""
        centre = int(moment.replace(tzinfo=UTC).timestamp())
        return self._zone([min(max(0, centre + days * 86_400), _LAST) for days in (-1, 0, 1)])

    def _text(self, moment: datetime) -> str:
        return cursor_value(self.table, moment.isoformat())


def shown(value: str) -> str:
    """A cursor's value without trailing zeros."""
    return value.removesuffix(".000000")


def digits(text: str | None) -> datetime:
    """The digits of a time as a sort key; anything that isn't a time sorts first."""
    moment = parsed(text) if text else None
    return moment.replace(tzinfo=None) if moment else datetime.min


def _shift(moment: datetime, seconds: int) -> datetime:
    return parse_time(shifted(moment.isoformat(), seconds))


def parsed(text: str) -> datetime | None:
    """The time in a text, with its zone if it has one; None if there is no time in it."""
    try:
        return parse_time(text)
    except ValueError:
        return None


# ---------------------------------------------------------------- its files


class Unreadable(Exception):
    """Why a file's oldest row can't be determined."""


def oldest(store: Store, path: str, cursor: str, key: Sequence[str]) -> datetime | str | None:
    """The smallest value of the cursor in the file; None if the file has no rows of such a table.

    Times keep their zone if the file has one; text is returned unchanged. Raises Unreadable.
    """
    with scratched("floodmark-older-") as folder:
        local = store.local(path)
        if local is None:
            local = folder / "file.parquet"
            store.download(path, local)
        try:
            return _oldest(local, cursor, key)
        except (pa.ArrowException, OSError, OverflowError) as error:
            raise Unreadable(f"it can't be read ({' '.join(str(error).split())[:100]})") from None


def _oldest(path: Path, cursor: str, key: Sequence[str]) -> datetime | str | None:
    with pq.ParquetFile(path) as file:
        names = {name.lower(): name for name in file.schema_arrow.names}
        if any(k.lower() not in names for k in key):
            return None  # a file of another table whose name looks the same
        if cursor.lower() not in names:
            raise Unreadable(f"it has no column {cursor}")
        least: Any = None
        for batch in file.iter_batches(columns=[names[cursor.lower()]]):
            found = pc.min(batch.column(0))
            if found.is_valid and (least is None or pc.less(found, least).as_py()):
                least = found
    return None if least is None else _moment(least, cursor)


def _moment(value: Any, cursor: str) -> datetime | str:
    kind = value.type
    if pa.types.is_timestamp(kind):
        # From the integer: as_py would need pandas for nanoseconds. Digits below a microsecond are cut off.
        wall = _EPOCH + timedelta(microseconds=value.value * 1_000_000 // _PER_SECOND[kind.unit])
        return wall.replace(tzinfo=UTC) if kind.tz else wall
    found = value.as_py()
    if isinstance(found, date):
        return datetime(found.year, found.month, found.day)
    if isinstance(found, str):
        return found
    raise Unreadable(f"its column {cursor} is not a time ({kind})")
