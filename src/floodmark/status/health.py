"""What is known about a table, and the one word that follows: for `watermark list`, alerts, metrics and the dashboard. Pure.

One judge, so that nobody is told two things: the word is the worst that is known. A failure that may pass on its own is
`failing` and pages nobody; if it lasts, the table is `behind`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from floodmark.config.load import Config
from floodmark.log.document import Checkpoint, document
from floodmark.log.lease import LeaseNote
from floodmark.log.status import Live, Scrub, TableStatus
from floodmark.model.run import Lag
from floodmark.model.secrets import masked
from floodmark.model.text import clock, count, counted, duration
from floodmark.model.times import TEMPORAL, parse_moment

Word = Literal["failed", "behind", "differs", "failing", "unknown", "waiting to load", "never synced", "ok"]
# Worst first. The unknown may be as bad as anything, except what is known to be bad.
WORDS: tuple[Word, ...] = (
    "failed", "behind", "differs", "failing", "unknown", "waiting to load", "never synced", "ok"
)  # fmt: skip
# How far a table may be behind if the configuration sets no limit: a missed nightly sync shows.
DEFAULT_LIMIT = 25 * 3600.0
FAILED = (1, 2, 6)
DIFFERS = 7
# Not a failure: done, another run has the table, or every row was copied and some differ.
NO_FAILURE = (None, 0, 3, DIFFERS)
_UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}


@dataclass(frozen=True)
class Mark:
    """One published watermark: the document without its lists of files, and the numbers behind it."""

    table: str
    rows_extracted: int = 0  # since the last reset of the extraction, rows read again included
    bytes_written: int = 0
    rows_loaded: int = 0  # since the last reset of the load
    pending_files: int = 0
    pending_rows: int = 0
    position_at: float | None = None  # the cursor's own time, as seconds since 1970
    open: bool = False  # a window is
    log: str = ""
    load_epoch: int = 0
    loads: tuple[int, int, int] = (0, 0, 0)  # epoch, commits and files of what was loaded
    mode: str | None = None
    target: str | None = None
    document: Mapping[str, Any] = field(default_factory=dict)

    @property
    def error(self) -> str | None:
        """Of a stage that has not succeeded since."""
        return self.document.get("last_error")

    @property
    def retired(self) -> bool:
        return bool(self.document.get("retired"))


def mark_of(seen: Checkpoint, saved: Mapping[str, Any] | None = None, scrub: Scrub = str) -> Mark:
    """The mark of a checkpoint, without secrets; `saved` is the copy's backup_metadata."""
    state, loaded = seen.state, seen.load
    waiting = [d for d in state.live if not loaded.has(d.n)]
    shown = document(seen, str, dict(saved or {}))
    shown["last_error"] = masked(shown["last_error"], scrub)
    del shown["processed_s3_files"], shown["pending_s3_files"]
    return Mark(
        state.table_name,
        rows_extracted=state.totals.rows,
        bytes_written=state.totals.bytes,
        rows_loaded=loaded.rows,
        pending_files=max(state.live_files - loaded.live_files, sum(d.files for d in waiting)),
        pending_rows=sum(d.rows for d in waiting),
        position_at=_position_at(seen),
        open=state.window is not None or state.extraction.reread is not None,
        log=state.log,
        load_epoch=state.load_epoch,
        loads=(loaded.epoch, loaded.commits, loaded.files),
        mode=state.table.mode if state.table else None,
        target=state.table.target if state.table else None,
        document=shown,
    )


def _position_at(seen: Checkpoint) -> float | None:
    """The cursor's time as a moment; None if it is not a time, or its zone is unknown."""
    state = seen.state
    table = state.table
    if state.followed_to is not None and (committed := moment(state.followed_to.at)) is not None:
        return committed.timestamp()
    if not state.position or table is None or table.cursor is None:
        return None
    value = state.position[0]
    if table.recipe.unix is not None:
        return value / _UNITS[table.recipe.unix] if isinstance(value, int) else None
    kinds = [c.data_type for c in table.columns if c.name == table.cursor]
    if not kinds or kinds[0] not in TEMPORAL or not isinstance(value, str):
        return None
    offset = 0 if kinds[0] == "timestamp" else state.progress.zone.offset if state.progress.zone else None
    wall = moment(value)
    return None if wall is None or offset is None else wall.timestamp() - offset


def moment(text: str | None) -> datetime | None:
    """A time in a stored object; None if it is not one."""
    try:
        return None if text is None else parse_moment(text)
    except (ValueError, OverflowError):
        return None


def age(text: str | None, now: datetime) -> float | None:
    """Seconds since a time; None if it is unknown."""
    at = moment(text)
    return None if at is None else max(0.0, (now - at).total_seconds())


@dataclass(frozen=True)
class TableFacts:
    """All that the store knows about one table; None: it does not know, or what it has is damaged."""

    table: str
    mark: Mark | None = None
    status: TableStatus | None = None
    damaged: bool = False  # there is a watermark, but it can't be read
    running: bool = False  # a live run holds the table
    lease: LeaseNote | None = None  # that run's, if it was read
    live: Live | None = None  # how far that run has got

    @property
    def retired(self) -> bool:
        return self.mark is not None and self.mark.retired

    @property
    def lag(self) -> Lag:
        """As the present run has measured it, or else at the last look."""
        if self.live is not None and (self.live.lag_seconds, self.live.lag_ids) != (None, None):
            return Lag(seconds=self.live.lag_seconds, ids=self.live.lag_ids)
        return (self.status.lag if self.status else None) or Lag()


@dataclass(frozen=True)
class TableHealth:
    """The word, and the reason in a few more."""

    word: Word = "ok"
    why: str = ""

    @property
    def rank(self) -> int:
        return WORDS.index(self.word)


def limit_of(config: Config, table: str) -> float:
    """How far a table may be behind its source."""
    own = config.options(table).behind
    return own if own is not None else config.alerts.behind if config.alerts else DEFAULT_LIMIT


def behind_seconds(facts: TableFacts, now: datetime) -> float | None:
    """The most that the table can be behind its source; None: no sync has caught up with it yet, or failed to.

    The lag when a sync last caught up plus the time since then, or how long files have waited to be loaded. A table whose
    first sync fails is behind since then.
    """
    status, live = facts.status or TableStatus(facts.table), facts.live
    caught_up = age(_looked(status), now)
    if caught_up is None:
        return age(status.failing_since, now)
    behind = caught_up + ((status.lag.seconds if status.lag else None) or 0.0)
    if live is not None and live.lag_seconds is not None:  # measured since, by the run that is at work
        behind = live.lag_seconds + (age(live.lag_at, now) or 0.0)
    return max(behind, age(status.pending_since, now) or 0.0)


def _looked(status: TableStatus) -> str | None:
    """When a sync last caught up with the source; earlier versions recorded only when one looked."""
    return status.caught_up_at or (status.last_check_time if status.failing_since is None else None)


def judge(
    facts: TableFacts,
    limit: float,
    now: datetime,
    *,
    pending: int | None = None,
    words: Collection[str] = WORDS,
) -> TableHealth:
    """The worst of these words that is true of a table; a retired table is always fine.

    `pending`: files that wait to be loaded, if the ledger knows better than the published watermark.
    """
    if facts.retired:
        return TableHealth(why="retired")
    return next((one for one in _candidates(facts, limit, now, pending) if one.word in words), TableHealth())


def health_of(
    shown: Mapping[str, Any], status: TableStatus | None, limit: float, now: datetime
) -> TableHealth:
    """The same from a table's document as `watermark get` shows it."""
    state = shown["activity"]["state"]
    waiting = len(shown["pending_s3_files"])
    mark = Mark(shown["table_name"], pending_files=waiting, open=state != "idle", document=shown)
    return judge(TableFacts(mark.table, mark, status, running=state == "running"), limit, now)


def _candidates(facts: TableFacts, limit: float, now: datetime, pending: int | None) -> Iterator[TableHealth]:
    """Every word that is true of a table, and why; the worst first."""
    status, mark = facts.status or TableStatus(facts.table), facts.mark or Mark(facts.table)
    error = status.error if status.exit_code not in NO_FAILURE else None
    if status.exit_code in FAILED:
        yield TableHealth("failed", error or "")
    if (behind := behind_seconds(facts, now)) is not None and behind > limit:
        yield TableHealth("behind", error or _late(facts, status, limit, now))
    if status.verify is not None and not status.verify.ok:
        yield TableHealth("differs", _differences(status))
    elif status.exit_code == DIFFERS:
        yield TableHealth("differs", status.error or "")
    error = error or (status.failure.message if status.failure else mark.error)
    if error is not None:
        yield TableHealth("failing", f"will be tried again: {error}")
    if mark.open and not facts.running:
        yield TableHealth("failing", "the last run was interrupted; the next one continues from there")
    if facts.damaged:
        yield TableHealth("unknown", "its watermark can't be read")
    lag, shown = facts.lag, mark.document
    if not shown.get("last_mysql_extraction_time") and not shown.get("last_mysql_data_id"):
        yield TableHealth("never synced", "a first sync is running" if facts.running else "")
    elif not facts.running:
        if _looked(status) is None and lag.seconds is None:
            yield TableHealth("unknown", "no sync has recorded when it last looked")
        if waiting := mark.pending_files if pending is None else pending:
            yield TableHealth("waiting to load", f"{counted(waiting, 'file')} not yet in the warehouse")
    if lag.ids:
        yield TableHealth("ok", f"{count(lag.ids)} ids behind")


def _differences(status: TableStatus) -> str:
    verify = status.verify
    assert verify is not None
    rows = f"{verify.missing:,} missing, {verify.extra:,} extra, {verify.different:,} different"
    return f"verify found {rows}" if verify.differences > 1 or verify.missing + verify.extra else rows


def _late(facts: TableFacts, status: TableStatus, limit: float, now: datetime) -> str:
    """Why a table is behind: its lag at the last look, files that wait, or that no sync has looked for that long."""
    lag, target = facts.lag.seconds, f"target {duration(limit)}"
    if lag is not None and lag > limit:
        return f"{duration(lag)} behind the source, {target}"
    if (age(status.pending_since, now) or 0.0) > limit:
        return f"files have waited to be loaded since {clock(status.pending_since)}, {target}"
    since = f" since {clock(looked)}" if (looked := _looked(status)) else ""
    return f"no sync has looked{since}, {target}"
