"""Following the binary log: the keys found are those that changed, whatever changed them and however it was logged."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from floodmark.model.changes import TableChanges
from floodmark.setup.services.databases import DatabaseServer
from floodmark.spark.context import Spark
from floodmark.sync import changes as run
from tests.conftest import Floodmark, fresh_database, new_workspace
from tests.support.followed_log import Following


@pytest.fixture
def source(
    logged: DatabaseServer, tmp_path: Path, floodmark: Floodmark, spark: Callable[[], Spark]
) -> Iterator[Following]:
    """Two tables whose changes are followed from here on."""
    with fresh_database(logged) as database:
        workspace = new_workspace(tmp_path, database, floodmark, spark, store={"url": "./lake"})
        workspace.execute(
            "CREATE TABLE a (id INT PRIMARY KEY, v INT)",
            "CREATE TABLE b (k VARCHAR(20), n BIGINT UNSIGNED, v TEXT, PRIMARY KEY (n, k))",
            "INSERT INTO a VALUES (1, 0), (2, 0), (3, 0)",
        )
        following = Following(workspace, [f"{database.name}.a", f"{database.name}.b"])
        following.read()
        yield following


def name(source: Following, table: str = "a") -> str:
    return f"{source.workspace.database.name}.{table}"


def found(source: Following, table: str = "a") -> tuple[tuple[int, int, int], list[tuple[object, ...]]]:
    """Inserts, updates and deletes of the last read, and its keys."""
    one = source.changes(name(source, table))
    assert one.reconcile == ()
    return (one.inserts, one.updates, one.deletes), source.keys(one)


def test_inserts_updates_and_deletes(source: Following) -> None:
    source.workspace.execute(
        "INSERT INTO a VALUES (4, 0), (5, 0)", "UPDATE a SET v = 1 WHERE id = 1", "DELETE FROM a WHERE id = 2"
    )
    state = source.read()
    assert found(source) == ((2, 1, 1), [(1,), (2,), (4,), (5,)])
    assert state.tables[name(source)].touched == source.state.n
    assert state.tables[name(source, "b")].touched < source.state.n


def test_a_changed_key_is_two_keys(source: Following) -> None:
    source.workspace.execute(
        "UPDATE a SET id = 30 WHERE id = 3",
        "INSERT INTO b VALUES ('x', 18446744073709551615, 't'), ('ÿ', 1, 'u')",
        "UPDATE b SET k = 'y' WHERE k = 'x'",
    )
    source.read()
    assert found(source) == ((0, 1, 0), [(3,), (30,)])
    counts, keys = found(source, "b")
    assert counts == (2, 1, 0)
    assert sorted((int(str(n)), k) for n, k in keys) == [
        (1, "ÿ"), (18446744073709551615, "x"), (18446744073709551615, "y"),
    ]  # fmt: skip


def test_a_read_that_finds_nothing_writes_nothing(source: Following) -> None:
    before = source.state.n
    source.workspace.execute("CREATE TABLE other (id INT PRIMARY KEY)", "INSERT INTO other VALUES (1)")
    source.read()
    assert source.state.n == before
    source.workspace.execute("INSERT INTO a VALUES (9, 9)")
    source.read()
    assert found(source) == ((1, 0, 0), [(9,)])


def test_what_is_rolled_back_was_never_there(source: Following) -> None:
    connection = source.workspace.database.connect(autocommit=False)
    with connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO a VALUES (10, 0)")
        connection.rollback()
        cursor.execute("INSERT INTO a VALUES (11, 0)")
        cursor.execute("SAVEPOINT x")
        cursor.execute("INSERT INTO a VALUES (12, 0)")
        cursor.execute("ROLLBACK TO SAVEPOINT x")
        cursor.execute("INSERT INTO a VALUES (13, 0)")
        connection.commit()
    source.read()
    assert found(source) == ((2, 0, 0), [(11,), (13,)])


def test_statements_of_many_tables_and_rows(source: Following) -> None:
    source.workspace.execute(
        "INSERT INTO b SELECT 'k', id, 'v' FROM a",
        "UPDATE a, b SET a.v = 7, b.v = 'w' WHERE a.id = b.n AND a.id < 3",
        "REPLACE INTO a VALUES (3, 9), (4, 9)",
        "INSERT INTO a VALUES (4, 0), (5, 0) ON DUPLICATE KEY UPDATE v = 8",
        "DELETE a, b FROM a JOIN b ON a.id = b.n WHERE a.id = 1",
    )
    source.read()
    assert source.keys(source.changes(name(source))) == [(1,), (2,), (3,), (4,), (5,)]
    assert len(source.keys(source.changes(name(source, "b")))) == 3


def test_load_data(source: Following, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("100,1\n101,1\n")
    connection = source.workspace.database.connect(local_infile=True, autocommit=True)
    source.workspace.execute("SET GLOBAL local_infile = ON")
    with connection, connection.cursor() as cursor:
        cursor.execute(f"LOAD DATA LOCAL INFILE '{file}' INTO TABLE a FIELDS TERMINATED BY ','")
    source.read()
    assert found(source) == ((2, 0, 0), [(100,), (101,)])


def test_a_transaction_beyond_the_portion_that_is_held(
    source: Following, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floodmark.source.binlog.walk.HELD", 10_000)
    monkeypatch.setattr(run, "SHORT", 1 << 30)
    rows = ", ".join(f"({n}, 0)" for n in range(1000, 31_000))
    source.workspace.execute(f"INSERT INTO a VALUES {rows}")
    source.read()
    assert len(source.changes(name(source)).files) > 5
    counts, keys = found(source)
    assert counts == (30_000, 0, 0)
    assert sorted(keys) == [(n,) for n in range(1000, 31_000)]


# XA


def xa(source: Following, *statements: str) -> None:
    connection = source.workspace.database.connect(autocommit=True)
    with connection, connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def test_rows_of_a_prepared_transaction_come_with_its_commit(source: Following) -> None:
    prepare = ("INSERT INTO a VALUES (50, 0)", "XA END 'x1'", "XA PREPARE 'x1'")
    xa(source, "XA START 'x1'", *prepare)
    source.workspace.execute("INSERT INTO a VALUES (51, 0)")
    state = source.read()
    assert found(source) == ((1, 0, 0), [(51,)])
    [open_xa] = state.prepared
    assert source.keys(open_xa.xa.tables[name(source)]) == [(50,)]
    source.workspace.execute("INSERT INTO a VALUES (52, 0)")
    assert len(source.read().prepared) == 1
    assert found(source) == ((1, 0, 0), [(52,)])
    xa(source, "XA COMMIT 'x1'")
    state = source.read()
    assert found(source) == ((1, 0, 0), [(50,)])
    assert state.prepared == ()


def test_a_prepared_transaction_may_be_rolled_back_or_committed_in_one_phase(source: Following) -> None:
    xa(source, "XA START 'x2'", "INSERT INTO a VALUES (60, 0)", "XA END 'x2'", "XA PREPARE 'x2'")
    xa(source, "XA ROLLBACK 'x2'")
    xa(source, "XA START 'x3'", "INSERT INTO a VALUES (61, 0)", "XA END 'x3'", "XA COMMIT 'x3' ONE PHASE")
    state = source.read()
    assert found(source) == ((1, 0, 0), [(61,)])
    assert state.prepared == ()


# several files


def test_several_files_in_the_driver(source: Following) -> None:
    for number in range(70, 73):
        source.workspace.execute(f"INSERT INTO a VALUES ({number}, 0)", "FLUSH BINARY LOGS")
    source.read()
    assert found(source) == ((3, 0, 0), [(70,), (71,), (72,)])


def test_several_files_side_by_side(source: Following, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SHORT", 0)
    xa(source, "XA START 'x4'", "INSERT INTO a VALUES (80, 0)", "XA END 'x4'", "XA PREPARE 'x4'")
    for number in range(81, 84):
        source.workspace.execute("FLUSH BINARY LOGS", f"INSERT INTO a VALUES ({number}, 0)")
    xa(source, "XA COMMIT 'x4'")
    source.read()
    assert found(source) == ((4, 0, 0), [(80,), (81,), (82,), (83,)])
    assert source.commits[-1].followed.next_start == source.commits[-1].end.place


# DDL


@pytest.mark.parametrize(
    ("statements", "why"),
    [
        (["TRUNCATE TABLE a"], ("truncate",)),
        (["DROP TABLE a"], ("ddl",)),
        (["RENAME TABLE a TO a_old"], ("ddl",)),
        (["CREATE TABLE a_new LIKE a", "RENAME TABLE a TO a_old, a_new TO a"], ("ddl",)),
        (["ALTER TABLE a RENAME TO a_old"], ("ddl",)),
        (["ALTER TABLE a ADD COLUMN c INT FIRST", "INSERT INTO a VALUES (1, 90, 1)"], ("ddl",)),
        (["INSERT INTO a VALUES (90, 1)", "ALTER TABLE a DROP COLUMN v"], ("ddl",)),
        (["ALTER TABLE a PARTITION BY HASH (id) PARTITIONS 2", "ALTER TABLE a TRUNCATE PARTITION p0"], ("ddl",)),
        (["CREATE INDEX v ON a (v)"], ()),
        (["ALTER TABLE a COMMENT 'x'"], ()),
        (["ANALYZE TABLE a", "OPTIMIZE TABLE a", "CREATE VIEW w AS SELECT * FROM a"], ()),
        (["CREATE TRIGGER t AFTER INSERT ON a FOR EACH ROW DELETE FROM b", "INSERT INTO a VALUES (91, 0)"], ()),
    ],
)  # fmt: skip
def test_what_a_ddl_means(source: Following, statements: list[str], why: tuple[str, ...]) -> None:
    for statement in statements:
        source.workspace.execute(statement)
    source.read()
    assert source.changes(name(source)).reconcile == why
    assert source.changes(name(source, "b")) == TableChanges()


def test_a_table_is_described_anew_after_a_ddl(source: Following) -> None:
    source.workspace.execute("ALTER TABLE a ADD COLUMN c INT FIRST")
    source.read()
    source.workspace.execute("INSERT INTO a VALUES (5, 95, 5)")
    source.read()
    assert found(source) == ((1, 0, 0), [(95,)])


def test_full_metadata_proves_keys_across_a_ddl(source: Following) -> None:
    source.workspace.execute("SET GLOBAL binlog_row_metadata = 'FULL'", "FLUSH TABLES")
    try:
        source.workspace.execute("INSERT INTO a VALUES (96, 0)", "ALTER TABLE a ADD COLUMN c INT FIRST")
        source.workspace.execute("INSERT INTO a VALUES (5, 97, 5)")
        source.read()
        assert found(source) == ((2, 0, 0), [(96,), (97,)])
    finally:
        default = "MINIMAL" if source.workspace.database.server.name == "mysql" else "NO_LOG"
        source.workspace.execute(f"SET GLOBAL binlog_row_metadata = '{default}'", "FLUSH TABLES")


def test_dml_as_a_statement_reconciles_all(source: Following) -> None:
    source.workspace.execute("SET SESSION binlog_format = STATEMENT", "UPDATE a SET v = 5")
    source.read()
    assert source.commits[-1].followed.reconcile == ("statement",)


def test_a_log_that_was_reset_is_lost(source: Following) -> None:
    source.workspace.execute("INSERT INTO a VALUES (98, 0)")
    mysql = source.workspace.database.server.name == "mysql"
    source.workspace.execute("RESET BINARY LOGS AND GTIDS" if mysql else "RESET MASTER")
    source.read()
    assert source.commits[-1].followed.reconcile == ("lost",)
    # In the file of the same name, once before the place that was read to and once behind it.
    source.workspace.execute(f"INSERT INTO a VALUES {', '.join(f'({n}, 0)' for n in range(500, 900))}")
    source.read()
    source.workspace.execute("RESET BINARY LOGS AND GTIDS" if mysql else "RESET MASTER")
    source.workspace.execute(f"INSERT INTO a VALUES {', '.join(f'({n}, 0)' for n in range(900, 2000))}")
    source.read()
    assert source.commits[-1].followed.reconcile == ("lost",)
    source.workspace.execute("INSERT INTO a VALUES (99, 0)")
    source.read()
    assert found(source) == ((1, 0, 0), [(99,)])


def test_compressed_transactions(source: Following) -> None:
    mysql = source.workspace.database.server.name == "mysql"
    setting = "binlog_transaction_compression" if mysql else "log_bin_compress"
    source.workspace.execute(f"SET GLOBAL {setting} = ON")
    try:
        rows = ", ".join(f"({n}, 0)" for n in range(200, 400))
        with source.workspace.database.connect(autocommit=True) as connection, connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO a VALUES {rows}")
        source.read()
        assert found(source)[0] == (200, 0, 0)
        assert len(found(source)[1]) == 200
    finally:
        source.workspace.execute(f"SET GLOBAL {setting} = OFF")


def test_a_table_that_is_followed_later_is_listened_for_from_then_on(source: Following) -> None:
    source.workspace.execute("CREATE TABLE c (id INT PRIMARY KEY)", "INSERT INTO c VALUES (1)")
    source.names = [*source.names, name(source, "c")]
    source.read()
    source.workspace.execute("INSERT INTO c VALUES (2)")
    source.read()
    assert found(source, "c") == ((1, 0, 0), [(2,)])
