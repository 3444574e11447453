"""`init` and the path of a newcomer: init, doctor, sync --all; the password stays out of sight."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from pathlib import Path

import pytest

from floodmark.config.load import load
from floodmark.setup.services.databases import DatabaseServer
from tests.conftest import Database, Floodmark
from tests.support.orders import create_orders, fill_orders
from tests.support.pages import section, words

pytestmark = pytest.mark.source

PASSWORD = "p@ss/w;rd-of-the-reader"
FILE = "floodmark.yaml"


@pytest.fixture
def url(database: Database) -> Iterator[str]:
    """The URL of a reader of a database with several kinds of tables."""
    database.execute(
        create_orders(),
        fill_orders(200),
        "CREATE TABLE events (id BIGINT AUTO_INCREMENT PRIMARY KEY, what VARCHAR(20), date_changed DATETIME)",
        "INSERT INTO events (what) SELECT seq FROM seq_1_to_30",
        "CREATE TABLE loose (a INT)",
        "INSERT INTO loose VALUES (1), (2)",
        "CREATE VIEW seen AS SELECT * FROM orders",
    )
    user = f"r_{secrets.token_hex(4)}"
    grants = (f"SELECT ON {database.name}.*", "PROCESS ON *.*")
    database.server.create_user(user, PASSWORD, *grants)
    yield database.server.url(database.name, user, PASSWORD)
    database.server.execute(f"DROP USER `{user}`")


def test_the_first_sync_of_the_readme_leads_to_rows_in_the_warehouse(
    floodmark: Floodmark, url: str, database: Database
) -> None:
    login, _, place = url.partition("://")[2].rpartition("@")
    bare = f"mysql://{login.partition(':')[0]}@{place}"
    block, *_ = section("README.md", "## Install and first sync")
    lines = [line for line in block.body.splitlines() if line.startswith("floodmark ")]
    init, doctor, sync = (
        [word.replace("mysql://reader@db.internal:3306/shop", bare) for word in words(line)] for line in lines
    )
    assert bare in init
    # The password is in the environment, as the block says.
    env = {"MYSQL_PASSWORD": PASSWORD}
    made = floodmark(*init, env=env).ok()
    assert "Wrote " in made.stdout and "3 tables" in made.stdout and "Next: floodmark doctor" in made.stdout
    unset = floodmark(*doctor, "--json")
    assert unset.code == 2
    assert "MYSQL_PASSWORD is not set" in unset.json["checks"][0]["detail"]
    assert "export MYSQL_PASSWORD" in unset.json["checks"][0]["hint"]
    assert "0 failures; ready: floodmark sync --all" in floodmark(*doctor, env=env).ok().stdout
    report = floodmark(*sync, "--json", env=env).ok().json
    assert {t["table"]: t["rows_loaded"] for t in report["tables"]} == {
        f"{database.name}.events": 30, f"{database.name}.loose": 2, f"{database.name}.orders": 200,
    }  # fmt: skip


def test_the_file_lists_how_each_table_is_read_and_holds_no_password(
    floodmark: Floodmark, url: str, database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = floodmark("init", "--source", url, "--json").ok()
    text = (tmp_path / FILE).read_text()
    name = database.name
    assert re.search(rf"# upsert, .*cursor update_at .*about \d+ rows\n  {name}.orders:", text)
    assert re.search(
        r"# append, .*\n  #   ! date_changed looks like the time of a row's last change.*\n"
        rf"  {name}.events:\n    deletes: ignore  # deleted rows stay in the target; hard or soft follows them\n"
        r"    mode: append  # changes to old rows are not seen \(no update column\)\n    # cursor: date_changed  # uncomment",
        text,
    )
    assert re.search(rf"# full, .*\n  #   ! the table has no key.*\n  {name}.loose:\n  #", text), (
        "nothing is left out"
    )
    assert re.search(rf"  {name}.orders:\n    deletes: ignore  # deleted rows stay", text)
    assert f"{name}.seen" not in text
    monkeypatch.setenv("MYSQL_PASSWORD", PASSWORD)
    config = load(tmp_path / FILE)
    assert config.source.password == PASSWORD
    assert (config.options("any").start, config.options("any").keep_files) == (None, 7 * 86400)
    assert set(config.tables) == {f"{name}.{table}" for table in ("orders", "events", "loose")}
    everything = text + result.stdout + result.stderr
    assert not any(secret in everything for secret in (PASSWORD, "p%40ss", "w;rd", "w%3Brd"))
    assert result.json["export"] == "MYSQL_PASSWORD"
    assert [t["table"] for t in result.json["tables"]] == [
        f"{name}.{t}" for t in ("events", "loose", "orders")
    ]


def test_an_existing_file_stays_without_force(floodmark: Floodmark, url: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("mine")
    refused = floodmark("init", "--source", url)
    assert refused.code == 2
    assert "already exists" in refused.stderr and "--force" in refused.stderr
    assert (tmp_path / FILE).read_text() == "mine"
    floodmark("init", "--source", url, "--output", "other.yaml").ok()
    assert (tmp_path / FILE).read_text() == "mine"
    assert "orders:" in (tmp_path / "other.yaml").read_text()
    floodmark("init", "--source", url, "--force").ok()
    assert (tmp_path / FILE).read_text() == (tmp_path / "other.yaml").read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == [FILE, "other.yaml"]


def test_a_source_that_cannot_be_read_is_refused_and_no_file_is_written(
    floodmark: Floodmark, url: str, database: Database, tmp_path: Path
) -> None:
    login, _, place = url.partition("://")[2].rpartition("@")
    user = login.partition(":")[0]
    for wrong, said in (
        (f"mysql://{user}:s3cret-word@{place}", "Access denied"),
        (f"mysql://{user}@{place}", "no password was given, and MYSQL_PASSWORD is not set"),
        (f"mysql://{login}@127.0.0.1:1/{database.name}", "can't be reached"),
        (f"{url}_nowhere", f"{database.name}_nowhere"),
    ):
        refused = floodmark("init", "--source", wrong)
        assert refused.code == 2 and said in refused.stderr, refused.stderr
        assert "nothing was written" in refused.stderr and "--offline" in refused.stderr
        assert "s3cret-word" not in refused.stdout + refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_offline_writes_the_file_without_the_source(floodmark: Floodmark, tmp_path: Path) -> None:
    for url in ("mysql://me:s3cret-word@127.0.0.1:1/shop", "mysql://me@127.0.0.1:1/shop"):
        result = floodmark("init", "--offline", "--force", "--source", url).ok()
        assert "without tables (--offline)" in result.stdout and "export MYSQL_PASSWORD" in result.stdout
        text = (tmp_path / FILE).read_text()
        assert "url: mysql://me:${MYSQL_PASSWORD}@127.0.0.1:1/shop\n" in text and "#   shop.orders:" in text
        assert "s3cret-word" not in text + result.stdout + result.stderr


def test_without_a_source_init_writes_a_file_to_edit(
    floodmark: Floodmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = floodmark("init").ok()
    assert "edit source.url" in result.stdout
    monkeypatch.setenv("MYSQL_PASSWORD", "x")
    assert load(tmp_path / FILE).source.database == "mydatabase"


def test_an_invalid_url_is_refused_without_showing_it(floodmark: Floodmark, tmp_path: Path) -> None:
    for wrong in ("postgres://me:s3cret-word@h/d", "me:s3cret-word@h", "mysql://me:s3cret-word@h:99999999/d"):
        result = floodmark("init", "--source", wrong)
        assert result.code == 2, wrong
        assert "mysql://" in result.stderr
        assert "s3cret-word" not in result.stdout + result.stderr
    result = floodmark("init", "mysql://me:s3cret-word@h/d")  # --source forgotten
    assert result.code == 2 and "s3cret-word" not in result.stdout + result.stderr
    assert not (tmp_path / FILE).exists()


def test_tables_of_one_name_in_two_schemas_get_their_own_targets(
    floodmark: Floodmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new_server: type[DatabaseServer]
) -> None:
    with new_server(buffer_pool="32M") as server:
        for schema in ("east", "west"):
            server.execute(f"CREATE DATABASE {schema}", create_orders(name=f"{schema}.orders"))
        server.execute("CREATE TABLE east.`odd name` (id INT PRIMARY KEY)")
        floodmark("init", "--source", server.url()).ok()
        monkeypatch.setenv("MYSQL_PASSWORD", server.password)
        config = load(tmp_path / FILE)
        assert config.options("east.orders").target == "east_orders"
        assert config.options("west.orders").target == "west_orders"
        assert "east.odd name" in config.tables
        assert floodmark("doctor", env={"MYSQL_PASSWORD": server.password}).code == 0
