"""The presets of the system watermark."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.model.presets import preset

NOW = datetime(2025, 8, 19, 15, 30, 22, 123456, UTC)


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("aug4", "2025-08-04 00:00:00"),
        ("AUG4", "2025-08-04 00:00:00"),
        ("August4", "2025-08-04 00:00:00"),
        ("aug19", "2025-08-19 00:00:00"),  # today is not in the future
        ("aug20", "2024-08-20 00:00:00"),
        ("dec24", "2024-12-24 00:00:00"),
        ("sept1", "2024-09-01 00:00:00"),
        ("may31", "2025-05-31 00:00:00"),
        ("feb29", "2024-02-29 00:00:00"),
        ("jan01", "2025-01-01 00:00:00"),
        ("today", "2025-08-19 00:00:00"),
        (" Yesterday ", "2025-08-18 00:00:00"),
        ("1hour", "2025-08-19 14:30:22"),
        ("6hours", "2025-08-19 09:30:22"),
        ("1day", "2025-08-18 15:30:22"),
        ("3days", "2025-08-16 15:30:22"),
        ("1week", "2025-08-12 15:30:22"),
        ("2weeks", "2025-08-05 15:30:22"),
        ("1month", "2025-07-19 15:30:22"),
        ("18months", "2024-02-19 15:30:22"),
    ],
)
def test_a_preset_gives_a_moment(text: str, meant: str) -> None:
    assert preset(text, NOW) == meant


def test_a_month_ago_from_the_31st_is_the_last_day_of_a_shorter_month() -> None:
    assert preset("1month", datetime(2025, 3, 31, 12, tzinfo=UTC)) == "2025-02-28 12:00:00"
    assert preset("12months", datetime(2024, 2, 29, tzinfo=UTC)) == "2023-02-28 00:00:00"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tomorrow",
        "aug",
        "aug0",
        "aug32",
        "feb30",
        "4aug",
        "week",
        "-1day",
        "1.5days",
        "1year",
        "au4",
        "1 2days",
    ],
)
def test_an_unknown_preset_is_refused_with_the_list(text: str) -> None:
    with pytest.raises(ValueError, match=r"aug4.*Nhours.*today, yesterday"):
        preset(text, NOW)


@pytest.mark.parametrize(
    "text", ["999months", "99999months", "9999999999days", "3000weeks", "99999999999999hours"]
)
def test_a_preset_before_1970_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="before 1970"):
        preset(text, NOW)


@given(
    st.datetimes(min_value=datetime(2000, 1, 1), max_value=datetime(2100, 1, 1)),
    st.integers(1, 12),
    st.integers(1, 28),
)
def test_a_month_and_a_day_is_never_in_the_future_and_less_than_a_year_ago(
    now: datetime, month: int, day: int
) -> None:
    name = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"][month - 1]
    found = datetime.fromisoformat(preset(f"{name}{day}", now.replace(tzinfo=UTC)))
    assert (found.month, found.day) == (month, day)
    assert found <= now and (now - found).days <= 366
