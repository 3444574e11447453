"""The status objects: written, read back, and treated as absent if damaged."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from floodmark.config.load import StoreSpec
from floodmark.log.document import StageFailure
from floodmark.log.status import (
    Day,
    LastVerify,
    Live,
    Month,
    TableStatus,
    add_days,
    first_named,
    live_path,
    merged,
    month_path,
    parse,
    read_live,
    read_status,
    status_path,
    write_run,
    write_verify,
)
from floodmark.model.errors import TransientError, VerificationError
from floodmark.model.lineage import ColumnChange, column_changes
from floodmark.model.results import Watermark
from floodmark.model.run import Lag, TableReport
from floodmark.store.store import Store
from tests.support.described import changed
from tests.support.samples import RUN, TABLE
from tests.support.watermark_copies import Counting

NOW = "2026-11-17T10:00:00.000000Z"
LATER = "2026-11-17T11:00:00.000000Z"
TOMORROW = "2026-11-18T00:00:01.000000Z"


@pytest.fixture
def store(tmp_path: Path) -> Counting:
    return Counting(StoreSpec(url=str(tmp_path)))


def idle(**more: Any) -> TableReport:
    return TableReport("s.t", watermark=Watermark.of({"pending_s3_files": []}), **more)


def busy(rows: int, **more: Any) -> TableReport:
    return TableReport(
        "s.t", rows_extracted=rows, rows_loaded=rows, bytes_written=rows * 10, files_written=1, commits=(1,),
        seconds=2.5, watermark=Watermark.of({"pending_s3_files": []}), **more,
    )  # fmt: skip


def days(store: Store, month: str) -> tuple[Day, ...]:
    found = parse(Month, store.get(month_path("s.t", month)), "s.t")
    return found.days if found else ()


def checked(
    before: TableStatus | None, report: TableReport, run: str, now: str, looked: str | None = None
) -> tuple[TableStatus, tuple[Day, ...]]:
    return (before or TableStatus("s.t")).after_run(report, run, now, looked=looked)


def test_damaged_status_objects_count_as_missing(store: Store) -> None:
    for path in (live_path("s.t"), status_path("s.t")):
        for data in (
            b"",
            b"{",
            b"[]",
            b'{"table_name": 7}',
            b"\xff\xfe",
            b'{"table_name": "s.t", "days": [1]}',
        ):
            store.put(path, data)
            assert read_live(store, "s.t", RUN) is None
            assert data.startswith(b'{"table_name": "s.t"') or read_status(store, "s.t") is None
            assert parse(Live, data) is None and parse(Month, data, "s.t") is None
            assert parse(LastVerify, data) is None


def test_fields_of_a_later_version_are_ignored(store: Store) -> None:
    store.put(
        month_path("s.t", "202611"), b'{"table_name":"s.t","days":[{"day":"2026-11-17","x":1}],"new":{}}'
    )
    assert days(store, "202611") == (Day("2026-11-17"),)


def test_an_idle_sync_costs_one_read_and_one_write(store: Counting) -> None:
    write_run(store, idle(), RUN, looked=NOW)
    for requests in (store.reads, store.writes, store.lists, store.listed_folders):
        requests.clear()
    write_run(store, idle(), RUN, looked=NOW)
    assert (store.reads, store.writes) == ([status_path("s.t")], [status_path("s.t")])
    assert not store.lists and not store.listed_folders


class Interleaved(Counting):
    """A store in which another writer comes between a read and its write, once."""

    between: Callable[[], None] | None = None

    def swap(self, path: str, data: bytes, tag: str | None) -> bool:
        other, self.between = self.between, None
        if other is not None:
            other()
        return super().swap(path, data, tag)


def test_a_run_whose_write_was_not_answered_counts_once(tmp_path: Path) -> None:
    store = Unanswered(StoreSpec(url=str(tmp_path)))
    write_run(store, busy(7), RUN)
    write_run(store, busy(7), "r2")
    status = read_status(store, "s.t")
    assert status is not None and (status.run, status.total.runs) == ("r2", 2)
    (day,) = days(store, (status.at or "")[:7].replace("-", ""))
    assert (day.runs, day.rows_extracted) == (2, 14)


class Unanswered(Counting):
    """A store that writes a status and then, when the client tries again, finds it changed."""

    def swap(self, path: str, data: bytes, tag: str | None) -> bool:
        return super().swap(path, data, tag) and path != status_path("s.t")


@pytest.mark.parametrize("begun", [False, True])
def test_a_verify_beside_a_sync_loses_nothing(tmp_path: Path, begun: bool) -> None:
    store = Interleaved(StoreSpec(url=str(tmp_path)))
    if begun:
        write_run(store, idle(), RUN)
    result = LastVerify("s.t", RUN, NOW, 1.0, True)
    store.between = lambda: write_verify(store, result)
    write_run(store, busy(7), "r2")
    store.between = lambda: write_run(store, idle(), "r3")
    write_verify(store, replace(result, at=LATER))
    status = read_status(store, "s.t")
    assert status is not None and status.verify == replace(result, at=LATER)
    assert (status.run, status.total.runs, status.total.rows_extracted) == ("r3", 2 + begun, 7)
    (day,) = days(store, (status.at or "")[:7].replace("-", ""))
    assert (day.runs, day.idle, day.rows_extracted) == (1 + begun, int(begun), 7)


def test_an_idle_run_costs_one_write_and_a_busy_one_includes_the_idle_ones(store: Counting) -> None:
    check, days = checked(None, idle(), RUN, NOW, looked=NOW)
    assert days == () and check.today is not None and (check.today.runs, check.today.idle) == (1, 1)
    check, days = checked(check, idle(), RUN, LATER, looked=LATER)
    assert days == () and check.total.runs == 2
    check, days = checked(check, busy(7), RUN, LATER, looked=LATER)
    assert check.today is None and [(d.day, d.runs, d.idle, d.rows_extracted) for d in days] == [
        ("2026-11-17", 3, 2, 7)
    ]
    assert check.total.exit_codes == {"0": 3} and check.work is not None and check.work.rows_loaded == 7


def test_idle_runs_of_yesterday_go_into_their_month_with_the_first_run_of_today() -> None:
    check, _ = checked(None, idle(), RUN, NOW, looked=NOW)
    check, days = checked(check, idle(), RUN, TOMORROW, looked=TOMORROW)
    assert [d.day for d in days] == ["2026-11-17"]
    assert check.today is not None and (check.today.day, check.today.runs) == ("2026-11-18", 1)


def test_a_failure_keeps_the_time_of_the_last_success() -> None:
    good, _ = checked(None, busy(5, lag_after=Lag(seconds=1.5)), RUN, NOW, looked=NOW)
    assert (good.success_at, good.caught_up_at, good.lag) == (NOW, NOW, Lag(seconds=1.5))
    away = TableReport("s.t", error=TransientError("MySQL is away"))
    bad, days = checked(good, away, "r2", LATER)
    assert (bad.exit_code, bad.error, bad.at) == (4, "MySQL is away", LATER)
    assert (bad.success_at, bad.caught_up_at, bad.lag) == (NOW, NOW, Lag(seconds=1.5))
    assert days[0].failures == 1 and bad.total.exit_codes == {"0": 1, "4": 1}


def test_the_time_since_when_every_run_fails_is_kept_until_one_succeeds() -> None:
    away = TableReport("s.t", error=TransientError("MySQL is away"))
    check, _ = checked(None, away, RUN, NOW)
    check, _ = checked(check, away, RUN, LATER)
    assert check.failing_since == NOW
    assert checked(check, idle(), RUN, LATER, looked=LATER)[0].failing_since is None


def test_differences_do_not_hide_that_rows_were_copied() -> None:
    report = busy(5, error=VerificationError("source and warehouse don't agree"))
    check, _ = checked(None, report, RUN, NOW, looked=NOW)
    assert (check.exit_code, check.success_at, check.caught_up_at) == (7, None, NOW)


def test_the_time_since_when_files_are_pending_is_kept_until_none_are() -> None:
    waiting = replace(busy(5), watermark=Watermark.of({"pending_s3_files": ["s3://b/f"]}))
    check, _ = checked(None, waiting, RUN, NOW)
    check, _ = checked(check, waiting, RUN, LATER)
    assert check.pending_since == NOW
    unknown, _ = checked(check, TableReport("s.t", error=TransientError("away")), RUN, LATER)
    assert unknown.pending_since == NOW
    assert checked(unknown, idle(), RUN, LATER)[0].pending_since is None


def test_the_last_change_of_columns_is_kept() -> None:
    change = (ColumnChange("added", "note", after="text"),)
    check, _ = checked(None, busy(1, schema_changes=change), RUN, NOW)
    check, _ = checked(check, idle(), RUN, LATER)
    assert (check.schema_at, check.schema_changes) == (NOW, change)


def test_a_status_survives_its_way_through_the_store(store: Counting) -> None:
    report = busy(5, lag_after=Lag(ids=3), stage_seconds={"extract": 1.0, "load": 0.5})
    write_run(store, report, RUN, looked=NOW, failure=StageFailure("extract", "away", NOW))
    status = read_status(store, "s.t")
    assert status is not None and status.at is not None and read_status(store, "s.other") is None
    again, _ = TableStatus("s.t").after_run(
        report, RUN, status.at, looked=NOW, failure=StageFailure("extract", "away", NOW)
    )
    assert status == again and status.work is not None and status.work.stage_seconds["load"] == 0.5
    store.read_only = True
    write_run(store, report, RUN)  # stops nothing


def test_days_are_added_to_their_months(store: Counting) -> None:
    one = Day("2026-11-30", runs=1, rows_loaded=5, worst_lag_seconds=3.0, exit_codes={"0": 1})
    two = Day("2026-12-01", runs=1, failures=1, exit_codes={"4": 1})
    add_days(store, "s.t", (one, two))
    add_days(store, "s.t", (replace(one, worst_lag_seconds=None, exit_codes={"6": 1}),))
    (november,) = days(store, "202611")
    assert (november.runs, november.rows_loaded, november.worst_lag_seconds) == (2, 10, 3.0)
    assert november.exit_codes == {"0": 1, "6": 1} and days(store, "202612") == (two,)
    store.read_only = True
    add_days(store, "s.t", (one,))  # stops nothing
    assert merged((two, one)) == (one, two)


def test_the_last_verify_is_kept_with_its_first_findings(store: Counting) -> None:
    found = tuple({"kind": "missing_row", "table": "s.t", "detail": str(n)} for n in range(100))
    result = LastVerify(
        "s.t", RUN, NOW, 1.5, False, low=("2026-01-01", 7), high=(9,), missing=100, findings=found
    )
    write_verify(store, result)
    status = read_status(store, "s.t")
    assert status is not None and (read := status.verify) is not None and (read.differences, len(read.findings), read.low) == (
        100, 60, ("2026-01-01", 7)
    )  # fmt: skip
    assert LastVerify("s.t", RUN, NOW, 1.5, False).differences == 1
    assert LastVerify("s.t", RUN, NOW, 1.5, True).differences == 0
    store.read_only = True
    write_verify(store, result)  # stops nothing


def test_kinds_of_column_changes_are_distinguished() -> None:
    first, *rest = TABLE.columns
    added = replace(first, name="Extra", type="text")
    after = changed(TABLE, columns=(replace(first, type="bigint unsigned"), *rest[:-1], added))
    assert [(c.kind, c.column) for c in column_changes(TABLE, after)] == [
        ("changed", first.name), ("added", "Extra"), ("dropped", rest[-1].name)
    ]  # fmt: skip
    assert column_changes(None, TABLE) == column_changes(TABLE, TABLE) == ()
    assert str(column_changes(TABLE, after)[1]) == "Extra was added (text)"


def test_a_column_that_the_source_still_has_is_excluded_and_not_dropped() -> None:
    *rest, last = TABLE.columns
    every = tuple((c.name, c.type) for c in TABLE.columns)
    without = changed(TABLE, columns=tuple(rest), layout=every)
    assert [(c.kind, c.column) for c in column_changes(TABLE, without)] == [("excluded", last.name)]
    assert [(c.kind, c.column) for c in column_changes(without, TABLE)] == [("included", last.name)]
    other = replace(last, name="Other")
    renamed = changed(TABLE, columns=(*rest, other), renamed=((last.name, "Other"),))
    (change,) = column_changes(TABLE, renamed)
    assert str(change) == f"{last.name} was renamed to Other"


def test_a_list_of_new_tables_that_can_not_be_read_fails_nothing_and_a_later_run_names_them(
    store: Store, tmp_path: Path
) -> None:
    lost = tmp_path / "status" / "new_tables.json"
    lost.mkdir(parents=True)
    assert first_named(store, ["s.new"], keep=True) == []
    lost.rmdir()
    assert first_named(store, ["s.new"], keep=True) == ["s.new"]
    assert first_named(store, ["s.new"], keep=True) == []
