"""What a survey refuses before it plans anything."""

from __future__ import annotations

from dataclasses import replace

import pytest

from floodmark import clock
from floodmark.errors import DataError
from floodmark.settle import Settled
from floodmark.state import State
from floodmark.survey import check_not_in_the_future
from floodmark.testing.samples import TABLE

NOW = 1_700_000_000.0


def check(unit: clock.Unit, ahead: float) -> None:
    state = State("s.t", position=(clock.count(NOW + ahead, unit), 7))
    check_not_in_the_future(replace(TABLE, unix=unit), state, Settled(None, None, bound=NOW))


@pytest.mark.parametrize("unit", ["s", "ms"])
def test_an_old_watermark_in_the_future_is_refused_however_near_it_is(unit: clock.Unit) -> None:
    check(unit, -5)
    check(unit, 30)  # two clocks may differ by so much
    for ahead in (120, 3600, 10**9):
        with pytest.raises(DataError, match="lies in the future") as refused:
            check(unit, ahead)
        assert "watermark reset -t" in str(refused.value.hint)
