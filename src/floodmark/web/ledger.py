"""What the warehouse's ledger says, for the dashboard: queried rarely, in the background, and never at a sync's expense.

A DuckDB file is opened only while nobody holds a table, and for 100 ms at most. Redshift is queried only shortly after a
run has published something, when it is awake anyway. If the ledger can't be read, the pages say so.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Literal

from floodmark.config.load import WarehouseSpec
from floodmark.load.protocol import open_warehouse
from floodmark.log.lease import LeaseNote, lives
from floodmark.log.status import parse
from floodmark.model.errors import FloodmarkError
from floodmark.model.ledger import LoadSum
from floodmark.model.times import stamp
from floodmark.status.health import Mark
from floodmark.store.store import Store

log = logging.getLogger("floodmark")

REDSHIFT_SECONDS = 10.0  # for a connection, and for the answer
REDSHIFT_EVERY = timedelta(minutes=10)
AWAKE = timedelta(minutes=10)  # after something was published, Redshift still is
DUCKDB_AFTER = timedelta(seconds=15)  # something was published
DUCKDB_EVERY = timedelta(minutes=5)
AGAIN = timedelta(seconds=30)  # after it could not be had

Agreement = Literal["same", "more", "fewer"]


@dataclass(frozen=True)
class LedgerSeen:
    """What the ledger last said; `problem`: why it is not newer."""

    at: str | None = None  # None: it has not been queried, or never answered
    sums: Mapping[tuple[str, int], LoadSum] = field(default_factory=dict)
    problem: str | None = None
    off: bool = False  # it must not be queried


NOT_ASKED = LedgerSeen()


@dataclass(frozen=True)
class Loads:
    """A table's loads as the ledger has them, beside what was published."""

    at: str
    commits: int
    files: int
    published: int  # commits

    @property
    def agreement(self) -> Agreement:
        return (
            "same" if self.commits == self.published else "more" if self.commits > self.published else "fewer"
        )


def loads_of(mark: Mark, seen: LedgerSeen) -> Loads | None:
    """A table's loads; None where they are not known, or what was published is newer."""
    epoch, commits, _ = mark.loads
    saved = mark.document.get("backup_metadata", {}).get("saved_at")
    if seen.at is None or not mark.log or not isinstance(saved, str) or saved > seen.at:
        return None
    if epoch != mark.load_epoch:
        return None
    found = seen.sums.get((mark.log, epoch))
    known = (found.commits, found.files) if found else (0, 0)
    return Loads(seen.at, *known, published=commits)


def waiting(mark: Mark, loads: Loads | None) -> int:
    """How many files wait: as published, corrected by what the ledger has or lacks beyond that."""
    if loads is None or loads.agreement == "same":
        return mark.pending_files
    return max(0, mark.pending_files + mark.loads[2] - loads.files)


def due(
    embedded: bool,
    now: datetime,
    *,
    tried: datetime | None,
    failed: bool,
    asked_of: object,
    published: object,
    published_at: datetime | None,
    held: bool,
) -> bool:
    """Whether to query it now. `published` identifies what runs have published, `asked_of` what they had when it last answered."""
    new = published != asked_of
    if not embedded:
        awake = published_at is not None and now - published_at < AWAKE
        return new and awake and (tried is None or now - tried >= REDSHIFT_EVERY)
    if held:
        return False
    if tried is None:
        return True
    return now - tried >= (AGAIN if failed else DUCKDB_AFTER if new else DUCKDB_EVERY)


class LedgerWatch:
    """Queries the ledger in a thread of its own, when it is due."""

    def __init__(
        self, store: Store, spec: WarehouseSpec, scrub: Callable[[str], str], on: bool = True
    ) -> None:
        self._store = store
        self._spec = spec
        self._scrub = scrub
        self._lock = threading.Lock()
        self._seen = LedgerSeen(off=not on)
        self._tried: datetime | None = None
        self._asked_of: object = None
        self._thread: threading.Thread | None = None

    def now(self, published: object, published_at: datetime | None, held: bool) -> LedgerSeen:
        """What was last seen, at once; starts a query if it is due."""
        with self._lock:
            busy = self._thread is not None and self._thread.is_alive()
            wanted = not self._seen.off and not busy and due(
                self._spec.can.embedded, datetime.now(UTC), tried=self._tried, failed=self._seen.problem is not None,
                asked_of=self._asked_of, published=published, published_at=published_at, held=held,
            )  # fmt: skip
            if wanted:
                self._tried = datetime.now(UTC)
                self._thread = threading.Thread(
                    target=self._ask, args=(published,), name="ledger", daemon=True
                )
                self._thread.start()
            return self._seen

    def wait(self) -> None:
        """Waits for the answer if the ledger is being queried; that has a time limit."""
        if self._thread is not None:
            self._thread.join()

    def _ask(self, published: object) -> None:
        began = stamp()
        try:
            warehouse = open_warehouse(self._spec, seconds=REDSHIFT_SECONDS)
            try:
                found = warehouse.ledger_sums(self._nobody_holds_a_table)
            finally:
                warehouse.close()
            seen = LedgerSeen(began, {(one.log, one.epoch): one for one in found})
        except FloodmarkError as error:
            seen = replace(self._seen, problem=self._scrub(error.message))
        except Exception as error:  # a driver's surprise must not end the dashboard
            log.debug("ledger", exc_info=True)
            seen = replace(self._seen, problem=type(error).__name__)
        with self._lock:
            self._seen = seen
            if seen.problem is None:
                self._asked_of = published

    def _nobody_holds_a_table(self) -> bool:
        notes = (parse(LeaseNote, self._store.get(one.path)) for one in self._store.list("leases/"))
        return not any(note is not None and lives(note) for note in notes)
