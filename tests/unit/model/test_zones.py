"""The nights on which the clocks go back, and the zones they do it in."""

from collections.abc import Sequence
from datetime import UTC, datetime

import pytest

from floodmark.model import zones as clock
from floodmark.model.zones import Zone

LOS_ANGELES = clock.named("America/Los_Angeles")
SHANGHAI = clock.named("Asia/Shanghai")
LORD_HOWE = clock.named("Australia/Lord_Howe")  # goes back by half an hour

# 2025-11-02 09:00 UTC: 02:00 PDT becomes 01:00 PST.
BACK = int(datetime(2025, 11, 2, 9, tzinfo=UTC).timestamp())


def at(minutes: float) -> float:
    return BACK + minutes * 60


def test_on_an_ordinary_day_the_ceiling_is_the_wall_clock_and_nothing_is_read_again() -> None:
    bound = datetime(2025, 6, 1, 4, 30, tzinfo=UTC).timestamp()
    wall = clock.sample(SHANGHAI, bound - 60, bound)
    assert clock.ceiling(wall, bound) == "2025-06-01 12:30:00.000000"
    assert clock.reread_from(wall, bound - 60, bound) is None


def test_in_the_repeated_hour_the_ceiling_is_its_end_so_the_first_pass_is_not_held_back() -> None:
    wall = clock.sample(LOS_ANGELES, at(-10), at(20))
    assert clock.ceiling(wall, at(20)) == "2025-11-02 02:00:00.000000"


def test_the_repeated_hour_is_read_again_when_the_last_window_ended_before_it_was_over() -> None:
    wall = clock.sample(LOS_ANGELES, at(-10), at(20))
    assert clock.reread_from(wall, at(-10), at(20)) == "2025-11-02 01:00:00.000000"
    wall = clock.sample(LOS_ANGELES, at(20), at(70))
    assert clock.reread_from(wall, at(20), at(70)) == "2025-11-02 01:00:00.000000"


def test_once_a_window_ended_after_the_repeated_hour_it_is_not_read_again() -> None:
    wall = clock.sample(LOS_ANGELES, at(61), at(90))
    assert clock.reread_from(wall, at(61), at(90)) is None


def test_before_the_clocks_go_back_nothing_is_read_again() -> None:
    wall = clock.sample(LOS_ANGELES, at(-30), at(-5))
    assert clock.reread_from(wall, at(-30), at(-5)) is None
    assert clock.ceiling(wall, at(-5)) == "2025-11-02 01:55:00.000000"


def test_a_run_days_later_still_reads_the_second_pass_again() -> None:
    later = at(60 * 24 * 9)
    wall = clock.sample(LOS_ANGELES, at(-10), later)
    assert clock.reread_from(wall, at(-10), later) == "2025-11-02 01:00:00.000000"


def test_half_hour_shifts_repeat_half_an_hour() -> None:
    back = int(datetime(2026, 4, 4, 15, tzinfo=UTC).timestamp())
    wall = clock.sample(LORD_HOWE, back - 600, back + 600)
    (repeat,) = wall.repeats()
    assert repeat.until - repeat.at == 1800
    assert clock.reread_from(wall, back - 600, back + 600) == "2026-04-05 01:30:00.000000"


def test_a_shift_is_known_to_the_second() -> None:
    back = BACK + 437

    def odd(moments: Sequence[int]) -> list[int]:
        return [3600 if m < back else 0 for m in moments]

    wall = clock.sample(odd, back - 5, back + 5)
    (repeat,) = wall.repeats()
    assert (repeat.at, repeat.until) == (back, back + 3600)
    assert (wall.at(back - 1), wall.at(back)) == (clock.text(back - 1, 3600), clock.text(back))
    assert clock.reread_from(wall, back - 5, back + 5) == clock.text(back)


def test_clocks_that_go_forward_repeat_nothing() -> None:
    forward = datetime(2025, 3, 9, 10, tzinfo=UTC).timestamp()
    wall = clock.sample(LOS_ANGELES, forward - 600, forward + 600)
    assert wall.repeats() == []
    assert clock.ceiling(wall, forward + 600) == "2025-03-09 03:10:00.000000"


@pytest.mark.parametrize("moment", [0.0, 951782400.5, 4102444799.999999])
def test_moments_are_exact_to_the_microsecond(moment: float) -> None:
    assert datetime.fromisoformat(clock.text(moment)).replace(tzinfo=UTC).timestamp() == pytest.approx(
        moment, abs=1e-6
    )


def test_after_a_clock_was_set_back_rows_are_read_again_from_where_it_may_have_restarted() -> None:
    bound = datetime(2025, 6, 1, 4, 30, tzinfo=UTC).timestamp()
    assert clock.set_back(None, -5.0) == 0
    assert clock.set_back(0.3, -0.2) == 0  # drift
    back = clock.set_back(2.0, -3598.0)
    assert back == 3600
    wall = clock.sample(SHANGHAI, bound, bound - 600, bound - back)
    assert clock.reread_from(wall, bound, bound - 600, back) == "2025-06-01 11:29:59.000000"
    assert clock.reread_from(wall, bound, bound - 600) is None


BERLIN = clock.named("Europe/Berlin")
NEW_YORK = clock.named("America/New_York")


def seen(offsets: clock.Offsets, now: float, before: Zone | None = None, behind: int = 0) -> Zone:
    return clock.zone_now(clock.sample(offsets, now, before.at if before else None), before, now, behind)


@pytest.mark.parametrize(("before", "after"), [(SHANGHAI, clock.utc), (clock.utc, SHANGHAI)])
def test_a_zone_that_changed_either_way_leaves_a_spread_until_it_is_confirmed(
    before: clock.Offsets, after: clock.Offsets
) -> None:
    zone = seen(after, at(60), seen(before, at(0)))
    assert clock.spread(zone) == 8 * 3600 + clock.SAVING
    for days in (1, 30, 200):  # nothing else happens, and it stays
        zone = seen(after, at(60 * 24 * days), zone)
    assert clock.spread(zone) == 8 * 3600 + clock.SAVING


@pytest.mark.parametrize("offsets", [BERLIN, NEW_YORK, LOS_ANGELES, LORD_HOWE, SHANGHAI])
def test_daylight_saving_is_not_a_change_of_zone(offsets: clock.Offsets) -> None:
    zone = seen(offsets, at(0))
    for days in range(1, 400, 7):
        zone = seen(offsets, at(60 * 24 * days), zone)
        assert zone.others == ()


def test_a_zone_that_was_restored_still_has_connections_from_in_between() -> None:
    first = seen(SHANGHAI, at(0))
    back = seen(SHANGHAI, at(20), seen(clock.utc, at(10), first))
    assert (back.offset, back.others) == (8 * 3600, (0,))


def test_two_changes_spread_as_far_as_the_largest_difference() -> None:
    zone = seen(clock.named("Asia/Tokyo"), at(20), seen(clock.utc, at(10), seen(SHANGHAI, at(0))))
    assert clock.spread(zone) == 9 * 3600 + clock.SAVING


def test_integers_are_unix_time_only_if_the_newest_is_close_to_now() -> None:
    for unit in clock.UNITS:
        newest = clock.count(at(-5), unit)
        assert clock.unit_of(newest, at(0)) == unit
        assert clock.unit_of(newest, at(60 * 24 * 2)) is None
    assert [clock.unit_of(n, at(0)) for n in (0, 20_000, 1_200_000_000, 4_100_000_000)] == [None] * 4


def test_a_moment_counts_only_completed_ticks() -> None:
    assert [clock.count(1700000000.999999, unit) for unit in clock.UNITS] == [
        1700000000, 1700000000999, 1700000000999999, 1700000000999999000
    ]  # fmt: skip
