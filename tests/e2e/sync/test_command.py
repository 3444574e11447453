"""The command from outside, over S3: what it prints and leaves behind, what it starts, and what it never shows."""

from __future__ import annotations

import json
import secrets
import subprocess
import time
from typing import Any

import pytest

from floodmark.host.temp import cache_folder
from floodmark.store.store import Store
from tests.conftest import Workspace
from tests.support.held_sync import descendants
from tests.support.orders import create_orders, fill_orders

SYNC = {"run", "ok", "seconds", "tables"}
# Beyond the contract's own: `seconds` of the table, `notes`, what was said of it on the way, and its lag.
TABLE = {
    "table", "ok", "exit_code", "strategy", "rows_extracted", "rows_reread", "bytes_written", "files_written",
    "rows_loaded", "files_loaded", "commits", "watermark", "findings", "error", "seconds", "notes",
    "lag_before", "lag_after", "rows_deleted", "files_cleaned", "bytes_cleaned", "stage_seconds",
}  # fmt: skip
WATERMARK = {
    "table_name", "commit", "last_mysql_extraction_time", "last_mysql_data_timestamp", "last_mysql_data_id",
    "mysql_rows_extracted", "mysql_rows_reread", "mysql_status", "last_redshift_load_time", "redshift_rows_loaded",
    "redshift_rows_reloaded", "redshift_status", "activity", "last_check_time",
    "backup_strategy", "s3_file_count", "processed_s3_files", "pending_s3_files", "last_error", "created_at",
    "updated_at", "metadata", "backup_metadata",
}  # fmt: skip


@pytest.fixture
def orders(s3_workspace: Workspace) -> Workspace:
    """A table of ten slices, a store in S3, and a user whose password is found nowhere else."""
    s3_workspace.execute(create_orders(), fill_orders(2000))
    user, password = f"u_{secrets.token_hex(4)}", f"pw-{secrets.token_hex(8)}"
    database = s3_workspace.database
    database.server.create_user(user, password, f"SELECT ON {database.name}.*", "PROCESS ON *.*")
    s3_workspace.write(
        source={"url": database.server.url(database.name, user, password)}, defaults={"slice_rows": 200}
    )
    return s3_workspace


def watched(orders: Workspace, *args: str) -> tuple[dict[str, Any], set[str], str]:
    """A command's document, the names of the processes that it started, and every command line seen meanwhile."""
    process = orders.run.start(*args)
    names: set[str] = set()
    shown: set[str] = set()
    while process.poll() is None:
        names |= {p.name for p in descendants(process.pid)}
        shown |= set(
            subprocess.run(["ps", "-eo", "args", "-ww"], capture_output=True, text=True).stdout.splitlines()
        )
        time.sleep(0.1)
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    return json.loads(stdout), names, "\n".join(shown) + stderr + stdout


def test_a_sync_over_s3_prints_the_contract_leaves_its_report_and_shows_no_secret(orders: Workspace) -> None:
    config = orders.settings
    store = Store(config.store)
    spark_log = cache_folder() / "spark.log"
    before = spark_log.stat().st_size if spark_log.exists() else 0
    log = orders.folder / "log"
    document, names, shown = watched(
        orders, "sync", "-t", "orders", "--json", "--debug", "--log-file", str(log)
    )
    assert "java" in names
    assert set(document) == SYNC and document["ok"] is True
    [table] = document["tables"]
    assert set(table) == TABLE
    assert set(table["watermark"]) == WATERMARK
    assert (table["rows_extracted"], table["rows_loaded"], table["files_written"]) == (2000, 2000, 10)
    assert all(
        uri.startswith(config.store.url + "/data/") for uri in table["watermark"]["processed_s3_files"]
    )
    assert orders.compare("orders").equal

    assert json.loads(store.get(f"runs/{document['run']}.json") or b"") == document
    known = [o.path for o in store.list("")]
    assert known and [path for path in known if not _in_the_contract(path)] == []

    log_of_spark = (
        spark_log.read_bytes()[before:] if spark_log.stat().st_size >= before else spark_log.read_bytes()
    )
    places = {path: store.get(path) or b"" for path in known}
    places |= {
        "log": log.read_bytes(),
        "ps": shown.encode(),
        "spark": log_of_spark,
        "warehouse": orders.warehouse.read_bytes(),
    }
    for secret in (
        config.source.password,
        config.store.secret_access_key or "",
        config.store.access_key_id or "",
    ):
        assert len(secret) > 8
        assert [where for where, data in places.items() if secret.encode() in data] == []

    for file in (log, orders.warehouse):
        assert file.stat().st_mode & 0o077 == 0, file

    # Nothing to do: no JVM, nothing written, and quickly.
    began = time.monotonic()
    document, names, _ = watched(orders, "sync", "-t", "orders", "--json")
    assert time.monotonic() - began < 6
    assert "java" not in names
    assert document["tables"][0]["commits"] == [] and set(document["tables"][0]) == TABLE
    assert [o.path for o in store.list("")] == known


def _in_the_contract(path: str) -> bool:
    folders = (
        "data/",
        "commits/",
        "watermark/tables/",
        "watermark/backups/",
        "leases/",
        "runs/",
        "status/tables/",
        "status/days/",
    )
    return path == "pipeline.json" or path.startswith(folders)


def test_a_plan_needs_no_spark_and_writes_nothing(orders: Workspace) -> None:
    began = time.monotonic()
    document, names, _ = watched(orders, "plan", "-t", "orders", "--json")
    assert time.monotonic() - began < 6  # about half a second on a machine with nothing else to do
    assert "java" not in names
    assert document["window"]["slices"] == 10
    assert list(Store(orders.settings.store).list("")) == []
    assert not orders.warehouse.exists()
