"""The status objects: a table's present and past activity, for dashboards, metrics and alerts.

All are derived and overwritten, and losing one does no harm: a reader treats a damaged object as missing, and
a failed write stops nothing. Nothing that moves rows reads them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import Field

from floodmark.commit.document import log
from floodmark.model.errors import FloodmarkError
from floodmark.model.json import Seconds, dump, load
from floodmark.model.position import Value
from floodmark.model.run import Counts
from floodmark.services.store.store import Store, encode

T = TypeVar("T", "Live", "VerifyResult", "Month", "DoctorResult", "NewTables")

LIVE = "status/live/"
VERIFY = "status/verify/"
DAYS = "status/days/"
DOCTOR = "status/doctor.json"
NEW_TABLES = "status/new_tables.json"
# Findings listed in a verify's status object; its counts cover all of them.
MOST_FINDINGS = 60
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

    def showing(self, stages: Iterable[LiveStage], updated_at: str) -> Live:
        """A copy with these stages, and the numbers of the current one."""
        every = tuple(stages)
        now = next((s for s in every if not s.ended), every[-1] if every else None)
        if now is None:
            return replace(self, updated_at=updated_at, stages=every)
        return replace(
            self, updated_at=updated_at, stages=every, stage=now.stage, rows=now.rows + now.underway,
            expected=now.expected, files=now.files, bytes=now.bytes,
        )  # fmt: skip


def live_path(table_name: str) -> str:
    """The path of a table's live document."""
    return f"{LIVE}{encode(table_name)}.json"


def read_live(store: Store, table_name: str, run: str) -> Live | None:
    """The progress of this run; None if there is none, or it is another run's."""
    found = parse_live(store.get(live_path(table_name)))
    return found if found is not None and (found.table_name, found.run) == (table_name, run) else None


def parse_live(data: bytes | None) -> Live | None:
    """The progress in these bytes; None if they hold anything else."""
    return _parse(Live, data)


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
class VerifyResult:
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


def verify_path(table_name: str) -> str:
    """The path of a table's last verify."""
    return f"{VERIFY}{encode(table_name)}.json"


def read_verify(store: Store, table_name: str) -> VerifyResult | None:
    """The table's last verify; None if it is missing or unreadable."""
    found = parse_verify(store.get(verify_path(table_name)))
    return found if found is not None and found.table_name == table_name else None


def parse_verify(data: bytes | None) -> VerifyResult | None:
    """The result in these bytes; None if they hold anything else."""
    return _parse(VerifyResult, data)


def write_verify(store: Store, result: VerifyResult) -> None:
    """Overwrites the table's last verify; a failed write is logged and stops nothing."""
    short = replace(result, findings=result.findings[:MOST_FINDINGS])
    put(store, verify_path(result.table_name), dump(short), "the result of verify")


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
    return _parse(DoctorResult, store.get(DOCTOR))


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

    def plus(self, other: Self) -> Self:
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


def month_of(day: str) -> str:
    """A day's month as used in the path: `202611` for `2026-11-17`."""
    return day[:7].replace("-", "")


def read_month(store: Store, table_name: str, month: str, old: float = 0.0) -> tuple[Day, ...]:
    """The totals of a month's days, unless missing `old` seconds ago; today's idle runs are still in the check object."""
    found = parse_month(store.get_recent(month_path(table_name, month), old))
    return found.days if found is not None and found.table_name == table_name else ()


def parse_month(data: bytes | None) -> Month | None:
    """The month in these bytes; None if they hold anything else."""
    return _parse(Month, data)


def add_days(store: Store, table_name: str, days: Iterable[Day], old: float = 0.0) -> None:
    """Adds days to their months; a day that can't be written is lost, and stops nothing."""
    months: dict[str, list[Day]] = {}
    for day in days:
        months.setdefault(month_of(day.day), []).append(day)
    for month, more in months.items():
        try:
            before = read_month(store, table_name, month, old)
        except FloodmarkError as error:
            log.info("%s: the daily totals could not be read: %s", table_name, error.message)
            continue
        after = Month(table_name, merged((*before, *more)))
        put(store, month_path(table_name, month), dump(after), "the daily totals")


# ---------------------------------------------------------------- reading and writing


@dataclass(frozen=True)
class NewTables:
    """Tables of the source that the configuration does not list, as a run has named them."""

    tables: tuple[str, ...] = ()


def first_named(store: Store, tables: Sequence[str], keep: bool) -> list[str]:
    """Those of these new tables that no run has named before; `keep` remembers that this one has."""
    try:
        named = (_parse(NewTables, store.get(NEW_TABLES)) or NewTables()).tables
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


def _parse(kind: type[T], data: bytes | None) -> T | None:
    try:
        return load(kind, data or b"")
    except ValueError:
        return None
