"""Times as text: what people write, what the log holds, what a cursor holds."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.model.position import Value
from floodmark.model.table import Column
from floodmark.model.times import (
    ago,
    cursor_value,
    data_timestamp,
    just_before,
    parse_moment,
    shifted,
    stamp,
    timestamp,
    wall_clock,
)
from tests.support.described import changed
from tests.support.samples import AT, TABLE

NOW = datetime(2025, 8, 19, 15, 30, 22, 123456, UTC)
BY_DAY = changed(TABLE, columns=(TABLE.columns[0], replace(AT, type="date", data_type="date")))


def test_a_timestamp_may_have_a_space_or_a_t_and_up_to_six_digits() -> None:
    assert timestamp("2025-08-14") == "2025-08-14 00:00:00"
    assert timestamp("2025-08-14T15:30:22") == timestamp(" 2025-08-14 15:30:22 ") == "2025-08-14 15:30:22"
    assert timestamp("2025-08-14 15:30:22.5") == "2025-08-14 15:30:22.500000"


@pytest.mark.parametrize(
    "text",
    [
        "2025-8-14",
        "2025-02-30",
        "2025-08-14 24:00:00",
        "1969-12-31",
        "2025-08-14T00:00:00Z",
        "٢٠٢٥-٠٨-١٤",
        "now",
    ],
)
def test_anything_but_a_timestamp_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"2025|1969|now|٢"):
        timestamp(text)


def test_a_timestamp_is_in_the_future_only_if_it_is_so_in_every_zone() -> None:
    assert timestamp("2025-08-20 05:00:00", NOW)
    with pytest.raises(ValueError, match="future"):
        timestamp("2025-08-20 06:00:00", NOW)


def test_a_moment_is_stamped_in_utc_and_read_back_as_it_was() -> None:
    paris = timezone(timedelta(hours=2))
    assert stamp(datetime(2025, 8, 14, 17, 45, tzinfo=paris)) == "2025-08-14T15:45:00.000000Z"
    assert parse_moment(stamp(NOW)) == NOW


def test_a_moment_without_a_zone_is_utc() -> None:
    assert parse_moment(" 2025-08-19 15:30:22.123456 ") == NOW


def test_an_age_beyond_the_first_year_is_before_every_moment() -> None:
    assert ago(NOW, 3600) == NOW - timedelta(hours=1)
    assert ago(NOW, 1e12) < parse_moment("0001-01-01 00:00:01")


@given(st.datetimes())
def test_a_wall_clock_has_26_characters_and_sorts_as_times_do(time: datetime) -> None:
    assert len(wall_clock(time)) == 26
    assert (wall_clock(time) < wall_clock(datetime(2025, 1, 1))) == (time < datetime(2025, 1, 1))
    assert wall_clock(time) == time.strftime("%Y-%m-%d %H:%M:%S.%f").zfill(26)


def test_a_time_before_year_1_becomes_its_first_day() -> None:
    assert shifted("2025-03-01 00:00:00.000000", -1e-6) == "2025-02-28 23:59:59.999999"
    assert shifted("0001-01-01 00:00:00.000000", -1) == "0001-01-01 00:00:00.000000"


def test_a_timestamp_is_converted_to_the_cursor_s_format() -> None:
    assert cursor_value(TABLE, "2025-08-14 15:30:22.5") == "2025-08-14 15:30:22.500000"
    assert cursor_value(BY_DAY, "2025-08-14 15:30:22") == "2025-08-14"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("2025-08-14 15:30:22.000000", "2025-08-14T15:30:22.000000"),
        ("2025-08-14 15:30:22", "2025-08-14T15:30:22.000000"),
        ("2025-08-14 15:30:22.5", "2025-08-14T15:30:22.500000"),
        ("2025-08-14", "2025-08-14T00:00:00.000000"),
        ("order-17", None),
        (1250000, None),
    ],
)
def test_a_data_timestamp_keeps_the_column_s_value(value: Value, shown: str | None) -> None:
    assert data_timestamp(value) == shown


@pytest.mark.parametrize(
    ("column", "value", "expected"),
    [
        (AT, "2025-03-01 00:00:00.000000", "2025-02-28 23:59:59.999999"),
        (replace(AT, type="date", data_type="date"), "2025-03-01", "2025-02-28"),
        (AT, "0000-00-00 00:00:00.000000", None),
        (Column("update_at", "bigint(20)", "bigint"), 7, 6),
        (Column("update_at", "varchar(9)", "varchar"), "k", None),
    ],
)
def test_just_before_gives_the_next_lower_value(column: Column, value: Any, expected: Any) -> None:
    assert just_before(changed(TABLE, columns=(TABLE.columns[0], column)), value) == expected


def test_just_before_several_values_is_before_the_lowest() -> None:
    assert just_before(TABLE, 9, 10, 8) == 7
    assert just_before(BY_DAY, "2025-03-02", "2025-03-01") == "2025-02-28"
