"""One browser for all tests of the dashboard, and the real command as a server."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import Browser, ConsoleMessage, Page, Request, sync_playwright

ROOT = Path(__file__).resolve().parents[3]
AXE = sorted((ROOT / ".venv" / "axe").glob("axe-*.min.js"))
PATIENCE = 60.0


@dataclass
class Served:
    """A dashboard that runs."""

    url: str
    process: subprocess.Popen[str]


@contextmanager
def served(folder: Path, *more: str) -> Iterator[Served]:
    """`floodmark serve` over a folder's configuration, on a free port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "floodmark", "--config", str(folder / "floodmark.yaml"), "serve", "--port", "0", *more],
        stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )  # fmt: skip
    assert process.stderr is not None
    timer = threading.Timer(PATIENCE, process.kill)
    timer.start()
    try:
        said = process.stderr.readline()
        timer.cancel()  # it is for a start that hangs, not for a slow test
        assert said.startswith("The dashboard is at http://127.0.0.1:"), said
        yield Served(said.split()[4].rstrip("/"), process)
    finally:
        timer.cancel()
        process.terminate()
        process.wait(10)
        process.stderr.close()


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    with ExitStack() as stack:
        yield lambda folder, *more: stack.enter_context(served(folder, *more))


@dataclass
class Watched:
    """A page, and what it should not have done."""

    page: Page
    console: list[str] = field(default_factory=list)
    elsewhere: list[str] = field(default_factory=list)

    def clean(self) -> None:
        """Nothing was logged to the console, and no request has left this machine."""
        assert (self.console, self.elsewhere) == ([], [])

    def defects(self, *rules: str) -> list[str]:
        """Serious accessibility defects that axe finds on the page as it is, by some of its rules or by all."""
        if not AXE:
            pytest.skip("axe-core is not there: make setup fetches it from npm")
        self.page.evaluate(AXE[-1].read_text())
        chosen = {"runOnly": list(rules)} if rules else {}
        found = self.page.evaluate(
            "options => axe.run(document, options)", {"resultTypes": ["violations"], **chosen}
        )
        return [
            f"{one['id']}: {one['nodes'][0]['html'][:120]}"
            for one in found["violations"]
            if one["impact"] in ("serious", "critical")
        ]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, started once."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is not installed: make setup installs it")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def watched(browser: Browser) -> Iterator[Callable[..., Watched]]:
    """Opens pages in a context of their own."""
    with ExitStack() as stack:

        def opened(**options: object) -> Watched:
            context = stack.enter_context(browser.new_context(**options))  # type: ignore[arg-type]
            context.set_default_timeout(PATIENCE * 1000)
            made = Watched(context.new_page())

            def said(message: ConsoleMessage) -> None:
                made.console.append(message.text)

            def asked(request: Request) -> None:
                if not request.url.startswith("http://127.0.0.1:"):
                    made.elsewhere.append(request.url)

            made.page.on("console", said)
            made.page.on("pageerror", lambda error: made.console.append(str(error)))
            made.page.on("request", asked)
            return made

        yield opened


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A configuration over an empty store, with services that nobody can reach."""
    (tmp_path / "lake").mkdir()
    body = {
        "source": {"url": "mysql://reader:hunter2secret@nowhere.invalid:3306/shop"},
        "store": {"url": "./lake"},
        "tables": {"shop.never": {}},
    }
    (tmp_path / "floodmark.yaml").write_text(yaml.safe_dump(body))
    return tmp_path
