"""A store in a folder, and the dashboard over it without a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from floodmark.config.load import Config
from floodmark.model.secrets import Scrubber
from floodmark.store.store import Store
from floodmark.web.app import Dashboard
from floodmark.web.gate import Token
from floodmark.web.snapshot import Looks, Watch
from tests.support.dashboards import Filled, config_of

Client = Callable[..., TestClient]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    (tmp_path / "lake").mkdir()
    return config_of(tmp_path, tables=("shop.never", "shop.*"))


@pytest.fixture
def filled(config: Config) -> Filled:
    return Filled(Store(config.store))


@pytest.fixture
def looks(config: Config) -> Looks:
    scrub = Scrubber()
    scrub.learn(config)
    return Looks(config, scrub)


@pytest.fixture
def client(config: Config, looks: Looks) -> Iterator[Client]:
    """The dashboard, queried without a network. Its looks are made here, one for each client."""
    watch = Watch(looks, every=0.05)

    def made(token: str | None = None) -> TestClient:
        app = Dashboard(config, looks, watch).app(["testserver"], Token(token) if token else None)
        return TestClient(app, follow_redirects=False)

    with watch:
        yield made
