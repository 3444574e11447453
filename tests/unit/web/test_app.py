"""The pages and their JSON, through the application without a network."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

from floodmark.web.look import Looks
from tests.support.dashboards import HOSTILE, Filled, every_health
from tests.unit.web.conftest import Client

PAGES = (
    "/",
    "/runs",
    "/now",
    "/house",
    "/tables/shop.orders",
    "/tables/shop.lines",
    "/tables/shop.never",
    "/tables/shop.broken",
)
TWINS = (
    "/api/overview",
    "/api/tables",
    "/api/tables/shop.orders",
    "/api/history/shop.orders",
    "/api/runs",
    "/api/now",
    "/api/house",
)


class Strict(HTMLParser):
    """Collects tags, and what no page of ours may have."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.forbidden: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        named = dict(attrs)
        if tag in ("img", "iframe", "object", "embed", "style") or (
            tag == "script" and not (named.get("src") or "").startswith("/static/")
        ):
            self.forbidden.append(tag)
        self.forbidden += [name for name, _ in attrs if name == "style" or name.startswith("on")]
        for name in ("href", "src", "action"):
            if (named.get(name) or "/").startswith(("http:", "https:", "//", "javascript:", "data:")):
                self.forbidden.append(str(named[name]))


def test_every_page_is_whole_and_has_nothing_inline(client: Client, filled: Filled) -> None:
    every_health(filled)
    browser = client()
    for path in PAGES:
        answer = browser.get(path)
        assert answer.status_code == 200
        parsed = Strict()
        parsed.feed(answer.text)
        assert parsed.forbidden == []
        assert parsed.tags.count("h1") == 1
        assert {"header", "main", "footer"} <= set(parsed.tags)
        ids = re.findall(r'\bid="([^"]+)"', answer.text)
        assert len(ids) == len(set(ids))


def test_every_page_has_its_json(client: Client, filled: Filled) -> None:
    every_health(filled)
    browser = client()
    for path in TWINS:
        answer = browser.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "application/json")
        assert answer.json()


def test_a_tables_json_is_the_document_that_watermark_get_prints(client: Client, filled: Filled) -> None:
    filled.table("shop.orders", rows=500)
    found = client().get("/api/tables/shop.orders").json()
    assert (found["table_name"], found["mysql_rows_extracted"], found["redshift_rows_loaded"]) == (
        "shop.orders",
        500,
        500,
    )
    assert found["activity"]["state"] == "idle"
    assert len(found["processed_s3_files"]) == 2
    assert [c["kind"] for c in client().get("/api/history/shop.orders").json()["commits"]] == [
        "batch",
        "claim",
        "open",
    ]


def test_an_empty_store_says_what_to_do(client: Client, filled: Filled) -> None:
    for path in ("/", "/runs", "/now", "/house"):
        assert client().get(path).status_code == 200
    assert "floodmark sync --all" in client().get("/runs").text


def test_hostile_names_are_shown_and_never_executed(client: Client, filled: Filled) -> None:
    parts = {}
    for name in HOSTILE:
        filled.table(name, failed=f"message of {name}")
        error = {"message": f"<i>{name}</i>", "hint": "<i>"}
        parts[name] = {"ok": False, "exit_code": 4, "error": error, "notes": ["</ul><script>"]}
    run = filled.run(3, parts)
    browser = client()
    links = re.findall(r'<th scope="row"><a href="(/tables/[^"]+)"', browser.get("/").text)
    assert len(links) == len(HOSTILE) + 1
    plain = [link for link in links if "%25" not in link]  # which the client without a network decodes twice
    for path in ("/", "/runs", f"/runs/{run}", *plain):
        answer = browser.get(path)
        assert answer.status_code == 200, path
        parsed = Strict()
        parsed.feed(answer.text)
        assert parsed.forbidden == []
        assert "i" not in parsed.tags
        assert "\u202e" not in re.sub(r'data-copy="[^"]*"', "", answer.text)
        assert "49" not in re.findall(r"<bdi>(.*?)</bdi>", answer.text)


def test_secrets_of_the_configuration_are_masked_wherever_they_come_from(
    client: Client, filled: Filled
) -> None:
    secret = "mysql://reader:hunter2secret@db/shop"
    filled.table("shop.orders", failed=f"can't log in: {secret} hunter2secret")
    run = filled.run(3, {"shop.orders": {"ok": False, "exit_code": 2, "error": {"message": secret, "hint": secret}, "notes": [secret],
                                         "findings": [{"kind": "x", "detail": secret}]}})  # fmt: skip
    filled.check(
        "shop.orders",
        1,
        error=secret,
        exit_code=2,
        failure={"stage": "extract", "message": secret, "at": "x"},
    )
    browser = client()
    for path in ("/", "/house", "/runs", f"/runs/{run}", "/tables/shop.orders", *TWINS, f"/api/runs/{run}"):
        answer = browser.get(path)
        assert answer.status_code == 200
        assert "hunter2secret" not in answer.text


def test_an_unknown_address_is_a_page_of_ours(client: Client, filled: Filled) -> None:
    filled.table("shop.orders")
    browser = client()
    for path in (
        "/tables/shop.nothing",
        "/runs/20200101_000000_ab12",
        "/runs/..%2Fpipeline",
        "/nothing",
        "/static/x.py",
    ):
        answer = browser.get(path)
        assert answer.status_code == 404
        assert "Back to the overview" in answer.text
        assert browser.get(f"/api{path}").json()["ok"] is False


def test_search_filter_and_sort_work_by_address_alone(client: Client, filled: Filled) -> None:
    every_health(filled)
    browser = client()

    def names(query: str) -> list[str]:
        return re.findall(r'<tr data-key="([^"]+)"', browser.get(f"/?{query}").text)

    assert names("q=ORDER") == ["shop.orders"]
    assert names("health=behind") == ["shop.invoices", "shop.stale"]
    assert names("health=attention&sort=name") == [
        "shop.broken", "shop.invoices", "shop.lines", "shop.never", "shop.stale", "shop.stock"
    ]  # fmt: skip
    assert names("sort=lag")[0] == "shop.invoices"
    assert names("sort=pending")[0] == "shop.stock"
    assert names("q=nothing") == []
    assert len(names("health=nonsense&sort=nonsense&page=999999999999")) == 7


def test_an_unchanged_page_is_not_sent_again(client: Client, filled: Filled) -> None:
    filled.table("shop.orders")
    browser = client()
    first = browser.get("/")
    again = browser.get("/", headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code in (200, 304)  # 200: a minute has just passed
    assert again.status_code == 304 or again.text != first.text
    assert browser.get("/", headers={"If-None-Match": '"other"'}).status_code == 200


def test_an_unreadable_store_is_reported_on_every_page(client: Client, filled: Filled, looks: Looks) -> None:
    filled.table("shop.orders")
    browser = client()
    browser.get("/")
    folder = Path(looks.store.spec.url)
    folder.rename(folder.with_name("elsewhere"))
    folder.write_text("a file where the store was")
    snapshot = looks.look()
    assert snapshot.problem
    answer = browser.get("/?q=orders")
    assert "The store can’t be read" in answer.text
    assert "shop.orders" in answer.text
    assert browser.get("/healthz").json()["store"] == "unreadable"


def test_prometheus_can_scrape_it(client: Client) -> None:
    answer = client().get("/metrics")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith(
        "text/plain; version=0.0.4"
    )
    assert "floodmark_build_info" in answer.text
    assert client("a-token-of-enough-length").get("/metrics").status_code == 401


def test_a_running_run_shows_its_progress(client: Client, filled: Filled) -> None:
    with filled.held("shop.orders"):
        filled.progress("shop.orders", 250_000)
        text = client().get("/now").text
        assert "250,000 of about 1,000,000" in text
        assert 'value="25"' in text
        assert "etl-1" in text
        assert client().get("/api/now").json()["running"][0]["rows"] == 250_000


def test_a_thousand_tables_are_one_page(client: Client, filled: Filled) -> None:
    filled.many(999)  # and one that was never synced
    browser = client()
    assert browser.get("/").text.count("<tr data-key=") == 1000
