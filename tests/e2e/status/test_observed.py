"""What the store, Prometheus and people see of real runs."""

from __future__ import annotations

import json
import signal
import time
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from floodmark.log.status import Month, month_path, parse, read_status
from floodmark.setup.services.process import free_ports
from floodmark.store.store import Store
from tests.conftest import Workspace
from tests.support.collecting import collecting
from tests.support.held_sync import until
from tests.support.orders import create_orders, fill_orders
from tests.support.receiving import receiving

SECRET = "T0PSECRET"


@pytest.fixture
def orders(workspace: Workspace) -> Workspace:
    """Synced once, 100 rows."""
    workspace.execute(create_orders(), fill_orders(100))
    workspace.synced("orders")
    return workspace


def samples(text: str) -> dict[tuple[str, str], float]:
    """Samples by name and the label that is not the table."""
    return {
        (s.name, s.labels.get("exit_code") or s.labels.get("stage") or ""): s.value
        for family in text_string_to_metric_families(text)
        for s in family.samples
    }


def test_runs_record_how_they_ended(orders: Workspace) -> None:
    name, store = orders.full_name("orders"), Store(orders.settings.store)
    first = read_status(store, name)
    assert first is not None and first.work is not None and (first.exit_code, first.error) == (0, None)
    assert (first.work.rows_extracted, first.work.rows_loaded) == (100, 100)
    assert (
        {"extract", "load"} <= set(first.work.stage_seconds)
        and first.lag is not None
        and first.pending_since is None
    )
    orders.synced("orders")
    idle = read_status(store, name)
    assert idle is not None and idle.work == first.work and idle.caught_up_at != first.caught_up_at
    assert idle.today is not None and idle.today.idle == 1 and idle.total.exit_codes == {"0": 2}
    orders.execute("ALTER TABLE orders ADD COLUMN extra INT", "UPDATE orders SET note = 'x' WHERE id = 1")
    orders.synced("orders")
    changed = read_status(store, name)
    assert changed is not None and [c.column for c in changed.schema_changes] == ["extra"]
    months = [parse(Month, store.get(month_path(name, month))) for month in store.folders("status/days/")]
    days = [day for month in months if month for day in month.days]
    assert sum(d.runs for d in days) == 3 and sum(d.rows_extracted for d in days) == 100
    assert orders.pipeline.verify("orders", spark=orders.spark())["ok"]
    verified = read_status(store, name)
    assert (
        verified is not None
        and (result := verified.verify) is not None
        and result.ok
        and (result.rows_source, result.by) == (100, "verify")
    )
    assert result.high is not None


def test_receivers_are_notified_once_and_no_sync_fails_or_waits_for_them(orders: Workspace) -> None:
    with receiving() as hook:
        orders.write(
            alerts={"heartbeat": f"{hook.url}/beat/{SECRET}", "webhook": f"{hook.url}/hook/{SECRET}"}
        )
        file = orders.folder / "floodmark.prom"
        orders.run("sync", "-t", "orders", "--metrics-file", str(file)).ok()
        assert hook.beats == [f"/beat/{SECRET}"] and hook.documents == []
        found = samples(file.read_text())
        assert found["floodmark_runs_total", "0"] == 2 and found["floodmark_rows_loaded_total", ""] == 100
        orders.execute("RENAME TABLE orders TO away")
        for _ in range(2):
            failed = orders.run("sync", "-t", orders.full_name("orders"), "--metrics-file", str(file))
            assert failed.code == 2 and SECRET not in failed.stderr
        assert hook.events == [("failed", orders.full_name("orders"), False)]
        assert hook.beats[-1] == f"/beat/{SECRET}/fail"
        assert samples(file.read_text())["floodmark_runs_total", "2"] == 2
        orders.execute("RENAME TABLE away TO orders")
        hook.hangs = True
        began = time.monotonic()
        hung = orders.run("sync", "-t", "orders").ok()
        assert time.monotonic() - began < 60 and hung.stderr.count("could not be notified") == 2
        assert SECRET not in hung.stderr and "alerts.webhook could not be notified: no answer" in hung.stderr
        came = len(hook.got)
        assert "could not be notified" not in orders.run("sync", "-t", "orders").ok().stderr
        assert len(hook.got) == came  # they are left alone for a while
        hook.hangs = False
        tested = orders.run("alerts", "test", "--json").ok().json
        assert [one["receiver"] for one in tested["receivers"]] == ["heartbeat", "webhook"]
        judged = orders.run("alerts", "check", "--json").ok().json
        assert [one["state"] for one in judged["tables"]] == ["ok"]


@pytest.mark.long  # tests/unit/status/test_traces.py does it without a JVM
def test_a_real_sync_is_one_trace_and_a_dead_collector_delays_none(orders: Workspace) -> None:
    orders.execute("UPDATE orders SET note = 'again' WHERE id <= 50")
    with collecting() as collector:
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_EXPORTER_OTLP_HEADERS": f"key={SECRET}"}
        done = orders.run("sync", "-t", "orders", "--verify-data", env=env).ok()
        assert SECRET not in done.stderr and SECRET in collector.headers[0]
        (root,), (table,) = collector.named("sync"), collector.named("table")
        assert {span.trace for span in collector.spans} == {root.trace}
        assert {"plan", "extract", "commit", "load", "verify"} <= set(collector.under(table))
        assert collector.named("slice") and root.attributes["floodmark.exit_code"] == 0
        collector.hangs = True
        began = time.monotonic()
        hung = orders.run("sync", "-t", "orders", env=env).ok()
        assert hung.stderr.count("traces could not be sent") == 1 and time.monotonic() - began < 60


def test_a_resident_sync_answers_prometheus(orders: Workspace, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    process = orders.run.start("sync", "-t", "orders", "--every", "1s", "--listen", f"127.0.0.1:{port}")

    def ask(path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""

    until(lambda: '"exit_code": 0' in ask("/healthz"))
    before = samples(ask("/metrics"))
    assert before["floodmark_rows_loaded_total", ""] == 100
    until(lambda: samples(ask("/metrics"))["floodmark_runs_total", "0"] > before["floodmark_runs_total", "0"])
    busy = orders.run("sync", "-t", "orders", "--every", "1s", "--listen", f"127.0.0.1:{port}")
    assert busy.code == 2 and "can't listen" in busy.stderr
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143


def test_mistakes_are_refused_before_anything_is_done(orders: Workspace) -> None:
    for args, said in (
        (("--listen", "127.0.0.1:9908"), "--listen needs --every"),
        (("--every", "1s", "--listen", "9908"), "HOST:PORT"),
        (("--metrics-file", "/nowhere/floodmark.prom"), "no folder /nowhere"),
    ):
        done = orders.run("sync", "-t", "orders", *args)
        assert done.code == 2 and said in done.stderr
    none = orders.run("alerts", "check", "--json")
    assert none.code == 2 and "has no alerts" in json.loads(none.stdout)["error"]["message"]
