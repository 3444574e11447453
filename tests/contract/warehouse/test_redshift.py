"""What is Redshift's own: types, names, keys and changes of the target, and the SQL that is sent."""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from floodmark.load.redshift.socket import SocketTransport
from floodmark.load.redshift.warehouse import Redshift
from floodmark.model.errors import ConfigError, DataError, TransientError
from floodmark.model.table import Column, Table
from tests.support.described import changed, described
from tests.support.warehouse_loads import (
    ID,
    INT,
    NAME,
    ORDERS,
    SEEN,
    Fill,
    RedshiftPlace,
    row,
    target_by_hand,
)


@pytest.fixture
def place(redshift_place: RedshiftPlace) -> RedshiftPlace:
    return redshift_place


# values


def test_values_at_their_limits_arrive_exactly(fill: Fill) -> None:
    def column(name: str, type_: str, **more: Any) -> Column:
        return Column(name, type_, type_.partition("(")[0].split()[0], **more)

    columns = (
        ID,
        column("tiny", "tinyint(4) unsigned"),
        column("wide", "bigint(20) unsigned"),
        column("exact", "decimal(38,10)", precision=38, scale=10),
        column("longer", "decimal(65,30)", precision=65, scale=30),
        column("real4", "float"),
        column("real8", "double"),
        column("day", "date"),
        column("wall", "datetime(6)", fraction=6),
        column("instant", "timestamp(6)", fraction=6),
        column("span", "time(6)", fraction=6),
        column("flag", "bit(1)", precision=1),
        column("full", "varchar(255)", characters=255, charset="utf8mb4", collation="utf8mb4_bin"),
        column("raw", "varbinary(10)", octets=10),
        column("doc", "json"),
    )
    fill.table = changed(ORDERS, columns=columns, cursor=None)
    value: dict[str, Any] = {
        "id": -(2**63),
        "tiny": 255,
        "wide": Decimal(2**64 - 1),
        "exact": Decimal("-1234567890123456789012345678.0123456789"),
        "longer": "-0." + "9" * 30,
        "real4": 0.10000000149011612,
        "real8": 1.7976931348623157e308,
        "day": date(9999, 12, 31),
        "wall": datetime(1000, 1, 1, tzinfo=UTC),
        "instant": datetime(2038, 1, 19, 3, 14, 7, 999999, tzinfo=UTC),
        "span": "-838:59:59.000000",
        "flag": True,
        "full": "😀" * 255,
        "raw": b"\x00\xff\\x",
        "doc": json.dumps({"a": [1, 2.5, "ü\\\"'", None, True]}, ensure_ascii=False),
    }
    fill.load(fill.commit([value, {"id": 1}]))
    empty, found = fill.place.run(
        "SELECT id, tiny, wide, exact, longer, real4, real8, day, wall, extract(epoch FROM instant), span, flag, "
        '"full", to_hex("raw"), json_serialize(doc) FROM orders ORDER BY id DESC'
    )
    assert empty == (1, *[None] * 14)
    names = [c.name for c in columns]
    got = dict(zip(names, found, strict=True))
    assert round(float(got.pop("instant")), 6) == value["instant"].timestamp()
    assert json.loads(got.pop("doc")) == json.loads(str(value["doc"]))
    assert got.pop("raw") == b"\x00\xff\\x".hex() and got.pop("wall") == datetime(1000, 1, 1)
    assert got.pop("real4") == pytest.approx(0.1)
    assert got == {name: value[name] for name in got}


def test_json_is_parsed_into_a_column_that_somebody_has_made_super(fill: Fill) -> None:
    fill.place.run(target_by_hand("SUPER"))
    fill.load(fill.commit([row(1, '{"a": 5}'), row(2, None)]))
    assert fill.place.run("SELECT json_typeof(name) FROM orders WHERE id = 1") == [("object",)]


def test_text_that_is_not_json_is_refused_for_a_super_column(fill: Fill) -> None:
    fill.place.run(target_by_hand("SUPER"))
    with pytest.raises(DataError, match=r"(?i)json"):
        fill.load(fill.commit([row(1, "{broken")]))
    assert fill.rows("id") == []


def test_keys_that_end_in_spaces_stay_two_keys(fill: Fill) -> None:
    key = replace(NAME, name="code", nullable=False, collation="utf8mb4_nopad_bin")
    fill.table = described("shop", "codes", (key, INT, SEEN), ("code",), "update_at", "upsert", "codes")
    fill.load(fill.commit([{"code": "a", "n": 1}, {"code": "a ", "n": 2}]))
    fill.load(fill.commit([{"code": "a ", "n": 3}]))
    assert fill.rows("code, n") == [("a", 1), ("a ", 3)]


# names


def test_names_that_redshift_does_not_allow_are_changed_and_stay_distinct(fill: Fill) -> None:
    names = ("xmin", "xmin_", "190_time", "Order", "数" * 64, "数" * 63 + "据")
    fill.table = changed(
        ORDERS, columns=(ID, SEEN, *(replace(INT, name=name) for name in names)), target="数" * 60
    )
    fill.load(fill.commit([{"id": 1, **{name: i for i, name in enumerate(names)}}]))
    fill.load(fill.commit([{"id": 1, **{name: 10 + i for i, name in enumerate(names)}}]))
    assert fill.place.open().rows("数" * 60) == 1
    (table,) = fill.place.run("SELECT table_name FROM svv_tables WHERE table_name LIKE '数%'")
    assert len(table[0].encode()) <= 127
    assert fill.place.run(f'SELECT * FROM "{table[0]}"')[0][2:] == tuple(range(10, 16))


def test_a_target_with_the_name_of_one_of_our_tables_is_refused(fill: Fill) -> None:
    with pytest.raises(ConfigError, match="floodmark_stage"):
        fill.load(fill.commit([row(1)]), target="floodmark_stage")


def test_a_missing_schema_is_created(fill: Fill, place: RedshiftPlace) -> None:
    new = place.server.new_schema()
    transport = SocketTransport(place.server.warehouse_spec(new), place.limits)
    warehouse = Redshift(transport, new.upper(), iam_role=place.server.role)
    assert warehouse.rows("orders") == 0
    warehouse.load(fill.request(fill.commit([row(1)])))
    assert warehouse.rows("orders") == 1
    assert place.run(f"SELECT id FROM {new}.orders") == [(1,)]


def test_an_ordinary_user_with_rights_on_the_schema_is_enough(fill: Fill, place: RedshiftPlace) -> None:
    user, secret = f"u_{secrets.token_hex(4)}", "Ordinary1"
    place.server.create_user(user, secret, "TEMP ON DATABASE dev", f"CREATE, USAGE ON SCHEMA {place.schema}")
    warehouse = place.through(user=user, password=secret)
    for name in ("a", "b"):
        warehouse.load(fill.request(fill.commit([row(1, name)])))
    assert fill.rows() == [(1, "b")] and warehouse.rows("orders") == 1


# keys and changes of the target


def test_dist_and_sort_keys_are_those_of_the_configuration(fill: Fill, place: RedshiftPlace) -> None:
    fill.table = changed(ORDERS, dist_key="id", sort_key=("update_at", "id"))
    fill.load(fill.commit([row(1)]))
    keys = place.run(
        "SELECT \"column\", distkey, sortkey FROM pg_table_def WHERE tablename = 'orders' AND (distkey OR sortkey > 0)"
    )
    assert [(name, dist) for name, dist, _ in keys] == [("id", True), ("update_at", False)]


def wider(characters: int) -> Table:
    name = replace(NAME, characters=characters, octets=characters * 4, type=f"varchar({characters})")
    return changed(ORDERS, columns=(ID, name, SEEN))


def test_a_new_ledger_is_sorted_for_loads_with_a_copy_on_every_node(fill: Fill, place: RedshiftPlace) -> None:
    fill.load(fill.commit([row(1)]))
    keys = place.run(
        "SELECT \"column\" FROM pg_table_def WHERE tablename = 'floodmark_ledger' AND sortkey > 0 ORDER BY sortkey"
    )
    assert keys == [("log_id",), ("epoch",), ("n",)]
    for table in ("floodmark_ledger", "floodmark_targets"):
        (made,) = place.sent(f'CREATE TABLE IF NOT EXISTS "{place.schema}"."{table}"')
        assert " DISTSTYLE ALL" in made


def test_a_longer_text_is_altered_outside_the_transaction(fill: Fill, place: RedshiftPlace) -> None:
    fill.load(fill.commit([row(1, "a")]))
    place.server.faults.statements.clear()
    table = wider(40)
    fill.load(fill.commit([row(2, "b" * 40)], table=table), table=table)
    (alter,) = place.sent("ALTER TABLE")
    statements = list(place.server.faults.statements)
    assert statements.index(alter) < statements.index("BEGIN") and "TYPE VARCHAR(160)" in alter
    fill.load(fill.commit([row(3, "c")]))  # older files still fit
    assert fill.rows("id, length(name)") == [(1, 1), (2, 40), (3, 1)]


def test_after_a_crash_between_the_change_and_the_load_the_next_run_continues(
    fill: Fill, place: RedshiftPlace
) -> None:
    fill.load(fill.commit([row(1, "a")]))
    table = wider(40)
    commit = fill.commit([row(2, "b" * 40)], table=table)
    warehouse = place.open(replace(place.limits, attempts=1))
    place.server.faults.drop_at(1, r"\s*ALTER TABLE", after=True)
    with pytest.raises(TransientError):
        warehouse.load(fill.request(commit, table=table))
    assert fill.load(commit, table=table).rows == 1
    assert fill.rows("id, length(name)") == [(1, 1), (2, 40)]


def test_a_replaced_column_keeps_its_values_or_nothing_changes(fill: Fill, place: RedshiftPlace) -> None:
    narrow = changed(ORDERS, columns=(ID, INT, SEEN))
    wide = changed(ORDERS, columns=(ID, replace(INT, type="bigint(20)", data_type="bigint"), SEEN))
    fill.load(fill.commit([{"id": 1, "n": 7}], table=narrow), table=narrow)
    commit = fill.commit([{"id": 2, "n": 2**40}], table=wide)
    warehouse = place.open(replace(place.limits, attempts=1))
    place.server.faults.fail(r"\s*ALTER TABLE .* RENAME", "53300", "too many connections")
    with pytest.raises(TransientError):
        warehouse.load(fill.request(commit, table=wide))
    assert dict(place.columns("orders"))["n"] == "integer" and fill.rows("id, n") == [(1, 7)]
    fill.load(commit, table=wide)
    assert dict(place.columns("orders"))["n"] == "bigint" and fill.rows("id, n") == [(1, 7), (2, 2**40)]
