"""Tables of every shape: keys of all kinds, no key, snapshots, appends, awkward names, wide and empty ones."""

from __future__ import annotations

import pickle
import random
import secrets
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import duckdb
import pytest

from floodmark.config import load
from floodmark.extract import SliceJob
from floodmark.model import Slice
from floodmark.mysql.connect import Session
from floodmark.mysql.discover import discover
from floodmark.spark import Spark
from floodmark.state import Log
from floodmark.store import Store
from floodmark.testing.services import MariaDB
from floodmark.warehouse import LoadRequest
from floodmark.warehouse.duckdb import DuckDB
from tests.conftest import Database, Floodmark, Workspace

AT = "update_at DATETIME NOT NULL DEFAULT '2025-03-01' ON UPDATE CURRENT_TIMESTAMP"


def shown(row: tuple[Any, ...]) -> str:
    return " | ".join(str(v) for v in row)


def same(workspace: Workspace, table: str, columns: str = "*", target: str | None = None) -> bool:
    """Whether both sides hold the same rows, in columns that both can print alike."""
    source = workspace.execute(f"SELECT {columns} FROM `{table}`")
    arrived = workspace.query(f'SELECT {columns} FROM "{target or table}"')
    assert sorted(map(shown, arrived)) == sorted(map(shown, source))
    return True


def configured(workspace: Workspace, table: str, **options: Any) -> None:
    workspace.write(tables={f"{workspace.database.name}.{table}": options})


def refused(workspace: Workspace, *tables: str, **options: Any) -> dict[str, Any]:
    """The error of the one table that fails."""
    report = workspace.sync(*tables, **options).as_json()
    (error,) = [t["error"] for t in report["tables"] if t["error"]]
    return dict(error)


# ---------------------------------------------------------------- keys of every kind, cut into slices

Row = tuple[str, ...]
LETTERS = "abcdefghijklmnopqrstuvwxyzäöüß 0123456789😀"


def word(r: random.Random, letters: str = LETTERS) -> str:
    text = "".join(r.choice(letters) for _ in range(r.randint(1, 8)))
    return f"_utf8mb4 x'{text.encode().hex()}'"


MEMBERS = ", ".join(f"'m{63 - i}'" for i in range(64))
KEYS: dict[str, tuple[str, str, Callable[[random.Random], Row]]] = {
    # name: columns, how both sides print the key, a random key
    "k_composite": (
        "a TINYINT, e ENUM('zebra','apple','mango',''), d DATE, b BINARY(3)", "a, e, d, hex(b)",
        lambda r: (str(r.randint(-2, 2)), r.choice(["'zebra'", "'apple'", "'mango'", "''"]),
                   f"'2025-01-{r.randint(1, 31):02}'", f"x'{r.randbytes(3).hex()}'")),
    "k_names": ("tenant VARCHAR(9), name CHAR(9) COLLATE utf8mb4_bin", "hex(tenant), hex(name)",
              lambda r: (word(r, "aAäbB"), word(r, "xXyY"))),
    "k_members": (f"s SET({MEMBERS})", "s", lambda r: (str(r.getrandbits(64)),)),
    "k_bits": ("b BIT(64)", "b", lambda r: (str(r.getrandbits(64)),)),
    "k_mixed": (f"s SET({MEMBERS}), c VARCHAR(20)", "s, hex(c)", lambda r: (str(r.getrandbits(64)), word(r))),
    "k_general": ("c VARCHAR(20) COLLATE utf8mb4_general_ci", "hex(c)", lambda r: (word(r),)),
    "k_gbk": ("c VARCHAR(20) CHARSET gbk", "hex(c)", lambda r: (word(r, "ab深圳市乙"),)),
    "k_binary16": ("b BINARY(16)", "hex(b)", lambda r: (f"x'{r.randbytes(r.randint(14, 16)).hex()}'",)),
    "k_varbinary": ("b VARBINARY(8)", "hex(b)", lambda r: (f"x'{bytes(r.choice([0, 32, 97, 255]) for _ in range(r.randint(0, 8))).hex()}'",)),
    "k_decimal": ("n DECIMAL(38,10)", "n", lambda r: (f"{r.randint(-10**27, 10**27)}.{r.randrange(10**10):010}",)),
    "k_wide": ("n DECIMAL(65,0)", "n", lambda r: (str(r.choice([-1, 1]) * r.getrandbits(215)),)),
    "k_unsigned": ("n BIGINT UNSIGNED", "n", lambda r: (str(2**63 - 50 + r.getrandbits(r.randint(1, 62))),)),
    "k_uuid": ("u UUID", "u", lambda r: (f"'{UUID(int=r.getrandbits(128), version=r.choice([1, 4]))}'",)),
    "k_time": ("t TIME(3)", "t", lambda r: (f"'{r.choice(['', '-'])}{r.randrange(838):02}:{r.randrange(60):02}:00.{r.randrange(1000):03}'",)),
    "k_moment": ("t DATETIME(6)", "t", lambda r: (f"'2024-01-01' + INTERVAL {r.getrandbits(50)} MICROSECOND",)),
}  # fmt: skip
COUNT = 400


@pytest.fixture(scope="module")
def keyed(
    mariadb: MariaDB, spark: Callable[[], Spark], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Workspace]:
    """A table for each kind of key, synced in slices by key, changed, and synced in slices by cursor."""
    folder, name = tmp_path_factory.mktemp("keys"), f"t_{secrets.token_hex(4)}"
    mariadb.execute(f"CREATE DATABASE {name} DEFAULT CHARSET=utf8mb4")
    database = Database(mariadb, name)
    workspace = Workspace(folder, database, {"source": {"url": database.url}}, Floodmark(folder), spark)
    workspace.write(defaults={"settle_seconds": 0.2, "slice_rows": 130})
    for n, (table, (columns, _, draw)) in enumerate(KEYS.items()):
        chosen = random.Random(n)
        key = ", ".join(part.split()[0] for part in columns.split(", ") if part[0] != "'")
        lines = [
            f"({', '.join(draw(chosen))}, {i}, '2025-03-01' + INTERVAL {i % 7} SECOND)" for i in range(COUNT)
        ]
        workspace.execute(
            "SET sql_mode = ''",
            f"CREATE TABLE {table} ({columns}, n_ INT, {AT}, PRIMARY KEY ({key}), KEY (update_at))",
            f"INSERT IGNORE INTO {table} VALUES {', '.join(lines)}",
        )
    assert (first := workspace.sync(strategy="auto")).ok, first.as_json()
    for table in KEYS:
        workspace.execute(
            f"UPDATE {table} SET n_ = n_ + 1000, update_at = '2025-03-02' + INTERVAL n_ % 5 SECOND WHERE n_ % 3 < 2"
        )
    assert (second := workspace.sync(strategy="inter-table")).ok, second.as_json()
    yield workspace
    mariadb.execute(f"DROP DATABASE {name}")


@pytest.mark.parametrize("table", list(KEYS))
def test_a_key_of_any_kind_is_cut_and_merged_without_losing_or_doubling_a_row(
    keyed: Workspace, table: str
) -> None:
    assert keyed.execute(f"SELECT COUNT(*) > 200 FROM {table}") == [(1,)]
    printed = KEYS[table][1]
    known = {"k_gbk": "hex(convert(c using utf8mb4))", "k_bits": "b+0", "k_time": "cast(t as char)"}
    mysql = known.get(table, printed)
    source = keyed.execute(f"SELECT {mysql}, n_, update_at FROM {table}")
    arrived = keyed.query(f"SELECT {printed}, n_, update_at FROM {table}")
    assert sorted(map(shown, arrived)) == sorted(map(shown, source))
    # Both syncs were cut, so that the edges between slices were tried.
    runs = list((keyed.folder / "lake" / "data").glob(f"*.{table}/*"))
    assert [len(list(run.iterdir())) >= 2 for run in runs] == [True, True]


def test_the_position_in_a_set_is_the_number_that_mysql_has(workspace: Workspace) -> None:
    workspace.execute(
        f"CREATE TABLE t (s SET({MEMBERS}) PRIMARY KEY, {AT}, KEY (update_at))",
        "INSERT INTO t (s) VALUES (18446744073709551615), (9007199254740993), (9007199254740992), (1)",
    )
    table = workspace.synced("t")
    assert table["watermark"]["last_mysql_data_id"] == [18446744073709551615]


# ---------------------------------------------------------------- keys as MySQL compares them


@pytest.mark.parametrize("collation", ["utf8mb4_general_ci", "utf8mb4_uca1400_as_ci"])
def test_a_text_key_in_another_spelling_is_the_same_row(workspace: Workspace, collation: str) -> None:
    accents = "as_ci" not in collation
    workspace.execute(
        f"CREATE TABLE t (k VARCHAR(20) COLLATE {collation} PRIMARY KEY, n INT, {AT}, KEY (update_at))",
        "INSERT INTO t (k, n) VALUES ('abc', 1), ('emile', 2), ('pad', 3), ('other', 4)",
    )
    workspace.synced("t")
    workspace.execute(
        "UPDATE t SET k = 'ABC', n = 10, update_at = '2025-03-02' WHERE k = 'abc'",
        "UPDATE t SET k = 'pad  ', n = 30, update_at = '2025-03-02' WHERE k = 'pad'",
        *(
            ["UPDATE t SET k = 'Émile', n = 20, update_at = '2025-03-02' WHERE k = 'emile'"]
            if accents
            else []
        ),
    )
    workspace.synced("t")
    assert same(workspace, "t", "hex(k), n")
    # And back again: the spelling that is stored now is found too.
    workspace.execute("UPDATE t SET k = 'aBc', n = 11, update_at = '2025-03-03' WHERE k = 'abc'")
    workspace.synced("t")
    assert same(workspace, "t", "hex(k), n")


def test_two_spellings_in_one_read_are_one_row_and_the_later_wins(workspace: Workspace) -> None:
    workspace.execute(
        "CREATE TABLE t (k VARCHAR(20) COLLATE utf8mb4_general_ci PRIMARY KEY, n INT, update_at DATETIME)",
        "INSERT INTO t VALUES ('abc', 1, '2025-03-01')",
    )
    workspace.synced("t", backup_only=True)
    workspace.execute("UPDATE t SET k = 'ÁBC ', n = 2, update_at = '2025-03-02'")
    # Both commits go into one load.
    table = workspace.synced("t")
    assert (table["rows_extracted"], table["rows_loaded"]) == (1, 2)
    assert workspace.query("SELECT k, n FROM t") == [("ÁBC ", 2)]


def test_keys_that_only_a_binary_collation_tells_apart_stay_apart(workspace: Workspace) -> None:
    workspace.execute(
        f"CREATE TABLE t (k VARCHAR(20) COLLATE utf8mb4_bin PRIMARY KEY, n INT, {AT})",
        "INSERT INTO t (k, n) VALUES ('abc', 1), ('ABC', 2), ('äbc', 3), ('abc\\t', 4)",
    )
    workspace.synced("t")
    workspace.execute("UPDATE t SET n = 20, update_at = '2025-03-02' WHERE k = 'ABC'")
    assert workspace.synced("t")["rows_extracted"] == 1
    assert same(workspace, "t", "hex(k), n")


def test_binary_keys_keep_their_trailing_zeros_and_spaces_apart(workspace: Workspace) -> None:
    workspace.execute(
        f"CREATE TABLE t (k VARBINARY(4) PRIMARY KEY, n INT, {AT})",
        "INSERT INTO t (k, n) VALUES (x'', 1), (x'00', 2), (x'0000', 3), (x'20', 4), (x'61', 5), (x'41', 6)",
    )
    workspace.synced("t")
    workspace.execute("UPDATE t SET n = n + 10, update_at = '2025-03-02' WHERE n IN (1, 2, 4)")
    workspace.synced("t")
    assert same(workspace, "t", "hex(k), n")


def test_a_unique_key_stands_in_for_a_missing_primary_key(workspace: Workspace) -> None:
    workspace.execute(
        f"CREATE TABLE t (region CHAR(2) NOT NULL, code INT NOT NULL, n INT, {AT}, UNIQUE u (region, code))",
        "INSERT INTO t (region, code, n) VALUES ('de', 1, 1), ('de', 2, 2), ('fr', 1, 3)",
    )
    workspace.synced("t")
    workspace.execute("UPDATE t SET n = 9, update_at = '2025-03-02' WHERE region = 'de' AND code = 1")
    assert workspace.synced("t")["rows_extracted"] == 1
    assert same(workspace, "t")


def test_an_impossible_date_in_the_key_is_refused_whatever_the_policy(workspace: Workspace) -> None:
    workspace.execute(
        "SET sql_mode = ''",
        f"CREATE TABLE t (d DATE, n INT, {AT}, PRIMARY KEY (d, n))",
        "INSERT INTO t (d, n) VALUES ('2025-01-01', 1), ('2020-00-15', 1), ('2020-00-16', 1)",
    )
    for policy in ("null", "keep", "error"):
        configured(workspace, "t", zero_dates=policy)
        error = refused(workspace, "t")
        # As NULL the two rows would be one, or be inserted again by every sync.
        assert error["code"] == 6 and "d: the impossible date 2020-00-15" in error["message"]


# ---------------------------------------------------------------- snapshots


def test_a_table_without_a_key_is_copied_whole_with_its_twins(workspace: Workspace) -> None:
    workspace.execute(
        "CREATE TABLE t (a INT, b VARCHAR(9))", "INSERT INTO t VALUES (1, 'x'), (1, 'x'), (NULL, NULL)"
    )
    assert workspace.synced("t")["rows_extracted"] == 3
    assert same(workspace, "t")
    workspace.execute("DELETE FROM t WHERE a IS NULL", "INSERT INTO t VALUES (2, ''), (1, 'x')")
    assert workspace.synced("t")["rows_extracted"] == 4
    assert same(workspace, "t")


def test_a_snapshot_takes_deletes_and_silent_changes_along(workspace: Workspace) -> None:
    workspace.execute(
        f"CREATE TABLE t (id INT PRIMARY KEY, n INT, {AT})",
        "INSERT INTO t (id, n) SELECT seq, seq FROM seq_1_to_300",
    )
    configured(workspace, "t", mode="full")
    workspace.synced("t")
    workspace.execute(
        "DELETE FROM t WHERE id % 3 = 0", "UPDATE t SET n = -1, update_at = update_at WHERE id % 5 = 0"
    )
    workspace.synced("t")
    assert same(workspace, "t")


def test_a_snapshot_that_fails_on_the_way_leaves_the_one_before(workspace: Workspace) -> None:
    workspace.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, d DATE)",
        "INSERT INTO t SELECT seq, '2025-01-01' FROM seq_1_to_2000",
    )
    configured(workspace, "t", slice_rows=500)
    workspace.synced("t")
    before = workspace.query("SELECT * FROM t ORDER BY id")
    # Several files of the new snapshot are written before the row that can't be read is met.
    workspace.execute("SET sql_mode = ''", "UPDATE t SET d = IF(id = 1999, '2025-00-00', '2026-01-01')")
    assert refused(workspace, "t")["code"] == 6
    assert workspace.query("SELECT * FROM t ORDER BY id") == before
    workspace.execute("UPDATE t SET d = '2026-01-01' WHERE id = 1999")
    workspace.synced("t")
    assert same(workspace, "t")


def test_an_implausibly_small_snapshot_is_swapped_in_only_with_force(workspace: Workspace) -> None:
    workspace.execute("CREATE TABLE t (a INT)", "INSERT INTO t SELECT seq FROM seq_1_to_1000")
    workspace.synced("t")
    workspace.execute("DELETE FROM t WHERE a > 99")
    error = refused(workspace, "t")
    assert (error["code"], error["kind"]) == (6, "data")
    assert "99 rows where the last snapshot had 1,000" in error["message"] and "--force" in error["hint"]
    assert workspace.query("SELECT count(*) FROM t") == [(1000,)]
    # Refused again, by the snapshot that was loaded and not by the one that was refused.
    assert refused(workspace, "t")["code"] == 6
    workspace.synced("t", force=True)
    assert same(workspace, "t")


def test_an_emptied_table_needs_force_and_then_empties_the_target(workspace: Workspace) -> None:
    workspace.execute("CREATE TABLE t (a INT)", "INSERT INTO t SELECT seq FROM seq_1_to_100")
    workspace.synced("t")
    workspace.execute("DELETE FROM t")
    assert refused(workspace, "t")["code"] == 6
    table = workspace.synced("t", force=True)
    assert (table["rows_extracted"], workspace.query("SELECT count(*) FROM t")) == (0, [(0,)])
    workspace.execute("INSERT INTO t VALUES (7)")
    workspace.synced("t")
    assert workspace.query("SELECT a FROM t") == [(7,)]


def test_a_small_table_may_be_emptied_without_force(workspace: Workspace) -> None:
    workspace.execute("CREATE TABLE t (a INT)", "INSERT INTO t VALUES (1), (2)")
    workspace.synced("t")
    workspace.execute("DELETE FROM t")
    workspace.synced("t")
    assert workspace.query("SELECT count(*) FROM t") == [(0,)]


@pytest.mark.parametrize("option", [{"limit": 5}, {"max_chunks": 1}])
def test_a_limit_does_not_go_with_a_snapshot(workspace: Workspace, option: dict[str, int]) -> None:
    workspace.execute("CREATE TABLE t (a INT)", "INSERT INTO t VALUES (1)")
    error = refused(workspace, "t", **option)
    assert error["code"] == 2 and "mode full" in error["message"]
    assert not list((workspace.folder / "lake").rglob("*.parquet"))


def test_a_target_filled_by_hand_is_not_swapped_away(workspace: Workspace) -> None:
    with duckdb.connect(str(workspace.warehouse)) as connection:
        connection.execute("CREATE TABLE t AS SELECT 42 AS precious")
    workspace.execute("CREATE TABLE t (a INT)", "INSERT INTO t VALUES (1)")
    assert refused(workspace, "t")["code"] == 6
    assert workspace.query("SELECT precious FROM t") == [(42,)]


# ---------------------------------------------------------------- appends


def test_an_auto_increment_table_is_appended_by_its_id(workspace: Workspace) -> None:
    workspace.execute(
        "CREATE TABLE t (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, note TEXT)",
        "INSERT INTO t SELECT seq * 1000, seq FROM seq_1_to_500",
    )
    configured(workspace, "t", slice_rows=120)
    assert workspace.synced("t")["rows_extracted"] == 500
    workspace.execute(
        "INSERT INTO t (note) VALUES ('next'), ('more')", "UPDATE t SET note = 'unseen' WHERE id = 1000"
    )
    assert workspace.synced("t")["rows_extracted"] == 2
    assert workspace.query("SELECT count(*), max(id), count(*) FILTER (note = 'unseen') FROM t") == [
        (502, 500002, 0)
    ]


def test_ids_beyond_the_signed_range_are_appended_too(workspace: Workspace) -> None:
    top = 2**64 - 10
    workspace.execute(
        "CREATE TABLE t (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, n INT)",
        f"INSERT INTO t VALUES ({2**63 - 1}, 1), ({2**63}, 2), ({top}, 3)",
    )
    table = workspace.synced("t")
    assert table["watermark"]["last_mysql_data_id"] == [top]
    workspace.execute("INSERT INTO t (n) VALUES (4)")
    assert workspace.synced("t")["rows_extracted"] == 1
    assert same(workspace, "t")


def test_a_keyless_table_is_appended_by_configuration_twins_included(workspace: Workspace) -> None:
    workspace.execute(
        "CREATE TABLE t (at DATETIME(3) NOT NULL, n INT, KEY (at))",
        "INSERT INTO t SELECT '2025-03-01' + INTERVAL seq DIV 10 SECOND, seq % 2 FROM seq_1_to_400",
    )
    configured(workspace, "t", mode="append", cursor="at", slice_rows=100)
    assert workspace.synced("t")["rows_extracted"] == 400
    assert workspace.synced("t")["rows_extracted"] == 0
    workspace.execute("INSERT INTO t VALUES ('2025-04-01', 5), ('2025-04-01', 5)")
    assert workspace.synced("t")["rows_extracted"] == 2
    assert same(workspace, "t")


def test_a_limit_on_a_keyless_append_never_parts_rows_of_one_moment(workspace: Workspace) -> None:
    workspace.execute(
        "CREATE TABLE t (at DATETIME NOT NULL, n INT, KEY (at))",
        "INSERT INTO t SELECT '2025-03-01' + INTERVAL seq DIV 10 SECOND, seq FROM seq_0_to_99",
    )
    configured(workspace, "t", mode="append", cursor="at")
    counts = [workspace.synced("t", limit=25)["rows_extracted"] for _ in range(6)]
    assert counts == [20, 20, 20, 20, 20, 0]
    assert same(workspace, "t")
    error = refused(make_tied(workspace), "tied", limit=25)
    assert error["code"] == 2 and "larger --limit" in error["hint"]


def make_tied(workspace: Workspace) -> Workspace:
    workspace.execute(
        "CREATE TABLE tied (at DATETIME NOT NULL, KEY (at))",
        "INSERT INTO tied SELECT '2025-03-01' FROM seq_1_to_50",
    )
    configured(workspace, "tied", mode="append", cursor="at")
    return workspace


# ---------------------------------------------------------------- names of tables

TABLES = ["o`d 'q\" %s", "dot.ted", "深圳/..", "select", "..", "-t", "*?[a]", "c:\\x#1;--"]


def test_tables_of_any_name_are_found_stored_and_loaded(workspace: Workspace, mariadb: MariaDB) -> None:
    other = f"x.`%'\"深 {secrets.token_hex(3)}"
    quoted = "`" + other.replace("`", "``") + "`"
    workspace.execute(f"CREATE DATABASE {quoted}")
    try:
        made = [f"{quoted}.`{name.replace('`', '``')}`" for name in TABLES]
        for n, table in enumerate(made):
            workspace.execute(
                f"CREATE TABLE {table} (id INT PRIMARY KEY, k VARCHAR(9) NOT NULL, {AT}, UNIQUE (k))",
                f"INSERT INTO {table} (id, k) VALUES ({n}, 'a'), ({n + 100}, 'b')",
            )
        workspace.write(source={"url": mariadb.url(other)}, defaults={"key": ["k"]})
        report = workspace.sync()
        assert report.ok and len(report.tables) == len(TABLES), report.as_json()
        workspace.execute(
            *(f"UPDATE {table} SET k = 'A', update_at = '2025-03-02' WHERE k = 'a'" for table in made)
        )
        # Each by its own name too.
        report = sync_named(workspace, [f"{other}.{name}" for name in TABLES])
        assert report["ok"] and {t["rows_extracted"] for t in report["tables"]} == {1}
        for n, name in enumerate(TABLES):
            target = '"' + name.replace('"', '""') + '"'
            assert workspace.query(f"SELECT id, k FROM {target} ORDER BY id") == [(n, "A"), (n + 100, "b")]
        kept = [p.name for p in (workspace.folder / "lake" / "commits").iterdir()]
        assert len(kept) == len(TABLES) and all(set(name) <= PLAIN for name in kept)
    finally:
        workspace.execute(f"DROP DATABASE {quoted}")


PLAIN = set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_$.-%")


def sync_named(workspace: Workspace, names: list[str]) -> dict[str, Any]:
    return dict(workspace.sync(*names).as_json())


def test_two_tables_with_one_target_are_refused_by_name_and_go_with_a_target(workspace: Workspace) -> None:
    name = workspace.database.name
    for n, table in enumerate(("Orders", "orders")):
        workspace.execute(
            f"CREATE TABLE {table} (id INT PRIMARY KEY, {AT})", f"INSERT INTO {table} (id) VALUES ({n})"
        )
    report = workspace.sync("Orders", "orders")
    errors = {t["table"]: t["error"] for t in report.as_json()["tables"]}
    assert report.exit_code == 2
    for table in (f"{name}.Orders", f"{name}.orders"):
        # Both, and before anything is read: neither has the target by chance.
        assert "have the same target orders" in errors[table]["message"]
        assert errors[table]["hint"] == f"set tables.{table}.target in the configuration"
    assert not (workspace.folder / "lake" / "data").exists()
    workspace.write(tables={f"{name}.Orders": {"target": "Orders_upper"}})
    report = workspace.sync("Orders", "orders")
    assert report.ok, report.as_json()
    assert workspace.query("SELECT id FROM orders_upper") == [(0,)]
    assert workspace.query("SELECT id FROM orders") == [(1,)]


def test_a_target_that_another_table_fills_is_refused_in_a_later_run_too(workspace: Workspace) -> None:
    for n, table in enumerate(("Orders", "orders")):
        workspace.execute(
            f"CREATE TABLE {table} (id INT PRIMARY KEY, {AT})", f"INSERT INTO {table} (id) VALUES ({n})"
        )
    workspace.synced("Orders")
    error = refused(workspace, "orders")
    assert error["code"] == 2 and "target" in error["hint"]
    assert workspace.query("SELECT id FROM orders") == [(0,)]


def test_the_command_exits_with_2_when_two_tables_share_a_target(workspace: Workspace) -> None:
    for table in ("Orders", "orders"):
        workspace.execute(
            f"CREATE TABLE {table} (id INT PRIMARY KEY, {AT})", f"INSERT INTO {table} (id) VALUES (1)"
        )
    result = workspace.run("sync", "--all")
    assert result.code == 2 and "target" in result.stderr


# ---------------------------------------------------------------- impossible dates


@pytest.fixture
def dated(workspace: Workspace) -> Workspace:
    workspace.execute(
        "SET sql_mode = 'ALLOW_INVALID_DATES'",
        f"CREATE TABLE t (id INT PRIMARY KEY, d DATE, w DATETIME(3), s TIMESTAMP NULL, {AT})",
        "INSERT INTO t (id, d, w, s) VALUES (1, '2025-01-01', '2025-01-01 01:02:03.004', '2025-01-01'),"
        " (2, '0000-00-00', '2025-02-30 01:02:03.004', 0), (3, '2025-00-15', '0000-00-00', NULL), (4, NULL, NULL, NULL)",
    )
    return workspace


def test_zero_dates_error_names_the_column_and_the_row(dated: Workspace) -> None:
    error = refused(dated, "t")
    assert (
        error["code"] == 6 and "in the row with id = 2" in error["message"] and "zero_dates" in error["hint"]
    )
    assert not dated.warehouse.exists() or not dated.query(
        "SELECT 1 FROM duckdb_tables() WHERE table_name = 't'"
    )


def test_zero_dates_null_makes_them_null(dated: Workspace) -> None:
    configured(dated, "t", zero_dates="null")
    dated.synced("t")
    assert dated.query("SELECT id, d IS NULL, w IS NULL, s IS NULL FROM t ORDER BY id") == [
        (1, False, False, False), (2, True, True, True), (3, True, True, True), (4, True, True, True),
    ]  # fmt: skip


def test_zero_dates_keep_has_the_exact_text_beside_the_null(dated: Workspace) -> None:
    configured(dated, "t", zero_dates="keep")
    dated.synced("t")
    assert dated.query("SELECT d, w, s FROM t WHERE id > 1") == [(None, None, None)] * 3
    assert dated.query("SELECT d__raw, w__raw, s__raw FROM t ORDER BY id") == [
        (None, None, None), ("0000-00-00", "2025-02-30 01:02:03.004", "0000-00-00 00:00:00"),
        ("2025-00-15", "0000-00-00 00:00:00.000", None), (None, None, None),
    ]  # fmt: skip
    dated.execute("UPDATE t SET d = '2025-05-05', w = NULL, update_at = '2025-03-02' WHERE id = 2")
    dated.synced("t")
    assert dated.query("SELECT CAST(d AS VARCHAR), d__raw, w__raw FROM t WHERE id = 2") == [
        ("2025-05-05", None, None)
    ]


# ---------------------------------------------------------------- wide, empty, partitioned


def test_a_decimal_wider_than_the_warehouses_arrives_as_its_text(workspace: Workspace) -> None:
    most = "9" * 35 + "." + "9" * 30
    workspace.execute(
        f"CREATE TABLE t (id INT PRIMARY KEY, n DECIMAL(65,30), {AT})",
        f"INSERT INTO t (id, n) VALUES (1, -{most}), (2, 0.1)",
    )
    workspace.synced("t")
    assert workspace.query("SELECT n FROM t ORDER BY id") == [(f"-{most}",), ("0.1" + "0" * 29,)]


def test_a_table_of_300_columns_arrives_with_all_of_them(workspace: Workspace) -> None:
    columns = [f"c{i} {('INT', 'VARCHAR(9)', 'DECIMAL(9,2)')[i % 3]}" for i in range(300)]
    values = ", ".join(f"seq + {i}" for i in range(300))
    workspace.execute(
        f"CREATE TABLE t (id INT PRIMARY KEY, {AT}, {', '.join(columns)})",
        f"INSERT INTO t SELECT seq, '2025-03-01', {values} FROM seq_1_to_300",
    )
    workspace.synced("t")
    assert workspace.compare("t").equal


def test_a_table_without_rows_is_no_error(workspace: Workspace) -> None:
    workspace.execute(
        f"CREATE TABLE upserted (id INT PRIMARY KEY, {AT})",
        "CREATE TABLE appended (id INT AUTO_INCREMENT PRIMARY KEY)",
        "CREATE TABLE copied (a INT)",
    )
    report = workspace.sync()
    assert report.ok and [t.rows_extracted for t in report.tables] == [0, 0, 0], report.as_json()
    workspace.execute(
        "INSERT INTO upserted (id) VALUES (1)",
        "INSERT INTO appended VALUES (5)",
        "INSERT INTO copied VALUES (9)",
    )
    report = workspace.sync()
    assert report.ok and [t.rows_loaded for t in report.tables] == [1, 1, 1], report.as_json()


def test_a_partitioned_table_is_one_table(workspace: Workspace) -> None:
    workspace.execute(
        f"CREATE TABLE t (id INT, day DATE, n INT, {AT}, PRIMARY KEY (id, day), KEY (update_at)) PARTITION BY RANGE"
        " COLUMNS (day) (PARTITION a VALUES LESS THAN ('2025-02-01'), PARTITION b VALUES LESS THAN ('2025-03-01'),"
        " PARTITION c VALUES LESS THAN (MAXVALUE))",
        "INSERT INTO t (id, day, n) SELECT seq, '2025-01-01' + INTERVAL seq % 90 DAY, seq FROM seq_1_to_900",
    )
    configured(workspace, "t", slice_rows=200)
    assert workspace.synced("t")["rows_extracted"] == 900
    workspace.execute("UPDATE t SET n = -n, update_at = '2025-03-02' WHERE id % 4 = 0")
    assert workspace.synced("t", strategy="sequential")["rows_extracted"] == 225
    assert workspace.compare("t").equal


@pytest.mark.long
def test_rows_of_a_megabyte_pass_in_bounded_memory(workspace: Workspace) -> None:
    workspace.execute(
        f"CREATE TABLE t (id INT PRIMARY KEY, body LONGTEXT, {AT})",
        "INSERT INTO t (id, body) SELECT seq, REPEAT(MD5(seq), 32768) FROM seq_1_to_300",
    )
    assert workspace.synced("t")["rows_loaded"] == 300
    assert workspace.query("SELECT id, length(body), md5(body) FROM t ORDER BY id") == workspace.execute(
        "SELECT id, LENGTH(body), MD5(body) FROM t ORDER BY id"
    )
    # The task again, in a process that did nothing else: rows of 300 MB, and 100 MB are Python and Arrow. Held all
    # at once they would take 400 MB and more; what is held takes 200 to 280, as the allocator likes.
    assert peak(workspace, "t") < 330 << 20


def test_more_wide_rows_than_the_warehouse_holds_at_a_time_are_loaded(workspace: Workspace) -> None:
    workspace.execute(
        f"CREATE TABLE t (id INT PRIMARY KEY, body LONGTEXT, {AT})",
        "INSERT INTO t (id, body) SELECT seq, REPEAT(MD5(seq), 2048) FROM seq_1_to_2200",
    )
    workspace.synced("t", backup_only=True)
    config = load(workspace.folder / "floodmark.yaml")
    store = Store(config.store)
    log = Log(store, f"{workspace.database.name}.t")
    state = log.read()
    assert state.table is not None
    commits = tuple(log.commit(data.n) for data in state.data)
    # DuckDB takes 2,048 rows at a time, here 134 MB; a table of a megabyte each would need 2 GB and more.
    small = DuckDB(workspace.warehouse, memory=150_000_000)
    request = LoadRequest("p", state.log, state.table, "t", 0, commits, store, "run")
    assert small.load(request).rows == 2200
    assert workspace.query("SELECT count(*), sum(length(body)) FROM t") == [(2200, 2200 * 65_536)]


def peak(workspace: Workspace, table: str) -> int:
    """The memory that the task of a slice takes, all told."""
    config = load(workspace.folder / "floodmark.yaml")
    with Session(config.source) as session:
        found = discover(
            session, table, config.options(f"{workspace.database.name}.{table}"), workspace.database.name
        )
    job = SliceJob(
        config.source, config.store, found, Slice("snapshot", 0, "snapshot"), "20250101_000000_aaaa", 1
    )
    done = subprocess.run(
        [sys.executable, "-c", TASK], input=pickle.dumps(job), capture_output=True, check=True
    )
    return int(done.stdout) * 1024


# Not the rusage's figure: that begins with the memory of the process that this one was started from.
TASK = """import pickle, re, sys
from floodmark.extract import write_slice
write_slice(pickle.load(sys.stdin.buffer))
print(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1])"""


# ---------------------------------------------------------------- cursors


def test_a_cursor_of_dates_loses_no_row_of_today(workspace: Workspace) -> None:
    workspace.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, day DATE NOT NULL, n INT, KEY (day))",
        "INSERT INTO t SELECT seq, UTC_DATE() - INTERVAL seq DAY, seq FROM seq_1_to_20",
        "INSERT INTO t VALUES (100, UTC_DATE(), 1)",
    )
    configured(workspace, "t", cursor="day", start=None)
    workspace.synced("t")
    assert same(workspace, "t")
    # More rows of today, and changes of those that are there: the day isn't over.
    workspace.execute("INSERT INTO t VALUES (101, UTC_DATE(), 1)", "UPDATE t SET n = 2 WHERE id = 100")
    workspace.synced("t")
    assert same(workspace, "t")


def test_a_cursor_of_microseconds_is_cut_between_them(workspace: Workspace) -> None:
    workspace.execute(
        "SET time_zone = '+05:00'",
        "CREATE TABLE t (id INT PRIMARY KEY, n INT, update_at TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6)"
        " ON UPDATE CURRENT_TIMESTAMP(6), KEY (update_at))",
        "INSERT INTO t SELECT seq, seq, '2025-03-01 05:00:00' + INTERVAL seq MICROSECOND FROM seq_1_to_90",
    )
    table = workspace.synced("t", limit=40)
    assert table["watermark"]["last_mysql_data_timestamp"] == "2025-03-01T00:00:00.000040"
    assert workspace.query("SELECT count(*), max(id) FROM t") == [(40, 40)]
    assert workspace.synced("t")["rows_extracted"] == 50
    workspace.execute("UPDATE t SET n = 0 WHERE id % 9 = 0")
    assert workspace.synced("t")["rows_extracted"] == 10
    assert workspace.compare("t").equal
