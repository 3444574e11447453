"""A store that fails now and then, and many runs at once: the sync succeeds, or stops and continues next time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from floodmark.setup.services.s3 import SeaweedFS
from floodmark.store import s3
from tests.conftest import Workspace
from tests.faults.lab.httpproxy import HttpProxy, Trouble
from tests.support.held_sync import Gate
from tests.support.orders import create_orders, fill_orders


@contextmanager
def proxied(workspace: Workspace, seaweed: SeaweedFS) -> Iterator[HttpProxy]:
    proxy = HttpProxy(seaweed.port)
    workspace.write(store={"endpoint": f"http://127.0.0.1:{proxy.port}"})
    try:
        yield proxy
    finally:
        proxy.close()


TROUBLES: dict[str, Trouble] = {
    "503 to every third request": lambda n: None if n % 3 else "busy",
    "every fifth connection dropped": lambda n: None if n % 5 else ("drop", "lose")[n // 5 % 2],
    "every fourth request a second late": lambda n: None if n % 4 else "delay",
}


@pytest.mark.parametrize("trouble", TROUBLES)
def test_a_store_that_fails_now_and_then_loses_and_duplicates_nothing(
    s3_workspace: Workspace, seaweed: SeaweedFS, trouble: str
) -> None:
    workspace = s3_workspace
    workspace.execute(create_orders(), fill_orders(1200))
    workspace.write(defaults={"slice_rows": 400})
    with proxied(workspace, seaweed) as proxy:
        proxy.trouble = TROUBLES[trouble]
        for sync in range(1 if "late" in trouble else 2):
            workspace.execute(f"UPDATE orders SET note = 'sync {sync}' WHERE id % 5 = {sync}")
            codes = []
            while 0 not in codes:
                report = workspace.sync("orders")
                codes.append(report.exit_code)
                assert report.exit_code in (0, 4) and len(codes) < 6, report.as_json()
            assert workspace.compare("orders").equal
        assert next(proxy.numbers) > 30
        proxy.trouble = lambda n: None
        found = workspace.pipeline.watermark_validate()
        assert {f["kind"] for t in found["tables"] for f in t["findings"]} <= {"orphan"}


def test_a_silent_store_is_exit_code_4_and_the_next_sync_continues(
    s3_workspace: Workspace, seaweed: SeaweedFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(s3._RETRY, "retry_timeout", timedelta(seconds=1))  # not eight
    workspace = s3_workspace
    workspace.execute(create_orders(), fill_orders(800))
    with proxied(workspace, seaweed) as proxy:
        proxy.trouble = lambda n: "drop"
        report = workspace.sync("orders")
        assert report.exit_code == 4 and "run again" in str(
            report.tables[0].error.hint if report.tables[0].error else ""
        )
        proxy.trouble = lambda n: None
        workspace.synced("orders")
        assert workspace.compare("orders").equal


def test_of_ten_concurrent_runs_one_works_and_nine_exit_with_code_3(workspace: Workspace) -> None:
    workspace.execute(create_orders(), fill_orders(500))
    with Gate(workspace, 7 * 490) as gate:  # the last ten rows are read slowly: the others come meanwhile
        name = workspace.full_name("orders")
        workspace.write(tables={name: {"where": gate.where}})
        workspace.synced("orders", limit=100)  # so that only the one that works starts a Spark
        gate.close()
        started = [workspace.run.start("sync", "-t", name, "--json") for _ in range(10)]
        ended = [(*p.communicate(timeout=120), p.returncode) for p in started]
    worked = [json.loads(out) for out, _, code in ended if code == 0]
    (winner,) = [r["run"] for r in worked if r["tables"][0]["commits"]]
    refused = [err for _, err, code in ended if code == 3]
    # On a machine that is very busy, one may come so late that there is nothing left to do.
    assert len(worked) + len(refused) == 10 and len(refused) >= 7
    for said in refused:
        assert winner in said and "pid" in said and ("runs until" in said or "took the table" in said), said
    assert workspace.query("SELECT count(*), count(DISTINCT id) FROM orders") == [(500, 500)]
    assert workspace.compare("orders").equal
