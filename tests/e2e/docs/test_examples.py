"""README.md and docs/: examples that only look at a synced table are run, one by one; JSON has the documented fields."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

import pytest

from floodmark.setup.services.databases import DatabaseServer
from floodmark.spark.context import Spark
from tests.conftest import PATIENT, SOURCE, Workspace, lasting_workspace
from tests.support.orders import create_orders, fill_orders
from tests.support.pages import PAGES, commands, text_of

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


# Where docs/formats.md explains the document of a command; {} is a table.
DOCUMENTS = {
    "plan -t {}": "`plan --json`",
    "plan --all": "`plan --json`",
    "watermark get -t {}": "The watermark document",
    "watermark list": "The watermark document",
    "watermark get": "The system watermark",
    "watermark history -t {}": "`watermark history`, ",
    "watermark backups -t {}": "`watermark history`, ",
    "watermark validate -t {}": "`watermark history`, ",
    "watermark drill -t {}": "`watermark history`, ",
    "watermark cleanup --force": "`watermark history`, ",
    "s3clean list -t {}": "`s3clean` with",
    "s3clean clean -t {} --dry-run": "`s3clean` with",
    "doctor": "`doctor --json`",
    "dbt sources": "`dbt sources --json`",
    **({"verify -t {}": "`verify` with"} if PATIENT else {}),
}
# These contain names of tables and values of other systems.
OPEN = ("sources", "params")


def fields(document: object) -> set[str]:
    """The names of every field of a document, at any depth."""
    if isinstance(document, list):
        return {name for one in document for name in fields(one)}
    if not isinstance(document, dict):
        return set()
    return set(document) | {n for key, one in document.items() if key not in OPEN for n in fields(one)}


@pytest.mark.parametrize("line", DOCUMENTS)
def test_every_field_of_a_json_document_is_in_the_reference(shop: Workspace, line: str) -> None:
    result = shop.run(*line.format(f"{shop.database.name}.customers").split(), "--json")
    page = text_of("docs/formats.md")
    section = page.partition(f"\n## {DOCUMENTS[line]}")[2].partition("\n## ")[0]
    # As it stands in a table, in a sentence or in an example.
    told = set(re.findall(r"\w+", " ".join(re.findall(r"`[^`]+`|\"\w+\"", section))))
    assert section and fields(json.loads(result.stdout)) - told == set(), result.stderr
