"""How a DuckDB file stores what is loaded: packed with little work, readable by DuckDB alone, replaced where it has to be."""

from __future__ import annotations

import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pytest

from floodmark.config.load import StoreSpec
from floodmark.load import files
from floodmark.load.duckdb import merge as duckdb_rows
from floodmark.model.errors import DataError
from floodmark.model.statements import STATEMENTS
from floodmark.store.store import Store
from tests.support.described import changed
from tests.support.warehouse_loads import (
    EVENTS,
    ID,
    ORDERS,
    DuckPlace,
    Fill,
    row,
)

STRANGE = [None, "", " ", "null", "Ω≈ç√ 📦", "a\x00b", "x" * 300_000]


@pytest.fixture
def fill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Fill:
    """Files without dictionaries, whose columns are judged by a few rows."""
    monkeypatch.setattr(files, "SAMPLE_ROWS", 1000)
    return Fill(DuckPlace(tmp_path), Store(StoreSpec(str(tmp_path / "lake"))), dictionary=False)


def packed(fill: Fill) -> str:
    """How the names are packed in the file."""
    fill.place.run("CHECKPOINT")
    ((found,),) = fill.place.run(
        "SELECT string_agg(DISTINCT compression, ',') FROM pragma_storage_info('orders') "
        "WHERE lower(column_name) = 'name' AND segment_type = 'VARCHAR'"
    )
    return str(found)


def different(count: int) -> list[dict[str, Any]]:
    return [row(i, f"name {i * 7919 % 100_003}") for i in range(count)]


def test_distinct_texts_are_packed_with_zstd_and_come_back_exactly(fill: Fill) -> None:
    rows = different(5000) + [row(5000 + i, text) for i, text in enumerate(STRANGE)]
    fill.load(fill.commit(rows))
    assert packed(fill) == "ZSTD"
    assert dict(fill.rows()) == {values["id"]: values["Name"] for values in rows}


def test_repeating_texts_are_packed_as_duckdb_chooses(fill: Fill) -> None:
    fill.load(fill.commit([row(i, f"name {i % 10}") for i in range(5000)]))
    assert packed(fill) == "DICT_FSST"


def test_rows_packed_by_zstd_are_replaced_deleted_and_added_to(fill: Fill) -> None:
    fill.load(fill.commit(different(5000)))
    fill.load(fill.commit([row(10, "new"), row(6000, None)]))
    fill.load(fill.commit([{"id": 11}], load_as="delete"))
    expected = {values["id"]: values["Name"] for values in different(5000)} | {10: "new", 6000: None}
    del expected[11]
    assert packed(fill) == "ZSTD"
    assert dict(fill.rows()) == expected


def test_a_file_format_without_zstd_accepts_rows_as_before(fill: Fill, tmp_path: Path) -> None:
    with duckdb.connect() as con:
        con.execute(f"ATTACH '{tmp_path / 'w.duckdb'}' AS old (STORAGE_VERSION 'v1.0.0')")
        con.execute("CREATE TABLE old.theirs AS SELECT 1 AS a")
    fill.load(fill.commit(different(5000)))
    assert "ZSTD" not in packed(fill)
    assert len(fill.rows()) == 5000 and fill.place.run("FROM theirs") == [(1,)]


def test_a_load_s_settings_do_not_remain_in_the_file(fill: Fill) -> None:
    settings = "SELECT name, value FROM duckdb_settings() WHERE name <> 'temp_directory' ORDER BY ALL"
    with duckdb.connect() as con:
        untouched = con.execute(settings).fetchall()
    fill.load(fill.commit(different(5000)))
    there = dict(fill.place.run(settings))
    assert {name: there[name] for name, _ in untouched} == dict(untouched)


@pytest.fixture
def searches(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], int]]:
    """How often loads have looked for rows to replace."""
    with caplog.at_level(logging.DEBUG, STATEMENTS.name):
        yield lambda: sum('DELETE FROM "main"."orders"' in record.getMessage() for record in caplog.records)


def test_rows_with_keys_outside_the_existing_ranges_replace_nothing(
    fill: Fill, searches: Callable[[], int]
) -> None:
    fill.load(fill.commit([row(10, "a"), row(20, "b")]))
    fill.load(fill.commit([row(1, "c"), row(9, "d")], [row(21, "e")], [row(11, "f"), row(19, "g")]))
    assert searches() == 0
    assert fill.rows() == [(1, "c"), (9, "d"), (10, "a"), (11, "f"), (19, "g"), (20, "b"), (21, "e")]


@pytest.mark.parametrize("again", [[10], [5, 10], [10, 15], [20, 25], [5, 10, 15], [1, 20, 99]])
def test_rows_whose_keys_may_exist_replace_what_exists(
    fill: Fill, searches: Callable[[], int], again: list[int]
) -> None:
    fill.load(fill.commit([row(10, "old"), row(20, "old")]))
    fill.load(fill.commit([row(1000, "apart")], [row(i, "new") for i in again]))
    assert searches() == 1
    expected = {10: "old", 20: "old", 1000: "apart"} | dict.fromkeys(again, "new")
    assert fill.rows() == sorted(expected.items())


def test_keys_of_20_digits_are_searched_by_every_digit(fill: Fill) -> None:
    big = replace(ID, type="bigint(20) unsigned")
    fill.table = changed(ORDERS, columns=(big, *ORDERS.columns[1:]))
    top = 2**64 - 1
    fill.load(fill.commit([row(top - 1, "old"), row(top, "old")]))
    fill.load(fill.commit([row(top, "new")]))
    assert fill.rows() == [(top - 1, "old"), (top, "new")]


def test_many_ranges_are_searched_together(
    fill: Fill, monkeypatch: pytest.MonkeyPatch, searches: Callable[[], int]
) -> None:
    monkeypatch.setattr(duckdb_rows, "MAX_RANGES", 2)
    fill.load(fill.commit([row(1, "old")]))
    fill.load(fill.commit([row(2, "a")], [row(3, "b")], [row(1, "new")]))
    assert searches() == 1
    assert fill.rows() == [(1, "new"), (2, "a"), (3, "b")]


@pytest.mark.parametrize("store", ["folder", "s3"])
def test_a_folder_named_like_a_column_and_its_value_changes_no_row(
    store: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    # DuckDB mistakes such names for hive partitions: the working folder's, and of files from S3 the TMPDIR's.
    place = tmp_path / "id=7" / "name=eu" / "filename[1]*"
    place.mkdir(parents=True)
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    if store == "folder":
        spec = StoreSpec(str(place / "lake"))
    else:
        spec = StoreSpec(**request.getfixturevalue("seaweed").store(request.getfixturevalue("prefix")))
    fill = Fill(DuckPlace(place), Store(spec))
    fill.load(fill.commit([row(1, "us"), row(2, None)]))
    fill.load(fill.commit([row(2, "cn", at=2), row(2, "old"), row(3, "fr")]))
    fill.load(fill.commit([{"id": 1}], load_as="delete"))
    assert fill.rows() == [(2, "cn"), (3, "fr")]


@pytest.mark.parametrize(("name", "copy"), [("lake[1]", "lake1"), ("lake*", "lake2"), ("lake?", "lake3")])
def test_a_folder_named_like_a_pattern_is_read_itself_and_not_a_match(
    name: str, copy: str, tmp_path: Path
) -> None:
    # DuckDB takes *, ? and [ in any path for patterns; a copy of the store has files of the same names.
    fill = Fill(DuckPlace(tmp_path), Store(StoreSpec(str(tmp_path / name))), EVENTS)
    done = fill.commit([{"n": 1, "Name": "us"}, {"n": 2, "Name": None}], load_as="insert")
    shutil.copytree(tmp_path / name, tmp_path / copy)
    fill.load(done)
    assert fill.place.run("SELECT n, name FROM events ORDER BY n") == [(1, "us"), (2, None)]


def test_if_duckdb_would_read_other_files_nothing_is_loaded(tmp_path: Path) -> None:
    fill = Fill(DuckPlace(tmp_path), Store(StoreSpec(str(tmp_path / "la\\ke*"))))
    done = fill.commit([row(1, "us")])
    shutil.copytree(tmp_path / "la\\ke*", tmp_path / "la" / "ke1")  # it takes the backslash for a slash
    with pytest.raises(DataError, match="DuckDB would read files"):
        fill.load(done)
    shutil.rmtree(tmp_path / "la")
    fill.load(done)
    assert fill.rows() == [(1, "us")]
