"""Which window a run reads, and how it is cut into slices. Pure: lookups of rows are passed in.

Slices of one window can run in parallel because all share one frozen interval, each has two ends, and the
window is closed only once every slice has been committed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from secrets import token_hex
from typing import Literal

from floodmark.log.fold import State
from floodmark.model.errors import ConfigError
from floodmark.model.position import Position, Value
from floodmark.model.run import SyncOptions
from floodmark.model.table import Table
from floodmark.model.window import Slice, Window
from floodmark.plan.bound import Settled

# From this share of the table on, a sequential read of the clustered key beats lookups along the cursor's
# index.
KEY_SHARE = 0.25
# Ranges up to this size are counted exactly, because that is quick.
COUNT_EXACTLY_BELOW = 2_000_000
# InnoDB never estimates a range at more than half of the table; from this share on, assume all of it.
HALF = 0.45

# Rows of this many bytes on average are wide; a slice has at most so many bytes of them, unless that makes more
# slices than a claim should list.
WIDE_ROW = 65_536
SLICE_BYTES = 64 << 20
MOST_SLICES = 2000

# The n-th position after the first one and up to the second, if there are that many.
Nth = Callable[[Position | None, Position | None, int], Position | None]


@dataclass(frozen=True)
class Chosen:
    """A run's window, and the slices of it that the run reads."""

    window: Window | None = None  # None: there are no new rows
    slices: tuple[Slice, ...] = ()
    resumed: bool = False  # an earlier run left it open

    def replacing(self, low: Position | None) -> Window:
        """The same window, but replacing all rows of the target, even if there are no new ones."""
        if self.window is None:
            return Window(token_hex(8), low, None, "snapshot", (), None, 0, whole=True)
        return replace(self.window, whole=True)


# ---------------------------------------------------------------- slices


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


def parts(window: Window, edges: Sequence[Position]) -> tuple[Slice, ...]:
    """The slices of a snapshot that several connections read at one moment; together they are the whole key."""
    ends = (None, *edges, None)
    each = window.rows // (len(edges) + 1)
    return tuple(
        Slice("snapshot", i, "key" if edges else "snapshot", low, high, rows=each)
        for i, (low, high) in enumerate(pairwise(ends))
    )


def shared(request: SyncOptions, rows: int) -> bool:
    """Whether several connections should read a snapshot of this many rows.

    A resident sync reads it in one order, so that its fingerprint shows whether a row has changed.
    """
    return rows > request.slice_rows and not request.in_order and not request.repeated


# ---------------------------------------------------------------- a window that was left open


def left_open(state: State, request: SyncOptions) -> Literal["none", "resume", "cut finer"]:
    """What to do with a window that has uncommitted slices.

    A bounded run opens a new window, provided that everything committed from the old one lies before the
    position.
    """
    left = state.window
    if left is None or left.by == "snapshot" or not state.progress.done:
        return "none"  # nothing of it was read: its end may be beyond what the server has that is read now
    if request.most is None:
        return "resume"
    return "cut finer" if state.progress.scattered else "none"


def finer(
    window: Window,
    done: Collection[int],
    request: SyncOptions,
    nth: Nth,
    count: Callable[[Position | None, Position | None], int],
) -> Chosen:
    """The open window cut finer, so that a bounded run reads part of the rest, and nothing twice.

    `nth` and `count` consider only the window's rows, in the order in which it is cut.
    """
    most = request.most or 0
    edges: list[Position] = []
    finished: list[int] = []
    chosen: list[int] = []
    for piece in slices(window):
        if piece.number in done:
            finished.append(len(edges))
        place = piece.after
        while piece.number not in done and most > 0:
            step = min(request.chunk or most, request.slice_rows, most)
            edge = nth(place, piece.upto, step)
            chosen.append(len(edges))
            if edge is None:
                most -= count(place, piece.upto)
                break
            most -= step
            if edge == piece.upto:
                break
            edges.append(edge)
            place = edge
        if piece.number < len(window.edges):
            edges.append(window.edges[piece.number])
    cut = replace(window, id=token_hex(8), edges=tuple(edges), done=tuple(finished))
    return Chosen(cut, tuple(s for s in slices(cut, finished) if s.number in chosen), resumed=True)


# ---------------------------------------------------------------- a new window


def limited(
    table: Table,
    low: Position | None,
    high: Position,
    most: int,
    nth: Nth,
    last: Callable[[Value], Position | None],
) -> Position:
    """The end of the first `most` rows in position order; `last`: the highest position below a cursor."""
    end = nth(low, high, most)
    if end is None:
        return high
    if table.key or nth(low, high, most + 1) != end:
        return end
    # Without a key, rows of one timestamp can't be split: stop before that timestamp.
    before = last(end[0])
    if before is None or nth(low, before, 1) is None:
        raise ConfigError(
            f"--limit {most}: more rows than that share the cursor {end[0]}, and without a key they can't be split",
            hint="use a larger --limit",
            table=table.name,
        )
    return before


@dataclass(frozen=True)
class Size:
    """Roughly how many rows a window has, and its share of the table."""

    rows: int
    share: float = 1.0


def size(total: int, inside: int, everything: int, counted: int | None) -> Size:
    """The size of a window, from the optimizer's estimates or, if counted, the exact number."""
    rows = inside
    if counted is not None:
        rows = counted  # index dives are off by a factor of two
    elif inside >= HALF * total:
        rows = total
    return Size(rows, min(1.0, rows / max(inside, everything, 1)))


def cut_by(request: SyncOptions, table: Table, share: float, rows: int) -> Literal["cursor", "key"]:
    """The order along which a window is cut."""
    if not table.key or not table.source.key_index or table.order == table.key:
        return "cursor"
    if request.in_order or request.most is not None:
        return "cursor"
    if table.source.cursor_index is None:
        return "key"
    return "key" if share >= KEY_SHARE and rows > request.slice_rows else "cursor"


def rows_of_a_slice(request: SyncOptions) -> int:
    """How many rows a slice along the cursor has."""
    return min(request.chunk or request.slice_rows, request.slice_rows)


def by_bytes(request: SyncOptions, width: int, size: int) -> SyncOptions:
    """The request with slices of fewer rows if rows are wide: of so many bytes each, and so many in all.

    A commit has at least one slice, and a load at least one commit. How much a bounded run reads is up to the user.
    """
    if width < WIDE_ROW or request.most is not None:
        return request
    rows = max(SLICE_BYTES, size // MOST_SLICES) // width
    return replace(request, slice_rows=max(1, min(request.slice_rows, rows)))


def parts_of_the_key(request: SyncOptions, rows: int) -> int:
    """How many slices along the key this many rows make."""
    return max(1, -(-rows // request.slice_rows))


def opened(
    request: SyncOptions,
    low: Position | None,
    settled: Settled,
    high: Position,
    by: Literal["cursor", "key"],
    edges: tuple[Position, ...],
    rows: int,
) -> Chosen:
    """A new window that ends at `high`: the last final position, or the end of the limit."""
    if by == "cursor":
        rows = min(rows, (len(edges) + 1) * rows_of_a_slice(request))
    if request.most is not None:
        rows = min(rows, request.most)
    window = Window(token_hex(8), low, high, by, edges, settled.bound, rows, ahead=settled.ahead)
    return Chosen(window, slices(window))
