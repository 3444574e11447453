"""Tables that follow the binary log where it can't be trusted blindly: what was lost may have changed a layout, and more."""

from __future__ import annotations

from floodmark.setup.services.databases import DatabaseServer
from tests.conftest import Workspace
from tests.e2e.sync.test_following import equal, logged, ran, shop

__all__ = ["logged", "shop"]


def purged(workspace: Workspace) -> None:
    """Everything in the log up to now is gone."""
    workspace.execute("FLUSH BINARY LOGS")
    workspace.execute(f"PURGE BINARY LOGS TO '{workspace.execute('SHOW BINARY LOGS')[-1][0]}'")


def test_a_layout_that_changed_in_a_lost_part_of_the_log_is_described_anew(
    shop: Workspace, logged: DatabaseServer
) -> None:
    shop.execute(
        "CREATE TABLE pairs (id INT PRIMARY KEY, n INT)", "INSERT INTO pairs VALUES (1, 10), (2, 20)"
    )
    ran(shop, "pairs")
    shop.execute("ALTER TABLE pairs MODIFY n INT FIRST")
    purged(shop)
    ran(shop, "pairs")
    assert equal(shop, "pairs")
    shop.execute("UPDATE pairs SET n = 11 WHERE id = 1", "DELETE FROM pairs WHERE id = 2")
    ran(shop, "pairs")
    assert equal(shop, "pairs")
