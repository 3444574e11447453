"""What the next load would find and do in the warehouse, queried during planning with a short timeout.

An unavailable warehouse does not hold up the plan: whatever it did not answer is shown as unknown.
"""

from __future__ import annotations

import threading
from contextlib import closing
from dataclasses import dataclass

from floodmark.commit.fold import State
from floodmark.commit.log import Log
from floodmark.config.load import WarehouseSpec
from floodmark.load.descriptions import loaded_as, shaped
from floodmark.load.pending import ledger_for, pending
from floodmark.model.errors import ConfigError, DataError, FloodmarkError
from floodmark.model.table import Table
from floodmark.services.warehouse.columns import Change
from floodmark.services.warehouse.open import open_warehouse
from floodmark.services.warehouse.protocol import Warehouse

# Seconds to wait for a remote warehouse once the plan itself is ready.
PATIENCE = 2.0


@dataclass(frozen=True)
class LoadPreview:
    """The warehouse's answer."""

    changes: tuple[Change, ...] | None = None  # None: the warehouse could not be queried
    files: int | None = None  # files waiting to load, and their rows
    rows: int | None = None
    refused: FloodmarkError | None = None  # the error, with its hint, if the load would refuse the rows
    unknown: str | None = None  # why the warehouse could not be queried


class Asking:
    """A query of the warehouse in a background thread."""

    def __init__(self, spec: WarehouseSpec, log: Log, state: State, table: Table) -> None:
        self._asked = (spec, log, state, table)
        self._answer = LoadPreview(unknown="it has not answered yet")
        self._thread = threading.Thread(target=self._ask, name="load-preview", daemon=True)
        self._thread.start()

    def answer(self) -> LoadPreview:
        """The answer so far, after a short wait."""
        # An embedded warehouse limits its own waits, and its native code must not be left running at exit.
        self._thread.join(PATIENCE if self._asked[0].kind == "redshift" else None)
        return self._answer

    def _ask(self) -> None:
        spec, log, state, table = self._asked
        try:
            with closing(open_warehouse(spec)) as warehouse:
                self._answer = look(warehouse, log, state, table)
        except FloodmarkError as error:
            self._answer = LoadPreview(unknown=error.message)
        except Exception as error:  # a thread's traceback would end up in the middle of the plan
            self._answer = LoadPreview(unknown=f"{type(error).__name__}: {error}")


def look(warehouse: Warehouse, log: Log, state: State, table: Table) -> LoadPreview:
    """What a load of the table would find and do; an unavailable warehouse gives `unknown`, not an error."""
    try:
        ledger = ledger_for(warehouse, state, table.target)
        waiting = pending(log.data(state, ledger.rows), ledger, state.load_epoch) if state.n >= 0 else ()
        files, rows = sum(d.files for d in waiting), sum(d.rows for d in waiting)
        try:
            loaded = loaded_as(log, state, ledger)
            before = shaped(log, state, ledger).table or state.table
            made = warehouse.changes(table, loaded, before, first_load=not ledger.rows)
            return LoadPreview(made, files, rows)
        except (ConfigError, DataError) as refusal:
            if log.read().digest != state.digest:
                return LoadPreview(None, files, rows, unknown="another run is changing the table")
            return LoadPreview((), files, rows, refused=refusal)
    except ConfigError:
        raise
    except FloodmarkError as error:
        return LoadPreview(unknown=error.message)
