"""Suspects that are looked up again, at a source that answers by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import pytest

from floodmark.load.duckdb.warehouse import DuckDB
from floodmark.model.canonical import Scope, forms
from floodmark.model.errors import DataError
from floodmark.model.table import Column, Mode, Table
from floodmark.model.warehouse import DUCKDB
from floodmark.verify.lookup import look_up
from tests.support.described import described

ID = Column("id", "int(11)", "int", nullable=False)
N = Column("n", "int(11)", "int")
TABLE = described("s", "t", (ID, N), ("id",), None, "full", "t")


class Source:
    """The rows 1 and 2, with n = 10 and 20."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked: list[str] = []

    def rows(self, sql: str) -> list[tuple[bytes, ...]]:
        self.asked.append(sql)
        wanted = sql.partition(" IN (")[2]
        cells = [b"h"] if "SHA2" in sql else [b""]
        return [
            (b"in", *cells, str(n).encode(), *([str(n).encode(), b"%d0" % n] if "SHA2" in sql else []))
            for n in (1, 2)
            if str(n) in wanted
        ]

    @property
    def services(self) -> Any:
        @contextmanager
        def reading(purpose: str, table: Table) -> Iterator[Source]:
            yield self

        return SimpleNamespace(reading=reading, warehouse=lambda: DuckDB(self.path))


def test_a_key_that_no_source_row_can_have_is_refused_before_either_side_is_queried(tmp_path: Path) -> None:
    moment = Column("k", "timestamp(6)", "timestamp", nullable=False, fraction=6)
    table = described("s", "t", (moment,), ("k",), None, "full", "t")
    source = Source(tmp_path / "none.duckdb")
    with pytest.raises(DataError, match="a row with infinity in the key column k"):
        look_up(source.services, Scope(table, forms(table, DUCKDB)), [("infinity",)])
    assert not source.asked


def test_the_source_prints_only_rows_that_the_warehouse_has_too(tmp_path: Path) -> None:
    with duckdb.connect(str(tmp_path / "w.duckdb")) as con:
        con.execute("CREATE TABLE t (id INTEGER, n INTEGER)")
        con.execute("INSERT INTO t VALUES (2, 21), (3, 30)")
    source = Source(tmp_path / "w.duckdb")
    scope = Scope(TABLE, forms(TABLE, DUCKDB))
    found = look_up(source.services, scope, [("4",), ("3",), ("2",), ("1",)])
    assert (found.missing, found.extra, found.nowhere) == (((1,),), ((3,),), (("4",),))
    assert found.different == (((2,), ("n",)),)
    exists, printed = source.asked
    assert "SHA2" not in exists and "IN (4, 1)" in exists
    assert "SHA2" in printed and "IN (3, 2)" in printed


def test_a_row_found_by_another_spelling_and_deleted_before_it_is_printed_is_extra(tmp_path: Path) -> None:
    with duckdb.connect(str(tmp_path / "w.duckdb")) as con:
        con.execute("CREATE TABLE t (code VARCHAR, n INTEGER)")
        con.execute("INSERT INTO t VALUES ('A', 1)")
    code = Column("code", "varchar(9)", "varchar", nullable=False, characters=9, octets=36, charset="utf8mb4")
    table = described(
        "s", "t", (replace(code, collation="utf8mb4_general_ci"), N), ("code",), None, "full", "t"
    )

    class Deleted(Source):
        def rows(self, sql: str) -> list[tuple[bytes, ...]]:
            return [] if "SHA2" in sql else [(b"in", b"", b"A")]

    source = Deleted(tmp_path / "w.duckdb")
    found = look_up(source.services, Scope(table, forms(table, DUCKDB)), [("a",), ("A",)])
    assert (found.extra, found.nowhere) == ((("A",),), (("a",),))


@pytest.mark.parametrize("mode", ["upsert", "append"])
def test_rows_that_left_the_where_since_the_watermark_are_counted_and_those_without_a_place_are_loose(
    tmp_path: Path, mode: Mode
) -> None:
    with duckdb.connect(str(tmp_path / "w.duckdb")) as con:
        con.execute("CREATE TABLE t (id INTEGER, n INTEGER)")
        con.execute("INSERT INTO t VALUES (1, 1), (2, 2), (3, 3), (4, 4)")
    table = described("s", "t", (ID, N), ("id",), "n", mode, "t", where="id > 9")

    class Moved(Source):
        def rows(self, sql: str) -> list[tuple[bytes, ...]]:
            places = [(b"beyond", b"", b"1"), (b"loose", b"", b"2"), (b"in", b"", b"3")]
            return [] if "id > 9" in sql else [*places]

    form = forms(table, DUCKDB)
    scope = Scope(table, form, (form[1], form[0]), high=(5, 5))
    found = look_up(Moved(tmp_path / "w.duckdb").services, scope, [("1",), ("2",), ("3",), ("4",)])
    assert (found.extra, found.outside) == (((2,), (3,), (4,)), ((2,), (3,)))
    assert found.left_out == 1 and found.loose == frozenset({(2,)})
