"""The Warehouse protocol: what a load asks for, what it answers, and what the ledger says.

A load is one transaction: epoch and ledger are checked commit by commit, the rows go in, the ledger rows go in,
COMMIT. So a commit is in the target exactly when it is in the ledger, whatever dies on the way. What is decided
inside that transaction is decided by the pure functions of `decide` and `columns`, for every warehouse alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from floodmark.model import Commit, DataFile, Finding, Span, Table
from floodmark.names import DELETED
from floodmark.state.loaded import SUMMED_DIGITS
from floodmark.store import Store

if TYPE_CHECKING:
    from floodmark.warehouse.canonical import Place
    from floodmark.warehouse.columns import Change

LEDGER = "floodmark_ledger"  # one row per loaded commit
TARGETS = "floodmark_targets"  # one row per target: the log whose rows it holds, and the load epoch
COUNTS = "floodmark_counts"  # one row per target: how many rows the last load left in it
KEYS = "floodmark_keys_"  # + target: MySQL's weight of a text key -> the key as it is stored

FEW = 500  # rows of a ledger that are fetched sooner than summed up

DELETED_AT = DELETED  # in a target: when a row was found gone from the source (UTC); NULL: it is there

# A commit and the digest of its document: a number alone does not identify a commit.
Numbered = tuple[Commit, str]


class LedgerRow(NamedTuple):
    """One loaded commit; or, where only sums were asked for, several. There may be many: it has to be cheap."""

    n: int
    digest: str
    epoch: int
    rows: int
    files: int
    loaded_at: str  # UTC, "2025-08-14T17:12:45.654321Z"
    target: str = ""
    # Of a row of sums `n` and `loaded_at` are the highest, `digest` is the end of the digests' sum.
    commits: int = 1
    summed: bool = False
    oldest: str = ""  # of a row of sums: the first load of commits that may still have files

    @property
    def identity(self) -> tuple[int, str]:
        return (self.n, self.digest)


@dataclass(frozen=True)
class Holder:
    """Whose rows a target holds: the newest filler of it."""

    pipeline: str
    log: str
    table: str
    epoch: int


@dataclass(frozen=True)
class Part:
    """Which rows of a log's ledger come one by one: an epoch's after a number. All others come as sums.

    So what is fetched does not grow with the history. Sums are made for each target; those of other epochs, whose
    number is then -1, and those of commits up to `superseded` are kept apart.
    """

    epoch: int
    after: int
    superseded: int = 0
    cleaned: tuple[Span, ...] = ()  # commits whose files are gone: their loads are nobody's `oldest`
    proven: bool = True  # whether the sums are to show which commits they are of


@dataclass(frozen=True)
class Ledger:
    """What the warehouse knows of one log."""

    epoch: int | None = None  # None: this log has never loaded, nor been reset
    rows: tuple[LedgerRow, ...] = ()  # every epoch's, by number
    holder: Holder | None = None  # of the target that was asked about
    part: Part | None = None  # None: every row stands for one commit
    counted: int | None = None  # rows that the last load left in the target; None: not known

    @classmethod
    def about(cls, targets: Iterable[Sequence[Any]], log: str, target: str) -> Ledger:
        """A log's load epoch and who fills a target, from rows of TARGETS: the target, then what a holder has."""
        rows = [(row[0], Holder(*row[1:])) for row in targets]
        return cls(
            max((holder.epoch for _, holder in rows if holder.log == log), default=None),
            holder=next((holder for name, holder in rows if name == target), None),
        )

    def loaded(self, epoch: int) -> frozenset[tuple[int, str]]:
        """The (number, digest) of what was loaded in an epoch, as far as it was asked for one by one."""
        return frozenset(row.identity for row in self.rows if row.epoch == epoch and not row.summed)

    @property
    def commits(self) -> int:
        """How many rows the warehouse has."""
        return sum(row.commits for row in self.rows)


@dataclass(frozen=True)
class LoadRequest:
    """Consecutive commits of one log, to be loaded in one transaction.

    All that are staged share one schema fingerprint, `table`'s. `retake` names ledger rows that are taken back in
    the same transaction: commits that must load again because earlier ones load now, or that the log has lost.
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
    newest: Table | None = None  # the table as it is now: what its columns are called, and which came later
    loaded: Table | None = (
        None  # as the newest loaded files were described; None: none were, or they don't count
    )
    kept: bool = False  # whether what was loaded must be there still: no row was ever deleted
    rows_to_follow: int = 0  # of later commits, which the next transactions load
    repair: bool = (
        False  # the target has been compared with the source, or is about to be: whatever rows it has
    )

    @property
    def now(self) -> Table:
        return self.newest or self.table

    @property
    def part(self) -> Part | None:
        """What of the ledger decides about this load: the rows of its commits and of all after them."""
        first = min([commit.n for commit, _ in self.commits] + [n for n, _ in self.retake])
        return Part(self.epoch, first - 1, proven=False) if first > FEW else None


@dataclass(frozen=True)
class LoadOutcome:
    """What one transaction did."""

    loaded: tuple[LedgerRow, ...]  # the ledger rows that it wrote
    already: tuple[int, ...] = ()  # commits that the ledger had
    retaken: frozenset[tuple[int, str]] = frozenset()
    rows: int = 0  # of the commits loaded now
    files: int = 0
    seconds: float = 0.0
    findings: tuple[Finding, ...] = field(default=())


class Warehouse(Protocol):
    """A place that takes commits exactly once."""

    schema: str

    def ledger(self, log: str, target: str, part: Part | None = None) -> Ledger:
        """What was loaded of a log, and who fills the target; empty when there is no warehouse yet."""

    def load(self, request: LoadRequest) -> LoadOutcome:
        """Load the commits that the ledger does not have, in one transaction.

        Idempotent. Raises ConflictError, ConfigError, DataError or TransientError with nothing changed, and
        UnknownOutcome when COMMIT was not answered and the ledger can't be read.
        """

    def set_epoch(
        self, pipeline: str, log: str, table: str, target: str, epoch: int, *, adopt: bool = False
    ) -> None:
        """Begin a new load epoch; loads of an earlier one stop. A later epoch than this one is a ConflictError."""

    def rows(self, target: str) -> int:
        """How many rows the target has; 0 when it is not there."""

    def recount(self, log: str, target: str) -> None:
        """Accept the rows that the target has now: the next load expects as many."""

    def changes(self, table: Table, loaded: Table | None = None, *, anew: bool = False) -> tuple[Change, ...]:
        """What a load of the table as it is now would do to its target first, in order; nothing is changed.

        `loaded`: the table as the newest loaded files were described. DataError, with the statements that a person could
        run, where it could lose values or the warehouse would refuse it; `anew`, before the first load, also where the
        target takes no NULL and the source may have one.
        """

    def ask(self, target: str, words: Callable[[Place], Sequence[str]]) -> list[tuple[Any, ...]] | None:
        """The answers to questions about the target, one behind the other; None: there is no target.

        The questions are put in the warehouse's own words, none of them longer than it takes.
        """

    def close(self) -> None: ...


def summed(
    n: Any, total: Any, epoch: Any, rows: Any, files: Any, at: Any, target: Any, commits: Any, oldest: Any
) -> LedgerRow:
    """A row of sums, from a warehouse's answer; `total` is the sum of the digests' last digits, None: not proven."""
    digest = "" if total is None else f"{int(total) % 16**SUMMED_DIGITS:0{SUMMED_DIGITS}x}"
    return LedgerRow(
        int(n), digest, int(epoch), int(rows), int(files), str(at), str(target), int(commits), True, oldest or ""
    )  # fmt: skip


def data_files(commits: tuple[Numbered, ...]) -> tuple[DataFile, ...]:
    """The files of some commits, in order."""
    return tuple(file for commit, _ in commits for file in commit.files)


def quote(*names: str) -> str:
    """A name, or a path of names, as SQL reads it whatever is in it."""
    return ".".join('"' + name.replace('"', '""') + '"' for name in names)


__all__ = [
    "COUNTS", "DELETED_AT", "KEYS", "LEDGER", "TARGETS", "Holder", "Ledger", "LedgerRow", "LoadOutcome", "LoadRequest", "Numbered",
    "Part", "Warehouse", "data_files", "quote", "summed",
]  # fmt: skip
