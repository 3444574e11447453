"""What the dashboard shows, as values: tables, runs, and all of it at one moment. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from floodmark.commit.status import Day
from floodmark.model.times import parse_moment
from floodmark.web.health import DEFAULT_TARGET, Facts, Health, behind, judge
from floodmark.web.ledger import NOT_ASKED, LedgerSeen, Loads, loads_of, waiting

POINTS = 30  # of a sparkline
Document = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
    """One table's part of one run. There are many: a week of runs has them for every table."""

    run: str
    table: str
    ok: bool
    exit_code: int | None  # None: it was killed
    at: str  # when the run began, to the second
    seconds: float
    rows: int = 0
    reread: int = 0
    loaded: int = 0
    deleted: int = 0
    bytes: int = 0
    files: int = 0
    lag: float | None = None
    lag_ids: int | None = None
    strategy: str | None = None
    error: str | None = None
    hint: str | None = None
    notes: tuple[str, ...] = ()
    findings: tuple[str, ...] = ()
    stages: tuple[tuple[str, float], ...] = ()  # seconds of each, if the run has recorded them
    began_behind: float | None = None  # the lag when the run began, in seconds or ids

    @property
    def behind(self) -> float | None:
        """The largest lag of the table that the run knows of."""
        if self.began_behind is not None:
            return self.began_behind
        return self.lag if self.lag is not None else self.lag_ids

    @property
    def idle(self) -> bool:
        return self.ok and not (self.rows or self.reread or self.loaded or self.deleted)


@dataclass(frozen=True)
class Run:
    """One run, from its report; a killed run, from what it left behind."""

    id: str
    at: str
    ok: bool
    exit_code: int | None  # None: it was killed
    seconds: float
    parts: tuple[Part, ...]
    error: str | None = None  # why the run failed as a whole
    hint: str | None = None

    @property
    def why(self) -> str | None:
        """Why it failed: as a whole, or the first table that failed as the run did."""
        if self.error is not None or self.ok:
            return self.error
        return next(
            (part.error for part in self.parts if part.error and part.exit_code == self.exit_code), None
        )


@dataclass(frozen=True)
class Holder:
    """The run that holds a table, and how far it has got."""

    table: str
    run: str
    host: str | None
    pid: int | None
    purpose: str | None
    since: str | None
    stage: str | None = None
    stage_since: str | None = None
    rows: int | None = None
    total: int | None = None
    files: int | None = None
    bytes: int | None = None
    told: str | None = None  # when that was written
    lag: float | None = None  # behind the source, as the run measured it
    lag_ids: int | None = None


@dataclass(frozen=True)
class Verified:
    """The last verify of a table."""

    at: str
    differences: int
    rows_source: int | None = None
    rows_warehouse: int | None = None
    findings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """One table as the overview shows it."""

    name: str
    health: Health
    lag: float | None = None
    lag_ids: int | None = None
    looked: str | None = None
    points: tuple[float | None, ...] = ()
    last: Part | None = None
    last_success: str | None = None
    pending: int = 0
    pending_more: bool = False
    verified: Verified | None = None
    holder: Holder | None = None
    document: Document = field(default_factory=dict)
    target: float = DEFAULT_TARGET
    loads: Loads | None = None  # as the ledger has them; None: not known
    at_most: float | None = (
        None  # it may be that far behind by now, in whole minutes; only where that is too far
    )

    @property
    def retired(self) -> bool:
        return bool(self.document.get("retired"))


@dataclass(frozen=True)
class Snapshot:
    """Everything at one moment; `problem` says why it is not newer."""

    at: datetime
    version: int
    rows: tuple[Row, ...] = ()
    runs: tuple[Run, ...] = ()  # newest first
    days: Mapping[str, tuple[Day, ...]] = field(default_factory=dict)
    problem: str | None = None
    read: bool = True  # False: the store was never read
    ledger: LedgerSeen = NOT_ASKED

    def row(self, name: str) -> Row | None:
        return next((row for row in self.rows if row.name == name), None)

    def run(self, run: str) -> Run | None:
        return next((one for one in self.runs if one.id == run), None)

    def parts(self, table: str, most: int = 60) -> list[Part]:
        """A table's parts of the runs that are known, newest first."""
        found: list[Part] = []
        for run in self.runs:
            found += [part for part in run.parts if part.table == table]
            if len(found) >= most:
                break
        return found[:most]

    def shows(self, other: Snapshot) -> bool:
        """Whether this one shows the same as the other."""
        here = (self.rows, self.runs, self.days, self.ledger)
        return here == (other.rows, other.runs, other.days, other.ledger)

    @property
    def refused(self) -> Run | None:
        """The last run, if it failed as a whole and no sync has got further since."""
        last = self.runs[0] if self.runs else None
        if last is None or last.error is None or any((row.looked or "") > last.at for row in self.rows):
            return None
        return last

    @property
    def holders(self) -> list[Holder]:
        return [row.holder for row in self.rows if row.holder is not None]


@dataclass(frozen=True)
class Told:
    """What the store says about one table."""

    document: Document | None  # the published watermark, without its lists of files; None: there is none
    damaged: bool = False
    looked: str | None = None
    caught_up: str | None = None  # when a run last looked and committed all that there was
    failure: str | None = None  # why the last run failed
    failed_at: str | None = None
    success: str | None = None  # when one last succeeded
    last: Part | None = None  # the last run that did something, where its report is not known
    lag: float | None = None  # at the last look, if it was recorded
    lag_ids: int | None = None
    holder: Holder | None = None
    verified: Verified | None = None
    target: float | None = None
    days: tuple[Day, ...] = ()


def make_row(name: str, told: Told, parts: list[Part], now: datetime, ledger: LedgerSeen = NOT_ASKED) -> Row:
    """A table's line of the overview; `parts` are its parts of runs, newest first."""
    document = told.document or {}
    loads = loads_of(document, ledger)
    last = next((part for part in parts if not part.idle), told.last or (parts[0] if parts else None))
    if told.last is not None and last is not None and told.last.run > last.run:
        last = told.last
    looked = latest(told.looked, document.get("last_check_time"))
    ended = [part for part in parts if part.exit_code != 3]
    newest = ended[0] if ended else None
    lag, lag_ids = told.lag, told.lag_ids
    if told.holder is not None and (told.holder.lag, told.holder.lag_ids) != (None, None):
        lag, lag_ids = told.holder.lag, told.holder.lag_ids
    if lag is None and lag_ids is None and newest is not None:
        lag, lag_ids = newest.lag, newest.lag_ids
    error = document.get("last_error") or told.failure
    if error is None and newest is not None and not newest.ok and newest.at > (looked or ""):
        error = newest.error
    pending = waiting(document, loads)
    target = told.target if told.target is not None else DEFAULT_TARGET
    facts = Facts(
        readable=not told.damaged,
        synced=bool(document.get("last_mysql_extraction_time") or document.get("last_mysql_data_id")),
        running=told.holder is not None,
        interrupted=bool(document.get("open")),
        error=error,
        lag=lag,
        lag_ids=lag_ids,
        looked=told.caught_up or looked,
        age=age(told.caught_up or looked, now),
        target=target,
        pending=pending,
        differences=told.verified.differences if told.verified else None,
        retired=bool(document.get("retired")),
    )
    total = behind(facts)
    return Row(
        name=name,
        health=judge(facts),
        lag=lag,
        lag_ids=lag_ids,
        looked=looked,
        points=points(parts, told.days),
        last=last,
        last_success=told.success or last_success(document, parts, looked, error),
        pending=pending,
        pending_more=bool(document.get("pending_s3_files_truncated")),
        verified=told.verified,
        holder=told.holder,
        document=document,
        target=target,
        loads=loads,
        at_most=total // 60 * 60 if total is not None and total > target else None,
    )


def killed_runs(parts: Iterable[Part], known: Collection[str]) -> list[Run]:
    """The killed runs, except those known by their reports."""
    found: dict[str, dict[str, Part]] = {}
    for part in parts:
        if part.run not in known:
            found.setdefault(part.run, {}).setdefault(part.table, part)
    return [
        Run(
            run,
            run_at(run),
            False,
            None,
            max(one.seconds for one in by_table.values()),
            tuple(by_table.values()),
        )
        for run, by_table in found.items()
    ]


def run_at(run: str) -> str:
    """When a run began, from its name, `20250819_153000_ab12`; empty when that is not one."""
    try:
        begun = datetime.strptime(run[:15], "%Y%m%d_%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return ""
    return begun.strftime("%Y-%m-%dT%H:%M:%SZ")


def parts_of(runs: Iterable[Run]) -> dict[str, list[Part]]:
    """The parts of runs by their tables, in the runs' order."""
    found: dict[str, list[Part]] = {}
    for run in runs:
        for part in run.parts:
            found.setdefault(part.table, []).append(part)
    return found


def points(parts: list[Part], days: Iterable[Day]) -> tuple[float | None, ...]:
    """The lag over time, oldest first: of the runs that are known, else the worst of each day."""
    of_runs = [part.behind for part in parts[:POINTS]][::-1]
    known = [value for value in of_runs if value is not None]
    if len(known) >= 3:
        return tuple(of_runs)
    of_days = [worst_lag(day) for day in days][-POINTS:]
    return tuple(of_days) if len(of_days) > len(of_runs) else tuple(of_runs)


def worst_lag(day: Day) -> float | None:
    """The worst lag of a day, in seconds or ids."""
    return day.worst_lag_seconds if day.worst_lag_seconds is not None else day.worst_lag_ids


def last_success(document: Document, parts: list[Part], looked: str | None, error: object) -> str | None:
    """When a sync of the table last succeeded."""
    loaded = latest(document.get("last_redshift_load_time"), document.get("last_mysql_extraction_time"))
    if error is None:
        return latest(looked, loaded)
    return latest(*(part.at for part in parts if part.ok), document.get("last_redshift_load_time"))


def latest(*times: object) -> str | None:
    """The latest of some moments; unknown ones are ignored."""
    return max((str(one) for one in times if one), default=None)


def age(moment: str | None, now: datetime) -> float | None:
    """Seconds since a moment; None if it is unknown."""
    if not moment:
        return None
    try:
        return max(0.0, (now - parse_moment(moment)).total_seconds())
    except ValueError:
        return None


def worst_first(rows: Iterable[Row]) -> list[Row]:
    """The rows by health, then by how far they are behind, then by name; retired tables last."""
    return sorted(
        rows, key=lambda r: (r.retired, r.health.rank, -(r.at_most or r.lag or 0.0), -r.pending, r.name)
    )
