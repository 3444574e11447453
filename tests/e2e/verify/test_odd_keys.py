"""Rows of the target with keys or times that no source row can have, and keys that are hard to look up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import duckdb
import pytest

from floodmark.load.canonical import DUCKDB
from floodmark.load.duckdb import warehouse as duckdb_warehouse
from tests.conftest import PATIENT, Workspace
from tests.support.tampered_warehouse import Verifying

CURSOR = "update_at TIMESTAMP(6) NOT NULL DEFAULT '2025-03-03', KEY (update_at)"


@pytest.fixture(params=[True, False], ids=["the servers hash", "we hash"])
def place(workspace: Workspace, request: pytest.FixtureRequest) -> Verifying:
    workspace.write(source={"url": workspace.database.url, "hash_on_server": request.param})

    def change(*statements: str) -> None:
        with duckdb.connect(str(workspace.warehouse)) as con:
            for statement in statements:
                con.execute(statement)

    return Verifying(workspace, change, "main")


def filled(place: Verifying, columns: str, *rows: str) -> None:
    place.workspace.execute(
        f"CREATE TABLE odd ({columns}, {CURSOR}) CHARACTER SET utf8mb4",
        *(f"INSERT INTO odd VALUES ({row}, DEFAULT)" for row in rows),
    )
    place.workspace.synced("odd")


def test_a_key_that_no_source_row_can_have_is_refused_in_plain_words(place: Verifying) -> None:
    filled(place, "k TIMESTAMP(6) NOT NULL PRIMARY KEY, later DATE", "'2024-01-02 03:04:05.678901', NULL")
    for value, shown in (
        ("infinity", "infinity"),
        ("-infinity", "-infinity"),
        ("12345-01-01 00:00:00+00", "12345-01-01"),
    ):
        place.change(
            "DELETE FROM odd WHERE later IS NOT NULL",
            f"INSERT INTO odd VALUES ('{value}', '2024-01-01', '2025-03-03 00:00:00+00')",
        )
        error: dict[str, Any] = place.looked("odd")["error"]
        assert (error["code"], error["hint"]) == (6, "delete that row in the warehouse")
        assert f"a row with {shown}" in error["message"] and "key column k" in error["message"]


def test_an_infinite_time_is_not_null(place: Verifying) -> None:
    filled(place, "k INT PRIMARY KEY, seen TIMESTAMP NULL, day DATE", "1, NULL, NULL", "2, NULL, NULL")
    place.change(
        "UPDATE odd SET seen = 'infinity' WHERE k = 1", "UPDATE odd SET day = '-infinity' WHERE k = 2"
    )
    assert place.found("odd") == [("different_row", 1, "seen"), ("different_row", 2, "day")]


@pytest.mark.parametrize("place", [True], indirect=True)
def test_a_row_that_the_warehouse_lists_but_does_not_find_is_no_agreement(
    place: Verifying, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was with infinite times, which DuckDB printed like NULL."""
    instant = "strftime(make_timestamp(epoch_us({})), '%Y-%m-%d %H:%M:%S.%f')"
    printed = replace(DUCKDB, prints={**DUCKDB.prints, "instant": instant})
    monkeypatch.setattr(duckdb_warehouse, "DUCKDB", printed)
    filled(place, "k TIMESTAMP(6) NOT NULL PRIMARY KEY, n INT", "'2024-01-02 03:04:05.678901', 1")
    place.change("INSERT INTO odd VALUES ('infinity', 2, '2025-03-03 00:00:00+00')")
    [finding] = place.verify("odd")["findings"]
    assert finding["kind"] == "count_mismatch"


@pytest.mark.both_servers
@pytest.mark.parametrize("place", [False], indirect=True)
def test_keys_with_members_that_their_type_shows_escaped_are_looked_up(place: Verifying) -> None:
    members = r"'a\\b', 'x\ny', 'q''r', 'nul\0', 'cr\r', '', 'plain'"
    filled(
        place,
        f"k ENUM({members}) NOT NULL, s SET('c\\\\d', 'e', 'f''g') NOT NULL, PRIMARY KEY (k, s)",
        *(f"{n}, {bits}" for n, bits in ((1, 1), (2, 3), (3, 4), (4, 7), (5, 2), (6, 0), (7, 5))),
    )
    assert place.found("odd") == []
    place.change("DELETE FROM odd WHERE k IN (e'a\\\\b', e'x\\ny', '', e'cr\\r')")
    missing = [("missing_row", 1, 1), ("missing_row", 2, 3), ("missing_row", 5, 2), ("missing_row", 6, 0)]
    assert place.found("odd") == missing
    place.change("INSERT INTO odd VALUES ('no such', 'e', '2025-03-03 00:00:00+00')")
    assert "a row with no such in the key column k" in place.looked("odd")["error"]["message"]


# By the key's columns: rows, and one that the warehouse could not tell from another of them.
TWINS = {
    "k ENUM('z', 'a', '') PRIMARY KEY": ("1", "3", "0"),
    "id INT, k ENUM('', 'a'), PRIMARY KEY (id, k)": ("1, 1", "2, 2", "1, 0"),
    "k SET('', 'x') PRIMARY KEY": ("0", "2", "1"),
    "k SET('x', '', 'y') PRIMARY KEY": ("0", "1", "3", "4", "7", "6"),
    "k ENUM('a', 'b', 'a') PRIMARY KEY": ("1", "2", "3"),
    "k SET('a', 'a', 'b') PRIMARY KEY": ("0", "1", "4", "6"),
}
WHOLE = (0, 3)  # those that are read whole, too: an ENUM and a SET


# What MariaDB does differently is its SQL: rows that we hash come from one reader for both servers.
@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("mysql", True),
        ("mysql", False),
        ("mariadb", True),
        pytest.param("mariadb", False, marks=pytest.mark.long),
    ],
    indirect=True,
)
def test_key_values_with_one_text_are_refused_before_one_replaces_the_other(place: Verifying) -> None:
    """In every mode, and by verify on its own: an earlier version may have merged the two."""
    workspace, tables = place.workspace, {}
    for n, (key, rows) in enumerate(TWINS.items()):
        modes = (f"odd{n}", CURSOR, "'2025-03-01'"), (f"whole{n}", "n INT DEFAULT 7", "7")
        for table, column, value in modes if PATIENT or n in WHOLE else modes[:1]:
            *fine, twin = rows
            values = ", ".join(f"({row}, DEFAULT)" for row in fine)
            workspace.execute(
                "SET sql_mode = ''", f"CREATE TABLE {table} ({key}, {column})",
                f"INSERT INTO {table} VALUES {values}",
            )  # fmt: skip
            tables[table] = f"INSERT INTO {table} VALUES ({twin}, {value})", twin.split()[-1], len(fine)
    assert workspace.sync(*tables).ok
    for table, (insert, _, _) in tables.items():
        assert place.found(table) == []
        workspace.execute("SET sql_mode = ''", insert)
        error: dict[str, Any] = place.looked(table)["error"]
        assert error["code"] == 6 and "whose text is that of another value" in error["message"]
        if table.startswith("odd"):
            workspace.execute(f"UPDATE {table} SET update_at = '2025-03-05'")
    for report in workspace.sync(*tables).tables:
        _, number, count = tables[report.table.partition(".")[2]]
        said = f"column k: the number {number}, whose text is that of another value, in the row with "
        assert report.error is not None and report.error.code == 6 and said in report.error.message
        assert workspace.query(f"SELECT count(*) FROM {report.table.partition('.')[2]}") == [(count,)]
