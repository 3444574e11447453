"""`doctor` on the configuration, the source and its tables: planted problems, each named by its cause."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import duckdb
import pytest

from floodmark.config.load import SourceSpec
from floodmark.setup.services.databases import DatabaseServer
from floodmark.source.server import server_facts
from floodmark.source.session import Session
from tests.conftest import Database, Workspace
from tests.support.doctor_checks import doctor
from tests.support.orders import create_orders, fill_orders
from tests.support.sshd import Sshd

pytestmark = pytest.mark.source

SECRETS = ("root-secret", "reader-secret-pw")


@pytest.fixture
def orders(workspace: Workspace) -> Workspace:
    workspace.execute(create_orders())
    workspace.write(tables={workspace.full_name("orders"): {}})
    return workspace


def reader(workspace: Workspace, *grants: str) -> None:
    """Lets the workspace's source be read by a user with these grants only."""
    user = f"u_{workspace.database.name}"
    workspace.database.server.create_user(user, SECRETS[1], *grants)
    url = workspace.database.server.url(workspace.database.name, user, SECRETS[1])
    workspace.write(source={"url": url})


def tree(folder: Path) -> dict[str, bytes]:
    """Everything below a folder, folders too."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
    }


# a healthy pipeline


def test_a_healthy_setup_passes_and_nothing_changes(orders: Workspace) -> None:
    os.chmod(orders.file, 0o600)
    before = tree(orders.folder)
    answer = doctor(orders)
    assert (answer.code, answer.all("failure"), answer.all("warning")) == (0, [], [])
    assert answer.all("skipped") == []
    assert {c["section"] for c in answer.checks} == {
        "configuration", "source", "tables", "store", "warehouse", "spark",
    }  # fmt: skip
    assert "open transactions are visible" in answer.one("source", "privileges")["detail"]
    assert "update_at datetime (whole seconds), index update_at" in answer.one("tables", "reading")["detail"]
    assert tree(orders.folder) == before


def test_an_existing_pipeline_is_recognised_and_left_unchanged(orders: Workspace) -> None:
    orders.execute("INSERT INTO orders (amount) VALUES (1), (2)")
    orders.synced("orders")
    before = tree(orders.folder)
    answer = doctor(orders)
    assert (answer.code, answer.all("failure")) == (0, [])
    assert "1 commit loaded" in answer.one("warehouse", "ledger")["detail"]
    assert "warehouse.duckdb" in answer.one("store", "pipeline")["detail"]
    after = tree(orders.folder)
    assert json.loads(after.pop("lake/status/doctor.json"))["ok"]  # all that it leaves, for the dashboard
    assert after == before


def test_the_text_says_the_same_and_shows_no_secret(orders: Workspace) -> None:
    reader(orders, f"SELECT ON {orders.database.name}.*")
    result = orders.run("doctor")
    assert result.code == 0
    assert "warning  privileges    no PROCESS privilege" in result.stdout
    assert "→ GRANT PROCESS ON *.* TO" in result.stdout
    assert result.stdout.rstrip().endswith("ready: floodmark sync --all")
    assert not any(secret in result.stdout + result.stderr for secret in SECRETS)


# the configuration


def test_every_mistake_of_the_file_is_named_and_the_rest_is_skipped(orders: Workspace) -> None:
    orders.write(store={"url": "ftp://x"}, spark={"mastr": "local"}, defaults={"slice_rows": "many"})
    answer = doctor(orders)
    assert answer.code == 2
    failed = {c["name"]: c["detail"] for c in answer.checks if c["status"] == "failure"}
    assert "3 mistakes" in failed["file"]
    assert "did you mean master" in failed["spark.mastr"]
    assert "whole number" in failed["defaults.slice_rows"]
    assert "s3://bucket/prefix" in failed["store.url"]
    assert answer.all("skipped") == [f"{s}: {s}" for s in ("source", "tables", "store", "warehouse", "spark")]


def test_a_missing_file_is_reported_with_the_command_that_writes_one(workspace: Workspace) -> None:
    (workspace.file).unlink()
    answer = doctor(workspace)
    answer.fails("configuration", "file", "there is no configuration", "floodmark init --source mysql://")


def test_a_secret_that_others_can_read_is_a_warning(orders: Workspace) -> None:
    os.chmod(orders.file, 0o644)
    doctor(orders).warns("configuration", "secrets", "source.url", "other users can read", "chmod 600")


# the way to the source


def test_a_wrong_password_is_reported(orders: Workspace) -> None:
    server = orders.database.server
    orders.write(source={"url": server.url(orders.database.name, "root", "wrong-secret")})
    answer = doctor(orders)
    answer.fails("source", "log-in", "Access denied for user 'root'", "(1045)", "source.url")
    assert "source: clock" in answer.all("skipped")
    assert "tables: tables" in answer.all("skipped")
    assert "wrong-secret" not in str(answer.checks)


def test_a_closed_port_is_reported(orders: Workspace) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        orders.write(source={"url": f"mysql://root:x@127.0.0.1:{port}/shop"})
        doctor(orders).fails("source", "port", f"nothing listens on 127.0.0.1:{port}", "refused")


def test_an_unknown_host_is_reported(orders: Workspace) -> None:
    orders.write(source={"url": "mysql://root:x@nowhere.invalid/shop"})
    answer = doctor(orders)
    # Without any name server, the message says that none answers, which is all that can be known.
    answer.fails("source", "name", "nowhere.invalid")
    assert "unknown host" in answer.one("source", "name")["detail"] or "name server" in str(answer.checks)


def test_a_certificate_of_another_authority_is_reported(
    orders: Workspace, tmp_path: Path, new_server: type[DatabaseServer]
) -> None:
    for name in ("ca", "other"):
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
             "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(tmp_path / f"{name}.key"),
             "-out", str(tmp_path / f"{name}.pem")],
            check=True, capture_output=True,
        )  # fmt: skip
    args = [f"--ssl-cert={tmp_path / 'ca.pem'}", f"--ssl-key={tmp_path / 'ca.key'}"]
    with new_server(args=args, buffer_pool="32M") as server:
        server.execute("CREATE DATABASE shop", create_orders(name="shop.orders"))
        url, tls = server.url("shop"), {"mode": "verify_identity", "ca": str(tmp_path / "other.pem")}
        orders.write(source={"url": url, "tls": tls}, tables=None)
        doctor(orders).fails("source", "TLS", "certificate", "not issued by the CA in source.tls.ca")
        orders.write(source={"tls": {"mode": "verify_identity", "ca": str(tmp_path / "ca.pem")}})
        answer = doctor(orders)
        assert answer.all("failure") == []
        assert "TLSv1" in answer.one("source", "TLS")["detail"]
        assert "certificate verified" in answer.one("source", "TLS")["detail"]


def test_a_changed_host_key_of_the_bastion_is_reported(orders: Workspace) -> None:
    with Sshd() as bastion:
        orders.write(source={"ssh": bastion.ssh()})
        assert "accepts us" in doctor(orders).one("source", "tunnel")["detail"]
        bastion.stop()
        bastion.new_host_key()
        bastion.start()
        doctor(orders).fails("source", "tunnel", "presents a different host key", "find out why")


def test_a_server_that_the_bastion_cannot_reach_is_reported(orders: Workspace) -> None:
    with Sshd() as bastion:
        orders.write(source={"ssh": bastion.ssh(), "url": "mysql://root:x@127.0.0.1:1/shop"})
        doctor(orders).fails("source", "log-in", "can't reach 127.0.0.1:1", "as seen from the bastion")


# what the server allows


def test_a_user_without_process_gets_a_warning(orders: Workspace) -> None:
    reader(orders, f"SELECT ON {orders.database.name}.*")
    doctor(orders).warns(
        "source",
        "privileges",
        "no PROCESS privilege",
        "open transactions can't be seen",
        "600 s",
        "GRANT PROCESS",
    )


def test_a_user_who_may_not_read_the_table_is_reported(orders: Workspace) -> None:
    orders.execute("CREATE TABLE quite_different (id INT)")
    reader(orders, f"SELECT ON {orders.database.name}.quite_different", "PROCESS ON *.*")
    answer = doctor(orders)
    answer.fails("tables", "table", "there is no table", "may not see it", "GRANT SELECT")


def test_limits_of_the_server_and_of_the_user_are_reported(orders: Workspace) -> None:
    reader(orders, f"SELECT ON {orders.database.name}.*", "PROCESS ON *.*")
    server = orders.database.server
    server.execute(f"ALTER USER u_{orders.database.name} WITH MAX_USER_CONNECTIONS 6")
    answer = doctor(orders)
    answer.warns("source", "connections", "is limited to 6 connections", "source.max_connections to 1")


@pytest.fixture
def small(new_server: type[DatabaseServer]) -> Iterator[Database]:
    """A server of its own, to be changed at will."""
    with new_server(buffer_pool="32M", args=["--max-allowed-packet=1M", "--server-id=2"]) as server:
        server.execute("CREATE DATABASE shop", "CREATE TABLE shop.t (id INT PRIMARY KEY)")
        yield Database(server, "shop")


def test_a_stopped_replica_and_small_packets_are_reported(workspace: Workspace, small: Database) -> None:
    if small.server.name == "mysql":
        small.execute(
            "CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT=1, SOURCE_USER='x'",
            "START REPLICA",
        )
    else:
        small.execute(
            "CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT=1, MASTER_USER='x'", "START SLAVE"
        )
    workspace.write(source={"url": small.url})
    answer = doctor(workspace)
    answer.warns("source", "role", "replica", "is not running", "START REPLICA")
    answer.warns("source", "packet size", "1.0 MB", "exit code 6", "SET GLOBAL max_allowed_packet")


# tables


def test_a_table_without_a_key_is_reported(orders: Workspace) -> None:
    orders.execute("CREATE TABLE loose (a INT, at DATETIME)")
    answer = doctor(orders, "-t", "loose")
    answer.warns("tables", "key", "has no key", "reads all of it", "add a primary key", table="loose")
    assert "full" in answer.one("tables", "reading", "loose")["detail"]


def test_a_nullable_unindexed_unmaintained_cursor_is_reported(orders: Workspace) -> None:
    orders.execute("CREATE TABLE loose (id INT PRIMARY KEY, updated_at DATETIME NULL)")
    answer = doctor(orders, "-t", "loose")
    answer.warns("tables", "nullable", "updated_at can be NULL", "make updated_at NOT NULL")
    answer.warns("tables", "index", "no index starts with updated_at", "ADD INDEX (`updated_at`)")
    answer.warns("tables", "cursor", "MySQL doesn't maintain updated_at", "ON UPDATE")


def test_rows_before_the_start_are_counted_until_the_first_sync_skips_them(orders: Workspace) -> None:
    old = "INSERT INTO orders (amount, update_at) SELECT seq, '2024-12-31 23:59:59' FROM seq_1_to_3"
    orders.execute(old, fill_orders(5), "INSERT INTO orders (amount, update_at) VALUES (1, '2025-01-01')")
    said = "the first sync skips 4 rows at or before 2025-01-01 00:00:00 (`start` in the configuration)"
    assert "tables: start" not in doctor(orders).all("warning")
    orders.write(defaults={"start": "2025-01-01 00:00:00"})
    doctor(orders).warns("tables", "start", said, "start: null")
    orders.synced("orders")
    assert "tables: start" not in doctor(orders).all("warning")


def another_cursor(orders: Workspace) -> None:
    orders.write(tables={orders.full_name("orders"): {"cursor": "id", "mode": "append"}})


def set_back(orders: Workspace) -> None:
    orders.execute("DELETE FROM orders WHERE id > 2", "ALTER TABLE orders AUTO_INCREMENT = 3")


def changed_and_ask(orders: Workspace) -> None:
    orders.execute("ALTER TABLE orders ADD COLUMN flag INT")
    orders.write(defaults={"schema_changes": "ask"})


def another_target(orders: Workspace) -> None:
    orders.write(tables={orders.full_name("orders"): {"target": "elsewhere"}})


def unfit_target(orders: Workspace) -> None:
    orders.execute("INSERT INTO orders (amount) VALUES (1)")
    with duckdb.connect(str(orders.warehouse)) as warehouse:
        warehouse.execute("ALTER TABLE orders DROP COLUMN amount")


@pytest.mark.parametrize(
    ("change", "check", "said"),
    [
        (another_cursor, "sync", "was read by update_at so far, and would now be read by id"),
        (set_back, "sync", "the source has been set back"),
        (changed_and_ask, "sync", "`schema_changes: ask` is set"),
        (another_target, "sync", "but its target is now elsewhere"),
        (unfit_target, "target", "column amount of orders is gone"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_would_refuse_the_next_sync_is_a_failure_in_the_same_words(
    orders: Workspace, change: Callable[[Workspace], None], check: str, said: str
) -> None:
    orders.execute(fill_orders(5))
    orders.synced("orders")
    assert doctor(orders).code == 0
    change(orders)
    answer, refused = doctor(orders), orders.sync("orders")
    (table,) = refused.as_json()["tables"]
    error = table["error"]
    answer.fails("tables", check, said, " ".join(error["message"].split()), error["hint"] or "")
    assert not orders.run("doctor").stdout.rstrip().endswith("ready: floodmark sync --all")


def test_missing_tables_and_shared_targets_are_reported(orders: Workspace) -> None:
    name = orders.database.name
    orders.execute("CREATE TABLE one (id INT PRIMARY KEY)", "CREATE TABLE two (id INT PRIMARY KEY)")
    orders.write(tables={f"{name}.ordrs": {}, f"{name}.one": {"target": "t"}, f"{name}.two": {"target": "t"}})
    answer = doctor(orders)
    failed = {c["table"]: f"{c['detail']} {c['hint']}" for c in answer.checks if c["status"] == "failure"}
    assert answer.code == 2
    assert f"did you mean {name}.orders" in failed[f"{name}.ordrs"]
    assert (
        "have the same target t" in failed[f"{name}.one"]
        and "have the same target t" in failed[f"{name}.two"]
    )
    assert answer.one("tables", "reading", "orders")["status"] == "ok"


@pytest.mark.both_servers
def test_how_long_transactions_stay_open_is_measured_on_the_server(kind: str, orders: Workspace) -> None:
    """MySQL remembers those that have ended; MariaDB, without performance_schema, shows the open ones."""
    server = orders.database.server
    spec = SourceSpec(server.host, server.port, server.user, server.password)
    with closing(orders.database.connect()) as link, Session(spec) as session:
        link.cursor().execute("INSERT INTO orders (amount) VALUES (1)")
        time.sleep(1.2)
        longest = server_facts(session).longest
        assert longest is not None and longest.seconds > 1 and longest.remembered == (kind == "mysql")
        link.commit()
        if kind == "mysql":
            longest = server_facts(session).longest
            assert longest is not None and longest.seconds > 1


def test_without_the_process_privilege_the_limit_of_the_overlap_is_said(orders: Workspace) -> None:
    reader(orders, f"SELECT ON {orders.database.name}.*")
    found = doctor(orders).one("source", "transactions")
    assert "stays open for more than 600 s can be missed" in found["detail"]
