"""What the answers of a source mean: it is the same, was set back, or is another one. Needs no service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from floodmark.model.json import dump, load
from floodmark.model.origin import Origin, Witness
from floodmark.model.table import Column, Table
from floodmark.model.witnesses import (
    EARLIER,
    CurrentRow,
    Deep,
    Fate,
    Verdict,
    compared,
    fates,
    gtid_relation,
    judge,
    mark,
    merged,
    spread,
    told_by,
    without,
)
from tests.support.described import changed, described

ID = Column("id", "bigint", "bigint", False, extra="auto_increment")
CODE = Column("code", "varchar(20)", "varchar", False, charset="utf8mb4")
NOTE = Column("note", "varchar(40)", "varchar", charset="utf8mb4")
STATUS = Column("status", "int", "int")
CREATED = Column("created_at", "datetime", "datetime", False)
UPDATED = Column("update_at", "datetime(6)", "datetime", False, extra="on update current_timestamp(6)")

ORDERS = described("shop", "orders", (ID, NOTE, CREATED, UPDATED), ("id",), "update_at", "upsert", "orders")
BARE = described("shop", "bare", (ID, NOTE, UPDATED), ("id",), "update_at", "upsert", "bare")
EVENTS = described("shop", "events", (ID, NOTE, CREATED), ("id",), "id", "append", "events")
PLAIN = described("shop", "plain", (ID, NOTE), ("id",), "id", "append", "plain")
FEW = described("shop", "few", (ID, STATUS), ("id",), "id", "append", "few")
CODES = described("shop", "codes", (CODE, NOTE, UPDATED), ("code",), "update_at", "upsert", "codes")

SERVER = Origin("uuid-1", None, 7, "2026-01-01 00:00:00")
REMADE = replace(SERVER, table_id=8, created="2026-02-01 00:00:00")
OTHER_SERVER = replace(SERVER, server="uuid-2")
BELOW = Deep(below=True, lowest=1, counter=100)


def rows(table: Table, n: int = 6, salt: int = 0) -> list[Witness]:
    """Rows whose cells, but for those of `status`, are all different."""
    found = []
    for i in range(1, n + 1):
        place = (i,) if table.cursor == "id" else (f"2026-01-01 00:00:{i:02}.000000", i)
        cells = tuple(
            (mark(c), 1 + i % 2 if c is STATUS else 1000 * i + j + salt) for j, c in enumerate(told_by(table))
        )
        found.append(Witness(place, cells))
    return found


def same(row: Witness, cursor: int = 0) -> list[CurrentRow]:
    return [CurrentRow(cursor, dict(row.cells))]


def unlike(row: Witness, cursor: int = 0) -> list[CurrentRow]:
    return [CurrentRow(cursor, {name: (value or 0) + 7 for name, value in row.cells})]


def kept_but(row: Witness, column: Column, cursor: int = 0) -> list[CurrentRow]:
    """The row with all cells changed but one."""
    return [CurrentRow(cursor, {n: v if n == mark(column) else (v or 0) + 7 for n, v in row.cells})]


def verdict(
    table: Table,
    answers: Sequence[Sequence[CurrentRow]],
    now: Origin = SERVER,
    deep: Deep | None = BELOW,
    before: Origin = SERVER,
    steady: bool = True,
) -> Verdict:
    asked = rows(table, len(answers))
    found = fates(table, asked, answers, steady=steady)
    return judge(table, replace(before, witnesses=tuple(asked)), now, asked, found, deep=deep)


GONE: list[CurrentRow] = []


@pytest.mark.parametrize("now", [SERVER, REMADE, OTHER_SERVER], ids=["same", "remade", "other server"])
@pytest.mark.parametrize("table", [ORDERS, EVENTS, PLAIN, FEW], ids=lambda t: t.source.table)
def test_rows_in_place_prove_that_a_source_is_the_same_whatever_else_has_changed(
    table: Table, now: Origin
) -> None:
    """ALTER, OPTIMIZE, a swap as gh-ost does it; a promoted replica, replicas in turn, a migration; a purge of old rows."""
    asked = rows(table)
    assert verdict(table, [same(w) for w in asked], now, None).kind == "lives"
    assert verdict(table, [GONE, GONE, GONE, *(same(w) for w in asked[3:])], now, None).kind == "lives"


@pytest.mark.parametrize("now", [SERVER, REMADE, OTHER_SERVER], ids=["same", "remade", "other server"])
def test_updates_of_all_witnesses_are_recognized_by_what_an_update_leaves_unchanged(now: Origin) -> None:
    asked = rows(EVENTS)
    assert verdict(EVENTS, [kept_but(w, CREATED) for w in asked], now).kind == "lives"
    asked = rows(ORDERS)
    assert verdict(ORDERS, [kept_but(w, CREATED, 1) for w in asked], now).kind == "lives"
    assert verdict(ORDERS, [GONE, *(kept_but(w, CREATED, 1) for w in asked[1:])], now).kind == "lives"


def test_a_table_that_was_not_recreated_is_the_same_even_if_every_row_has_changed_or_is_gone() -> None:
    asked = rows(PLAIN)
    assert verdict(PLAIN, [unlike(w) for w in asked]).kind == "lives"
    assert verdict(PLAIN, [GONE for _ in asked]).kind == "lives"
    assert verdict(ORDERS, [unlike(w, 1) for w in rows(ORDERS)]).kind == "lives"


@pytest.mark.parametrize("now", [REMADE, OTHER_SERVER], ids=["remade", "other server"])
@pytest.mark.parametrize("table", [EVENTS, PLAIN, FEW], ids=lambda t: t.source.table)
def test_a_table_that_was_emptied_and_refilled_past_the_watermark_is_a_different_one(
    table: Table, now: Origin
) -> None:
    asked = rows(table)
    refilled = [unlike(w) for w in asked]
    assert verdict(table, refilled, now, None).kind == "deeper"
    assert verdict(table, refilled, now).kind == "replaced"
    assert verdict(table, [GONE, *refilled[1:]], now).kind == "replaced"
    # Without PROCESS no sign reveals a TRUNCATE.
    unseen = replace(SERVER, table_id=None)
    assert verdict(table, refilled, unseen, before=unseen).kind == "replaced"
    assert verdict(table, [GONE for _ in asked], unseen, before=unseen).kind == "lives"


def test_a_few_values_that_agree_by_chance_don_t_make_it_the_same_table() -> None:
    asked = rows(FEW, 8)
    chance = [same(w) if i in (2, 5) else unlike(w) for i, w in enumerate(asked)]
    assert verdict(FEW, chance, REMADE).kind == "replaced"
    assert (
        verdict(FEW, [same(w) if i > 2 else unlike(w) for i, w in enumerate(asked)], REMADE).kind == "lives"
    )


def test_rows_that_took_the_places_of_the_newest_ones_after_a_restore_are_noticed() -> None:
    """A dump was restored, and ids were reused: the rows they now stand for would never be read."""
    asked = rows(PLAIN)
    answers = [*(same(w) for w in asked[:4]), unlike(asked[4]), unlike(asked[5])]
    assert verdict(PLAIN, answers, REMADE).kind == "replaced"
    assert verdict(PLAIN, answers, OTHER_SERVER).kind == "replaced"
    for same_table in (SERVER, replace(SERVER, table_id=None)):  # an update in place
        assert verdict(PLAIN, answers, same_table, before=same_table).kind == "lives"


def test_older_versions_of_the_newest_rows_show_that_a_source_was_set_back_even_if_the_last_one_has_changed_since() -> (
    None
):
    asked = rows(BARE)
    answers = [*(same(w) for w in asked[:3]), same(asked[3], -1), same(asked[4], -1), unlike(asked[5], 1)]
    for now in (SERVER, REMADE, OTHER_SERVER):
        found = verdict(BARE, answers, now)
        assert found.kind == "set back" and "2 of 6" in found.why
    assert verdict(BARE, answers, steady=False).kind == "lives"  # the clock went back


def test_a_cursor_that_was_set_lower_on_purpose_beneath_a_row_in_place_is_no_set_back() -> None:
    asked = rows(BARE)
    assert verdict(BARE, [same(asked[0], -1), *(same(w) for w in asked[1:])]).kind == "lives"
    written = changed(BARE, columns=(ID, NOTE, replace(UPDATED, extra="")))  # by the application
    assert verdict(written, [*(same(w) for w in asked[:5]), same(asked[5], -1)]).kind == "lives"
    assert (
        verdict(written, [*(same(w) for w in asked[:5]), same(asked[5], -1)], OTHER_SERVER).kind == "set back"
    )


@pytest.mark.parametrize("now", [REMADE, OTHER_SERVER], ids=["remade", "other server"])
def test_missing_newest_rows_were_lost_not_deleted_if_the_counter_is_behind_them(
    now: Origin,
) -> None:
    asked = rows(BARE)
    answers = [*(same(w) for w in asked[:3]), GONE, GONE, GONE]
    assert verdict(BARE, answers, now, None).kind == "deeper"
    assert verdict(BARE, answers, now, Deep(True, 1, counter=5)).kind == "set back"
    assert verdict(BARE, answers, now, Deep(True, 1, counter=50)).kind == "lives"
    between = [same(asked[0]), unlike(asked[1], 1), *answers[3:]]  # one before them was changed since
    assert verdict(BARE, between, now, Deep(True, 1, counter=3)).kind == "set back"
    assert verdict(BARE, answers).kind == "lives"
    # Without an auto-increment counter, it takes more of them.
    assert verdict(CODES, answers, now).kind == "lives"
    many = [*(same(w) for w in asked[:3]), *[GONE] * 8]
    assert verdict(CODES, many, now).kind == "set back"


def test_gtids_that_cover_ours_show_that_the_newest_rows_were_deleted_before_a_failover() -> None:
    ours, theirs = replace(SERVER, gtids=f"{A}:1-9"), replace(OTHER_SERVER, gtids=f"{A}:1-10")
    answers = [*(same(w) for w in rows(CODES)[:3]), *[GONE] * 8]
    assert verdict(CODES, answers, theirs, before=ours).kind == "lives"


def test_a_queue_whose_rows_are_all_gone_is_the_same_if_its_keys_have_moved_on() -> None:
    gone = [GONE] * 6
    for table in (BARE, PLAIN):
        assert verdict(table, gone, REMADE, Deep(below=False, lowest=7)).kind == "lives"
        assert verdict(table, gone, REMADE, Deep(below=False, lowest=3)).kind == "replaced"
        assert verdict(table, gone, REMADE, Deep(below=False)).kind == "replaced"  # empty


def test_a_table_refilled_with_some_of_the_same_rows_is_a_different_one() -> None:
    """During a sync: rows that are gone by now would stay in the target."""
    asked = rows(BARE)
    answers = [*(same(w, 1) for w in asked[:4]), GONE, GONE]
    assert verdict(BARE, answers, REMADE, Deep(True, 1, counter=5)).kind == "replaced"
    # The counter has continued: rows were deleted and changed, as in any table of a few rows.
    assert verdict(BARE, answers, REMADE, Deep(True, 1, counter=7)).kind == "lives"
    assert verdict(BARE, [same(w, 1) for w in asked], REMADE).kind == "lives"  # all of it is read again
    assert verdict(BARE, answers).kind == "lives"


def test_a_store_of_an_earlier_version_has_only_the_row_at_the_watermark() -> None:
    low = rows(BARE)[-1]._replace(cells=())
    for answer, kind in (([CurrentRow(-1, {})], "set back"), ([CurrentRow(0, {})], "lives"), (GONE, "lives")):
        found = fates(BARE, [low], [answer], steady=True)
        assert judge(BARE, Origin(), SERVER, [low], found).kind == kind


def test_without_a_key_any_row_of_the_same_moment_may_be_the_witness() -> None:
    keyless = described("shop", "log", (NOTE, CREATED), (), "created_at", "append", "log")
    asked = [Witness((f"2026-01-01 00:00:0{i}.000000",), ((mark(NOTE), i),)) for i in range(3)]
    both = [[*unlike(w), *same(w)] for w in asked]
    assert fates(keyless, asked, both, steady=True) == ["kept"] * 3


@pytest.mark.parametrize(
    ("digits", "was", "same", "lower", "higher"),
    [
        (0, "07.450000", ["07.000000"], "06.000000", "08.000000"),
        (0, "07.500000", ["07.000000", "08.000000"], "06.000000", "09.000000"),
        (0, "59.999999", ["59.000000", "60.000000"], "58.000000", "61.000000"),
        (3, "07.123456", ["07.123000"], "07.122000", "07.124000"),
        (0, "07.000000", ["07.000000"], "06.000000", "08.000000"),
        (6, "07.450000", ["07.450000"], "07.000000", "07.450001"),
    ],
)
def test_a_cursor_with_fewer_digits_than_it_was_read_with_is_in_place_cut_or_rounded(
    digits: int, was: str, same: list[str], lower: str, higher: str
) -> None:
    column = Column("at", "datetime", "datetime", fraction=digits)

    def moment(seconds: str) -> str:
        return f"2026-01-01 00:00:{seconds}".replace("00:00:60", "00:01:00").replace("00:00:61", "00:01:01")

    assert [compared(column, moment(was), moment(now)) for now in same] == [0] * len(same)
    assert [compared(column, moment(was), moment(now)) for now in (lower, higher)] == [-1, 1]


def test_cursors_that_are_not_times_are_compared_as_they_are() -> None:
    coarse = Column("at", "datetime", "datetime", fraction=0)
    assert [compared(ID, 7, now) for now in (6, 7, 8)] == [-1, 0, 1]
    assert compared(coarse, "0000-00-00 00:00:00.000000", "0000-00-00 00:00:00.000000") == 0
    assert compared(coarse, "9999-12-31 23:59:59.600000", "9999-12-31 23:59:59.000000") == -1, "in doubt"
    assert compared(coarse, "0900-01-01 00:00:00.400000", "0900-01-01 00:00:00.000000") == 0


def test_checksums_are_compared_only_where_the_column_is_the_same() -> None:
    assert mark(STATUS) == mark(replace(STATUS, type="int(11)")) != mark(replace(STATUS, type="bigint"))
    assert mark(NOTE) != mark(replace(NOTE, charset="latin1"))
    wider = changed(PLAIN, columns=(ID, replace(NOTE, type="varchar(80)")))
    asked = rows(PLAIN)
    answers = [[CurrentRow(0, {mark(wider.columns[1]): 5})] for _ in asked]
    assert fates(wider, asked, answers, steady=True) == ["kept"] * 6
    assert told_by(ORDERS) == [CREATED, NOTE] and told_by(EVENTS) == [CREATED, NOTE]


def test_a_claim_keeps_the_newest_rows_and_an_even_selection_of_earlier_ones_in_place() -> None:
    before, new = rows(PLAIN, 40), rows(PLAIN, 42)[38:]
    states: list[Fate] = ["gone" if i < 4 else "kept" for i in range(40)]
    found = merged(before, states, new)
    assert found[-4:] == tuple(new) and len(found) == EARLIER + 4
    assert found[0] == before[4] and len({w.position for w in found}) == len(found)
    assert [w.position for w in spread(before, 4)] == [(1,), (14,), (27,), (40,)]


def test_a_sources_signs_and_witnesses_survive_the_log() -> None:
    origin = replace(SERVER, gtids=f"{A}:1-5", witnesses=tuple(rows(ORDERS, 2)))
    assert load(Origin, dump(origin)) == origin


A, B = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "8a94f357-aab4-11df-86ab-c80aa9429562"


@pytest.mark.parametrize(
    ("before", "now", "relation"),
    [
        (None, f"{A}:1-5", "unrelated"),
        (f"{A}:1-5", "", "unrelated"),
        (f"{A}:1-5", f"{A}:1-5", "covers"),
        (f"{A}:1-5", f"{A.upper()}:1-9,{B}:1", "covers"),
        (f"{A}:1-5:8-9", f"{A}:1-9", "covers"),
        (f"{A}:1-9", f"{A}:1-5:8-9", "lacks"),
        (f"{A}:1-9,{B}:1-3", f"{A}:1-9", "lacks"),
        (f"{A}:1-9", f"{B}:1-99", "unrelated"),
        (f"{A}:1-5:tag:1-3", f"{A}:1-5:tag:1-2", "lacks"),
        ("0-1-100", "0-1-100", "covers"),
        ("0-1-100", "0-2-101,1-2-5", "covers"),
        ("0-1-100,1-1-5", "0-1-100", "lacks"),
        ("0-1-100", "0-2-99", "lacks"),
        ("0-1-100", "0-1-98,0-2-105", "lacks"),  # promoted while it was behind, and written to since
        ("0-1-100,0-2-120", "0-2-130", "covers"),
        ("0-1-100", "4-1-100", "unrelated"),
    ],
)
def test_gtids_cover_ours_lack_some_or_can_t_be_compared(before: str | None, now: str, relation: str) -> None:
    assert gtid_relation(before, now) == relation


def test_a_replica_s_own_transactions_are_not_expected_of_other_servers() -> None:
    assert without(f"{A}:1-5,\n{B}:1-2", B.upper()) == f"{A}:1-5"
    assert without("0-1-100,0-2-7,1-2-3,0-12-5", "2") == "0-1-100,0-12-5"
