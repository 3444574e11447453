"""Every part of the recipe, changed in every mode: what is decided about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import pytest

from floodmark.model.errors import ConfigError, DataError
from floodmark.model.lineage import with_lineage
from floodmark.model.table import Column, Mode, Table
from floodmark.plan.recipe import Do, begins_whole, changes, refusal, unfit
from tests.support.described import changed, described

ID = Column("id", "int", "int", nullable=False)
AT = Column("at", "datetime(6)", "datetime", nullable=False, fraction=6)
A, B = (Column(name, "int", "int") for name in "ab")
NOTE = Column("note", "varchar(9)", "varchar", characters=9, charset="utf8mb4", collation="utf8mb4_bin")
TABLE = described(
    "s", "t", (ID, NOTE, A, B, AT), ("id",), "at", "upsert", "t", where="a > 1", deletes="ignore"
)  # fmt: skip
KEYLESS = changed(TABLE, key=(), mode="append")
BY_TEXT = changed(TABLE, key=("note",), columns=(replace(NOTE, nullable=False), ID, A, B, AT))


def with_column(table: Table, column: Column) -> Table:
    return changed(table, columns=tuple(column if c.name == column.name else c for c in table.columns))


def to(**more: Any) -> Callable[[Table], Table]:
    return lambda table: changed(table, **more)


def column(was: Column, **more: Any) -> Callable[[Table], Table]:
    return lambda table: with_column(table, replace(table.column(was.name), **more))


# A change of one part, and what it requires with a key and without one.
MATRIX: list[tuple[str, Callable[[Table], Table], Do | None, Do | None]] = [
    ("nothing", to(), None, None),
    ("mode", to(mode="append"), "nothing", None),
    ("cursor", to(cursor="id"), "refuse", "refuse"),
    ("key", to(key=("id", "a")), "refuse", "reread"),
    ("where", to(where=None), "reread", "refuse"),
    ("where", to(where="a > 2"), "reread", "refuse"),
    ("where", to(where=" a > 1\n"), None, None),
    ("zero_dates", to(zero_dates="null"), "nothing", "nothing"),
    ("zero_dates", to(zero_dates="keep"), "nothing", "nothing"),
    ("overflow", to(overflow="truncate"), "nothing", "nothing"),
    ("deletes", to(deletes="hard"), "nothing", "nothing"),
    ("target", to(target="u"), "refuse", "refuse"),
    ("columns", column(NOTE, characters=10, type="varchar(10)"), "nothing", "nothing"),
    ("columns", column(NOTE, collation="utf8mb4_general_ci"), "nothing", "nothing"),
    ("columns", column(NOTE, characters=8, type="varchar(8)"), "reread", "refuse"),
    ("columns", column(NOTE, charset="latin1"), "reread", "refuse"),
    ("columns", column(A, nullable=False), "reread", "refuse"),
    ("columns", column(A, type="float", data_type="float"), "reread", "refuse"),
    ("columns", column(AT, fraction=3), "reread", "refuse"),
    ("cursor", column(AT, type="timestamp(6)", data_type="timestamp"), "refuse", "refuse"),
    ("key", column(ID, type="char(4)", data_type="char", characters=4), "refuse", "refuse"),
    ("order", to(columns=(ID, NOTE, B, A, AT)), "reread", "refuse"),
]


@pytest.mark.parametrize(("part", "change", "keyed", "keyless"), MATRIX)
@pytest.mark.parametrize("mode", ["upsert", "append", "keyless", "full"])
def test_every_part_changed_in_every_mode_has_one_decision(
    part: str,
    change: Callable[[Table], Table],
    keyed: Do | None,
    keyless: Do | None,
    mode: Mode | Literal["keyless"],
) -> None:
    before = KEYLESS if mode == "keyless" else changed(TABLE, mode=mode)
    now = change(before)
    if mode == "full":
        before, now = (changed(t, mode="full", cursor=None) for t in (before, now))
    found = changes(before, now)
    if mode == "full":
        assert {c.do for c in found} <= {"refuse" if part == "target" else "nothing"}
        return
    expected = keyless if mode == "keyless" else keyed
    if part == "mode" and mode == "append":
        expected = None
    if part == "key" and change(TABLE).key == ("id",) and mode == "keyless":
        part = "columns"
    assert [(c.part, c.do) for c in found] == ([(part, expected)] if expected else [])
    refused = refusal(found, now)
    assert (refused is not None) == (expected == "refuse")
    if refused is not None:
        assert refused.code == (2 if part == "target" else 6)
        assert "floodmark watermark reset -t s.t" in (refused.hint or "")
        assert ("--force" in (refused.hint or "")) == (mode == "keyless")
        # After that, new rows replace the old ones; another target is filled from the old files.
        assert begins_whole(before, now) == (part != "target")
    else:
        assert not begins_whole(before, now)


def test_without_a_key_a_where_that_only_requires_a_cursor_does_not_count() -> None:
    every = changed(KEYLESS, where=None)
    for where in ("at IS NOT NULL", " `AT` is not\nnull "):
        for before, now in ((every, where), (changed(every, where=where), None)):
            assert changes(before, changed(before, where=now)) == ()
            assert not with_lineage(before, changed(before, where=now)).lineage.owed_parts
        # With one, rows without a cursor are read by every sync.
        keyed = changed(TABLE, where=where)
        assert [c.do for c in changes(keyed, changed(TABLE, where=None))] == ["reread"]
    for where in ("a IS NOT NULL", "at IS NOT NULL AND a > 1", "at IS NULL"):
        assert [c.do for c in changes(every, changed(every, where=where))] == ["refuse"]


@pytest.mark.parametrize("policy", ["zero_dates", "overflow"])
def test_values_that_a_policy_has_changed_are_read_again_under_another(policy: str) -> None:
    def under(way: Any) -> Table:
        return changed(TABLE, zero_dates=way) if policy == "zero_dates" else changed(TABLE, overflow=way)

    after = {"zero_dates": ["keep", "error"], "overflow": ["truncate", "error"]}[policy]
    for now in after:
        assert [c.do for c in changes(under("null"), under(now))] == ["reread"]
    assert [c.do for c in changes(changed(TABLE, zero_dates="keep"), changed(TABLE, zero_dates="null"))] == [
        "nothing"
    ]


@pytest.mark.parametrize("before", ["upsert", "append", "full"])
@pytest.mark.parametrize("now", ["upsert", "append", "full"])
def test_from_every_mode_to_every_other(before: Mode, now: Mode) -> None:
    was, is_ = (changed(TABLE, mode=m, cursor=None if m == "full" else "at") for m in (before, now))
    found = {c.part: c.do for c in changes(was, is_)}
    assert found.get("mode") == (None if before == now else "reread" if before == "full" else "nothing")
    assert begins_whole(was, is_) == (before == "full" and now != "full")
    assert (unfit(was, is_) is not None) == (before == "full" and now != "full")


def test_a_table_that_can_now_only_be_read_whole_is_refused_unless_that_was_chosen() -> None:
    now = changed(TABLE, mode="full", cursor=None)
    refused = refusal(changes(TABLE, now, full_by_choice=False), now)
    assert isinstance(refused, DataError) and "was read by at" in refused.message
    assert refusal(changes(TABLE, now), now) is None


def test_a_user_who_has_just_set_the_cursor_gets_no_hint_to_set_it() -> None:
    now = changed(TABLE, cursor="id")
    hints = [
        (refusal(changes(TABLE, now, chosen=c), now) or ConfigError("")).hint or "" for c in (True, False)
    ]
    assert hints[0].startswith("change it back, or") and hints[1].startswith(
        "set `cursor` or `mode` for it, or"
    )


def test_a_key_with_a_different_comparison_is_refused() -> None:
    for collation, charset in (("utf8mb4_general_ci", "utf8mb4"), ("latin1_bin", "latin1")):
        now = with_column(BY_TEXT, replace(BY_TEXT.column("note"), collation=collation, charset=charset))
        refused = refusal(changes(BY_TEXT, now), now)
        assert refused is not None and f"changed from utf8mb4_bin to {collation}" in refused.message
        assert unfit(BY_TEXT, now) is not None
    longer = with_column(BY_TEXT, replace(BY_TEXT.column("note"), characters=20, type="varchar(20)"))
    assert [c.do for c in changes(BY_TEXT, longer)] == ["nothing"]
    bytes_ = [replace(BY_TEXT.column("note"), collation=f"utf8mb4_{c}_bin") for c in ("0900", "nopad")]
    one, other = (with_column(BY_TEXT, c) for c in bytes_)
    assert [c.do for c in changes(one, other)] == ["nothing"]


def test_a_key_whose_enum_gains_an_empty_member_is_refused_and_other_members_are_not() -> None:
    """The invalid value 0 was read as '', and the new member would be merged into it."""
    was = Column("e", "enum('a','b')", "enum", nullable=False)
    before = changed(TABLE, key=("id", "e"), columns=(ID, was, A, B, AT))

    def said(now: str) -> list[tuple[str, Do]]:
        return [(c.part, c.do) for c in changes(before, with_column(before, replace(was, type=now)))]

    assert said("enum('a','b','')") == [("key", "refuse")]
    # A member's first number is its text; a repeated one is a new number, which no earlier row has.
    assert said("enum('a','b','c')") == said("enum('a','b','a')") == [("columns", "nothing")]
    now = with_column(before, replace(was, type="enum('a','b','')"))
    refused = refusal(changes(before, now), now)
    assert isinstance(refused, DataError) and "now has the member ''" in refused.message
    assert "change it back in the source" in str(refused.hint) and "watermark reset" in str(refused.hint)
    assert begins_whole(before, now)


def test_keys_of_text_were_not_merged_while_rows_were_only_added() -> None:
    assert refusal(changes(changed(BY_TEXT, mode="append"), BY_TEXT), BY_TEXT) is not None
    assert refusal(changes(BY_TEXT, changed(BY_TEXT, mode="append")), BY_TEXT) is None


def test_a_first_key_that_old_rows_do_not_have_is_refused() -> None:
    new = Column("no", "int", "int", nullable=False)
    now = changed(TABLE, key=("no",), columns=(*TABLE.columns, new))
    assert refusal(changes(KEYLESS, now), now) is not None


def test_renamed_keys_cursors_and_columns_continue() -> None:
    columns = (replace(ID, name="no"), NOTE, replace(A, name="aa"), B, replace(AT, name="changed"))
    renames = (("id", "no"), ("a", "aa"), ("at", "changed"))
    now = changed(TABLE, columns=columns, key=("no",), cursor="changed", renames=renames)
    assert changes(TABLE, now) == ()


def test_columns_that_swapped_names_are_read_again_renames_or_not() -> None:
    swapped = changed(TABLE, columns=(ID, NOTE, B, A, AT))
    for renames in ((), (("a", "b"), ("b", "a"))):
        now = changed(swapped, renames=renames)
        assert [c.do for c in changes(TABLE, now)] == ["reread"]


def test_a_part_that_an_older_description_did_not_record_requires_nothing() -> None:
    known = changed(TABLE, columns=tuple(replace(c, generated="") for c in TABLE.columns))
    assert changes(changed(TABLE, deletes=None), known) == ()


def test_a_new_target_is_filled_when_all_files_load_again() -> None:
    now = changed(TABLE, target="u")
    assert [c.do for c in changes(TABLE, now, reloads=True)] == ["nothing"]


def test_a_keyless_table_starts_over_and_replaces_rows_that_lack_a_column() -> None:
    new = changed(KEYLESS, columns=(*KEYLESS.columns, Column("c", "int", "int")))
    assert begins_whole(KEYLESS, new) and not begins_whole(KEYLESS, KEYLESS)


# ---------------------------------------------------------------- between a cursor and the binary log

FOLLOWED = changed(TABLE, cursor=None, changes="binlog")


def made(before: Table, now: Table, **more: Any) -> dict[str, Do]:
    return {change.part: change.do for change in changes(before, now, **more)}


def test_a_switch_between_a_cursor_and_the_binary_log_is_compared_in_both_directions() -> None:
    assert made(TABLE, FOLLOWED) == made(FOLLOWED, TABLE) == {"changes": "reconcile"}
    by_id = changed(TABLE, cursor="id", mode="append")
    assert made(by_id, FOLLOWED) == {"mode": "nothing", "changes": "reconcile"}
    (change,) = changes(TABLE, FOLLOWED)
    assert str(change) == (
        "s.t was read by at so far, and now follows the binary log: "
        "source and target are compared, and what differs is repaired"
    )
    assert changes(FOLLOWED, TABLE)[0].said == "s.t followed the binary log so far, and is now read by at"


def test_other_parts_of_the_recipe_mean_for_a_followed_table_what_they_mean_for_others() -> None:
    assert made(FOLLOWED, FOLLOWED) == {}
    assert made(FOLLOWED, changed(FOLLOWED, where="a > 2")) == {"where": "reread"}
    assert made(TABLE, changed(FOLLOWED, where=None)) == {"changes": "reconcile", "where": "reread"}
    assert made(FOLLOWED, changed(FOLLOWED, key=("id", "a"))) == {"key": "refuse"}
    assert made(FOLLOWED, with_column(FOLLOWED, replace(A, type="char(3)", data_type="char"))) == {
        "columns": "reread"
    }


def test_rows_that_were_not_merged_as_mysql_compares_keys_can_t_be_followed() -> None:
    text = replace(NOTE, nullable=False, collation="utf8mb4_general_ci")
    by_text = changed(TABLE, key=("note",), columns=(text, ID, A, B, AT), mode="append")
    assert made(by_text, changed(by_text, cursor=None, mode="upsert", changes="binlog"))["mode"] == "refuse"


def test_a_table_without_a_cursor_is_read_whole_if_it_no_longer_follows_by_choice() -> None:
    whole = changed(FOLLOWED, mode="full", changes=None)
    assert made(FOLLOWED, whole, full_by_choice=False) == {"mode": "nothing"}
    lost = changed(FOLLOWED, key=(), mode="full")
    assert made(FOLLOWED, lost, full_by_choice=False) == {"cursor": "refuse"}
    assert begins_whole(whole, FOLLOWED) and "now follows the binary log" in str(unfit(whole, FOLLOWED))
    assert not begins_whole(TABLE, FOLLOWED) and not begins_whole(FOLLOWED, TABLE)
