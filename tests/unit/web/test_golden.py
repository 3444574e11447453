"""Pages, JSON twins and the report, whole, beside what was accepted: `FLOODMARK_GOLDEN=1` writes what they are now."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from floodmark import __version__
from floodmark.log.status import DoctorResult, write_doctor
from floodmark.model.secrets import Scrubber
from floodmark.store.store import Store
from floodmark.web import detail, serve
from floodmark.web.app import Dashboard
from floodmark.web.snapshot import Looks, Watch
from tests.support.dashboards import KILLED, NOW, Filled, config_of, every_state
from tests.support.frozen import freeze

GOLDEN = Path(__file__).parents[2] / "golden" / "web"
FAILED = "20261117_110000_ab12"
PATHS = {
    "overview.html": "/",
    "attention.html": "/?health=attention&sort=name&q=s",
    "table-orders.html": "/tables/shop.orders",
    "table-lines.html": "/tables/shop.lines",
    "table-differs.html": "/tables/shop.differs",
    "table-busy.html": "/tables/shop.busy",
    "table-never.html": "/tables/shop.never",
    "table-broken.html": "/tables/shop.broken",
    "runs.html": "/runs",
    "run-failed.html": f"/runs/{FAILED}",
    "run-killed.html": f"/runs/{KILLED}",
    "now.html": "/now",
    "house.html": "/house",
    "overview.json": "/api/overview",
    "tables.json": "/api/tables",
    "table-orders.json": "/api/tables/shop.orders",
    "history-orders.json": "/api/history/shop.orders",
    "runs.json": "/api/runs",
    "run-failed.json": f"/api/runs/{FAILED}",
    "run-killed.json": f"/api/runs/{KILLED}",
    "now.json": "/api/now",
    "house.json": "/api/house",
}


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("golden")
    (folder / "lake").mkdir()
    config = config_of(folder, tables=("shop.never", "shop.*"))
    filled, scrub, texts = Filled(Store(config.store)), Scrubber(), {}
    scrub.learn(config)
    with pytest.MonkeyPatch.context() as patch:
        freeze(patch, NOW)
        patch.setattr(detail.StoreCounts, "_count", lambda self: None)
        with every_state(filled):
            check: dict[str, str | None] = {
                "section": "source",
                "name": "index",
                "detail": "has no index",
                "hint": "add one",
            }
            checks = ({**check, "status": "warning", "table": "shop.orders"},)
            write_doctor(filled.store, DoctorResult("2026-11-17T10:00:00.000000Z", "etl-1", True, 2.0, {"ok": 9, "warning": 1, "failure": 0, "skipped": 2}, checks))  # fmt: skip
            looks = Looks(config, scrub)
            with Watch(looks) as watch:
                browser = TestClient(Dashboard(config, looks, watch).app(["testserver"]))
                texts = {name: browser.get(path).text for name, path in PATHS.items()}
            serve.report(config, folder / "report.html", scrub, ledger=False)
            texts["report.html"] = (folder / "report.html").read_text()
    yield {name: _plain(text, folder) for name, text in texts.items()}


def _plain(text: str, folder: Path) -> str:
    """The text without what differs between machines, releases and stores."""
    text = text.replace(str(folder), "/folder").replace(f"Floodmark {__version__}", "Floodmark 0")
    text = re.sub(r"(?s)<style>.*?</style>", "<style></style>", text)
    text = re.sub(r"(/static/[a-z.]+)\?[0-9a-f]{12}", r"\1", text)
    text = re.sub(r'("pid": )\d+|("host": )"(?!etl)[^"]*"', r"\1\g<2>0", text)
    return text.replace("><", ">\n<") if text.startswith("<!doctype") else text


@pytest.mark.parametrize("name", [*PATHS, "report.html"])
def test_what_people_see_is_what_was_accepted(rendered: dict[str, str], name: str) -> None:
    if os.environ.get("FLOODMARK_GOLDEN"):
        GOLDEN.mkdir(parents=True, exist_ok=True)
        (GOLDEN / name).write_text(rendered[name])
    assert rendered[name] == (GOLDEN / name).read_text()
