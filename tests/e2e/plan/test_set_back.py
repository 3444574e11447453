"""A source that went back in time: its rows, by a failover or a restore, or its clock."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from floodmark.source import open_work
from floodmark.source.time_zones import ZoneClock
from tests.conftest import Workspace
from tests.support.open_transactions import ORDERS, old_rows

pytestmark = pytest.mark.source


def restored(workspace: Workspace) -> None:
    """The table as it was before its last row."""
    workspace.execute("CREATE TABLE backup AS SELECT * FROM orders WHERE id < 10", "TRUNCATE orders")
    workspace.execute("INSERT INTO orders SELECT * FROM backup")


def deleted(workspace: Workspace) -> None:
    workspace.execute("DELETE FROM orders WHERE id = 10")


def left_the_where(workspace: Workspace) -> None:
    workspace.execute("UPDATE orders SET note = 'gone' WHERE id = 10")


@pytest.mark.parametrize(("change", "code"), [(restored, 6), (deleted, 0), (left_the_where, 0)])
def test_a_source_that_was_set_back_stops_the_run_and_one_whose_newest_row_is_gone_does_not(
    workspace: Workspace, change: Callable[[Workspace], None], code: int
) -> None:
    name = workspace.full_name("orders")
    workspace.write(tables={name: {"where": "note <> 'gone'"}})
    workspace.execute(ORDERS, old_rows(10))
    workspace.synced("orders")
    change(workspace)
    report = workspace.sync("orders")
    assert report.exit_code == code
    if code:
        error = report.tables[0].error
        assert error is not None and "set back" in error.message and "watermark set" in (error.hint or "")


def test_an_older_version_of_the_watermark_row_stops_the_run_even_with_newer_rows(
    workspace: Workspace,
) -> None:
    """A failover to a replica that was behind: it lacks the last updates, and writing continues there."""
    workspace.execute(ORDERS, old_rows(10), "CREATE TABLE behind AS SELECT * FROM orders")
    workspace.execute("UPDATE orders SET note = 'lost' WHERE id IN (4, 5)")
    workspace.synced("orders")
    workspace.execute("TRUNCATE orders", "INSERT INTO orders SELECT * FROM behind")
    time.sleep(1.1)
    workspace.execute("UPDATE orders SET note = 'after' WHERE id = 1")
    report = workspace.sync("orders")
    error = report.tables[0].error
    assert report.exit_code == 6 and error is not None
    assert "older version" in error.message and "verify" in (error.hint or "")


def test_rows_written_after_the_sources_clock_was_set_back_are_read(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace.execute(ORDERS, old_rows(10), "UPDATE orders SET note = 'now' WHERE id = 3")
    workspace.synced("orders")
    # An hour passes here, and none at the source: its clock was set back by that hour. What it has written since then
    # lies before the watermark, the row at the watermark among it.
    workspace.execute(
        "SET timestamp = UNIX_TIMESTAMP() - 1800", "UPDATE orders SET note = 'back' WHERE id IN (3, 5)"
    )
    right = time.time
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: right() + 3600)
        report = workspace.sync("orders")
    assert report.exit_code == 0 and "set back by 3,6" in " ".join(report.tables[0].notes)
    assert workspace.compare("orders").equal


def test_without_a_key_a_clock_that_was_set_back_is_reported(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source's clock, and nothing else, decides that it is certain: it shows less than the last bound."""
    name = workspace.full_name("events")
    workspace.write(tables={name: {"mode": "append", "cursor": "at", "overlap_seconds": 0}})
    workspace.execute(
        "CREATE TABLE events (n INT, at DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP, KEY (at))",
        "INSERT INTO events (n) SELECT seq FROM seq_1_to_10",
    )
    workspace.synced("events")
    right, zoned = open_work.now, ZoneClock.now
    with monkeypatch.context() as patch:
        patch.setattr(open_work, "now", lambda session: right(session) - 3600)
        patch.setattr(ZoneClock, "now", lambda clock: zoned(clock) - 3600)
        report = workspace.sync("events")
    error = report.tables[0].error
    assert report.exit_code == 6 and error is not None and "clock was set back" in error.message
    assert workspace.sync("events").exit_code == 0


@pytest.mark.parametrize(
    ("column", "at"),
    [("DATETIME", "NOW() - INTERVAL {} SECOND"), ("BIGINT", "UNIX_TIMESTAMP(NOW()) - {}")],
)
def test_the_row_at_the_watermark_may_be_written_again_by_an_application_whose_clock_is_behind(
    workspace: Workspace, column: str, at: str
) -> None:
    """It is read again with the overlap; from before that it would not be, so there it stops the run."""
    workspace.write(tables={workspace.full_name("t"): {"cursor": "at", "mode": "upsert"}})
    workspace.execute(
        f"CREATE TABLE t (id INT PRIMARY KEY, note VARCHAR(20), at {column} NOT NULL, KEY (at))",
        f"INSERT INTO t VALUES (1, 'a', {at.format(4000)}), (2, 'b', {at.format(20)}), (3, 'c', {at.format(90)})",
    )
    workspace.synced("t")
    workspace.execute(f"UPDATE t SET note = 'again', at = {at.format(80)} WHERE id = 2")
    workspace.synced("t")
    assert workspace.query("SELECT note FROM t WHERE id = 2") == [("again",)]
    workspace.synced("t")
    workspace.execute(f"UPDATE t SET note = 'early', at = {at.format(3000)} WHERE id = 2")
    (refused,) = workspace.sync("t").tables
    assert refused.exit_code == 6 and "set back" in str(refused.error)
