"""The statements that bring files into Redshift, decided without one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from floodmark.load.redshift.files import UNKNOWN, Proven
from floodmark.load.redshift.merge import RedshiftPut, put
from floodmark.load.redshift.steps import Choose, Do, Expect, Step
from floodmark.model.commit import DataFile, LoadAs
from floodmark.model.errors import DataError
from floodmark.model.table import Column, Table
from floodmark.model.types import fields
from tests.support.described import changed, described

ID = Column("id", "bigint(20)", "bigint", nullable=False)
DAY = Column("day", "date", "date", nullable=False)
BIG = Column("big", "bigint(20) unsigned", "bigint", nullable=False)
NAME = Column("name", "varchar(20)", "varchar", characters=20, charset="utf8mb4", collation="utf8mb4_bin")
ORDERS = described("shop", "orders", (ID, DAY, BIG, NAME), ("id",), None, "upsert", "orders")


def spec(table: Table = ORDERS, **more: Any) -> RedshiftPut:
    return RedshiftPut(
        table=table, schema="public", target="orders", side="floodmark_keys_orders", fields=fields(table),
        parsed=frozenset(), constants=(), filled=True, side_filled=True, manifest=lambda files: "s3://b/m",
        **{"iam_role": None, **more},
    )  # fmt: skip


def as_new(made: RedshiftPut) -> RedshiftPut:
    return replace(made, filled=False, side_filled=False, direct=True, created="CREATE …")


def file(**ranges: tuple[Any, Any]) -> Proven:
    return Proven(DataFile("p", 2, 3, "", 0), ranges, read=(7, 7))


def said(steps: Sequence[Step]) -> Iterator[str]:
    """All statements of a load in which every choice goes the fast way."""
    for step in steps:
        yield step.sql
        if isinstance(step, Choose):
            yield from said(step.then)


def sent(way: LoadAs, made: RedshiftPut, *files: Proven) -> list[str]:
    return list(said(put(made, way, [files], ["2025-01-01T00:00:00Z"])))


@pytest.mark.parametrize(
    ("role", "clause"),
    [(None, "IAM_ROLE default"), ("default", "IAM_ROLE default"), ("arn:a,arn:b", "IAM_ROLE 'arn:a,arn:b'")],
)
def test_the_default_role_is_a_keyword_and_an_empty_stage_gets_its_statistics(
    role: str | None, clause: str
) -> None:
    (copy,) = (sql for sql in sent("merge", spec(iam_role=role), file(id=(1, 5))) if sql.startswith("COPY"))
    assert copy == (
        'COPY "floodmark_stage" ("id", "day", "big", "name", "_floodmark_read") '
        f"FROM 's3://b/m' {clause} MANIFEST FORMAT AS PARQUET"
    )


WITHIN = "\"orders\".\"{}\" BETWEEN CAST('{}' AS {}) AND CAST('{}' AS {})"


@pytest.mark.parametrize("way", ["merge", "delete", "mark"])
def test_rows_of_a_key_are_searched_only_between_the_files_lowest_and_highest(way: LoadAs) -> None:
    changes = [
        sql
        for sql in sent(way, spec(), file(id=(-3, 5)), file(id=(9, 9)))
        if sql.startswith(("DELETE", "UPD"))
    ]
    (change,) = changes
    assert WITHIN.format("id", -3, "BIGINT", 9, "BIGINT") in change
    assert " OR " not in change


def test_every_column_of_a_key_whose_range_is_known_narrows_the_rows() -> None:
    table = changed(ORDERS, key=("id", "day", "big"))
    ranges = {"id": (1, 2), "day": UNKNOWN, "big": (Decimal(1), Decimal(2**64 - 1))}
    (change,) = (sql for sql in sent("merge", spec(table), file(**ranges)) if sql.startswith("DELETE"))
    assert WITHIN.format("id", 1, "BIGINT", 2, "BIGINT") in change
    assert WITHIN.format("big", 1, "DECIMAL(20,0)", 2**64 - 1, "DECIMAL(20,0)") in change
    assert '"day" BETWEEN' not in change


def test_the_range_that_rows_are_searched_in_is_proven_first() -> None:
    statements = sent("merge", spec(), file(id=(1, 5)))
    proof = next(i for i, sql in enumerate(statements) if "min(\"id\") <> CAST('1' AS BIGINT)" in sql)
    assert proof < next(i for i, sql in enumerate(statements) if sql.startswith("DELETE"))


def test_only_a_target_with_further_columns_takes_the_longer_way() -> None:
    assert not any("floodmark_kept" in sql for sql in sent("merge", spec(), file(id=(1, 5))))
    further = sent("merge", spec(kept=("phone",)), file(id=(1, 5)))
    made = [sql.split(maxsplit=1)[0] for sql in further if not sql.startswith(("COPY", "SELECT"))]
    assert made == ["CREATE", "CREATE", "DELETE", "INSERT", "INSERT", "DROP"]
    saved = next(sql for sql in further if sql.startswith('CREATE TEMP TABLE "floodmark_kept"'))
    assert WITHIN.format("id", 1, "BIGINT", 5, "BIGINT") in saved


@pytest.mark.parametrize("kept", [(), ("phone",)])
def test_either_way_as_many_rows_are_inserted_as_the_files_have(kept: tuple[str, ...]) -> None:
    *_, placed = put(spec(kept=kept), "merge", [[file(id=(1, 5))]])
    assert isinstance(placed, Choose)
    inserts = [step for step in placed.then if step.sql.startswith("INSERT")]
    assert [step.rows for step in inserts if isinstance(step, Do)] == ([None, 2] if kept else [2])
    assert [step.together for step in inserts if isinstance(step, Do)] == ([False, True] if kept else [False])


def test_the_stage_is_distributed_like_the_target() -> None:
    (made,) = (sql for sql in sent("merge", spec(dist_key="id"), file()) if sql.startswith("CREATE"))
    assert made.endswith('"_floodmark_read" BIGINT) DISTSTYLE KEY DISTKEY ("id")')
    (made,) = (sql for sql in sent("merge", spec(dist_key="elsewhere"), file()) if sql.startswith("CREATE"))
    assert made.endswith('"_floodmark_read" BIGINT)')


def test_a_new_target_is_filled_by_copy_alone() -> None:
    statements = sent("merge", as_new(spec()), file(id=(1, 5)))
    assert [sql.split("(")[0].strip() for sql in statements if not sql.startswith("SELECT")] == [
        'ALTER TABLE "public"."orders" ADD COLUMN "_floodmark_read" BIGINT',
        'COPY "public"."orders"',
        'ALTER TABLE "public"."orders" DROP COLUMN "_floodmark_read"',
    ]
    (proof,) = (sql for sql in statements if sql.startswith("SELECT"))
    assert proof.startswith("SELECT CASE WHEN count(*) <> 2 THEN 'rows '") and proof.endswith(
        'FROM "public"."orders"'
    )


def refused(steps: Sequence[Step], times: int) -> Iterator[str]:
    """All statements of a load in which this many choices go the slow way, as the Data API finally sends it."""
    for step in steps:
        if not isinstance(step, Choose):
            yield step.sql
        elif times:
            yield from refused(step.otherwise(), times - 1)
        else:
            yield step.sql
            yield from refused(step.then, 0)


@pytest.mark.parametrize(("read", "hopes"), [(None, 1), ((7, 7), 2)])
def test_a_first_load_that_has_found_a_key_twice_does_not_try_the_short_way_again(
    read: tuple[int, int] | None, hopes: int
) -> None:
    commits = [[replace(file(id=(1, 5)), read=read)] for _ in range(2)]
    steps = put(as_new(spec()), "merge", commits)
    made = list(refused(steps, hopes))
    assert not any("AS again" in sql for sql in made)  # no choices are left
    copies = [sql.split("(")[0].strip() for sql in made if sql.startswith("COPY")]
    assert copies == ['COPY "public"."orders"', *['COPY "floodmark_stage"'] * 2]


def test_count_ranges_and_duplicates_of_the_staged_rows_are_one_query() -> None:
    questions = [sql for sql in sent("merge", spec(), file(id=(1, 5))) if sql.startswith("SELECT")]
    (question,) = questions
    assert "count(*) <> 2" in question and "min(\"id\") <> CAST('1' AS BIGINT)" in question
    assert 'GROUP BY "id" HAVING count(*) > 1' in question


def test_a_difference_from_the_files_is_named() -> None:
    (proof,) = (step for step in put(spec(), "delete", [[file(id=(1, 5))]]) if isinstance(step, Expect))
    assert str(proof.error("rows 1")).startswith("floodmark_stage has 1 rows, but the commits have 2")
    assert str(proof.error("column my day")).startswith("column my day has a different range")
    assert str(proof.error(None)).startswith("Redshift's rows differ from the files'")  # through the Data API


SEEN = Column("seen", "datetime(6)", "datetime", fraction=6)


@pytest.mark.parametrize(
    ("table", "heap"),
    [(changed(ORDERS, columns=(*ORDERS.columns, SEEN), cursor="seen"), "stage"), (ORDERS, "new target")],
    ids=["with a cursor", "by the time of reading"],
)
def test_long_texts_are_not_sorted_if_a_key_occurs_twice(table: Table, heap: str) -> None:
    made = spec(table) if heap == "stage" else as_new(spec(table))
    commits = [[replace(file(id=(1, 5)), read=(n, n))] for n in (7, 8)]
    ranked = [sql for sql in refused(put(made, "merge", commits), 1) if " OVER (" in sql]
    assert [sql for sql in ranked if '"name"' in sql and '"floodmark_tied"' not in sql] == []
    (order,) = (sql for sql in ranked if "rank()" in sql)
    assert 'AS SELECT "id", "_floodmark_read"' in order and '"name"' not in order


def test_no_long_document_silently_becomes_null() -> None:
    docs = tuple(Column(name, "json", "json") for name in ("doc", "more"))
    made = spec(changed(ORDERS, columns=(ID, *docs)), documents=frozenset({"more", "doc"}))
    steps = put(made, "merge", [[file(id=(1, 5))]])
    (check,) = (step for step in steps if isinstance(step, Expect) and "VARCHAR(MAX)" in step.sql)
    assert (check.sql, check.want) == (
        'SELECT count(*) FROM "floodmark_stage" WHERE ("doc" IS NOT NULL AND CAST("doc" AS VARCHAR(MAX)) IS NULL) '
        'OR ("more" IS NOT NULL AND CAST("more" AS VARCHAR(MAX)) IS NULL)',
        0,
    )
    assert isinstance(check.error(2), DataError) and "JSON of some rows (2)" in str(check.error(2))
    assert not any("VARCHAR(MAX)" in sql for sql in sent("merge", spec(), file()))


def test_a_snapshot_is_proven_in_the_stage_where_the_target_does_not_show_its_rows() -> None:
    snapshot = spec(changed(ORDERS, mode="full"), direct=True)
    *_, choice = put(snapshot, "replace", [[file(day=(1, 5))]])
    assert isinstance(choice, Choose) and choice.then == ()
    assert choice.sql.startswith(
        "SELECT CASE WHEN count(*) <> 2 THEN 'rows ' || CAST(count(*) AS VARCHAR) WHEN "
    )
    again = [step.sql.split("(")[0].strip() for step in choice.otherwise()]
    assert again[:2] == ['DELETE FROM "public"."orders"', 'CREATE TEMP TABLE "floodmark_stage"']
    assert again[-1] == 'INSERT INTO "public"."orders"'
    *_, check = put(replace(snapshot, filled=False), "replace", [[file(day=(1, 5))]])
    assert isinstance(check, Expect)  # a target of our own making hides nothing
