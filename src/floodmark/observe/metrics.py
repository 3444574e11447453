"""The facts as Prometheus metrics: their names, their text, and the file for node_exporter. Nothing is counted here.

Every value comes from the store, so a restart resets nothing; a table that was reset begins at 0 again, as counters may.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from floodmark import __version__
from floodmark.model.errors import ConfigError
from floodmark.observe.facts import Facts, TableFacts, moment

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

Value = float | None


def exposition(facts: Facts) -> bytes:
    """The facts in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(facts))
    return generate_latest(registry)


def write_file(path: Path, text: bytes) -> None:
    """Writes the file whole or not at all, readable by everyone: node_exporter runs as another user."""
    part = path.with_name(f".{path.name}.{uuid4().hex[:8]}")  # not *.prom: the collector must not see it
    try:
        try:
            part.write_bytes(text)
            part.chmod(0o644)
            os.replace(part, path)
        except OSError as error:
            raise ConfigError(
                f"can't write {path}: {error.strerror}",
                hint="check --metrics-file and the folder's permissions",
            ) from None
    finally:
        with contextlib.suppress(OSError):
            part.unlink(missing_ok=True)


class _Collector(Collector):
    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    def collect(self) -> Iterable[Metric]:
        yield from families(self._facts)


def families(facts: Facts) -> Iterator[Metric]:
    """Every metric with its samples; those without any are included, with their help."""
    tables = facts.tables
    for name, text, value in _GAUGES:
        yield _labelled(GaugeMetricFamily(name, text, labels=("table",)), tables, value)
    for name, text, value in _COUNTERS:
        yield _labelled(CounterMetricFamily(name, text, labels=("table",)), tables, value)
    seconds = GaugeMetricFamily(
        "floodmark_run_duration_seconds",
        "Seconds of the last run that did something, by stage; loads run in parallel with the extraction.",
        labels=("table", "stage"),
    )
    runs = CounterMetricFamily(
        "floodmark_runs", "Runs by exit code, including idle ones.", labels=("table", "exit_code")
    )
    for table in tables:
        if table.check is not None and table.check.work is not None:
            work = table.check.work
            for stage, spent in sorted({**work.stages, "total": work.seconds}.items()):
                seconds.add_metric((table.table, stage), spent)
        if table.check is not None:
            for code, count in sorted(table.check.total.exit_codes.items()):
                runs.add_metric((table.table, code), count)
    yield seconds
    yield runs
    recoveries = CounterMetricFamily(
        "floodmark_recoveries",
        "Recoveries of watermarks on record in the store (30 days), by what they were recovered from.",
        labels=("source",),
    )
    for source, count in sorted(facts.recoveries.items()):
        recoveries.add_metric((source,), count)
    yield recoveries
    took = GaugeMetricFamily("floodmark_recovery_seconds", "Seconds that the latest recovery took.")
    if facts.recovery_seconds is not None:
        took.add_metric((), facts.recovery_seconds)
    yield took
    copies = GaugeMetricFamily(
        "floodmark_copies_bytes", "Bytes of the daily and session copies of watermarks."
    )
    copies.add_metric((), facts.copies_bytes)
    yield copies
    yield InfoMetricFamily("floodmark_build", "The version of Floodmark.", value={"version": __version__})


M = TypeVar("M", GaugeMetricFamily, CounterMetricFamily)


def _labelled(family: M, tables: Iterable[TableFacts], value: Callable[[TableFacts], Value]) -> M:
    for table in tables:
        if (number := value(table)) is not None:
            family.add_metric((table.table,), number)
    return family


def _lag(table: TableFacts) -> Value:
    return table.check.lag.seconds if table.check and table.check.lag else None


def _lag_ids(table: TableFacts) -> Value:
    return table.check.lag.ids if table.check and table.check.lag else None


_GAUGES: tuple[tuple[str, str, Callable[[TableFacts], Value]], ...] = (
    ("floodmark_lag_seconds", "How far the table was behind its source when a sync last caught up.", _lag),
    ("floodmark_lag_ids", "The same for tables read by id: ids behind the newest row.", _lag_ids),
    (
        "floodmark_last_success_timestamp_seconds",
        "When a run of the table last ended with exit code 0.",
        lambda t: moment(t.check.success_at) if t.check else None,
    ),
    (
        "floodmark_last_check_timestamp_seconds",
        "When a sync last checked the source for rows to read.",
        lambda t: moment(t.check.last_check_time) if t.check else None,
    ),
    (
        "floodmark_watermark_timestamp_seconds",
        "The cursor's own time up to which rows were extracted.",
        lambda t: t.mark.position_at if t.mark else None,
    ),
    (
        "floodmark_pending_files",
        "Files waiting to be loaded.",
        lambda t: t.mark.pending_files if t.mark else None,
    ),
    (
        "floodmark_pending_rows",
        "Rows of the files waiting to be loaded.",
        lambda t: t.mark.pending_rows if t.mark else None,
    ),
    (
        "floodmark_verify_differences",
        "Rows that the last verify found missing, extra or different.",
        lambda t: t.verify.differences if t.verify else None,
    ),
    (
        "floodmark_verify_timestamp_seconds",
        "When the last verify ended.",
        lambda t: moment(t.verify.at) if t.verify else None,
    ),
)

_COUNTERS: tuple[tuple[str, str, Callable[[TableFacts], Value]], ...] = (
    (
        "floodmark_rows_extracted",
        "Rows read from the source since the last reset, including those read again.",
        lambda t: t.mark.rows_extracted if t.mark else None,
    ),
    (
        "floodmark_rows_loaded",
        "Rows of the commits in the warehouse's ledger since the last reset.",
        lambda t: t.mark.rows_loaded if t.mark else None,
    ),
    (
        "floodmark_rows_deleted",
        "Rows that were deleted, or marked as deleted, because the source no longer has them.",
        lambda t: t.check.total.rows_deleted if t.check else None,
    ),
    (
        "floodmark_bytes_written",
        "Bytes of the data files written since the last reset.",
        lambda t: t.mark.bytes_written if t.mark else None,
    ),
)
