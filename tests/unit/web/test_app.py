"""The pages and their JSON, through the application without a network."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

import pytest

from floodmark.config.load import Config
from floodmark.log.status import DoctorResult, read_doctor, write_doctor
from floodmark.model.times import stamp
from floodmark.status.facts import AllFacts
from floodmark.status.metrics import exposition
from floodmark.web.snapshot import Looks
from tests.support.dashboards import HOSTILE, Filled, every_health, seen
from tests.support.frozen import freeze
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
        self.forbidden += [
            name for name, _ in attrs if name == "style" or name.startswith(("on", "hx-on", "data-hx"))
        ]
        # What htmx would evaluate, and our policy forbids: filters of triggers, and js: values.
        self.forbidden += [
            f"{name}={value}"
            for name, value in attrs
            if name.startswith("hx-") and re.search(r"\[|js:", value or "")
        ]
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
    assert (found["activity"]["state"], found["mode"]) == ("idle", "upsert")
    assert len(found["processed_s3_files"]) == 2
    assert found["not_followed"] == ["deletes"]
    assert "Deleted rows stay in the target." in client().get("/tables/shop.orders").text
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
                                         "findings": [{"kind": "x", "table": "shop.orders", "detail": secret}]}})  # fmt: skip
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


def test_search_filter_and_sort_work_by_address_alone(
    client: Client, filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    freeze(monkeypatch, filled.now)  # a day later, more of its tables are behind
    every_health(filled)
    browser = client()

    def names(query: str) -> list[str]:
        return re.findall(r'<th scope="row"><a [^>]+><bdi>([^<]+)</bdi>', browser.get(f"/?{query}").text)

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


def test_healthz_counts_the_tables_by_health_without_their_names(
    client: Client, filled: Filled, looks: Looks
) -> None:
    browser = client()
    assert browser.get("/healthz").json()["tables"] is None
    filled.table("shop.orders")
    filled.table("shop.lines")
    looks.look()
    answer = browser.get("/healthz")
    assert answer.status_code == 200 and "shop" not in answer.text
    counts = {word: number for word, number in answer.json()["tables"].items() if number}
    assert counts == {"behind": 2, "never synced": 1}


def test_prometheus_can_scrape_it(client: Client) -> None:
    answer = client().get("/metrics")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith(
        "text/plain; version=0.0.4"
    )
    assert set(re.findall(r"^# HELP (\S+) ", answer.text, re.MULTILINE)) == set(
        re.findall(r"^# HELP (\S+) ", exposition(AllFacts()).decode(), re.MULTILINE)
    )
    assert client("a-token-of-enough-length").get("/metrics").status_code == 401


def test_the_house_shows_doctors_last_result_without_a_secret(client: Client, filled: Filled) -> None:
    filled.table("shop.orders")
    none = client().get("/house?before").text
    assert "It has not been run with this store" in none and "--no-ledger" in none
    checks = tuple(
        {
            "section": "source",
            "name": name,
            "status": status,
            "detail": "user hunter2secret <b>",
            "hint": None,
            "table": None,
        }
        for name, status in (("way", "ok"), ("index", "warning"), ("rights", "failure"))
    )
    counts = {"ok": 1, "warning": 1, "failure": 1, "skipped": 0}
    write_doctor(
        filled.store, DoctorResult("2026-11-17T10:00:00.000000Z", "etl-1", False, 2.0, counts, checks)
    )
    told = read_doctor(filled.store)
    assert told is not None and [one["name"] for one in told.checks] == ["rights", "index"]
    text = client().get("/house").text
    assert "1 check ok, 1 warning, 1 failure" in text and "hunter2secret" not in text and "***" in text
    assert "&lt;b&gt;" in text and text.index("rights") < text.index("index</b>")
    found = client().get("/api/house").json()
    assert found["doctor"]["host"] == "etl-1" and found["ledger"]["asked"] is False


def test_a_killed_run_and_a_refused_one_have_their_pages(client: Client, filled: Filled) -> None:
    filled.now = datetime.now(UTC)
    filled.table("shop.orders", looked=None)
    killed, refused = filled.run_id(90), filled.run_id(20)
    until = stamp(filled.now - timedelta(minutes=80))
    left = {"run": killed, "since": None, "until": until, "rows": 7, "host": "etl-1", "stage": "load"}
    filled.check("shop.orders", 1.0, killed=[left])
    error = {"code": 2, "kind": "config", "message": "Access denied", "hint": "check source.url"}
    body = {"run": refused, "ok": False, "seconds": 0.5, "tables": [], "error": error}
    filled.store.put(f"runs/{refused}.json", json.dumps(body).encode())
    browser = client()
    text = browser.get("/runs").text
    assert "no exit code, killed, or its machine stopped" in text and "Access denied" in text
    assert "the run was killed, in load, on etl-1" in browser.get(f"/runs/{killed}").text
    assert "check source.url" in browser.get(f"/runs/{refused}").text
    assert browser.get(f"/api/runs/{killed}").json()["exit_code"] is None
    assert browser.get(f"/api/runs/{refused}").json()["error"]["code"] == 2
    assert [run["exit_code"] for run in browser.get("/api/runs").json()["runs"]] == [2, None]


def test_the_list_of_runs_shows_why_a_table_failed(client: Client, filled: Filled) -> None:
    filled.now = datetime.now(UTC)
    error = {
        "code": 6,
        "kind": "data",
        "table": "shop.b",
        "message": "<its source has changed>",
        "hint": None,
    }
    filled.run(5, {"shop.a": {}, "shop.b": {"ok": False, "exit_code": 6, "error": error}})
    assert "&lt;its source has changed&gt;" in client().get("/runs").text


def test_the_overview_shows_a_run_that_was_refused_until_a_sync_gets_further(
    config: Config, client: Client, filled: Filled
) -> None:
    filled.now = datetime.now(UTC)
    error = {"code": 4, "kind": "transient", "message": "MySQL can't be reached", "hint": None}
    refused = filled.run_id(5)
    body = {"run": refused, "ok": False, "exit_code": 4, "seconds": 0.5, "tables": [], "error": error}
    filled.store.put(f"runs/{refused}.json", json.dumps(body).encode())
    browser = client()
    text = browser.get("/").text  # of a store without any table
    assert "The last run failed." in text and "MySQL can" in text and f"/runs/{refused}" in text
    filled.check("shop.never", 6.0)
    assert seen(config, filled.now).refused is not None
    filled.check("shop.never", 1.0)
    assert seen(config, filled.now).refused is None


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
    assert browser.get("/").text.count('<tr id="r-') == 1000
