"""The source's time zone changes, and sessions with time zones of their own: DATETIME cursors that lie before the watermark."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from contextlib import closing

import pytest

from floodmark.setup.services.databases import DatabaseServer
from tests.conftest import Database, Workspace
from tests.support.open_transactions import ORDERS, equal, notes

pytestmark = pytest.mark.source

TABLES = {
    "clock": "id INT NOT NULL AUTO_INCREMENT PRIMARY KEY, note VARCHAR(20), update_at DATETIME NOT NULL",
    "moment": "id INT NOT NULL AUTO_INCREMENT PRIMARY KEY, note VARCHAR(20), update_at TIMESTAMP NOT NULL",
    "keyless": "id INT, note VARCHAR(20), update_at DATETIME NOT NULL",
}
CREATE = "CREATE TABLE d.{} ({} DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP, KEY (update_at))"


def test_a_server_that_moves_to_another_zone_loses_no_row_either_way_and_says_how_to_confirm_it(
    make_workspace: Callable[..., Workspace], new_server: type[DatabaseServer]
) -> None:
    with new_server(default_time_zone="+08:00") as server:
        server.execute("CREATE DATABASE d", *(CREATE.format(*table) for table in TABLES.items()))
        keyless = {"d.keyless": {"mode": "append", "cursor": "update_at", "overlap_seconds": 0}}
        workspace = make_workspace(Database(server, "d"), store={"url": "./lake"}, tables=keyless)

        def written(*statements: str) -> None:
            for table in TABLES:
                workspace.execute(*(s.format(table=table) for s in statements))

        written("INSERT INTO {table} (note) VALUES ('a'), ('b')")
        assert workspace.sync(*TABLES).ok
        with closing(workspace.database.connect(autocommit=True)) as pooled:
            # West: everything is written eight hours before the watermark, also what stood there.
            server.execute("SET GLOBAL time_zone = '+00:00'")
            written("UPDATE {table} SET note = 'west'", "INSERT INTO {table} (note) VALUES ('c')")
            clock, moment, log = workspace.sync(*TABLES).tables
            assert (clock.exit_code, moment.exit_code, log.exit_code) == (0, 0, 6)
            assert log.error is not None and "from UTC+08:00 to UTC+00:00" in log.error.message
            assert clock.rows_reread >= 3
            # A TIMESTAMP has no zone: it is read as before.
            assert (moment.rows_extracted, moment.rows_reread) == (3, 0)
            assert not any("zone" in note for note in moment.notes)
            assert workspace.compare("clock").equal and workspace.compare("moment").equal
            # East: connections from before it write into what was read already.
            server.execute("SET GLOBAL time_zone = '+13:00'")
            written("INSERT INTO {table} (note) VALUES ('east')")
            assert workspace.synced("clock")["rows_extracted"] == 1
            workspace.synced("moment")
            for table in ("clock", "moment"):
                pooled.cursor().execute(f"INSERT INTO {table} (note) VALUES ('pooled')")
            said, quiet = (notes(workspace.synced(table)) for table in ("clock", "moment"))
            assert "zone" not in quiet
            assert workspace.compare("clock").equal and workspace.compare("moment").equal
            pooled.cursor().execute("UPDATE clock SET note = 'pooled, last' WHERE id = 1")
        command = re.search(r"floodmark (watermark set .+)", said)
        assert command is not None, said
        workspace.run(*shlex.split(command[1])).ok()
        workspace.synced("clock")
        last = workspace.synced("clock")
        assert (last["rows_reread"], last["commits"]) == (0, []) and "zone" not in notes(last)
        assert workspace.compare("clock").equal


@pytest.mark.mysql_only
def test_a_session_in_a_zone_west_of_the_servers_widens_the_overlap(workspace: Workspace) -> None:
    workspace.execute(ORDERS, "INSERT INTO orders (note) VALUES ('a')")
    with closing(workspace.database.connect(autocommit=True)) as west:
        west.cursor().execute("SET time_zone = '-05:00'")
        assert "-05:00" in notes(workspace.synced("orders"))
        west.cursor().execute("INSERT INTO orders (note) VALUES ('west')")
        west.cursor().execute("UPDATE orders SET note = 'west, too' WHERE id = 1")
        workspace.execute("CREATE TABLE logged (n INT, at DATETIME NOT NULL, KEY (at))")
        workspace.write(tables={workspace.full_name("logged"): {"mode": "append", "cursor": "at"}})
        assert re.search(r"without a key .*-05:00", notes(workspace.synced("logged")))
    # It may have written until it ended.
    workspace.synced("orders")
    equal(workspace, 2)
