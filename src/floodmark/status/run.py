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
from floodmark.status.facts import StoreFacts
from floodmark.status.health import limit_of
from floodmark.status.traces import Traces, tracing
from floodmark.store.store import Store

if TYPE_CHECKING:
    from floodmark.status.alerts import Alerts
    from floodmark.status.openlineage import OpenLineage

logger = logging.getLogger("floodmark")


class Observer:
    """A subscriber that passes events on to all of them. A context manager; its exit waits a few seconds for what is being sent."""

    def __init__(self, config: Config, metrics_file: Path | None = None) -> None:
        """Raises ConfigError when a receiver of `alerts` needs an extra that is not installed."""
        self._stack = ExitStack()
        self._alerts: Alerts | None = None
        if config.alerts is not None:
            from floodmark.status.alerts import Alerts  # imports an HTTP client, which most runs don't need

            self._alerts = Alerts(config)
        found: list[Traces | OpenLineage | None] = [tracing(os.environ, config)]
        if any(name.startswith("OPENLINEAGE_") for name in os.environ):
            from floodmark.status.openlineage import lineage

            found.append(lineage(config))
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
            logger.log(level, "the metrics could not be written: %s", said)
