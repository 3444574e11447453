"""What the next load would find and do in the warehouse, asked beside the planning and never waited for long.

A warehouse that is away does not keep anybody from seeing the plan: what it did not tell is said to be unknown.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from floodmark.config import WarehouseSpec
from floodmark.described import loaded_as
from floodmark.errors import ConfigError, DataError, FloodmarkError
from floodmark.load import ledger_for, pending
from floodmark.model import Table
from floodmark.state import Log, State
from floodmark.warehouse.columns import Change
from floodmark.warehouse.open import open_warehouse

# For a warehouse behind a network, after the plan itself is made.
PATIENCE = 2.0


@dataclass(frozen=True)
class Outlook:
    """What the warehouse said."""

    changes: tuple[Change, ...] | None = None  # None: it could not be asked
    files: int | None = None  # that wait for the load, and their rows
    rows: int | None = None
    refused: FloodmarkError | None = None  # what would refuse the rows for good, with what to do
    unknown: str | None = None  # why it could not be asked


class Asking:
    """A look into the warehouse that goes on in a thread of its own."""

    def __init__(self, spec: WarehouseSpec, log: Log, state: State, table: Table) -> None:
        self._asked = (spec, log, state, table)
        self._answer = Outlook(unknown="it has not answered yet")
        self._thread = threading.Thread(target=self._ask, name="outlook", daemon=True)
        self._thread.start()

    def answer(self) -> Outlook:
        """What is known by now, or a moment later."""
        # An embedded warehouse bounds its own waits, and its native code must not be left running at exit.
        self._thread.join(PATIENCE if self._asked[0].kind == "redshift" else None)
        return self._answer

    def _ask(self) -> None:
        try:
            self._answer = _look(*self._asked)
        except FloodmarkError as error:
            self._answer = Outlook(unknown=error.message)
        except Exception as error:  # a thread's traceback would stand in the middle of the plan
            self._answer = Outlook(unknown=f"{type(error).__name__}: {error}")


def _look(spec: WarehouseSpec, log: Log, state: State, table: Table) -> Outlook:
    warehouse = open_warehouse(spec)
    try:
        ledger = ledger_for(warehouse, state, table.target)
        waiting = pending(log.data(state, ledger.rows), ledger, state.load_epoch) if state.n >= 0 else ()
        files, rows = sum(d.files for d in waiting), sum(d.rows for d in waiting)
        try:
            loaded = loaded_as(log, state, ledger)
            return Outlook(warehouse.changes(table, loaded, anew=not ledger.rows), files, rows)
        except (ConfigError, DataError) as refusal:
            return Outlook((), files, rows, refused=refusal)
    finally:
        warehouse.close()
