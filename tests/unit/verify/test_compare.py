"""How source and warehouse are compared, decided without either."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import duckdb
import pytest
import sqlglot

from floodmark.load import canonical
from floodmark.load.redshift.data_api import MOST_BYTES
from floodmark.model.canonical import GROUP, Digest, Entry, Scope, Span, forms, groups, key_of
from floodmark.model.errors import DataError
from floodmark.model.table import Column, Table
from floodmark.model.warehouse import DUCKDB, REDSHIFT
from floodmark.source import canonical as source
from floodmark.source import ranges as edges
from floodmark.verify.compare import check_compared
from floodmark.verify.lookup import Differences
from floodmark.verify.run import before
from floodmark.verify.scope import check_parsed
from floodmark.verify.search import LEFT_OUT, beside, chunks, listings
from floodmark.verify.task import Place
from floodmark.verify.warehouse import summed
from tests.support.described import changed, described

ID = Column("id", "bigint(20)", "bigint", nullable=False)
PART = Column("part", "int(11)", "int", nullable=False)
NAME = Column("name", "varchar(64)", "varchar", characters=64, charset="utf8mb4", collation="utf8mb4_bin")
BODY = Column("body", "longblob", "longblob")
PRICE = Column("price", "float", "float")
AT = Column("at", "timestamp(6)", "timestamp", nullable=False, fraction=6)
TABLE = described(
    "s", "t", (ID, PART, NAME, BODY, PRICE, AT), ("id", "part"), "at", "upsert", "t", key_index="PRIMARY"
)


def scope(table: Table = TABLE, *, redshift: bool = False) -> Scope:
    every = forms(table, REDSHIFT if redshift else DUCKDB)
    named = {f.field.name: f for f in every}
    order = tuple(named[name] for name in table.order)
    return Scope(table, every, order, ("2025-01-01 00:00:00.000000",), ("2025-02-01 00:00:00.000000", 7, 1))


def test_rows_are_hashed_in_groups_that_fit_into_one_text_of_redshift() -> None:
    many = tuple(
        Column(f"c{i}", "varchar(255)", "varchar", characters=255, charset="utf8mb4") for i in range(300)
    )
    wide = scope(
        described("s", "t", (ID, PART, AT, *many), ("id", "part"), "at", "upsert", "t"), redshift=True
    )
    parts = groups(wide.forms)
    assert len(parts) > 5 and all(sum(f.width + 1 for f in part) <= GROUP for part in parts)
    assert [f for part in parts for f in part] == list(wide.forms)


def test_text_that_the_target_keeps_as_parsed_json_is_left_out() -> None:
    every = {f.field.name for f in forms(TABLE, REDSHIFT)}
    assert every - {f.field.name for f in forms(TABLE, REDSHIFT, {"name"})} == {"name"}


def test_a_key_or_cursor_that_the_target_keeps_as_parsed_json_is_refused() -> None:
    for name in ("part", "at"):
        with pytest.raises(DataError, match=f"column {name} of t is SUPER") as refused:
            check_parsed(TABLE, {"name", name})
        assert "change its type" in str(refused.value.hint)
    check_parsed(TABLE, {"name"})


def test_a_table_of_a_thousand_columns_is_compared_in_duckdb() -> None:
    """An expression there is at most 1,000 deep."""
    many = tuple(Column(f"c{i}", "int(11)", "int") for i in range(1000))
    wide = scope(described("s", "t", (ID, PART, AT, *many), ("id", "part"), "at", "upsert", "t"))
    target = duckdb.connect()
    named = ", ".join(f"c{i} INT" for i in range(1000))
    target.execute(f'CREATE TABLE t (id BIGINT, part INT, "at" TIMESTAMPTZ, {named})')
    target.execute(f"INSERT INTO t VALUES (1, 2, '2025-01-15 00:00:00Z', {', '.join(map(str, range(1000)))})")
    place = canonical.TargetSql(canonical.DUCKDB, "t", {})
    [(_, rows, total)] = target.execute(*canonical.digests(place, wide, [Span()])).fetchall()
    printed = ",".join(["1", "2", "2025-01-15 00:00:00.000000", *map(str, range(1000))])
    assert rows == 1 and total == int(_hashed(wide, printed)[:15], 16)


def _hashed(seen: Scope, printed: str) -> str:
    """A row's hash, made here."""
    values = printed.split(",")
    hashes = []
    for group in groups(seen.forms):
        hashes.append(hashlib.sha256(",".join(values[: len(group)]).encode()).hexdigest()[:32])
        values = values[len(group) :]
    return hashes[0] if len(hashes) == 1 else hashlib.sha256("".join(hashes).encode()).hexdigest()[:32]


def test_keys_in_a_different_order_are_not_cut_into_ranges() -> None:
    assert scope().ordered
    texts = described("s", "t", (NAME, AT), ("name",), "at", "upsert", "t")
    assert not scope(texts).ordered


def test_a_printed_key_is_parsed_back_to_mysql_s_value() -> None:
    kinds = (
        Column("e", "enum('b','a')", "enum", charset="utf8mb4"),
        Column("s", "set('x','y')", "set", charset="utf8mb4"),
        Column("b", "binary(2)", "binary", octets=2),
        Column("d", "decimal(10,2)", "decimal", precision=10, scale=2),
    )
    keyed = scope(described("s", "t", (*kinds, AT), ("e", "s", "b", "d"), "at", "upsert", "t"))
    assert key_of(keyed, ("a", "x,y", "00FF", "1.50")) == (2, 3, "0x00ff", "1.50")
    assert key_of(keyed, ("", "", None, None)) == (0, 0, None, None)


def test_both_sides_hash_the_same_key() -> None:
    keyed = scope(described("s", "t", (NAME, ID, AT), ("name", "id"), "at", "upsert", "t"))
    expected = hashlib.sha256("2:é,5".encode()).hexdigest()[:32]  # each text behind its length in bytes
    assert canonical.hash_of(keyed, ("é", "5")) == expected
    assert canonical.hash_of(keyed, ("a", "5")) != canonical.hash_of(keyed, (None, "5"))


def test_no_query_to_the_source_needs_a_hash_that_mysql_has_dropped() -> None:
    """MD5 and SHA1 are no built-ins since 9.6."""
    for seen in (scope(), scope(redshift=True)):
        later = source.beyond(seen, Span(), 5) or ""
        asked = [source.digest(seen, Span(), 2), source.entries(seen, Span(), ["a"]), later, edges._STRONG]
        assert all("SHA2(" in sql and "MD5(" not in sql and "SHA1(" not in sql for sql in asked)


MANY = tuple(
    Column(f"column_number_{i}", "varchar(255)", "varchar", characters=255, charset="utf8mb4")
    for i in range(60)
)
WIDE = changed(TABLE, columns=(ID, PART, AT, *MANY))


def test_two_thousand_keys_of_a_wide_table_are_queried_in_statements_that_the_data_api_accepts() -> None:
    seen = scope(WIDE, redshift=True)
    free = canonical.TargetSql(canonical.REDSHIFT, '"public"."t"', {})
    bound = replace(free, longest=MOST_BYTES)
    keys = [(str(10**12 + n), str(n)) for n in range(2000)]
    [whole] = canonical.rows(free, seen, keys)
    some = canonical.rows(bound, seen, keys)
    assert len(whole) > MOST_BYTES and all(len(sql.encode()) <= MOST_BYTES for sql in some)
    found = [key for sql in some for key in re.findall(r'"id" = (\d+) AND "part" = (\d+)', sql)]
    assert found == keys

    hashes = [canonical.hash_of(seen, key) for key in keys]
    prefixes = [f"{n:05x}" for n in range(20_000)]
    for questions in (
        canonical.digests(
            bound, seen, [Span((10**12 + 2 * n, n), (10**12 + 2 * n + 1, n)) for n in range(200)], hashes
        ),
        canonical.grouped(bound, seen, 5, hashes, prefixes[:8000]),
        canonical.entries(bound, seen, (), prefixes),
    ):
        assert len(questions) > 1 and all(len(sql.encode()) <= MOST_BYTES for sql in questions)
    listed = re.findall(r"'([0-9a-f]{5})'", " ".join(canonical.entries(bound, seen, (), prefixes)))
    assert listed == prefixes


def test_a_table_with_too_many_columns_for_one_statement_is_refused_with_another_transport() -> None:
    many = tuple(replace(column, name=f"{column.name}_{i}") for column in MANY for i in range(20))
    place = canonical.TargetSql(canonical.REDSHIFT, '"public"."t"', {}, MOST_BYTES)
    with pytest.raises(DataError, match="too many columns") as refused:
        canonical.digests(
            place, scope(changed(TABLE, columns=(ID, PART, AT, *many)), redshift=True), [Span()]
        )
    assert "transport: socket" in str(refused.value.hint)


@pytest.mark.parametrize("longest", [None, 2_000, 1_600])
def test_sums_are_the_same_in_one_statement_and_in_many(longest: int | None) -> None:
    target = duckdb.connect()
    target.execute('CREATE TABLE t (id BIGINT, part INT, name VARCHAR, "at" TIMESTAMPTZ)')
    for n in range(40):
        target.execute(f"INSERT INTO t VALUES ({n}, {n % 3}, 'x{n}', '2025-01-15 00:00:00Z')")
    seen = scope(changed(TABLE, columns=(ID, PART, NAME, AT)))
    place = canonical.TargetSql(canonical.DUCKDB, "t", {}, longest)
    gone = [canonical.hash_of(seen, (str(n), str(n % 3))) for n in range(5, 35)]
    spans = [Span((n - 1, 9), (n + 3, 9)) for n in range(0, 40, 4)]

    def asked(questions: tuple[str, ...]) -> dict[Place, Digest]:
        assert (len(questions) == 2) == (longest is None), (
            "those left out are taken off by a question of their own"
        )
        return summed([row for sql in questions for row in target.execute(sql).fetchall()])

    kept = target.execute("SELECT id FROM t WHERE id NOT BETWEEN 5 AND 34").fetchall()
    by_range = asked(canonical.digests(place, seen, spans, gone))
    assert [by_range.get(str(i), Digest()).rows for i in range(10)] == [4, 1, 0, 0, 0, 0, 0, 0, 1, 4]
    by_group = asked(canonical.grouped(place, seen, 1, gone, [f"{n:x}" for n in range(16)]))
    assert sum(by_group.values(), Digest()) == sum(by_range.values(), Digest())
    assert sum(by_group.values(), Digest()).rows == len(kept) == 10


def test_rows_skipped_by_a_position_set_by_hand_are_not_compared() -> None:
    seen = replace(
        scope(), skipped=((("2025-01-10 00:00:00.000000", 5, 2), ("2025-01-20 00:00:00.000000",)),)
    )
    here = duckdb.connect()
    here.execute('CREATE TABLE t (id BIGINT, part INT, "at" TIMESTAMP)')
    days = [
        (1, "2025-01-05"),
        (2, "2025-01-10"),
        (5, "2025-01-10"),
        (6, "2025-01-10"),
        (7, "2025-01-20"),
        (8, "2025-01-21"),
    ]
    for key, day in days:
        here.execute(f"INSERT INTO t VALUES ({key}, 2, '{day}')")
    question = f"SELECT id FROM t WHERE {' AND '.join(f'({c})' for c in source._inside(seen))} ORDER BY id"
    plain = re.sub(r"_utf8mb4 X'([0-9a-f]+)'", lambda m: f"'{bytes.fromhex(m[1]).decode()}'", question)
    assert [row[0] for row in here.execute(plain.replace("`", '"')).fetchall()] == [1, 2, 5, 8]


def test_rows_without_a_place_in_the_order_are_compared_and_only_later_ones_are_left_out() -> None:
    null = changed(TABLE, columns=(ID, PART, replace(AT, nullable=True)))
    seen = replace(scope(null), future="2026-01-01 00:00:00.000000")
    here = duckdb.connect()
    here.execute('CREATE TABLE t (id BIGINT, part INT, "at" TIMESTAMP)')
    days = {1: "2024-12-31", 2: "2025-01-15", 3: "2025-02-02", 4: "2099-01-01", 5: None}
    for key, day in days.items():
        here.execute("INSERT INTO t VALUES (?, 2, ?)", [key, day])
    question = f"SELECT id, {source._place(seen)} FROM t ORDER BY id"
    plain = re.sub(r"_utf8mb4 X'([0-9a-f]+)'", lambda m: f"'{bytes.fromhex(m[1]).decode()}'", question)
    places = here.execute(plain.replace("`", '"')).fetchall()
    assert places == [(1, "before"), (2, "in"), (3, "beyond"), (4, "loose"), (5, "loose")]
    assert [Entry(("1",), "", place=p).compared for _, p in places] == [False, True, False, True, True]


def test_one_query_leaves_out_only_a_limited_number_of_keys() -> None:
    sizes = [LEFT_OUT - 1, 1, 1, LEFT_OUT, 5]
    assert [len(some) for some in chunks(sizes, lambda size: size)] == [2, 1, 1, 1]


def test_the_place_before_the_first_row_is_below_its_cursor() -> None:
    assert before(TABLE, [("2025-01-01 00:00:00.000000", 5, 1), ("2025-03-01 00:00:00.000000", 1, 1)]) == (
        "2024-12-31 23:59:59.999999",
    )
    ids = described("s", "t", (ID,), ("id",), "id", "append", "t")
    assert before(ids, [(8,), (5,)]) == (4,)
    day = described("s", "t", (ID, Column("d", "date", "date")), ("id",), "d", "upsert", "t")
    assert before(day, [("2025-03-01", 5)]) == ("2025-02-28",)


def test_the_queries_are_valid_sql_of_their_dialects() -> None:
    for redshift, dialect in ((False, "duckdb"), (True, "redshift")):
        asked = scope(redshift=redshift)
        words = canonical.REDSHIFT if redshift else canonical.DUCKDB
        place = canonical.TargetSql(words, '"s"."t"', {"_deleted_at": "timestamp", "id": "decimal(20,2)"})
        spans = [Span(None, (5, 1)), Span((5, 1), (9, 2)), Span((20, 1), None)]
        for sql in (
            *canonical.digests(place, asked, spans, ["00ff" * 8]),
            *canonical.grouped(place, asked, 3, ["00ff" * 8], ["0af"]),
            *canonical.entries(place, asked, spans),
            *canonical.rows(place, asked, [("5", "1"), ("6", "2")]),
        ):
            assert len(sqlglot.parse(sql, dialect=dialect)) == 1
            assert '"_deleted_at" IS NULL' in sql
    for asked_of_mysql in (
        source.digest(scope(), Span((5, 1), None)), source.digest(scope(), Span(), 3), source.beyond(scope(), Span(), 9),
        source.entries(scope(), Span(), ["0af"]), source.rows(scope(), [(5, 1), (6, 2)]),
        source.places(scope(), [(5, 1), (6, 2)]),
    ):  # fmt: skip
        assert len(sqlglot.parse(asked_of_mysql or "", dialect="mysql")) == 1


def test_ranges_that_adjoin_are_listed_as_one() -> None:
    def sums(*ranges: tuple[int, int], rows: int) -> dict[Place, Digest]:
        return {Span((after,), (upto,)): Digest(rows, 1) for after, upto in ranges}

    adjoining = sums(*((n, n + 1) for n in range(7)), rows=10_000)
    assert list(listings(adjoining.items())) == [(Span((0,), (5,)),), (Span((5,), (7,)),)]
    apart = sums(*((2 * n, 2 * n + 1) for n in range(25)), rows=10)
    assert [len(spans) for spans in listings(apart.items())] == [20, 5]
    assert list(listings(sums((0, 1), rows=400_000).items())) == [(Span((0,), (1,)),)]


def test_a_comparison_that_left_out_every_row_of_the_source_has_proven_nothing() -> None:
    check_compared(TABLE, Differences(rows_source=1, rows_warehouse=1, left_out=5))
    check_compared(TABLE, Differences())  # both sides are empty
    for warehouse in (0, 5):
        with pytest.raises(DataError, match=r"nothing could be compared: every row \(5 rows\)"):
            check_compared(TABLE, Differences(rows_warehouse=warehouse, left_out=5))


def test_a_question_beside_ends_when_nobody_waits_for_it_any_more() -> None:
    asked, ended = threading.Event(), threading.Event()

    def question(stop: Callable[[], bool]) -> None:
        asked.set()
        while not stop():
            time.sleep(0.01)
        ended.set()

    with pytest.raises(DataError), beside(question):
        assert asked.wait(20)
        raise DataError("the source's side has failed")
    assert ended.wait(20)
    with beside(lambda stop: stop()) as answer:
        assert answer.result() is False
