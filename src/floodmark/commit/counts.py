"""Row counts, and the totals of data commits that a state no longer lists individually. Pure.

Rows of windows and rows read outside them are counted separately; keys of deleted rows are not counted. A
complete snapshot replaces all rows before it, so it restarts the count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from floodmark.model.commit import GivenUp, by_key

if TYPE_CHECKING:
    from floodmark.commit.fold import DataCommit


class Counted(NamedTuple):
    """Row counts as shown to people."""

    rows: int = 0  # of windows
    reread: int = 0  # read outside windows, most of them for the second time


NO_ROWS = Counted()


def counted(so_far: Counted, data: Iterable[DataCommit | GivenUp]) -> Counted:
    """The count after these data commits, in log order."""
    rows, reread = so_far
    for d in data:
        if d.load_as == "replace":
            rows, reread = d.rows, 0
        elif d.beside and not by_key(d.load_as):
            reread += d.rows
        elif not by_key(d.load_as):
            rows += d.rows
    return Counted(rows, reread)


def _without(count: Counted, gone: GivenUp) -> Counted:
    one = counted(NO_ROWS, (gone,))
    return Counted(max(0, count.rows - one.rows), max(0, count.reread - one.reread))


@dataclass(frozen=True)
class Older:
    """Totals of the data commits up to `upto`, which are no longer listed; superseded ones excluded."""

    upto: int = 0
    commits: int = 0
    rows: int = 0
    files: int = 0
    bytes: int = 0
    check: str = ""  # sum of the digests: equal only for the same set of commits
    counted: Counted = NO_ROWS
    extracted: Counted = NO_ROWS  # the same since the last reset of the extraction

    def plus(self, d: DataCommit, *, extracted: bool) -> Older:
        """The totals including the next commit."""
        return Older(
            d.n,
            self.commits + 1,
            self.rows + d.rows,
            self.files + d.files,
            self.bytes + d.bytes,
            sum_digests([self.check, d.digest]),
            counted(self.counted, (d,)),
            counted(self.extracted, (d,)) if extracted else self.extracted,
        )

    def minus(self, gone: GivenUp, *, extracted: bool) -> Older:
        """The totals without a commit that was given up."""
        return replace(
            self,
            commits=self.commits - 1,
            rows=self.rows - gone.rows,
            files=self.files - gone.files,
            bytes=self.bytes - gone.bytes,
            check=without_digest(self.check, gone.digest),
            counted=_without(self.counted, gone),
            extracted=_without(self.extracted, gone) if extracted else self.extracted,
        )


NOTHING_OLDER = Older()


def sum_digests(digests: Iterable[str]) -> str:
    """The sum of the digests: equal for equal sets, in any order."""
    return f"{sum(int(d or '0', 16) for d in digests) % (1 << 256):064x}"


def without_digest(check: str, digest: str) -> str:
    """The sum of digests without one of them."""
    return f"{(int(check or '0', 16) - int(digest, 16)) % (1 << 256):064x}"
