"""What a run does with a table that follows the source's log: copy it, follow its changes, compare it, or nothing. Pure.

The log names keys that have changed, and the rows are read from the table, so no row has to be read at any one moment:
whatever changes after the commit that a copy or a comparison notes before it begins is read again by key
(docs/decisions/0026-keys-from-the-binary-log.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from floodmark.config.load import TableOptions
from floodmark.log.fold import State
from floodmark.log.following import Unfollowed
from floodmark.model.changes import FollowedTo, Reconcile
from floodmark.model.commit import DataFile
from floodmark.model.position import Position
from floodmark.model.run import Lag
from floodmark.model.table import Recipe, Table
from floodmark.model.times import parse_moment


@dataclass(frozen=True)
class TableNews:
    """What the source's log says of one table; a run reads the log once, before its tables."""

    newest: FollowedTo  # the log's last commit
    # What is to be followed after the place that the table needs it from (`State.follows_from`); None: nothing. Of a
    # bounded run, whole commits of the log: `upto` is the last of them.
    pending: Unfollowed | None = None
    until: float | None = None  # the log has everything that was committed before this moment


# Why a table is compared with its copy.
Doubt = Reconcile | Literal["by cursor", "by binlog"]


@dataclass(frozen=True)
class FollowStep:
    """What comes next for a table that follows the log, or did, and where it stands afterwards: in the log or at a position."""

    do: Literal["copy", "resume", "changes", "reconcile", "nothing"]
    followed_to: FollowedTo | None = None
    position: Position | None = None  # of a table that is read by a cursor from now on
    files: tuple[DataFile, ...] = ()  # that hold the keys that have changed
    why: tuple[Doubt, ...] = ()  # it is compared

    def as_json(self) -> dict[str, Any]:
        """As `plan` prints it."""
        upto = self.followed_to
        return {
            "step": self.do,
            "upto": None if upto is None else {"commit": upto.n, "position": str(upto.place)},
            "key_files": len(self.files),
            "because": list(self.why),
        }


def followed_plan(state: State, table: Table, news: TableNews) -> FollowStep:
    """What comes next for a table, whether it is read by key or whole."""
    stands, window, pending = state.followed_to, state.window, news.pending
    if table.mode == "full":
        idle = stands is not None and pending is None
        return FollowStep("nothing", stands) if idle else FollowStep("copy", news.newest)
    if window is not None and window.followed_to is not None and state.progress.done:
        return FollowStep("resume", window.followed_to)
    if stands is None:
        # Rows up to a position are in the target: comparing them costs less than a copy, and finds deletes too.
        copied = state.position is not None
        if copied:
            return FollowStep("reconcile", news.newest, why=("by cursor",))
        return FollowStep("copy", news.newest)
    if pending is None:
        return FollowStep("nothing", stands)
    if pending.reconcile:
        return FollowStep("reconcile", news.newest, why=pending.reconcile)
    return FollowStep("changes", pending.upto, files=pending.files)


def untouched(state: State, options: TableOptions, news: TableNews) -> bool:
    """Whether nothing need be asked of the source: the log has no change, and the table is configured as it was read.

    A key that is no longer configured counts as the same; the next change of the table tells.
    """
    table = state.table
    if table is None or state.followed_to is None or news.pending is not None:
        return False
    if state.window is not None or state.extraction.reread is not None or table.lineage.owes:
        return False
    recipe, read = table.recipe, {column.name.lower() for column in table.columns}
    left_out = {name.lower() for name, _ in table.source.layout} - read
    asked = Recipe(
        recipe.key if options.key is None else options.key,
        recipe.cursor,
        options.mode or recipe.mode,
        (options.target or table.source.table).lower(),
        options.where,
        zero_dates=options.zero_dates,
        overflow=options.overflow,
        holds=options.holds or recipe.holds,
        dist_key=options.dist_key,
        sort_key=options.sort_key,
        renames=tuple(options.renames.items()),
        deletes=options.deletes,
        changes="binlog" if options.changes == "binlog" else None,
    )
    return asked == recipe and left_out == {name.lower() for name in options.exclude}


def followed_lag(stands: FollowedTo | None, news: TableNews) -> Lag | None:
    """How far a table is behind: nothing once it has followed all that concerns it, however old that is."""
    if stands is None or stands.log != news.newest.log:
        return None
    if news.pending is None or stands.n == news.newest.n:
        return Lag(seconds=0.0)
    if stands.at is None or news.newest.at is None:
        return None
    behind = parse_moment(news.newest.at) - parse_moment(stands.at)
    return Lag(seconds=max(0.0, behind.total_seconds()))


# ---------------------------------------------------------------- in words

_DOUBTS: dict[Doubt, str] = {
    "by cursor": "it was read by a cursor so far",
    "by binlog": "it followed the binary log so far",
    "statement": "statements changed rows without naming them in the binary log",
    "ddl": "its columns changed while rows did",
    "truncate": "it was truncated",
    "incomplete": "the binary log does not have a changed row's new key",
    "unprepared": "an XA transaction was committed whose rows the binary log no longer has",
    "unlisted": "a read of the binary log did not look for its changes",
    "lost": "a part of the binary log could not be read",
}


def said_why(step: FollowStep) -> str:
    """Why the step is what comes next."""
    place = step.followed_to.place if step.followed_to is not None else ""
    match step.do:
        case "copy":
            return f"the whole table is copied along its key; what changes after {place} is read again by key"
        case "resume":
            return "a copy that was left open is resumed, with the same slices"
        case "changes":
            return f"the binary log names keys that have changed up to {place}"
        case "reconcile":
            return f"source and target are compared, and what differs is repaired: {said_doubts(step)}"
    return f"the binary log has no change of it up to {place}"


def said_doubts(step: FollowStep) -> str:
    """Why both sides are compared."""
    return said_reasons(step.why)


def said_reasons(why: Iterable[Doubt]) -> str:
    """Why the log can't tell which rows have changed."""
    return " and ".join(dict.fromkeys(_DOUBTS[doubt] for doubt in why))
