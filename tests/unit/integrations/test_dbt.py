"""`dbt sources`: what the file says about each table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from floodmark.config.load import AlertSpec, Config, SourceSpec, StoreSpec, WarehouseSpec
from floodmark.integrations.dbt import HEAD, SourcesOptions, document, text, write
from floodmark.model.errors import ConfigError
from tests.support.warehouse_loads import CODES, ORDERS


def config(freshness: bool = True, **more: Any) -> Config:
    warehouse = WarehouseSpec("duckdb", "main", path=Path("w.duckdb"), freshness=freshness)
    return Config(Path("f.yaml"), SourceSpec("db", 1, "u", "p"), StoreSpec("lake"), warehouse, **more)


def table(content: dict[str, Any], n: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = content["sources"][0]["tables"][n]
    return found


def test_every_table_has_its_columns_and_its_freshness() -> None:
    content = document(config(), [ORDERS, CODES], SourcesOptions("shop"))
    assert content["sources"][0]["name"] == "shop" and content["sources"][0]["schema"] == "main"
    assert [one["name"] for one in content["sources"][0]["tables"]] == ["codes", "orders"]
    orders = table(content, 1)
    assert orders["config"]["loaded_at_query"] == (
        """select max(as_of) from "main"."floodmark_freshness" where target = 'orders'"""
    )
    assert orders["config"]["freshness"] == {
        "warn_after": {"count": 15, "period": "minute"},
        "error_after": {"count": 1, "period": "hour"},
    }
    assert {"name": "id", "data_type": "BIGINT"} in orders["columns"]
    assert not [c for c in table(content)["columns"] if c["name"].startswith("_floodmark")]


@pytest.mark.parametrize(
    ("more", "wanted", "warn", "error"),
    [
        ({"alerts": AlertSpec(behind=7200.0)}, SourcesOptions(), (2, "hour"), (8, "hour")),
        ({"entries": {"shop.orders": {"behind": 90.0}}}, SourcesOptions(), (2, "minute"), (6, "minute")),
        ({}, SourcesOptions(warn_after=86_400.0, error_after=172_800.0), (1, "day"), (2, "day")),
    ],
)
def test_the_limits_are_those_of_the_configuration_or_the_command(
    more: dict[str, Any], wanted: SourcesOptions, warn: tuple[int, str], error: tuple[int, str]
) -> None:
    found = table(document(config(**more), [ORDERS], wanted))["config"]["freshness"]
    assert tuple(found["warn_after"].values()) == warn and tuple(found["error_after"].values()) == error


def test_without_the_freshness_table_there_is_no_freshness() -> None:
    assert "config" not in table(document(config(freshness=False), [ORDERS], SourcesOptions()))


def test_the_file_is_yaml_and_is_not_written_over_somebody_elses(tmp_path: Path) -> None:
    content = document(config(), [ORDERS], SourcesOptions())
    assert yaml.safe_load(text(content)) == content
    file = tmp_path / "sources.yml"
    write(file, content, force=False)
    write(file, content, force=False)  # its own
    file.write_text(
        "# Written by `floodmark dbt sources`, which writes it anew: change the configuration instead.\n"
    )
    write(file, content, force=False)  # an earlier version's
    file.write_text("version: 2\n")
    with pytest.raises(ConfigError, match="was not written by this command"):
        write(file, content, force=False)
    write(file, content, force=True)
    assert file.read_text().startswith(HEAD)
    with pytest.raises(ConfigError, match="can't be written"):
        write(tmp_path / "no" / "sources.yml", content, force=False)
