"""The live document: written during a sync, without ever delaying it."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from floodmark.config.load import StoreSpec
from floodmark.log.lease import Holder, activity
from floodmark.log.status import Live, live_path, read_live
from floodmark.model import events
from floodmark.model.commit import Owner
from floodmark.model.run import Lag, TableReport, Wait
from floodmark.status.live import LiveDocuments
from floodmark.store.store import Store
from tests.support.samples import RUN
from tests.support.watermark_copies import Counting, synced


@pytest.fixture
def store(tmp_path: Path) -> Counting:
    return Counting(StoreSpec(url=str(tmp_path)))


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_progress_is_written_while_a_stage_is_under_way_and_removed_when_the_run_ends(store: Store) -> None:
    with LiveDocuments(store, RUN, every=0.01) as live:
        live(events.LagMeasured("s.t", Lag(seconds=90.0)))
        live(events.StageBegan("s.t", "extract", 1000))
        live(events.Advanced("s.t", "extract", 250, 1, 5000))
        live(events.Advanced("s.t", "extract", 250, 2, 5000))
        until(lambda: (r := read_live(store, "s.t", RUN)) is not None and r.rows == 500)
        live(events.Underway("s.t", "extract", 40))
        live(events.Waiting("s.t", Wait("lock", "etl")))
        until(lambda: (r := read_live(store, "s.t", RUN)) is not None and r.waits_for == "lock")
        found = read_live(store, "s.t", RUN)
        assert found is not None and (found.rows, found.stages[0].rows) == (540, 500)
        assert found is not None and (found.stage, found.files, found.bytes) == ("extract", 3, 10_000)
        assert (found.expected, found.lag_seconds) == (1000, 90.0) and found.lag_at is not None
        assert read_live(store, "s.t", "another run") is None
        live(events.StageBegan("s.t", "load", 500))
        live(events.StageEnded("s.t", "extract"))
        until(lambda: (r := read_live(store, "s.t", RUN)) is not None and r.stage == "load")
    until(lambda: store.get(live_path("s.t")) is None)


def test_a_table_that_is_done_is_removed_while_others_continue(store: Store) -> None:
    with LiveDocuments(store, RUN, every=0.01) as live:
        for name in ("s.t", "s.u"):
            live(events.StageBegan(name, "extract", None))
            until(lambda name=name: read_live(store, name, RUN) is not None)  # type: ignore[misc]
        live(events.Ended("s.t", TableReport("s.t")))
        until(lambda: store.get(live_path("s.t")) is None)
        assert read_live(store, "s.u", RUN) is not None


def test_a_run_that_only_plans_does_not_overwrite_the_holder_s_progress(store: Store) -> None:
    with LiveDocuments(store, RUN, every=0.001) as live:
        live(events.StageBegan("s.t", "plan", None))
        live(events.StageBegan("s.u", "extract", None))
        until(lambda: read_live(store, "s.u", RUN) is not None)
    assert store.get(live_path("s.t")) is None


def test_a_short_run_writes_nothing(store: Counting) -> None:
    with LiveDocuments(store, RUN) as live:
        live(events.StageBegan("s.t", "extract", 5))
        live(events.StageEnded("s.t", "extract"))
    assert not list(store.list("status/"))


def test_a_table_that_has_just_begun_writes_nothing_in_a_long_run_either(store: Counting) -> None:
    with LiveDocuments(store, RUN, every=60) as live:
        live(events.StageBegan("s.t", "extract", 5))
        live._begun["s.t"] -= 31
        live(events.StageBegan("s.u", "extract", 5))
        live._write()  # as the writer thread does
        assert read_live(store, "s.t", RUN) is not None
        assert store.get(live_path("s.u")) is None


def test_a_store_that_hangs_holds_nothing_up_and_one_that_refuses_is_reported_once(
    store: Counting, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.read_only = True
    with LiveDocuments(store, RUN, every=0.001) as live:
        for name in ("s.t", "s.u"):
            live(events.StageBegan(name, "extract", None))
        until(lambda: bool(caplog.records))
        time.sleep(0.05)
    assert len([r for r in caplog.records if r.levelname == "WARNING"]) == 1
    held, hanging = threading.Event(), threading.Event()

    def hang(path: str, data: bytes) -> None:
        hanging.set()
        held.wait(60)

    monkeypatch.setattr(store, "put", hang)
    began = time.monotonic()
    with LiveDocuments(store, RUN, every=0.001) as live:
        live(events.StageBegan("s.t", "extract", None))
        assert hanging.wait(30)
        for _ in range(100):
            live(events.Advanced("s.t", "extract", 1, 0, 0))
    held.set()
    assert time.monotonic() - began < 25


def test_activity_shows_the_progress_of_the_run_that_holds_the_table() -> None:
    state = synced().state
    held = Holder("r9", Owner("db1", "boot", 12, "7"), "sync", "2099", True)
    shown = activity(state, held, Live("s.t", "r9", "db1", 12, "", "", stage="load", rows=77))
    assert (shown["stage"], shown["rows"]) == ("load", 77)
    other = activity(state, held, Live("s.t", "r8", "db1", 12, "", "", stage="verify", rows=77))
    assert other["stage"] != "verify"


def test_a_table_that_has_waited_long_for_spark_is_written_only_if_the_rest_takes_long_too(
    store: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("floodmark.status.live.time.monotonic", lambda: now)
    live = LiveDocuments(store, RUN, every=30.0)
    live._stop.set()  # no thread writes but this one
    live(events.StageBegan("s.t", "plan", None))
    live(events.StageEnded("s.t", "plan"))
    now += 29
    live(events.StageBegan("s.t", "extract", 1000))
    now += 1
    live._stop.clear()
    live._write()
    assert store.writes == []
    now += 15
    live._write()
    assert store.writes == [live_path("s.t")]
