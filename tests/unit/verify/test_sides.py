"""Rows that are hashed here: what DuckDB hands out, printed keys, and which keys differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute
import pytest

from floodmark.load import canonical
from floodmark.load.duckdb import warehouse as handing_out
from floodmark.load.duckdb.warehouse import DuckDB, Portion, batch_rows, first_portion
from floodmark.load.protocol import HandsOutRows
from floodmark.model.canonical import Digest, Scope, Span, forms, printed
from floodmark.model.errors import DataError
from floodmark.model.row_hash import hashes, to_hex
from floodmark.model.table import Column, Table
from floodmark.model.types import fields
from floodmark.model.warehouse import DUCKDB
from floodmark.verify import warehouse as warehouse_side
from floodmark.verify.rows import HashedRows, differing, joined
from floodmark.verify.task import Place
from floodmark.verify.warehouse import WarehouseRows
from tests.support.described import described

KEY = bytes(range(16))
pc: Any = pyarrow.compute


def text(name: str, **more: Any) -> Column:
    return Column(
        name, "varchar(64)", "varchar", characters=64, charset="utf8mb4", collation="utf8mb4_bin", **more
    )


# One column of every form: a value, and others that differ in as little as there is.
VALUES = {
    Column("tiny", "tinyint(4)", "tinyint"): ("7", "8", "-7"),
    Column("mid", "mediumint(9)", "mediumint"): ("70000", "70001"),
    Column("big", "bigint(20)", "bigint"): ("9007199254740993", "9007199254740992"),
    Column("huge", "bigint(20) unsigned", "bigint"): ("18446744073709551615", "18446744073709551614"),
    Column("flag", "bit(1)", "bit", precision=1): ("true", "false"),
    Column("bits", "bit(9)", "bit", precision=9): ("511", "510"),
    Column("price", "decimal(38,4)", "decimal", precision=38, scale=4): ("9999999999999999999999999999999999.9999", "9999999999999999999999999999999999.9998"),
    Column("single", "float", "float"): ("0.1", "0.10000001", "0.0", "'-0.0'"),
    Column("double", "double", "double"): ("0.1", "'0.10000000000000002'", "0.0", "'-0.0'"),
    Column("day", "date", "date"): ("'2024-02-29'", "'2024-03-01'", "'0001-01-01'"),
    Column("wall", "datetime(6)", "datetime", fraction=6): ("'2024-02-29 01:02:03.000004'", "'2024-02-29 01:02:03.000005'"),
    Column("at", "timestamp(6)", "timestamp", fraction=6): ("'2024-02-29 01:02:03.000004+00'", "'2024-02-29 01:02:03.000003+00'"),
    text("name"): ("'a'", "''", "'a '", "'A'", "'á'", "chr(0)"),
    Column("body", "longtext", "longtext", charset="utf8mb4"): ("repeat('x', 5000)", "repeat('x', 4999)", "repeat('x', 4999) || 'y'"),
    Column("raw", "varbinary(64)", "varbinary", octets=64): ("'\\x00'::BLOB", "''::BLOB", "'\\x00\\x00'::BLOB"),
    Column("clob", "longblob", "longblob"): ("'\\xFF\\x00'::BLOB", "'\\xFF\\x01'::BLOB"),
}  # fmt: skip
ID = Column("id", "int(11)", "int", nullable=False)
EVERY = described("s", "t", (ID, *VALUES), ("id",), None, "full", "t")


def scope(table: Table) -> Scope:
    return Scope(table, forms(table, DUCKDB), hash_key=KEY)


def filled(path: Path, table: Table, rows: Sequence[Sequence[str]]) -> DuckDB:
    named = ", ".join(f'"{f.target}" {DUCKDB.type_of(f)}' for f in fields(table))
    with duckdb.connect(str(path)) as con:
        con.execute("SET TimeZone = 'UTC'")
        con.execute(f"CREATE TABLE t ({named})")
        for row in rows:
            con.execute(f"INSERT INTO t VALUES ({', '.join(row)})")
    return DuckDB(path)


def test_the_smallest_difference_in_every_type_changes_the_hash(tmp_path: Path) -> None:
    first = [values[0] for values in VALUES.values()]
    variants = [first]
    for i, (_, *others) in enumerate(VALUES.values()):
        variants += [[*first[:i], other, *first[i + 1 :]] for other in (*others, "NULL")]
    warehouse = filled(tmp_path / "w.duckdb", EVERY, [("1", *variant) for variant in (*variants, first)])
    seen = scope(EVERY)
    assert isinstance(warehouse, HandsOutRows) and canonical.same_values(seen, warehouse.types("t") or {})
    found = WarehouseRows(warehouse, seen).rows([Span()]).hashes
    assert len(found) == len(variants) + 1 and len(found.unique()) == len(variants)


KEYS = {
    "number": (Column("k", "int(11)", "int", nullable=False), ("-5", "0", "2147483647")),
    "unsigned": (Column("k", "bigint(20) unsigned", "bigint"), ("18446744073709551615", "0")),
    "decimal": (Column("k", "decimal(20,9)", "decimal", precision=20, scale=9), ("0.000000001", "-0.5", "12")),
    "bits": (Column("k", "bit(9)", "bit", precision=9), ("511",)),
    "flag": (Column("k", "bit(1)", "bit", precision=1), ("true", "false")),
    "float": (Column("k", "float", "float"), ("0.1", "-1e30")),
    "double": (Column("k", "double", "double"), ("0.1", "'-0.0'")),
    "day": (Column("k", "date", "date"), ("'0001-01-01'", "'9999-12-31'", "'2024-02-29'")),
    "wall": (Column("k", "datetime(6)", "datetime", fraction=6), ("'1000-01-01'", "'2024-02-29 01:02:03.000004'")),
    "at": (Column("k", "timestamp(6)", "timestamp", fraction=6), ("'1970-01-01 00:00:01+00'", "'2024-02-29 01:02:03.5+00'")),
    "text": (text("k"), ("'é😀'", "''", "'a b'")),
    "bytes": (Column("k", "binary(2)", "binary", octets=2), ("'\\x00\\xFF'::BLOB",)),
}  # fmt: skip


@pytest.mark.parametrize("kind", KEYS)
def test_keys_are_printed_here_as_the_warehouse_prints_them(tmp_path: Path, kind: str) -> None:
    column, values = KEYS[kind]
    table = described("s", "t", (column,), ("k",), None, "full", "t")
    warehouse = filled(tmp_path / "w.duckdb", table, [(value,) for value in (*values, "NULL")])
    seen = scope(table)
    rows = WarehouseRows(warehouse, seen).rows([Span()])
    [form] = seen.keys
    there = warehouse.ask("t", lambda place: [f"SELECT {place.printed(form)} FROM {place.table}"])
    assert sorted(map(str, rows.keys(seen))) == sorted(map(str, there or []))
    assert len(rows.keys(seen)) == len(values) + 1


def test_a_year_0_has_four_digits() -> None:
    [form] = scope(described("s", "t", (KEYS["day"][0],), ("k",), None, "full", "t")).keys
    assert printed(form, pa.array([-719468], pa.int32()).view(pa.date32())) == ["0000-03-01"]
    [form] = scope(described("s", "t", (KEYS["wall"][0],), ("k",), None, "full", "t")).keys
    moment = pa.array([-719468 * 86_400 * 10**6], pa.int64()).view(pa.timestamp("us", "UTC"))
    assert printed(form, moment) == ["0000-03-01 00:00:00.000000"]


SMALL = described("s", "t", (ID, text("name")), ("id",), None, "full", "t")


def rows(*found: tuple[int, str], passed: Sequence[int] = ()) -> HashedRows:
    ids, names = pa.array([i for i, _ in found], pa.int32()), pa.array([n for _, n in found], pa.string())
    beyond = pa.array(passed, pa.int32())
    return HashedRows(
        pa.table({"key0": ids, "hash": hashes([ids, names], KEY)}),
        pa.table({"key0": beyond, "hash": hashes([beyond], KEY)}),
    )


def test_keys_differ_by_their_hashes_however_often_they_occur() -> None:
    seen = scope(SMALL)
    mine = rows((1, "a"), (2, "b"), (3, "c"), (5, "e"), passed=[4, 7])
    theirs = rows((1, "a"), (2, "other"), (4, "old"), (5, "e"), (5, "e"), (6, "f"))
    found = differing(seen, mine, theirs)
    assert found == {("2",): True, ("3",): False, ("5",): True, ("6",): True}
    assert differing(seen, mine, mine) == differing(seen, rows(), rows()) == {}
    assert list(differing(seen, mine, rows()).values()) == [False] * 4
    assert joined([mine, theirs]).compared.num_rows == 10


def test_ranges_and_groups_of_the_warehouse_leave_out_rows_by_their_keys(tmp_path: Path) -> None:
    seen = scope(SMALL)
    there = WarehouseRows(
        filled(tmp_path / "w.duckdb", SMALL, [(str(n), f"'n{n}'") for n in range(100)]), seen
    )
    without = to_hex(hashes([pa.array([5, 50, 99], pa.int64())], KEY))
    spans = [Span(None, (9,)), Span((9,), (59,)), Span((59,), None)]

    def sums(*args: Any, **more: Any) -> dict[Place, Digest]:
        return there.sums(*args, **more)[0]

    assert [d.rows for d in sums(spans).values()] == [10, 50, 40] and list(sums(spans)) == spans
    whole = sums(spans, without=without)
    assert [d.rows for d in whole.values()] == [9, 49, 39]
    parts = sums(digits=1, without=without)
    assert sum(parts.values(), Digest()) == sum(whole.values(), Digest())
    prefixes = sorted(map(str, parts))[:5]
    some = there.rows(prefixes=prefixes)
    assert some.compared.num_rows == sum(sums(digits=1)[prefix].rows for prefix in prefixes)
    assert there.rows(spans[:1]).keys(seen) == [(str(n),) for n in range(10)]
    none = WarehouseRows(DuckDB(tmp_path / "none.duckdb"), seen)
    assert list(none.sums(spans)[0].values()) == [Digest()] * 3


@pytest.mark.parametrize("prefixes", [(), ("0", "7", "c")])
def test_rows_that_the_warehouse_hashes_have_the_keys_of_those_that_we_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefixes: Sequence[str]
) -> None:
    monkeypatch.setattr(warehouse_side, "ANSWER", 1)  # a question for each group
    warehouse = filled(tmp_path / "w.duckdb", SMALL, [(str(n), f"'n{n}'") for n in range(100)])
    by_us, by_it = (WarehouseRows(warehouse, replace(scope(SMALL), hash_key=key)) for key in (KEY, None))
    spans = () if prefixes else [Span((4,), (7,)), Span((70,), (71,))]
    listed = by_it.rows(spans, prefixes)
    seen = replace(scope(SMALL), hash_key=None)
    if prefixes:
        found = {canonical.hash_of(seen, (str(n),))[0]: 0 for n in range(100)}
        for n in range(100):
            found[canonical.hash_of(seen, (str(n),))[0]] += 1
        assert listed.compared.num_rows == sum(found[prefix] for prefix in prefixes)
    else:
        assert sorted(listed.keys(seen)) == sorted(by_us.rows(spans).keys(scope(SMALL)))
    assert listed.compared.schema.equals(by_it.rows([Span((900,), None)]).compared.schema), "as without rows"
    assert differing(seen, listed, listed) == {}
    assert set(differing(seen, listed, by_it.rows([Span((900,), None)])).values()) == {False}


def test_columns_of_another_kind_are_compared_as_text() -> None:
    seen = scope(EVERY)
    good = {f.target: DUCKDB.type_of(f) for f in fields(EVERY)}
    assert canonical.same_values(seen, good)
    assert canonical.same_values(seen, good | {"tiny": "BIGINT", "single": "DOUBLE"}), "widths don't matter"
    for column, kind in {
        "tiny": "DECIMAL(20,0)", "big": "DOUBLE", "huge": "BIGINT", "price": "DECIMAL(38,6)", "single": "DECIMAL(9,2)",
        "wall": "TIMESTAMP WITH TIME ZONE", "at": "TIMESTAMP", "day": "TIMESTAMP", "name": "BLOB", "raw": "VARCHAR", "flag": "VARCHAR",
    }.items():  # fmt: skip
        assert not canonical.same_values(seen, good | {column: kind}), column
    assert not canonical.same_values(seen, {})
    only = replace(seen, forms=tuple(f for f in seen.forms if f.field.name == "id"))
    assert canonical.same_values(only, good | {"tiny": "VARCHAR"}), "only what is compared"


def test_batches_are_bounded_by_bytes_however_wide_the_rows(tmp_path: Path) -> None:
    wide = described("s", "t", (ID, *(c for c in VALUES if c.name == "body")), ("id",), None, "full", "t")
    warehouse, rows = filled(tmp_path / "w.duckdb", wide, []), 4500
    with duckdb.connect(str(tmp_path / "w.duckdb")) as con:
        con.execute(f"INSERT INTO t SELECT i, repeat(chr(65 + i::INT % 26), 40000) FROM range({rows}) r(i)")
    seen, batches = scope(wide), list[tuple[int, int]]()

    class Watched(DuckDB):
        def hand_out(
            self, target: str, words: Any, each: Callable[[pa.RecordBatch], None], **more: Any
        ) -> None:
            def watched(batch: pa.RecordBatch) -> None:
                assert pa.types.is_large_string(batch.column(1).type), "2 GiB and more fit"
                batches.append((batch.num_rows, batch.nbytes))
                each(batch)

            super().hand_out(target, words, watched, **more)

    found = WarehouseRows(Watched(tmp_path / "w.duckdb"), seen).rows([Span()])
    assert sum(rows for rows, _ in batches) == found.compared.num_rows == rows
    assert max(size for _, size in batches) < 2048 * 41_000
    here = [pa.array([7], pa.int32()), pa.array(["H" * 40_000])]
    assert found.compared.filter(pc.equal(found.compared.column(0), 7)).column(1)[0] == hashes(here, KEY)[0]
    assert warehouse.types("t")


@pytest.mark.parametrize(
    ("width", "seen", "rows"),
    [
        (0, 0, 16_384),
        (3000, 9, 16_384),
        (10_000, 9, 6144),
        (31_250, 0, 2048),
        (2**32, 0, 128),
        (2**32, 200, 2048),
        (2**32, 1_000_000, 64),
        (2**32, 2**31, 1),
    ],
)
def test_the_rows_of_a_batch_by_the_width_of_a_row(width: int, seen: int, rows: int) -> None:
    assert batch_rows(width, seen) == rows


def test_an_error_of_a_running_query_is_translated(tmp_path: Path) -> None:
    warehouse = filled(tmp_path / "w.duckdb", SMALL, [])
    with duckdb.connect(str(tmp_path / "w.duckdb")) as con:
        con.execute("INSERT INTO t SELECT i, 'n' FROM range(100000) r(i)")
    seen = list[int]()
    with pytest.raises(DataError, match="no such row"):
        warehouse.hand_out(
            "t",
            lambda place: f"SELECT if(id = 90000, error('no such row'), id) FROM {place.table}",
            lambda batch: seen.append(batch.num_rows),
        )
    with pytest.raises(KeyError):  # ours stays what it is
        warehouse.hand_out(
            "t", lambda place: f"FROM {place.table}", lambda batch: dict[int, None]()[batch.num_rows]
        )
    assert warehouse.rows("t") == 100_000


def test_portions_are_as_long_as_a_second_and_whole_vectors() -> None:
    assert first_portion(100).rows == 491_520 and first_portion(2**32).rows == 2048
    assert Portion(0, 20_480).next(0.5) == Portion(20_480, 40_960)
    assert Portion(4096, 20_480).next(0.0) == Portion(24_576, 163_840)
    assert Portion(4096, 20_480).next(100.0) == Portion(24_576, 2048)
    assert Portion(0, 2048, 7).next(1.0, 5) == Portion(2048, 2048, 7)
    assert Portion(0, 2048, 7).next(1.0, 9) == Portion(2048, 2048, 9)
    assert Portion(0, 2048).of("t", True) == "t"
    assert Portion(0, 2048).of("t", False) == "(SELECT * FROM t WHERE rowid < 2048)"


@pytest.mark.parametrize("column", ["name", "rowid"])
def test_portions_hand_out_every_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    monkeypatch.setattr(handing_out, "GROWTH", 2)
    monkeypatch.setattr(handing_out, "PORTION_SECONDS", 1e6)
    table = described("s", "t", (ID, text(column)), ("id",), None, "full", "t")
    warehouse = filled(tmp_path / "w.duckdb", table, [])
    with duckdb.connect(str(tmp_path / "w.duckdb")) as con:
        con.execute("INSERT INTO t SELECT i, 'n' || i FROM range(20000) r(i)")
        con.execute("DELETE FROM t WHERE id % 3 = 0")
    asked, ids = list[str](), list[Any]()

    def words(place: canonical.TargetSql) -> str:
        asked.append(place.table)
        return f"SELECT id FROM {place.table} WHERE id < 15000"

    def each(batch: pa.RecordBatch) -> None:
        ids.extend(batch.column(0).to_pylist())

    warehouse.hand_out("t", words, each, width=2**32)
    assert sorted(ids) == [i for i in range(15_000) if i % 3]
    assert len(asked) == (4 if column == "name" else 1), "a column of that name hides DuckDB's"
    ids.clear()
    warehouse.hand_out("t", words, each, width=2**32, at_once=True)
    assert sorted(ids) == [i for i in range(15_000) if i % 3]
    ids.clear()
    warehouse.hand_out("t", words, each, width=2**32, stop=lambda: bool(ids))
    assert 0 < len(ids) <= 2048
    assert WarehouseRows(warehouse, scope(table)).sums([Span()], stop=lambda: True) == ({}, {})
