"""Who may access the dashboard: names, tokens, methods; and the security headers."""

from __future__ import annotations

import asyncio
import logging

import pytest
from starlette.requests import Request, empty_receive
from starlette.testclient import TestClient
from starlette.types import Message

from floodmark.config.load import Config
from floodmark.web import gate
from floodmark.web.app import Dashboard
from floodmark.web.gate import host_name, is_loopback, is_welcome
from floodmark.web.pages import Pages
from floodmark.web.snapshot import Looks, Watch
from tests.unit.web.conftest import Client

TOKEN = "a-token-of-some-length"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gate, "WRONG_PAUSE", 0.0)


def test_hosts_are_read_with_and_without_their_ports() -> None:
    assert [host_name([h]) for h in ("localhost:8808", "LOCALHOST", "[::1]:8808", "10.0.0.1")] == [
        "localhost",
        "localhost",
        "::1",
        "10.0.0.1",
    ]
    assert [
        is_loopback(h) for h in ("127.0.0.1", "127.8.0.1", "::1", "localhost", "0.0.0.0", "::", "etl")
    ] == [True] * 4 + [False] * 3


@pytest.mark.parametrize(("name", "welcome"), [("localhost", True), ("127.0.0.1", True), ("10.1.2.3", True), ("::1", True),
                                               ("evil.example", False), ("localhost.evil.example", False), (":::", False)])  # fmt: skip
def test_only_our_own_names_and_plain_addresses_are_welcome(name: str, welcome: bool) -> None:
    assert is_welcome(name, {"localhost"}) is welcome


@pytest.mark.parametrize(
    "host",
    ["[::1]/healthz?x", "127.0.0.1/login#", "testserver/static/?", "testserver:80/healthz", "me@testserver", "testserver:",
     "testserver:80:80", "testserver:x", "test server", "testserver\\healthz", "testserver,testserver", "::1", "[::1", "[]", ""],
)  # fmt: skip
def test_a_host_that_is_not_a_name_or_an_address_with_a_port_gets_nothing(client: Client, host: str) -> None:
    answer = client(TOKEN).get("/api/overview", headers={"Host": host})
    assert (answer.status_code, "default-src" in answer.headers["content-security-policy"]) == (400, True)


def test_two_hosts_are_none() -> None:
    assert host_name(["testserver", "testserver"]) is None and host_name([]) is None


@pytest.mark.parametrize(
    "path", ["/healthz/../api/overview", "/healthzx", "/loginx", "//healthz", "/api/overview?/healthz"]
)
def test_a_path_that_only_looks_like_an_open_one_needs_the_token(client: Client, path: str) -> None:
    scope = {"type": "http", "method": "GET", "scheme": "http", "root_path": "", "path": path, "query_string": b"",
             "headers": [(b"host", b"testserver")]}  # fmt: skip
    told: list[Message] = []

    async def send(message: Message) -> None:
        told.append(message)

    async def ask() -> None:
        await client(TOKEN).app(scope, empty_receive, send)

    asyncio.run(ask())
    assert told[0]["status"] in (303, 401)


def test_nothing_goes_by_the_address_that_the_host_header_is_part_of(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Request, "url", property(lambda _: pytest.fail("request.url was used")))
    browser = client(TOKEN)
    for path in ("/", "/healthz", "/login", "/static/page.js?1", "/api/nothing", "/api/overview"):
        browser.get(path)
    browser.post("/login", data={"token": TOKEN})
    for path, status in (
        ("/", 200),
        ("/api/overview", 200),
        ("/api/nothing", 404),
        ("/static/page.js?1", 200),
    ):
        assert browser.get(path).status_code == status


def test_a_rebound_name_gets_nothing(client: Client) -> None:
    for path in ("/", "/api/overview", "/static/style.css", "/healthz"):
        assert client().get(path, headers={"Host": "evil.example:8808"}).status_code == 421


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_changed(client: Client, method: str) -> None:
    assert client().request(method, "/").status_code == 405


def test_every_response_forbids_foreign_content(client: Client) -> None:
    for path in ("/", "/api/overview", "/static/page.js", "/nothing", "/healthz"):
        headers = client().get(path).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers


def test_even_a_bug_forbids_foreign_content_and_is_logged_without_a_secret(
    config: Config, looks: Looks, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*given: object) -> str:
        raise RuntimeError("it said hunter2secret")

    monkeypatch.setattr(Pages, "now", broken)
    with Watch(looks) as watch:
        app = Dashboard(config, looks, watch).app(["testserver"])
        answer = TestClient(app, raise_server_exceptions=False).get("/now")
    assert (answer.status_code, answer.text) == (500, "A bug in Floodmark; see its log.\n")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    (said,) = [r.getMessage() for r in caplog.records if r.name == "floodmark" and r.levelno >= logging.ERROR]
    assert "/now could not be answered: RuntimeError: it said" in said and "hunter2secret" not in said


def test_without_the_token_only_the_log_in_page_is_shown(client: Client) -> None:
    browser = client(TOKEN)
    assert browser.get("/").headers["location"] == "/login"
    assert browser.get("/api/overview").status_code == 401
    assert browser.get("/healthz").status_code == 200
    assert browser.get("/api/overview", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert browser.get("/api/overview", headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200


def test_a_browser_needs_the_token_only_once(client: Client) -> None:
    browser = client(TOKEN)
    assert "<form" in browser.get("/login").text
    wrong = browser.post("/login", data={"token": "wrong"})
    assert (wrong.status_code, "not the token" in wrong.text) == (403, True)
    assert browser.get("/").status_code == 303
    right = browser.post("/login", data={"token": TOKEN})
    assert (right.status_code, right.headers["location"]) == (303, "/")
    cookie = right.headers["set-cookie"]
    assert TOKEN not in cookie
    assert "HttpOnly" in cookie
    assert "samesite=strict" in cookie.lower()
    assert browser.get("/").status_code == 200
    assert browser.post("/login", content=b"x" * 5000).status_code == 413


@pytest.mark.parametrize("cookie", ["floodmark=", "floodmark=x", 'floodmark="', "=;=;", "floodmark=%00"])
def test_other_cookies_open_nothing(client: Client, cookie: str) -> None:
    assert client(TOKEN).get("/", headers={"Cookie": cookie}).status_code == 303
