"""The dialect and the footer of every file."""

from __future__ import annotations

import pyarrow as pa
import pytest

from floodmark.model.parquet import Footer, read_footer, writer
from floodmark.model.position import Position

ROWS = pa.table({"id": [1, 2, 3]})


def file(metadata: dict[str, str]) -> bytes:
    sink = pa.BufferOutputStream()
    with writer(sink, ROWS.schema) as made:
        made.write_table(ROWS)
        made.add_key_value_metadata(metadata)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("window", ["w1", None])
@pytest.mark.parametrize("last", [("2025-08-14 15:30:22.000000", 7), None])
def test_a_footer_is_read_as_it_was_written(window: str | None, last: Position | None) -> None:
    footer = Footer("shop.orders", "log", "run", 4, window, "window", 3, "schema", "ab12", (1,), last)
    assert read_footer(file(footer.metadata())) == (footer, 3)


def test_a_foreign_file_has_no_footer() -> None:
    whole = Footer("shop.orders", "log", "run", 4, None, "window", 3, "schema", "ab12").metadata()
    assert read_footer(file(whole)) is not None
    for name in whole:
        assert read_footer(file({n: value for n, value in whole.items() if n != name})) is None
    assert read_footer(file({**whole, "floodmark.claim": "four"})) is None
    assert read_footer(file(whole)[:-1]) is None and read_footer(b"") is None
