"""The columns of a target, in every warehouse: keys as MySQL compares them, names, changes."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from floodmark.load.columns import same
from floodmark.model.errors import ConfigError, DataError
from floodmark.model.table import Column, Table
from tests.support.described import changed
from tests.support.warehouse_loads import (
    CODES,
    ID,
    INT,
    NAME,
    ORDERS,
    SEEN,
    Fill,
    code,
    row,
)

# keys as MySQL compares them


def test_a_key_that_changed_its_case_replaces_the_old_row(fill: Fill) -> None:
    fill.table = CODES
    fill.load(fill.commit([code("abc", 1), code("x", 1)]))
    fill.load(fill.commit([code("ABC", 2)]))
    fill.load(fill.commit([code("aBc", 3)]))
    assert fill.rows("code, n") == [("aBc", 3), ("x", 1)]


def test_keys_that_differ_only_in_case_are_one_key_inside_a_load(fill: Fill) -> None:
    fill.table = CODES
    fill.load(fill.commit([code("abc", 1, at=9), code("ABC", 2, at=3)]), fill.commit([code("Abd", 1)]))
    assert fill.rows("code, n") == [("Abd", 1), ("abc", 1)]


def test_the_types_are_those_that_the_target_has_and_not_those_that_we_would_give_it(fill: Fill) -> None:
    assert fill.place.open().types("orders") is None
    fill.place.run("CREATE TABLE orders (id DECIMAL(20,0), name VARCHAR, update_at TIMESTAMP, mine INTEGER)")
    fill.load(fill.commit([row(1, "a")]))
    found = fill.place.open().types("Orders")
    assert found is not None and list(found) == ["id", "name", "update_at", "mine"]
    assert same(found["id"], "DECIMAL(20,0)") and same(found["mine"], "INTEGER")


def test_the_target_has_only_the_sources_columns(fill: Fill) -> None:
    fill.table = CODES
    fill.load(fill.commit([code("abc", 1)]))
    assert [name for name, _ in fill.place.columns("codes")] == ["code", "n", "update_at"]


def test_rows_from_before_the_weights_are_found_by_their_bytes(fill: Fill) -> None:
    fill.table = CODES
    fill.load(fill.commit([code("abc", 1)]))
    fill.place.run("DROP TABLE floodmark_keys_codes")
    fill.load(fill.commit([code("abc", 2)]))
    assert fill.rows("code, n") == [("abc", 2)]


# columns


def test_wall_clocks_and_instants_arrive_unchanged(fill: Fill) -> None:
    fill.table = changed(
        ORDERS,
        columns=(ID, SEEN, replace(SEEN, name="moment", type="timestamp(6)", data_type="timestamp")),
    )
    first, last = datetime(1000, 1, 1, tzinfo=UTC), datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    instant = datetime(2025, 3, 30, 1, 30, 0, 5, tzinfo=UTC)
    fill.load(fill.commit([{"id": 1, "update_at": first, "moment": instant}, {"id": 2, "update_at": last}]))
    found = fill.rows("id, CAST(update_at AS VARCHAR), extract(epoch FROM moment)")
    assert [(*found[0][:2], round(float(found[0][2]), 6)), found[1]] == [
        (1, "1000-01-01 00:00:00", instant.timestamp()),
        (2, "9999-12-31 23:59:59.999999", None),
    ]
    types = dict(fill.place.columns("orders"))
    assert same(types["update_at"], "TIMESTAMP") and same(types["moment"], "TIMESTAMP WITH TIME ZONE")


def test_names_are_folded_and_any_name_works(fill: Fill) -> None:
    names = (
        "190_time",
        "order",
        'with "quotes"',
        "filename",
        "file_row_number",
        "file_index",
        "Größe",
        "dot",
        "dot.dot",
    )
    columns = (ID, SEEN, *(replace(INT, name=name) for name in names))
    fill.table = changed(ORDERS, columns=columns, target="select")
    values = {name: i for i, name in enumerate(names)}
    fill.load(fill.commit([{"id": 1, **values}, {"id": 1, **values}]))
    found = fill.place.run('SELECT * FROM "select"')
    assert found == [(1, None, *range(len(names)))]


def test_an_extra_column_with_a_default_is_tolerated(fill: Fill) -> None:
    fill.place.run(
        "CREATE TABLE orders (note VARCHAR NOT NULL DEFAULT 'x', ID BIGINT, update_at TIMESTAMP, name VARCHAR)"
    )
    fill.load(fill.commit([row(1, "a")]))
    assert fill.rows("note, id, name") == [("x", 1, "a")]


def test_an_extra_not_null_column_is_refused_with_the_statement(fill: Fill) -> None:
    fill.place.run(
        "CREATE TABLE orders (note VARCHAR NOT NULL, id BIGINT, update_at TIMESTAMP, name VARCHAR)"
    )
    with pytest.raises(DataError, match="NOT NULL") as refused:
        fill.load(fill.commit([row(1, "a")]))
    # Redshift can't make a column nullable.
    change = 'DROP COLUMN "note"' if fill.place.kind == "redshift" else 'ALTER COLUMN "note" DROP NOT NULL'
    assert change in str(refused.value.hint)


def test_a_column_that_was_added_is_added_and_one_that_was_dropped_gets_null(fill: Fill) -> None:
    wider = changed(ORDERS, columns=(*ORDERS.columns, INT))
    narrower = changed(ORDERS, columns=(ID, SEEN))
    fill.load(fill.commit([row(1, "a")]))
    fill.load(fill.commit([{**row(2, "b"), "n": 5}], table=wider), table=wider)
    fill.load(fill.commit([row(3)], table=narrower), table=narrower)
    assert fill.rows("id, name, n") == [(1, "a", None), (2, "b", 5), (3, None, None)]


def test_a_column_that_was_widened_is_widened_and_older_files_still_fit(fill: Fill) -> None:
    def shape(number: Column, price: Column, code: Column) -> Table:
        return changed(ORDERS, columns=(ID, SEEN, number, price, code))

    price = Column("price", "decimal(6,2)", "decimal", precision=6, scale=2)
    code = Column("code", "varbinary(4)", "varbinary", characters=4, octets=4)
    narrow = shape(INT, price, code)
    wide = shape(
        replace(INT, type="bigint(20)", data_type="bigint"),
        replace(price, type="decimal(12,4)", precision=12, scale=4),
        replace(code, type="varbinary(8)", characters=8, octets=8),
    )
    old = {"n": 7, "price": Decimal("1234.56"), "code": b"\0abc"}
    first = fill.commit([{"id": 1, **old}], table=narrow)
    fill.load(first, table=narrow)
    new = {"n": 2**40, "price": Decimal("12345678.1234"), "code": b"12345678"}
    fill.load(fill.commit([{"id": 2, **new}], table=wide), table=wide)
    fill.load(fill.commit([{"id": 3, **old}], table=narrow), table=narrow)
    assert fill.rows("id, n, price") == [
        (1, 7, Decimal("1234.5600")),
        (2, 2**40, Decimal("12345678.1234")),
        (3, 7, Decimal("1234.5600")),
    ]
    hexes = {"redshift": "to_hex(code)", "duckdb": "lower(hex(code))", "postgres": "encode(code, 'hex')"}
    assert fill.rows(f"id, {hexes[fill.place.kind]}") == [
        (1, "00616263"),
        (2, b"12345678".hex()),
        (3, "00616263"),
    ]


def test_a_change_that_could_lose_values_is_refused_with_the_statement(fill: Fill) -> None:
    fill.load(fill.commit([row(1, "a")]))
    text = changed(ORDERS, columns=(replace(NAME, name="id", nullable=False, collation="binary"), NAME, SEEN))
    with pytest.raises(DataError, match="column id of orders") as refused:
        fill.load(fill.commit([{**row(1), "id": "1"}], table=text), table=text)
    assert "ALTER TABLE" in str(refused.value.hint)
    assert fill.rows() == [(1, "a")]


def test_a_foreign_table_with_not_null_columns_is_refused_before_the_first_load_with_the_statements(
    fill: Fill,
) -> None:
    size = "(80)" if fill.place.kind == "redshift" else ""
    fill.place.run(
        f"CREATE TABLE orders (id BIGINT NOT NULL, name VARCHAR{size} NOT NULL, update_at TIMESTAMP)"
    )
    warehouse = fill.place.open()
    assert warehouse.changes(ORDERS) == ()
    with pytest.raises(DataError, match="column name of orders is NOT NULL") as refused:
        warehouse.changes(ORDERS, first_load=True)
    for statement in str(refused.value.hint).partition("run: ")[2].split("; "):
        fill.place.run(statement)
    assert warehouse.changes(ORDERS, first_load=True) == ()
    fill.load(fill.commit([row(1, None)]))
    assert fill.rows() == [(1, None)]


TAKEN_OVER = {
    "duckdb": [
        ["CREATE TABLE orders (id INTEGER PRIMARY KEY, name VARCHAR, update_at TIMESTAMP)"],
        ["CREATE TABLE orders (id INTEGER, name VARCHAR)", "CREATE INDEX by_name ON orders (name)"],
    ],
    "redshift": [
        ["CREATE TABLE orders (id INTEGER NOT NULL, name VARCHAR(80)) DISTKEY (id) SORTKEY (id, name)"],
        ["CREATE TABLE orders (id INTEGER SORTKEY, name VARCHAR(80) DISTKEY)"],
    ],
}


@pytest.mark.parametrize("which", [0, 1])
def test_a_table_whose_key_the_warehouse_can_not_alter_is_refused_with_the_statements_to_run(
    fill: Fill, which: int
) -> None:
    if fill.place.kind not in TAKEN_OVER:
        pytest.skip("it can alter a key, too")
    for statement in TAKEN_OVER[fill.place.kind][which]:
        fill.place.run(statement)
    fill.place.run("INSERT INTO orders (id, name) VALUES (1, 'old'), (2, 'kept')")
    commit = fill.commit([row(1, "a"), row(2**40, "b")])
    with pytest.raises(DataError, match="column id of orders must b") as refused:
        fill.place.open().changes(ORDERS)  # as plan, doctor and a sync look before they read a row
    with pytest.raises(DataError, match="column id of orders must b"):
        fill.load(commit)
    script = str(refused.value.hint).partition("run: ")[2]
    for statement in script.split("; ") if fill.place.kind == "redshift" else [script]:
        fill.place.run(statement)
    fill.load(commit)
    assert fill.rows() == [(1, "a"), (2, "kept"), (2**40, "b")]


def test_files_of_two_schemas_never_load_together(fill: Fill) -> None:
    wider = changed(ORDERS, columns=(*ORDERS.columns, INT))
    with pytest.raises(ValueError, match="together"):
        fill.load(fill.commit([row(1)]), fill.commit([row(2)], table=wider))


def test_a_target_that_is_a_view_is_refused(fill: Fill) -> None:
    fill.place.run("CREATE VIEW orders AS SELECT 1 AS id")
    with pytest.raises(ConfigError, match="is a view"):
        fill.load(fill.commit([row(1)]))
