"""Spark that begins to start before the sync: only if a table was never synced, and told of once."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from floodmark.config.load import Config, StoreSpec
from floodmark.log.document import commit_path, primary_path
from floodmark.model.errors import TransientError
from floodmark.model.run import SyncOptions
from floodmark.spark import context
from floodmark.spark.context import WarmSpark
from floodmark.store.store import Store
from floodmark.sync import early
from floodmark.sync.early import early_spark, never_synced
from tests.support.dashboards import config_of


@pytest.fixture
def config(tmp_path: Path) -> Config:
    """One table of the store has been synced, s.t."""
    config = config_of(tmp_path)
    config = replace(config, source=replace(config.source, database=None))
    store = Store(config.store)
    store.put(commit_path("s.t", 0), b"{}")
    store.put(primary_path("s.t"), b"{}")
    return config


class Starts:
    """Stands in for Spark: counts its starts."""

    count = 0

    def __init__(self, *_: object, **__: object) -> None:
        self.trains = False

    def start(self) -> None:
        Starts.count += 1

    def stop(self) -> None:
        pass


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> type[Starts]:
    monkeypatch.setattr(context, "Spark", Starts)
    monkeypatch.setattr(Starts, "count", 0)
    return Starts


@pytest.mark.parametrize(
    ("names", "all_tables", "expected"),
    [
        (["s.t"], False, False),
        (["s.t", "s.new"], False, True),
        (["S.T"], False, False),  # MySQL may fold the case of names
        (["new"], False, False),  # only the source knows its schema
        ([], True, False),
    ],
)
def test_a_table_without_a_watermark_was_never_synced(
    config: Config, names: list[str], all_tables: bool, expected: bool
) -> None:
    assert never_synced(config, names, all_tables) is expected


def test_the_schema_of_the_source_completes_a_name(config: Config) -> None:
    here = replace(config, source=replace(config.source, database="s"))
    assert not never_synced(here, ["t"], False) and never_synced(here, ["new"], False)


def test_no_table_of_an_empty_store_was_ever_synced(config: Config, tmp_path: Path) -> None:
    empty = replace(config, store=StoreSpec(url=str(tmp_path / "elsewhere")))
    assert never_synced(empty, [], True) and never_synced(empty, ["s.t"], False)


def test_a_store_that_does_not_answer_starts_nothing(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> None:
        raise TransientError("the store is away")

    monkeypatch.setattr(Store, "folders", away)
    assert not never_synced(config, [], True)


@pytest.mark.parametrize("options", [SyncOptions(dry_run=True), SyncOptions(load_only=True)])
def test_a_sync_that_reads_no_rows_does_not_even_ask(
    config: Config, starts: type[Starts], options: SyncOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(early, "never_synced", lambda *_: pytest.fail("asked"))
    with early_spark(config, ["s.new"], False, options, "run") as spark:
        assert spark.one_run
    assert starts.count == 0


def test_spark_starts_once_and_the_sync_says_so(config: Config, starts: type[Starts]) -> None:
    said: list[str] = []
    with early_spark(config, ["s.new"], False, SyncOptions(), "run") as spark:
        for _ in range(2):
            spark.warm_up(lambda: said.append("starting Spark"))
        spark.get()
    assert (starts.count, said) == (1, ["starting Spark"])


def test_an_answer_that_comes_after_the_end_starts_nothing(config: Config, starts: type[Starts]) -> None:
    answer, answered = threading.Event(), threading.Event()

    def needed() -> bool:
        assert answer.wait(10)
        answered.set()
        return True

    with WarmSpark(config, "test") as spark:
        spark.warm_up_if(needed)
    answer.set()
    assert answered.wait(10)
    for thread in threading.enumerate():
        if thread.name == "early spark":
            thread.join(10)
    assert starts.count == 0


def test_nothing_heavy_is_imported_before_spark_may_start() -> None:
    heavy = "{'pyarrow', 'numpy', 'pyspark', 'duckdb'}"
    program = f"import sys, floodmark.sync.early; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
