"""From a position and the source's answers to a window and its slices. Pure: nothing here asks a service.

Slices of one window are safe side by side because all share one frozen interval, every slice has two ends, and
the window is closed only when every slice has been committed.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from floodmark import clock
from floodmark.errors import DataError
from floodmark.model import LoadAs, Origin, Position, Slice, Strategy, Table, Value, Window, Zone
from floodmark.plausible import implausible
from floodmark.recipe import Change
from floodmark.units import counted
from floodmark.values import MOST_ROWS

# Above this share of the table the clustered key, read in sequence, beats look-ups along the cursor's index.
KEY_SHARE = 0.25
# Ids that are read again where the source can't tell which transactions are open.
ID_OVERLAP = 10_000
OVERLAP_SECONDS = 600.0


@dataclass(frozen=True)
class Request:
    """What the user asks of one run, for one table."""

    strategy: Literal["auto", "sequential", "inter-table", "intra-table"] = "auto"
    limit: int | None = None
    max_chunks: int | None = None
    since: str | None = None
    until: str | None = None
    slice_rows: int = 250_000
    tables: int = 1
    force: bool = False

    @property
    def chunk(self) -> int | None:
        """Rows of one chunk, when the run is bounded in rows."""
        if self.limit is not None:
            return min(self.limit, MOST_ROWS)
        return self.slice_rows if self.max_chunks is not None else None

    @property
    def most(self) -> int | None:
        """Rows that the run may extract at most."""
        return None if self.chunk is None else min(self.chunk * (self.max_chunks or 1), MOST_ROWS)

    @property
    def in_order(self) -> bool:
        return self.strategy in ("sequential", "inter-table")


@dataclass(frozen=True)
class Plan:
    """What a run will do with one table."""

    table: Table
    strategy: Strategy
    window: Window | None = None
    resumed: bool = False
    slices: tuple[Slice, ...] = ()  # of the window, those not committed yet
    again: tuple[Slice, ...] = ()  # rows that are read again, committed before the window's
    overlap: str | None = None  # fingerprint of the overlap among them
    reread: Window | None = None  # of rows that are read again because columns or the recipe changed
    reread_slices: tuple[Slice, ...] = ()  # of it, those not committed yet
    load_as: LoadAs = "merge"
    in_order: bool = True  # one slice after the other, each a commit
    notes: tuple[str, ...] = ()
    held: tuple[str, ...] = ()  # who holds the bound back
    waits: bool = False  # the table has no position yet, and its first rows are not settled
    before_start: int | None = None  # rows that lie before the start and are left out
    start: str | None = None  # where the table begins, when it has no position yet
    zone: Zone | None = None  # of the cursors, as they are read now
    origin: Origin | None = None  # the source that is read, as the claim keeps it
    recipe: tuple[Change, ...] = ()  # what has changed of it since rows were read

    @property
    def empty(self) -> bool:
        return not (self.slices or self.again or self.reread_slices or self.gives_way)

    @property
    def gives_way(self) -> bool:
        """Whether all that the target has gives way to rows without a place in the order, or to none: no other is there."""
        return self.window is not None and self.window.whole and self.window.by == "snapshot"

    @property
    def read_again(self) -> tuple[tuple[str, int], ...]:
        """What is read again, and about how many rows of it."""
        columns = (("columns", sum(s.rows for s in self.reread_slices)),) if self.reread_slices else ()
        return (*columns, *((s.kind, s.rows) for s in self.again))

    @property
    def rows(self) -> int:
        return sum(s.rows for s in (*self.slices, *self.again, *self.reread_slices))


def by_application(table: Table) -> bool:
    """Whether the cursor is a time that applications write, whose clocks differ."""
    if table.cursor is None:
        return False
    return table.unix is not None or (temporal(table) and not table.column(table.cursor).maintained)


def temporal(table: Table) -> bool:
    """Whether the cursor tells the time; ids and versions don't."""
    return table.cursor is not None and table.column(table.cursor).data_type in (
        "date",
        "datetime",
        "timestamp",
    )


def start_position(table: Table, start: str | None) -> Position | None:
    """Where a table without state begins; ids have no time to begin at."""
    return (cursor_value(table, start),) if start is not None and temporal(table) else None


def cursor_value(table: Table, timestamp: str) -> Value:
    """A time that the user wrote, in the cursor's own terms."""
    assert table.cursor is not None
    moment = datetime.fromisoformat(timestamp)
    if table.column(table.cursor).data_type == "date":
        return moment.strftime("%Y-%m-%d").zfill(10)
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f").zfill(26)


def cut_by(request: Request, table: Table, share: float, rows: int) -> Literal["cursor", "key"]:
    """Along which order a window is cut."""
    if not table.key or not table.key_index or table.order == table.key:
        return "cursor"
    if request.in_order or request.most is not None:
        return "cursor"
    if table.cursor_index is None:
        return "key"
    return "key" if share >= KEY_SHARE and rows > request.slice_rows else "cursor"


def slices(window: Window, done: Collection[int] = ()) -> tuple[Slice, ...]:
    """The window's slices that are not committed yet."""
    if window.by == "snapshot":
        return () if done else (Slice("snapshot", 0, "snapshot", rows=window.rows),)
    each = window.rows // window.slices
    found = []
    for i in range(window.slices):
        after = window.edges[i - 1] if i > 0 else None
        upto = window.edges[i] if i < len(window.edges) else None
        if window.by == "cursor":
            after, upto = after or window.low, upto or window.high
        if i not in done:
            found.append(Slice("window", i, window.by, after, upto, window.low, window.high, rows=each))
    return tuple(found)


def scattered(window: Window, done: Collection[int]) -> bool:
    """Whether slices were committed that no position stands for: a new window would read them a second time."""
    return bool(done) and (window.by == "key" or set(done) != set(range(len(done))))


def strategy_of(request: Request, pieces: int) -> Strategy:
    """The strategy really used, as the watermark names it."""
    if request.strategy != "auto":
        return request.strategy
    if pieces > 1:
        return "intra-table"
    return "inter-table" if request.tables > 1 else "sequential"


def reason(request: Request, plan: Plan) -> str:
    """Why the window is read the way it is, in a few words."""
    window, table = plan.window, plan.table
    if plan.gives_way:
        return "no row lies behind the start, and the target's go by another recipe"
    if window is None:
        return "only rows that are read again" if plan.again else "there are no new rows"
    if window.by == "snapshot":
        return "one consistent read of the whole table, because its mode is full"
    if plan.resumed:
        return "a window that was left open goes on as it was cut"
    if request.strategy in ("sequential", "inter-table"):
        return f"one slice after the other in cursor order, because --strategy says {request.strategy}"
    if request.most is not None:
        return "in cursor order, because --limit takes the first rows"
    if window.by == "key":
        if table.cursor_index is None:
            return f"along the key, because no index begins with {table.cursor}"
        return f"along the key, because the window is {KEY_SHARE:.0%} of the table or more"
    if table.order == table.key:
        return "along the key, which is the cursor"
    if len(plan.slices) == 1:
        return f"no more rows than one slice holds ({request.slice_rows:,})"
    if table.cursor_index is None:
        return "in cursor order, without an index to lead the way"
    return f"along the index {table.cursor_index}, because the window is a small part of the table"


def load_as(table: Table) -> LoadAs:
    """How the rows of a window go into the target."""
    return {"upsert": "merge", "append": "insert", "full": "replace"}[table.mode]  # type: ignore[return-value]


def in_order(request: Request, table: Table) -> bool:
    """Whether slices are committed one after the other: asked for, or needed because rows can't be merged."""
    return request.in_order or (table.mode == "append" and not table.key)


def overlap_from(
    table: Table, low: Position | None, floor: Position | None, seconds: float, zone_shift: str | None
) -> Position | None:
    """The position behind which rows are read again up to `low`, or None when nothing is."""
    if low is None or not table.key or not table.cursor:
        return None
    first = low[0]
    if not temporal(table):
        if seconds <= 0 or not isinstance(first, int):
            return None
        return (max(0, first - (clock.count(seconds, table.unix) if table.unix else ID_OVERLAP)),)
    starts = []
    if seconds > 0:
        starts.append(clock.shifted(str(first), -seconds))
    if zone_shift is not None and zone_shift <= str(first):
        starts.append(clock.shifted(zone_shift, -1e-6))
    if not starts:
        return None
    start: Value = min(starts)
    if table.column(table.cursor).data_type == "date":
        start = str(start)[:10]
    if floor is not None and str(floor[0]) > str(start):
        start = floor[0]
    return (start,) if str(start) < str(first) or table.column(table.cursor).data_type == "date" else None


def reaches(value: Value, other: Value) -> bool:
    """Whether a cursor is at another one or behind it; a DATE is at every time of its day."""
    if isinstance(value, int) and isinstance(other, int):
        return value >= other
    return str(value) >= str(other)[: len(str(value))]


def within_reach(table: Table, low: Position, wall: Value | None, seconds: float) -> bool:
    """Whether a row may still be written with a cursor up to `low`, so many seconds after its time, seen from `wall`."""
    if wall is None:
        return False
    if table.unix:
        return reaches(low[0], int(wall) - clock.count(seconds, table.unix))
    return reaches(low[0], clock.shifted(str(wall), -seconds))


def check_snapshot(before: int, rows: int, force: bool) -> None:
    """A truncated or wrong source must not empty the warehouse."""
    if implausible(before, rows) and not force:
        raise DataError(
            f"the table has {counted(rows, 'row')}, where {before:,} were before: not swapped in",
            hint="if that is right, run the sync again with --force",
        )
