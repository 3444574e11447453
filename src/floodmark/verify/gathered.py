"""What a search finds as it goes: counts, suspects, and when there are too many missing rows to go on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from floodmark.model.canonical import Digest, Entry, Part, Printed
from floodmark.model.errors import DataError
from floodmark.model.table import Table
from floodmark.verify.portions import suspects

P = TypeVar("P")

# How many times sums that differ without a suspect are computed again, and the seconds before each.
TRIES = 3
PAUSE = 1.0


@dataclass
class SearchResult:
    """What a search has found."""

    suspects: dict[Printed, bool] = field(default_factory=dict)  # and whether the warehouse has listed it
    sample: list[Printed] = field(default_factory=list)  # keys of some rows that we have hashed
    source: Digest = field(default_factory=Digest)
    warehouse: Digest = field(default_factory=Digest)
    beyond: int = 0  # rows of the source that were left out
    suspicious: bool = False  # sums differ though no row is suspect, or the table has no key to name one


class Gathering:
    """The result of a search while it runs."""

    def __init__(self, table: Table, totals: Callable[[int, int], None], most: int | None = None) -> None:
        """`totals` receives the rows of both sides, and may raise; `most`: missing rows to hold at most."""
        self.found = SearchResult()
        self._table = table
        self._totals = totals
        self._most = most
        self._missing = 0

    def count(self, parts: Sequence[Part], digests: Sequence[Digest]) -> None:
        """Counts the rows of ranges on both sides."""
        self.found.sample += [key for part in parts for key in part.sample]
        self.found.source = sum((p.digest for p in parts), Digest())
        self.found.warehouse = sum(digests, Digest())
        self.found.beyond = sum(p.left_out for p in parts)
        self.tell()

    def tell(self) -> None:
        """Reports the rows of both sides; raises if too many are missing."""
        self._totals(self.found.source.rows + self.found.beyond, self.found.warehouse.rows)
        self._check(self.found.source.rows - self.found.warehouse.rows)

    def settle(self, parts: P, again: Callable[[P], P]) -> None:
        """Judges parts whose sums differed though none of their rows did: rows may have changed in between."""
        for _ in range(TRIES):
            if not parts:
                return
            time.sleep(PAUSE)
            parts = again(parts)
        self.found.suspicious |= bool(parts)

    def suspect(self, listed: Sequence[Entry], stored: Iterable[Sequence[object]]) -> bool:
        """Adds the suspects among rows that the servers have hashed; returns whether there are any."""
        theirs = [(tuple(None if k is None else str(k) for k in keys), str(h)) for h, *keys in stored]
        found = dict.fromkeys(suspects(listed, theirs), False)
        return self.suspected(found | {key: True for key, _ in theirs if key in found})

    def suspected(self, found: Mapping[Printed, bool]) -> bool:
        """Adds suspects, and whether the warehouse has each; returns whether there are any."""
        self._missing += sum(not there for there in found.values())
        self._check(self._missing)
        self.found.suspects |= found
        return bool(found)

    def _check(self, missing: int) -> None:
        if self._most is not None and missing > self._most:
            raise DataError(
                f"at least {missing:,} rows that were read are missing from {self._table.target}: too many to look up one by one",
                hint=f"load all files again: floodmark watermark reset -t {self._table.name} --redshift-only; "
                f"or compare every row: floodmark verify -t {self._table.name} --repair",
                table=self._table.name,
            )
