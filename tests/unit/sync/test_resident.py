"""The pace of a resident sync, and what its cycles report; no service."""

from __future__ import annotations

import json
from typing import Any

import pytest

from floodmark.cli.progress import PlainProgress
from floodmark.cli.sync import cycle_line, failing_line, recovered_line
from floodmark.model import events
from floodmark.model.errors import ConfigError, ConflictError, TransientError, UnknownOutcome
from floodmark.model.run import SyncReport, TableReport
from floodmark.model.secrets import Scrubber
from floodmark.sync.resident import Cycle, Failing, Health, Pace


def cycle(*tables: TableReport, **more: Any) -> Cycle:
    report = None if more else SyncReport("20250819_153000_ab12", 1.2, tables)
    return Cycle(3, "20250819_153000_ab12", "2025-08-19T15:30:00.000000Z", 1.2, report, **more)


def test_cycles_keep_to_the_clock_of_the_first_one_without_drift() -> None:
    pace = Pace(first=100.0, every=0.1)
    began = 100.0
    for beat in range(1, 2000):
        began = pace.next(began, began + 0.04)
        assert abs(began - (100.0 + beat * 0.1)) < 1e-9


def test_a_long_cycle_is_followed_at_once_and_then_by_the_clock() -> None:
    pace = Pace(first=0.0, every=30.0)
    assert pace.next(0.0, 47.0) == 47.0
    assert pace.next(47.0, 48.0) == 60.0


def test_a_failed_cycle_is_retried_soon_and_never_later_than_the_interval() -> None:
    pace = Pace(first=0.0, every=30.0)
    pauses = []
    for _ in range(9):
        pace = pace.after(TransientError.code)
        pauses.append(pace.next(0.5, 1.0) - 1.0)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 29.0, 29.0, 29.0, 29.0]
    assert pace.after(UnknownOutcome.code).failures == 10
    assert pace.after(0).next(0.5, 1.0) == 30.0
    # Another run's hold, or a mistake, does not go away sooner if we retry more often.
    assert pace.after(ConflictError.code).next(0.5, 1.0) == 30.0
    assert pace.after(ConfigError.code).next(0.5, 1.0) == 30.0


def test_a_long_series_of_failures_stays_within_the_interval() -> None:
    assert Pace(first=0.0, every=5.0, failures=100_000).next(0.0, 0.2) == 5.0


def test_a_cycle_is_one_line() -> None:
    busy = TableReport(
        "shop.orders",
        rows_extracted=100,
        rows_loaded=100,
        files_loaded=1,
        commits=(
            4,
            5,
        ),
    )
    idle = TableReport("shop.items")
    down = TableReport("shop.c", error=TransientError("MySQL is away", hint="wait", table="shop.c"))
    at = "2025-08-19 15:30:00 UTC  "
    assert cycle_line(cycle(idle, idle)) == f"{at}up to date, 2 tables, 1.2 s"
    said = "shop.orders: 100 rows extracted, 100 loaded"
    assert cycle_line(cycle(busy, idle)) == cycle_line(cycle(down, busy)) == f"{at}{said}, 1.2 s"


def test_the_document_of_a_cycle_has_the_tables_that_changed() -> None:
    busy = TableReport("shop.orders", commits=(4,))
    document = json.loads(json.dumps(cycle(busy, TableReport("shop.items")).as_json()))
    assert [t["table"] for t in document["tables"]] == ["shop.orders"]
    assert (document["tables_idle"], document["ok"], document["exit_code"], document["cycle"]) == (
        1,
        True,
        0,
        3,
    )


def test_only_a_configuration_error_counts_as_one() -> None:
    wrong = TableReport("shop.a", error=ConfigError("no such table"))
    away = TableReport("shop.b", error=TransientError("away"))
    assert cycle(wrong, away).mistaken
    assert not cycle(away).mistaken
    assert cycle(error=ConfigError("wrong password")).mistaken
    assert not cycle(error=TransientError("away")).mistaken


def test_a_note_of_every_cycle_is_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    watch = PlainProgress(Scrubber()).brief()
    for _ in range(3):
        watch(events.Noted("shop.orders", "no index on update_at"))
        watch(events.StageBegan("shop.orders", "extract", 10))
        watch(events.Advanced("shop.orders", "extract", 10, 1, 100))
        watch(events.StageEnded("shop.orders", "extract"))
    assert capsys.readouterr().err == "shop.orders: no index on update_at\n"


def test_a_failure_is_news_when_it_begins_and_when_it_ends() -> None:
    down = TableReport("shop.c", error=TransientError("MySQL is away", table="shop.c"))
    up, other = TableReport("shop.c"), TableReport("shop.d")
    first = Health().after(cycle(down, other))
    assert [one.table for one in first.new] == ["shop.c"] and not first.recovered
    again = first.after(cycle(down, other))
    assert not again.new and not again.recovered
    # Nothing is known of single tables when the whole cycle fails, nor when it fails again.
    whole = again.after(cycle(error=TransientError("MySQL is away")))
    assert [one.table for one in whole.new] == [None] and not whole.recovered
    assert not whole.after(cycle(error=TransientError("still"))).new
    over = whole.after(cycle(up, other))
    assert {one.table: one.cycles for one in over.recovered} == {"shop.c": 3, None: 1}
    assert not over.failing


def test_another_kind_of_failure_is_news_and_a_table_that_left_has_not_recovered() -> None:
    health = Health().after(cycle(TableReport("shop.c", error=TransientError("away"))))
    changed = health.after(cycle(TableReport("shop.c", error=ConfigError("no such table"))))
    assert [one.error.code for one in changed.new] == [2]
    left = changed.after(cycle(TableReport("shop.d")))
    assert not left.recovered and not left.failing


def test_a_failure_and_its_end_are_each_one_line() -> None:
    error = TransientError("MySQL is\naway", hint="wait", table="shop.c")
    said = failing_line("2025-08-19T15:30:00.000000Z", error)
    assert said.startswith("2025-08-19 15:30:00 UTC  failed, exit code 4: shop.c: MySQL is away; wait (")
    since = "2025-08-19T15:30:00.000000Z"
    at = "2025-08-19T15:36:03.000000Z"
    one = Failing("shop.c", error, since, 12)
    over = "after 12 failed cycles in 6 min 3 s"
    assert recovered_line(at, [one]) == f"2025-08-19 15:36:03 UTC  recovered: shop.c, {over}"
    assert recovered_line(at, [one, one]) == f"2025-08-19 15:36:03 UTC  recovered: 2 tables, {over}"
    assert (
        recovered_line(at, [Failing(None, error, since, 12)]) == f"2025-08-19 15:36:03 UTC  recovered: {over}"
    )
