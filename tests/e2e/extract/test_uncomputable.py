"""Values that the server can't compute: no second try will help."""

from __future__ import annotations

import pytest

from tests.conftest import Workspace
from tests.support.table_shapes import AT, refused


@pytest.mark.both_servers
def test_a_virtual_column_that_can_t_be_computed_is_refused_not_tried_again(
    workspace: Workspace, kind: str
) -> None:
    """MySQL ends the statement; MariaDB warns, and gives NULL."""
    name = "JSON AS (doc)" if kind == "mysql" else "TEXT AS (JSON_EXTRACT(doc, '$.name'))"
    workspace.execute(
        f"CREATE TABLE t (id INT PRIMARY KEY, doc TEXT, {AT}, KEY (update_at))",
        """INSERT INTO t (id, doc) VALUES (1, '{"name": "a"}'), (2, '{"name": ')""",
        f"ALTER TABLE t ADD COLUMN name {name} VIRTUAL",
    )
    error = refused(workspace, "t")
    assert error["code"] == 6 and "JSON text" in error["message"], error
    assert kind != "mysql" or error["message"].endswith("(3140)")
    assert "exclude the column" in error["hint"]
    workspace.write(tables={workspace.full_name("t"): {"exclude": ["name"]}})
    assert workspace.synced("t")["rows_loaded"] == 2
