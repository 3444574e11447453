"""The status objects: a table's present and past activity, for dashboards, metrics and alerts.

One object says how a table is (`TableStatus`: a fold of its runs and verifies), one what is happening to it right now
(`Live`), and one for each month what its days were like. All are derived, and losing one does no harm: a reader treats a
damaged object as missing, and a failed write stops nothing. Nothing that moves rows reads them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field

from floodmark.log.document import StageFailure, log
from floodmark.model.errors import FloodmarkError, exit_code
from floodmark.model.json import Seconds, dump, load
from floodmark.model.lineage import ColumnChange
from floodmark.model.position import Value
from floodmark.model.run import Counts, Lag, TableReport
from floodmark.model.secrets import masked
from floodmark.model.times import stamp
from floodmark.store.store import Store, encode

Scrub = Callable[[str], str]
MOST_TEXT = 2000  # characters of a message
MOST_NOTES = 50
NO_LAG = Lag()


@dataclass(frozen=True)
class ErrorText:
    """Why something failed, and what to do."""

    message: str
    code: int = 1
    hint: str | None = None


@dataclass(frozen=True)
class FindingText:
    """A finding of a run, as far as it is shown."""

    kind: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class TableOutcome(Counts):
    """One table's part of one run. There are many: a week of runs has them for every table."""

    table: str = ""
    run: str = ""
    at: str = ""  # when the run began; as the last work in a status, when it ended
    exit_code: int | None = 0  # None: it was killed
    seconds: Seconds = 0.0
    stage_seconds: dict[str, Seconds] = field(default_factory=dict)
    lag_before: Lag | None = None
    lag_after: Lag | None = None
    strategy: str | None = None
    error: ErrorText | None = None
    notes: tuple[str, ...] = ()
    findings: tuple[FindingText, ...] = ()

    @classmethod
    def of(cls, report: TableReport, run: str, at: str) -> TableOutcome:
        """A run's numbers, without its texts."""
        stages = {stage: round(seconds, 3) for stage, seconds in report.stage_seconds.items()}
        return cls(report.table, run, at, report.exit_code, round(report.seconds, 3), stages).plus(report)

    @property
    def ok(self) -> bool:
        return self.exit_code == 0

    @property
    def lag(self) -> Lag:
        """How far the table was behind when the run ended, or else when it began."""
        return self.lag_after or self.lag_before or NO_LAG

    @property
    def behind(self) -> float | None:
        """The largest lag of the table that the run knows of, in seconds or ids."""
        before = self.lag_before or NO_LAG
        values = (before.seconds, before.ids, self.lag.seconds, self.lag.ids)
        return next((value for value in values if value is not None), None)

    @property
    def idle(self) -> bool:
        return self.ok and not (
            self.rows_extracted or self.rows_reread or self.rows_loaded or self.rows_deleted
        )

    def masked(self, scrub: Scrub) -> TableOutcome:
        """The same without secrets, and with the first notes and findings only."""
        if not (self.error or self.notes or self.findings):
            return self
        return replace(
            self,
            error=masked(self.error, scrub, MOST_TEXT),
            notes=masked(self.notes[:MOST_NOTES], scrub, MOST_TEXT),
            findings=masked(self.findings[:MOST_NOTES], scrub, MOST_TEXT),
        )


@dataclass(frozen=True)
class RunOutcome:
    """One run, from its report; a killed run, from what it left behind."""

    run: str
    ok: bool = False
    seconds: Seconds = 0.0
    tables: tuple[TableOutcome, ...] = ()
    error: ErrorText | None = None  # why the run failed as a whole

    def __post_init__(self) -> None:
        at = self.at
        for one in self.tables:  # a report, from which they were just made, names the run once
            object.__setattr__(one, "run", self.run)
            object.__setattr__(one, "at", at)

    @property
    def at(self) -> str:
        """When it began."""
        return run_at(self.run)

    @property
    def exit_code(self) -> int | None:
        """None: it was killed."""
        if self.error is not None:
            return self.error.code
        codes = [table.exit_code for table in self.tables]
        return None if None in codes else exit_code([code or 0 for code in codes])

    @property
    def why(self) -> str | None:
        """Why it failed: as a whole, or the first table that failed as the run did."""
        if self.error is not None or self.ok:
            return self.error.message if self.error else None
        code = self.exit_code
        return next((t.error.message for t in self.tables if t.error and t.exit_code == code), None)


def parse_run(data: bytes | None, scrub: Scrub) -> RunOutcome | None:
    """The run's report in these bytes, without secrets; None if they hold anything else."""
    try:
        found = load(RunOutcome, data or b"")
    except ValueError:
        return None
    tables = tuple(one.masked(scrub) for one in found.tables)
    return replace(found, tables=tables, error=masked(found.error, scrub, MOST_TEXT))


def run_at(run: str) -> str:
    """When a run began, from its name, `20250819_153000_ab12`; empty when that is not one."""
    try:
        begun = datetime.strptime(run[:15], "%Y%m%d_%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return ""
    return begun.strftime("%Y-%m-%dT%H:%M:%SZ")


T = TypeVar("T")

TABLES = "status/tables/"
LIVE = "status/live/"
DAYS = "status/days/"
DOCTOR = "status/doctor.json"
NEW_TABLES = "status/new_tables.json"
CHECKED = "status/checked/"
# How often a write is tried again because another writer came first.
ATTEMPTS = 5
MOST_KILLED = 5
# A whole number that is not even a float.
_ABSURD = re.compile(rb"[:\[,]-?\d{300}")
# Findings listed in a verify's status object; its counts cover all of them.
MOST_FINDINGS = 60
# Bytes of the list of checked tables: a name each.
MOST_CHECKED = 64 << 20
# Failures and warnings listed in doctor's; its counts cover all checks.
MOST_CHECKS = 200


# ---------------------------------------------------------------- live


@dataclass(frozen=True)
class LiveStage:
    """The progress of one stage of a running sync; extraction and load run in parallel."""

    stage: str
    since: str
    rows: int = 0
    underway: int = 0  # rows of tasks still running
    expected: int | None = None  # rows, an estimate
    files: int = 0
    bytes: int = 0
    ended: bool = False


@dataclass(frozen=True)
class Live:
    """The progress of the run that holds a table; valid only while that run's lease is alive."""

    table_name: str
    run: str
    host: str
    pid: int
    since: str  # when the run began work on the table
    updated_at: str
    stage: str | None = None  # the first still running; its numbers follow, rows including those under way
    rows: int = 0
    expected: int | None = None
    files: int = 0
    bytes: int = 0
    lag_seconds: Seconds | None = None  # behind the source, as measured at `lag_at`
    lag_ids: int | None = None
    lag_at: str | None = None
    waits_for: str | None = None  # what the table is waiting for: settling, open_work, turn, warehouse, lock
    waits_for_whom: str | None = None
    stages: tuple[LiveStage, ...] = ()


def live_path(table_name: str) -> str:
    """The path of a table's live document."""
    return f"{LIVE}{encode(table_name)}.json"


def read_live(store: Store, table_name: str, run: str) -> Live | None:
    """The progress of this run; None if there is none, or it is another run's."""
    found = parse(Live, store.get(live_path(table_name)))
    return found if found is not None and (found.table_name, found.run) == (table_name, run) else None


@dataclass(frozen=True)
class Killed:
    """A run that was killed, as found by the run that took over the table."""

    run: str
    since: str | None  # when it claimed the table
    until: str | None  # when its lease ended; it was alive up to a minute before
    host: str | None = None
    pid: int | None = None
    stage: str | None = None
    rows: int = 0  # that it had committed


# ---------------------------------------------------------------- verify


@dataclass(frozen=True)
class LastVerify:
    """The result of a table's last verify. A verify that could not compare writes none."""

    table_name: str
    run: str
    at: str  # when it ended
    seconds: Seconds
    ok: bool
    by: Literal["verify", "repair", "sync"] = "verify"  # sync: only what the run loaded (--verify-data)
    low: tuple[Value, ...] | None = None  # rows after this position; None: from the first
    high: tuple[Value, ...] | None = None  # and up to this one; None: all
    rows_source: int | None = None
    rows_warehouse: int | None = None
    rows_left_out: int | None = None
    missing: int = 0
    extra: int = 0
    different: int = 0
    repaired: int | None = None
    findings: tuple[dict[str, Any], ...] = ()  # the first ones

    @property
    def differences(self) -> int:
        """Number of differing rows; at least 1 if something differs but no row can be named."""
        return max(self.missing + self.extra + self.different, 0 if self.ok else 1)


def write_verify(store: Store, result: LastVerify) -> None:
    """Adds a verify to the table's status; a failed write is logged and stops nothing."""
    short = replace(result, findings=result.findings[:MOST_FINDINGS])
    _update_status(store, result.table_name, lambda status: replace(status, verify=short))


# ---------------------------------------------------------------- doctor


@dataclass(frozen=True)
class DoctorResult:
    """The last result of `doctor`: how many checks of each kind, and those that were not ok."""

    at: str
    host: str
    ok: bool
    seconds: Seconds
    counts: dict[str, int]
    checks: tuple[dict[str, str | None], ...] = ()  # as `doctor --json` has them
    more: int = 0  # that are not listed
    tables: tuple[str, ...] = ()  # only these were checked; empty: all


def read_doctor(store: Store) -> DoctorResult | None:
    """The last result; None if it is missing or unreadable."""
    return parse(DoctorResult, store.get(DOCTOR))


def write_doctor(store: Store, result: DoctorResult) -> None:
    """Overwrites the last result; a failed write is logged and stops nothing."""
    bad = [one for one in result.checks if one["status"] in ("failure", "warning")]
    bad.sort(key=lambda one: one["status"] != "failure")
    short = replace(result, checks=tuple(bad[:MOST_CHECKS]), more=max(0, len(bad) - MOST_CHECKS))
    put(store, DOCTOR, dump(short), "doctor's result")


# ---------------------------------------------------------------- days


@dataclass(frozen=True)
class Day(Counts):
    """Totals of one table's runs that ended on one day (UTC), or over several days."""

    day: str = ""  # 2026-11-17; empty: all days together
    runs: int = 0
    idle: int = 0  # runs with nothing to do
    failures: int = 0  # runs with an exit code other than 0
    files_written: Annotated[int, Field(alias="files")] = field(default=0, kw_only=True)  # as stored
    bytes_written: Annotated[int, Field(alias="bytes")] = field(default=0, kw_only=True)
    seconds: Seconds = 0.0
    worst_lag_seconds: Seconds | None = None  # the lag when a run began
    worst_lag_ids: int | None = None
    exit_codes: dict[str, int] = field(default_factory=dict)  # runs by exit code

    def plus(self, other: Self) -> Self:  # type: ignore[override]
        """Both together, under this one's date."""
        return replace(
            super().plus(other),
            runs=self.runs + other.runs,
            idle=self.idle + other.idle,
            failures=self.failures + other.failures,
            seconds=round(self.seconds + other.seconds, 3),
            worst_lag_seconds=_worse(self.worst_lag_seconds, other.worst_lag_seconds),
            worst_lag_ids=_worse(self.worst_lag_ids, other.worst_lag_ids),
            exit_codes=dict(sorted((Counter(self.exit_codes) + Counter(other.exit_codes)).items())),
        )


N = TypeVar("N", int, float)


def _worse(one: N | None, other: N | None) -> N | None:
    return max((x for x in (one, other) if x is not None), default=None)


@dataclass(frozen=True)
class Month:
    """One table's days of one month, in order."""

    table_name: str
    days: tuple[Day, ...] = ()


def merged(days: Iterable[Day]) -> tuple[Day, ...]:
    """The days with one entry per date, in order."""
    found: dict[str, Day] = {}
    for day in days:
        found[day.day] = found[day.day].plus(day) if day.day in found else day
    return tuple(found[date] for date in sorted(found))


def month_path(table_name: str, month: str) -> str:
    """The path of a table's days of a month (`202611`)."""
    return f"{DAYS}{month}/{encode(table_name)}.json"


def add_days(store: Store, table_name: str, days: Iterable[Day]) -> None:
    """Adds days to their months; a day that can't be written is lost, and stops nothing."""
    months: dict[str, list[Day]] = {}
    for day in days:
        months.setdefault(day.day[:7].replace("-", ""), []).append(day)
    for month, more in months.items():

        def added(before: Month | None, more: list[Day] = more) -> Month:
            return Month(table_name, merged((*(before.days if before else ()), *more)))

        update(store, month_path(table_name, month), Month, added, "the daily totals")


# ---------------------------------------------------------------- how a table is


@dataclass(frozen=True)
class TableStatus:
    """How a table is: the fold of its runs and verifies."""

    table_name: str
    run: str = ""  # the last one
    last_check_time: str | None = None  # when a sync last looked at the source, changes or not; None: never
    failure: StageFailure | None = None  # of a table without a log; else the published copies have it
    at: str | None = None  # when the last run ended; None: written by an earlier version
    exit_code: int | None = None
    error: str | None = None  # why it failed
    success_at: str | None = None  # when a run last ended with exit code 0
    caught_up_at: str | None = None  # when a run last read and committed everything it set out to read
    lag: Lag | None = None  # how far behind the source the table was then
    failing_since: str | None = None  # since when every run has failed; None: the last one did not
    pending_since: str | None = None  # since when files have been waiting to load, as far as runs saw it
    work: TableOutcome | None = None  # the last run that changed something, or tried to
    schema_at: str | None = None  # when a column change was last seen; the changes follow
    schema_changes: tuple[ColumnChange, ...] = ()
    total: Day = field(default_factory=Day)  # all runs since this object was created
    today: Day | None = None  # one day's idle runs, not yet added to the month's object
    killed: tuple[Killed, ...] = ()  # killed runs, oldest first
    complete_at: Seconds | None = None  # all that was committed before is extracted
    verify: LastVerify | None = None  # the last one

    def after_run(
        self,
        report: TableReport,
        run: str,
        now: str,
        *,
        looked: str | None = None,
        failure: StageFailure | None = None,
        killed: Killed | None = None,
    ) -> tuple[TableStatus, tuple[Day, ...]]:
        """The status after a run, and the days to add to their months.

        A day's idle runs accumulate in the status, so that each costs only one write.
        """
        code = report.exit_code
        outcome = TableOutcome.of(report, run, now)
        day = _day_of(report, outcome)
        gathered = [day]
        if self.today is not None:
            gathered = [self.today.plus(day)] if self.today.day == day.day else [self.today, day]
        # A run that did work goes into the month at once, together with the idle runs accumulated so far.
        kept = gathered.pop() if report.idle else None
        caught_up = looked is not None and code in (0, 7)
        pending_since = self.pending_since  # unchanged if the run could not tell
        if report.watermark is not None:
            pending_since = (pending_since or now) if report.watermark.pending_s3_files else None
        after = replace(
            self,
            run=run,
            last_check_time=looked or self.last_check_time,
            failure=failure,
            at=now,
            exit_code=code,
            error=report.error.message if report.error else None,
            success_at=now if code == 0 else self.success_at,
            caught_up_at=looked if caught_up else self.caught_up_at,
            lag=report.lag_after if caught_up else self.lag,
            failing_since=None if code in (0, 7) else self.failing_since or now,
            pending_since=pending_since,
            work=self.work if report.idle else outcome,
            schema_at=now if report.schema_changes else self.schema_at,
            schema_changes=report.schema_changes or self.schema_changes,
            total=replace(self.total.plus(day), worst_lag_seconds=None, worst_lag_ids=None),
            today=kept,
            killed=(*self.killed, killed)[-MOST_KILLED:] if killed else self.killed,
            complete_at=report.complete_at if caught_up and report.complete_at else self.complete_at,
        )
        return after, tuple(gathered)

    def masked(self, scrub: Scrub) -> TableStatus:
        """The same without secrets in its texts, and with the last work at the time when its run began."""
        verify, work = self.verify, self.work
        return replace(
            self,
            error=masked(self.error, scrub),
            failure=masked(self.failure, scrub),
            verify=replace(verify, findings=masked(verify.findings, scrub)) if verify else None,
            work=replace(work, table=self.table_name, at=run_at(work.run) or work.at) if work else None,
        )


def _day_of(report: TableReport, outcome: TableOutcome) -> Day:
    """One run as its contribution to its day."""
    lag = report.lag_before or Lag()
    return Day(
        outcome.at[:10],
        runs=1,
        idle=int(report.idle),
        failures=int(report.exit_code != 0),
        seconds=outcome.seconds,
        worst_lag_seconds=lag.seconds,
        worst_lag_ids=lag.ids,
        exit_codes={str(report.exit_code): 1},
        **outcome.counts(),
    )


def status_path(table_name: str) -> str:
    """The path of a table's status."""
    return f"{TABLES}{encode(table_name)}.json"


def read_status(store: Store, table_name: str, checked: CheckedTables | None = None) -> TableStatus | None:
    """The table's status; None if it is missing or unreadable. `checked`: what `read_checked` says, if it is known."""
    found = parse(TableStatus, store.get(status_path(table_name)), table_name)
    return None if found is None else (checked or read_checked(store)).on(found)


@dataclass(frozen=True)
class CheckedTables:
    """The tables that a run has found untouched without reading them: one object, in place of a status of each."""

    run: str = ""
    at: str = ""  # when the run ended
    looked: str = ""  # when the source was looked at
    complete_at: Seconds | None = None  # all that was committed before is extracted
    tables: tuple[str, ...] = ()

    @cached_property
    def _names(self) -> frozenset[str]:
        return frozenset(self.tables)

    def on(self, status: TableStatus) -> TableStatus:
        """A table's status with this check, unless a later run says something else."""
        if status.table_name not in self._names or status.exit_code != 0 or not (status.at or "") <= self.at:
            return status
        return replace(
            status, run=self.run, at=self.at, last_check_time=self.looked, success_at=self.at,
            caught_up_at=self.looked, lag=Lag(seconds=0.0), complete_at=self.complete_at or status.complete_at,
        )  # fmt: skip


def read_checked(store: Store) -> CheckedTables:
    """The last check of untouched tables; an empty one if there is none."""
    return parse(CheckedTables, store.get(f"{CHECKED}binlog.json", MOST_CHECKED)) or CheckedTables()


def write_checked(store: Store, checked: CheckedTables) -> None:
    """Overwrites the last check; a failed write is logged and stops nothing."""
    put(store, f"{CHECKED}binlog.json", dump(checked), "the check of untouched tables")


def write_run(
    store: Store,
    report: TableReport,
    run: str,
    *,
    looked: str | None = None,
    failure: StageFailure | None = None,
    killed: Killed | None = None,
) -> None:
    """Adds a run to the table's status and to its days; failing to read or write them stops nothing."""
    now, days = stamp(), list[Day]()

    def change(status: TableStatus) -> TableStatus:
        if (status.run, status.at) == (run, now):
            return status  # written before: only the answer was lost
        after, days[:] = status.after_run(report, run, now, looked=looked, failure=failure, killed=killed)
        return after

    if _update_status(store, report.table, change):
        add_days(store, report.table, days)


def _update_status(store: Store, table_name: str, change: Callable[[TableStatus], TableStatus]) -> bool:
    """Changes a table's status."""

    def after(status: TableStatus | None) -> TableStatus:
        ours = status is not None and status.table_name == table_name
        return change(status if status is not None and ours else TableStatus(table_name))

    return update(store, status_path(table_name), TableStatus, after, "the status")


# ---------------------------------------------------------------- reading and writing


@dataclass(frozen=True)
class NewTables:
    """Tables of the source that the configuration does not list, as a run has named them."""

    tables: tuple[str, ...] = ()


def first_named(store: Store, tables: Sequence[str], keep: bool) -> list[str]:
    """Those of these new tables that no run has named before; `keep` remembers that this one has."""
    try:
        named = (parse(NewTables, store.get(NEW_TABLES)) or NewTables()).tables
    except FloodmarkError as error:
        log.info("the list of new tables could not be read: %s", error.message)
        return []  # a later run names them
    if keep and set(named) != set(tables):
        put(store, NEW_TABLES, dump(NewTables(tuple(tables))), "the list of new tables")
    return [name for name in tables if name not in named]


def put(store: Store, path: str, data: bytes, what: str) -> bool:
    """Writes a status object; returns whether that succeeded."""
    try:
        store.put(path, data)
    except FloodmarkError as error:
        log.info("%s could not be written to %s: %s", what, path, error.message)
        return False
    return True


def update(
    store: Store,
    path: str,
    kind: type[T],
    change: Callable[[T | None], T | None],
    what: str,
) -> bool:
    """Reads a status object, changes it and writes it back, again if another writer came first; whether that succeeded.

    Nothing is written if the change returns None, or what was there.
    """
    try:
        for _ in range(ATTEMPTS):
            data, tag = store.tagged(path)
            before = parse(kind, data)
            after = change(before)
            if after is None or after == before or store.swap(path, dump(after), tag):
                return True
            store = store.recently(0.0)
        log.info("%s could not be written to %s: others keep writing it", what, path)
    except FloodmarkError as error:
        log.info("%s could not be written to %s: %s", what, path, error.message)
    return False


def parse(kind: type[T], data: bytes | None, table_name: str | None = None) -> T | None:
    """The status object in these bytes; None if they hold anything else, another table's, or numbers that none has."""
    if data is None or _ABSURD.search(data):
        return None
    try:
        found = load(kind, data)
    except ValueError:
        return None
    return found if table_name is None or getattr(found, "table_name", None) == table_name else None
