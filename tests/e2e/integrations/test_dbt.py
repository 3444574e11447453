"""`dbt source freshness` of a real dbt over the file that `dbt sources` writes."""

from __future__ import annotations

import json
from typing import Any

import duckdb
import pytest
import yaml

from tests.conftest import Workspace
from tests.support.environments import run
from tests.support.orders import NOTE, create_orders, fill_orders

pytestmark = pytest.mark.long


@pytest.fixture
def project(workspace: Workspace) -> Workspace:
    workspace.execute(create_orders(NOTE), fill_orders(20, "seq MINUTE", note="'n'"))
    workspace.write(warehouse={"freshness": True})
    workspace.synced("orders")
    profile = {"type": "duckdb", "path": str(workspace.warehouse), "schema": "main"}
    files: dict[str, Any] = {
        "dbt_project.yml": {"name": "shop", "version": "1.0", "profile": "shop", "model-paths": ["models"]},
        "profiles.yml": {"shop": {"target": "dev", "outputs": {"dev": profile}}},
    }
    for name, content in files.items():
        (workspace.folder / name).write_text(yaml.safe_dump(content))
    (workspace.folder / "models").mkdir()
    model = "select count(*) as n from {{ source('floodmark', 'orders') }}"
    (workspace.folder / "models" / "counted.sql").write_text(model)
    workspace.run("dbt", "sources", "-o", "models/sources.yml").ok()
    return workspace


def dbt(project: Workspace, *arguments: str) -> Any:
    env = {"DBT_SEND_ANONYMOUS_USAGE_STATS": "false", "DO_NOT_TRACK": "1"}
    options = ("--project-dir", ".", "--profiles-dir", ".", "--no-use-colors")
    return run("dbt", "-m", "dbt.cli.main", *arguments, *options, cwd=project.folder, env=env)


def freshness(project: Workspace) -> tuple[int, dict[str, Any]]:
    done = dbt(project, "source", "freshness")
    found = json.loads((project.folder / "target" / "sources.json").read_text())["results"]
    assert len(found) == 1, done.stdout
    return done.returncode, found[0]


def test_dbt_sees_how_fresh_a_source_is_by_what_syncs_have_noted(project: Workspace) -> None:
    code, first = freshness(project)
    assert (code, first["status"]) == (0, "pass"), first
    assert first["criteria"]["warn_after"] == {"count": 15, "period": "minute"}

    project.synced("orders")  # finds nothing new, but counts as a check
    code, second = freshness(project)
    assert (code, second["status"]) == (0, "pass") and second["max_loaded_at"] > first["max_loaded_at"]

    with duckdb.connect(str(project.warehouse)) as link:
        link.execute("UPDATE floodmark_freshness SET as_of = as_of - INTERVAL 2 HOURS")
    code, stale = freshness(project)
    assert code != 0 and stale["status"] == "error"


def test_models_can_be_built_on_the_sources(project: Workspace) -> None:
    done = dbt(project, "run")
    assert done.returncode == 0, done.stdout
    assert project.query("SELECT n FROM counted") == [(20,)]
