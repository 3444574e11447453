"""What surrounds a run: alerts, the metrics file, its trace and its lineage. None of them fails a sync."""

from __future__ import annotations

import logging
import os
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floodmark.config.load import Config
from floodmark.model.errors import FloodmarkError
from floodmark.model.events import Compared, Event, RunEnded
from floodmark.model.secrets import Scrubber
from floodmark.status import traces
from floodmark.status.facts import StoreFacts
from floodmark.status.health import limit_of
from floodmark.store.store import Store

if TYPE_CHECKING:
    from floodmark.status.alerts import Alerts
    from floodmark.status.openlineage import OpenLineage

log = logging.getLogger("floodmark")


def _traces(config: Config) -> traces.Traces | None:
    """The traces that the environment enables; None, and a log line that says why, if there can't be any."""
    if (why := traces.missing(os.environ)) is not None:
        log.warning(why)
        return None
    try:
        return traces.Traces(os.environ, Scrubber.of(config))
    except Exception as error:  # one of the variables has a value that OpenTelemetry does not take
        log.warning("no traces are sent: OpenTelemetry rejects its settings (%s)", type(error).__name__)
        return None


def _lineage(config: Config) -> OpenLineage | None:
    if not any(name.startswith("OPENLINEAGE_") for name in os.environ):
        return None
    from floodmark.status.openlineage import OpenLineage, missing, wanted

    if not wanted():
        return None
    if (why := missing()) is not None:
        log.warning(why)
        return None
    return OpenLineage(config)


class Observer:
    """A subscriber that passes events on to all of them. A context manager; its exit waits a few seconds for what is being sent."""

    def __init__(self, config: Config, metrics_file: Path | None = None) -> None:
        """Raises ConfigError when a receiver of `alerts` needs an extra that is not installed."""
        self._stack = ExitStack()
        self._alerts: Alerts | None = None
        if config.alerts is not None:
            from floodmark.status.alerts import Alerts  # imports an HTTP client, which most runs don't need

            self._alerts = Alerts(config)
        found = (_traces(config) if traces.wanted(os.environ) else None, _lineage(config))
        self._subscribers = [one for one in found if one is not None]
        self._file = metrics_file
        self._facts = StoreFacts(Store(config.store), partial(limit_of, config))
        self._warned = False

    def __enter__(self) -> Observer:
        for one in (self._alerts, *self._subscribers):
            if one is not None:
                self._stack.enter_context(one)
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def __call__(self, event: Event) -> None:
        for subscriber in self._subscribers:
            subscriber(event)
        match event:
            case RunEnded(_, report, error):
                if self._alerts is not None:
                    self._alerts.after(report, error)
                if self._file is not None:
                    self._write(self._file)
            case Compared(_, _, results) if self._alerts is not None:
                self._alerts.after_verify([str(one["table"]) for one in results if not one["error"]])

    def _write(self, file: Path) -> None:
        from floodmark.status.metrics import exposition, write_file

        try:
            write_file(file, exposition(self._facts.look()))
        except Exception as error:
            level = logging.INFO if self._warned else logging.WARNING
            self._warned = True
            said = error.message if isinstance(error, FloodmarkError) else type(error).__name__
            log.log(level, "the metrics could not be written: %s", said)
