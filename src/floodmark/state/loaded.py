"""What the warehouse's ledger says of one log, condensed against the table's state.

Small enough to be kept in the published copies, so that a watermark can be shown, with its age, when the
warehouse is away. Only rows of the state's own load epoch count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from floodmark.state.fold import DataCommit, State
from floodmark.state.older import NO_ROWS, Counted, counted, sum_digests
from floodmark.state.spans import within

# Of a digest, the last hex digits, of which a warehouse makes sums: as many as fit into 64 bits with a sign.
SUMMED_DIGITS = 15


# Data commits as the log has them, by their numbers.
Lookup = Callable[[Sequence[int]], Iterable[DataCommit]]


class LedgerRow(Protocol):
    """One loaded commit as the warehouse gives it, or the sums of several: then `digest` is the end of theirs."""

    @property
    def n(self) -> int: ...
    @property
    def digest(self) -> str: ...
    @property
    def epoch(self) -> int: ...
    @property
    def rows(self) -> int: ...
    @property
    def files(self) -> int: ...
    @property
    def loaded_at(self) -> str: ...
    @property
    def commits(self) -> int: ...
    @property
    def summed(self) -> bool: ...


@dataclass(frozen=True)
class Loaded:
    """How far the load stage is, for the commits up to number `n`."""

    epoch: int
    n: int
    commits: int = 0
    rows: int = 0
    files: int = 0
    live_files: int = 0  # of those, files of commits that are not superseded
    last: str | None = None
    missing: tuple[int, ...] = ()  # commits that the state names and the ledger does not have
    older: bool = True  # the ledger has every commit that the state only sums up
    as_of: str | None = None  # None: asked just now; else when the ledger was last read ("": never)
    of_older: Counted = NO_ROWS  # where it lacks some of those, the rows of the others

    def counted(self, state: State) -> Counted:
        """Rows of the state's commits that are loaded, each counted once; superseded ones are not among them."""
        if not state.apart:
            return Counted(self.rows)
        older = state.older.counted if self.has_older(state) else self.of_older
        return counted(older, (d for d in state.live if self.has(d.n)))

    def pending(self, state: State) -> bool:
        """Whether anything waits to be loaded."""
        return not self.has_older(state) or any(not self.has(d.n) for d in state.live)

    def has(self, n: int) -> bool:
        """Whether a commit that the state names is loaded."""
        return n <= self.n and n not in self.missing

    def has_older(self, state: State) -> bool:
        """Whether every commit that the state only sums up is loaded."""
        if state.older.commits == 0:
            return True
        upto, since = state.older.upto, state.superseded
        return self.older and upto <= self.n and not any(since < m <= upto for m in self.missing)


def condense(state: State, ledger: Iterable[LedgerRow], lookup: Lookup = lambda numbers: ()) -> Loaded:
    """The ledger's rows of this log, as far as they concern the state.

    `lookup` is asked only where the ledger lacks commits that the state only sums up, for those that it has.
    """
    rows = [r for r in ledger if r.epoch == state.load_epoch]
    known = {(r.n, r.digest) for r in rows if not r.summed}
    numbers = {r.n for r in rows if not r.summed}
    missing = {d.n for d in state.data if (d.n, d.digest) not in known}
    missing.update(f.n for f in state.recent_files if f.n <= state.older.upto and f.n not in numbers)
    whole = accounts_for_older(state, rows)
    of_older = NO_ROWS
    if not whole:
        some = sorted(r.n for r in _inside(state, rows) if not r.summed)
        of_older = counted(of_older, (d for d in lookup(some) if (d.n, d.digest) in known))
    return Loaded(
        epoch=state.load_epoch,
        n=state.n,
        commits=sum(r.commits for r in rows),
        rows=sum(r.rows for r in rows),
        files=sum(r.files for r in rows),
        live_files=sum(r.files for r in rows if r.n > state.superseded),
        last=max((r.loaded_at for r in rows), default=None),
        missing=tuple(sorted(missing)),
        older=whole,
        of_older=of_older,
    )


def _inside(state: State, ledger: Iterable[LedgerRow]) -> list[LedgerRow]:
    """The ledger's rows of the commits that the state only sums up."""
    return [
        r
        for r in ledger
        if r.epoch == state.load_epoch
        and state.superseded < r.n <= state.older.upto
        and not within(state.dropped, r.n)
    ]


def accounts_for_older(state: State, ledger: Iterable[LedgerRow]) -> bool:
    """Whether the ledger has exactly the commits that the state only sums up."""
    older = state.older
    if older.commits == 0:
        return True
    inside = _inside(state, ledger)
    # The end of a sum is the sum of the ends; with the number of commits it is as good as the whole.
    end = -SUMMED_DIGITS if any(r.summed for r in inside) else 0
    try:
        check = sum_digests(r.digest for r in inside)
    except ValueError:  # what somebody wrote there is no digest
        return False
    return sum(r.commits for r in inside) == older.commits and check[end:] == older.check[end:]


def carried(state: State, last: Loaded | None, read_at: str | None) -> Loaded:
    """The load stage as it was last known, when the ledger can't be asked now."""
    if last is None or last.epoch != state.load_epoch:
        # Never asked since this epoch began: nothing is known to be loaded.
        return Loaded(state.load_epoch, -1, older=False, as_of=read_at or "")
    return replace(last, as_of=last.as_of if last.as_of is not None else read_at or "")


def unloaded(
    commits: Iterable[DataCommit], ledger: Iterable[LedgerRow], epoch: int
) -> tuple[DataCommit, ...]:
    """The given commits without those in the ledger and the superseded ones, in order."""
    known = {(r.n, r.digest) for r in ledger if r.epoch == epoch}
    return tuple(d for d in commits if not d.superseded and (d.n, d.digest) not in known)
