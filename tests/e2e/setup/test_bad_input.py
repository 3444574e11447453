"""What a user does wrong, or finds broken: the contract's exit code, one or two lines that help, and no secret."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pytest
import yaml

from floodmark.setup.services.process import free_ports
from floodmark.setup.services.s3 import SeaweedFS
from tests.conftest import Database, Floodmark, Result, Workspace
from tests.support.held_sync import commits
from tests.support.orders import create_orders, fill_orders

pytestmark = pytest.mark.source

PASSWORD = f"pw-{secrets.token_hex(8)}"


@pytest.fixture
def orders(workspace: Workspace) -> Workspace:
    workspace.execute(create_orders(), fill_orders(100))
    return workspace


def refused(
    workspace: Workspace,
    code: int,
    *said: str,
    args: tuple[str, ...] = ("sync", "-t", "orders"),
    within: float = 20,
) -> Result:
    """Runs the command with --json and checks all that every failure promises."""
    log = workspace.folder / "floodmark.log"
    began = time.monotonic()
    result = workspace.run(*args, "--json", "--log-file", str(log))
    assert result.code == code, result.stdout + result.stderr
    assert time.monotonic() - began < within
    lines = result.stderr.splitlines()
    assert 1 <= len(lines) <= 2 and lines[0].startswith("floodmark: "), result.stderr
    for text in said:
        assert text in result.stderr, result.stderr
    error = error_of(result)
    assert error["code"] == code and error["message"] in result.stderr
    assert set(error) == {"code", "kind", "table", "message", "hint"}
    for secret in secrets_of(workspace.config):
        for place in (result.stdout, result.stderr, log.read_text()):
            assert secret not in place
    return result


def error_of(result: Result) -> dict[str, Any]:
    """The error of the document: of the command, or inside `sync` of its one table."""
    document = result.json
    assert document["ok"] is False
    if "tables" in document:
        [table] = document["tables"]
        assert (table["ok"], table["exit_code"]) == (False, result.code)
        return dict(table["error"])
    return dict(document["error"])


def secrets_of(config: dict[str, Any]) -> list[str]:
    found = [config["source"]["url"].partition("//")[2].rpartition("@")[0].partition(":")[2]]
    found += [
        config["store"][key] for key in ("secret_access_key", "access_key_id") if key in config["store"]
    ]
    return [secret for secret in found if len(secret) > 3]


# ---------------------------------------------------------------- configuration and names


def test_without_a_configuration_the_error_says_what_to_write(floodmark: Floodmark) -> None:
    result = floodmark("sync", "-t", "orders", "--json")
    assert result.code == 2 and result.json["error"]["kind"] == "config"
    assert len(result.stderr.splitlines()) == 2
    assert (
        "there is no configuration" in result.stderr and "floodmark init --source mysql://" in result.stderr
    )


def test_five_mistakes_are_reported_at_once_each_with_its_path(orders: Workspace) -> None:
    mistakes = {
        "source": {"url": "postgres://reader:hush-hush@db/shop", "tsl": {"mode": "required"}},
        "store": {"url": "./lake", "regin": "x"},
        "defaults": {"slice_rows": "many"},
        "tables": {"shop.orders": {"cursr": "update_at"}},
    }
    (orders.file).write_text(yaml.safe_dump(mistakes))
    result = orders.run("sync", "-t", "orders", "--json")
    assert result.code == 2
    for text in (
        "5 mistakes",
        "source.url: is not a MySQL URL; write mysql://user:password@host:3306/database",
        "source.tsl: unknown key; did you mean tls?",
        "store.regin: unknown key; did you mean region?",
        "defaults.slice_rows: must be a whole number",
        "tables.shop.orders.cursr: unknown key; did you mean cursor?",
    ):
        assert text in result.stderr and text in result.json["error"]["message"]
    assert "hush-hush" not in result.stderr + result.stdout


@pytest.mark.parametrize(
    "args", [("sync", "-t", "ordrs"), ("plan", "-t", "ordrs"), ("watermark", "get", "-t", "ordrs")]
)
def test_an_unknown_table_gets_the_intended_one_as_a_hint(orders: Workspace, args: tuple[str, ...]) -> None:
    refused(orders, 2, "there is no table", f"did you mean {orders.database.name}.orders?", args=args)
    assert not (orders.folder / "lake").exists()


def test_with_an_unknown_table_among_several_the_others_still_finish(orders: Workspace) -> None:
    report = orders.sync("ordrs", "orders").as_json()
    by_name = {t["table"].partition(".")[2]: t for t in report["tables"]}
    assert (by_name["ordrs"]["exit_code"], by_name["orders"]["rows_loaded"]) == (2, 100)
    assert not report["ok"]


def test_a_table_without_its_schema_is_found_unless_ambiguous(orders: Workspace, database: Database) -> None:
    orders.write(source={"url": database.server.url()})  # names no database
    assert orders.run("plan", "-t", "orders", "--json").ok().json["table"] == f"{database.name}.orders"
    other = f"{database.name}_b"
    database.server.execute(f"CREATE DATABASE {other}", create_orders(name=f"{other}.orders"))
    try:
        refused(orders, 2, "could be", f"{database.name}.orders", "name the schema too")
    finally:
        database.server.execute(f"DROP DATABASE {other}")


def test_a_view_is_not_a_table(orders: Workspace) -> None:
    orders.execute("CREATE VIEW cheap AS SELECT * FROM orders")
    refused(orders, 2, "cheap is a view", "replicate the tables behind it", args=("sync", "-t", "cheap"))


def test_an_unknown_cursor_gets_the_intended_one_as_a_hint(orders: Workspace) -> None:
    orders.write(tables={orders.full_name("orders"): {"cursor": "updated_att"}})
    refused(orders, 2, "there is no column updated_att", "did you mean update_at?")


def test_a_table_without_rows_gets_an_empty_target_and_is_up_to_date(orders: Workspace) -> None:
    orders.execute("DELETE FROM orders")
    assert "None" not in orders.run("sync", "-t", "orders").ok().stdout
    assert orders.query("SELECT * FROM orders") == []
    assert "up to date" in orders.run("sync", "-t", "orders").ok().stdout


# ---------------------------------------------------------------- the source


def test_without_select_the_error_names_the_missing_grant(orders: Workspace, database: Database) -> None:
    user = f"u_{secrets.token_hex(4)}"
    database.server.create_user(user, PASSWORD, f"INSERT ON {database.name}.*")
    orders.write(source={"url": database.server.url(database.name, user, PASSWORD)})
    refused(orders, 2, "SELECT command denied", f"GRANT SELECT on the tables to {user}")
    database.server.create_user(user, PASSWORD)
    orders.write(source={"url": database.server.url(None, user, PASSWORD)})
    name = f"{database.name}.orders"
    refused(orders, 2, f"{user} may not see it", "GRANT SELECT", args=("sync", "-t", name))
    database.server.execute(f"DROP USER {user}")


def test_a_wrong_password_is_reported(orders: Workspace, database: Database) -> None:
    orders.write(source={"url": database.server.url(database.name, password=PASSWORD)})
    refused(orders, 2, "Access denied", "check the user and the password in source.url")


def test_an_unknown_database_is_reported(orders: Workspace, database: Database) -> None:
    orders.write(source={"url": database.server.url("nosuch")})
    refused(orders, 2, "Unknown database 'nosuch'")


def test_a_refused_connection_is_reported(orders: Workspace) -> None:
    [port] = free_ports(1)
    orders.write(source={"url": f"mysql://root:{PASSWORD}@127.0.0.1:{port}/shop"})
    refused(
        orders, 4, f"127.0.0.1:{port} can't be reached: the connection was refused", "source.url", within=8
    )


def test_a_silent_host_is_given_up_within_seconds(orders: Workspace) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        orders.write(source={"url": f"mysql://root:{PASSWORD}@127.0.0.1:{port}/shop"})
        refused(orders, 4, f"127.0.0.1:{port} can't be reached: no answer", "source.url", within=12)


# ---------------------------------------------------------------- the store


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({"url": "s3://nosuch/prefix"}, 2, ("bucket nosuch does not exist", "store.url")),
        ({"secret_access_key": PASSWORD}, 2, ("the keys are not valid", "store.access_key_id")),
        ({"access_key_id": "nosuchkey"}, 2, ("the keys are not valid", "store.access_key_id")),
        ({"endpoint": "http://127.0.0.1:1"}, 4, ("http://127.0.0.1:1 can't be reached", "store.endpoint")),
    ],
)
def test_an_unusable_store_is_reported(
    orders: Workspace,
    seaweed: SeaweedFS,
    prefix: str,
    change: dict[str, str],
    code: int,
    said: tuple[str, ...],
) -> None:
    orders.write(store={**seaweed.store(prefix), **change})
    refused(orders, code, *said)


def test_a_read_only_bucket_is_reported(orders: Workspace, seaweed: SeaweedFS, prefix: str) -> None:
    orders.write(store=seaweed.store(prefix, read_only=True))
    refused(orders, 2, "can't write bucket lake", "access denied", "s3:PutObject")
    assert seaweed.list(prefix) == []


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """A file system of its own; root may write to any other folder, whatever its rights."""
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True)
    if done.returncode:
        pytest.skip("this user may not mount a file system")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_read_only_folder_is_reported(orders: Workspace) -> None:
    with mounted(orders.folder / "lake", "size=1m,ro"):
        refused(orders, 2, "no permission to write the store", "read-only file system")


def test_a_full_disk_is_code_4_and_the_next_run_continues_once_there_is_space(orders: Workspace) -> None:
    orders.execute(
        "INSERT INTO orders (amount, note) SELECT seq, LEFT(SHA2(seq, 256), 32) FROM seq_1_to_3000"
    )
    with mounted(orders.folder / "lake", "size=128k"):
        filler = orders.folder / "lake" / "filler"
        filler.write_bytes(b"x" * 70_000)
        [table] = orders.sync("orders").as_json()["tables"]
        assert (table["exit_code"], table["error"]["kind"]) == (4, "transient")
        assert "no space left" in table["error"]["message"] and "run again" in table["error"]["hint"]
        filler.unlink()
        subprocess.run(["mount", "-o", "remount,size=8m", str(orders.folder / "lake")], check=True)
        orders.synced("orders")
        assert orders.compare("orders").equal
        assert orders.query("SELECT count(*), count(DISTINCT id) FROM orders") == [(3100, 3100)]


# ---------------------------------------------------------------- the warehouse


def test_a_warehouse_that_another_process_holds_is_code_4_and_named(orders: Workspace) -> None:
    orders.synced("orders", backup_only=True)
    with duckdb.connect(orders.warehouse) as held:
        held.execute("CREATE TABLE mine (i INT)")
        refused(
            orders,
            4,
            f"warehouse.duckdb is locked by process {os.getpid()}",
            "close it there, then run again",
        )
    assert orders.synced("orders")["rows_loaded"] == 100


def test_a_corrupt_warehouse_is_code_6_and_what_is_missing_loads_into_a_new_one(orders: Workspace) -> None:
    orders.synced("orders")
    pages = bytearray(orders.warehouse.read_bytes())
    for at in range(4096, len(pages), 64):
        pages[at] ^= 0xFF
    orders.warehouse.write_bytes(pages)
    refused(orders, 6, "can't be read as a DuckDB database", "restore it from a backup or move it away")
    orders.warehouse.unlink()
    assert orders.synced("orders")["rows_loaded"] == 100


def test_the_log_of_another_warehouse_file_is_code_6_and_says_to_move_it(orders: Workspace) -> None:
    orders.synced("orders")
    crash = f"import duckdb, os; c = duckdb.connect({str(orders.warehouse)!r}); c.execute('CREATE TABLE x (i INT)'); os._exit(0)"
    subprocess.run([sys.executable, "-c", crash], check=True)
    left = orders.folder / "warehouse.duckdb.wal"
    assert left.exists()
    orders.warehouse.unlink()
    duckdb.connect(orders.folder / "fresh.duckdb").close()
    shutil.move(orders.folder / "fresh.duckdb", orders.warehouse)
    refused(orders, 6, "don't match", "move the .wal file away")
    left.unlink()
    assert orders.synced("orders")["rows_loaded"] == 100


def test_a_missing_warehouse_folder_is_reported_before_rows_are_read(orders: Workspace) -> None:
    orders.write(warehouse={"url": "duckdb:///no/such/warehouse.duckdb"})
    refused(orders, 2, "the folder of the warehouse", "does not exist", "warehouse.url")
    # The mistake did not bind the store to something that is not a warehouse.
    assert commits(orders) == [] and not (orders.folder / "lake" / "pipeline.json").exists()


def test_a_mistyped_warehouse_does_not_claim_the_store(
    orders: Workspace, seaweed: SeaweedFS, prefix: str
) -> None:
    right = orders.config["warehouse"]
    orders.write(
        store=seaweed.store(prefix),
        warehouse={"url": "redshift://a:b@127.0.0.1:1/dev", "iam_role": "default"},
    )
    refused(orders, 4, "127.0.0.1:1")
    # The rows are kept, and wait for whichever warehouse answers first.
    orders.write(warehouse=None)
    orders.write(warehouse=right)
    table = orders.synced("orders")
    assert (table["rows_extracted"], table["rows_loaded"]) == (0, 100)


def test_another_warehouse_on_the_same_prefix_is_refused_and_changes_nothing(orders: Workspace) -> None:
    before = orders.synced("orders")["watermark"]

    def known_of_runs() -> dict[Path, bytes]:
        found = (
            path for kind in ("status", "runs") for path in (orders.folder / "lake" / kind).rglob("*.json")
        )
        return {path: path.read_bytes() for path in found}

    runs = known_of_runs()
    orders.write(warehouse={"url": "duckdb:///other.duckdb"})
    refused(orders, 2, "belongs to a pipeline into")  # also with nothing to read
    orders.execute("UPDATE orders SET note = 'new' WHERE id = 7")
    refused(
        orders, 2, "belongs to a pipeline into duckdb:///", "needs its own store prefix", "watermark move"
    )
    assert not (orders.folder / "other.duckdb").exists()
    assert runs and known_of_runs() == runs
    # Its empty ledger is not mistaken for this pipeline's.
    document = orders.run("watermark", "get", "-t", "orders", "--json").ok().json
    assert document["redshift_rows_loaded"] == before["redshift_rows_loaded"] == 100
    assert document["pending_s3_files"] == []

    moved = orders.run("watermark", "move", "--json").ok().json
    (table,) = moved["tables"]
    assert (table["rows"], table["files_gone"]) == (100, 0) and moved["to"].endswith("other.duckdb")
    assert orders.synced("orders")["rows_loaded"] == 101
    with duckdb.connect(orders.folder / "other.duckdb") as con:
        assert con.execute("SELECT count(*), count(*) FILTER (note = 'new') FROM orders").fetchone() == (
            100,
            1,
        )
    # Back again: the old warehouse's own ledger says what it has.
    orders.write(warehouse={"url": "duckdb:///warehouse.duckdb"})
    assert "1 row\n" in orders.run("watermark", "move").ok().stdout
    assert orders.synced("orders")["rows_loaded"] == 1 and orders.compare("orders").equal


def test_a_target_that_another_pipeline_fills_is_refused_before_rows_are_read_and_force_adopts_it(
    orders: Workspace,
) -> None:
    orders.synced("orders")
    orders.write(store={"url": "./lake2"})
    refused(
        orders,
        2,
        "filled from this table through another store",
        "check store.url",
        "set another `target`",
        "if the other store is gone, --force",
    )
    assert not (orders.folder / "lake2" / "commits").exists()
    assert orders.synced("orders", force=True)["rows_loaded"] == 100
    assert orders.compare("orders").equal
    assert orders.synced("orders")["commits"] == []
    orders.write(store={"url": "./lake"})
    orders.execute("UPDATE orders SET note = 'late' WHERE id = 7")
    refused(orders, 2, "orders is filled by another pipeline")


# ---------------------------------------------------------------- how it is said


def test_without_json_people_get_the_same_lines_and_tracebacks_only_with_debug(orders: Workspace) -> None:
    orders.write(tables={orders.full_name("orders"): {"cursor": "updated_att"}})
    plain = orders.run("sync", "-t", "orders")
    assert plain.code == 2 and len(plain.stderr.splitlines()) == 2
    assert "failed (exit code 2)" in plain.stdout and "None" not in plain.stdout
    logged = orders.run("sync", "-t", "orders", "--json-logs")
    lines = [json.loads(line) for line in logged.stderr.splitlines()]
    assert [line["event"] for line in lines] == ["table_end", "error", "run_end"]
    assert {line["table"] for line in lines[:2]} == {orders.full_name("orders")}
    assert {line["exit_code"] for line in lines} == {2}
    assert "Traceback" not in plain.stderr + logged.stderr
    assert "Traceback" in orders.run("plan", "-t", "nosuch", "--debug").stderr
