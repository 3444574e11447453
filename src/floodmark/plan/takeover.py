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
class OlderState:
    """A watermark of the older tool, as far as it can be used."""

    path: str
    table: str | None  # the name inside
    timestamp: str | None  # as written
    loaded: frozenset[str]  # its files that are in the warehouse, below the prefix
    listed: frozenset[str]  # all files that it names
    files: int | None  # its own count of its files

    @property
    def named(self) -> str | None:
        """The table, by the name inside, or else by a file name that separates the schema."""
        stem = self.path.removeprefix("watermarks/").removesuffix(".json")
        return stem if self.table is None and not stem.startswith("watermark/") else self.table


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


def find(store: Store, name: str) -> tuple[list[OlderState], list[str]]:
    """The table's watermarks in the older layouts, and notes on other tables' found in their place."""
    found, notes = [], []
    for path in paths(name):
        data = store.get(path)
        if data is None:
            continue
        one = _parsed_state(path, data)
        if one is None:
            raise _undecided(name, f"the older tool's watermark {path} can't be read")
        if not one.named:  # `a_b.c` and `a.b_c` share one file name there
            raise _undecided(name, f"the older tool's watermark {path} does not name its table")
        if one.named != name:
            notes.append(f"{path} is the older tool's watermark of {one.named}, not of this table")
            continue
        if one.table is None:
            notes.append(f"{path} does not name its table; its file name says {name}")
        found.append(one)
    return found, notes


def waiting(store: Store, taken: Container[str]) -> list[tuple[str, OlderState]]:
    """Every readable watermark in the older layouts whose table is not yet `taken`, by the name inside."""
    found = [o.path for o in store.list("watermark/tables/") if "." not in o.path.removesuffix(".json")]
    found += [o.path for o in store.list("watermarks/")]
    read = zip(found, store.each(store.get, found), strict=True)
    states = filter(None, (_parsed_state(path, data or b"") for path, data in read))
    listed = [(one.named, one) for one in states if one.named and one.named not in taken]
    return sorted(listed, key=lambda one: (one[0], one[1].path))


def timestamp(store: Store, name: str) -> str | None:
    """For display: the time in the older tool's watermark of a table, if readable."""
    try:
        return min((one.timestamp for one in find(store, name)[0] if one.timestamp), default=None)
    except DataError:
        return None


def _parsed_state(path: str, data: bytes) -> OlderState | None:
    """The watermark; None if the object isn't one."""
    try:
        body = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict):
        return None
    inner = {name: part for name, part in body.items() if isinstance(part, dict)}
    name, files = body.get("table_name"), body.get("s3_file_count")
    written = body.get("last_mysql_data_timestamp") or inner.get("mysql_state", {}).get("last_timestamp")

    def listed(*names: str) -> frozenset[str]:
        """Files of its lists, as paths below the prefix."""
        places = (body, inner.get("s3_state", {}))
        cut = (str(f).partition(FILES) for place in places for n in names for f in place.get(n) or ())
        return frozenset(FILES + rest for _, mark, rest in cut if mark)

    return OlderState(
        path,
        name if name is None or isinstance(name, str) else "",
        str(written) if written else None,
        loaded := listed("processed_s3_files", "processed_files"),
        loaded | listed("backup_s3_files", "pending_s3_files"),
        files if isinstance(files, int) else None,
    )


def taken_over(
    session: Session, store: Store, table: Table, state: State, options: TableOptions, start: Start
) -> tuple[State, list[str]]:
    """The state of an untouched table with the position at which it resumes, and notes on what was corrected.

    Without a position if the older tool left nothing usable: then the table starts from the beginning.
    """
    found, notes = find(store, table.name)
    if not found:
        return state, notes
    # Of two, take the one further behind: rows that are read twice are merged.
    chosen = min(found, key=lambda f: digits(f.timestamp))
    if len(found) > 1:
        notes.append(f"the older tool left two watermarks; the earlier one, {chosen.path}, is used")
    if not table.key:
        what = f"the older tool's watermark {chosen.path} can't be taken over: without a key, rows would be duplicated"
        raise _undecided(table.name, what, chosen.timestamp, full=table.mode == "full")
    if not temporal(table):
        how = f"by {table.cursor}" if table.cursor else "by key" if table.follows else "whole"
        notes.append(
            f"the older tool's watermark {chosen.path} holds a time, but the table is read {how}: not used"
        )
        return state, notes
    reading = OlderTimes(session, table, options)
    starts = list(_starts(reading, chosen, start, options.older_start, notes))
    loaded = frozenset().union(*(f.loaded for f in found))
    row = _oldest_unloaded(store, reading, chosen, loaded, notes)
    if row is not None:
        starts.append(row)
    if not starts:
        return state, notes
    begin = min(starts)
    before = just_before(table, begin)
    assert before is not None
    notes.append(
        f"taken over from the older tool's watermark {chosen.path}: continues from {shown(begin)}, inclusive"
    )
    return replace(state, progress=replace(state.progress, position=(before,), started=True)), notes


def _starts(
    reading: OlderTimes, found: OlderState, start: Start, older_start: str | None, notes: list[str]
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
    of, name = f"the older tool's watermark {found.path}", reading.table.name
    moment = parsed(found.timestamp)
    if moment is None:
        raise _undecided(name, f"{of} has the timestamp {found.timestamp!r}, which is not a time")
    value = reading.earliest(moment)
    if value > reading.latest():
        raise _undecided(name, f"{of} is in the future ({found.timestamp})")
    if value != reading.plain(moment):
        notes.append(
            f"its timestamp {found.timestamp} is ambiguous; the earlier meaning is used: {shown(value)}"
        )
    yield value


def _oldest_unloaded(
    store: Store, reading: OlderTimes, found: OlderState, loaded: frozenset[str], notes: list[str]
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
    with ThreadPoolExecutor(READERS, thread_name_prefix="older") as pool:
        read = list(pool.map(lambda path: oldest(store, path, table), waiting))
    notes += [
        f"{p} holds no rows of this table: not used"
        for p, row in zip(waiting, read, strict=True)
        if row is None
    ]
    rows = [reading.earliest(row) for row in read if row is not None]
    if not rows:
        return None
    notes.append(
        f"{len(waiting):,} of its {len(there):,} files had not been loaded; their oldest row is from "
        f"{shown(min(rows))}, so the source is read again from there"
    )
    return min(rows)


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


def _undecided(name: str, what: str, timestamp: str | None = None, full: bool = False) -> DataError:
    """The error for a watermark that exists but can't be used: the user chooses between two commands."""
    moment = parsed(timestamp) if timestamp else None
    at = f'"{moment.replace(tzinfo=None).isoformat(sep=" ")}"' if moment else "TS"
    force = "" if timestamp is None else " --force"
    also = " (with mode: append and a cursor)" if full else ""
    return DataError(
        what,
        hint=f"choose: floodmark watermark set -t {name} --timestamp {at}{force}{also} continues after that time; "
        f"floodmark watermark reset -t {name}{force} starts over",
        table=name,
    )


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


def oldest(store: Store, path: str, table: Table) -> datetime | None:
    """The smallest value of the cursor in a file, with its zone if the file has one; None if it has no rows of the table."""
    assert table.cursor is not None
    with scratched("floodmark-older-") as folder:
        local = store.local(path)
        if local is None:
            local = folder / "file.parquet"
            store.download(path, local)
        try:
            return _oldest(local, table.cursor, table.key)
        except (pa.ArrowException, OSError, OverflowError) as error:
            why = f"it can't be read ({' '.join(str(error).split())[:100]})"
        except ValueError as error:
            why = str(error)
    raise _undecided(table.name, f"the older tool's file {path} had not been loaded, and {why}")


def _oldest(path: Path, cursor: str, key: Sequence[str]) -> datetime | None:
    with pq.ParquetFile(path) as file:
        names = {name.lower(): name for name in file.schema_arrow.names}
        if any(k.lower() not in names for k in key):
            return None  # a file of another table whose name looks the same
        if cursor.lower() not in names:
            raise ValueError(f"it has no column {cursor}")
        least: Any = None
        for batch in file.iter_batches(columns=[names[cursor.lower()]]):
            found = pc.min(batch.column(0))
            if found.is_valid and (least is None or pc.less(found, least).as_py()):
                least = found
    if least is None:
        return None
    if pa.types.is_timestamp(least.type):
        # From the integer: as_py would need pandas for nanoseconds. Digits below a microsecond are cut off.
        micros = least.value * 1_000_000 // _PER_SECOND[least.type.unit]
        wall = _EPOCH + timedelta(microseconds=micros)
        return wall.replace(tzinfo=UTC) if least.type.tz else wall
    value = least.as_py()
    moment = (
        parsed(value.isoformat() if isinstance(value, date) else value)
        if isinstance(value, date | str)
        else None
    )
    if moment is None:
        what = repr(value) if isinstance(value, str) else least.type
        raise ValueError(f"its column {cursor} is not a time ({what})")
    return moment
