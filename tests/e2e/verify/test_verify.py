"""`verify`: differences that were planted in the warehouse are found, all of them and nothing else."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import duckdb
import pytest

from floodmark.config.load import load
from floodmark.log.claim import claim
from floodmark.log.log import Log
from floodmark.model.errors import ConfigError, FloodmarkError
from floodmark.model.run import SyncOptions, SyncReport, new_run
from floodmark.model.statements import STATEMENTS
from floodmark.services import Services
from floodmark.setup.services.databases import DatabaseServer
from floodmark.source.describe import discover
from floodmark.source.session import Session
from floodmark.store.store import Store
from floodmark.sync import deletes
from floodmark.sync.run import repairing, sync
from tests.conftest import Result, Silent, Workspace
from tests.support.tampered_warehouse import FILL, MAINLY_DUCKDB, READINGS, Verifying

pytestmark = pytest.mark.source


def test_planted_differences_are_found_and_nothing_else(place: Verifying) -> None:
    place.workspace.execute(READINGS, FILL.format(n=5000))
    place.workspace.synced("readings")
    clean = place.verify()
    assert (clean["ok"], clean["rows_source"], clean["rows_warehouse"], clean["findings"]) == (
        True,
        5000,
        5000,
        [],
    )
    number = "REAL" if place.schema != "main" else "FLOAT"
    place.change(
        # Each differs in the last bit, or in as little as there is.
        f"UPDATE readings SET value = CAST(CAST(value AS DOUBLE PRECISION) * (1 + 1.2e-7) AS {number}) WHERE id = 30",
        "UPDATE readings SET exact = exact * (1 + 2.3e-16) WHERE id = 3000",
        "UPDATE readings SET note = '' WHERE id = 15",
        "UPDATE readings SET note = NULL WHERE id = 18",
        "UPDATE readings SET taken = taken + INTERVAL '1 microsecond' WHERE id = 9000",
        "UPDATE readings SET seen = seen - INTERVAL '1 microsecond' WHERE id = 9003",
        "UPDATE readings SET price = price + 0.0001, note = 'x' WHERE id = 14994",
        "DELETE FROM readings WHERE id IN (600, 15000)",
        "INSERT INTO readings SELECT * FROM readings WHERE id = 12000",
        "UPDATE readings SET id = 12001 WHERE id = 12003",
        "UPDATE readings SET id = NULL WHERE id = 12006",
    )
    assert sorted(place.found(), key=str) == sorted([
        ("different_row", 30, "value"), ("different_row", 3000, "exact"), ("different_row", 15, "note"),
        ("different_row", 18, "note"), ("different_row", 9000, "taken"), ("different_row", 9003, "seen"),
        ("different_row", 14994, "note", "price"), ("missing_row", 600), ("missing_row", 15000),
        ("missing_row", 12003), ("different_row", 12000), ("extra_row", 12001),
        ("missing_row", 12006), ("extra_row", None),
    ], key=str)  # fmt: skip


@pytest.mark.parametrize("on_server", [False, True])
def test_the_source_hashes_its_rows_only_if_it_shall(
    workspace: Workspace, caplog: pytest.LogCaptureFixture, on_server: bool
) -> None:
    def change(*statements: str) -> None:
        with duckdb.connect(str(workspace.warehouse)) as link:
            for statement in statements:
                link.execute(statement)

    workspace.write(source={"url": workspace.database.url, "hash_on_server": on_server})
    place = Verifying(workspace, change, "main")
    workspace.execute(READINGS, FILL.format(n=2000))
    workspace.synced("readings")
    caplog.set_level(logging.DEBUG, STATEMENTS.name)
    assert place.verify()["ok"]
    asked = [record.getMessage() for record in caplog.records if "duckdb" in record.getMessage()]
    of_rows = [sql for sql in asked if "floodmark_" not in sql]  # the ledger has sums of its own
    assert any("sum(" in sql for sql in of_rows) == on_server, (
        "the warehouse sums hashes only where the source does"
    )
    change("DELETE FROM readings WHERE id % 30 = 0", "UPDATE readings SET note = 'x' WHERE id = 33")
    found = place.verify(named=1000)
    assert (found["missing"], found["extra"], found["different"]) == (200, 0, 1)


@MAINLY_DUCKDB
def test_a_value_that_no_file_could_hold_is_a_difference(place: Verifying) -> None:
    """With `zero_dates: error`, the reader refuses it: both servers are asked for their hashes instead."""
    place.workspace.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, d DATE, update_at DATETIME NOT NULL DEFAULT '2025-05-05')",
        "INSERT INTO t (id, d) VALUES (1, '2025-01-01'), (2, '2025-01-02')",
    )
    place.workspace.synced("t")
    place.workspace.execute("SET sql_mode = ''", "UPDATE t SET d = '0000-00-00' WHERE id = 2")
    assert place.found("t") == [("different_row", 2, "d")]


KEYS = {
    "VARCHAR(40)": "CONCAT('Key ', seq)",
    "VARCHAR(40) CHARSET latin1 COLLATE latin1_german1_ci": "CONCAT('Schlüssel ', seq)",
    "BINARY(16)": "UNHEX(LEFT(SHA2(seq, 256), 32))",
    "DECIMAL(20,4)": "seq * 1.0625 - 100",
    "BIGINT UNSIGNED": "18446744073709551615 - seq",
    "DATETIME(6)": "'2025-01-01' + INTERVAL seq * 1500 MICROSECOND",
    "ENUM('b','a','c','')": "1 + seq % 4",
}


# What Redshift prints of every type, test_types.py compares.
@pytest.mark.parametrize(
    ("place", "type_"),
    [
        pytest.param(
            place, type_,
            marks=() if place == "duckdb" or type_ in ("VARCHAR(40)", "BINARY(16)") else pytest.mark.long,
        )
        for place in ("duckdb", "redshift")
        for type_ in KEYS
    ],
    indirect=["place"],
)  # fmt: skip
def test_differences_are_found_with_any_kind_of_key(place: Verifying, type_: str) -> None:
    rows = 4 if type_.startswith("ENUM") else 3000
    place.workspace.execute(
        f"CREATE TABLE t (k {type_} NOT NULL PRIMARY KEY, n INT, update_at DATETIME NOT NULL DEFAULT '2025-05-05', "
        "KEY (update_at)) DEFAULT CHARSET=utf8mb4",
        f"INSERT INTO t (k, n) SELECT {KEYS[type_]}, seq FROM seq_1_to_{rows}",
    )
    place.workspace.synced("t")
    assert place.verify("t")["ok"]
    place.change(
        "DELETE FROM t WHERE n = 1", "UPDATE t SET n = -2 WHERE n = 2",
    )  # fmt: skip
    place.workspace.execute("DELETE FROM t WHERE n = 3")
    found = place.verify("t")
    assert [f["kind"] for f in found["findings"]] == ["missing_row", "extra_row", "different_row"]
    assert found["findings"][2]["columns"] == ["n"]
    [(first,)] = place.workspace.execute("SELECT HEX(k) FROM t WHERE n = 1")
    [key] = found["findings"][0]["key"]
    shown = (
        f"X'{key[2:]}'" if type_.startswith("BINARY") else f"'{key}'" if isinstance(key, str) else str(key)
    )
    assert place.workspace.execute(f"SELECT HEX(k) FROM t WHERE k = {shown}") == [(first,)]


def test_a_key_in_another_case_is_the_same_row(place: Verifying) -> None:
    place.workspace.execute(
        "CREATE TABLE t (k VARCHAR(40) COLLATE utf8mb4_general_ci PRIMARY KEY, n INT, "
        "update_at DATETIME NOT NULL DEFAULT '2025-05-05')",
        "INSERT INTO t (k, n) VALUES ('abc', 1), ('def', 2)",
    )
    place.workspace.synced("t")
    place.workspace.execute("UPDATE t SET k = 'ABC' WHERE n = 1")  # its cursor does not move
    assert place.found("t") == [("different_row", "ABC", "k")]


@MAINLY_DUCKDB
def test_rows_outside_the_watermarks_promise_are_not_differences(place: Verifying) -> None:
    workspace = place.workspace
    workspace.write(
        tables={workspace.full_name("readings"): {"where": "site <> 's3'", "start": "2025-03-01 00:00:05"}}
    )
    workspace.execute(READINGS, FILL.format(n=1000), "ALTER TABLE readings MODIFY update_at DATETIME(6)")
    workspace.execute("UPDATE readings SET update_at = NULL WHERE id = 900")
    workspace.synced("readings")
    found = place.verify()
    assert found["findings"] == [] and found["rows_left_out"] == 0
    assert found["notes"] == [
        "not compared: 205 rows from before the start, that is up to 2025-03-01 00:00:05"
    ]
    # Changed, added and moved since the watermark: left out, until the next sync has read them.
    workspace.execute(
        "UPDATE readings SET note = 'later', update_at = NOW(6) WHERE id BETWEEN 2000 AND 2300",
        "INSERT INTO readings (site, taken, update_at) VALUES ('s1', NOW(), NOW(6))",
        # Before the start, outside the where: never promised.
        "UPDATE readings SET note = 'x' WHERE update_at <= '2025-03-01 00:00:05' OR site = 's3'",
    )
    found = place.verify()
    assert found["findings"] == [] and found["rows_left_out"] > 80
    workspace.execute("UPDATE readings SET site = 's3', update_at = NOW(6) WHERE id IN (1197, 1209)")
    moved = place.verify()
    assert moved["findings"] == [] and moved["rows_left_out"] == found["rows_left_out"] + 2
    # One that has left the `where` is extra, one without a change of its cursor is different.
    workspace.execute(
        "UPDATE readings SET site = 's3', update_at = update_at WHERE id = 1200",
        "UPDATE readings SET note = 'silent', update_at = update_at WHERE id = 1203",
    )
    assert sorted(place.found()) == [("different_row", 1203, "note"), ("extra_row", 1200)]


@MAINLY_DUCKDB
@pytest.mark.parametrize("on_server", [False, True])
def test_rows_without_a_place_in_the_order_are_compared_and_repaired(
    place: Verifying, on_server: bool
) -> None:
    workspace = place.workspace
    name = workspace.full_name("readings")
    workspace.write(source={"hash_on_server": on_server}, tables={name: {"start": "2025-03-01 00:00:01"}})
    workspace.execute(READINGS, FILL.format(n=100), "ALTER TABLE readings MODIFY update_at DATETIME(6)")
    workspace.execute(
        "UPDATE readings SET update_at = NULL WHERE id IN (30, 60, 90)",
        "UPDATE readings SET update_at = '2099-01-01' WHERE id = 120",
    )
    workspace.synced("readings")
    assert place.verify()["ok"]
    place.change(
        "UPDATE readings SET note = 'wrong' WHERE id IN (30, 120)",
        "DELETE FROM readings WHERE id = 60",
    )
    # Such a row may also have changed since the last sync, and verify can't tell.
    workspace.execute("UPDATE readings SET note = 'later' WHERE id = 90")
    found = place.verify()
    assert not found["ok"] and found["rows_left_out"] == 0
    assert (found["missing"], found["different"], found["loose"]) == (1, 3, 4)
    assert {f["key"][0] for f in found["findings"] if f["loose"]} == {30, 60, 90, 120}
    assert all("may only have changed since the last sync" in f["detail"] for f in found["findings"])
    workspace.synced("readings", verify_data=True)
    assert place.verify()["ok"], "a sync reads these rows again"
    place.change("UPDATE readings SET note = 'wrong' WHERE id = 30")
    assert place.verify(one=repairing(False))["repaired"] == 1 and place.verify()["ok"]


def test_a_table_without_a_key_is_compared_as_a_whole(place: Verifying) -> None:
    place.workspace.execute(
        "CREATE TABLE t (a INT, b VARCHAR(10))",
        "INSERT INTO t VALUES (1, 'x'), (1, 'x'), (2, NULL), (NULL, '')",
    )
    place.workspace.synced("t")
    assert place.verify("t")["ok"]
    place.change("UPDATE t SET b = '' WHERE a = 2")
    [finding] = place.verify("t")["findings"]
    assert finding["kind"] == "different_row"
    place.change("DELETE FROM t WHERE a = 1")
    [finding] = place.verify("t")["findings"]
    assert (finding["kind"], finding["rows_source"], finding["rows_warehouse"]) == ("count_mismatch", 4, 2)


def test_the_command_says_what_differs_and_exits_with_7(
    workspace: Workspace, command: Callable[..., Result]
) -> None:
    workspace.execute(READINGS, FILL.format(n=200))
    workspace.synced("readings", backup_only=True)
    waiting = command(workspace, "verify", "-t", "readings", "--json")
    assert waiting.code == 6 and "200 rows wait to be loaded" in waiting.json["tables"][0]["error"]["message"]
    workspace.synced("readings")
    clean = command(workspace, "verify", "-t", "readings").ok()
    assert "readings: 200 rows agree" in clean.stdout
    workspace.execute(
        "DELETE FROM readings WHERE id IN (3, 6, 9)",
        "UPDATE readings SET note = 'n', update_at = update_at WHERE id = 12",
    )
    told = command(workspace, "verify", "-t", "readings", "--show", "2")
    assert told.code == 7
    assert "3 extra, 1 different" in told.stdout and "and 1 more" in told.stdout
    assert "id = 12 differs in note" in told.stdout and "id = 3 is in the warehouse" in told.stdout
    assert workspace.run("verify", "-t", "nosuch").code == 2
    assert workspace.run("verify").code == 2


@MAINLY_DUCKDB
def test_without_a_watermark_nothing_is_promised_and_nothing_is_found(place: Verifying) -> None:
    workspace = place.workspace
    workspace.execute(READINGS, FILL.format(n=50))
    workspace.synced("readings")
    name = workspace.full_name("readings")
    workspace.run("watermark", "reset", "-t", name, "--mysql-only").ok()
    workspace.execute("UPDATE readings SET note = 'later' WHERE id = 3")
    said = place.looked()["error"]
    assert said["code"] == 6 and "no watermark" in said["message"]
    workspace.synced("readings")
    assert place.verify()["ok"]


@MAINLY_DUCKDB
def test_a_table_that_starts_after_all_its_rows_is_compared_without_a_watermark(
    place: Verifying,
) -> None:
    workspace = place.workspace
    workspace.execute(READINGS, FILL.format(n=50))
    workspace.synced("readings")
    workspace.run("watermark", "reset", "-t", workspace.full_name("readings"), "--mysql-only").ok()
    workspace.run("watermark", "set", "yesterday", "--force").ok()
    workspace.synced("readings")
    assert place.verify()["ok"]


@MAINLY_DUCKDB
def test_verify_waits_for_a_run_that_is_about_to_load(
    place: Verifying, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = place.workspace
    workspace.execute(READINGS, FILL.format(n=200))
    workspace.synced("readings", backup_only=True)
    log = Log(Store(workspace.settings.store), workspace.full_name("readings"))
    held = claim(log, log.read(), run="20261116_000000_beef", purpose="sync")
    assert held.state.claim
    with held.lease:
        monkeypatch.setattr("floodmark.verify.compare.PATIENCE", 0.0)
        said = place.looked()["error"]
        assert said["code"] == 3 and "run 20261116_000000_beef" in said["message"]
        monkeypatch.setattr("floodmark.verify.compare.PATIENCE", 60.0)
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(place.verify)
            config, names = workspace.settings, [log.table_name]
            assert sync(config, names, False, SyncOptions(load_only=True), Silent(), held.state.claim.run).ok
            assert waiting.result(60)["ok"]


@MAINLY_DUCKDB
def test_verify_refuses_columns_described_by_a_killed_run_but_not_loaded(place: Verifying) -> None:
    workspace = place.workspace
    workspace.execute(READINGS, FILL.format(n=50))
    workspace.synced("readings")
    workspace.execute("ALTER TABLE readings ADD COLUMN extra INT NULL")
    config, name = workspace.settings, workspace.full_name("readings")
    log = Log(Store(config.store), name)
    with Session(config.source, purpose="test") as session:
        now = discover(session, name, config.options(name), None)
    killed = claim(log, log.read(), run="20261116_000000_beef", purpose="sync", table=now)
    killed.lease.release()
    said = place.looked()["error"]
    assert said["code"] == 6 and "extra" in said["message"] and "floodmark sync" in said["hint"]
    workspace.execute("UPDATE readings SET extra = id WHERE id % 7 = 0")
    workspace.synced("readings")
    assert place.verify()["ok"]


@MAINLY_DUCKDB
def test_concurrent_writers_cause_no_findings(place: Verifying) -> None:
    workspace = place.workspace
    workspace.execute(READINGS, FILL.format(n=20_000))
    workspace.synced("readings")
    ended = threading.Event()

    def write(number: int) -> None:
        link = workspace.database.connect()
        cursor = link.cursor()
        turn = number
        while not ended.is_set():
            turn += 7919
            cursor.execute(
                "UPDATE readings SET note = CONCAT('w', %s), value = %s WHERE id = %s",
                (turn, turn, 3 * (turn % 20_000)),
            )
            cursor.execute("INSERT INTO readings (site, taken) VALUES ('w', NOW(6))")
            link.commit()
            time.sleep(0.002)
        link.close()

    writers = [threading.Thread(target=write, args=(n,)) for n in (1, 2, 3)]
    for writer in writers:
        writer.start()
    pool, syncs = ThreadPoolExecutor(2), list[Future[SyncReport]]()
    try:
        left_out = 0
        for number in range(4):
            if number % 2:
                syncs.append(pool.submit(workspace.sync, "readings"))  # and a sync beside it
            found = place.looked()
            # A sync that failed leaves rows that wait to be loaded: it says why.
            assert (_failed(s for s in syncs if s.done()), found["error"], found["findings"]) == (
                [],
                None,
                [],
            )
            left_out = max(left_out, found["rows_left_out"])
        assert left_out > 0
        assert _failed(syncs) == []
    finally:
        ended.set()
        pool.shutdown()
        for writer in writers:
            writer.join()


def _failed(syncs: Iterable[Future[SyncReport]]) -> list[FloodmarkError | None]:
    """What went wrong in syncs; that another one holds the table is not wrong."""
    return [t.error for sync in syncs for t in sync.result().tables if t.exit_code not in (0, 3)]


def test_a_successful_verify_accepts_the_targets_row_count(workspace: Workspace) -> None:
    workspace.execute(READINGS, FILL.format(n=50))
    workspace.synced("readings")
    with duckdb.connect(str(workspace.warehouse)) as con:
        con.execute("UPDATE floodmark_counts SET rows = 51")
    assert workspace.verified("readings")["ok"]
    workspace.execute("INSERT INTO readings (id, site, taken) VALUES (1000, 'new', NOW())")
    assert workspace.synced("readings")["rows_loaded"] == 1


def test_all_means_the_tables_of_a_sync_except_retired_ones(
    workspace: Workspace, command: Callable[..., Result]
) -> None:
    made = (READINGS, FILL.format(n=20), "CREATE TABLE marks (id INT AUTO_INCREMENT PRIMARY KEY)")
    workspace.execute(*made, "INSERT INTO marks VALUES (1), (2)")
    name = workspace.database.name
    pipeline = workspace.pipeline
    assert workspace.sync().ok

    def compared() -> dict[str, tuple[bool, int]]:
        document = pipeline.verify(all_tables=True, spark=workspace.spark())
        return {t["table"]: (t["ok"], t["rows_source"]) for t in document["tables"]}

    assert compared() == {f"{name}.marks": (True, 2), f"{name}.readings": (True, 20)}
    with duckdb.connect(workspace.warehouse) as con:
        con.execute("DELETE FROM marks WHERE id = 2")
    assert compared() == {f"{name}.marks": (False, 2), f"{name}.readings": (True, 20)}
    workspace.execute("RENAME TABLE marks TO elsewhere")
    gone = command(workspace, "verify", "--all", "--json")
    assert gone.code == 2 and f"the source no longer shows {name}.marks" in gone.stderr
    pipeline.watermark_retire("marks")
    pipeline.watermark_retire("readings")
    workspace.execute("DROP TABLE elsewhere")
    nothing = command(workspace, "verify", "--all")
    assert nothing.code == 2 and "every table is retired" in nothing.stderr


def test_a_column_that_became_unreadable_is_not_mistaken_for_dropped(
    workspace: Workspace, server: DatabaseServer, command: Callable[..., Result]
) -> None:
    schema = workspace.database.name
    workspace.execute(READINGS, FILL.format(n=300))
    server.create_user(
        "reader", "secret", f"SELECT (id, site, note, taken) ON `{schema}`.readings", "PROCESS ON *.*"
    )
    options = {"cursor": "taken", "deletes": "hard", "deletes_every": "0s"}
    workspace.write(
        source={"url": server.url(schema, "reader", "secret")}, tables={f"{schema}.readings": options}
    )
    workspace.synced("readings")
    filled = "SELECT count(*) FROM readings WHERE note IS NULL"
    before = workspace.query(filled)
    workspace.execute(f"REVOKE SELECT (note) ON `{schema}`.readings FROM reader@'%'")
    with duckdb.connect(str(workspace.warehouse)) as con:
        con.execute("UPDATE readings SET site = 'elsewhere' WHERE id < 100")
        con.execute("DELETE FROM readings WHERE id = 603")
    for repair in ((), ("--repair",)):
        refused = command(workspace, "verify", *repair, "-t", f"{schema}.readings")
        assert refused.code == 2 and "no longer shows note" in refused.stderr
    config = load(workspace.folder / "floodmark.yaml")
    log = Log(Store(config.store), f"{schema}.readings")
    with (
        Services(config, Silent(), new_run(), workspace.spark()) as services,
        pytest.raises(ConfigError, match="no longer shows note"),
    ):
        deletes.look(services, log.read(), config.options(log.table_name), force=False)
    (again,) = workspace.sync("readings").tables
    assert again.exit_code == 2 and workspace.query(filled) == before
    # What is really gone is known to be: no column is hidden then.
    server.create_user("reader", "secret", f"SELECT ON `{schema}`.readings", "PROCESS ON *.*")
    workspace.write(
        tables={
            f"{schema}.readings": {**options, "exclude": ["value", "exact", "seen", "price", "update_at"]}
        }
    )
    workspace.execute("ALTER TABLE readings DROP note")
    assert workspace.verified("readings", repair=True)["ok"]
    assert workspace.query("SELECT count(*) FROM readings WHERE site = 'elsewhere'") == [(0,)]
