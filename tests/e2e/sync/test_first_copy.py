"""The first copy of a table that follows the binary log: along its key, without any cursor, at no common moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from floodmark.cli.plan import plan_lines
from floodmark.log.fold import State
from floodmark.log.log import Log
from floodmark.model.errors import TransientError
from floodmark.model.events import Event, SliceRead
from floodmark.model.run import SyncOptions
from floodmark.plan.followed import TableNews
from floodmark.store.store import Store
from floodmark.sync.preview import plan
from tests.conftest import Silent, Workspace
from tests.support.following import Told, at_home, followed, news, refused, stands
from tests.support.held_sync import batches, rows, until

pytestmark = pytest.mark.source

ROWS = 2000


@pytest.fixture(autouse=True)
def home(workspace: Workspace) -> Iterator[None]:
    """The made-up log is the test's server's."""
    workspace.write()
    with at_home(workspace.settings):
        yield


ORDERS = "CREATE TABLE orders (id INT PRIMARY KEY, note VARCHAR(40), price DECIMAL(9,2))"


def filled(workspace: Workspace, rows: int = ROWS) -> None:
    numbers = " UNION ALL ".join(f"SELECT {n} AS n" for n in range(10))
    tens = " CROSS JOIN ".join(f"({numbers}) AS t{i}" for i in range(4))
    place = "t0.n + 10 * t1.n + 100 * t2.n + 1000 * t3.n"
    workspace.execute(
        ORDERS,
        f"INSERT INTO orders SELECT 1 + {place}, CONCAT('row ', {place}), {place} / 4 FROM {tens} WHERE {place} < {rows}",
    )
    workspace.write(defaults={"changes": "binlog", "slice_rows": 300})


def state(workspace: Workspace, table: str = "orders") -> State:
    return Log(Store(workspace.settings.store), workspace.full_name(table)).read()


class Dies(Silent):
    """Ends a run with its n-th result."""

    def __init__(self, results: int) -> None:
        self.left = results

    def __call__(self, event: Event) -> None:
        self.left -= isinstance(event, SliceRead)
        if isinstance(event, SliceRead) and self.left <= 0:
            raise TransientError("the power is gone")


@pytest.mark.both_servers
def test_a_table_without_any_cursor_is_copied_along_its_key_and_then_left_alone(workspace: Workspace) -> None:
    filled(workspace)
    report = followed(workspace, news(3))
    assert report["rows_extracted"] == ROWS
    assert workspace.compare("orders").equal
    seen = state(workspace)
    assert (seen.followed_to, seen.position, seen.window) == (stands(3), None, None)
    assert len(batches(workspace)) >= 1 and rows(batches(workspace)) == ROWS
    before = seen.n
    report = followed(workspace, news(5))
    assert (report["rows_extracted"], report["commits"], state(workspace).n) == (0, [], before)


@pytest.mark.both_servers
def test_a_copy_that_ended_in_the_middle_is_resumed_with_the_same_slices(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(workspace)
    monkeypatch.setattr("floodmark.sync.passes.COMMIT_EVERY", 0.0)
    error = refused(lambda: followed(workspace, news(3), emit=Dies(4)))
    assert "power" in error.message
    seen, read = state(workspace), rows(batches(workspace))
    assert seen.window is not None and seen.window.followed_to == stands(3) and seen.followed_to is None
    assert 0 < read < ROWS and len(seen.progress.done) == 3
    # What changes meanwhile is in the log of changes, after the commit that the copy noted before it began.
    report = followed(workspace, news(8))
    assert report["rows_extracted"] == ROWS - read
    assert state(workspace).followed_to == stands(3), (
        "not the newest: changes since then were not followed yet"
    )
    assert workspace.compare("orders").equal
    assert followed(workspace, news(8))["rows_extracted"] == 0


@pytest.mark.both_servers
def test_a_copy_that_was_killed_loses_nothing_and_reads_nothing_twice(workspace: Workspace) -> None:
    filled(workspace)
    name = workspace.full_name("orders")
    # The last slices wait for this lock, so that the process is killed in the middle.
    holder = workspace.database.connect()
    holder.cursor().execute("SELECT GET_LOCK('copy', 5)")
    gate = "id <= 1000 OR IS_USED_LOCK(CONCAT('copy', LEFT(id, 0))) IS NULL OR SLEEP(0.1) = 0"
    workspace.write(tables={name: {"where": gate}})
    command = [sys.executable, "-m", "tests.support.following", str(workspace.file), name, "3"]
    process = subprocess.Popen(command, cwd=Path(__file__).parents[3], start_new_session=True)
    try:
        until(lambda: batches(workspace) or process.poll() is not None, seconds=300)
        assert process.poll() is None, "it waits for the lock"
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        holder.close()
    read = rows(batches(workspace))
    assert 0 < read < ROWS
    assert followed(workspace, news(4))["rows_extracted"] == ROWS - read
    assert workspace.compare("orders").equal
    assert rows(batches(workspace)) == ROWS


def test_a_bounded_run_copies_a_part_and_the_next_one_goes_on(workspace: Workspace) -> None:
    filled(workspace)
    assert followed(workspace, news(3), limit=500)["rows_extracted"] == 500
    assert followed(workspace, news(4), limit=700)["rows_extracted"] == 700
    assert state(workspace).followed_to is None
    assert followed(workspace, news(5))["rows_extracted"] == ROWS - 1200
    assert (state(workspace).followed_to, workspace.compare("orders").equal) == (stands(3), True)


def test_an_empty_table_has_a_target_and_stands_where_the_log_was(workspace: Workspace) -> None:
    workspace.execute(ORDERS)
    workspace.write(defaults={"changes": "binlog"})
    assert followed(workspace, news(2))["rows_extracted"] == 0
    assert state(workspace).followed_to == stands(2)
    assert workspace.query("SELECT count(*) FROM orders") == [(0,)]


def test_a_table_that_nobody_touched_is_not_even_described(workspace: Workspace) -> None:
    filled(workspace, 100)
    followed(workspace, news(2))
    workspace.execute("ALTER TABLE orders DROP PRIMARY KEY")  # would be refused
    report = followed(workspace, news(4))
    assert (report["commits"], report["lag_after"]) == ([], {"seconds": 0.0, "ids": None})
    assert refused(lambda: followed(workspace, news(5, files=("a",)))).code == 6


def test_a_table_without_a_key_is_read_whole_only_after_a_change(workspace: Workspace) -> None:
    workspace.execute("CREATE TABLE orders (id INT, note VARCHAR(9))", "INSERT INTO orders VALUES (1, 'a')")
    workspace.write(defaults={"changes": "binlog"})
    assert followed(workspace, news(2))["rows_extracted"] == 1
    assert followed(workspace, news(4))["commits"] == []
    workspace.execute("INSERT INTO orders VALUES (1, 'a')")
    assert followed(workspace, news(6, files=()))["rows_extracted"] == 2
    assert state(workspace).followed_to == stands(6)
    assert workspace.query("SELECT count(*) FROM orders") == [(2,)]


def test_a_reset_copies_again_and_a_row_that_was_deleted_before_leaves_the_target(
    workspace: Workspace,
) -> None:
    filled(workspace)
    followed(workspace, news(3))
    workspace.pipeline.watermark_reset(workspace.full_name("orders"), mysql_only=True)
    assert state(workspace).followed_to is None
    workspace.execute("DELETE FROM orders WHERE id = 7")
    report = followed(workspace, news(9))
    assert (report["rows_extracted"], report["rows_deleted"]) == (ROWS - 1, 1)
    assert (state(workspace).followed_to, workspace.compare("orders").equal) == (stands(9), True)


def test_a_changed_where_rereads_all_rows_along_the_key(workspace: Workspace) -> None:
    filled(workspace)
    followed(workspace, news(3))
    name = workspace.full_name("orders")
    workspace.write(tables={name: {"where": "id > 500"}})
    report = followed(workspace, news(3))
    assert (report["rows_reread"], report["rows_deleted"]) == (ROWS - 500, 500)
    assert workspace.query("SELECT count(*), min(id) FROM orders") == [(ROWS - 500, 501)]
    workspace.write(tables={name: {}})
    assert followed(workspace, news(3))["rows_reread"] == ROWS
    assert workspace.compare("orders").equal


def test_a_new_column_reaches_the_target_without_a_change_of_rows(workspace: Workspace) -> None:
    filled(workspace, 100)
    followed(workspace, news(3))
    workspace.execute("ALTER TABLE orders ADD COLUMN state INT DEFAULT 4")
    followed(workspace, news(4, files=()))  # the log names the table, and no key
    assert state(workspace).followed_to == stands(4)
    assert workspace.query("SELECT DISTINCT state FROM orders") == [(4,)]


def test_plan_says_what_comes_next_and_why(workspace: Workspace) -> None:
    filled(workspace)
    name = workspace.full_name("orders")

    def planned(heard: TableNews) -> str:
        return "\n".join(
            plan_lines(plan(workspace.settings, name, SyncOptions(dry_run=True), Told(heard=heard)))
        )

    first = planned(news(3))
    assert "upsert, follows the binary log, key (id)" in first
    assert "from the first row, up to the last row" in first and "by key" in first
    assert "Because   the whole table is copied along its key; what changes after binlog.000001:3000" in first
    followed(workspace, news(3))
    nothing = planned(news(5))
    assert "Nothing to do" in nothing
    assert "the binary log has no change of it up to binlog.000001:3000" in nothing
    assert "the binary log names keys that have changed up to binlog.000001:5000" in planned(
        news(5, files=("a",))
    )
    assert "what differs is repaired: it was truncated" in planned(news(5, "truncate"))


def test_a_table_that_follows_can_be_verified_repaired_and_restored(workspace: Workspace) -> None:
    filled(workspace, 900)
    name = workspace.full_name("orders")
    followed(workspace, news(3))
    n = state(workspace).n
    assert workspace.verified("orders")["ok"]
    workspace.execute("UPDATE orders SET note = 'quiet' WHERE id = 5")
    assert workspace.verified("orders", repair=True)["ok"]
    followed(workspace, news(6, "lost"))
    assert state(workspace).followed_to == stands(6)
    workspace.pipeline.watermark_restore(name, commit=n)
    assert state(workspace).followed_to == stands(3)
    history = workspace.pipeline.watermark_history(name).commits
    assert [row.binlog for row in history][:2] == ["binlog.000001:3000", "binlog.000001:6000"]
    shown = workspace.pipeline.watermark_get(name)
    assert (shown.log_place, shown.last_mysql_data_timestamp) == (
        "binlog.000001:3000",
        "2025-08-14T16:03:00.000000",
    )
    assert refused(lambda: workspace.pipeline.watermark_set(name, timestamp="2025-01-01")).code == 2


def test_without_a_log_nothing_is_read(workspace: Workspace) -> None:
    filled(workspace, 10)
    error = refused(lambda: followed(workspace, None))
    assert error.code == 2 and "binary log was not read" in error.message
    error = refused(lambda: followed(workspace, news(3), since="2025-01-01"))
    assert error.code == 2 and "--since needs a cursor" in error.message
    with pytest.raises(Exception, match="the source writes no binary log"):
        plan(workspace.settings, workspace.full_name("orders"), SyncOptions(dry_run=True))


# ---------------------------------------------------------------- between a cursor and the log


def test_a_table_that_switches_to_the_log_is_compared_and_not_copied(workspace: Workspace) -> None:
    filled(workspace)
    workspace.execute(
        "ALTER TABLE orders ADD COLUMN updated_at DATETIME NOT NULL DEFAULT '2025-01-01', ADD INDEX (updated_at)"
    )
    workspace.write(defaults={"changes": "cursor"})
    assert workspace.synced("orders")["rows_extracted"] == ROWS
    # No cursor shows these.
    workspace.execute("UPDATE orders SET note = 'quiet' WHERE id = 5", "DELETE FROM orders WHERE id = 6")
    workspace.write(defaults={"changes": "binlog"})
    report = followed(workspace, news(4))
    assert (report["rows_extracted"], report["rows_reread"], report["rows_deleted"]) == (0, 1, 1)
    assert any("was read by a cursor so far" in note for note in report["notes"])
    seen = state(workspace)
    assert (seen.followed_to, seen.position) == (stands(4), None)
    assert workspace.compare("orders").equal
    assert followed(workspace, news(5))["commits"] == []


def test_a_table_that_switches_to_a_cursor_goes_on_from_what_is_final_now(workspace: Workspace) -> None:
    filled(workspace)
    workspace.execute(
        "ALTER TABLE orders ADD COLUMN updated_at DATETIME NOT NULL DEFAULT '2025-01-01', ADD INDEX (updated_at)"
    )
    followed(workspace, news(4))
    # Nothing has followed these.
    workspace.execute("UPDATE orders SET note = 'quiet' WHERE id = 5", "DELETE FROM orders WHERE id = 6")
    workspace.write(defaults={"changes": "cursor", "deletes": "hard"})
    report = workspace.synced("orders")
    assert report["rows_extracted"] == 0 and report["rows_reread"] >= 1 and report["rows_deleted"] == 1
    seen = state(workspace)
    assert seen.followed_to is None and seen.position is not None
    assert workspace.compare("orders").equal
    workspace.execute("UPDATE orders SET note = 'new', updated_at = '2025-02-01' WHERE id = 9")
    assert workspace.synced("orders")["rows_extracted"] == 1
    assert workspace.compare("orders").equal


def test_a_table_that_was_read_whole_is_copied_once_more_when_it_begins_to_follow(
    workspace: Workspace,
) -> None:
    filled(workspace)
    workspace.write(defaults={"changes": "cursor"}, tables={workspace.full_name("orders"): {"mode": "full"}})
    assert workspace.synced("orders")["rows_extracted"] == ROWS
    workspace.execute("DELETE FROM orders WHERE id = 6")
    workspace.write(defaults={"changes": "binlog"}, tables={workspace.full_name("orders"): {}})
    assert followed(workspace, news(4))["rows_extracted"] == ROWS - 1
    assert (state(workspace).followed_to, workspace.compare("orders").equal) == (stands(4), True)


def test_where_the_log_can_t_tell_the_table_is_compared(workspace: Workspace) -> None:
    filled(workspace)
    followed(workspace, news(4))
    workspace.execute("UPDATE orders SET note = 'quiet' WHERE id < 5")
    report = followed(workspace, news(6, "statement"))
    assert (report["rows_extracted"], report["rows_reread"]) == (0, 4)
    assert any("without naming them" in note for note in report["notes"])
    assert (state(workspace).followed_to, workspace.compare("orders").equal) == (stands(6), True)
