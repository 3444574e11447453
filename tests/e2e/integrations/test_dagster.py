"""Assets of a configuration, materialized and checked by a real Dagster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Workspace
from tests.support.environments import PROGRAM, run
from tests.support.orders import NOTE, create_orders, fill_orders

pytestmark = pytest.mark.long

# Prints a line of JSON for each of: the specs, materializations, evaluations, a failure.
SCRIPT = """
import json, sys
import dagster as dg
from floodmark.dagster import assets

made = assets("floodmark.yaml", program=sys.argv[1], key_prefix=["lake"], retries=0)
definitions = dg.Definitions(assets=made[:1], asset_checks=made[1:])
specs = [spec for one in made[:1] for spec in one.specs]
print(json.dumps({spec.key.to_user_string(): [spec.metadata["dagster/table_name"], spec.freshness_policy.warn_window.to_timedelta().total_seconds()] for spec in specs}))
instance = dg.DagsterInstance.ephemeral()
for n in range(2):
    done = dg.materialize(made, instance=instance, raise_on_error=False, selection=eval(sys.argv[2]))
    print(json.dumps({
        "success": done.success,
        "materialized": {e.asset_key.to_user_string(): {k: v.value for k, v in e.materialization.metadata.items()} for e in done.get_asset_materialization_events()},
        "versions": {e.asset_key.to_user_string(): e.materialization.tags["dagster/data_version"] for e in done.get_asset_materialization_events()},
        "checks": {c.asset_key.to_user_string(): [c.passed, {k: v.value for k, v in c.metadata.items()}, c.description] for c in done.get_asset_check_evaluations()},
        "failure": [str(e.event_specific_data.error_display_string) for e in done.get_step_failure_events()],
    }))
"""


def materialized(workspace: Workspace, selection: str = "None") -> list[Any]:
    done = run("dagster", "-c", SCRIPT, str(PROGRAM), selection, cwd=workspace.folder)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == 3, done.stdout + done.stderr
    return [json.loads(line) for line in lines]


@pytest.fixture
def two(workspace: Workspace) -> Workspace:
    workspace.execute(create_orders(NOTE), fill_orders(20, "seq MINUTE", note="'n'"))
    workspace.execute(
        "CREATE TABLE places (id INT PRIMARY KEY, name VARCHAR(9))", "INSERT INTO places VALUES (1, 'a')"
    )
    workspace.write(
        tables={workspace.full_name("orders"): {"behind": "5m"}, workspace.full_name("places"): {}}
    )
    return workspace


def test_assets_show_rows_lag_and_position_and_stay_fresh_without_looking_changed(two: Workspace) -> None:
    specs, first, second = materialized(two)
    orders, places = (f"lake/{two.database.name}/{name}" for name in ("orders", "places"))
    assert specs == {orders: ["main.orders", 300.0], places: ["main.places", 900.0]}
    assert first["success"] and set(first["materialized"]) == {orders, places}
    shown = first["materialized"][orders]
    assert (shown["rows_loaded"], shown["lag_seconds"]) == (20, 0.0)
    assert shown["position"] and shown["commit"] and shown["run"]
    assert [first["checks"][key][0] for key in (orders, places)] == [True, True]
    assert first["checks"][orders][1]["rows_source"] == 20
    assert second["materialized"][orders]["rows_loaded"] == 0
    assert first["versions"][orders] == second["versions"][orders]
    assert first["versions"][places] != second["versions"][places]  # a full copy is loaded by every sync


def test_a_difference_fails_the_check_and_not_the_asset(two: Workspace) -> None:
    two.synced("orders")
    two.execute("DELETE FROM orders WHERE id = 7")
    _, first, _ = materialized(two)
    orders = f"lake/{two.database.name}/orders"
    passed, shown, said = first["checks"][orders]
    assert (passed, shown["extra"]) == (False, 1) and "id = 7" in said
    assert orders in first["materialized"]


def test_one_table_can_be_chosen_and_a_failure_names_its_reason(two: Workspace) -> None:
    two.write(tables={two.full_name("orders"): {"cursor": "nowhere"}})
    chosen = f"[dg.AssetKey(['lake', '{two.database.name}', 'orders'])]"
    _, first, _ = materialized(two, chosen)
    assert not first["success"] and first["materialized"] == {}
    assert "exit code 2" in first["failure"][0] and "nowhere" in first["failure"][0]


def test_tables_that_are_not_named_are_a_line(tmp_path: Path) -> None:
    (tmp_path / "floodmark.yaml").write_text("source: {url: 'mysql://r:x@127.0.0.1:1/shop'}\n")
    code = "from floodmark.dagster import assets; assets('floodmark.yaml')"
    done = run("dagster", "-c", code, cwd=tmp_path)
    assert done.returncode and "name every table" in done.stderr.splitlines()[-1]
