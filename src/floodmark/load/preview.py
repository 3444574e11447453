"""The warehouse for commands that only read: what the next load would find and do, and tables' ledgers.

Changes nothing. An unavailable warehouse holds nobody up: whatever it did not answer is unknown.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass, replace

from floodmark.config.load import Config, WarehouseSpec
from floodmark.load.columns import TargetChange
from floodmark.load.decide import check_elsewhere, check_holder
from floodmark.load.descriptions import loaded_as, shaped
from floodmark.load.pending import ledger_for, pending
from floodmark.load.protocol import Warehouse, open_warehouse
from floodmark.log import pipeline as pipelines
from floodmark.log.fold import State
from floodmark.log.log import Log
from floodmark.model.errors import ConfigError, DataError, FloodmarkError, TransientError
from floodmark.model.ledger import Ledger
from floodmark.model.table import Table
from floodmark.store.store import Store

# Seconds that a command which only reads waits for each of the warehouse's answers.
PATIENCE = 4.0


@dataclass(frozen=True)
class LoadPreview:
    """The warehouse's answer."""

    changes: tuple[TargetChange, ...] | None = None  # None: the warehouse could not be queried
    files: int | None = None  # files waiting to load, and their rows
    rows: int | None = None
    refused: FloodmarkError | None = None  # the error, with its hint, if the load would refuse the rows
    unknown: str | None = None  # why the warehouse could not be queried
    ledger: Ledger | None = None


def look(
    warehouse: Warehouse, log: Log, state: State, table: Table, pipeline: str | None, *, count: bool = True
) -> LoadPreview:
    """What a load of the table would find and do; ConfigError if the warehouse can't be used at all.

    `pipeline` is ours, "" before the first sync; None: the target may be another one's. `count`: also the
    files that wait.
    """
    try:
        ledger = ledger_for(warehouse, state, table.target)
        seen = LoadPreview(ledger=ledger)
        if count:
            data = log.data(state, ledger.rows) if state.n >= 0 else ()
            waiting = pending(data, ledger, state.load_epoch)
            seen = replace(seen, files=sum(d.files for d in waiting), rows=sum(d.rows for d in waiting))
        try:
            loaded = loaded_as(log, state, ledger)
            before = shaped(log, state, ledger).table or state.table
            made = warehouse.changes(table, loaded, before, first_load=not ledger.rows)
            check_elsewhere(ledger, state.load_epoch, table.name, table.target)
            if pipeline is not None:
                check_holder(ledger.holder, pipeline, state.log, table.name, table.target)
            return replace(seen, changes=made)
        except (ConfigError, DataError) as refusal:
            if log.read().digest != state.digest:
                return replace(seen, unknown="another run is changing the table")
            return replace(seen, changes=(), refused=refusal)
    except ConfigError:
        raise
    except FloodmarkError as error:
        return LoadPreview(unknown=error.message)


def look_briefly(
    spec: WarehouseSpec, log: Log, state: State, table: Table, pipeline: str | None
) -> LoadPreview:
    """The same for a command that only reads: whatever is wrong with the warehouse itself is `unknown`."""
    try:
        with closing(open_warehouse(spec, seconds=PATIENCE)) as warehouse:
            return look(warehouse, log, state, table, pipeline)
    except FloodmarkError as error:
        return LoadPreview(unknown=error.message)


class Ledgers:
    """Reads tables' ledgers; an unavailable warehouse is tried only once, for at most `seconds`."""

    def __init__(self, config: Config, seconds: float | None = None) -> None:
        self._config = config
        self._seconds = seconds
        self._warehouse: Warehouse | None = None
        self._away = False

    def of(self, state: State, *, whole: bool = True) -> Ledger | None:
        """A table's ledger, whole or just what a watermark needs; None if it can't be read now."""
        if self._away and state.table is not None:
            return None
        try:
            return self.read(state, whole=whole)
        except FloodmarkError as error:
            self._away = isinstance(error, TransientError) or self._warehouse is None
            return None

    def read(self, state: State, *, whole: bool = True) -> Ledger:
        """The same for a command that can't do without: raises if it can't be read now."""
        if state.table is None:
            return Ledger()
        if self._warehouse is None:
            # In a warehouse other than the pipeline's, everything would seem pending.
            pipelines.check(Store(self._config.store), self._config.warehouse.label)
            self._warehouse = open_warehouse(self._config.warehouse, seconds=self._seconds)
        return ledger_for(self._warehouse, state, state.table.target, whole=whole)

    def __enter__(self) -> Ledgers:
        return self

    def __exit__(self, *error: object) -> None:
        if self._warehouse is not None:
            self._warehouse.close()


def ledger_of(config: Config, state: State) -> Ledger | None:
    """The part of a table's ledger that a watermark needs; None if it can't be read now."""
    with Ledgers(config) as ledgers:
        return ledgers.of(state, whole=False)
