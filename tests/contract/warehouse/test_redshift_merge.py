"""How rows find their places in Redshift: keys of every kind, first loads without a detour, snapshots."""

from __future__ import annotations

from contextlib import closing, nullcontext
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from floodmark.load.columns import same
from floodmark.load.redshift.steps import Do, Lock, StatementFailed
from floodmark.model.errors import FloodmarkError
from floodmark.model.table import Column
from tests.support.described import changed, described
from tests.support.redshift import RedshiftStandIn
from tests.support.warehouse_loads import (
    CODES,
    EVENTS,
    ID,
    INT,
    NAME,
    ORDERS,
    SEEN,
    DataApiPlace,
    Fill,
    RedshiftPlace,
    code,
    row,
    target_by_hand,
)

DOC = Column("doc", "json", "json")


@pytest.fixture
def place(redshift_place: RedshiftPlace) -> RedshiftPlace:
    return redshift_place


# first loads


def test_a_first_load_is_written_once(fill: Fill, place: RedshiftPlace) -> None:
    place.server.faults.statements.clear()
    fill.load(*(fill.commit([row(n)], read=7) for n in range(3)))
    assert len(place.sent("COPY")) == 1 and not place.sent('INSERT INTO "' + place.schema + '"."orders"')
    assert fill.rows("id") == [(0,), (1,), (2,)]
    assert [name for name, _ in place.columns("orders")] == ["id", "name", "update_at"]


def test_a_first_load_with_a_duplicate_key_keeps_the_newest_row(fill: Fill) -> None:
    fill.load(
        fill.commit([row(1, "low"), row(1, "high", at=9), row(2)]),
        fill.commit([row(2, "later", at=None), row(3)]),
    )
    assert fill.rows() == [(1, "high"), (2, "later"), (3, None)]
    fill.load(fill.commit([row(1, "again")]))
    assert fill.rows() == [(1, "again"), (2, "later"), (3, None)]


@pytest.mark.parametrize(
    ("kind", "read", "copies"),
    [(RedshiftPlace, 7, 3), (RedshiftPlace, None, 3), (DataApiPlace, 7, 4), (DataApiPlace, None, 3)],
)
def test_a_first_load_of_commits_that_files_can_not_tell_apart_keeps_their_order(
    fill: Fill, read: int | None, kind: type[RedshiftPlace], copies: int, redshift: RedshiftStandIn
) -> None:
    fill.place = kind(redshift)
    commits = [fill.commit([row(1, f"read {n}", at=9 - n), row(n)], read=read) for n in (2, 3)]
    fill.load(*commits)
    assert fill.rows() == [(1, "read 3"), (2, None), (3, None)]
    assert len(fill.place.sent("COPY")) == copies


def test_a_first_load_merges_keys_that_differ_only_in_case(fill: Fill, place: RedshiftPlace) -> None:
    fill.table = CODES
    place.server.faults.statements.clear()
    fill.load(fill.commit([code("abc", 1, at=9), code("ABC", 2, at=3), code("x", 1)]))
    assert len(place.sent("COPY")) == 1
    fill.load(fill.commit([code("X", 5), code("aBc", 6)]))
    assert fill.rows("code, n") == [("X", 5), ("aBc", 6)]
    assert [name for name, _ in place.columns("codes")] == ["code", "n", "update_at"]


def test_a_first_load_with_documents_is_staged_to_be_parsed(fill: Fill) -> None:
    fill.table = changed(ORDERS, columns=(ID, SEEN, DOC))
    fill.load(fill.commit([{"id": 1, "doc": '{"a": 1}'}]))
    assert fill.place.run("SELECT json_typeof(doc) FROM orders") == [("object",)]


@pytest.mark.parametrize("kind", [RedshiftPlace, DataApiPlace])
@pytest.mark.parametrize("first", [True, False], ids=["first load", "later load"])
def test_of_rows_without_an_order_one_stays_and_the_older_ones_are_removed(
    fill: Fill, kind: type[RedshiftPlace], first: bool, redshift: RedshiftStandIn
) -> None:
    fill.place = kind(redshift)
    if not first:
        fill.load(fill.commit([row(n, "before") for n in range(6)]))
    fill.load(
        fill.commit([row(1, "a", at=2), row(1, "a", at=2), row(1, "old"), row(2, "x", at=None), row(4, "y")]),
        fill.commit([row(2, "b", at=None), row(2, "b", at=None), row(3, "c", at=9), row(3, "null", at=None)]),
    )
    assert [r for r in fill.rows() if r[1] != "before"] == [(1, "a"), (2, "b"), (3, "c"), (4, "y")]


def test_of_keys_that_differ_only_in_case_the_newest_row_stays_or_one_of_the_newest(fill: Fill) -> None:
    fill.table = CODES
    fill.load(fill.commit([code("abc", 1), code("ABC", 2, at=9), code("aBC", 2, at=9), code("x", 1)]))
    fill.load(fill.commit([code("X", 3), code("x", 4, at=2), code("y", 1), code("Y", 1)]))
    assert sorted((text.lower(), n) for text, n in fill.rows("code, n")) == [("abc", 2), ("x", 4), ("y", 1)]


# keys


def at(day: int) -> datetime:
    return datetime(2025, 1, day, tzinfo=UTC)


@pytest.mark.parametrize(
    ("key", "values"),
    [
        (
            Column("k", "bigint(20) unsigned", "bigint"),
            [Decimal(0), Decimal(7), Decimal(2**64 - 1)],
        ),
        (Column("k", "smallint(6)", "smallint"), [-(2**15), 0, 2**15 - 1]),
        (Column("k", "date", "date"), [date(1, 1, 1), date(2025, 1, 1), date(9999, 12, 31)]),
        (Column("k", "timestamp(6)", "timestamp", fraction=6), [at(1), at(2), at(3)]),
        (Column("k", "binary(2)", "binary", octets=2), [b"\x00\x00", b"\x00\xff", b"\xff\xff"]),
        (replace(NAME, name="k", collation="utf8mb4_0900_bin"), ["", "a", "a "]),
    ],
    ids=lambda value: value.type if isinstance(value, Column) else "",
)
def test_updates_find_their_rows_by_keys_of_every_type(fill: Fill, key: Column, values: list[Any]) -> None:
    fill.table = described("shop", "t", (replace(key, nullable=False), INT), ("k",), None, "upsert", "t")
    fill.load(fill.commit([{"k": value, "n": 1} for value in values]))
    fill.load(fill.commit([{"k": value, "n": 2} for value in (values[0], values[-1])]))
    assert sorted(n for (n,) in fill.rows("n")) == [1, 2, 2]
    fill.load(*(fill.commit([{"k": values[1], "n": n}, {"k": values[0], "n": n}]) for n in (3, 4)))
    assert sorted(n for (n,) in fill.rows("n")) == [2, 4, 4]
    fill.load(fill.commit([{"k": values[-1]}, {"k": values[0]}], load_as="delete"))
    assert fill.rows("n") == [(4,)]


def test_weights_stored_by_an_earlier_version_still_find_their_keys(fill: Fill, place: RedshiftPlace) -> None:
    fill.table = CODES
    fill.load(fill.commit([code("abc", 1), code("x", 2)]))
    place.run("DROP TABLE floodmark_keys_codes")
    place.run('CREATE TABLE floodmark_keys_codes ("_floodmark_key" VARBYTE(65535), "code" VARCHAR(80))')
    place.run(
        "INSERT INTO floodmark_keys_codes VALUES (to_varbyte('ABC', 'utf8'), 'abc'), (to_varbyte('X', 'utf8'), 'x')"
    )
    fill.load(fill.commit([code("ABC", 5)]))
    assert fill.rows("code, n") == [("ABC", 5), ("x", 2)]
    fill.load(fill.commit([{"code": "X", "_floodmark_key": b"X"}], load_as="delete"))
    assert fill.rows("code, n") == [("ABC", 5)]
    kept = place.columns("floodmark_keys_codes")
    assert {name for name, _ in kept} == {"_floodmark_hash", "code"}
    assert same(dict(kept)["_floodmark_hash"], "VARCHAR(32)")


def test_the_staging_table_is_distributed_by_the_real_key_of_an_existing_target(
    fill: Fill, place: RedshiftPlace
) -> None:
    place.run(target_by_hand("VARCHAR(80) DISTKEY"))
    place.server.faults.statements.clear()
    fill.load(fill.commit([row(1, "a")]))
    (stage,) = place.sent('CREATE TEMP TABLE "floodmark_stage"')
    assert stage.endswith('DISTSTYLE KEY DISTKEY ("name")')


# a key that is the DISTKEY and becomes wider

NUMBERED = described(
    "shop", "t", (replace(ID, type="int(11)", data_type="int"), INT), ("id",), None, "upsert", "t"
)
WIDER = changed(NUMBERED, columns=(ID, INT))
DIST_KEY = "SELECT \"column\", type FROM pg_table_def WHERE tablename = 't' AND distkey"


@pytest.mark.parametrize("kind", [RedshiftPlace, DataApiPlace])
def test_a_key_that_has_become_wider_stays_the_distkey(
    fill: Fill, kind: type[RedshiftPlace], redshift: RedshiftStandIn
) -> None:
    place = fill.place = kind(redshift)
    fill.table = NUMBERED
    fill.load(fill.commit([{"id": 1, "n": 1}, {"id": 2, "n": 1}]))
    assert place.run(DIST_KEY) == [("id", "integer")]
    fill.table = WIDER
    assert [change.outside for change in place.open().changes(WIDER)] == [True, False]
    fill.load(fill.commit([{"id": 2**40, "n": 2}, {"id": 1, "n": 2}]))
    assert fill.rows("id, n") == [(1, 2), (2, 1), (2**40, 2)]
    assert place.run(DIST_KEY) == [("id", "bigint")]


def test_a_wider_key_is_the_distkey_again_whatever_happens_to_the_load(
    fill: Fill, place: RedshiftPlace
) -> None:
    fill.table = NUMBERED
    fill.load(fill.commit([{"id": 1, "n": 1}]))
    commit = fill.commit([{"id": 2**40, "n": 2}], table=WIDER)
    fill.warehouse = place.open()
    place.server.faults.fail("COPY", "XX000", "broken", times=100)
    with pytest.raises(FloodmarkError):
        fill.load(commit, table=WIDER)
    assert place.run(DIST_KEY) == [("id", "integer")]
    place.server.faults.clear()
    place.server.faults.drop_after_commit()
    fill.load(commit, table=WIDER)
    assert place.run(DIST_KEY) == [("id", "bigint")] and fill.rows("n") == [(1,), (2,)]


def test_a_load_that_can_not_restore_the_distkey_says_so(fill: Fill, place: RedshiftPlace) -> None:
    fill.table = NUMBERED
    fill.load(fill.commit([{"id": 1, "n": 1}]))
    fill.warehouse = place.open()
    place.server.faults.fail(".*ALTER DISTKEY", "XX000", "a VACUUM is running")
    outcome = fill.load(fill.commit([{"id": 2**40, "n": 2}], table=WIDER), table=WIDER)
    (finding,) = outcome.findings
    assert finding.kind == "dist_key" and finding.detail.endswith('ALTER DISTKEY "id"')
    assert fill.rows("n") == [(1,), (2,)]


# snapshots


def test_a_snapshot_replaces_the_last_one_by_copy_alone(fill: Fill, place: RedshiftPlace) -> None:
    fill.table = changed(EVENTS, mode="full")
    fill.load(fill.commit([{"n": 1, "Name": "a"}, {"n": 1, "Name": "a"}], load_as="replace"))
    place.run("ALTER TABLE events ADD COLUMN mine INTEGER DEFAULT 5")
    place.server.faults.statements.clear()
    fill.load(fill.commit([{"n": 2, "Name": "b"}], load_as="replace"))
    assert not place.sent('CREATE TEMP TABLE "floodmark_stage"')
    assert fill.rows("n, name, mine") == [(2, "b", 5)]


def test_a_snapshot_goes_through_the_stage_into_a_target_with_other_types(
    fill: Fill, place: RedshiftPlace
) -> None:
    fill.table = changed(EVENTS, mode="full")
    place.run("CREATE TABLE events (name VARCHAR(500), n BIGINT)")
    place.server.faults.statements.clear()
    for n in (1, 2):
        fill.load(fill.commit([{"n": n, "Name": "a"}], load_as="replace"))
    assert fill.rows("n, name") == [(2, "a")] and place.sent('CREATE TEMP TABLE "floodmark_stage"')


MASKED = """
CREATE FUNCTION {0}.mask() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.update_at := ''2000-01-01''; RETURN NEW; END';
CREATE TRIGGER mask BEFORE INSERT ON {0}.events FOR EACH ROW EXECUTE FUNCTION {0}.mask()
"""


@pytest.mark.parametrize("kind", [RedshiftPlace, DataApiPlace])
def test_a_snapshot_goes_through_the_stage_into_a_target_that_shows_different_values(
    fill: Fill, kind: type[RedshiftPlace], redshift: RedshiftStandIn
) -> None:
    place = fill.place = kind(redshift)
    fill.table = changed(EVENTS, mode="full", columns=(INT, SEEN))
    fill.load(fill.commit([{"n": 1, "update_at": at(1)}], load_as="replace"))
    place.server.execute(MASKED.format(place.schema))
    fill.load(fill.commit([{"n": n, "update_at": at(2)} for n in (2, 3)], load_as="replace"))
    assert fill.rows("n") == [(2,), (3,)] and place.sent('CREATE TEMP TABLE "floodmark_stage"')


@pytest.mark.parametrize(("rows", "left"), [(3, 4), (2, 0)])
def test_two_statements_must_change_so_many_rows_together(
    fill: Fill, place: RedshiftPlace, rows: int, left: int
) -> None:
    fill.load(fill.commit([row(1)]))
    place.run("CREATE TABLE counted (n INTEGER)")
    into = f"INSERT INTO {place.schema}.counted VALUES"
    steps = (
        Do(f"{into} (1), (2)"),
        Do(f"{into} (3)", rows, together=True),
        Do(f"{into} (4)", 1),
    )
    with (
        closing(place.open()._transport.open()) as session,
        nullcontext() if left else pytest.raises(StatementFailed),
    ):
        session.transaction(Lock(f"{place.schema}.floodmark_lock_orders", 5), steps)
    assert place.run("SELECT count(*) FROM counted") == [(left,)]
