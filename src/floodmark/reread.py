"""Columns that came or changed at the source since rows were read: what those rows have in them now.

Where all of them share one value, the target's column is filled with it, and no row is read. Where they differ, every
row that was read before is read again, once, and merged by key: the window for it is in the claim, as the ordinary one
is, so that a run that dies goes on with it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from secrets import token_hex

from floodmark import plan
from floodmark.config import TableOptions
from floodmark.errors import DataError
from floodmark.lineage import came_back, carried, check_reading, current, told
from floodmark.model import Column, Position, Slice, Table, Window
from floodmark.mysql import edges
from floodmark.mysql.connect import Session
from floodmark.plan import Request
from floodmark.state import State
from floodmark.types import fields

# Above this size a table is rather read again than searched for a row that differs.
SEARCHED_BELOW = 100_000_000


@dataclass(frozen=True)
class Followed:
    """A table whose columns are known to those who read before, and what has to be read again for them."""

    table: Table
    window: Window | None = None  # of the rows that are read again
    slices: tuple[Slice, ...] = ()  # those of it that were not committed yet
    changed: bool = False  # whether the columns are others than before
    notes: tuple[str, ...] = ()


def follow(session: Session, table: Table, state: State, options: TableOptions, request: Request) -> Followed:
    """The table with what became of its columns; refuses a key or an order that rows were not read with."""
    before, upto = state.table, state.read_upto
    if before is None:
        return Followed(carried(None, table))
    if upto is not None or (state.window is not None and state.window.by != "snapshot"):
        check_reading(before, table, configured=options.mode == "full")
    now = carried(before, table, anew=upto is None)
    notes = list(told(before, now))
    changed = bool(notes) or bool(now.owed)
    if now.owed:
        low = _low(now, state, options)
        now = _settled(session, now, before, low, upto, notes)
    if request.since is not None or now.mode == "full":
        return Followed(now, notes=tuple(notes))
    if request.most is not None and (now.owed or state.reread):
        notes.append("Rows are read again for them by the next sync without --limit.")
        return Followed(now, changed=changed, notes=tuple(notes))
    if not now.owed:
        left = state.reread
        pieces = _pieces(left) if left else ()
        return Followed(now, left, pieces, changed, tuple(notes))
    window = _window(session, now, _low(now, state, options), upto, request)
    return Followed(replace(now, owed=()), window, _pieces(window), changed, tuple(notes))


def carrier(session: Session, table: Table, position: Position | None) -> tuple[Slice, ...]:
    """The last rows before the watermark, read again so that a change of columns reaches the target by itself."""
    if not table.key or position is None:
        return ()
    after = edges.last(session, table, position[0])
    return (Slice("since", 0, "cursor", after, position, rows=1),)


def _low(table: Table, state: State, options: TableOptions) -> Position | None:
    """Where reading began: what lies before was never promised."""
    return state.began if state.began is not None else plan.start_position(table, options.start)


def _settled(
    session: Session,
    table: Table,
    before: Table,
    low: Position | None,
    upto: Position | None,
    notes: list[str],
) -> Table:
    """The table without those columns in which all rows that were read have one value."""
    small = edges.table_rows(session, table) < SEARCHED_BELOW
    owed: list[str] = []
    filled: dict[str, Column] = {}
    plain = {f.column for f in fields(table) if f.name == f.column}
    since = table.renamed[len(before.renamed) :]
    old = {current(c.name, since).lower() for c in before.columns}
    for name in table.owed:
        same, value = False, None
        # What the target has in a column that was there before is not known here.
        if small and name in plain and name.lower() not in old and not came_back(before, name):
            same, value = edges.shared_value(session, table, name, low, upto)
        if not same:
            owed.append(name)
            continue
        filled[name] = replace(table.column(name), fill=value)
        what = f"rows that were read before get {value} in it" if value is not None else "NULL so far"
        notes.append(f"{name} is new: {what}.")
    if owed and not table.key:
        raise DataError(
            f"rows that were read before differ in {', '.join(owed)}, and without a key they can't be read again",
            hint=f"exclude it; or empty {table.target} and begin anew: floodmark watermark reset -t {table.name}",
            table=table.name,
        )
    if owed:
        notes.append(
            f"{', '.join(owed)} came or changed without the cursor: all rows that were read before are read again, once."
        )
    columns = tuple(filled.get(c.name, c) for c in table.columns)
    return replace(table, columns=columns, owed=tuple(owed))


def _window(
    session: Session, table: Table, low: Position | None, upto: Position | None, request: Request
) -> Window:
    rows = edges.table_rows(session, table)
    by = plan.cut_by(request, table, 1.0, rows)
    if by == "key":
        found = edges.split_key(session, table, max(1, -(-rows // request.slice_rows)), request.slice_rows)
    else:
        found = edges.walk(session, table, table.order, low, upto, request.slice_rows)
    return Window(token_hex(8), low, upto, by, found, None, rows)


def _pieces(window: Window) -> tuple[Slice, ...]:
    return tuple(replace(piece, kind="since") for piece in plan.slices(window, window.done))
