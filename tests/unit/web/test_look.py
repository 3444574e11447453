"""What the dashboard sees of a store, and what a look costs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from floodmark.log.document import primary_path
from floodmark.log.status import ErrorText
from floodmark.model.errors import TransientError
from floodmark.store.store import Object, Store
from floodmark.web.snapshot import Looks
from tests.support.dashboards import NOW, Filled, config_of, every_health, seen
from tests.support.watermark_copies import Counting


def words(looks: Looks) -> dict[str, str]:
    return {row.name: row.health.word for row in looks.look(NOW).rows}


def test_every_table_gets_its_state_and_the_worst_comes_first(filled: Filled, looks: Looks) -> None:
    every_health(filled)
    found = words(looks)
    assert found == {
        "shop.invoices": "behind",
        "shop.stale": "behind",
        "shop.lines": "failing",
        "shop.broken": "unknown",
        "shop.stock": "waiting to load",
        "shop.never": "never synced",
        "shop.orders": "ok",
    }
    assert (next(iter(found)), list(found)[-1]) == ("shop.invoices", "shop.orders")


def test_an_open_window_without_a_holder_is_tried_again_and_a_held_one_is_running(
    filled: Filled, looks: Looks
) -> None:
    filled.table("shop.left", window_left_open=True)
    with filled.held("shop.busy"):
        filled.progress("shop.busy", 250_000, lag=90.0)
        rows = {row.name: row for row in looks.look(NOW).rows}
    assert rows["shop.left"].health.word == "failing"
    assert "interrupted" in rows["shop.left"].health.why
    busy = rows["shop.busy"]
    assert busy.lag.seconds == 90.0
    assert busy.holder is not None
    assert (busy.holder.rows, busy.holder.total, busy.holder.stage, busy.holder.purpose) == (
        250_000,
        1_000_000,
        "extract",
        "sync",
    )


def test_a_second_look_reads_only_what_has_changed(filled: Filled, looks: Looks) -> None:
    filled.many(20)
    counting = looks.facts.store = Counting(filled.store.spec)
    first = looks.look(NOW)
    assert len(counting.reads) > 40
    counting.reads.clear()
    second = looks.look(NOW)
    assert (counting.reads, second.version) == ([], first.version)
    assert len(counting.lists) <= 2 * 9
    filled.check("shop.t0007", 0.5, lag=90_001.0)
    third = looks.look(NOW)
    assert counting.reads == ["status/tables/shop.t0007.json"]
    assert third.version == first.version + 1
    assert (third.rows[0].name, third.rows[0].health.word) == ("shop.t0007", "behind")


class Failing(Store):
    """A store that fails in the middle of a look, on demand."""

    broken = False

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[Object]:
        if self.broken and prefix == "runs/":
            raise TransientError("S3 can't be reached with hunter2secret")
        return super().list(prefix, start_after)


def test_a_store_that_fails_in_the_middle_leaves_what_was_seen_before_and_says_why(
    filled: Filled, looks: Looks
) -> None:
    filled.table("shop.orders")
    failing = looks.facts.store = Failing(filled.store.spec)
    good = looks.look(NOW)
    failing.broken = True
    filled.table("shop.more")
    bad = looks.look(NOW)
    assert bad.problem == "S3 can't be reached with ***"
    assert (bad.at, bad.rows) == (good.at, good.rows)
    assert bad.version > good.version
    assert looks.look(NOW).version == bad.version
    failing.broken = False
    recovered = looks.look(NOW)
    assert recovered.problem is None
    assert {"shop.orders", "shop.more"} <= {row.name for row in recovered.rows}


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'"x"', b'{"table_name": 7}', b'{"table_name": "shop.other"}', b"[" * 100_000]
)
def test_a_foreign_object_in_a_watermark_s_place_is_at_worst_unknown(
    filled: Filled, looks: Looks, data: bytes
) -> None:
    filled.store.put(primary_path("shop.odd"), data)
    for kind in ("status/tables", "status/live", "leases"):
        filled.store.put(f"{kind}/shop.odd.json", data)
    filled.store.put("runs/20261117_110000_ab12.json", data)
    filled.store.put("status/days/202611/shop.odd.json", data)
    assert words(looks)["shop.odd"] == "unknown"


def test_days_and_runs_make_the_line_over_time(filled: Filled, looks: Looks) -> None:
    filled.table("shop.orders")
    days = [
        f'{{"day": "2026-11-{n:02}", "runs": 3, "rows_extracted": {n}, "worst_lag_seconds": {n}.0}}'
        for n in range(1, 10)
    ]
    filled.store.put(
        "status/days/202611/shop.orders.json",
        f'{{"table_name": "shop.orders", "days": [{",".join(days)}]}}'.encode(),
    )
    snapshot = looks.look(NOW)
    row = snapshot.row("shop.orders")
    assert row is not None
    assert row.points == tuple(float(n) for n in range(1, 10))
    assert snapshot.days["shop.orders"][-1].rows_extracted == 9
    for hours in (3, 2, 1):
        filled.run(60.0 * hours, {"shop.orders": {"lag_after": {"seconds": float(hours), "ids": None}}})
    row = looks.look(NOW).row("shop.orders")
    assert row is not None
    assert row.points == (3.0, 2.0, 1.0)


def test_todays_idle_runs_are_added_to_the_day_that_the_month_has(filled: Filled, looks: Looks) -> None:
    filled.table("shop.orders", looked=None)
    day = '{"day": "2026-11-17", "runs": 3, "rows_extracted": 9}'
    filled.store.put(
        "status/days/202611/shop.orders.json",
        f'{{"table_name": "shop.orders", "days": [{day}]}}'.encode(),
    )
    filled.check("shop.orders", 1.0, today={"day": "2026-11-17", "runs": 2, "idle": 2})
    (found,) = looks.look(NOW).days["shop.orders"]
    assert (found.day, found.runs, found.idle, found.rows_extracted) == ("2026-11-17", 5, 2, 9)


def test_a_killed_run_shows_by_its_lease_and_then_by_the_check_of_the_next_one(
    filled: Filled, looks: Looks
) -> None:
    killed = "20261117_113000_dead"
    with filled.held("shop.orders", killed):
        filled.progress("shop.orders", 500, run=killed)
        note = json.loads(filled.store.get("leases/shop.orders.json") or b"")
    assert all(run.run != killed for run in looks.look(NOW).runs)  # it was released
    filled.dies("shop.orders")
    run = looks.look(NOW).run(killed)
    assert run is not None and (run.ok, run.exit_code, run.seconds) == (False, None, 1440.0)
    assert [(p.table, p.rows_extracted) for p in run.tables] == [("shop.orders", 500)]
    filled.store.put("leases/shop.orders.json", json.dumps({**note, "released": True}).encode())
    left = {
        "run": killed,
        "since": None,
        "until": "2026-11-17T11:35:00.000000Z",
        "rows": 700,
        "host": "etl-1",
    }
    filled.check("shop.orders", 1.0, killed=[left])
    run = looks.look(NOW).run(killed)
    assert run is not None and run.exit_code is None and run.tables[0].rows_extracted == 700
    filled.store.put(f"runs/{killed}.json", json.dumps({"run": killed, "ok": True, "tables": []}).encode())
    reported = [run for run in looks.look(NOW).runs if run.run == killed]
    assert [run.exit_code for run in reported] == [0]  # its own report counts


def test_what_a_killed_run_has_committed_is_known_though_it_was_never_published(
    filled: Filled, looks: Looks
) -> None:
    for name in ("shop.healthy", "shop.later"):
        filled.table(name)
    filled.table("shop.first", published=False, looked=None)
    filled.table("shop.later", rows=500, published=False)
    for name in ("shop.first", "shop.later"):
        filled.dies(name)
    counting = looks.facts.store = Counting(filled.store.spec)
    rows = {row.name: row for row in looks.look(NOW).rows}
    assert not [path for path in counting.lists if path.startswith("commits/shop.healthy/")]
    assert (rows["shop.healthy"].health.word, rows["shop.later"].health.word) == ("ok", "waiting to load")
    assert (rows["shop.first"].pending, rows["shop.later"].pending) == (2, 2)
    assert rows["shop.first"].last_success is None
    counting.reads.clear()
    counting.lists.clear()
    looks.look(NOW)
    assert not [path for path in counting.reads + counting.lists if path.startswith("commits/")]
    filled.table("shop.later", rows=700)  # the next run
    assert words(looks)["shop.later"] == "ok"


def test_a_run_that_was_refused_shows_why(filled: Filled, looks: Looks) -> None:
    error = {"code": 2, "kind": "config", "message": "Access denied for hunter2secret", "hint": "check it"}
    body = {"run": "20261117_113000_ab12", "ok": False, "seconds": 0.2, "tables": [], "error": error}
    filled.store.put("runs/20261117_113000_ab12.json", json.dumps(body).encode())
    (run,) = looks.look(NOW).runs
    assert (run.exit_code, run.error) == (2, ErrorText("Access denied for ***", 2, "check it"))


def test_the_last_work_of_a_check_reads_like_the_report_of_its_run(filled: Filled, looks: Looks) -> None:
    filled.table("shop.orders", looked=None)
    numbers = {
        "rows_extracted": 5,
        "rows_reread": 1,
        "rows_loaded": 6,
        "rows_deleted": 2,
        "seconds": 3.0,
        "exit_code": 0,
    }
    stages = {"extract": 1.0, "load": 2.0}
    run = filled.run_id(30)
    filled.check(
        "shop.orders",
        1.0,
        work={
            "run": run,
            "at": "x",
            "files_written": 4,
            "bytes_written": 9,
            "stage_seconds": stages,
            **numbers,
        },
    )
    row = looks.look(NOW).row("shop.orders")
    assert row is not None
    part = {
        **numbers,
        "files_written": 4,
        "bytes_written": 9,
        "stage_seconds": stages,
        "strategy": None,
        "lag_after": None,
    }
    filled.run(30, {"shop.orders": part})
    again = looks.look(NOW).row("shop.orders")
    assert again is not None and again.last == row.last is not None


def test_the_older_tool_s_watermarks_are_not_tables(filled: Filled, looks: Looks) -> None:
    filled.store.put("watermark/tables/shop_orders.json", b'{"table_name": "shop.orders"}')
    assert "shop_orders" not in words(looks)


def test_reports_of_runs_older_than_a_week_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    config = config_of(tmp_path)
    filled = Filled(Store(config.store))
    filled.run(60 * 24 * 9, {"shop.orders": {}})
    new = filled.run(60, {"shop.orders": {}})
    assert [run.run for run in seen(config).runs] == [new]
    assert seen(config, NOW + timedelta(days=8)).runs == ()
