"""What a sync reads: a window of positions, the slices that tasks read, and what a run claims a table for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pydantic import SerializerFunctionWrapHandler, model_serializer

from floodmark.model.changes import FollowedTo
from floodmark.model.json import Seconds
from floodmark.model.origin import Origin
from floodmark.model.position import Position, Value
from floodmark.model.table import Table
from floodmark.model.zones import Zone

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Window:
    """The frozen interval (low, high] of positions, and the edges that divide it into slices.

    `by` is the order of the edges: the cursor's (positions) or the key's (key values). Slice i runs from
    after edge i-1 up to edge i; the first slice starts and the last one ends with the window. The first copy of a table
    that follows the source's log is a window by key without ends.
    """

    id: str
    low: Position | None
    high: Position | None  # None only for snapshots and first copies by key
    by: Literal["cursor", "key", "snapshot"]
    edges: tuple[Position, ...] = ()
    bound: Seconds | None = None  # the moment (UTC, epoch seconds) before which the source had settled
    rows: int = 0  # an estimate
    # Slices committed under the window's earlier id, before it was divided more finely.
    done: tuple[int, ...] = ()
    ahead: Seconds | None = None  # the source's clock minus ours, in seconds, when the bound was taken
    whole: bool = False  # its rows are committed at once and replace everything in the target
    # Where the table stands once all slices are committed: the source's log before the first row was read.
    followed_to: FollowedTo | None = None

    @property
    def slices(self) -> int:
        return len(self.edges) + 1

    @model_serializer(mode="wrap")
    def _stored(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # `followed_to` came later: a claim from before is written as it was read.
        return {k: v for k, v in plain(self).items() if k != "followed_to" or v is not None}


@dataclass(frozen=True)
class Slice:
    """What one Spark task reads: a range of a window, or rows to reread."""

    kind: Literal["window", "overlap", "loose", "since", "snapshot", "keys"]
    number: int
    by: Literal["cursor", "key", "snapshot"] = "cursor"
    after: Position | None = None  # in the order of `by`, exclusive
    upto: Position | None = None  # in the order of `by`, inclusive
    low: Position | None = None  # the window, as a filter if `by` is the key
    high: Position | None = None
    beyond: Value | None = None  # loose rows: cursor IS NULL, or at or after this value
    zero: bool = False  # loose rows: also those with a cursor of 0000-00-00
    outside: bool = True  # whether the keys of its rows outside `where` are read too, if the plan reads any
    keys: pa.Table | None = None  # the rows with these keys: distinct ones, in the columns of the key
    rows: int = 0  # an estimate


@dataclass(frozen=True)
class Intent:
    """What a run claims a table for: what its claim will say, besides who makes it."""

    purpose: str  # sync, load, deletes, set, reset, restore, clean, repair, retire
    table: Table | None = None  # as it will be read
    window: Window | None = None  # to be opened or resumed
    reread: Window | None = None  # the same for rows reread because of column changes
    strategy: str | None = None
    zone: Zone | None = None  # of the cursors, as they are read now
    origin: Origin | None = None  # the source being read
