"""Tables that only grow: by their id, or without a key by configuration."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tests.conftest import Result, Workspace
from tests.support.table_shapes import configured, refused, same

pytestmark = pytest.mark.source


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


def test_a_column_that_looks_like_an_update_column_is_named_by_the_first_sync_and_by_plan(
    workspace: Workspace, command: Callable[..., Result]
) -> None:
    made = "(id INT AUTO_INCREMENT PRIMARY KEY, {} DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP)"
    workspace.execute(
        f"CREATE TABLE t {made.format('date_changed')}", "INSERT INTO t VALUES ()",
        f"CREATE TABLE u {made.format('date_created')}", "INSERT INTO u VALUES ()",
    )  # fmt: skip
    said = "date_changed looks like the time of a row's last change"
    first = command(workspace, "sync", "-t", "t", "-t", "u").ok()
    assert (first.stdout + first.stderr).count(said) == 1
    assert said not in command(workspace, "sync", "-t", "t").ok().stderr, "once is enough for cron"
    assert said in workspace.run("plan", "-t", "t").ok().stdout
    assert "looks like" not in workspace.run("plan", "-t", "u").ok().stdout


def test_what_is_not_followed_is_said_by_the_first_sync_plan_doctor_and_watermark_get(
    workspace: Workspace, command: Callable[..., Result]
) -> None:
    workspace.execute("CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY)", "INSERT INTO t VALUES ()")
    said = ("eleted rows stay in the target", "hanges to old rows are not seen (no update column)")

    def shown(*args: str) -> list[int]:
        done = command(workspace, *args).ok()
        return [(done.stdout + done.stderr).count(words) for words in said]

    assert shown("doctor") == shown("plan", "-t", "t") == shown("sync", "-t", "t") == [1, 1]
    assert shown("sync", "-t", "t") == [0, 0], "once is enough for cron"
    assert shown("watermark", "get", "-t", "t") == [1, 1]
    assert workspace.pipeline.watermark_get("t").not_followed == ("deletes", "updates")
    workspace.write(tables={"t": {"deletes": "soft"}})
    assert shown("watermark", "get", "-t", "t") == shown("plan", "-t", "t") == [0, 1]


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


def test_a_keyless_table_can_be_configured_as_append_including_duplicate_rows(workspace: Workspace) -> None:
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


def test_a_limit_on_a_keyless_append_never_splits_rows_of_one_timestamp(workspace: Workspace) -> None:
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


def test_a_row_without_a_cursor_stops_the_sync_of_a_table_without_a_key(workspace: Workspace) -> None:
    name = workspace.full_name("t")
    workspace.write(tables={name: {"mode": "append", "cursor": "at"}})
    workspace.execute(
        "CREATE TABLE t (n INT, at DATETIME, KEY (at))",
        "INSERT INTO t VALUES (1, '2025-03-01'), (2, '2025-03-02')",
    )
    assert "stop the sync" in str(workspace.synced("t")["notes"])
    workspace.execute("INSERT INTO t VALUES (3, NULL), (4, '2025-03-03')")
    (refused,) = workspace.sync("t").tables
    assert refused.exit_code == 6 and "1 row of" in str(refused.error) and "has no at" in str(refused.error)
    workspace.write(tables={name: {"mode": "full"}})
    assert workspace.synced("t")["rows_loaded"] == 4


def test_a_queue_without_a_key_is_read_as_its_rows_get_a_cursor(workspace: Workspace) -> None:
    """What the refusal proposes is accepted silently, and so is undoing it."""
    options = {"mode": "append", "cursor": "done"}
    configured(workspace, "t", **options)
    workspace.execute(
        "CREATE TABLE t (done DATETIME, n INT, KEY (done))",
        "INSERT INTO t VALUES ('2025-03-01', 1), ('2025-03-02', 2)",
    )
    workspace.synced("t")
    workspace.execute("INSERT INTO t VALUES (NULL, 3), ('2025-03-03', 4)")
    hint = refused(workspace, "t")["hint"]
    proposed = re.search(r'where: "(.*?)"', hint)
    assert proposed and proposed[1] == "`done` IS NOT NULL"
    configured(workspace, "t", **options, where=proposed[1])
    done = workspace.synced("t")
    assert done["rows_extracted"] == 1 and "stop the sync" not in str(done["notes"])
    workspace.execute("UPDATE t SET done = '2025-03-04' WHERE n = 3")
    assert workspace.synced("t")["rows_extracted"] == 1
    assert same(workspace, "t", "n")
    configured(workspace, "t", **options)
    assert workspace.synced("t")["rows_extracted"] == 0
    configured(workspace, "t", **options, where="done IS NOT NULL AND n > 0")
    assert "`where` has changed" in refused(workspace, "t")["message"]


@pytest.mark.parametrize("policy", ["null", "keep", "error"])
def test_a_zero_cursor_stops_the_sync_of_a_table_without_a_key_too(workspace: Workspace, policy: str) -> None:
    lax = "SET sql_mode = ''"
    configured(workspace, "t", mode="append", cursor="done", zero_dates=policy, start=None)
    workspace.execute(
        lax,
        "CREATE TABLE t (done DATETIME, n INT, KEY (done))",
        "INSERT INTO t VALUES ('2025-03-01', 1)",
    )
    workspace.synced("t")
    workspace.execute(lax, "INSERT INTO t VALUES (0, 3), ('2025-03-02', 4)")
    error = refused(workspace, "t")
    assert error["code"] == 6 and "1 row of" in error["message"]
    assert "has a done of 0000-00-00" in error["message"] and "`done` <> 0" in error["hint"]
    workspace.execute("INSERT INTO t VALUES (NULL, 5)")
    error = refused(workspace, "t")
    assert "2 rows of" in error["message"] and "have no done, or one of 0000-00-00" in error["message"]
    workspace.execute("DELETE FROM t WHERE n IN (3, 5)")
    assert workspace.synced("t")["rows_extracted"] == 1


def test_a_table_that_gets_an_update_column_is_said_to_lose_what_a_full_copy_followed(
    workspace: Workspace, command: Callable[..., Result]
) -> None:
    workspace.execute(
        "CREATE TABLE colors (code CHAR(3) PRIMARY KEY, n INT)", "INSERT INTO colors VALUES ('red', 1)"
    )
    lost = "Deleted rows stay in the target"

    def printed() -> str:
        done = command(workspace, "sync", "-t", "colors").ok()
        return done.stdout + done.stderr

    assert lost not in printed()
    workspace.execute("ALTER TABLE colors ADD updated_at DATETIME")
    said = printed()
    assert lost in said and "doesn't maintain updated_at" in said and "will be emptied" not in said
    assert workspace.query("SELECT count(*) FROM colors") == [(1,)]
    workspace.execute("INSERT INTO colors VALUES ('blu', 2, '2025-03-01')")
    assert lost not in printed()
