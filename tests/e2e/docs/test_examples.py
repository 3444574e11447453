"""README.md and docs/: examples that only look at a synced table are run, one by one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import pytest

from floodmark.services.spark.context import Spark
from floodmark.setup.services.databases import DatabaseServer
from tests.conftest import PATIENT, SOURCE, Workspace, lasting_workspace
from tests.support.orders import create_orders, fill_orders
from tests.support.pages import PAGES, commands

# Commands that change nothing, and what each must end with.
READS = (
    "plan", "watermark get", "watermark list", "watermark history", "watermark backups", "watermark validate",
    "watermark drill", "s3clean list", "report",
)  # fmt: skip
# These need a JVM of their own or take seconds: all of them with FLOODMARK_LONG=1, one of each kind without.
SLOW = ("verify", "doctor", "sync --dry-run", "sync --all --dry-run")
# Needs a cluster, or a place that is not here.
ELSEWHERE = ("--redshift-live", "--spark", " T")


def examples() -> list[str]:
    """Each example once, as one line."""
    found: dict[str, None] = {}
    for page in PAGES:
        for _, arguments in commands(page):
            line = " ".join(arguments)
            slow = line.startswith(SLOW) and (PATIENT or line == "doctor")
            if (line.startswith(READS) or slow) and not any(part in line for part in ELSEWHERE):
                found[line] = None
    return sorted(found)


@pytest.fixture(scope="module", params=SOURCE)
def shop(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, spark: Callable[[], Spark]
) -> Iterator[Workspace]:
    """A workspace with two synced tables."""
    server: DatabaseServer = request.getfixturevalue(request.param)
    folder = tmp_path_factory.mktemp("examples")
    with lasting_workspace(folder, server, spark, store={"url": "./lake"}) as shop:
        customers = create_orders().replace("orders", "customers", 1)
        shop.execute(
            create_orders(), fill_orders(200), customers, fill_orders(50).replace("orders", "customers", 1)
        )
        assert shop.sync().ok
        yield shop
        shop.run.kill_all()


def test_there_are_examples_to_run() -> None:
    assert len(examples()) > 20


@pytest.mark.parametrize("line", examples())
def test_an_example_does_what_it_says(shop: Workspace, line: str) -> None:
    arguments = [re.sub(r"^shop\.", f"{shop.database.name}.", word) for word in line.split()]
    result = shop.run(*arguments)
    assert result.code == 0, f"{line}: exit code {result.code}\n{result.stdout}\n{result.stderr}"
    assert "Traceback" not in result.stderr
    if "--json" in arguments:
        assert isinstance(json.loads(result.stdout), dict)
    elif line.startswith("report"):
        assert (shop.folder / "report.html").stat().st_size > 1_000
    elif "--older-than" in line:
        assert result.stdout == ""  # the files are new
    else:
        assert result.stdout.strip(), line
