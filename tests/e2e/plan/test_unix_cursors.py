"""Integers as cursors: clocks that the application writes, in seconds or milliseconds, and counters, which are none."""

from __future__ import annotations

import pytest

from tests.conftest import Workspace
from tests.support.open_transactions import notes

pytestmark = pytest.mark.source

CREATE = """CREATE TABLE {} (id INT NOT NULL AUTO_INCREMENT PRIMARY KEY, note VARCHAR(20), at {} NOT NULL, KEY (at))"""
TABLES = ("seconds", "millis", "counter")


def test_integer_cursors_that_are_times_get_an_overlap_and_counters_do_not(workspace: Workspace) -> None:
    schema = workspace.database.name
    tables = {f"{schema}.{name}": {"cursor": "at", "mode": "upsert"} for name in TABLES}
    workspace.write(tables=tables)
    workspace.execute(
        CREATE.format("seconds", "INT UNSIGNED"),
        CREATE.format("millis", "BIGINT"),
        CREATE.format("counter", "BIGINT"),
        "SET @now = UNIX_TIMESTAMP(SYSDATE(3))",
        "INSERT INTO seconds (note, at) VALUES ('a', @now - 9), ('b', @now - 5), ('c', @now - 5), ('2099', 4070908800)",
        "INSERT INTO millis (note, at) SELECT note, at * 1000 FROM seconds",
        "INSERT INTO counter (note, at) VALUES ('a', 1), ('b', 2), ('c', 1700000000)",
    )

    def synced() -> dict[str, dict[str, object]]:
        report = workspace.sync(*TABLES)
        assert report.ok, [t.error for t in report.tables]
        for name in TABLES:
            found = workspace.compare(name)
            assert found.equal, (name, found.differences)
        return {t.table.partition(".")[2]: t.as_json() for t in report.tables}

    first = synced()
    assert "Unix time (in s)" in notes(first["seconds"]) and "Unix time (in ms)" in notes(first["millis"])
    assert "Unix time" not in notes(first["counter"])
    workspace.execute(
        # Within the second of the watermark, and before its row.
        "UPDATE seconds SET note = 'same second', at = (SELECT * FROM (SELECT MAX(at) FROM seconds WHERE id < 4) AS m)"
        " WHERE id = 1",
        # A row that is written two seconds late.
        "INSERT INTO millis (note, at) SELECT 'late', MAX(at) - 2000 FROM millis WHERE id < 4",
        "INSERT INTO counter (note, at) VALUES ('d', 1700000001)",
    )
    second = synced()
    assert (second["counter"]["rows_extracted"], second["counter"]["rows_reread"]) == (1, 0)
    # Once more in that second: the row keeps its place, and only what is in it is other than before.
    workspace.execute("UPDATE seconds SET note = 'again' WHERE id = 1")
    synced()
    # The year 2099 did not become the watermark: what is written now arrives.
    workspace.execute(
        "INSERT INTO seconds (note, at) VALUES ('now', UNIX_TIMESTAMP())",
        "INSERT INTO millis (note, at) VALUES ('now', UNIX_TIMESTAMP() * 1000)",
    )
    last = synced()
    assert [last[name]["rows_extracted"] for name in TABLES] == [1, 1, 0]
