"""The lowest and highest position of a file, in MySQL's own terms."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from floodmark.extract.files import Extremes
from floodmark.model.table import Column, Table
from tests.support.described import described

MOMENT = pa.timestamp("us", "UTC")


def table(*columns: Column, key: tuple[str, ...] = ("id",), cursor: str | None = "at") -> Table:
    return described("s", "t", columns, key, cursor, "upsert", "t")


def found(of: Table, *batches: dict[str, pa.Array[Any]]) -> tuple[Any, Any]:
    extremes = Extremes(of)
    for batch in batches:
        extremes.add(pa.RecordBatch.from_pydict(batch))
    return extremes.first, extremes.last


ID = Column("id", "bigint(20)", "bigint")
AT = Column("at", "datetime", "datetime")


def at(*seconds: int | None) -> pa.Array[Any]:
    return pa.array(
        [None if s is None else datetime(2025, 1, 1, 0, 0, s, tzinfo=UTC) for s in seconds], MOMENT
    )


def test_ties_on_the_cursor_are_decided_by_the_key_across_batches() -> None:
    first, last = found(
        table(ID, AT),
        {"id": pa.array([7, 3, 9]), "at": at(1, 1, 5)},
        {"id": pa.array([2, 8, 1]), "at": at(1, 5, 3)},
    )
    assert first == ("2025-01-01 00:00:01.000000", 2)
    assert last == ("2025-01-01 00:00:05.000000", 9)


def test_rows_without_a_cursor_have_no_position() -> None:
    assert found(table(ID, AT), {"id": pa.array([1, 2]), "at": at(None, None)}) == (None, None)
    first, last = found(
        table(ID, AT), {"id": pa.array([1, 2]), "at": at(None, 4)}, {"id": pa.array([3]), "at": at(None)}
    )
    assert first == last == ("2025-01-01 00:00:04.000000", 2)


def test_a_table_without_a_cursor_has_no_positions() -> None:
    assert found(table(ID, cursor=None), {"id": pa.array([1])}) == (None, None)


def test_an_id_that_is_both_cursor_and_key_appears_once() -> None:
    assert found(table(ID, cursor="id"), {"id": pa.array([5, -3])}) == ((-3,), (5,))


def test_years_that_python_can_not_represent_are_kept() -> None:
    cells = (
        pa.array(["0000-01-01 00:00:00", "9999-12-31 23:59:59.999999"]).cast(pa.timestamp("us")).view(MOMENT)
    )
    first, last = found(table(ID, AT), {"id": pa.array([1, 2]), "at": cells})
    assert first == ("0000-01-01 00:00:00.000000", 1)
    assert last == ("9999-12-31 23:59:59.999999", 2)


@pytest.mark.parametrize(
    ("column", "cells", "least", "most"),
    [
        (
            Column("k", "bigint(20) unsigned", "bigint"),
            pa.array([Decimal(0), Decimal(2**64 - 1)], pa.decimal128(20, 0)),
            0,
            2**64 - 1,
        ),
        (
            Column("k", "decimal(10,8)", "decimal"),
            pa.array([Decimal("1E-8"), Decimal("0E-8")], pa.decimal128(10, 8)),
            "0.00000000",
            "0.00000001",
        ),
        (
            Column("k", "binary(2)", "binary"),
            pa.array([b"\x00\xff", b"\x01\x00"], pa.binary()),
            "0x00ff",
            "0x0100",
        ),
        (Column("k", "varchar(9)", "varchar"), pa.array(["a", "ż"]), "a", "ż"),
        (
            Column("k", "date", "date"),
            pa.array(["2025-02-28", "2025-03-01"]).cast(pa.date32()),
            "2025-02-28",
            "2025-03-01",
        ),
        (Column("k", "enum('b','it''s')", "enum"), pa.array(["b", "b"]), 1, 1),
        (Column("k", "set('x','y','z')", "set"), pa.array(["x,z", "x,z"]), 5, 5),
        (Column("k", "tinyint(4)", "tinyint"), pa.array([-128, 127], pa.int16()), -128, 127),
    ],
)
def test_key_values_are_written_as_mysql_returns_them(
    column: Column, cells: pa.Array[Any], least: Any, most: Any
) -> None:
    first, last = found(table(column, AT, key=("k",)), {"k": cells, "at": at(1, 1)})
    assert first == ("2025-01-01 00:00:01.000000", least)
    assert last == ("2025-01-01 00:00:01.000000", most)
