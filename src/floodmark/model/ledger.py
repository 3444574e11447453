"""The warehouse ledger's rows for a log: one per loaded commit, or totals over many. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from floodmark.model.commit import Span

# The last hex digits of a digest, which a warehouse sums: as many as fit into a signed 64-bit integer.
SUMMED_DIGITS = 15


class LedgerRow(NamedTuple):
    """One loaded commit or, in a row of totals, several. There may be many rows, so they must be cheap."""

    n: int
    digest: str
    epoch: int
    rows: int
    files: int
    loaded_at: str  # UTC, "2025-08-14T17:12:45.654321Z"
    target: str = ""
    # In a row of totals, `n` and `loaded_at` are the highest; `digest` is the last digits of the digests' sum.
    commits: int = 1
    summed: bool = False
    oldest: str = ""  # in a row of totals: the first load of commits that may still have files

    @property
    def identity(self) -> tuple[int, str]:
        return (self.n, self.digest)


@dataclass(frozen=True)
class TargetFiller:
    """The log that most recently loaded into a target."""

    pipeline: str
    log: str
    table: str
    epoch: int


@dataclass(frozen=True)
class Part:
    """Which ledger rows of a log to fetch individually: an epoch's after a number. The rest come as totals.

    So the amount fetched does not grow with the history. Totals are per target; other epochs (with number -1)
    and commits up to `superseded` have totals of their own.
    """

    epoch: int
    after: int
    superseded: int = 0
    cleaned: tuple[Span, ...] = ()  # commits whose files are gone: their loads don't count for `oldest`
    proven: bool = True  # whether totals must include the digests' sum, to prove which commits they cover


@dataclass(frozen=True)
class Ledger:
    """What the warehouse knows about one log."""

    epoch: int | None = None  # None: this log was never loaded or reset
    rows: tuple[LedgerRow, ...] = ()  # of every epoch, by number
    holder: TargetFiller | None = None  # the filler of the requested target
    part: Part | None = None  # None: every row stands for one commit
    counted: int | None = None  # rows in the target after the last load; None: unknown

    @classmethod
    def about(cls, targets: Iterable[Sequence[Any]], log: str, target: str) -> Ledger:
        """A log's load epoch and a target's filler, from rows of TARGETS (target, then a filler's fields)."""
        rows = [(row[0], TargetFiller(*row[1:])) for row in targets]
        return cls(
            max((holder.epoch for _, holder in rows if holder.log == log), default=None),
            holder=next((holder for name, holder in rows if name == target), None),
        )

    def loaded(self, epoch: int) -> frozenset[tuple[int, str]]:
        """The (number, digest) of every individually fetched commit loaded in an epoch."""
        return frozenset(row.identity for row in self.rows if row.epoch == epoch and not row.summed)

    def last(self, target: str, epoch: int | None) -> tuple[int, str | None]:
        """How many commits of an epoch are in a target, and when the last of them was loaded."""
        there = [row for row in self.rows if row.target == target and row.epoch == epoch]
        return sum(row.commits for row in there), max((row.loaded_at or "" for row in there), default=None)

    def after(self, epoch: int, retaken: frozenset[tuple[int, str]], loaded: Sequence[LedgerRow]) -> Ledger:
        """The ledger after a load in an epoch, without querying it again."""
        kept = [row for row in self.rows if not (row.epoch == epoch and row.identity in retaken)]
        return replace(self, epoch=epoch, rows=(*kept, *loaded))

    @property
    def commits(self) -> int:
        """How many commits the ledger has."""
        return sum(row.commits for row in self.rows)


@dataclass(frozen=True)
class LoadSum:
    """All that the ledger has of one log in one load epoch, summed up."""

    log: str
    epoch: int
    commits: int
    rows: int
    files: int
    loaded_at: str  # of the last load


def summed(
    n: Any, total: Any, epoch: Any, rows: Any, files: Any, at: Any, target: Any, commits: Any, oldest: Any
) -> LedgerRow:
    """A row of totals from a query; `total` is the sum of the digests' last digits, None: not proven."""
    digest = "" if total is None else f"{int(total) % 16**SUMMED_DIGITS:0{SUMMED_DIGITS}x}"
    return LedgerRow(
        int(n), digest, int(epoch), int(rows), int(files), str(at), str(target), int(commits), True, oldest or ""
    )  # fmt: skip
