"""A source whose clock was set back, or whose zone has changed: what is noted, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from floodmark.config.load import TableOptions
from floodmark.log.fold import Progress, State
from floodmark.model import zones as clock
from floodmark.model.errors import DataError
from floodmark.model.open_work import Sight, Trust
from floodmark.model.table import Table
from floodmark.model.zones import Zone
from floodmark.plan.bound import Reading, Settled
from floodmark.plan.overlap import check_not_in_the_future, clock_notes
from tests.support.described import changed
from tests.support.samples import TABLE

NOW = 1_700_000_000.0


def check(unit: clock.Unit, ahead: float) -> None:
    state = State("s.t", progress=Progress((clock.count(NOW + ahead, unit), 7)))
    check_not_in_the_future(changed(TABLE, unix=unit), state, Settled(None, None, bound=NOW))


@pytest.mark.parametrize("unit", ["s", "ms"])
def test_an_old_watermark_in_the_future_is_refused_however_near_it_is(unit: clock.Unit) -> None:
    check(unit, -5)
    check(unit, 30)  # two clocks may differ by so much
    for ahead in (120, 3600, 10**9):
        with pytest.raises(DataError, match="is in the future") as refused:
            check(unit, ahead)
        assert "watermark reset -t" in str(refused.value.hint)


KEYLESS = changed(TABLE, key=(), key_index=None, mode="append")
BACK = Settled(None, None, bound=NOW, back=3600.0, zone_shift="2023-11-14 21:13:20.000000")


def notes(table: Table, settled: Settled, bound: float = NOW - 60) -> list[str]:
    state = State(table.name, progress=Progress(bound=bound))
    return clock_notes(Reading(table, state, TableOptions(), Trust(Sight(True))), settled)


def test_a_clock_that_moved_on_needs_no_note() -> None:
    assert notes(TABLE, replace(BACK, back=0.0)) == notes(KEYLESS, replace(BACK, back=0.0)) == []


def test_after_a_clock_was_set_back_a_note_says_from_where_rows_are_read_again() -> None:
    (said,) = notes(TABLE, BACK)
    assert "set back by 3,600 s" in said and "rows from 2023-11-14 21:13:20.000000 on are read again" in said


def test_without_a_key_a_clock_that_shows_less_than_the_last_bound_is_refused() -> None:
    with pytest.raises(DataError, match="may be before the watermark") as refused:
        notes(KEYLESS, BACK, bound=NOW + 60)
    assert "watermark set -t shop.orders" in str(refused.value.hint)


def test_without_a_key_a_clock_that_has_passed_the_last_bound_again_is_only_noted() -> None:
    (said,) = notes(KEYLESS, BACK)
    assert "there is no key to merge by" in said


def test_without_a_key_a_change_of_zone_is_refused_and_with_one_it_is_not() -> None:
    changed = replace(BACK, back=0.0, zone=Zone(0, 0, others=(7200,)))
    assert notes(TABLE, changed) == []
    with pytest.raises(DataError, match=r"from UTC\+02:00 to UTC\+00:00") as refused:
        notes(KEYLESS, changed)
    assert "--force" in str(refused.value.hint)
    assert notes(KEYLESS, replace(changed, zone=Zone(0, 0))) == []
