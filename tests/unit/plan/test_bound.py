"""How far a table can be read now, decided from a source's answers: one rule after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.config.load import TableOptions
from floodmark.log.fold import Progress, State
from floodmark.model import zones as clock
from floodmark.model.commit import Batch, Reset
from floodmark.model.open_work import OpenWork, Sight, Trust
from floodmark.model.position import Position
from floodmark.model.table import Table
from floodmark.model.zones import Zone
from floodmark.plan import bound
from floodmark.plan.bound import Pause, Reading, Settled, Tick, looks_outside
from tests.support.described import changed
from tests.support.samples import AT, ID, TABLE, History, at, files, window

# The server's clock writes the cursor, in whole seconds or in microseconds.
KEPT_AT = replace(AT, extra="on update current_timestamp()")
KEPT = changed(TABLE, columns=(ID, KEPT_AT))
FINE = changed(TABLE, columns=(ID, replace(KEPT_AT, fraction=6)))
MOMENTS = changed(TABLE, columns=(ID, replace(KEPT_AT, data_type="timestamp")))
DAYS = changed(TABLE, columns=(ID, replace(AT, data_type="date", fraction=None)))
BY_ID = changed(TABLE, columns=(ID,), cursor="id")

SURE = Trust(Sight(True))
DOUBTFUL = [
    Trust(Sight(False)),
    Trust(Sight(True), replica=True),
    Trust(Sight(True), member_of="aurora"),
    Trust(Sight(True), engine="ROCKSDB"),
]

SHANGHAI = clock.named("Asia/Shanghai")
LOS_ANGELES = clock.named("America/Los_Angeles")
# 2025-11-02 09:00 UTC: 02:00 becomes 01:00 in Los Angeles.
BACK = datetime(2025, 11, 2, 9, tzinfo=UTC).timestamp()

NOON = datetime(2025, 6, 1, 12, tzinfo=UTC).timestamp()
NOW = NOON + 0.25


def reading(
    table: Table = KEPT,
    low: Position | None = None,
    trust: Trust = SURE,
    progress: Progress | None = None,
    **options: Any,
) -> Reading:
    """A table with what its log holds of earlier runs, and its options."""
    return Reading(
        table, State(table.name, progress=progress or Progress()), TableOptions(**options), trust, low
    )


def work(ago: float, thread: int = 7, trx: str = "", modified: bool = False) -> OpenWork:
    """A statement (with an id, a transaction) that began this many seconds ago."""
    return OpenWork(NOW - ago, thread, trx, "app@here", modified)


def row(seconds: float, key: int = 1, offsets: clock.Offsets = clock.utc) -> Position:
    """The position of a row written this many seconds after noon, UTC."""
    moment = NOON + seconds
    return (clock.text(moment, offsets([int(moment)])[0]), key)


def decided(
    of: Reading,
    rows: Sequence[Position] = (),
    look: Sequence[OpenWork] = (),
    offsets: clock.Offsets = clock.utc,
    now: float = NOW,
    ours: float | None = None,
    **zones: Any,
) -> Settled:
    """What follows when the source has these rows and shows this work, after any pause."""
    aim = bound.aim(of, now, now if ours is None else ours)
    moment = bound.lowered(aim, look)
    below = bound.ceiling(of, clock.sample(offsets, moment), moment)
    known = of.state.progress.zone.at if of.state.progress.zone else None
    wall = clock.sample(offsets, *bound.moments(of, aim, moment, now), known)
    high = max((r for r in rows if str(r[0]) < str(below)), default=None)
    seen = bound.Zones(now, wall, **zones)
    return bound.settled(of, aim, look, seen, high, max(rows, default=None))


# ---------------------------------------------------------------- nothing new


def at_rest(table: Table = KEPT, trust: Trust = SURE, **more: Any) -> Reading:
    """A table whose newest row was the last one read."""
    return reading(table, row(-60), trust, Progress(position=row(-60), bound=NOON - 50, **more))


def is_idle(of: Reading, newest: Position | None, ours: float = NOW) -> bool:
    return bound.nothing_new(of, bound.aim(of, NOW, ours), newest)


@pytest.mark.parametrize("table", [KEPT, FINE, MOMENTS])
def test_a_table_whose_newest_row_was_read_last_has_nothing_new(table: Table) -> None:
    assert is_idle(at_rest(table), row(-60))


@pytest.mark.parametrize("newest", [None, row(-61), row(-60, key=2), row(-59), row(9999)])
def test_any_other_newest_row_is_news_also_one_that_is_older(newest: Position | None) -> None:
    assert not is_idle(at_rest(), newest)


@pytest.mark.parametrize("trust", DOUBTFUL)
def test_open_work_matters_to_a_table_at_rest_if_some_of_it_may_be_hidden(trust: Trust) -> None:
    assert not is_idle(at_rest(trust=trust), row(-60))


def test_open_work_matters_to_a_table_at_rest_if_applications_write_its_cursor_or_days() -> None:
    assert not is_idle(at_rest(TABLE), row(-60))
    assert not is_idle(at_rest(DAYS), row(-60))


def test_open_work_matters_to_a_table_at_rest_if_the_clock_was_set_back() -> None:
    assert is_idle(at_rest(ahead=0.0), row(-60))
    assert not is_idle(at_rest(ahead=3600.0), row(-60))


def test_a_table_with_an_open_window_or_without_a_position_is_not_at_rest() -> None:
    assert not is_idle(at_rest(window=window("w", row(-60), (), row(-30))), row(-60))
    assert not is_idle(reading(), None)
    assert not is_idle(replace(at_rest(), low=row(-90)), row(-60))  # `--since`


# ---------------------------------------------------------------- the present tick, and what is open


@pytest.mark.parametrize(
    ("table", "end"), [(KEPT, NOON + 1), (FINE, NOW + 1e-6)], ids=["seconds", "microseconds"]
)
def test_while_nothing_is_open_the_bound_is_the_end_of_the_current_tick(table: Table, end: float) -> None:
    settled = decided(reading(table), [row(-5), row(0)])
    assert settled.bound == pytest.approx(end, abs=2e-7)
    assert settled.high == settled.newest == row(0) and settled.held == ()


def test_the_bound_is_lowered_to_the_start_of_the_oldest_open_work_which_is_named() -> None:
    look = [work(60, 7, trx="421", modified=True), work(5, 8)]
    settled = decided(reading(FINE), [row(-90), row(-30), row(-1)], look)
    assert settled.bound == pytest.approx(NOW - 60, abs=2e-6)
    assert (settled.high, settled.newest) == (row(-90), row(-1))
    assert settled.held == (
        "transaction of connection 7 (app@here), open for 60 s",
        "statement of connection 8 (app@here), open for 5 s",
    )


def test_open_work_counts_from_the_beginning_of_its_tick_because_cursors_are_truncated() -> None:
    """A statement of 11:59:50.25 writes 11:59:50, as a row beside it has that is there already."""
    settled = decided(reading(), [row(-11), row(-10)], [work(10)])
    assert settled.bound == NOON - 10
    assert settled.high == row(-11)


def test_a_row_exactly_at_the_bound_is_not_below_it() -> None:
    assert decided(reading(), [row(0), row(1)]).high == row(0)
    assert bound.at_or_behind(row(1), "2025-06-01 12:00:01.000000")
    assert not bound.at_or_behind(row(0), "2025-06-01 12:00:01.000000")
    assert not bound.at_or_behind(None, "2025-06-01 12:00:01.000000")


def test_work_that_began_after_the_run_looked_holds_nothing_back_and_is_not_named() -> None:
    assert decided(reading(), [row(0)], [work(-1)]) == decided(reading(), [row(0)])


def test_no_more_than_three_are_named_the_oldest_first() -> None:
    settled = decided(reading(), look=[work(50 - n, thread=n) for n in range(1, 6)])
    assert [said.split()[3] for said in settled.held] == ["1", "2", "3"]


def test_a_prepared_transaction_without_a_connection_is_named_as_one() -> None:
    (said,) = decided(reading(), look=[work(9, thread=0, trx="5", modified=True)]).held
    assert said == "prepared (XA) transaction without a connection, open for 9 s"


STARTS = st.floats(-7200, 7200).map(lambda seconds: BACK + seconds)


@given(st.lists(STARTS, max_size=4), STARTS, st.sampled_from([KEPT, FINE]))
@pytest.mark.parametrize(
    "offsets", [clock.utc, SHANGHAI, LOS_ANGELES], ids=["utc", "shanghai", "los angeles"]
)
def test_whatever_is_open_commits_above_the_bound_or_where_the_next_run_reads_again(
    offsets: clock.Offsets, starts: list[float], now: float, table: Table
) -> None:
    """The night on which the clocks go back in Los Angeles included."""
    of = reading(table)
    aim = bound.aim(of, now, now)
    moment = bound.lowered(aim, [OpenWork(start, 7, "", "app@here") for start in starts])
    below = bound.ceiling(of, clock.sample(offsets, moment), moment)
    later = now + 4 * 3600
    again = clock.reread_from(clock.sample(offsets, moment, later), moment, later)
    for start in (*(s for s in starts if s < now), aim.top):
        ticks = int(start / aim.tick) * aim.tick
        cursor = clock.sample(offsets, ticks).at(ticks)
        assert cursor >= str(below) or (again is not None and cursor >= again)


# ---------------------------------------------------------------- zones


@pytest.mark.parametrize(
    ("table", "timezone", "zone"),
    [
        (MOMENTS, "server", "UTC"),
        (MOMENTS, "Asia/Tokyo", "UTC"),
        (KEPT, "server", "server"),
        (KEPT, "Asia/Tokyo", "Asia/Tokyo"),
        (DAYS, "server", "server"),
    ],
)
def test_timestamps_are_compared_in_utc_and_datetimes_in_the_servers_zone_or_the_one_that_is_configured(
    table: Table, timezone: str, zone: str
) -> None:
    assert reading(table, cursor_timezone=timezone).zone == zone


@pytest.mark.parametrize(
    ("offsets", "below"),
    [
        (clock.utc, "2025-06-01 12:00:01"),
        (SHANGHAI, "2025-06-01 20:00:01"),
        (LOS_ANGELES, "2025-06-01 05:00:01"),
    ],
)
def test_the_bound_is_converted_to_the_zone_that_rows_are_written_in(
    offsets: clock.Offsets, below: str
) -> None:
    aim = bound.aim(reading(), NOW, NOW)
    assert bound.ceiling(reading(), clock.sample(offsets, aim.top), aim.top) == f"{below}.000000"
    assert decided(reading(), [row(0, offsets=offsets)], offsets=offsets).high == row(0, offsets=offsets)


def test_in_the_hour_that_the_clocks_show_twice_rows_of_the_first_pass_are_not_held_back() -> None:
    first_pass: Position = ("2025-11-02 01:59:00.000000", 1)
    settled = decided(reading(), [first_pass], now=BACK + 1200, offsets=LOS_ANGELES)
    assert settled.high == first_pass
    assert settled.wall == "2025-11-02 01:20:01.000000"


def test_the_hour_that_the_clocks_show_twice_is_read_again_after_a_window_that_ended_before_its_end() -> None:
    again = decided(reading(progress=Progress(bound=BACK - 60)), now=BACK + 1200, offsets=LOS_ANGELES)
    assert again.zone_shift == again.back_to == "2025-11-02 01:00:00.000000" and not again.steady
    over = decided(reading(progress=Progress(bound=BACK + 3700)), now=BACK + 4000, offsets=LOS_ANGELES)
    assert over.zone_shift is None and over.steady


def test_a_zone_that_differs_from_the_last_claim_is_noticed_and_its_difference_read_again() -> None:
    low: Position = ("2025-06-01 19:00:00.000000", 1)
    before = Zone(clock.grid(NOON - 3600), 0)
    settled = decided(reading(low=low, progress=Progress(zone=before, bound=NOON - 3600)), offsets=SHANGHAI)
    assert settled.zone == Zone(clock.grid(NOW), 8 * 3600, others=(0,))
    # As far back as the difference, an hour of daylight saving, and what a clock may differ by.
    assert settled.back_to == "2025-06-01 09:59:59.000000" and not settled.steady
    same = replace(before, offset=8 * 3600)
    settled = decided(reading(low=low, progress=Progress(zone=same, bound=NOON - 3600)), offsets=SHANGHAI)
    assert settled.zone == Zone(clock.grid(NOW), 8 * 3600) and settled.back_to is None and settled.steady


def test_sessions_in_other_zones_write_earlier_cursors_and_that_is_kept_after_they_are_gone() -> None:
    low: Position = ("2025-06-01 12:00:00.000000", 1)
    settled = decided(reading(low=low, progress=Progress(bound=NOON)), others=("-01:00",), behind=3600)
    assert (settled.behind, settled.zones) == (3600, ("-01:00",))
    assert settled.zone is not None and settled.zone.behind == 3600
    assert settled.back_to == "2025-06-01 10:59:59.000000"
    gone = decided(reading(low=low, progress=Progress(bound=NOON, zone=settled.zone)))
    assert (gone.behind, gone.zones) == (3600, ())


def test_a_day_is_final_when_it_is_over_and_today_is_never_waited_for() -> None:
    today, yesterday = ("2025-06-01", 1), ("2025-05-31", 9)
    of = reading(DAYS)
    settled = decided(of, [yesterday, today])
    assert (settled.high, settled.newest) == (yesterday, today)
    assert settled.beyond == "2025-06-01"  # today's rows are read again by every sync
    aim = bound.aim(of, NOW, NOW)
    assert not bound.is_fresh(of, aim, clock.sample(clock.utc, aim.top, aim.aged), today)


# ---------------------------------------------------------------- the clock


def test_a_clock_that_was_set_back_has_rows_read_again_from_the_last_bound_less_that() -> None:
    known = Progress(bound=NOON - 60, ahead=0.0)
    settled = decided(reading(progress=known), ours=NOW + 3600)
    assert settled.back == 3600 and settled.ahead == -3600
    assert settled.zone_shift == "2025-06-01 10:58:59.000000" and not settled.steady


def test_a_clock_that_was_set_back_over_a_dst_change_is_followed_in_the_offset_of_that_time() -> None:
    """In Los Angeles, four hours after the clocks had gone back, to the day before; that was thirty hours ago."""
    known = Progress(bound=BACK + 4 * 3600, ahead=0.0)
    now = BACK + 10 * 3600
    settled = decided(reading(progress=known), now=now, ours=now + 86_400, offsets=LOS_ANGELES)
    assert settled.zone_shift == "2025-11-01 05:59:59.000000"


@pytest.mark.parametrize("ours", [NOW + 0.9, NOW - 3600], ids=["drifted", "set forward"])
def test_a_clock_that_drifted_or_was_set_forward_has_nothing_read_again(ours: float) -> None:
    settled = decided(reading(progress=Progress(bound=NOON - 60, ahead=0.0)), ours=ours)
    assert (settled.back, settled.zone_shift, settled.steady) == (0.0, None, True)


def test_before_the_first_window_no_clock_can_have_gone_back() -> None:
    settled = decided(reading(), ours=NOW + 3600)
    assert (settled.back, settled.zone_shift, settled.back_to, settled.steady) == (0.0, None, None, False)


def test_cursors_more_than_a_minute_ahead_of_the_clock_are_in_the_future() -> None:
    settled = decided(reading(), [row(-5), row(3600)])
    assert settled.high == row(-5) and settled.newest == row(3600)
    assert settled.beyond == "2025-06-01 12:01:00.250000"


# ---------------------------------------------------------------- how long to wait


def test_a_tick_is_final_one_second_after_its_end_if_the_server_s_clock_writes_it_and_all_work_is_visible() -> (
    None
):
    assert bound.aim(reading(settle_seconds=2.0), NOW, NOW).pause == bound.SURE_SECONDS == 1.0
    assert bound.aim(reading(settle_seconds=0.5), NOW, NOW).pause == 0.5


@pytest.mark.parametrize("trust", DOUBTFUL, ids=["no PROCESS", "a replica", "a cluster", "an engine"])
def test_the_settling_time_is_waited_for_if_open_work_may_be_hidden(trust: Trust) -> None:
    assert bound.aim(reading(trust=trust, settle_seconds=2.0), NOW, NOW).pause == 2.0


def test_the_settling_time_is_waited_for_if_the_application_writes_the_cursor() -> None:
    assert bound.aim(reading(TABLE, settle_seconds=2.0), NOW, NOW).pause == 2.0


def fresh(of: Reading, newest: Position | None) -> bool:
    aim = bound.aim(of, NOW, NOW)
    return bound.is_fresh(of, aim, clock.sample(clock.utc, aim.top, aim.aged), newest)


def test_rows_are_fresh_until_their_tick_is_over_and_has_settled() -> None:
    assert fresh(reading(), row(0)) and fresh(reading(), row(-1))
    assert not fresh(reading(), row(-2)) and not fresh(reading(), None)
    assert fresh(reading(TABLE, settle_seconds=9), row(-9)) and not fresh(
        reading(TABLE, settle_seconds=9), row(-10)
    )


def paused(of: Reading, newest: Position) -> Pause:
    aim = bound.aim(of, NOW, NOW)
    return bound.pause(aim, clock.sample(clock.utc, aim.top, aim.aged), newest, NOW)


def test_a_row_of_the_current_second_is_waited_for_until_that_second_has_settled() -> None:
    found = paused(reading(), row(0))
    assert found.for_all and found.seconds == pytest.approx(0.75 + 1.0)


def test_an_older_fresh_row_is_waited_for_only_until_it_is_final_itself() -> None:
    """What comes after it is read next time."""
    found = paused(reading(), row(-1))
    assert not found.for_all and found.seconds == pytest.approx(0.8, abs=0.06)
    found = paused(reading(FINE), row(-0.5))
    assert not found.for_all and found.seconds == pytest.approx(0.3, abs=0.06)


def test_a_late_caller_does_not_wait() -> None:
    aim = bound.aim(reading(), NOW, NOW)
    wall = clock.sample(clock.utc, aim.top, aim.aged)
    assert bound.pause(aim, wall, row(0), aim.top + 5).seconds <= bound.AGING


def test_open_work_is_given_the_rest_of_the_settling_time_to_end_while_rows_are_fresh() -> None:
    of = reading(settle_seconds=3.0)
    aim = bound.aim(of, NOW, NOW)
    assert bound.patience(of, aim, True, [work(5)]) == 2.0
    assert bound.patience(of, aim, True, []) == bound.patience(of, aim, False, [work(5)]) == 0.0
    assert bound.patience(of, aim, True, [work(-1)]) == 0.0  # it began after the bound
    hidden = replace(of, trust=DOUBTFUL[0])  # it has been waited for already
    writer = work(5, trx="421", modified=True)
    assert bound.patience(hidden, bound.aim(hidden, NOW, NOW), True, [writer]) == 0.0


def test_statements_that_hold_fresh_rows_back_are_checked_once_more_however_short_the_settling_time() -> None:
    of = reading(settle_seconds=0.0)
    aim = bound.aim(of, NOW, NOW)
    assert bound.patience(of, aim, True, [work(5)]) == bound.GLANCE
    assert bound.patience(of, aim, True, [work(5), work(6, trx="421", modified=True)]) == 0.0
    assert bound.patience(of, aim, False, [work(5)]) == 0.0


def test_statements_that_alone_hold_new_rows_back_are_named_by_their_connections() -> None:
    """They are checked again, whatever the rows' age: a log-in may look like a statement of some seconds."""

    def passing(of: Reading, last: Position | None, *look: OpenWork) -> set[int]:
        aim = bound.aim(of, NOW, NOW)
        moment = bound.lowered(aim, look)
        below = bound.ceiling(of, clock.sample(clock.utc, moment), moment)
        return set(bound.passing(of, aim, look, last, below))

    assert passing(reading(), row(-3), work(4, 7), work(2, 8)) == {7, 8}
    assert passing(reading(), row(-3), work(2, 7)) == set()  # it holds back younger rows only
    assert passing(reading(), row(-3)) == passing(reading(), row(-3), work(-1)) == set()
    assert passing(reading(), row(-3), work(4, 7), work(4, 8, trx="421", modified=True)) == set()
    assert passing(reading(low=row(-3)), row(-3), work(4)) == passing(reading(), None, work(4)) == set()


def test_preparations_start_only_for_new_rows_that_are_not_all_held_back() -> None:
    assert reading().has_news(row(0)) and reading(low=row(-1)).has_news(row(0))
    assert not reading(low=row(0)).has_news(row(0))
    aim = bound.aim(reading(), NOW, NOW)
    assert bound.all_held(aim, [work(60)]) and not bound.all_held(aim, [work(1)])


# ---------------------------------------------------------------- what open transactions have written


def test_rows_written_by_an_open_transaction_are_not_passed_even_if_its_start_is_later() -> None:
    """Its statement waited, with its NOW() fixed, before InnoDB began the transaction."""
    look = [work(2, 7, trx="421", modified=True), work(3, 8)]
    of = reading(progress=Progress(bound=NOON - 60))
    settled = decided(of, [row(-20), row(-4)], look)
    lower = bound.below_uncommitted(of, settled, row(-20), look, NOW)
    assert lower.high == row(-20)
    assert lower.bound == NOON - 60  # the last one that was proven
    assert lower.held == ("transaction of connection 7 (app@here), open for 2 s",)


def test_a_first_window_keeps_its_bound_and_so_do_ids_which_have_none_to_compare_with() -> None:
    first = decided(reading(), [row(-4)])
    assert bound.below_uncommitted(reading(), first, None, [], NOW).bound == first.bound
    ids = reading(BY_ID, progress=Progress(bound=NOON - 60))
    assert bound.below_uncommitted(ids, Settled((9,), (9,), bound=NOW), (5,), [], NOW).bound == NOW


def test_only_transactions_that_have_written_rows_are_searched_for() -> None:
    wrote = work(5, 7, trx="421", modified=True)
    assert bound.writers([work(9, 8), wrote, work(3, 9, trx="422")]) == [wrote]


def test_rows_not_committed_yet_are_searched_for_in_all_that_is_read_also_in_what_is_read_again() -> None:
    of = reading(low=("2025-11-02 01:45:00.000000", 9))
    shifted = Settled(None, None, zone_shift="2025-11-02 01:00:00.000000")
    assert bound.searched_from(of, Settled(None, None)) == of.low
    assert bound.searched_from(of, shifted) == ("2025-11-02 00:59:59.999999",)
    assert bound.searched_from(reading(low=("2025-11-02 00:30:00.000000", 9)), shifted) == (
        "2025-11-02 00:30:00.000000",
        9,
    )


# ---------------------------------------------------------------- ids


def test_ids_stay_at_the_last_proven_position_while_something_is_open_which_is_named() -> None:
    of = reading(BY_ID, progress=Progress(position=(40,)))
    settled = bound.held_back(of, Settled((50,), (50,), bound=NOW), [work(4)], NOW)
    assert (settled.high, settled.newest, settled.bound) == ((40,), (50,), None)
    assert settled.held == ("statement of connection 7 (app@here), open for 4 s",)


def test_ids_without_a_gap_are_final_although_something_is_open() -> None:
    of = reading(BY_ID, progress=Progress(position=(40,)))
    settled = bound.held_back(of, Settled((50,), (50,), bound=NOW), [work(4)], NOW, dense=47)
    assert (settled.high, settled.bound, len(settled.held)) == ((47,), None, 1)


@pytest.mark.parametrize("missing", [{1}, {2}, {7, 8}, {1000}, {999}, {500}, set[int]()])
def test_the_ids_that_all_are_taken_end_before_the_first_gap(missing: set[int]) -> None:
    counted = 0

    def count(low: int, high: int) -> int:
        nonlocal counted
        counted += high - low
        return len(set(range(low + 1, high + 1)) - missing)

    assert bound.end_of_dense(0, 1000, count) == min(missing, default=1001) - 1
    assert counted <= 1010


def test_only_ids_that_identify_a_row_can_all_be_taken() -> None:
    by_id = changed(BY_ID, key_index="PRIMARY", where=None)
    first, later = reading(by_id), reading(by_id, progress=Progress(position=(40,)))
    assert bound.taken_ids(first, (50,)) == (0, 50) and bound.taken_ids(later, (50,)) == (40, 50)
    assert bound.taken_ids(first, (10**12,)) == (0, bound.COUNTED_IDS)
    assert bound.taken_ids(later, (40,)) is None and bound.taken_ids(first, None) is None
    assert bound.taken_ids(first, (-3,)) is None
    for unfit in (
        changed(by_id, key_index=None),  # nothing keeps an id from being given twice
        changed(by_id, key=("id", "update_at")),
        changed(by_id, where="note <> ''"),
    ):
        assert bound.taken_ids(reading(unfit), (50,)) is None


def test_ids_wait_for_all_open_work_with_each_thread_once() -> None:
    statement, transaction = work(1, 7), work(5, 7, trx="421", modified=True)
    other = work(2, 8)
    assert bound.to_wait_for([transaction, other, statement]) == [transaction, other]


def test_a_transaction_that_writes_has_ended_when_its_id_is_gone() -> None:
    waited = [work(5, 7, trx="421", modified=True)]
    assert bound.still_open(waited, [work(5, 7, trx="421", modified=True)], NOW) == waited
    # The same connection has begun another one.
    assert bound.still_open(waited, [work(0.5, 7, trx="500", modified=True)], NOW) == []


def test_a_statement_that_continues_as_a_transaction_has_not_ended() -> None:
    waited = [work(5, 7)]
    assert bound.still_open(waited, [work(5, 7, trx="421", modified=True)], NOW) == waited


def test_a_statement_has_ended_when_its_connection_runs_only_what_began_later() -> None:
    assert bound.still_open([work(5, 7)], [work(-1, 7), work(30, 8)], NOW) == []


def test_ids_have_patience_for_three_seconds_or_the_settling_time_whichever_is_longer() -> None:
    assert bound.id_patience(reading(BY_ID, settle_seconds=0.5)) == 3.0
    assert bound.id_patience(reading(BY_ID, settle_seconds=10)) == 10


# ---------------------------------------------------------------- integers that hold a time


@pytest.mark.parametrize(
    ("unit", "top", "over"),
    [("s", int(NOON) + 1, NOON + 3), ("ms", int(NOON) * 1000 + 251, NOON + 2.251)],
)
def test_integers_that_hold_unix_time_are_read_up_to_the_current_tick_once_it_has_settled(
    unit: clock.Unit, top: int, over: float
) -> None:
    tick = Tick(NOW, unit, 2.0)
    assert tick.top == top
    assert tick.over == pytest.approx(over, abs=1e-5)
    settled = tick.settled((top - 1, 1), (top + 10**9, 2), NOW + 3)
    assert (settled.high, settled.bound, settled.wall) == ((top - 1, 1), NOW, top)
    assert settled.beyond == clock.count(NOW + 63, unit)  # later ones are read again by every sync


def test_unix_times_are_fresh_within_the_settling_time() -> None:
    tick = Tick(NOW, "s", 2.0)
    assert tick.is_fresh((int(NOON) - 3, 1)) and not tick.is_fresh((int(NOON) - 4, 1))


def counts(*values: int) -> str | None:
    """What these integers count, seen from noon."""

    def last_below(value: int) -> int | None:
        return max((v for v in values if v < value), default=None)

    def many_from(value: int) -> bool:
        return sum(v >= value for v in values) > bound.FEW_IN_THE_FUTURE

    return bound.unit_of(max(values), NOON, last_below, many_from)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_integers_whose_newest_value_is_close_to_the_clock_hold_unix_time(unit: clock.Unit) -> None:
    assert counts(clock.count(NOON - 10**6, unit), clock.count(NOON - 5, unit)) == unit
    assert counts(clock.count(NOON + 3600, unit)) == unit


def test_a_few_rows_in_the_future_do_not_turn_a_clock_into_a_counter() -> None:
    for unit in clock.UNITS:
        future = clock.count(NOON + 10**9, unit)
        assert counts(clock.count(NOON, unit), future) == unit
        assert counts(clock.count(NOON, unit), *range(future, future + 11)) is None


@pytest.mark.parametrize("newest", [1, 50_000, 10**6, int(NOON) - 10**6, int(NOON) + 10**6, 10**18])
def test_integers_far_from_the_clock_are_ids_or_counters(newest: int) -> None:
    assert counts(newest - 1, newest) is None
    assert counts(1000, newest) is None


def test_rows_outside_where_are_looked_for_once_the_target_may_have_them() -> None:
    table = replace(TABLE, recipe=replace(TABLE.recipe, where="id > 1"))
    history = History()
    assert not looks_outside(table, history.state), "nothing was ever loaded"
    history.claim(window=window("w", None, (at(10, 1),), at(42, 7)))
    history.add(Batch, window_id="w", slices=(0,), files=files(3))
    assert looks_outside(table, history.state), "a row of the first slice may leave before the rest is read"
    history.add(Batch, window_id="w", slices=(1,), files=files(3, prefix="g"))
    assert looks_outside(table, history.state) and not looks_outside(TABLE, history.state)
    assert not looks_outside(replace(table, recipe=replace(table.recipe, mode="append")), history.state)
    history.add(Reset, stages=("extract", "load"))
    assert looks_outside(table, history.state), "a reset leaves the target's rows"
