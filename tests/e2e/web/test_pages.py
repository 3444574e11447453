"""The dashboard in a real browser: every page, hostile names, many tables, a sync that runs, a store that fails."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from floodmark.config.load import load
from floodmark.store.store import Store
from tests.e2e.web.conftest import Served, Watched
from tests.support.dashboards import HOSTILE, Filled, every_health

Serve = Callable[..., Served]
Watch = Callable[..., Watched]


@pytest.fixture
def filled(folder: Path) -> Filled:
    return Filled(Store(load(folder / "floodmark.yaml").store), datetime.now(UTC))


def test_every_page_is_accessible_logs_no_error_and_loads_nothing_from_elsewhere(
    folder: Path, filled: Filled, serve: Serve, watched: Watch
) -> None:
    every_health(filled)
    for name in HOSTILE:
        filled.table(name, failed=f"said of {name}")
    run = filled.run(
        4, {name: {"ok": False, "exit_code": 4, "error": {"message": f"<b>{name}"}} for name in HOSTILE}
    )
    url = serve(folder).url
    paths = [
        "/",
        "/?q=o&health=attention",
        "/tables/shop.orders",
        "/tables/shop.lines",
        "/tables/shop.never",
        "/runs",
        f"/runs/{run}",
        "/now",
        "/house",
    ]
    dark = {"color_scheme": "dark", "viewport": {"width": 390, "height": 800}}
    # Of what axe looks for, other colours and another width change only these.
    for options, rules in (({}, ()), (dark, ("color-contrast", "scrollable-region-focusable"))):
        here = watched(**options)
        for path in paths:
            here.page.goto(url + path)
            assert here.page.locator("h1").count() == 1
            wide = here.page.evaluate("document.documentElement.scrollWidth - innerWidth")
            assert wide <= 0, f"{path} is {wide} pixels too wide"
            assert here.defects(*rules) == [], path
        here.clean()


def test_hostile_names_can_be_read_and_followed(
    folder: Path, filled: Filled, serve: Serve, watched: Watch
) -> None:
    for name in HOSTILE:
        filled.table(name)
    here = watched()
    here.page.on("dialog", lambda dialog: here.console.append(dialog.message))
    here.page.goto(serve(folder).url)
    links = here.page.locator("tbody th a")
    targets = {links.nth(i).inner_text(): links.nth(i).get_attribute("href") for i in range(links.count())}
    assert {
        "shop.طلبات",
        "shop.<img src=x onerror=alert(1)>",
        "shop.\\u202eevil\\u202c",
        "shop.a/b?c#d%41",
    } <= set(targets)
    for said, target in targets.items():
        answer = here.page.goto(f"{here.page.url.split('/tables')[0].rstrip('/')}{target}")
        assert answer is not None and answer.status == 200
        assert here.page.locator("h1").inner_text() == said
    here.clean()


def test_numbers_update_during_a_sync_without_losing_focus_scroll_or_input(
    folder: Path, filled: Filled, serve: Serve, watched: Watch
) -> None:
    every_health(filled)
    url = serve(folder).url
    here = watched(viewport={"width": 900, "height": 300})
    page = here.page
    with filled.held("shop.busy", filled.run_id(0.1)):
        filled.progress("shop.busy", 250_000, run=filled.run_id(0.1))
        page.goto(f"{url}/now")
        page.get_by_text("250,000 of about 1,000,000").wait_for()
        link = page.get_by_role("link", name="shop.busy")
        link.focus()
        page.evaluate("scrollTo(0, 40)")
        filled.progress("shop.busy", 500_000, run=filled.run_id(0.1))
        page.get_by_text("500,000 of about 1,000,000").wait_for()
        assert page.evaluate("document.activeElement.textContent") == "shop.busy"
        assert page.evaluate("scrollY") == 40
        page.goto(url)
        page.get_by_text("running", exact=True).wait_for()
        # A row that moves keeps the focus: shop.orders, the last but for busy, fails and becomes one of the first.
        page.get_by_role("link", name="shop.orders").focus()
        filled.table("shop.orders", failed="the disk is full")
        page.get_by_text("the disk is full").wait_for()
        assert page.evaluate("document.activeElement.textContent") == "shop.orders"
    page.locator("#q").fill("ord")
    page.locator("tbody tr").nth(1).wait_for(state="detached")
    assert page.locator("tbody th a").all_inner_texts() == ["shop.orders"]
    assert page.url.endswith("?q=ord")
    filled.table("shop.orders_too")
    page.get_by_role("link", name="shop.orders_too").wait_for()
    assert page.evaluate("document.activeElement.id") == "q"
    assert page.locator("#q").input_value() == "ord"
    with page.expect_response(lambda answer: answer.status == 304):  # what has not changed is not sent again
        pass
    here.clean()


def test_open_details_stay_open_and_a_server_that_is_gone_is_reported(
    folder: Path, filled: Filled, serve: Serve, watched: Watch
) -> None:
    filled.table("shop.orders")
    filled.run(30, {"shop.orders": {}})
    running = serve(folder)
    here = watched()
    page = here.page
    page.goto(f"{running.url}/tables/shop.orders")
    page.get_by_text("Runs as figures").click()
    figures = page.locator("details table tbody tr")
    assert figures.count() == 1 and figures.first.is_visible()
    filled.run(1, {"shop.orders": {}})
    figures.nth(1).wait_for()
    assert figures.first.is_visible() and not page.locator("#away").is_visible()
    here.clean()
    running.process.terminate()
    page.locator("#away").wait_for()
    assert figures.first.is_visible() and here.elsewhere == []


def test_a_thousand_tables_work_without_javascript(
    folder: Path, filled: Filled, serve: Serve, watched: Watch
) -> None:
    filled.many(999)  # and one that was never synced
    here = watched(java_script_enabled=False)
    here.page.goto(serve(folder).url)
    assert here.page.locator("tbody tr").count() == 1000
    here.page.locator("#q").fill("t0998")
    here.page.get_by_role("button", name="Show").click()
    assert here.page.locator("tbody th").all_inner_texts() == ["shop.t0998"]
    here.page.get_by_role("link", name="shop.t0998").click()
    assert here.page.locator("h1").inner_text() == "shop.t0998"
    here.clean()


def test_the_dashboard_handles_an_empty_a_failing_and_a_recovered_store(
    folder: Path, filled: Filled, serve: Serve, watched: Watch
) -> None:
    (folder / "floodmark.yaml").write_text(
        (folder / "floodmark.yaml").read_text().replace("shop.never: {}", "shop.*: {}")
    )
    here = watched()
    here.page.goto(serve(folder).url)
    here.page.get_by_text("No table has been synced yet").wait_for()
    filled.table("shop.orders")
    here.page.get_by_role("link", name="shop.orders").wait_for()
    lake = folder / "lake"
    lake.rename(folder / "elsewhere")
    lake.write_text("no folder")
    here.page.get_by_text("The store can’t be read.").wait_for()
    assert here.page.get_by_role("link", name="shop.orders").count() == 1
    lake.unlink()
    (folder / "elsewhere").rename(lake)
    here.page.get_by_text("The store can’t be read.").wait_for(state="detached")
    here.clean()


def test_a_token_opens_the_dashboard(folder: Path, filled: Filled, serve: Serve, watched: Watch) -> None:
    filled.table("shop.orders")
    (folder / "token").write_text("a-token-of-some-length\n")
    here = watched()
    here.page.goto(serve(folder, "--token-file", str(folder / "token")).url)
    assert here.defects() == []
    here.page.get_by_label("Token for this dashboard").fill("a-token-of-some-length")
    here.page.get_by_role("button", name="Continue").click()
    here.page.get_by_role("link", name="shop.orders").wait_for()
    here.clean()
