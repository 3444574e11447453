"""Ledgers for read-only commands: an unavailable warehouse is not an error."""

from __future__ import annotations

from floodmark.config.load import Config
from floodmark.load.pending import ledger_for
from floodmark.load.protocol import Warehouse, open_warehouse
from floodmark.log import pipeline
from floodmark.log.fold import State
from floodmark.model.errors import FloodmarkError, TransientError
from floodmark.model.ledger import Ledger
from floodmark.store.store import Store


class Ledgers:
    """Reads tables' ledgers; an unavailable warehouse is tried only once, for at most `seconds`."""

    def __init__(self, config: Config, seconds: float | None = None) -> None:
        self._config = config
        self._seconds = seconds
        self._warehouse: Warehouse | None = None
        self._away = False

    def of(self, state: State, *, whole: bool = True) -> Ledger | None:
        """A table's ledger, whole or just what a watermark needs; None if it can't be read now."""
        if state.table is None:
            return Ledger()
        if self._away:
            return None
        try:
            if self._warehouse is None:
                # In a warehouse other than the pipeline's, everything would seem pending.
                pipeline.check(Store(self._config.store), self._config.warehouse.label)
                self._warehouse = open_warehouse(self._config.warehouse, seconds=self._seconds)
            return ledger_for(self._warehouse, state, state.table.target, whole=whole)
        except FloodmarkError as error:
            self._away = isinstance(error, TransientError) or self._warehouse is None
            return None

    def __enter__(self) -> Ledgers:
        return self

    def __exit__(self, *error: object) -> None:
        if self._warehouse is not None:
            self._warehouse.close()


def ledger_of(config: Config, state: State) -> Ledger | None:
    """The part of a table's ledger that a watermark needs; None if it can't be read now."""
    with Ledgers(config) as ledgers:
        return ledgers.of(state, whole=False)
