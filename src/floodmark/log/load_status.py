"""The load status: the warehouse ledger's rows for one log, condensed against the table's state.

Small enough to keep in the published copies, so that a watermark can be shown, with its age, while the
warehouse is unavailable. Only rows of the state's own load epoch count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from floodmark.log.fold import NO_ROWS, Counted, DataCommit, State, counted, sum_digests
from floodmark.log.spans import within
from floodmark.model.ledger import SUMMED_DIGITS, LedgerRow

# Fetches data commits from the log by number.
Lookup = Callable[[Sequence[int]], Iterable[DataCommit]]


@dataclass(frozen=True)
class Loaded:
    """The progress of the load stage over the commits up to number `n`."""

    epoch: int
    n: int
    commits: int = 0
    rows: int = 0
    files: int = 0
    live_files: int = 0  # of those, files of commits that are not superseded
    last: str | None = None
    missing: tuple[int, ...] = ()  # commits that the state lists and the ledger lacks
    older: bool = True  # the ledger has every commit that the state holds only as totals
    as_of: str | None = None  # None: just read; else when the ledger was last read ("": never)
    of_older: Counted = NO_ROWS  # if the ledger lacks some of those, the rows of the rest

    def counted(self, state: State) -> Counted:
        """Loaded rows of the state's commits, each counted once, without superseded ones."""
        older = state.data.older.counted if self.has_older(state) else self.of_older
        return counted(older, (d for d in state.live if self.has(d.n)))

    def pending(self, state: State) -> bool:
        """Whether anything is waiting to be loaded."""
        return not self.has_older(state) or any(not self.has(d.n) for d in state.live)

    def has(self, n: int) -> bool:
        """Whether a commit that the state lists is loaded."""
        return n <= self.n and n not in self.missing

    def has_older(self, state: State) -> bool:
        """Whether every commit that the state holds only as totals is loaded."""
        if state.data.older.commits == 0:
            return True
        upto, since = state.data.older.upto, state.data.superseded
        return self.older and upto <= self.n and not any(since < m <= upto for m in self.missing)


def condense(state: State, ledger: Iterable[LedgerRow], lookup: Lookup = lambda numbers: ()) -> Loaded:
    """Condenses the ledger's rows of this log to what concerns the state.

    If the ledger lacks some of the commits that the state holds only as totals, `lookup` fetches those that
    it has.
    """
    rows = [r for r in ledger if r.epoch == state.load_epoch]
    known = {(r.n, r.digest) for r in rows if not r.summed}
    numbers = {r.n for r in rows if not r.summed}
    missing = {d.n for d in state.data.commits if (d.n, d.digest) not in known}
    missing.update(
        f.n for f in state.data.recent_files if f.n <= state.data.older.upto and f.n not in numbers
    )
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
        live_files=sum(r.files for r in rows if r.n > state.data.superseded),
        last=max((r.loaded_at for r in rows), default=None),
        missing=tuple(sorted(missing)),
        older=whole,
        of_older=of_older,
    )


def _inside(state: State, ledger: Iterable[LedgerRow]) -> list[LedgerRow]:
    """The ledger's rows for the commits that the state holds only as totals."""
    return [
        r
        for r in ledger
        if r.epoch == state.load_epoch
        and state.data.superseded < r.n <= state.data.older.upto
        and not within(state.data.dropped, r.n)
    ]


def accounts_for_older(state: State, ledger: Iterable[LedgerRow]) -> bool:
    """Whether the ledger has exactly the commits that the state holds only as totals."""
    older = state.data.older
    if older.commits == 0:
        return True
    inside = _inside(state, ledger)
    # Summed ledger rows keep only the last digits of their digests' sum. The last digits of a sum depend only
    # on the last digits of its terms, and together with the number of commits they are as good as the whole.
    end = -SUMMED_DIGITS if any(r.summed for r in inside) else 0
    try:
        check = sum_digests(r.digest for r in inside)
    except ValueError:  # somebody has written something else there
        return False
    return sum(r.commits for r in inside) == older.commits and check[end:] == older.check[end:]


def last_known(state: State, last: Loaded | None, read_at: str | None) -> Loaded:
    """The load stage as last known, for when the ledger can't be read."""
    if last is None or last.epoch != state.load_epoch:
        # Not read since this epoch began: nothing is known to be loaded.
        return Loaded(state.load_epoch, -1, older=False, as_of=read_at or "")
    return replace(last, as_of=last.as_of if last.as_of is not None else read_at or "")
