"""The plan for one table: what a run will do, and why; its window, and how that is cut into slices.

Pure: nothing here talks to a service; lookups of rows are passed in. Slices of one window can run in parallel because
all share one frozen interval, each has two ends, and the window is closed only once every slice has been committed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from secrets import token_hex
from typing import Literal

from floodmark.log.fold import State
from floodmark.model.changes import FollowedTo
from floodmark.model.commit import LoadAs
from floodmark.model.errors import ConfigError, DataError, TransientError
from floodmark.model.notes import Note
from floodmark.model.origin import UNKNOWN_SOURCE, SourceId
from floodmark.model.position import Position, Value
from floodmark.model.run import Strategy, SyncOptions, implausible
from floodmark.model.table import Table
from floodmark.model.text import counted
from floodmark.model.times import cursor_value, temporal
from floodmark.model.window import Intent, Slice, Window
from floodmark.plan.bound import Settled
from floodmark.plan.followed import FollowStep, said_why
from floodmark.plan.overlap import with_loose
from floodmark.plan.recipe import RecipeChange

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
_WINDOWS = ("window", "snapshot")  # the kinds of a window's slices


@dataclass(frozen=True)
class Deletion:
    """Keys that the source lacks leave the target."""

    rows: int | None = None  # in the target, for the question whether that is plausible; None: it is proven


@dataclass(frozen=True)
class Pass:
    """One stretch of reading: its slices, and how their rows are committed and loaded."""

    kind: Literal["window", "again", "columns"]  # of the claim's window, beside it, or of the claim's reread
    slices: tuple[Slice, ...]
    load_as: LoadAs = "merge"
    commits: Literal["once", "each", "often"] = (
        "once"  # one for all slices, one for each, or every few seconds
    )
    overlap: str | None = None  # fingerprint of the overlap among the slices
    outside: bool = False  # whether the keys of rows outside `where` are read too, and leave the target
    deletion: Deletion | None = None  # of the keys among the slices that the source lacks; None: they stay
    followed_to: FollowedTo | None = None  # where the table stands in the source's log after it

    @property
    def rows(self) -> int:
        return sum(s.rows for s in self.slices)


@dataclass(frozen=True)
class TablePlan:
    """What a run will do with one table."""

    claim: Intent
    passes: tuple[Pass, ...] = ()  # in the order in which they are read
    resumed: bool = False  # the window was left open by an earlier run
    about: tuple[Note, ...] = ()  # what the user should know about the table
    notes: tuple[str, ...] = ()  # what the user should know about this run, in words
    held: tuple[str, ...] = ()  # what holds the bound back
    newer_wait: bool = False  # there are rows beyond the bound
    bound: float | None = None  # by our clock; everything committed before it is read
    waits: bool = False  # the table has no position yet, and its first rows are not settled
    start: str | None = None  # where the table begins, when it has no position yet
    before_start: int | None = None  # rows before the start, which are left out
    source: SourceId = UNKNOWN_SOURCE  # the server and the table that the plan was made for
    recipe: tuple[RecipeChange, ...] = ()  # how the recipe has changed since rows were read
    asks: DataError | None = None  # of a dry run: the question that would stop it
    step: FollowStep | None = None  # for a table that follows the source's log, or did

    def complete_at(self, began: float) -> float | None:
        """Everything committed before this moment is read by this plan, made from `began` on; None if unknown.

        Ids have no clock: if open work holds them back, nobody knows since when.
        """
        if self.bound is None:
            return None if self.held else began
        return min(self.bound, began)

    @property
    def table(self) -> Table:
        assert self.claim.table is not None
        return self.claim.table

    @property
    def window(self) -> Window | None:
        return self.claim.window

    @property
    def strategy(self) -> str:
        return self.claim.strategy or ""

    @property
    def empty(self) -> bool:
        return not self.passes and not self.steps

    @property
    def steps(self) -> bool:
        """Whether keys are to be read, or both sides compared; if there are passes, the next plan does it."""
        return self.step is not None and self.step.do in ("changes", "reconcile")

    @property
    def gives_way(self) -> bool:
        """Whether rows outside the order, or none, replace the target's: the window itself is empty."""
        return self.window is not None and self.window.whole and self.window.by == "snapshot"

    @property
    def slices(self) -> tuple[Slice, ...]:
        """Of the window, those not committed yet."""
        return tuple(s for s in self.pieces if s.kind in _WINDOWS)

    @property
    def pieces(self) -> tuple[Slice, ...]:
        """Everything that is read, a task each."""
        return tuple(s for one in self.passes for s in one.slices)

    @property
    def read_again(self) -> tuple[tuple[str, int], ...]:
        """What is read again, with approximate row counts."""
        columns = [(one.kind, one.rows) for one in self.passes if one.kind == "columns"]
        others = (s for one in self.passes if one.kind != "columns" for s in one.slices)
        return (*columns, *((s.kind, s.rows) for s in others if s.rows and s.kind not in _WINDOWS))

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.passes)


@dataclass(frozen=True)
class Again:
    """The slices to read again, and why."""

    slices: tuple[Slice, ...] = ()
    overlap: str | None = None  # fingerprint of the overlap among them
    notes: tuple[str, ...] = ()


def again(
    table: Table,
    slices: Sequence[Slice],
    overlap: str | None = None,
    load_as: LoadAs = "merge",
    outside: bool = False,
    deletion: Deletion | None = None,
) -> tuple[Pass, ...]:
    """The pass that reads these rows again; none if there are no slices."""
    if table.recipe.where and any(s.kind in ("since", "keys") for s in slices):
        overlap = with_loose("", "")  # what is known to be outside `where` may have been inside just now
    way: LoadAs = "merge" if table.key else load_as
    return (Pass("again", tuple(slices), way, "once", overlap, outside, deletion),) if slices else ()


def passes(
    request: SyncOptions,
    table: Table,
    columns: Sequence[Slice],
    beside: Again,
    window: Sequence[Slice],
    outside: bool,
    whole: bool,
) -> tuple[Pass, ...]:
    """What is read, in order. Rows beside the window come first, unless the window's replace all others.

    If there is no window, they replace all others themselves.
    """
    each: Literal["each", "often"] = "each" if in_order(request, table) else "often"
    first = (Pass("columns", tuple(columns), commits=each, outside=outside),) if columns else ()
    if whole and not window:
        return (*first, Pass("window", beside.slices, "replace", outside=outside))
    way = load_as(table)
    others = again(table, beside.slices, beside.overlap, "replace" if whole else way, outside)
    if whole:
        return (*first, Pass("window", tuple(window), "replace", outside=outside), *others)
    last = (Pass("window", tuple(window), way, each, outside=outside),) if window else ()
    return (*first, *others, *last)


def start_position(table: Table, start: str | None) -> Position | None:
    """Where a table without state begins; None for ids, which have no time to begin at."""
    return (cursor_value(table, start),) if start is not None and temporal(table) else None


def strategy_of(request: SyncOptions, pieces: int) -> Strategy:
    """The strategy actually used, as the watermark names it."""
    if request.strategy != "auto":
        return request.strategy
    if pieces > 1:
        return "intra-table"
    return "inter-table" if request.tables > 1 else "sequential"


def reason(request: SyncOptions, plan: TablePlan) -> str:
    """Why the window is read the way it is, in a few words."""
    window, table = plan.window, plan.table
    if plan.step is not None and (table.follows or plan.step.do != "copy"):
        return said_why(plan.step)
    if plan.gives_way:
        return "there is no row after the start, and the target's rows follow a different recipe"
    if window is None:
        beside = any(one.kind == "again" for one in plan.passes)
        return "there are only rows to read again" if beside else "there are no new rows"
    if window.by == "snapshot" and len(plan.slices) > 1:
        return "several connections read the whole table as of one moment (mode full)"
    if window.by == "snapshot":
        return "one consistent read of the whole table (mode full)"
    if plan.resumed:
        return "a window that was left open is resumed, with the same slices"
    if request.strategy in ("sequential", "inter-table"):
        return f"one slice after another in cursor order (--strategy {request.strategy})"
    if request.most is not None:
        return "--limit takes the first rows in cursor order"
    if window.by == "key":
        if table.source.cursor_index is None:
            return f"no index starts with {table.cursor}, so the window is read along the key"
        return f"the window is at least {KEY_SHARE:.0%} of the table, so it is read along the key"
    if table.order == table.key:
        return "the cursor is the key, so the window is read along it"
    if len(plan.slices) == 1:
        return f"all rows fit into one slice ({request.slice_rows:,})"
    if table.source.cursor_index is None:
        return "the window is read in cursor order, without an index"
    return f"the window is a small part of the table, so it is read along index {table.source.cursor_index}"


def load_as(table: Table) -> LoadAs:
    """How the rows of a window go into the target."""
    return {"upsert": "merge", "append": "insert", "full": "replace"}[table.mode]  # type: ignore[return-value]


def in_order(request: SyncOptions, table: Table) -> bool:
    """Whether slices are committed one after the other: on request, or because rows can't be merged."""
    return request.in_order or (table.mode == "append" and not table.key)


def check_begun(plan: TablePlan) -> None:
    """Raises for a table of which nothing has been read yet, and all of whose rows have to wait now."""
    if plan.waits and plan.empty:
        who = f" for the {'; '.join(plan.held)}" if plan.held else ""
        raise TransientError(
            f"nothing could be copied: all rows wait{who or ' to settle'}",
            hint="sync again once that has ended" if plan.held else "sync again",
        )


def check_snapshot(before: int, rows: int, force: bool) -> None:
    """Keeps a truncated or wrong source from emptying the warehouse."""
    if implausible(before, rows) and not force:
        raise DataError(
            f"the table has {counted(rows, 'row')}, down from {before:,}: the target was not replaced",
            hint="if that is correct, run the sync again with --force",
        )


# ---------------------------------------------------------------- a run's window


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
        )
    return before


def size(total: int, inside: int, everything: int, counted: int | None) -> tuple[int, float]:
    """Roughly how many rows a window has, and its share of the table: by the optimizer's estimates, or counted."""
    rows = total if inside >= HALF * total else inside
    if counted is not None:
        rows = counted  # index dives are off by a factor of two
    return rows, min(1.0, rows / max(inside, everything, 1))


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
