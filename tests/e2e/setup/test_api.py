"""Floodmark as a library: the examples of the documentation run, and errors are errors."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import floodmark
from floodmark.api import Pipeline, SyncFailed
from floodmark.model.errors import ConfigError, FloodmarkError
from tests.conftest import Workspace
from tests.support.orders import NOTE, create_orders, fill_orders

DOCS = Path(__file__).parents[3] / "docs" / "api.md"


@pytest.fixture
def orders(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    workspace.execute(create_orders(NOTE), fill_orders(120, "seq MINUTE", note="'n'"))
    monkeypatch.chdir(workspace.folder)
    for method in (Pipeline.sync, Pipeline.verify):

        def on_shared_spark(self: Pipeline, *tables: str, alone: Any = method, **options: Any) -> Any:
            return alone(self, *tables, spark=workspace.spark(), **options)

        monkeypatch.setattr(Pipeline, method.__name__, on_shared_spark)
    return workspace


def test_every_example_of_the_documentation_runs(orders: Workspace) -> None:
    text = DOCS.read_text().replace("shop.orders", orders.full_name("orders"))
    names: dict[str, Any] = {}
    for block in re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        exec(compile(block, str(DOCS), "exec"), names)
    assert names["nightly"]() == 0  # all that was read is loaded
    assert orders.compare("orders").equal
    assert names["pipeline"].watermark_validate()["ok"]


@pytest.mark.long
def test_the_calls_of_a_with_block_share_one_spark(orders: Workspace) -> None:
    code = (
        "import sys; from floodmark import Pipeline; said = []; name = sys.argv[1]\n"
        "with Pipeline() as pipeline:\n"
        "    first = pipeline.sync(name, limit=50, progress=lambda event: said.append(event.text))\n"
        "    second = pipeline.sync(name, progress=lambda event: said.append(event.text))\n"
        "    assert pipeline.verify(name).ok\n"
        "print(first.rows_loaded, second.rows_loaded, said.count('starting Spark'))\n"
    )
    command = [sys.executable, "-c", code, orders.full_name("orders")]
    done = subprocess.run(command, cwd=orders.folder, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["50", "70", "1"], done.stderr


def test_every_method_is_in_the_documentation() -> None:
    text = DOCS.read_text()
    methods = [name for name in vars(Pipeline) if not name.startswith("_")]
    assert [name for name in methods if f"pipeline.{name}(" not in text] == []


def test_a_failed_table_raises_an_error_with_the_whole_report(orders: Workspace) -> None:
    orders.execute(
        "CREATE TABLE odd (id INT PRIMARY KEY, update_at DATETIME)", "INSERT INTO odd VALUES (1, NULL)"
    )
    orders.write(tables={orders.full_name("odd"): {"cursor": "nowhere"}, "orders": {}})
    with pytest.raises(SyncFailed, match="nowhere") as failed:
        Pipeline().sync(all_tables=True)
    error = failed.value
    assert isinstance(error, floodmark.FloodmarkError) and (error.code, error.kind) == (2, "config")
    assert {t["table"].partition(".")[2]: t["ok"] for t in error.report["tables"]} == {
        "odd": False,
        "orders": True,
    }
    again = pickle.loads(pickle.dumps(error))
    assert (again.code, again.message, again.report) == (error.code, error.message, error.report)
    assert Pipeline().sync(all_tables=True, check=False)["ok"] is False


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda p: p.sync(), "name the tables"),
        (lambda p: p.sync("a.b", all_tables=True), "name the tables"),
        (lambda p: p.sync("a.b", limits=1), "no option limits"),
        (lambda p: p.sync("a.b", limit=0), "at least 1"),
        (lambda p: p.sync("a.b", strategy="fast"), "unknown strategy"),
        (lambda p: p.sync("a.b", since="then"), "YYYY-MM-DD"),
        (lambda p: p.sync("a.b", until="2025-01-01"), "--until needs --since"),
        (lambda p: p.watermark_set("a.b"), "give a timestamp"),
        (lambda p: p.watermark_set("a.b", preset="today"), "system watermark"),
        (lambda p: p.watermark_set(id=5, timestamp="2025-01-01"), "system watermark"),
        (lambda p: p.watermark_set(preset="someday"), "not a preset"),
        (lambda p: p.watermark_set(), "a preset or"),
        (lambda p: p.watermark_reset(), "a preset or"),
        (lambda p: p.watermark_reset("a.b", mysql_only=True, redshift_only=True), "be combined"),
    ],
)
def test_mistakes_are_config_errors_like_on_the_command_line(tmp_path: Path, call: Any, said: str) -> None:
    (tmp_path / "floodmark.yaml").write_text("source: {url: 'mysql://reader:x@127.0.0.1:1/shop'}\n")
    with pytest.raises(ConfigError, match=said):
        call(Pipeline(tmp_path / "floodmark.yaml"))


def test_the_import_is_cheap_until_the_pipeline_is_used() -> None:
    code = (
        "import sys, floodmark; heavy = {'pyarrow', 'pyspark', 'pymysql', 'cryptography', 'duckdb', 'pydantic', 'obstore'}; "
        "assert not heavy & set(sys.modules); floodmark.Pipeline; assert 'pyspark' not in sys.modules; "
        "print(floodmark.Pipeline.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "Pipeline", done.stderr
    with pytest.raises(AttributeError):
        floodmark.nothing  # noqa: B018


def test_a_missing_configuration_is_reported(tmp_path: Path) -> None:
    with pytest.raises(FloodmarkError, match="no configuration"):
        Pipeline(str(tmp_path / "nothing.yaml"))
