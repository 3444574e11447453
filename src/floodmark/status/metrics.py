"""The facts as Prometheus metrics: their names, their text, and the file for node_exporter. Nothing is counted here.

Every value comes from the store, so a restart resets nothing; a table that was reset begins at 0 again, as counters may.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from floodmark import __version__
from floodmark.host.temp import whole_file
from floodmark.log.status import LastVerify, TableStatus
from floodmark.status.facts import AllFacts
from floodmark.status.health import Mark, TableFacts, judge, moment

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

Value = float | None
Samples = Callable[
    [AllFacts], Iterable[tuple[tuple[str, ...], Value]]
]  # the labels' values, and the sample's
P = TypeVar("P")


def exposition(facts: AllFacts) -> bytes:
    """The facts in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(facts))
    return generate_latest(registry)


def write_file(path: Path, text: bytes) -> None:
    """Writes the file whole or not at all, readable by everyone: node_exporter runs as another user."""
    with whole_file(path, replaces=True) as part:
        part.write_bytes(text)
        part.chmod(0o644)


@dataclass(frozen=True, eq=False)
class _Collector(Collector):
    facts: AllFacts

    def collect(self) -> Iterable[Metric]:
        yield from families(self.facts)


def families(facts: AllFacts) -> Iterator[Metric]:
    """Every metric with its samples; those without any are included, with their help."""
    for one in _METRICS:
        family = one.kind(f"floodmark_{one.name}", one.help, labels=one.labels)
        for labels, value in one.samples(facts):
            if value is not None:
                family.add_metric(labels, value)
        yield family
    yield InfoMetricFamily("floodmark_build", "The version of Floodmark.", value={"version": __version__})


@dataclass(frozen=True)
class _Row:
    """One metric. Prometheus adds `_total` to a counter's name."""

    kind: type[GaugeMetricFamily] | type[CounterMetricFamily]
    name: str
    help: str
    samples: Samples
    labels: tuple[str, ...] = ("table",)


def _by_table(part: Callable[[TableFacts], P | None], value: Callable[[P], Value]) -> Samples:
    """One sample for each table of which the store has this part."""

    def samples(facts: AllFacts) -> Iterator[tuple[tuple[str, ...], Value]]:
        for table in facts.tables:
            if (known := part(table)) is not None:
                yield (table.table,), value(known)

    return samples


def _status(value: Callable[[TableStatus], Value]) -> Samples:
    return _by_table(lambda table: table.status, value)


def _mark(value: Callable[[Mark], Value]) -> Samples:
    return _by_table(lambda table: table.mark, value)


def _verify(value: Callable[[LastVerify], Value]) -> Samples:
    return _by_table(lambda table: table.status.verify if table.status else None, value)


def _states(facts: AllFacts) -> Iterator[tuple[tuple[str, ...], Value]]:
    now = datetime.now(UTC)
    for table in facts.tables:
        yield (table.table, judge(table, facts.limit(table.table), now).word), 1


def _durations(facts: AllFacts) -> Iterator[tuple[tuple[str, ...], Value]]:
    for table in facts.tables:
        if table.status is not None and (work := table.status.work) is not None:
            for stage, seconds in sorted({**work.stage_seconds, "total": work.seconds}.items()):
                yield (table.table, stage), seconds


def _runs(facts: AllFacts) -> Iterator[tuple[tuple[str, ...], Value]]:
    for table in facts.tables:
        for code, count in sorted(table.status.total.exit_codes.items()) if table.status else ():
            yield (table.table, code), count


def _seconds(at: str | None) -> Value:
    """Seconds since 1970."""
    found = moment(at)
    return None if found is None else found.timestamp()


def _recoveries(facts: AllFacts) -> Iterator[tuple[tuple[str, ...], Value]]:
    counts = Counter((one.source or "nothing", "yes" if one.success else "no") for one in facts.recoveries)
    yield from sorted(counts.items())


def _last_recoveries(facts: AllFacts) -> Iterator[tuple[tuple[str, ...], Value]]:
    latest = {one.source or "nothing": _seconds(one.at) for one in facts.recoveries}  # the oldest come first
    yield from (((source,), at) for source, at in sorted(latest.items()))


def _recovery_seconds(facts: AllFacts) -> Iterator[tuple[tuple[str, ...], Value]]:
    if took := [one.seconds for one in facts.recoveries]:
        yield from ((("average",), sum(took) / len(took)), (("latest",), took[-1]), (("worst",), max(took)))


_GAUGE, _COUNTER = GaugeMetricFamily, CounterMetricFamily
# fmt: off
_METRICS = (
    _Row(_GAUGE, "table_state", "1 for the table's present state, the word that the dashboard shows.", _states, ("table", "state")),
    _Row(_GAUGE, "lag_seconds", "How far the table was behind its source when a sync last caught up.", _status(lambda c: c.lag.seconds if c.lag else None)),
    _Row(_GAUGE, "lag_ids", "The same for tables read by id: ids behind the newest row.", _status(lambda c: c.lag.ids if c.lag else None)),
    _Row(_GAUGE, "last_success_timestamp_seconds", "When a run of the table last ended with exit code 0.", _status(lambda c: _seconds(c.success_at))),
    _Row(_GAUGE, "last_check_timestamp_seconds", "When a sync last checked the source for rows to read.", _status(lambda c: _seconds(c.last_check_time))),
    _Row(_GAUGE, "watermark_timestamp_seconds", "The cursor's own time up to which rows were extracted.", _mark(lambda m: m.position_at)),
    _Row(_GAUGE, "pending_files", "Files waiting to be loaded.", _mark(lambda m: m.pending_files)),
    _Row(_GAUGE, "pending_rows", "Rows of the files waiting to be loaded.", _mark(lambda m: m.pending_rows)),
    _Row(_GAUGE, "verify_differences", "Rows that the last verify found missing, extra or different.", _verify(lambda v: v.differences)),
    _Row(_GAUGE, "verify_timestamp_seconds", "When the last verify ended.", _verify(lambda v: _seconds(v.at))),
    _Row(_COUNTER, "rows_extracted", "Rows read from the source since the last reset, including those read again.", _mark(lambda m: m.rows_extracted)),
    _Row(_COUNTER, "rows_loaded", "Rows of the commits in the warehouse's ledger since the last reset.", _mark(lambda m: m.rows_loaded)),
    _Row(_COUNTER, "rows_deleted", "Rows that were deleted, or marked as deleted, because the source no longer has them.", _status(lambda c: c.total.rows_deleted)),
    _Row(_COUNTER, "bytes_written", "Bytes of the data files written since the last reset.", _mark(lambda m: m.bytes_written)),
    _Row(_GAUGE, "run_duration_seconds", "Seconds of the last run that did something, by stage; loads run in parallel with the extraction.", _durations, ("table", "stage")),
    _Row(_COUNTER, "runs", "Runs by exit code, including idle ones.", _runs, ("table", "exit_code")),
    _Row(_GAUGE, "recoveries", "Recoveries of watermarks in the last 30 days, by what they were recovered from, and whether they succeeded.", _recoveries, ("source", "success")),
    _Row(_GAUGE, "recovery_seconds", "Seconds that recoveries of the last 30 days took: on average, the latest, the worst.", _recovery_seconds, ("of",)),
    _Row(_GAUGE, "recovery_timestamp_seconds", "When the latest recovery ended, by what it was recovered from.", _last_recoveries, ("source",)),
    _Row(_GAUGE, "copies_bytes", "Bytes of the daily and session copies of watermarks.", lambda f: (((), f.copies_bytes),), ()),
)
# fmt: on
