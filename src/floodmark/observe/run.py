"""What follows a run: alerts, and the metrics file. Neither fails a sync."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from floodmark.config.load import Config
from floodmark.model.errors import FloodmarkError
from floodmark.model.run import SyncReport
from floodmark.observe.facts import StoreFacts
from floodmark.services.store.store import Store

if TYPE_CHECKING:
    from floodmark.observe.alerts import Alerts

log = logging.getLogger("floodmark")


def _alerts(config: Config) -> Alerts:
    from floodmark.observe.alerts import Alerts  # imports an HTTP client, which most runs don't need

    return Alerts(config)


class Observer:
    """Passes on how runs end. A context manager; its exit waits a few seconds for what is being sent."""

    def __init__(self, config: Config, metrics_file: Path | None = None) -> None:
        """Raises ConfigError when a receiver of `alerts` needs an extra that is not installed."""
        self._stack = ExitStack()
        self._alerts = _alerts(config) if config.alerts is not None else None
        self._file = metrics_file
        self._facts = StoreFacts(Store(config.store))
        self._warned = False

    def __enter__(self) -> Observer:
        if self._alerts is not None:
            self._stack.enter_context(self._alerts)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def ended(self, report: SyncReport | None, error: FloodmarkError | None = None) -> None:
        """A run has ended: with a report, or with an error before its tables had their turn."""
        if self._alerts is not None:
            self._alerts.after(report, error)
        if self._file is not None:
            self._write(self._file)

    def verified(self, tables: list[str]) -> None:
        """A verify of these tables has ended."""
        if self._alerts is not None:
            self._alerts.after_verify(tables)

    def _write(self, file: Path) -> None:
        from floodmark.observe.metrics import exposition, write_file

        try:
            write_file(file, exposition(self._facts.look()))
        except FloodmarkError as error:
            level = logging.INFO if self._warned else logging.WARNING
            self._warned = True
            log.log(level, "the metrics could not be written: %s", error.message)
