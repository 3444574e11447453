"""Keys of every kind, cut into slices and merged, and as MySQL compares them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import duckdb
import pytest

from floodmark.setup.services.databases import DatabaseServer
from floodmark.spark.context import Spark
from tests.conftest import BOTH, PATIENT, USUAL, Workspace, lasting_workspace
from tests.support.every_key import KEYS, MEMBERS, SHARED
from tests.support.table_shapes import (
    AT,
    configured,
    refused,
    same,
    shown,
)

COUNT = 400
pytestmark = pytest.mark.source
# Without FLOODMARK_LONG=1: not those that another kind includes or resembles, all of which test_source_gone.py and
# test_source_keys.py read; and on the other server only those that the servers compare in their own way.
ALIKE = {
    "k_members", "k_bits", "k_years", "k_decimal", "k_moment", "k_0900_bin", "k_chinese", "k_gb18030",
}  # fmt: skip
COLLATED = {"k_general", "k_names", "k_gbk"}


def tried(server: str) -> list[str]:
    """The kinds of keys that a server is tried with."""
    own = KEYS[server].keys() - SHARED.keys() | (SHARED.keys() if server == USUAL else COLLATED)
    return [kind for kind in KEYS[server] if PATIENT or kind in own - ALIKE]


TRIED = {server: tried(server) for server in BOTH}


@pytest.fixture(scope="module")
def keyed(
    request: pytest.FixtureRequest, spark: Callable[[], Spark], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Workspace]]:
    """Per kind of server, once: a table for each kind of key, synced by key, changed, and synced by cursor."""
    made: dict[str, Workspace] = {}
    with ExitStack() as stack:

        def on(kind: str) -> Workspace:
            if kind not in made:
                server: DatabaseServer = request.getfixturevalue(kind)
                folder = tmp_path_factory.mktemp("keys")
                place = lasting_workspace(folder, server, spark, defaults={"slice_rows": 130})
                made[kind] = stack.enter_context(place)
                filled(made[kind], kind)
            return made[kind]

        yield on


def filled(workspace: Workspace, kind: str) -> None:
    """A table for each kind of key, synced in slices by key, changed, and synced in slices by cursor."""
    for n, table in enumerate(TRIED[kind]):
        columns, _, draw = KEYS[kind][table]
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
    for table in TRIED[kind]:
        workspace.execute(
            f"UPDATE {table} SET n_ = n_ + 1000, update_at = '2025-03-02' + INTERVAL n_ % 5 SECOND WHERE n_ % 3 < 2"
        )
    assert (second := workspace.sync(strategy="inter-table")).ok, second.as_json()


@pytest.mark.parametrize(("on", "table"), [(server, table) for server in BOTH for table in TRIED[server]])
def test_a_key_of_any_type_is_sliced_and_merged_without_losing_or_duplicating_a_row(
    keyed: Callable[[str], Workspace], on: str, table: str
) -> None:
    workspace = keyed(on)
    assert workspace.execute(f"SELECT COUNT(*) > 200 FROM {table}") == [(1,)]
    printed = KEYS[on][table][1]
    known = {
        **dict.fromkeys(("k_gbk", "k_gb18030"), "hex(convert(c using utf8mb4))"),
        "k_bits": "b+0", "k_time": "cast(t as char)", "k_flags": "hex(c), b+0, n",
    }  # fmt: skip
    mysql = known.get(table, printed)
    source = workspace.execute(f"SELECT {mysql}, n_, update_at FROM {table}")
    arrived = workspace.query(f"SELECT {printed}, n_, update_at FROM {table}")
    assert sorted(map(shown, arrived)) == sorted(map(shown, source))
    # Both syncs were cut, so that the edges between slices were tried.
    runs = list((workspace.folder / "lake" / "data").glob(f"*.{table}/*"))
    assert sum(len(list(run.iterdir())) >= 2 for run in runs) >= 2


# What MariaDB does differently is its SQL: rows that we hash come from one reader for both servers.
@pytest.mark.parametrize(
    ("on", "on_server"),
    [
        ("mysql", False),
        ("mysql", True),
        ("mariadb", True),
        pytest.param("mariadb", False, marks=pytest.mark.long),
    ],
)
def test_verify_finds_a_row_that_is_missing_changed_or_doubled_under_a_key_of_any_type(
    keyed: Callable[[str], Workspace], on: str, on_server: bool
) -> None:
    """Whatever a load may get wrong about a key, verify sees by itself, and repairs."""
    workspace = keyed(on)
    url = {"url": workspace.database.url, "hash_on_server": on_server}
    workspace.write(source=url, defaults={"slice_rows": 130})
    names = [workspace.full_name(table) for table in TRIED[on]]

    def kinds() -> dict[str, list[tuple[str, tuple[str, ...]]]]:
        found = workspace.pipeline.verify(*names, spark=workspace.spark())["tables"]
        return {
            t["table"]: sorted((f["kind"], tuple(f.get("columns", ()))) for f in t["findings"]) for t in found
        }

    assert kinds() == {name: [] for name in names}
    with duckdb.connect(str(workspace.warehouse)) as con:
        for table in TRIED[on]:
            rows = con.execute(f"SELECT n_ FROM {table} ORDER BY n_").fetchall()
            (gone,), (altered,), (twice,) = rows[0], rows[len(rows) // 2], rows[-1]
            con.execute(f"DELETE FROM {table} WHERE n_ = {gone}")
            con.execute(f"UPDATE {table} SET n_ = -1 WHERE n_ = {altered}")
            con.execute(f"INSERT INTO {table} SELECT * FROM {table} WHERE n_ = {twice}")
    wrong = [("different_row", ()), ("different_row", ("n_",)), ("missing_row", ())]
    assert kinds() == dict.fromkeys(names, wrong)
    workspace.pipeline.verify(*names, repair=True, spark=workspace.spark())
    assert kinds() == {name: [] for name in names}


def test_the_position_of_a_set_key_is_mysqls_number(workspace: Workspace) -> None:
    workspace.execute(
        f"CREATE TABLE t (s SET({MEMBERS}) PRIMARY KEY, {AT}, KEY (update_at))",
        "INSERT INTO t (s) VALUES (18446744073709551615), (9007199254740993), (9007199254740992), (1)",
    )
    table = workspace.synced("t")
    assert table["watermark"]["last_mysql_data_id"] == [18446744073709551615]


# ---------------------------------------------------------------- keys as MySQL compares them


@pytest.mark.both_servers
@pytest.mark.parametrize("collation", ["utf8mb4_general_ci", "as_ci"])
def test_a_text_key_spelled_differently_is_the_same_row(
    workspace: Workspace, kind: str, collation: str
) -> None:
    accents, padded = collation != "as_ci", True
    if not accents:
        padded = kind == "mariadb"
        collation = "utf8mb4_uca1400_as_ci" if padded else "utf8mb4_0900_as_ci"
    workspace.execute(
        f"CREATE TABLE t (k VARCHAR(20) COLLATE {collation} PRIMARY KEY, n INT, {AT}, KEY (update_at))",
        "INSERT INTO t (k, n) VALUES ('abc', 1), ('emile', 2), ('pad', 3), ('other', 4)",
    )
    workspace.synced("t")
    workspace.execute(
        "UPDATE t SET k = 'ABC', n = 10, update_at = '2025-03-02' WHERE k = 'abc'",
        *(["UPDATE t SET k = 'pad  ', n = 30, update_at = '2025-03-02' WHERE k = 'pad'"] if padded else []),
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


@pytest.mark.both_servers
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


@pytest.mark.both_servers
def test_keys_that_only_a_binary_collation_distinguishes_stay_distinct(workspace: Workspace) -> None:
    workspace.execute(
        f"CREATE TABLE t (k VARCHAR(20) COLLATE utf8mb4_bin PRIMARY KEY, n INT, {AT})",
        "INSERT INTO t (k, n) VALUES ('abc', 1), ('ABC', 2), ('äbc', 3), ('abc\\t', 4)",
    )
    workspace.synced("t")
    workspace.execute("UPDATE t SET n = 20, update_at = '2025-03-02' WHERE k = 'ABC'")
    assert workspace.synced("t")["rows_extracted"] == 1
    assert same(workspace, "t", "hex(k), n")


def test_binary_keys_that_differ_in_trailing_zeros_and_spaces_stay_distinct(workspace: Workspace) -> None:
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
