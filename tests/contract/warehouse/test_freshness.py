"""`floodmark_freshness`: one row per target, whichever warehouse, that never goes back."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime

from floodmark.load.protocol import Freshness
from tests.support.warehouse_loads import Place


def at(minute: int) -> datetime:
    return datetime(2025, 8, 19, 15, minute, 0, 123456, tzinfo=UTC)


ORDERS = Freshness("orders", "shop.orders", at(10), at(11), "2025-08-19T15:09:59", 42, "20250819_151100_ab12")
ODD = Freshness("it's", "shop.it's", at(10), at(11), None, None, "20250819_151100_ab12")
QUESTION = "SELECT target, source_table, as_of, checked_at, watermark, commit_n, run FROM floodmark_freshness ORDER BY 1"


def rows(place: Place) -> list[tuple[object, ...]]:
    return [tuple(row) for row in place.run(QUESTION)]


def as_stored(row: Freshness) -> tuple[object, ...]:
    times = (row.as_of.replace(tzinfo=None), row.checked_at.replace(tzinfo=None))
    return (row.target, row.source_table, *times, row.watermark, row.commit_n, row.run)


def test_a_run_notes_all_its_targets_and_later_runs_advance_them(place: Place) -> None:
    warehouse = place.open()
    warehouse.note_freshness([ORDERS, ODD])
    assert rows(place) == [as_stored(ODD), as_stored(ORDERS)]
    later = replace(ORDERS, as_of=at(30), checked_at=at(31), run="20250819_153100_cd34")
    warehouse.note_freshness([later])
    assert rows(place) == [as_stored(ODD), as_stored(later)]
    warehouse.close()


def test_an_older_run_that_writes_last_makes_nothing_look_staler(place: Place) -> None:
    warehouse = place.open()
    warehouse.note_freshness([replace(ORDERS, as_of=at(30))])
    warehouse.note_freshness([ORDERS])
    assert [row[2] for row in rows(place)] == [at(30).replace(tzinfo=None)]
    warehouse.note_freshness([replace(ORDERS, as_of=at(40))])
    assert [row[2] for row in rows(place)] == [at(40).replace(tzinfo=None)]
    warehouse.close()


def test_runs_that_end_at_the_same_time_both_leave_their_rows(place: Place) -> None:
    warehouse = place.open()
    warehouse.note_freshness([ORDERS])
    together = [replace(ORDERS, target=f"t{n}") for n in range(4)]
    threads = [threading.Thread(target=warehouse.note_freshness, args=([row],)) for row in together]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [row[0] for row in rows(place)] == ["orders", "t0", "t1", "t2", "t3"]
    warehouse.close()


def test_more_targets_than_one_statement_takes(place: Place) -> None:
    warehouse = place.open()
    many = [replace(ORDERS, target=f"t{n:04}") for n in range(450)]
    warehouse.note_freshness(many)
    assert len(rows(place)) == 450
    warehouse.close()
