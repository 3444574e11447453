"""`verify` of a table in mode `full`: the target against what its snapshot held."""

from __future__ import annotations

from collections.abc import Callable

import duckdb
import pytest

from tests.conftest import Result, Workspace

pytestmark = pytest.mark.source


@pytest.mark.parametrize("key", ["PRIMARY KEY", ""])
def test_a_snapshot_s_target_is_compared_with_what_the_snapshot_held(
    workspace: Workspace, command: Callable[..., Result], key: str
) -> None:
    workspace.write(tables={workspace.full_name("t"): {"mode": "full"}})
    workspace.execute(
        f"CREATE TABLE t (a INT {key}, b VARCHAR(10), c DECIMAL(10,2), d DATETIME)",
        "INSERT INTO t VALUES (1, 'x', 1.5, NOW()), (2, NULL, NULL, NULL), (3, '', 0, '2025-01-01')",
    )
    workspace.synced("t")
    assert workspace.verified("t")["notes"] == []
    workspace.execute("UPDATE t SET b = 'y' WHERE a = 1", "DELETE FROM t WHERE a = 3")
    found = command(workspace, "verify", "-t", "t", "--json")
    [table] = found.json["tables"]
    assert (found.code, table["ok"], table["findings"]) == (0, True, [])
    assert table["rows_changed"] == (2 if key else 0)
    assert "changed at the source since the snapshot" in table["notes"][0]
    workspace.run("watermark", "reset", "-t", workspace.full_name("t"), "--redshift-only").ok()
    workspace.synced("t", load_only=True)
    assert workspace.verified("t")["ok"], "the same snapshot, loaded again"
    with duckdb.connect(str(workspace.warehouse)) as target:
        target.execute("UPDATE t SET b = 'wrong' WHERE a = 2")
    found = command(workspace, "verify", "-t", "t", "--json")
    [table] = found.json["tables"]
    assert (found.code, table["rows_changed"]) == (7, 0)
    assert "not what the snapshot held" in table["notes"][0]
    assert not key or [2] in [f["key"] for f in table["findings"] if f["kind"] == "different_row"]
    with duckdb.connect(str(workspace.warehouse)) as target:
        # The target differs from the snapshot, though not from the source.
        target.execute("DELETE FROM t WHERE a = 3")
        target.execute("UPDATE t SET b = CASE a WHEN 1 THEN 'y' END")
    assert command(workspace, "verify", "-t", "t").code == 7
    workspace.synced("t")
    assert workspace.verified("t")["ok"]
