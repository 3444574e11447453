"""Names, types and statements for Redshift, decided without one."""

from __future__ import annotations

import pytest

from floodmark.load.columns import TargetColumn
from floodmark.load.redshift.catalog import checked_target, folded, found_column, literal
from floodmark.load.redshift.shape import check_replaceable, shape
from floodmark.model.errors import ConfigError, DataError
from floodmark.model.names import marked
from floodmark.model.table import Column, Table
from floodmark.model.types import fields
from tests.support.described import changed, described

ID = Column("id", "bigint(20)", "bigint", nullable=False)
NAME = Column("name", "varchar(255)", "varchar", characters=255, charset="utf8mb4", collation="utf8mb4_bin")
DOC = Column("doc", "json", "json")
PRICE = Column("price", "decimal(6,2)", "decimal", precision=6, scale=2)
ORDERS = described("shop", "orders", (ID, NAME, PRICE), ("id",), None, "upsert", "orders")


def test_long_names_of_tables_are_truncated_and_stay_distinct() -> None:
    assert folded("x" * 127) == "x" * 127
    assert len(folded("x" * 127, "floodmark_lock_")) == 127
    assert folded("x" * 127, "floodmark_lock_") != folded("x" * 126 + "y", "floodmark_lock_")


def test_a_target_may_not_be_a_temporary_table() -> None:
    assert checked_target("Orders") == "orders"
    with pytest.raises(ConfigError, match="target"):
        checked_target("#temp")


def test_backslashes_and_quotes_stay_inside_a_literal() -> None:
    assert literal("it's \\' x") == "'it''s \\\\'' x'"
    assert literal(5) == "5"


def made(table: Table, found: list[TargetColumn] | None = None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    fit = shape(table, "public", "orders", fields(table), found)
    return tuple(change.statement for change in fit.before), fit.inside


def test_a_target_is_created_with_byte_lengths_and_the_configured_keys() -> None:
    assert made(ORDERS) == (
        (),
        (
            'CREATE TABLE "public"."orders" ("id" BIGINT, "name" VARCHAR(1020), "price" DECIMAL(6,2)) '
            'DISTSTYLE KEY DISTKEY ("id")',
        ),
    )
    keyed = changed(ORDERS, dist_key="ID", sort_key=("price", "id"))
    assert made(keyed)[1][0].endswith(') DISTSTYLE KEY DISTKEY ("id") COMPOUND SORTKEY ("price", "id")')


def test_the_merge_key_is_the_distkey_if_it_is_a_single_column_that_redshift_accepts() -> None:
    both = changed(ORDERS, key=("id", "price"))
    snapshot = changed(ORDERS, mode="full")
    binary = Column("id", "binary(16)", "binary", nullable=False, octets=16)
    for table in (both, snapshot, changed(ORDERS, columns=(binary, NAME))):
        assert "DISTKEY" not in made(table)[1][0]
    assert made(changed(both, dist_key="price"))[1][0].endswith('DISTKEY ("price")')


def test_a_key_that_redshift_does_not_accept_is_refused() -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        made(changed(ORDERS, dist_key="nowhere"))
    with pytest.raises(ConfigError, match="SUPER"):
        made(changed(ORDERS, columns=(ID, DOC), sort_key=("doc",)))


def column(name: str, type_: str) -> TargetColumn:
    return TargetColumn(name, type_)


def test_a_longer_text_is_altered_before_the_transaction_and_the_rest_inside() -> None:
    found = [column("id", "integer"), column("name", "character varying(80)")]
    before, inside = made(ORDERS, found)
    wider = marked("_floodmark_wider_id")
    assert before == ('ALTER TABLE "public"."orders" ALTER COLUMN "name" TYPE VARCHAR(1020)',)
    assert inside == (
        f'ALTER TABLE "public"."orders" ADD COLUMN "{wider}" BIGINT',
        f'UPDATE "public"."orders" SET "{wider}" = CAST("id" AS BIGINT)',
        'ALTER TABLE "public"."orders" DROP COLUMN "id"',
        f'ALTER TABLE "public"."orders" RENAME COLUMN "{wider}" TO "id"',
        'ALTER TABLE "public"."orders" ADD COLUMN "price" DECIMAL(6,2)',
    )


def test_a_target_that_is_wide_enough_or_in_another_order_is_left_alone() -> None:
    found = [
        column("price", "numeric(12,4)"),
        column("extra", "date"),
        column("name", "character varying(65535)"),
        column("id", "bigint"),
    ]
    assert made(ORDERS, found) == ((), ())


def test_a_key_column_that_would_have_to_be_replaced_is_refused_with_the_statements() -> None:
    found = [
        column("ID", "integer"),
        column("name", "character varying(20)"),
        column("price", "numeric(6,2)"),
    ]
    changes = shape(ORDERS, "public", "orders", fields(ORDERS), found).changes
    # The longer name is altered in place, whatever key it is.
    check_replaceable("public", "orders", changes, [("name", True, 1), ("price", False, 2)])
    with pytest.raises(DataError, match=r"column ID of orders .* that is DISTKEY$") as refused:
        check_replaceable("public", "orders", changes, [("ID", True, 0)])
    assert str(refused.value.hint).endswith('run: ALTER TABLE "public"."orders" ALTER DISTSTYLE EVEN')
    with pytest.raises(DataError, match="DISTKEY and SORTKEY") as refused:
        check_replaceable("public", "orders", changes, [("ID", True, 1)])
    assert str(refused.value.hint).endswith('; ALTER TABLE "public"."orders" ALTER SORTKEY NONE')


def test_a_distkey_of_our_own_choice_is_removed_and_restored_for_a_wider_column() -> None:
    found = [
        TargetColumn("id", "integer", dist_key=True),
        column("name", "character varying(1020)"),
        column("price", "numeric(6,2)"),
    ]
    even, wider = shape(ORDERS, "public", "orders", fields(ORDERS), found).changes
    assert even.outside and even.statement == 'ALTER TABLE "public"."orders" ALTER DISTSTYLE EVEN'
    assert wider.after == ('ALTER TABLE "public"."orders" ALTER DISTKEY "id"',)
    check_replaceable("public", "orders", (even, wider), [("id", True, 0), ("price", False, 1)])
    for keys in ([("id", True, 1)], [("id", True, 0), ("price", False, -1)]):
        with pytest.raises(DataError, match="column id of orders"):
            check_replaceable("public", "orders", (even, wider), keys)
    other = changed(ORDERS, dist_key="price")
    (wider,) = shape(other, "public", "orders", fields(ORDERS), found).changes
    with pytest.raises(DataError, match="column id of orders") as refused:
        check_replaceable("public", "orders", (wider,), [("id", True, 0)])
    assert 'ALTER DISTKEY "id"' in str(refused.value.hint)


def test_a_change_that_could_lose_values_is_refused_with_the_statements() -> None:
    found = [column("id", "date"), column("name", "character varying(1020)"), column("price", "numeric(6,2)")]
    with pytest.raises(DataError, match="column id of orders") as refused:
        made(ORDERS, found)
    assert 'CAST("id" AS BIGINT)' in str(refused.value.hint)


def test_json_is_parsed_into_a_super_column_and_kept_as_text_in_a_long_one() -> None:
    table = changed(ORDERS, columns=(ID, NAME, DOC))
    created = shape(table, "public", "orders", fields(table), None)
    assert created.parsed == {"doc"} and '"doc" SUPER' in created.inside[0]
    text = [column("id", "bigint"), column("name", "super"), column("doc", "character varying(65535)")]
    fit = shape(table, "public", "orders", fields(table), text)
    assert (fit.before, fit.inside, fit.parsed) == ((), (), frozenset({"name"}))


def test_a_key_is_refused_in_a_super_column_because_rows_could_not_be_found_by_it() -> None:
    table = changed(ORDERS, columns=(ID, NAME), key=(NAME.name,), cursor=None)
    found = [column("id", "bigint"), column("name", "super")]
    with pytest.raises(DataError, match="column name of orders is super in the warehouse") as refused:
        shape(table, "public", "orders", fields(table), found)
    assert 'CAST("name" AS VARCHAR' in str(refused.value.hint)
    with pytest.raises(DataError, match=r"was VARCHAR.* after the last load and is now super"):
        shape(table, "public", "orders", fields(table), found, known=fields(table))
    whole = changed(table, mode="full")  # every load replaces all rows
    assert shape(whole, "public", "orders", fields(whole), found).parsed == {"name"}


def test_json_is_parsed_into_a_super_column_that_the_same_load_adds() -> None:
    table = changed(ORDERS, columns=(ID, DOC))
    fit = shape(table, "public", "orders", fields(table), [column("id", "bigint")])
    assert '"doc" SUPER' in fit.inside[0] and fit.parsed == {"doc"}


@pytest.mark.parametrize(
    "words",
    [
        "character varying(80)",
        "numeric(20,0)",
        "bigint",
        "binary varying(255)",
        "timestamp without time zone",
        "super",
    ],
)
def test_the_catalogs_columns_are_read_with_their_sizes(words: str) -> None:
    assert found_column(("c", words, False, False, False)) == TargetColumn("c", words)
    assert found_column(("c", words, True, True, True)) == TargetColumn("c", words, False, "set", True)
