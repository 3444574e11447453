"""Warnings of the source while differing ranges are listed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
import pytest

from floodmark.config.load import SourceSpec
from floodmark.model.canonical import Span, printed
from floodmark.model.errors import DataError
from floodmark.verify.rows import HashedRows
from floodmark.verify.task import SourceJob
from tests.support.described import described
from tests.unit.verify.test_sides import KEYS, SMALL, scope


class Warned:
    """A session whose SELECT gave a thousand warnings, of which the server shows 64."""

    spec = SourceSpec("db", 3306, "reader", "")

    def __init__(self, code: int) -> None:
        self.code = str(code).encode()

    def columns(self, sql: str, limit: int, kinds: list[Any]) -> Iterator[list[Any]]:
        yield [pa.array([1, 2], pa.int32()), pa.array([b"a", b"b"]), pa.array([1, 0], pa.int64())]

    def warnings(self) -> int:
        return 1000

    def rows(self, sql: str) -> list[tuple[bytes, ...]]:
        assert sql == "SHOW WARNINGS"
        return [(b"Warning", self.code, b"said")] * 64

    def close(self) -> None:
        pass


def listed(code: int) -> HashedRows:
    session = cast(Any, Warned(code))
    found = SourceJob(session.spec, scope(SMALL), (Span(),), listed=True)._rows(session).rows
    assert found is not None
    return found


def test_comparisons_in_the_where_may_warn_for_every_row() -> None:
    """MySQL warns with 1292 for each row if a text is compared with a number."""
    found = listed(1292)
    assert found.keys(scope(SMALL)) == [("1",)]
    assert found.passed is not None and found.passed.num_rows == 1


def test_a_lost_value_is_an_error() -> None:
    for code, hint in ((1301, "raise max_allowed_packet"), (4038, "correct the value")):
        with pytest.raises(DataError, match="values were lost") as found:
            listed(code)
        assert hint in (found.value.hint or "")


@pytest.mark.parametrize("kind", ["day", "wall", "at"])
def test_an_infinite_key_of_the_warehouse_is_refused_in_plain_words(kind: str) -> None:
    [form] = scope(described("s", "t", (KEYS[kind][0],), ("k",), None, "full", "t")).keys
    for end in (1, -1):
        if kind == "day":
            values: Any = pa.array([5, None, end * (2**31 - 1)], pa.int32()).view(pa.date32())
        else:
            values = pa.array([5, None, end * (2**63 - 1)], pa.int64()).view(pa.timestamp("us"))
        assert len(printed(form, values[:2])) == 2
        with pytest.raises(DataError, match="infinity in the key column k"):
            printed(form, values)
