"""The Warehouse protocol: what a load asks for, what it returns, and what the ledger says.

A load is one transaction: check epoch and ledger commit by commit, write the rows, write the ledger rows,
COMMIT. So a commit is in the target exactly when it is in the ledger, whatever crashes on the way. The pure
functions of `decide` and `columns` make the decisions inside it, the same for every warehouse.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from floodmark.config.load import WarehouseSpec
from floodmark.model.commit import DataFile, LoadAs, WithFiles, by_key
from floodmark.model.ledger import Ledger, LedgerRow, LoadSum, Part, TargetFiller
from floodmark.model.names import DELETED, OURS
from floodmark.model.run import Finding, Step, Wait
from floodmark.model.table import Table
from floodmark.model.times import stamp
from floodmark.model.warehouse import named
from floodmark.store.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

    from floodmark.load.canonical import TargetSql
    from floodmark.load.columns import TargetChange

LEDGER = "floodmark_ledger"  # one row per loaded commit
TARGETS = "floodmark_targets"  # one row per target: the log whose rows it holds, and the load epoch
COUNTS = "floodmark_counts"  # one row per target: how many rows the last load left in it
FRESHNESS = "floodmark_freshness"  # one row per target: up to when it is complete
FRESHNESS_COLUMNS = ("target", "source_table", "as_of", "checked_at", "watermark", "commit_n", "run")
KEYS = "floodmark_keys_"  # + target: MySQL's weight of a text key -> the key as it is stored
HASH_FIELD = f"{OURS}hash"  # of that weight, where the table holds its hash

FEW = 500  # up to this many ledger rows are fetched rather than summed

DELETED_AT = DELETED  # in a target: when a row was found gone from the source (UTC); NULL: it is there

# A commit and the digest of its document: a number alone does not identify a commit.
Numbered = tuple[WithFiles, str]


@dataclass(frozen=True)
class LoadRequest:
    """Consecutive commits of one log, to be loaded in one transaction.

    All staged commits share one schema fingerprint, `table`'s. `retake` names ledger rows that the same
    transaction takes back: commits that must load again because earlier ones load now, or that the log has
    lost.
    """

    pipeline: str
    log: str
    table: Table
    target: str
    epoch: int
    commits: tuple[Numbered, ...]
    store: Store
    run: str
    retake: frozenset[tuple[int, str]] = frozenset()
    adopt: bool = False  # --force: take a target over, or add to rows that can't be told apart
    newest: Table | None = None  # the table as it is now: its column names, and which columns came later
    # The table as the newest loaded files were described; None: none were loaded, or they don't count.
    loaded: Table | None = None
    # The newest description that a load may have followed; None: all rows load again.
    shaped: Table | None = None
    kept: bool = False  # no row was ever deleted, so all that was loaded must still be there
    rows_to_follow: int = 0  # of later commits, which the next transactions load
    # The target has been compared with the source, or is about to be: load whatever rows it has.
    repair: bool = False
    # Called with what the load is doing, and the rows that are in so far; from any thread.
    at_work: Callable[[Step, int], None] = field(default=lambda step, rows: None, compare=False)

    @property
    def now(self) -> Table:
        return self.newest or self.table

    def keeps_rows(self, way: LoadAs) -> bool:
        """Whether existing rows stay as they are, even in columns that the files bring for the first time."""
        return not (self.repair or way == "replace" or by_key(way))

    @property
    def question(self) -> tuple[str, str, Part | None]:
        """What its decision asks the ledger: about a log, a target, and which part."""
        return self.log, self.target, self.part

    @property
    def holder(self) -> TargetFiller:
        """Whose rows the target holds after this load."""
        return TargetFiller(self.pipeline, self.log, self.table.name, self.epoch)

    def ledger_rows(self, new: Iterable[Numbered]) -> tuple[LedgerRow, ...]:
        """The ledger rows of the commits loaded now."""
        now = stamp()
        return tuple(
            LedgerRow(commit.n, digest, self.epoch, commit.rows, len(commit.files), now, self.target)
            for commit, digest in new
        )

    @property
    def part(self) -> Part | None:
        """The part of the ledger that decides this load: the rows of its commits and of all later ones."""
        first = min([commit.n for commit, _ in self.commits] + [n for n, _ in self.retake])
        return Part(self.epoch, first - 1, proven=False) if first > FEW else None


@dataclass(frozen=True)
class LoadOutcome:
    """What one transaction did."""

    loaded: tuple[LedgerRow, ...]  # the ledger rows that it wrote
    already: tuple[int, ...] = ()  # commits that the ledger already had
    retaken: frozenset[tuple[int, str]] = frozenset()
    seconds: float = 0.0
    findings: tuple[Finding, ...] = ()

    @property
    def rows(self) -> int:
        """Of the commits loaded now."""
        return sum(row.rows for row in self.loaded)

    @property
    def files(self) -> int:
        return sum(row.files for row in self.loaded)


@dataclass(frozen=True)
class Freshness:
    """Up to when a target has everything that its source had: a row of FRESHNESS, for dbt and the like.

    Derived, and only for readers: nothing that moves rows looks at it. A run writes all its targets in one go, also
    those that it found unchanged. `as_of` never goes back, even if an older run writes last.
    """

    target: str
    source_table: str
    as_of: datetime  # all that the source had then is in the target
    checked_at: datetime  # when a sync last looked
    watermark: str | None  # the cursor's own value
    commit_n: int | None
    run: str


class Warehouse(Protocol):
    """Loads commits, each exactly once."""

    schema: str
    # Bytes in files of wide rows that one load should have at most; None: wide rows need no smaller loads.
    wide_bytes: int | None

    def ledger(self, log: str, target: str, part: Part | None = None) -> Ledger:
        """What was loaded from a log, and who fills the target; empty while there is no warehouse."""

    def load_sums(self) -> list[LoadSum]:
        """The whole ledger, summed up by log and load epoch, for a run: one query, however many tables there are."""

    def ledger_sums(self, free: Callable[[], bool]) -> list[LoadSum]:
        """The whole ledger, summed up by log and load epoch, for someone who only watches.

        No load waits for it: `free` is called just before a file is opened that only one process can write to,
        and says whether nobody is about to. TransientError if it can't be had now.
        """

    def shares(self, request: LoadRequest) -> bool:
        """Whether a load is so small that it may share its transaction with those of other tables.

        Loads of several threads may then run at once.
        """

    def load(self, request: LoadRequest) -> LoadOutcome:
        """Load the commits that the ledger does not have, in one transaction.

        Idempotent. Raises ConflictError, ConfigError, DataError or TransientError with nothing changed, and
        UnknownOutcome if the answer to COMMIT was lost and the ledger can't be read.
        """

    def set_epoch(self, holder: TargetFiller, target: str, *, adopt: bool = False) -> None:
        """Begin a new load epoch, which stops loads of earlier ones; ConflictError if a later one exists."""

    def rows(self, target: str) -> int:
        """How many rows the target has; 0 when it does not exist."""

    def recount(self, pipeline: str, log: str, target: str) -> None:
        """Accept the rows that the target has now: the next load expects that many."""

    def changes(
        self,
        table: Table,
        loaded: Table | None = None,
        shaped: Table | None = None,
        *,
        first_load: bool = False,
    ) -> tuple[TargetChange, ...]:
        """The changes that a load of the table as it is now would first make to its target; makes none.

        They are in order. `loaded`: the table as the newest loaded files were described; `shaped`: the newest
        description that a load may have followed; `first_load`: before the first load. DataError, with the
        statements that an operator could run, if a change could lose values or the warehouse would refuse it,
        and if others have made a column that is new at the source, with other values; with `first_load`, also if a
        column is NOT NULL and the source may have NULL there.
        """

    def types(self, target: str) -> Mapping[str, str] | None:
        """The types of the target's columns, by lower-case name; None: there is no target."""

    def ask(self, target: str, words: Callable[[TargetSql], Sequence[str]]) -> list[tuple[Any, ...]] | None:
        """The rows that queries about the target return, one query after another; None: there is no target.

        `words` writes the queries in the warehouse's SQL, none longer than it accepts.
        """

    def note_freshness(self, rows: Sequence[Freshness]) -> None:
        """Advance these targets in `floodmark_freshness`, all at once."""

    def close(self) -> None: ...


@runtime_checkable
class HandsOutRows(Protocol):
    """A warehouse beside us, whose rows can be had as Arrow columns at little cost."""

    def hand_out(
        self,
        target: str,
        words: Callable[[TargetSql], str],
        each: Callable[[pa.RecordBatch], None],
        *,
        width: int = 0,
        at_once: bool = False,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Calls `each` with the rows that a query about the target returns, in batches, as they come.

        `width`: the most bytes that a row may have. The query may be asked several times, about a portion of the
        rows each, unless `at_once`. When `stop` says so, it ends early.
        """


def data_files(commits: tuple[Numbered, ...]) -> tuple[DataFile, ...]:
    """The files of some commits, in order."""
    return tuple(file for commit, _ in commits for file in commit.files)


def quote(*names: str) -> str:
    """A name, or a path of names, quoted for SQL."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


def open_warehouse(
    spec: WarehouseSpec,
    *,
    linger: float = 0.0,
    seconds: float | None = None,
    waits: Callable[[Wait | None], None] = lambda on: None,
) -> Warehouse:
    """A warehouse, not connected yet; its driver is imported only when needed.

    `linger`: seconds that an embedded warehouse stays open for the next use, unless it is closed sooner.
    `seconds`: for callers that would rather give up than wait; it limits every connection and every answer,
    and nothing is retried. `waits` is called when a wait for someone else's lock begins, and with None when
    it ends.
    """
    opened: Warehouse = named(spec.descriptor.opens)(spec, linger=linger, seconds=seconds, waits=waits)
    return opened
