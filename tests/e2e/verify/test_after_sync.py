"""`sync --verify-data`: a run that did not bring what it read fails, and a run that did costs little."""

from __future__ import annotations

from typing import Any

from floodmark.log.log import Log
from floodmark.model.commit import Batch
from floodmark.model.run import new_run
from floodmark.services import Services
from floodmark.verify.run import verify_loaded
from tests.conftest import Silent, Workspace
from tests.support.tampered_warehouse import FILL, MAINLY_DUCKDB, READINGS, Verifying


def verified(workspace: Workspace, **options: Any) -> tuple[int, list[str], list[str]]:
    [table] = workspace.sync("readings", verify_data=True, **options).as_json()["tables"]
    said = [note for note in table["notes"] if "verified" in note]
    return table["exit_code"], [f["kind"] for f in table["findings"]], said


def test_rows_loaded_by_a_run_agree_with_the_source(place: Verifying) -> None:
    workspace = place.workspace
    workspace.execute(READINGS, FILL.format(n=4000))
    assert verified(workspace) == (0, [], ["verified: 4,000 rows compared with the source"])
    workspace.execute(
        "UPDATE readings SET note = 'new' WHERE id <= 300", "DELETE FROM readings WHERE id = 600"
    )
    code, findings, [said] = verified(workspace)
    assert (code, findings) == (0, []) and "100 rows compared" in said  # only what it moved
    assert verified(workspace) == (0, [], [])  # nothing to do
    # The deleted row is in what is read again, and the warehouse keeps it: that is for `deletes` to decide.
    assert verified(workspace, since="2025-03-01", until="2025-03-01 00:00:10")[:2] == (0, [])


@MAINLY_DUCKDB
def test_a_row_that_is_lost_on_the_way_fails_the_run(place: Verifying) -> None:
    workspace = place.workspace
    workspace.execute(READINGS, FILL.format(n=2000))
    workspace.synced("readings")
    # Rows that come to the source without a cursor of their own time, behind the back of the next read.
    workspace.execute("UPDATE readings SET note = 'new' WHERE id <= 30")
    workspace.synced("readings", backup_only=True)
    workspace.execute("UPDATE readings SET note = 'silent', update_at = update_at WHERE id = 9")
    [table] = workspace.sync("readings", load_only=True, verify_data=True).as_json()["tables"]
    assert table["exit_code"] == 7 and table["error"]["kind"] == "verification"
    assert [(f["kind"], f["key"], f["columns"]) for f in table["findings"]] == [
        ("different_row", [9], ["note"])
    ]
    assert "id = 9 differs in note" in table["error"]["message"] and "--repair" in table["error"]["hint"]
    assert table["rows_loaded"] == 10 and table["watermark"]["redshift_status"] == "success"


def test_a_snapshot_is_compared_with_what_was_read(place: Verifying) -> None:
    workspace = place.workspace
    name = workspace.full_name("t")
    workspace.execute("CREATE TABLE t (a INT)", "INSERT INTO t VALUES (1), (1), (2)")
    [table] = workspace.sync("t", verify_data=True).as_json()["tables"]
    assert table["exit_code"] == 0 and table["rows_loaded"] == 3

    def kinds() -> list[str]:
        with Services(workspace.settings, Silent(), new_run()) as services:
            state = (log := Log(services.store, name)).read()
            [(commit, _)] = log.commits([state.data.commits[-1].n])
            assert isinstance(commit, Batch)
            return [f.kind for f in verify_loaded(services, name, state, [commit]).findings]

    workspace.execute("INSERT INTO t VALUES (3)")
    assert kinds() == [], "the source may change meanwhile"
    place.change("UPDATE t SET a = 3 WHERE a = 2")
    assert kinds() == ["different_row"]
    place.change("DELETE FROM t WHERE a = 3")
    assert kinds() == ["count_mismatch"]
