"""What a run keeps alive, and what people see of a commit that is made while a load ends beside it."""

from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from floodmark.commit import State, draft
from floodmark.commit.held import HeldTable
from floodmark.config.load import Config, SourceSpec, StoreSpec, WarehouseSpec
from floodmark.load.background import Loader
from floodmark.model.commit import Batch, Commit
from floodmark.model.errors import TransientError
from floodmark.model.ledger import Ledger, LedgerRow
from floodmark.model.run import SyncOptions, TableReport, Unwatched
from floodmark.services.run import Services
from floodmark.sync.extraction import Extraction
from floodmark.sync.resources import Work
from floodmark.sync.run import sync
from tests.support.samples import RUN, TABLE, files


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """A folder, a DuckDB file, and a source that is away."""
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
        sync(config, [TABLE.name], False, SyncOptions(), Unwatched(), RUN)
    del caught
    assert [services() for services in shared] == [None]


def test_what_a_load_did_while_a_commit_was_written_is_shown_with_the_commit(config: Config) -> None:
    with Services(config, Unwatched(), RUN) as services:
        held, asked, report = HeldTable(services.store, TABLE.name, RUN), SyncOptions(), TableReport("")
        loader = Loader(services, Work(services, asked).pipeline, asked, held.log, held.watermark, report)
        extraction = Extraction(services, asked, held, loader, report)
        held.read()
        held.claim("sync", table=TABLE, strategy="sequential")
        first, second = (files(5, prefix=name) for name in ("first", "second"))
        extraction.append(draft(held.state, Batch, RUN, files=first, schema=TABLE.fingerprint))
        loaded = LedgerRow(held.state.n, held.state.digest, 0, 5, 1, "2099-01-01T00:00:00.000000Z")
        write = held.log.append

        def while_a_load_ends(state: State, commit: Commit) -> State:
            after = write(state, commit)
            loader.ledger = Ledger(0, (loaded,))
            return after

        held.log.append = while_a_load_ends  # type: ignore[method-assign]
        extraction.append(draft(held.state, Batch, RUN, files=second, schema=TABLE.fingerprint))
        shown = held.watermark.current(held.state, None)
        held.release()
    assert [Path(uri).name for uri in shown["pending_s3_files"]] == ["second-0.parquet"]
    assert report.commits == [2, 3] and report.files_written == 2


def test_workers_have_imported_what_slices_need_before_they_are_forked() -> None:
    program = (
        "import sys; from floodmark.services.spark.job import preload; preload(); "
        "assert {'floodmark.extract.task', 'pyarrow.parquet'} <= set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
