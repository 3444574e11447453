"""How far before the watermark rows are read again, decided by what is known about the source, and why, in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from floodmark.config.load import TableOptions
from floodmark.log.fold import Progress, State
from floodmark.model import zones as clock
from floodmark.model.open_work import Sight, Trust
from floodmark.model.position import Position
from floodmark.model.table import Column, Table
from floodmark.model.window import Slice
from floodmark.model.zones import Zone
from floodmark.plan.bound import Reading, Settled
from floodmark.plan.overlap import (
    because,
    begins,
    fingerprint,
    has_places,
    is_final,
    loose,
    overlap_from,
    overlap_seconds,
    parts,
    reaches,
    said_again,
    with_loose,
    within_reach,
)
from tests.support.described import changed
from tests.support.samples import AT, ID, TABLE

KEPT = changed(TABLE, columns=(ID, replace(AT, extra="on update current_timestamp()")))
SURE = Trust(Sight(True))
SETTLED = Settled(None, None)
BY_ID = changed(TABLE, columns=(ID,), cursor="id", mode="append")


def asked(
    table: Table = KEPT, trust: Trust = SURE, settled: Settled = SETTLED, **options: Any
) -> tuple[float, list[str]]:
    chosen = TableOptions(**options)
    reading = Reading(table, State(table.name), chosen, trust)
    return overlap_seconds(reading, settled), list(because(reading, settled))


def test_nothing_is_read_again_if_the_source_shows_all_open_work_and_maintains_the_cursor() -> None:
    assert asked() == (0.0, [])


@pytest.mark.parametrize(
    ("trust", "words"),
    [
        (Trust(Sight(False)), "no PROCESS privilege"),
        (Trust(Sight(True), replica=True), "is a replica"),
        (Trust(Sight(True), member_of="galera"), "a node of a Galera cluster"),
        (Trust(Sight(True), member_of="aurora"), "part of an Aurora cluster"),
        (Trust(Sight(True), member_of="group_replication"), "a member of a replication group"),
        (Trust(Sight(True), member_of="distributed"), "part of a distributed database"),
        (Trust(Sight(True), member_of="proxy"), "reached through a proxy"),
        (Trust(Sight(True), engine="FEDERATED"), "its engine is FEDERATED"),
    ],
)
def test_each_doubt_about_the_source_is_reason_enough_and_is_named(trust: Trust, words: str) -> None:
    seconds, (why,) = asked(trust=trust)
    assert seconds == 600 and words in why and not trust.complete


def test_an_application_s_clock_is_a_reason_too() -> None:
    assert asked(TABLE) == (
        600.0,
        ["update_at is written by the application, not by ON UPDATE CURRENT_TIMESTAMP"],
    )
    counted = changed(TABLE, columns=(ID,), cursor="id", unix="ms")
    assert asked(counted) == (600.0, ["id is Unix time (in ms) from the application's clock"])
    assert asked(changed(counted, unix=None)) == (0.0, [])


def test_the_overlap_covers_sessions_in_other_time_zones() -> None:
    seconds, (why,) = asked(settled=replace(SETTLED, behind=3600, zones=("+00:00",)))
    assert seconds == 3600 + clock.STEADY and "(+00:00)" in why and "up to 1 h" in why
    both, reasons = asked(trust=Trust(Sight(True), replica=True), settled=replace(SETTLED, behind=3600))
    assert both == seconds + 600 and len(reasons) == 2 and "(gone by now)" in reasons[1]


def test_the_configuration_has_the_last_word() -> None:
    assert asked(TABLE, Trust(Sight(False)), overlap_seconds=5.0) == (5.0, ["overlap_seconds is set"])
    assert asked(TABLE, Trust(Sight(False)), overlap_seconds=0.0)[0] == 0.0


def said(table: Table, trust: Trust, **options: Any) -> str:
    reading = Reading(table, State(table.name), TableOptions(**options), trust)
    return said_again(reading, overlap_seconds(reading, SETTLED), "it is so")


def test_where_open_work_is_not_seen_the_limit_of_the_overlap_is_said_with_its_figure() -> None:
    blind = Trust(Sight(False))
    assert said(KEPT, blind) == (
        "Every sync reads the last 600 s before the watermark again: it is so. A row that is committed more than 600 s"
        " after its cursor is missed: `overlap_seconds` sets that limit."
    )
    assert "more than 7200 s after" in said(KEPT, blind, overlap_seconds=7200.0)
    assert "more than 600 s after" in said(TABLE, SURE)
    assert "the last 10,000 ids" in said(BY_ID, blind) and "more than 10,000 below" in said(BY_ID, blind)
    assert "missed" not in said(KEPT, SURE, overlap_seconds=60.0)


# ---------------------------------------------------------------- from where on


def test_the_overlap_begins_before_the_watermark_and_never_before_the_start() -> None:
    low: Position = ("2025-06-01 00:05:00.000000", 9)
    assert overlap_from(TABLE, low, None, 600, None) == ("2025-05-31 23:55:00.000000",)
    start: Position = ("2025-06-01 00:00:00.000000",)
    assert overlap_from(TABLE, low, start, 600, None) == start
    assert overlap_from(TABLE, low, None, 0, None) is None


def test_the_repeated_hour_is_read_again_from_its_first_moment() -> None:
    low: Position = ("2025-11-02 01:45:00.000000", 9)
    again = overlap_from(TABLE, low, None, 0, "2025-11-02 01:00:00.000000")
    assert again == ("2025-11-02 00:59:59.999999",)


def test_ids_are_read_again_by_number() -> None:
    assert overlap_from(BY_ID, (50_000,), None, 600, None) == (40_000,)


def test_integers_that_hold_unix_time_are_read_again_in_their_own_unit() -> None:
    updated = Column("updated", "bigint(20)", "bigint")
    table = changed(TABLE, columns=(ID, updated), cursor="updated", unix="ms")
    low = (1_700_000_000_000, 9)
    assert overlap_from(table, low, None, 600, None) == (1_699_999_400_000,)
    assert overlap_from(table, low, None, 0, None) is None
    assert within_reach(table, low, 1_700_000_600_000, 600)
    assert not within_reach(table, low, 1_700_000_600_001, 600)


def test_a_date_covers_every_time_of_its_day_and_integers_compare_by_value() -> None:
    assert reaches("2025-06-01", "2025-06-01 23:00:00.000000")
    assert not reaches("2025-05-31", "2025-06-01 00:00:00.000000")
    assert not reaches(999, 1000)


LOW: Position = ("2025-06-01 12:00:00.000000", 9)


def reading(
    table: Table = KEPT, low: Position | None = LOW, progress: Progress | None = None, **options: Any
) -> Reading:
    return Reading(
        table, State(table.name, progress=progress or Progress()), TableOptions(**options), SURE, low
    )


def test_the_overlap_begins_that_many_seconds_before_the_watermark_or_where_the_clocks_went_back() -> None:
    assert begins(reading(), SETTLED) is None
    assert begins(reading(TABLE), SETTLED) == ("2025-06-01 11:50:00.000000",)
    back = replace(SETTLED, zone_shift="2025-06-01 11:00:00.000000")
    assert begins(reading(TABLE), back) == begins(reading(), back) == ("2025-06-01 10:59:59.999999",)


def test_a_change_of_zone_is_read_again_as_far_as_the_two_differ_and_an_hour_more() -> None:
    changed = replace(SETTLED, zone=Zone(0, 7200, others=(0,)))
    assert begins(reading(), changed) == ("2025-06-01 09:00:00.000000",)


def test_without_a_key_or_a_watermark_nothing_is_read_again() -> None:
    assert begins(reading(changed(TABLE, key=())), SETTLED) is None
    assert begins(reading(TABLE, low=None), SETTLED) is None


def test_a_day_is_read_again_as_a_whole() -> None:
    days = changed(TABLE, columns=(ID, replace(AT, data_type="date")))
    assert begins(reading(days, ("2025-06-01", 9)), SETTLED) == ("2025-05-31",)


# ---------------------------------------------------------------- whether it has changed


def test_an_overlap_is_final_when_the_source_is_so_far_ahead_of_the_watermark() -> None:
    def final(wall: str) -> bool:
        return is_final(reading(TABLE), replace(SETTLED, wall=f"2025-06-01 {wall}.000000"))

    assert not final("12:00:05") and not final("12:10:00") and final("12:10:01")
    changed = Settled(None, None, wall="2025-06-01 12:10:01.000000", zone=Zone(0, 7200, others=(0,)))
    assert not is_final(reading(TABLE), changed)


def test_an_overlap_is_known_by_its_positions_and_then_by_what_is_in_it() -> None:
    assert not has_places(None, "a:b:3:77")
    assert has_places(fingerprint("a:b:3:77", None), "a:b:3:77")
    assert has_places(fingerprint("a:b:3:77", "final"), "a:b:3:77")
    assert not has_places(fingerprint("a:b:3:78", "final"), "a:b:3:77")
    assert fingerprint("a:b:3:77", "5") != fingerprint("a:b:3:77", "6")


@pytest.mark.parametrize("overlap", [fingerprint("a:b|c:3:77", "final"), fingerprint("a:b:3:77", None)])
def test_the_fingerprint_of_loose_rows_outside_where_is_kept_beside_that_of_the_overlap(overlap: str) -> None:
    for part in ("", "3:77"):
        assert parts(with_loose(overlap, part)) == (overlap, part)
    assert parts(with_loose("", "3:77")) == ("", "3:77")
    assert with_loose("", ""), "an empty one would not replace the one before"
    assert parts(with_loose("", ""))[1] == ""


def test_fingerprints_from_before_loose_rows_were_told_apart_stay_valid() -> None:
    assert parts(None) == ("", "")
    assert parts(fingerprint("a:b:3:77", "5")) == (fingerprint("a:b:3:77", "5"), "")


# ---------------------------------------------------------------- rows without a place in the order


def test_rows_with_a_null_cursor_are_read_by_every_sync() -> None:
    assert loose(reading(), SETTLED) is None
    nullable = changed(KEPT, columns=(ID, replace(AT, nullable=True)))
    assert loose(reading(nullable), SETTLED) == Slice("loose", 1)


def test_rows_in_the_future_are_read_by_every_sync_while_there_are_any() -> None:
    beyond = "2025-06-01 12:01:00.000000"
    none = replace(SETTLED, beyond=beyond, newest=("2025-06-01 12:00:59.999999", 1))
    assert loose(reading(), none) is None
    some = replace(none, newest=(beyond, 1))
    assert loose(reading(), some) == Slice("loose", 1, beyond=beyond)
    counted = changed(TABLE, columns=(ID,), cursor="id", unix="s")
    assert loose(reading(counted), Settled(None, (2000,), beyond=1000)) == Slice("loose", 1, beyond=1000)


def test_zero_dates_are_read_where_they_are_allowed_and_searched_for_where_all_rows_were_promised() -> None:
    allowed = changed(KEPT, zero_dates="null")
    assert loose(reading(allowed), SETTLED) == Slice("loose", 1, zero=True)
    assert loose(reading(progress=Progress(LOW)), SETTLED) == Slice("loose", 1, zero=True)
    for part in (Progress(LOW, began=LOW), Progress(LOW, moved_at="2025-06-01T12:00:00.000000Z")):
        assert loose(reading(progress=part), SETTLED) is None
