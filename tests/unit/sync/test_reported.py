"""Which runs of a resident sync leave a report."""

from __future__ import annotations

from floodmark.model.errors import ConfigError, FloodmarkError, TransientError
from floodmark.model.run import SyncReport, TableReport
from floodmark.sync.run import Reported


def report(*tables: TableReport) -> SyncReport:
    return SyncReport("r", 1.0, tables)


def failed(table: str, error: FloodmarkError) -> TableReport:
    return TableReport(table, error=error)


def test_a_table_that_keeps_failing_is_reported_once_an_hour_whatever_its_message() -> None:
    known = Reported()
    times = [
        now
        for now in range(0, 7300, 30)
        if known.wanted(
            report(failed("s.a", TransientError(f"away for {now} s")), TableReport("s.b")), None, now
        )
    ]
    assert times == [0, 3600, 7200]


def test_another_table_another_code_and_work_that_was_done_are_reported() -> None:
    known, away = Reported(), TransientError("away")
    assert known.wanted(report(failed("s.a", away)), None, 0)
    assert known.wanted(report(failed("s.a", ConfigError("no key"))), None, 30)
    assert known.wanted(report(failed("s.a", away), failed("s.b", away)), None, 60)
    assert not known.wanted(report(failed("s.b", away)), None, 90)
    assert known.wanted(report(failed("s.a", away), TableReport("s.c", commits=(7,))), None, 120)
    assert known.wanted(report(), away, 150) and not known.wanted(report(), away, 180)
    assert known.wanted(
        report(TableReport("s.a")), None, 210
    )  # idle: whoever writes reports leaves that one out


def test_a_failure_after_a_success_is_reported_at_once() -> None:
    known, away = Reported(), TransientError("away")
    outage = report(failed("s.a", away), TableReport("s.b"))
    assert known.wanted(outage, None, 0) and not known.wanted(outage, None, 30)
    known.wanted(report(TableReport("s.a"), TableReport("s.b")), None, 60)
    assert known.wanted(outage, None, 90) and not known.wanted(outage, None, 120)

    assert known.wanted(report(), away, 150) and not known.wanted(report(), away, 180)
    assert not known.wanted(outage, None, 210)  # the run as a whole is well again, the table is not
    assert known.wanted(report(), away, 240)


def test_a_table_that_is_not_in_a_run_has_not_recovered() -> None:
    known, away = Reported(), TransientError("away")
    assert known.wanted(report(failed("s.a", away)), None, 0)
    known.wanted(report(TableReport("s.b")), None, 30)
    assert not known.wanted(report(failed("s.a", away)), None, 60)
