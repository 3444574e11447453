"""Words for people: positions have one spelling everywhere."""

from __future__ import annotations

import pytest

from floodmark.model.text import place


@pytest.mark.parametrize(
    ("position", "apart", "spelled"),
    [
        (("2025-08-14 15:30:22.000000", 1_250_000), False, "2025-08-14 15:30:22 (id 1250000)"),
        (("2025-08-14T15:30:22.120000", 7, "b"), True, "2025-08-14 15:30:22.120000 (id 7, b)"),
        (("2025-08-14",), False, "2025-08-14"),
        ((1_250_000,), False, "id 1250000"),
        ((3, "b"), False, "id 3, b"),
        ((1_755_185_422, 9), True, "1755185422 (id 9)"),  # a cursor in seconds since 1970
        (("CH",), False, "id CH"),
    ],
)
def test_a_position_is_spelled_as_a_time_and_an_id(
    position: tuple[int | str, ...], apart: bool, spelled: str
) -> None:
    assert place(position, apart) == spelled
