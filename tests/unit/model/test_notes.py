"""What the user should know about a table: values inside, worded in one place, and never stored."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from floodmark.config.load import StoreSpec
from floodmark.log.claim import claim
from floodmark.log.document import commit_path
from floodmark.log.log import Log
from floodmark.model.json import dump, load
from floodmark.model.lineage import with_lineage
from floodmark.model.notes import Kind, Note, Obstacle, Unfit, clause, not_followed, sentence, why_unfit
from floodmark.model.table import Cascade, Column, Table
from floodmark.model.warehouse import DUCKDB
from floodmark.setup.doctor.source import check_table
from floodmark.source.describe import Discovered
from floodmark.source.describe import cascade_note as noted
from floodmark.store.store import Store
from tests.support.described import changed
from tests.support.samples import AT, RUN, TABLE

TEXT = Column("No", "varchar(9)", "varchar", collation="utf8mb4_thai_520_w2")
RATE = Column("rate", "double", "double", nullable=False)
BOTH = ("ON UPDATE CASCADE", "ON DELETE SET NULL")

SAID: list[tuple[Note, str]] = [
    (
        Note("unfit_index", TEXT, index="u", unfit="nullable"),
        "Unique index u can't be the key because of No: it can be NULL.",
    ),
    (
        Note("unfit_index", RATE, index="u", unfit="inexact"),
        "Unique index u can't be the key because of rate: double values can't be compared exactly.",
    ),
    (
        Note("unfit_index", TEXT, index="u", unfit="unknown_collation"),
        "Unique index u can't be the key because of No: only MySQL can compare varchar(9) values"
        " in collation utf8mb4_thai_520_w2.",
    ),
    (
        Note("unfit_index", index="u", unfit="in_part"),
        "Unique index u can't be the key: it covers only part of a column, or an expression.",
    ),
    (
        Note("no_unique_index", columns=("a", "b")),
        "No unique index guarantees that (a, b) identifies a row.",
    ),
    (Note("no_key"), "The table has no key: every sync reads all of it (mode full)."),
    (Note("no_key_and_no_cursor"), "The table has no key: every sync reads all of it."),
    (
        Note("whole_if_changed"),
        "The table has no key: a sync reads all of it once the binary log shows a change (mode full).",
    ),
    (
        Note("no_cursor"),
        "No column shows which rows have changed: every sync reads the whole table (mode full).",
    ),
    (
        Note("not_a_time", RATE),
        "rate is double, not a time, so it isn't used as the cursor unless you set it.",
    ),
    (
        Note("likely_cursor", AT),
        "update_at looks like the time of a row's last change, but isn't used unless you say so:"
        " if every change sets it, configure `cursor: update_at` and `mode: upsert`.",
    ),
    (
        Note("hidden_columns"),
        "The user may not read every column: those it can't see are left out.",
    ),
    (
        Note("unseen_excludes", columns=("a", "b")),
        "a, b in `exclude`: not visible to the user (hidden, or missing).",
    ),
    (
        Note(
            "cascades", AT, ("a", "b"), cascades=(Cascade(("a",), "p", BOTH), Cascade(("b",), "q", BOTH[:1]))
        ),
        "a, b can change without update_at, through ON UPDATE CASCADE and ON DELETE SET NULL from p, ON UPDATE CASCADE from q:"
        " such changes go unnoticed. Set `cascades: follow`, or run `verify --repair` from time to time.",
    ),
    (
        Note("unlogged_cascades", cascades=(Cascade(("a",), "p", ("ON DELETE CASCADE",)),)),
        "This server does not write to its binary log what foreign keys do (ON DELETE CASCADE from p): such changes are not followed."
        " Set `cascades: follow`, which looks for them every `deletes_every`.",
    ),
    (
        Note("nullable_cursor", AT),
        "update_at can be NULL: every sync reads rows without a value again.",
    ),
    (
        Note("nullable_cursor_without_key", AT),
        "update_at can be NULL: without a key, rows without a value can't be read, and stop the sync.",
    ),
    (
        Note("unindexed_cursor", AT),
        "No index starts with update_at: every sync scans the whole table to find changes.",
    ),
    (Note("whole_seconds", AT), "update_at has no fractional seconds: many rows can share one value."),
    (
        Note("unmaintained_cursor", AT),
        "MySQL doesn't maintain update_at (no ON UPDATE CURRENT_TIMESTAMP):"
        " a change that doesn't set it goes unnoticed.",
    ),
    (Note("deletes"), "Deleted rows stay in the target."),
    (Note("updates"), "Changes to old rows are not seen (no update column)."),
    (
        Note("unsteady_where", columns=("NOW", "a subquery")),
        "`where` uses NOW, a subquery: rows that start or stop matching without a change of their own go unnoticed.",
    ),
    (Note("unknown_collation"), "Only MySQL can compare keys in this collation."),
    (
        Note("one_connection", obstacle="engine"),
        "The table is read with one connection: it is not an InnoDB table.",
    ),
    (
        Note("one_connection", obstacle="privilege"),
        "The table is read with one connection: the user may not see the binary log's position"
        " (PROCESS, REPLICATION CLIENT).",
    ),
]


@pytest.mark.parametrize(("note", "words"), SAID, ids=lambda value: getattr(value, "kind", ""))
def test_each_kind_has_its_sentence(note: Note, words: str) -> None:
    assert sentence(note) == words


def test_every_kind_has_words_and_a_check_in_doctor() -> None:
    assert {note.kind for note, _ in SAID} == set(get_args(Kind))
    assert {note.unfit for note, _ in SAID if note.unfit} == set(get_args(Unfit))
    for note, words in SAID:
        found = list(check_table(Discovered(TABLE, (note,)), 5, DUCKDB))[1:]
        if note.kind == "whole_seconds":  # it costs nothing, and `reading` says it
            assert found == []
        else:
            (check,) = found
            assert check.status == ("ok" if note.kind == "deletes" else "warning")
            assert check.detail == clause(note) and check.name
            assert f"{check.detail}.".lower() == words.lower()


def test_what_is_not_followed_depends_on_the_mode_and_on_deletes() -> None:
    by_id = changed(TABLE, mode="append", cursor="id", key=("id",))
    whole = changed(TABLE, mode="full", cursor=None)
    assert not_followed(TABLE, "ignore") == ("deletes",)
    assert not_followed(TABLE, "hard") == () == not_followed(whole, "ignore")
    assert not_followed(by_id, "ignore") == ("deletes", "updates")
    assert not_followed(by_id, "soft") == ("updates",)
    by_time = changed(TABLE, mode="append")
    assert not_followed(by_time, "soft") == ("updates",)
    current = replace(AT, extra="on update CURRENT_TIMESTAMP")
    assert not_followed(changed(by_time, columns=(TABLE.columns[0], current)), "soft") == ()


def test_every_obstacle_to_several_connections_has_words() -> None:
    said = {sentence(Note("one_connection", obstacle=each)) for each in get_args(Obstacle)}
    assert len(said) == len(get_args(Obstacle))


def test_a_name_at_the_beginning_is_not_capitalized() -> None:
    for column in (TEXT, replace(TEXT, name="The"), replace(TEXT, name="éa")):
        note = Note("nullable_cursor", column)
        assert clause(note) == f"{column.name} can be NULL: every sync reads rows without a value again"
        assert sentence(note) == f"{clause(note)}."
    assert clause(Note("no_cursor")).startswith("no column shows")


def test_nullable_columns_of_an_index_matter_for_the_key_not_for_the_cursor() -> None:
    note = Note("unfit_index", TEXT, index="u", unfit="nullable")
    keyless = changed(TABLE, key=(), cursor=None, mode="full")
    first, second = list(check_table(Discovered(keyless, (note,)), 5, DUCKDB))[1:]
    assert (first.name, second.name) == ("key", "key")
    assert first.hint == second.hint == "add a primary key, or name a unique `key` in the configuration"
    assert second.detail == "the table has no key: every sync reads all of it"
    (once,) = list(check_table(Discovered(keyless, (Note("no_key"),)), 5, DUCKDB))[1:]
    assert once.detail == "the table has no key: every sync reads all of it (mode full)"
    assert len(list(check_table(Discovered(keyless, ()), 5, DUCKDB, configured=True))) == 1


def test_a_configured_key_is_refused_in_the_same_words() -> None:
    assert why_unfit("nullable", TEXT) == "it can be NULL"
    assert why_unfit("inexact", RATE) == "double values can't be compared exactly"


def test_only_cascades_into_columns_that_are_read_are_noted() -> None:
    found = (Cascade(("n",), "p", BOTH), Cascade(("other",), "q", BOTH), Cascade(("x", "n"), "p", BOTH))
    table = changed(TABLE, columns=(*TABLE.columns, Column("n", "int", "int")))
    note = noted(table, found)
    assert note == Note("cascades", AT, ("n",), cascades=(found[0], found[2]))
    assert sentence(note).count(" from p") == 1
    assert noted(TABLE, found) is None and noted(changed(table, cursor=None, mode="full"), found) is None


# in a store


def old_rows(data: bytes, *sentences: str) -> bytes:
    """A claim as an earlier version has written it: with sentences."""
    commit = json.loads(data)
    assert commit["table"]["notes"] == []
    commit["table"]["notes"] = list(sentences)
    return json.dumps(commit, ensure_ascii=False, separators=(",", ":")).encode()


def test_sentences_of_earlier_versions_are_not_read_and_none_are_written() -> None:
    written = json.loads(dump(TABLE))
    assert written["notes"] == []
    for notes in ([], ["update_at can be NULL."], ["a", "b"]):
        assert load(Table, json.dumps(written | {"notes": notes}).encode()) == TABLE
    del written["notes"]
    assert load(Table, json.dumps(written).encode()) == TABLE
    assert dump(load(Table, json.dumps(written | {"notes": ["a"]}).encode())) == dump(TABLE)


def test_a_claim_with_sentences_equals_one_without_so_no_new_claim_is_needed(
    tmp_path: Path,
) -> None:
    store = Store(StoreSpec(url=str(tmp_path)))
    log = Log(store, TABLE.name)
    taken = claim(log, log.read(), run=RUN, purpose="sync", table=TABLE)
    taken.lease.release()
    path = commit_path(TABLE.name, taken.state.n)
    data = store.get(path) or b""
    assert json.loads(data)["table"]["notes"] == []
    store.put(path, old_rows(data, "update_at has no sub-second digits: many rows can share one value."))
    state = Log(store, TABLE.name).read()
    # What a run that holds the table, and a resident sync before a snapshot, ask.
    assert state.table is not None and with_lineage(state.table, TABLE) == state.table == taken.state.table
