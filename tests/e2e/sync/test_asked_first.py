"""`schema_changes: ask`: nothing is followed before `watermark accept`, which answers that question and no other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import duckdb
import pytest

from floodmark.log.log import Log
from floodmark.model.results import Watermark
from floodmark.model.run import new_run
from floodmark.store.store import Store
from floodmark.watermark.set_reset import watermark_accept
from tests.conftest import Result, Workspace

AT = "at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6), KEY (at)"


def accepted(workspace: Workspace, table: str) -> Watermark:
    return watermark_accept(workspace.settings, workspace.full_name(table), new_run())


def refused(workspace: Workspace, table: str, **options: Any) -> str:
    """How a sync ends that must end with 6, and changes nothing."""
    log = Log(Store(workspace.settings.store), workspace.full_name(table))
    before = log.read().n
    (report,) = workspace.sync(table, **options).as_json()["tables"]
    assert (report["exit_code"], log.read().n) == (6, before)
    return f"{report['error']['message']}\n{report['error']['hint']}"


def test_nothing_is_written_before_somebody_has_agreed_to_a_change(
    workspace: Workspace, command: Callable[..., Result]
) -> None:
    workspace.write(defaults={"schema_changes": "ask", "overlap_seconds": 0})
    workspace.execute(
        "CREATE TABLE asked (id INT PRIMARY KEY, a VARCHAR(9), phone VARCHAR(9), at DATETIME(6) NOT NULL"
        " DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6), KEY (at))",
        "INSERT INTO asked (id, a, phone) SELECT seq, -seq, seq FROM seq_1_to_50",
    )
    workspace.synced("asked")
    name = workspace.full_name("asked")
    log = Log(Store(workspace.settings.store), name)
    before = log.read().n
    workspace.execute(
        "ALTER TABLE asked DROP phone, ADD b INT DEFAULT 7", "INSERT INTO asked (id) VALUES (99)"
    )
    planned = workspace.run("plan", "-t", "asked")
    assert planned.code == 6 and "b is new: earlier rows get 7 in it" in planned.stdout
    (refused,) = workspace.sync("asked").as_json()["tables"]
    assert refused["exit_code"] == 6
    assert "b was added (int" in refused["error"]["message"]
    assert refused["error"]["message"].endswith("; phone was dropped (varchar(9))")
    assert refused["error"]["hint"].endswith(f"to go on: floodmark watermark accept -t {name}")
    assert workspace.sync("asked", force=True).exit_code == 6, "--force waives other protections, too"
    with duckdb.connect(str(workspace.warehouse)) as link:
        link.execute("UPDATE asked SET a = 'wrong' WHERE id = 3")
    repaired = command(workspace, "verify", "-t", "asked", "--repair")
    assert repaired.code == 6 and "phone was dropped" in repaired.stderr
    assert log.read().n == before
    assert workspace.query("SELECT count(*) FROM asked") == [(50,)]
    said = workspace.run("watermark", "accept", "-t", "asked").ok().stdout
    assert "asked: accepted, and followed by the next sync: b was added (int" in said
    assert "asked keeps the column and its values" in said and "b is new: earlier rows get 7 in it" in said
    assert "reset" not in said and log.read().position is not None
    workspace.synced("asked")
    assert command(workspace, "verify", "-t", "asked", "--repair").code == 0
    assert workspace.query("SELECT phone, b FROM asked WHERE id IN (7, 99) ORDER BY id") == [
        ("7", 7),
        (None, 7),
    ]
    workspace.execute("INSERT INTO asked (id) VALUES (100)")
    assert workspace.synced("asked")["rows_extracted"] == 1
    assert workspace.synced("asked")["commits"] == []
    workspace.write(tables={"asked": {"where": "id <> 3"}})
    (refused,) = workspace.sync("asked").as_json()["tables"]
    assert refused["exit_code"] == 6 and "`where` has changed" in refused["error"]["message"]
    workspace.write(tables={"asked": {"schema_changes": "follow"}})
    workspace.synced("asked")


def test_the_answer_to_a_change_of_columns_lets_nothing_else_through(workspace: Workspace) -> None:
    workspace.write(
        defaults={"schema_changes": "ask", "overlap_seconds": 0},
        tables={"whole": {"mode": "full"}, "purged": {"deletes": "hard", "deletes_every": "0s"}},
    )
    for table in ("whole", "purged"):
        workspace.execute(
            f"CREATE TABLE {table} (id INT PRIMARY KEY, a INT, {AT})",
            f"INSERT INTO {table} (id, a) SELECT seq, seq FROM seq_1_to_1000",
        )
        workspace.synced(table)
        workspace.execute(f"ALTER TABLE {table} ADD b INT", f"DELETE FROM {table} WHERE id < 1000")
        assert f"watermark accept -t {workspace.full_name(table)}" in refused(workspace, table)
        said = accepted(workspace, table)
        assert len(said["accepted"]) == 1 and said["accepted"][0].startswith("b was added (int")
        (report,) = workspace.sync(table).as_json()["tables"]
        assert report["exit_code"] == 6, (table, report)
        assert "schema_changes" not in report["error"]["message"]
        assert workspace.query(f"SELECT count(*) FROM {table}") == [(1000,)]


def test_a_change_without_new_rows_is_asked_about_once(workspace: Workspace) -> None:
    workspace.write(
        defaults={"schema_changes": "ask", "overlap_seconds": 0},
        tables={"journal": {"mode": "append", "cursor": "at"}},
    )
    workspace.execute(
        f"CREATE TABLE wider (id INT PRIMARY KEY, n INT, {AT})",
        "INSERT INTO wider (id, n) SELECT seq, seq FROM seq_1_to_9",
        f"CREATE TABLE journal (a INT, b INT, {AT})",
        "INSERT INTO journal (a, b) SELECT seq, seq FROM seq_1_to_9",
    )
    changes = {"wider": "MODIFY n BIGINT", "journal": "DROP b"}
    for table, change in changes.items():
        workspace.synced(table)
        workspace.execute(f"ALTER TABLE {table} {change}")
        refused(workspace, table)
        said = accepted(workspace, table)
        assert any("changes when new rows come" in note for note in said["notes"]) == (table == "journal")
        workspace.synced(table)
        assert workspace.synced(table)["commits"] == []
    assert workspace.query(
        "SELECT data_type FROM information_schema.columns WHERE table_name = 'wider' AND column_name = 'n'"
    ) == [("BIGINT",)]


def test_an_accepted_change_has_its_rows_read_again_once_and_a_replaced_source_is_another_question(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    asks = {"schema_changes": "ask", "overlap_seconds": 0}
    workspace.write(defaults=asks, tables={"remade": {"exclude": ["e"]}})
    workspace.execute(
        f"CREATE TABLE remade (id INT PRIMARY KEY, a INT, e INT, {AT})",
        "INSERT INTO remade (id, a, e) SELECT seq, seq, seq FROM seq_1_to_60",
    )
    workspace.synced("remade")
    workspace.write(defaults=asks, tables={"remade": {"exclude": []}})
    workspace.execute("ALTER TABLE remade ADD b INT", "UPDATE remade SET b = id, at = at")
    with monkeypatch.context() as large:
        large.setattr("floodmark.plan.reread.SEARCHED_BELOW", 0)
        (planned,) = workspace.sync("remade", dry_run=True).as_json()["tables"]
    assert any("b is new, and earlier rows may differ in it: about" in note for note in planned["notes"])
    refused(workspace, "remade")
    said = accepted(workspace, "remade")
    assert said["rows_read_again"] == 60
    assert said["notes"][0].startswith(
        "e is no longer excluded, and earlier rows differ in it; b is new, and earlier rows differ in it: "
        "about 60 rows are read again, once"
    )
    assert workspace.synced("remade")["rows_reread"] == 60
    assert workspace.synced("remade")["commits"] == [] and workspace.compare("remade").equal
    workspace.execute(
        "DROP TABLE remade",
        f"CREATE TABLE remade (id INT PRIMARY KEY, a INT, c INT, {AT})",
        "INSERT INTO remade (id, a) SELECT seq, -seq FROM seq_1_to_30",
    )
    assert "schema_changes" in refused(workspace, "remade")
    assert accepted(workspace, "remade")["accepted"]
    assert "schema_changes" not in refused(workspace, "remade")
    assert "accepted" not in accepted(workspace, "remade")
    workspace.synced("remade")


@pytest.mark.parametrize("answer", ["follow", "ask"])
def test_columns_in_another_order_cost_nothing_when_deletes_are_looked_for_or_rows_repaired(
    workspace: Workspace, answer: str
) -> None:
    workspace.write(
        defaults={"schema_changes": answer, "overlap_seconds": 0, "deletes": "hard", "deletes_every": "0s"}
    )
    workspace.execute(
        f"CREATE TABLE moved (id INT PRIMARY KEY, a VARCHAR(9), b VARCHAR(9), {AT})",
        "INSERT INTO moved (id, a, b) SELECT seq, seq, -seq FROM seq_1_to_50",
    )
    workspace.synced("moved")
    for change in ("MODIFY b VARCHAR(9) AFTER id", "MODIFY a VARCHAR(9) AFTER id"):
        workspace.execute(f"ALTER TABLE moved {change}")
        if "b" in change.split()[1]:
            workspace.synced("moved")
        else:
            with duckdb.connect(str(workspace.warehouse)) as link:
                link.execute("UPDATE moved SET a = 'wrong' WHERE id = 3")
            assert workspace.verified("moved", repair=True)["findings"] == []
        table = Log(Store(workspace.settings.store), workspace.full_name("moved")).read().table
        assert table is not None and not table.lineage.owes
        assert workspace.synced("moved")["rows_reread"] == 0
