"""Loads of everything pending, without a run around them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from floodmark.load.pending import Choice, choose_pending, requests
from floodmark.load.protocol import LoadOutcome, Warehouse
from floodmark.log.fold import State
from floodmark.log.log import Log
from floodmark.model.ledger import Ledger
from floodmark.model.run import Finding


@dataclass(frozen=True)
class Done:
    """What was chosen and loaded, and the ledger as it is then."""

    choice: Choice
    ledger: Ledger
    outcomes: tuple[LoadOutcome, ...]

    @property
    def commits(self) -> tuple[int, ...]:
        return tuple(row.n for one in self.outcomes for row in one.loaded)

    @property
    def rows(self) -> int:
        return sum(one.rows for one in self.outcomes)

    @property
    def files(self) -> int:
        return sum(one.files for one in self.outcomes)

    @property
    def findings(self) -> tuple[Finding, ...]:
        return (*self.choice.findings, *(found for one in self.outcomes for found in one.findings))


def load_pending(
    warehouse: Warehouse, log: Log, state: State, run: str = "r", adopt: bool = False, **choosing: Any
) -> Done:
    """Loads what a run would load now, for the pipeline `p`."""
    choice = choose_pending(warehouse, log, state, "p", adopt=adopt, **choosing)
    ledger, outcomes = choice.ledger, list[LoadOutcome]()
    for request in requests(log, state, choice, "p", run, wide_bytes=warehouse.wide_bytes, adopt=adopt):
        outcomes.append(done := warehouse.load(request))
        ledger = ledger.after(state.load_epoch, done.retaken, done.loaded)
    return Done(choice, ledger, tuple(outcomes))
