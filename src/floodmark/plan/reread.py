"""How the recipe has changed since rows were read, and what those rows hold in new or changed columns.

If all of them share one value in a new column, the target's column is filled with it and no row is read. If
they differ, or another part of the recipe calls for it, every row read earlier is read again, once, and
merged by key. The claim holds the window for that, like the ordinary one, so the next run can resume it after
a crash. With `schema_changes: ask`, none of this happens until `watermark accept` has claimed the change.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from secrets import token_hex

from floodmark.config.load import TableOptions
from floodmark.log.fold import State
from floodmark.log.log import Log
from floodmark.log.stretches import Gap, lowest, stretches
from floodmark.model.errors import ConfigError, DataError
from floodmark.model.lineage import (
    ColumnChange,
    Known,
    came_back,
    column_changes,
    current,
    dropped_since,
    happened,
    heirs,
    renamed_since,
    said_columns,
    source_columns,
    suspects,
    with_lineage,
)
from floodmark.model.position import Position
from floodmark.model.run import SyncOptions
from floodmark.model.table import Column, Table
from floodmark.model.text import counted
from floodmark.model.types import fields
from floodmark.model.warehouse import holding
from floodmark.model.window import Slice, Window
from floodmark.plan import recipe
from floodmark.plan.decide import COUNT_EXACTLY_BELOW, cut_by, parts_of_the_key, slices, start_position
from floodmark.plan.recipe import RecipeChange
from floodmark.source import identity, sql
from floodmark.source import ranges as edges
from floodmark.source.describe import did_you_mean, sees_all
from floodmark.source.session import Session

# A larger table is read again rather than searched for a row that differs.
SEARCHED_BELOW = 100_000_000


@dataclass(frozen=True)
class Upkeep:
    """A table with the history of its columns, and what has to be read again because of it."""

    table: Table
    window: Window | None = None  # of the rows to read again
    changed: bool = False  # whether the columns differ from before
    notes: tuple[str, ...] = ()
    recipe: tuple[RecipeChange, ...] = ()  # how it has changed
    asks: DataError | None = None  # in a dry run: see `question`

    @property
    def slices(self) -> tuple[Slice, ...]:
        """Of the window, those not committed yet."""
        found = slices(self.window, self.window.done) if self.window is not None else ()
        return tuple(replace(piece, kind="since") for piece in found)


def changes(
    table: Table, state: State, options: TableOptions, known: Sequence[Known] = ()
) -> tuple[RecipeChange, ...]:
    """How the recipe has changed since rows were read; empty if none were read yet."""
    if state.table is None:
        return ()
    found = recipe.changes(
        state.table,
        table,
        full_by_choice=options.mode == "full",
        chosen=options.cursor is not None or options.mode is not None,
        reloads=state.load_epoch > state.described or not state.has_data,
        known=known,
    )
    if state.has_read or (state.window is not None and state.window.by != "snapshot"):
        return found
    return tuple(c for c in found if c.part == "target" or (c.part, c.do) == ("mode", "reread"))


def check(table: Table, state: State, options: TableOptions) -> None:
    """Refuses a table that no longer fits the log's position or the target's rows."""
    refused = recipe.refusal(changes(table, state, options), table)
    if refused is None and state.has_data:
        refused = recipe.unfit(state.table, table)
    if refused is not None:
        raise refused


def question(
    table: Table, state: State, options: TableOptions, known: Sequence[Known] = ()
) -> DataError | None:
    """The error that asks before a change is followed, by changing the target or by reading rows again.

    None if nobody wants to be asked, nothing is followed, it is refused, or nothing was read since a reset.
    """
    before = state.table
    if options.schema_changes != "ask" or before is None or not state.live_files:
        return None
    found = changes(table, state, options, known)
    what = asked_about(before, with_lineage(before, table), found)
    if not what or recipe.refusal(found, table) is not None:
        return None
    return DataError(
        f"the table has changed, and `schema_changes: ask` is set, so nothing was read: {'; '.join(what)}",
        hint=f"to see what follows: floodmark plan -t {table.name}; to go on: floodmark watermark accept -t {table.name}",
        table=table.name,
    )


def asked_about(before: Table, now: Table, found: Sequence[RecipeChange]) -> tuple[str, ...]:
    """The changes that have consequences."""
    columns = [str(change) for change in column_changes(before, now) if _shows(change, before, now)]
    return (*columns, *(c.said for c in found if c.do in ("reread", "reconcile") or c.part == "where"))


def _shows(change: ColumnChange, before: Table, now: Table) -> bool:
    """Whether the target's column changes too; INT(11) and INT are the same there."""
    if change.kind != "changed":
        return True
    was, is_ = (
        {f.target: holding(table.recipe.holds).type_of(f) for f in fields(table)} for table in (before, now)
    )
    places = {f.target for f in fields(now) if f.column == change.column}
    return any(was.get(place) != is_[place] for place in places)


def begins_whole(state: State, table: Table, request: SyncOptions) -> bool:
    """Whether this sync's rows replace all rows of the target, which follow an incompatible recipe."""
    if state.window is not None and state.window.whole:
        whole = table.mode != "full"
    else:
        loaded = _has_rows(state) and not state.has_read and state.window is None
        copied = table.mode != "full" and any(d.load_as == "replace" for d in state.data.commits[-1:])
        unlike = state.table is not None and recipe.begins_whole(state.table, table)
        whole = loaded and (copied or unlike)
    if whole and request.most is not None:
        raise ConfigError(
            "--limit and --max-chunks can't be used with a sync that replaces all rows of the target",
            hint="run one sync without them",
        )
    return whole


def follows_a_copy(state: State) -> bool:
    """Whether the target holds a whole copy: its replacement must include the rows before the start."""
    return any(d.load_as == "replace" and not d.superseded for d in state.data.commits[-1:])


def _has_rows(state: State) -> bool:
    """Whether any row was committed since the last replacement of all; an empty table has a commit, too."""
    commits = state.data.commits
    last = max(
        (i for i, d in enumerate(commits) if d.load_as == "replace" and not d.superseded), default=None
    )
    return state.has_had_rows if last is None else any(d.rows for d in commits[last:])


def follow(
    session: Session, table: Table, state: State, options: TableOptions, request: SyncOptions, log: Log
) -> Upkeep:
    """The table with its columns' history; refuses a key or an order other than the one used so far."""
    before, upto = state.table, state.read_upto
    unseen = _check_excluded(session, table, state, options)
    if before is None:
        return Upkeep(with_lineage(None, table))
    known = known_rows(session, before, table, state)
    found = changes(table, state, options, known)
    if (refused := recipe.refusal(found, table)) is not None:
        raise refused
    now = with_lineage(before, table, from_start=not state.has_read, known=known)
    check_dropped(session, now, vanished(before, now, options))
    notes = [*said_columns(before, now), *_said(now, found, options)]
    notes += [f"`exclude` has {name}, which {now.name} does not have: it can be removed." for name in unseen]
    asks = question(table, state, options, known)
    if asks is not None and not request.dry_run:
        raise asks
    others = renamed_since(before, now) or dropped_since(before, now) or now.lineage.owed
    # Which columns require reading rows again is for `_filled` to say.
    again = (c.part == "where" or (c.do == "reread" and c.part not in ("columns", "mode")) for c in found)
    changed = bool(others) or any(again)
    low, skipped = span(log, now, state, options) if now.lineage.owes else (None, ())
    why = [c.said for c in found if c.do == "reread" and c.part != "mode"]
    if now.lineage.owed:
        now = _filled(session, now, before, low, upto, notes, why)
    reasons = "; ".join(why) or "An earlier change of columns or options"
    followed = Upkeep(now, changed=changed, notes=tuple(notes), recipe=found, asks=asks)
    if request.since is not None or now.mode == "full":
        return replace(followed, changed=False)
    if request.most is not None and (now.lineage.owes or state.extraction.reread):
        notes.append(f"{reasons}: the next sync without --limit reads earlier rows again.")
        return replace(followed, notes=tuple(notes))
    left = state.extraction.reread
    if not now.lineage.owes and not (left is not None and now.follows and left.high is not None):
        return replace(followed, window=left)
    followed = replace(followed, window=_window(session, now, low, upto, request, skipped))
    rows = counted(sum(piece.rows for piece in followed.slices), "row")
    notes.append(
        f"{reasons}: about {rows} are read again, once, and merged into {now.target} by key. "
        "Columns of the target that the source does not have keep their values."
    )
    if asks is None:  # else `watermark accept` claims what is owed, and the next sync reads it
        now = replace(now, lineage=replace(now.lineage, owed=(), owed_parts=()))
    return replace(followed, table=now, notes=tuple(notes))


def known_rows(session: Session, before: Table, now: Table, state: State) -> list[Known]:
    """Rows read earlier, as they are now, if a column may have taken another one's name."""
    order = tuple(current(name, happened(before, now)) for name in before.order)
    if state.extraction.origin is None or not now.key or order != now.order or not suspects(before, now):
        return []
    asked = identity.to_ask(now, state.extraction.origin.witnesses)
    return list(zip(asked, identity.answers(session, now, asked), strict=True))


def _check_excluded(session: Session, now: Table, state: State, options: TableOptions) -> tuple[str, ...]:
    """The names in `exclude` that the source doesn't have; refuses those whose column might be copied nevertheless.

    That is a probable typo, or a column that may have another name now.
    """
    before, here = state.table, source_columns(now)
    unseen = tuple(name for name in options.exclude if name.lower() not in here)
    if not unseen:
        return ()
    user, every = session.spec.user, sees_all(session, now.source.schema, now.source.table)
    gone = suspects(before, now) if before is not None else {}
    dropped = {c.name.lower() for c in before.lineage.dropped} if before is not None else set()
    for name in unseen:
        meant = did_you_mean(name, [c.name for c in now.columns])
        known = name.lower() in gone.keys() | dropped
        if (every and before is None) or (meant and (every or not known)):
            why = (
                "the table has no such column"
                if every
                else f"columns that {user} may not read are never copied"
            )
            raise ConfigError(
                f"`exclude` has {name}, but {user} sees no such column in {now.name}",
                hint=f"{meant} If not, remove it: {why}" if meant else "correct the name, or remove it",
            )
        if every and before is not None and name.lower() in gone:
            old = {current(c.name, happened(before, now)).lower(): c for c in before.columns}
            rows = known_rows(session, before, now, state)
            found = () if name.lower() in old else heirs(old, now, name, gone[name.lower()], rows)
            if found:
                raise ConfigError(
                    f"`exclude` has {name}, which {now.name} no longer has: it was dropped, or it is {' or '.join(found)} now",
                    hint=f"if it was dropped, remove {name} from `exclude`; if it was renamed, exclude its new name instead",
                )
    return unseen if every else ()


def vanished(before: Table, now: Table, options: TableOptions) -> tuple[str, ...]:
    """The columns that the source no longer shows and that aren't excluded: dropped, or hidden."""
    excluded = {name.lower() for name in options.exclude}
    lost = dropped_since(before, with_lineage(before, now))
    return tuple(c.name for c in lost if c.name.lower() not in excluded)


def check_dropped(session: Session, table: Table, gone: Sequence[str]) -> None:
    """Refuses columns that may only be hidden: MySQL does not show columns that the user may not read."""
    if gone and not sees_all(session, table.source.schema, table.source.table):
        names, user = ", ".join(gone), session.spec.user
        raise ConfigError(
            f"the source no longer shows {names}, and {user} may not read every column of {table.name}: it was dropped, or "
            f"{user} has lost the right to read it",
            hint=f"GRANT SELECT ({names}) ON {table.name} TO '{user}'@'…'; if that is intended: `exclude: [{names}]`",
        )


def _said(table: Table, found: tuple[RecipeChange, ...], options: TableOptions) -> list[str]:
    """A sync's notes about changed parts of the recipe; for rows that are read again see `_filled`."""
    notes = [f"{c.said}." for c in found if (c.part, c.do) == ("mode", "reread")]
    if table.recipe.where and any(c.part == "where" for c in found):
        stay = table.mode != "upsert" and options.deletes == "ignore"
        fate = "stay there, because of `deletes: ignore`" if stay else "leave it"
        notes.append(f"Rows of the target that no longer match `where` {fate}.")
    return notes


def carrier(session: Session, table: Table, position: Position | None) -> tuple[Slice, ...]:
    """The last rows before the watermark, read again to carry a change of columns without new rows.

    Of a table that follows the binary log, the first row.
    """
    if table.follows:
        first = edges.nth(session, table, table.key, None, None, 1)
        return (Slice("since", 0, "key", None, first, rows=1),) if first is not None else ()
    if not table.key or position is None:
        return ()
    after = edges.last(session, table, position[0])
    if after is not None and edges.nth(session, table, table.order, after, position, 1) is None:
        after = edges.last(session, table, after[0])  # the row at the watermark has changed or is gone
    return (Slice("since", 0, "cursor", after, position, rows=1),)


def span(
    log: Log, table: Table, state: State, options: TableOptions
) -> tuple[Position | None, tuple[Gap, ...]]:
    """Where the target's rows begin, and the gaps in them: rows that were never read are not read again."""
    if table.follows or state.progress.moved_at is None:
        return state.progress.began, ()
    seen = stretches(log, state, whole=True)
    low = state.progress.began if state.progress.began is not None else seen.began
    if not seen.taken_over and not state.extraction.epoch:
        return low, () if seen.ragged else seen.skipped
    # Rows from before a reset may still be in the target, and rows of an older tool are.
    if seen.taken_over and state.progress.began is None:
        low = lowest(low, start_position(table, options.older_start))
    return low, ()


def _filled(
    session: Session,
    table: Table,
    before: Table,
    low: Position | None,
    upto: Position | None,
    notes: list[str],
    why: list[str],
) -> Table:
    """The table without the owed columns in which earlier rows share one value, which becomes their fill.

    `why` receives the reasons to read rows again for the others.
    """
    small = edges.table_rows(session, table) < SEARCHED_BELOW
    owed: list[str] = []
    reasons: dict[tuple[str, str], list[str]] = {}
    filled: dict[str, Column] = {}
    plain = {f.column for f in fields(table) if f.name == f.column}
    since = renamed_since(before, table)
    old = {current(c.name, since).lower() for c in before.columns}
    for name in table.lineage.owed:
        same, value = False, None
        # For a column that existed before, we don't know here what the target has in it.
        back = came_back(before, name)
        is_ = "back" if back else "no longer excluded" if name.lower() in source_columns(before) else "new"
        looks = small and name in plain and name.lower() not in old and not back
        if looks:
            same, value = edges.shared_value(session, table, name, low, upto)
        if not same:
            owed.append(name)
            if name.lower() not in old:
                reasons.setdefault((is_, "differ" if looks else "may differ"), []).append(name)
            continue
        filled[name] = replace(table.column(name), fill=value)
        what = f"earlier rows get {value} in it" if value is not None else "it is NULL in earlier rows"
        notes.append(f"{name} is {is_}: {what}.")
    why += [_reason(names, is_, differ) for (is_, differ), names in reasons.items()]
    if owed and not table.key:
        differ = "differ" if {differ for _, differ in reasons} == {"differ"} else "may differ"
        raise DataError(
            f"earlier rows {differ} in {', '.join(owed)}, and without a key they can't be read again",
            hint=f"exclude it; or {recipe.go_on(before)}",
        )
    columns = tuple(filled.get(c.name, c) for c in table.columns)
    source, lineage = replace(table.source, columns=columns), replace(table.lineage, owed=tuple(owed))
    return replace(table, source=source, lineage=lineage)


def _reason(names: Sequence[str], is_: str, differ: str) -> str:
    verb, them, their = ("are", "them", "their") if len(names) > 1 else ("is", "it", "its")
    rows = f"the target may hold {their} old values" if is_ == "back" else f"earlier rows {differ} in {them}"
    return f"{', '.join(names)} {verb} {is_}, and {rows}"


def _window(
    session: Session,
    table: Table,
    low: Position | None,
    upto: Position | None,
    request: SyncOptions,
    skipped: Sequence[Gap],
) -> Window:
    rows = edges.table_rows(session, table)
    by = "key" if table.follows else "cursor" if skipped else cut_by(request, table, 1.0, rows)
    if rows <= COUNT_EXACTLY_BELOW:
        rows = edges.count(session, table, sql.between(table, table.order, low, upto))
    every = edges.every_row(table)  # a task looks at rows outside `where`, too
    window = Window(token_hex(8), low, upto, by, rows=rows)
    if by == "key":
        parts = parts_of_the_key(request, rows) if table.source.key_index else 1
        return replace(window, edges=edges.split_key(session, every, parts, request.slice_rows))
    walk = partial(edges.walk, session, every, table.order, step=request.slice_rows)
    return around(walk, window, skipped)


def around(
    walk: Callable[[Position | None, Position | None], Sequence[Position]],
    window: Window,
    skipped: Sequence[Gap],
) -> Window:
    """The window cut along the cursor, with the gaps as slices that are already done."""
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
