"""What has changed of the recipe since rows were read, and what those rows have in columns that came or changed.

Where all of them share one value in a new column, the target's is filled with it, and no row is read. Where they differ,
or another part of the recipe asks for it, every row that was read before is read again, once, and merged by key: the
window for it is in the claim, as the ordinary one is, so that a run that dies goes on with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from secrets import token_hex

from floodmark import plan, recipe
from floodmark.config import TableOptions
from floodmark.errors import ConfigError, DataError
from floodmark.lineage import came_back, carried, current, told
from floodmark.model import Column, Position, Slice, Table, Window
from floodmark.mysql import edges
from floodmark.mysql.connect import Session
from floodmark.plan import Request
from floodmark.recipe import Change
from floodmark.state import Log, State
from floodmark.state.stretches import Gap, lowest, stretches
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
    recipe: tuple[Change, ...] = ()  # what has changed of it


def changes(table: Table, state: State, options: TableOptions) -> tuple[Change, ...]:
    """What has changed of the recipe since rows were read; before that nothing can have."""
    if state.table is None:
        return ()
    found = recipe.changes(
        state.table,
        table,
        full_by_choice=options.mode == "full",
        chosen=options.cursor is not None or options.mode is not None,
        loads_anew=state.load_epoch > state.described or not (state.data or state.older.upto),
    )
    reading = state.read_upto is not None or (state.window is not None and state.window.by != "snapshot")
    return (
        found
        if reading
        else tuple(c for c in found if c.part == "target" or (c.part, c.do) == ("mode", "reread"))
    )


def check(table: Table, state: State, options: TableOptions) -> None:
    """Refuses a table that the log's position and the target's rows no longer go with."""
    refused = recipe.refusal(changes(table, state, options), table)
    if refused is not None:
        raise refused
    refused = recipe.unfit(state.table, table) if state.data or state.older.upto else None
    if refused is not None:
        raise refused


def begins_whole(state: State, table: Table, request: Request) -> bool:
    """Whether this sync's rows take the place of what the target has: it was made by a recipe that these don't go with."""
    if state.window is not None and state.window.whole:
        whole = table.mode != "full"
    else:
        loaded = _has_rows(state) and state.read_upto is None and state.window is None
        copied = bool(state.data) and state.data[-1].load_as == "replace" and table.mode != "full"
        unlike = state.table is not None and recipe.begins_whole(state.table, table)
        whole = loaded and (copied or unlike)
    if whole and request.most is not None:
        raise ConfigError(
            "--limit and --max-chunks don't go with a sync whose rows take the place of the whole target",
            hint="sync once without",
            table=table.name,
        )
    return whole


def follows_a_copy(state: State) -> bool:
    """Whether the target holds a whole copy, of rows before the start too: what takes its place has to have them."""
    return bool(state.data) and state.data[-1].load_as == "replace" and not state.data[-1].superseded


def _has_rows(state: State) -> bool:
    """Whether any row was committed, since the last that replaced all; a table without rows has a commit too."""
    replaced = (i for i, d in enumerate(state.data) if d.load_as == "replace" and not d.superseded)
    first = max(replaced, default=None)
    if first is not None:
        return any(d.rows for d in state.data[first:])
    return state.older.upto > 0 or any(d.rows for d in state.data)


def in_place(table: Table, window: Window, notes: list[str]) -> Window:
    """The window, with rows that take the place of all that the target has."""
    notes.append(f"The rows that are read now take the place of all that {table.target} has.")
    return replace(window, whole=True)


def follow(
    session: Session, table: Table, state: State, options: TableOptions, request: Request, log: Log
) -> Followed:
    """The table with what became of its columns; refuses a key or an order that rows were not read with."""
    before, upto = state.table, state.read_upto
    if before is None:
        return Followed(carried(None, table))
    found = changes(table, state, options)
    refused = recipe.refusal(found, table)
    if refused is not None:
        raise refused
    now = carried(before, table, anew=upto is None)
    notes = [*told(before, now), *_said(found, options)]
    changed = bool(notes) or bool(now.owed)
    low, skipped = span(log, now, state, options) if now.owed or now.owed_parts else (None, ())
    if now.owed:
        now = _settled(session, now, before, low, upto, notes)
    followed = Followed(now, changed=changed, notes=tuple(notes), recipe=found)
    if request.since is not None or now.mode == "full":
        return replace(followed, changed=False)
    owed = bool(now.owed or now.owed_parts)
    if request.most is not None and (owed or state.reread):
        notes.append("Rows are read again for that by the next sync without --limit.")
        return replace(followed, notes=tuple(notes))
    if not owed:
        left = state.reread
        return replace(followed, window=left, slices=_pieces(left) if left else ())
    window = _window(session, now, low, upto, request, skipped)
    settled = replace(now, owed=(), owed_parts=())
    return replace(followed, table=settled, window=window, slices=_pieces(window))


def _said(found: tuple[Change, ...], options: TableOptions) -> list[str]:
    """What a sync says of parts of the recipe; of columns, see `_settled`."""
    notes = [
        f"{c.said}: all rows that were read before are read again, once."
        for c in found
        if c.do == "reread" and c.part not in ("columns", "mode")
    ]
    if any(c.part == "where" for c in found):
        gone = "Rows of the target that are no longer in the `where`"
        looked = (
            "are looked for now"
            if options.deletes != "ignore"
            else "stay there, because of `deletes: ignore`"
        )
        notes.append(f"{gone} {looked}.")
    return notes


def carrier(session: Session, table: Table, position: Position | None) -> tuple[Slice, ...]:
    """The last rows before the watermark, read again so that a change of columns reaches the target by itself."""
    if not table.key or position is None:
        return ()
    after = edges.last(session, table, position[0])
    return (Slice("since", 0, "cursor", after, position, rows=1),)


def span(
    log: Log, table: Table, state: State, options: TableOptions
) -> tuple[Position | None, tuple[Gap, ...]]:
    """From where on the target has rows, and the gaps in them: what was never read is not read again."""
    if state.moved_at is None:
        return state.began, ()
    seen = stretches(log, state)
    low = state.began if state.began is not None else seen.began
    if not seen.taken_over and not state.extract_epoch:
        return low, () if seen.ragged else seen.skipped
    # A position that was taken over, or one that was reset: rows from before may be there, too.
    return (low if state.began is not None else lowest(low, plan.start_position(table, options.start))), ()


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
            hint=f"exclude it; or {recipe.go_on(before)}",
            table=table.name,
        )
    if owed:
        notes.append(
            f"{', '.join(owed)} came or changed without the cursor: all rows that were read before are read again, once."
        )
    columns = tuple(filled.get(c.name, c) for c in table.columns)
    return replace(table, columns=columns, owed=tuple(owed))


def _window(
    session: Session,
    table: Table,
    low: Position | None,
    upto: Position | None,
    request: Request,
    skipped: Sequence[Gap],
) -> Window:
    rows = edges.table_rows(session, table)
    by = plan.cut_by(request, table, 1.0, rows)
    if skipped:
        return around(
            lambda a, b: edges.walk(session, table, table.order, a, b, request.slice_rows),
            Window(token_hex(8), low, upto, "cursor", (), None, rows),
            skipped,
        )
    if by == "key":
        found = edges.split_key(session, table, max(1, -(-rows // request.slice_rows)), request.slice_rows)
    else:
        found = edges.walk(session, table, table.order, low, upto, request.slice_rows)
    return Window(token_hex(8), low, upto, by, found, None, rows)


def around(
    walk: Callable[[Position | None, Position | None], Sequence[Position]],
    window: Window,
    skipped: Sequence[Gap],
) -> Window:
    """The window cut along the cursor, with the gaps as slices that are done already."""
    found: list[Position] = []
    done: list[int] = []
    place = window.low
    for behind, upto in skipped:
        found += [*walk(place, behind), behind] if behind is not None else []
        done.append(len(found))
        found.append(upto)
        place = upto
    found += walk(place, window.high)
    return replace(window, edges=tuple(found), done=tuple(done))


def _pieces(window: Window) -> tuple[Slice, ...]:
    return tuple(replace(piece, kind="since") for piece in plan.slices(window, window.done))
