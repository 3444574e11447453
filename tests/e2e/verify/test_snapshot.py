"""`verify` of a table in mode `full`: the target against what its snapshot held."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from floodmark.store.store import Store
from tests.conftest import Result
from tests.support.tampered_warehouse import Verifying

pytestmark = pytest.mark.source


@pytest.mark.parametrize("key", ["PRIMARY KEY", ""])
def test_a_snapshot_s_target_is_compared_with_what_the_snapshot_held(
    place: Verifying, command: Callable[..., Result], key: str
) -> None:
    workspace = place.workspace
    name = workspace.full_name("t")
    workspace.write(tables={name: {"mode": "full"}})
    workspace.execute(
        f"CREATE TABLE t (a INT {key}, b VARCHAR(10), c DECIMAL(10,2), d DATETIME)",
        "INSERT INTO t VALUES (1, 'x', 1.5, NOW()), (2, NULL, NULL, NULL), (3, '', 0, '2025-01-01')",
    )
    workspace.synced("t")
    assert place.verify("t")["notes"] == []
    workspace.execute("UPDATE t SET b = 'y' WHERE a = 1", "DELETE FROM t WHERE a = 3")
    found = command(workspace, "verify", "-t", "t", "--json")
    [table] = found.json["tables"]
    assert (found.code, table["ok"], table["findings"]) == (0, True, [])
    assert table["rows_changed"] == (2 if key else 0)
    assert (table["compared_with"], table["rows_warehouse"]) == ("snapshot", 3)
    assert "changed at the source since the snapshot" in table["notes"][0]
    workspace.run("watermark", "reset", "-t", name, "--redshift-only").ok()
    workspace.synced("t", load_only=True)
    assert place.verify("t")["ok"], "the same snapshot, loaded again"
    place.change("UPDATE t SET b = 'wrong' WHERE a = 2")
    found = command(workspace, "verify", "-t", "t", "--json")
    [table] = found.json["tables"]
    assert (found.code, table["rows_changed"]) == (7, 0)
    assert "not what the snapshot held" in table["notes"][0]
    assert not key or [2] in [f["key"] for f in table["findings"] if f["kind"] == "different_row"]
    # The target differs from the snapshot, though not from the source.
    place.change("DELETE FROM t WHERE a = 3", "UPDATE t SET b = CASE a WHEN 1 THEN 'y' END")
    # Redshift's snapshots have no digest in their commits: their files are read only to explain a difference.
    assert place.verify("t")["ok"] == (place.schema != "main")
    workspace.execute("UPDATE t SET b = 'z' WHERE a = 1")
    assert not place.verify("t")["ok"]
    workspace.synced("t")
    assert place.verify("t")["ok"]


@pytest.mark.parametrize("place", ["redshift"], indirect=True)
def test_without_its_files_a_snapshot_in_redshift_is_compared_with_the_source(place: Verifying) -> None:
    workspace = place.workspace
    name = workspace.full_name("t")
    workspace.write(tables={name: {"mode": "full"}})
    workspace.execute("CREATE TABLE t (a INT PRIMARY KEY, b INT)", "INSERT INTO t VALUES (1, 1), (2, 2)")
    workspace.synced("t")
    workspace.execute("UPDATE t SET b = 3 WHERE a = 1")
    assert place.verify("t")["rows_changed"] == 1
    workspace.run("s3clean", "clean", "-t", name, "--force").ok()
    for value in (4, 5):
        found = place.verify("t")
        assert (found["ok"], found["different"]) == (False, 1)
        assert "changes since its last sync show as differences" in found["notes"][0]
        # The same if somebody else removes the files, such as a lifecycle rule.
        workspace.synced("t")
        workspace.execute(f"UPDATE t SET b = {value} WHERE a = 1")
        store = Store(workspace.settings.store)
        store.delete([o.path for o in store.list("data/")])
