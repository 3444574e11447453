"""What surrounds a run: alerts, the metrics file, its trace and its lineage. None of them fails a sync."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from floodmark.commit.health import limit_of
from floodmark.config.load import Config
from floodmark.model.errors import FloodmarkError
from floodmark.model.run import SyncReport
from floodmark.model.secrets import Scrubber
from floodmark.observe import traces
from floodmark.observe.facts import StoreFacts
from floodmark.services.store.store import Store

if TYPE_CHECKING:
    from floodmark.observe.alerts import Alerts
    from floodmark.observe.openlineage import OpenLineage

log = logging.getLogger("floodmark")


def _alerts(config: Config) -> Alerts:
    from floodmark.observe.alerts import Alerts  # imports an HTTP client, which most runs don't need

    return Alerts(config)


def _traces(config: Config, command: str, run: Callable[[], str]) -> traces.Traces | None:
    """The traces that the environment enables; None, and a log line that says why, if there can't be any."""
    if (why := traces.missing(os.environ)) is not None:
        log.warning(why)
        return None
    scrub = Scrubber()
    scrub.learn(config)
    try:
        return traces.Traces(command, os.environ, scrub, run)
    except Exception as error:  # one of the variables has a value that OpenTelemetry does not take
        log.warning("no traces are sent: OpenTelemetry rejects its settings (%s)", type(error).__name__)
        return None


def _lineage(config: Config) -> OpenLineage | None:
    if not any(name.startswith("OPENLINEAGE_") for name in os.environ):
        return None
    from floodmark.observe.openlineage import OpenLineage, missing, wanted

    if not wanted():
        return None
    if (why := missing()) is not None:
        log.warning(why)
        return None
    return OpenLineage(config)


class Observer:
    """Passes on how runs begin and end. A context manager; its exit waits a few seconds for what is being sent."""

    def __init__(
        self,
        config: Config,
        metrics_file: Path | None = None,
        *,
        command: str = "sync",
        run: Callable[[], str] = lambda: "",
    ) -> None:
        """Raises ConfigError when a receiver of `alerts` needs an extra that is not installed.

        `command` and `run` name the trace: what was run, and the run's id.
        """
        self._stack = ExitStack()
        self._alerts = _alerts(config) if config.alerts is not None else None
        self._traces = _traces(config, command, run) if traces.wanted(os.environ) else None
        self._lineage = _lineage(config)
        self._file = metrics_file
        self._facts = StoreFacts(Store(config.store))
        self._limits = partial(limit_of, config)
        self._warned = False

    def __enter__(self) -> Observer:
        if self._alerts is not None:
            self._stack.enter_context(self._alerts)
        if self._traces is not None:
            self._stack.enter_context(self._traces)
        if self._lineage is not None:
            self._stack.enter_context(self._lineage)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def began(self, run: str) -> None:
        """A run begins."""
        if self._lineage is not None:
            self._lineage.began(run)

    def ended(self, report: SyncReport | None, error: FloodmarkError | None = None) -> None:
        """A run has ended: with a report, or with an error before its tables had their turn."""
        if self._traces is not None:
            self._traces.ended(report, error)
        if self._lineage is not None:
            self._lineage.ended(report)
        if self._alerts is not None:
            self._alerts.after(report, error)
        if self._file is not None:
            self._write(self._file)

    def verified(self, run: str, results: Sequence[Mapping[str, Any]], code: int) -> None:
        """A verify has ended, with these results of its tables and this exit code."""
        if self._traces is not None:
            self._traces.ended(None, code=code)
        if self._lineage is not None:
            self._lineage.verified(run, results)
        if self._alerts is not None:
            self._alerts.after_verify([str(one["table"]) for one in results if not one["error"]])

    def _write(self, file: Path) -> None:
        from floodmark.observe.metrics import exposition, write_file

        try:
            write_file(file, exposition(self._facts.look(), self._limits))
        except FloodmarkError as error:
            level = logging.INFO if self._warned else logging.WARNING
            self._warned = True
            log.log(level, "the metrics could not be written: %s", error.message)
