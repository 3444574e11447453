"""A pass over keys, as the log names them: rows, deletes and rows outside `where`, committed and loaded."""

from __future__ import annotations

import pytest

from floodmark.extract.keys import key_table
from floodmark.model.run import SyncOptions, new_run
from floodmark.model.window import Intent
from floodmark.plan.decide import Deletion, TablePlan, again
from floodmark.plan.keys import slices
from floodmark.services import Services
from floodmark.sync import loads
from floodmark.sync.passes import read
from floodmark.sync.work import Work, hold
from floodmark.verify.compare import described
from tests.conftest import Silent, Workspace
from tests.support.held_sync import commits


def follow(workspace: Workspace, name: str, keys: list[str], deletion: Deletion | None) -> None:
    """Reads the rows with these keys, and loads what that commits."""
    with Services(workspace.settings, Silent(), new_run(), workspace.spark()) as services:
        run = Work(services, SyncOptions()).table(workspace.full_name(name))
        run.held.read()
        try:
            with services.session("keys") as session:
                table = described(services, session, run.name)
            hold(run, "sync", table)
            pieces = slices(table, key_table(table, [(key,) for key in keys]))
            passes = again(table, pieces, outside=bool(table.recipe.where), deletion=deletion)
            read(run, TablePlan(Intent("sync", table), passes))
            loads.load(run)
        finally:
            loads.abandon(run)
            run.held.release()


@pytest.mark.both_servers
@pytest.mark.parametrize("deletes", [True, False])
def test_a_pass_over_keys_makes_the_target_what_the_source_is(workspace: Workspace, deletes: bool) -> None:
    workspace.write(tables={"t": {"where": "n < 100"}})
    workspace.execute(
        "CREATE TABLE t (k VARCHAR(9) COLLATE utf8mb4_general_ci PRIMARY KEY, n INT, update_at DATETIME NOT NULL)",
        "INSERT INTO t SELECT CONCAT('k', seq), seq, '2025-03-01' FROM seq_1_to_90",
    )
    workspace.synced("t")
    before = len(commits(workspace, "t"))
    workspace.execute(
        "UPDATE t SET k = 'K1' WHERE n = 1",
        "UPDATE t SET k = 'new2' WHERE n = 2",
        "UPDATE t SET n = 300 WHERE n = 3",
        "DELETE FROM t WHERE n IN (4, 5)",
        "INSERT INTO t VALUES ('k5 ', 50, '2025-03-01'), ('k91', 91, '2025-03-01'), ('k92', 920, '2025-03-01')",
    )
    named = ["k1", "K1", "k2", "new2", "k3", "k4", "k5", "k5 ", "k91", "k92", "never"]
    follow(workspace, "t", named, Deletion() if deletes else None)
    source = workspace.execute("SELECT k, n FROM t WHERE n < 100")
    left = [] if deletes else [("k2", 2), ("k4", 4)]
    assert sorted(workspace.query("SELECT k, n FROM t")) == sorted([*source, *left])
    kinds = [c["kind"] for c in commits(workspace, "t")[before:]]
    assert kinds == ["claim", *["deletes"] * (1 + deletes), "batch"], "the rows come last"
