"""`floodmark changes` on real servers: as text, as JSON, and what it refuses."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from floodmark.setup.services.databases import DatabaseServer
from floodmark.spark.context import Spark
from tests.conftest import Database, Floodmark, Workspace, new_workspace
from tests.support.followed_log import Following


@pytest.fixture
def workspace(
    logged: DatabaseServer, tmp_path: Path, floodmark: Floodmark, spark: Callable[[], Spark]
) -> Iterator[Workspace]:
    """Two schemas with changes in two files of the log, of which the configuration names one."""
    reset = "RESET BINARY LOGS AND GTIDS" if logged.name == "mysql" else "RESET MASTER"
    logged.execute("DROP DATABASE IF EXISTS shop", "CREATE DATABASE shop", reset)
    made = new_workspace(tmp_path, Database(logged, "shop"), floodmark, spark, store={"url": "./lake"})
    made.execute("CREATE TABLE orders (id INT PRIMARY KEY, v INT)", "CREATE TABLE quiet (id INT PRIMARY KEY)")
    made.execute(
        "INSERT INTO orders VALUES (1, 0), (2, 0)",
        "UPDATE orders SET v = 1",
        "DELETE FROM orders WHERE id = 1",
    )
    logged.execute("FLUSH BINARY LOGS")
    made.execute(
        "INSERT INTO orders VALUES (3, 0)",
        "ALTER TABLE orders ADD COLUMN secret INT",
        "TRUNCATE TABLE orders",
    )
    made.execute("CREATE TABLE nokey (t TEXT)", "INSERT INTO nokey VALUES ('secret'), (NULL)")
    yield made
    logged.execute("DROP DATABASE shop")


def first_file(workspace: Workspace) -> str:
    """The file before the newest one."""
    return str(workspace.execute("SHOW BINARY LOGS")[-2][0])


def counts(document: dict[str, list[dict[str, object]]]) -> dict[object, tuple[object, ...]]:
    return {
        t["table"]: (t["inserts"], t["updates"], t["deletes"], t["statements"]) for t in document["tables"]
    }


def test_the_newest_file_is_shown_if_no_sync_has_followed_the_log(workspace: Workspace) -> None:
    shown = workspace.run("changes").ok()
    said = re.sub(r"bin\.\d+:\d+", "PLACE", shown.stdout)
    said = re.sub(r"\d+(\.\d)? (kB|B)", "SIZE", said)
    said = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", "TIME", said)
    said = re.sub(r" {2,}", "  ", said)
    assert said.splitlines() == [
        "PLACE to PLACE  SIZE in 1 file",
        "  from  the beginning of the newest file: no sync has followed this log yet",
        "  transactions  5, from TIME to TIME",
        "",
        "TABLE  INSERTS  UPDATES  DELETES  SIZE  STATEMENTS",
        "shop.nokey  2  0  0  SIZE  CREATE TABLE",
        "shop.orders  1  0  0  SIZE  ALTER TABLE, TRUNCATE TABLE",
    ]
    assert "secret" not in shown.stdout + shown.stderr


def test_from_a_file_on_and_up_to_one(workspace: Workspace) -> None:
    file = first_file(workspace)
    document = workspace.run("changes", "--from", file, "-t", "orders", "--json").ok().json
    assert counts(document) == {"shop.orders": (3, 2, 1, ["CREATE TABLE", "ALTER TABLE", "TRUNCATE TABLE"])}
    assert (document["begin_by"], document["files"], document["begin"]) == (
        "given", 2, {"file": file, "position": 4},
    )  # fmt: skip
    newest = document["end"]["file"]
    document = workspace.run("changes", "--from", file, "--until", newest, "--json").ok().json
    assert counts(document)["shop.orders"] == (2, 2, 1, ["CREATE TABLE"])
    assert document["end"] == {"file": newest, "position": 4}


def test_since_a_time(workspace: Workspace) -> None:
    hour = timedelta(hours=1)
    ago, ahead = (f"{datetime.now(UTC) + by:%Y-%m-%d %H:%M:%S}" for by in (-hour, hour))
    document = workspace.run("changes", "--since", ago, "-t", "orders", "--json").ok().json
    assert counts(document)["shop.orders"][:3] == (3, 2, 1)
    assert workspace.run("changes", "--since", ago, "--until", ago, "--json").ok().json["tables"] == []
    assert workspace.run("changes", "--since", ahead, "--json").ok().json["transactions"] == 0


def test_what_the_next_sync_would_follow(workspace: Workspace) -> None:
    following = Following(workspace, ["shop.orders"])
    following.read()
    document = workspace.run("changes", "--json").ok().json
    assert (document["begin_by"], document["tables"], document["transactions"]) == ("log", [], 0)
    workspace.execute("INSERT INTO orders VALUES (7, 0, 0)")
    before = following.commits
    document = workspace.run("changes", "--json").ok().json
    assert counts(document) == {"shop.orders": (1, 0, 0, [])}
    assert following.commits == before


def test_other_schemas_are_shown_only_when_asked_for(workspace: Workspace) -> None:
    workspace.database.server.execute(
        "DROP DATABASE IF EXISTS other", "CREATE DATABASE other", "CREATE TABLE other.x (id INT)", "INSERT INTO other.x VALUES (1)"
    )  # fmt: skip
    assert "other.x" not in counts(workspace.run("changes", "--json").ok().json)
    assert counts(workspace.run("changes", "--all-tables", "--json").ok().json)["other.x"][0] == 1
    workspace.database.server.execute("DROP DATABASE other")


def test_a_file_that_is_gone_is_refused(workspace: Workspace) -> None:
    shown = workspace.run("changes", "--from", "bin.999999")
    assert shown.code == 2
    assert "has no file bin.999999" in shown.stderr


def test_a_log_that_cannot_be_followed_is_refused(workspace: Workspace) -> None:
    workspace.execute("SET GLOBAL binlog_format = 'MIXED'")
    try:
        shown = workspace.run("changes")
        assert shown.code == 2
        assert "binlog_format is MIXED" in shown.stderr
    finally:
        workspace.execute("SET GLOBAL binlog_format = 'ROW'")


def test_a_server_that_is_gone_is_exit_code_4(workspace: Workspace) -> None:
    workspace.write(source={"url": "mysql://u:p@127.0.0.1:1/shop"})
    assert workspace.run("changes").code == 4
