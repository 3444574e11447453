"""The plan for one table: what a run will do, and why. Pure: nothing here talks to a service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from floodmark.model.commit import LoadAs
from floodmark.model.errors import DataError, TransientError
from floodmark.model.notes import Note
from floodmark.model.origin import UNKNOWN_SOURCE, SourceId
from floodmark.model.plausible import implausible
from floodmark.model.position import Position
from floodmark.model.run import Strategy, SyncOptions
from floodmark.model.table import Table
from floodmark.model.text import counted
from floodmark.model.times import cursor_value, temporal
from floodmark.model.window import Intent, Slice, Window
from floodmark.plan.overlap import with_loose
from floodmark.plan.recipe import Change
from floodmark.plan.window import KEY_SHARE

_WINDOWS = ("window", "snapshot")  # the kinds of a window's slices


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

    @property
    def rows(self) -> int:
        return sum(s.rows for s in self.slices)


@dataclass(frozen=True)
class Plan:
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
    recipe: tuple[Change, ...] = ()  # how the recipe has changed since rows were read
    asks: DataError | None = None  # of a dry run: the question that would stop it

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
        return not self.passes

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


def again(
    table: Table,
    slices: Sequence[Slice],
    overlap: str | None = None,
    load_as: LoadAs = "merge",
    outside: bool = False,
) -> tuple[Pass, ...]:
    """The pass that reads these rows again; none if there are no slices."""
    if table.recipe.where and any(s.kind in ("since", "keys") for s in slices):
        overlap = with_loose("", "")  # what is known to be outside `where` may have been inside just now
    way: LoadAs = "merge" if table.key else load_as
    return (Pass("again", tuple(slices), way, "once", overlap, outside),) if slices else ()


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


def reason(request: SyncOptions, plan: Plan) -> str:
    """Why the window is read the way it is, in a few words."""
    window, table = plan.window, plan.table
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


def check_begun(plan: Plan) -> None:
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
