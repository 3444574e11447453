"""What a run does with a table that follows the source's log: copy it, follow its changes, compare it, or nothing. Pure.

The log names keys that have changed, and the rows are read from the table, so no row has to be read at any one moment:
whatever changes after the commit that a copy or a comparison notes before it begins is read again by key
(docs/decisions/0025-keys-from-the-binary-log.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from floodmark.log.fold import State
from floodmark.model.changes import Reconcile
from floodmark.model.position import Followed, Position
from floodmark.model.run import Lag
from floodmark.model.table import Table
from floodmark.model.times import parse_moment


@dataclass(frozen=True)
class TableNews:
    """What the source's log says of one table; a run reads the log once, before its tables."""

    newest: Followed  # the log's last commit: where the table stands once it has followed everything
    since: int  # every read of the log after this commit has listened for the table
    touched: int = -1  # the last commit that says that the table has changed; -1: none
    doubted: int = -1  # the last commit that can't tell which of its rows have changed; -1: none
    why: tuple[Reconcile, ...] = ()  # it can't
    # The log's digest of the commit up to which the table has followed it; None: not looked up.
    digest: str | None = None
    # The commits after that one which say that the table has changed, oldest first, and how many keys each names.
    waiting: tuple[tuple[Followed, int], ...] = ()
    until: float | None = None  # the log has everything that was committed before this moment


# Why a table is compared with its copy.
Doubt = Reconcile | Literal["by cursor", "by binlog", "other log"]


@dataclass(frozen=True)
class FollowStep:
    """What comes next for a table that follows the log, or did; afterwards it stands at `followed`, or at `position`."""

    do: Literal["copy", "resume", "changes", "reconcile", "nothing"]
    followed: Followed | None = None
    position: Position | None = None  # of a table that is read by a cursor from now on
    after: int = -1  # the changes of the commits after this one, up to `followed`
    keys: int = 0  # that they name, about
    why: tuple[Doubt, ...] = ()  # it is compared

    def as_json(self) -> dict[str, Any]:
        """As `plan` prints it."""
        stands = self.followed
        return {
            "step": self.do,
            "after": self.after if self.do == "changes" else None,
            "upto": stands.n if stands else None,
            "position": stands.place if stands else None,
            "keys": self.keys if self.do == "changes" else None,
            "because": list(self.why),
        }


def followed_plan(state: State, table: Table, news: TableNews, most: int | None = None) -> FollowStep:
    """What comes next for a table, whether it is read by key or whole; of changes, as many whole commits as have `most` keys."""
    stands, window, newest = state.followed, state.window, news.newest
    if table.mode == "full":
        if stands is not None and not _doubts(stands, news) and news.touched <= stands.n:
            return FollowStep("nothing", stands)
        return FollowStep("copy", newest)
    if window is not None and window.followed is not None and state.progress.done:
        return FollowStep("resume", window.followed)
    if stands is None:
        # Rows up to a position are in the target: comparing them costs less than a copy, and finds deletes too.
        copied = state.position is not None
        return FollowStep("reconcile", newest, why=("by cursor",)) if copied else FollowStep("copy", newest)
    if doubts := _doubts(stands, news):
        return FollowStep("reconcile", newest, why=doubts)
    if news.touched > stands.n:
        return _changes(stands, news, most)
    return FollowStep("nothing", stands)


def _doubts(stands: Followed, news: TableNews) -> tuple[Doubt, ...]:
    """Why the log can't tell which rows have changed since the table stood there; none if it can."""
    other = stands.log != news.newest.log or stands.n > news.newest.n
    if other or news.digest not in (None, stands.digest):
        return ("other log",)
    found: list[Doubt] = ["unlisted"] if stands.n < news.since else []
    return (*found, *news.why) if news.doubted > stands.n else tuple(found)


def _changes(stands: Followed, news: TableNews, most: int | None) -> FollowStep:
    """The changes up to the newest commit, or up to the last one that a bounded run reads: at least one."""
    upto, total = news.newest, 0
    for number, (_, keys) in enumerate(news.waiting):
        if most is not None and number and total + keys > most:
            upto = news.waiting[number - 1][0]
            break
        total += keys
    return FollowStep("changes", upto, after=stands.n, keys=total)


def followed_lag(stands: Followed | None, news: TableNews) -> Lag | None:
    """How far a table is behind: nothing once it has followed all that concerns it, however old that is."""
    if stands is None or stands.log != news.newest.log:
        return None
    if news.touched <= stands.n:
        return Lag(seconds=0.0)
    if stands.at is None or news.newest.at is None:
        return None
    behind = parse_moment(news.newest.at) - parse_moment(stands.at)
    return Lag(seconds=max(0.0, behind.total_seconds()))


# ---------------------------------------------------------------- in words

_DOUBTS: dict[Doubt, str] = {
    "by cursor": "it was read by a cursor so far",
    "by binlog": "it followed the binary log so far",
    "other log": "the source's log is not the one that it followed",
    "statement": "statements changed rows without naming them in the binary log",
    "ddl": "its columns changed while rows did",
    "truncate": "it was truncated",
    "incomplete": "the binary log does not have a changed row's new key",
    "unprepared": "an XA transaction was committed whose rows the binary log no longer has",
    "unlisted": "a read of the binary log did not look for its changes",
    "lost": "a part of the binary log is gone",
}


def said_why(step: FollowStep) -> str:
    """Why the step is what comes next."""
    place = step.followed.place if step.followed is not None else ""
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
    return " and ".join(dict.fromkeys(_DOUBTS[doubt] for doubt in step.why))
