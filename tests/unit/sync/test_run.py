"""What a run keeps alive, and what people see of a commit that is made just as a load ends."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from floodmark.config.load import Config, SourceSpec, StoreSpec, WarehouseSpec
from floodmark.log import pipeline
from floodmark.log.fold import State
from floodmark.log.log import draft
from floodmark.model import events
from floodmark.model.commit import Batch, Commit
from floodmark.model.errors import DataError, FloodmarkError, Interrupted, TransientError
from floodmark.model.ledger import Ledger, LedgerRow
from floodmark.model.run import SyncOptions, TableReport
from floodmark.model.times import stamp
from floodmark.model.window import Intent
from floodmark.services import Services
from floodmark.store.store import Store
from floodmark.sync import loads
from floodmark.sync.passes import append
from floodmark.sync.run import Reported, _stopped, sync
from floodmark.sync.table import sync_table
from floodmark.sync.work import Work
from tests.support.dashboards import Filled
from tests.support.samples import RUN, TABLE, files


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A folder, a DuckDB file, and an unreachable source."""
    return Config(
        tmp_path / "floodmark.yaml",
        SourceSpec("127.0.0.1", 1, "reader", "secret"),
        StoreSpec(url=str(tmp_path / "lake")),
        WarehouseSpec("duckdb", "main", tmp_path / "w.duckdb"),
    )


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_a_run_with_an_unreachable_source_leaves_nothing_to_the_garbage_collector(
    config: Config, monkeypatch: pytest.MonkeyPatch, without_collector: None
) -> None:
    begin, shared = Services.__init__, list[weakref.ref[Services]]()

    def noted(self: Services, *args: Any, **more: Any) -> None:
        begin(self, *args, **more)
        shared.append(weakref.ref(self))

    monkeypatch.setattr(Services, "__init__", noted)
    with pytest.raises(TransientError) as caught:
        sync(config, [TABLE.name], False, SyncOptions(), events.ignore, RUN)
    del caught
    assert [services() for services in shared] == [None]


def test_a_run_that_is_refused_before_its_tables_have_their_turn_leaves_a_report(config: Config) -> None:
    store = Store(config.store)
    for run in ("20261117_100000_aaaa", "20261117_100000_bbbb"):  # the second: with a pipeline
        with pytest.raises(TransientError):
            sync(config, [TABLE.name], False, SyncOptions(), events.ignore, run)
        found = json.loads(store.get(f"runs/{run}.json") or b"")
        assert (found["ok"], found["error"]["code"]) == (False, 4)
        assert [(t["table"], t["exit_code"]) for t in found["tables"]] == [(TABLE.name, 4)]
        pipeline.establish(store, config.warehouse.label, stamp())


def test_a_first_sync_that_was_refused_makes_neither_a_pipeline_nor_a_folder(config: Config) -> None:
    lake = Path(config.store.url)
    for run in ("20261117_100000_aaaa", "20261117_100000_bbbb"):
        with pytest.raises(TransientError):
            sync(config, [], True, SyncOptions(), events.ignore, run)
        assert lake.exists() == (run[-1] == "b")
        lake.mkdir(exist_ok=True)
    assert [one.path for one in Store(config.store).list("")] == ["runs/20261117_100000_bbbb.json"]


def test_a_run_that_is_refused_leaves_no_report_in_another_pipeline_s_store(config: Config) -> None:
    store = Store(config.store)
    pipeline.establish(store, "duckdb:///elsewhere.duckdb", stamp())
    with pytest.raises(FloodmarkError):
        sync(config, [TABLE.name], False, SyncOptions(), events.ignore, RUN)
    assert list(store.list("runs/")) == []


def test_a_table_whose_pipeline_can_t_be_read_is_reported_like_any_other(config: Config) -> None:
    store = Store(config.store)
    Filled(store).table(TABLE.name)
    store.put("pipeline.json", b"{")
    report = sync(config, [TABLE.name], False, SyncOptions(load_only=True), events.ignore, RUN)
    assert [one.exit_code for one in report.tables] == [6]
    assert [one.path for one in store.list("runs/")] == [f"runs/{RUN}.json"]


def test_a_copied_configuration_writes_nothing_about_the_tables_of_another_pipeline(config: Config) -> None:
    store = Store(config.store)
    pipeline.establish(store, config.warehouse.label, stamp())
    Filled(store).table(TABLE.name)
    before = [(o.path, o.modified) for o in store.list("")]
    copied = replace(config, warehouse=WarehouseSpec("duckdb", "main", config.path.with_name("other.duckdb")))
    work = Work(Services(copied, events.ignore, RUN, None), SyncOptions(load_only=True))
    report = sync_table(work.table(TABLE.name))
    assert report.exit_code == 2 and report.watermark is not None
    with pytest.raises(TransientError):  # the source is away, before any table has its turn
        sync(copied, [TABLE.name], False, SyncOptions(), events.ignore, RUN)
    assert [(o.path, o.modified) for o in store.list("")] == before


def test_a_resident_sync_that_is_refused_in_every_cycle_leaves_one_report(config: Config) -> None:
    reported = Reported()
    for run in ("20261117_100000_aaaa", "20261117_100000_bbbb"):
        with pytest.raises(TransientError):
            sync(
                config, [TABLE.name], False, SyncOptions(repeated=True), events.ignore, run, reported=reported
            )
    assert [one.path for one in Store(config.store).list("runs/")] == ["runs/20261117_100000_aaaa.json"]


def test_what_a_load_did_while_a_commit_was_written_is_shown_with_the_commit(config: Config) -> None:
    with Services(config, events.ignore, RUN) as services:
        run = Work(services, SyncOptions()).table(TABLE.name)
        held = run.held
        held.read()
        held.claim(Intent("sync", TABLE, strategy="sequential"))
        first, second = (files(5, prefix=name) for name in ("first", "second"))
        append(run, draft(held.state, Batch, RUN, files=first, schema=TABLE.fingerprint))
        loaded = LedgerRow(held.state.n, held.state.digest, 0, 5, 1, "2099-01-01T00:00:00.000000Z")
        write = held.log.append

        def while_a_load_ends(state: State, commit: Commit) -> State:
            after = write(state, commit)
            run.loads.ledger = Ledger(0, (loaded,))
            return after

        held.log.append = while_a_load_ends  # type: ignore[method-assign]
        append(run, draft(held.state, Batch, RUN, files=second, schema=TABLE.fingerprint))
        held.release()  # publishes
        shown = held.watermark.current(held.state, None)
    assert [Path(uri).name for uri in shown["pending_s3_files"]] == ["second-0.parquet"]
    assert run.report.commits == (2, 3) and run.report.files_written == 2


def test_an_extraction_does_not_wait_for_long_until_another_table_has_loaded(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loads, "PATIENCE", 0.1)
    with Services(config, events.ignore, RUN) as services:
        run = Work(services, SyncOptions()).table(TABLE.name)
        held = run.held
        held.read()
        held.claim(Intent("sync", TABLE, strategy="sequential"))
        held.append(draft(held.state, Batch, RUN, files=files(5), schema=TABLE.fingerprint))
        services.loading.acquire()  # as another table's load does
        loads.offer(run)
        answers: list[bool] = []
        asking = threading.Thread(target=lambda: answers.append(loads.caught_up(run)))
        asking.start()
        asking.join(10)
        in_time = list(answers)
        services.loading.release()
        asking.join()
        loads.abandon(run)
        held.release()
    assert in_time == [False]


def test_workers_have_imported_what_slices_need_before_they_are_forked() -> None:
    program = (
        "import sys; from floodmark.spark.job import preload; preload(); "
        "assert {'floodmark.extract.task', 'pyarrow.parquet'} <= set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_an_interrupted_run_keeps_the_errors_of_tables_that_had_failed_before(config: Config) -> None:
    failed = TableReport("s.failed", error=DataError("rows differ"))
    cut = TableReport("s.cut", error=TransientError("closed"), stopped=True)
    retired = TableReport("s.retired", left_out=True)
    pipeline.establish(Store(config.store), config.warehouse.label, stamp())
    with Services(config, events.ignore, RUN) as services:
        work = Work(services, SyncOptions())
        names = ["s.failed", "s.cut", "s.retired", "s.waiting"]
        work.ended += [failed, cut, retired]
        _stopped(work, names, Interrupted("interrupted"))
    kept = json.loads(Store(config.store).get(f"runs/{RUN}.json") or b"")["tables"]
    assert [(one["table"], one["error"]["message"]) for one in kept] == [
        ("s.failed", "rows differ"),
        ("s.cut", "interrupted"),
        ("s.waiting", "interrupted"),
    ]
