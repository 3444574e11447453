"""The warehouse's side: the sums of ranges or groups of its rows, and the rows' keys and hashes.

If the scope has a key for hashes, the warehouse hands out its rows and we hash them, here in the driver; else it
hashes them itself, in SQL. Equal rows have equal hashes because both sides hand out the same Arrow values, or
print the same texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from floodmark.load import canonical
from floodmark.load.canonical import TargetSql
from floodmark.load.protocol import HandsOutRows, Warehouse
from floodmark.model.canonical import DIGITS, Digest, Scope, Span
from floodmark.model.row_hash import Sums, from_hex, groups, hashes, words
from floodmark.verify.rows import HashedRows, Listing, key_columns, key_of_hashes
from floodmark.verify.sketch import Sketch, Sketches
from floodmark.verify.task import Place

# Rows per group.
GROUP = 3000
# Ranges per query.
RANGES = 200
# Bytes per answer with keys: the Data API's limit is 500 MB, and used to be 100 MB.
ANSWER = 80_000_000
# Bytes of a value that is neither text nor bytes, at most.
NUMBER = 16


class WarehouseRows:
    """A target's rows as one scope sees them."""

    def __init__(self, warehouse: Warehouse, scope: Scope) -> None:
        self._warehouse = warehouse
        self._scope = scope

    def ask(self, words: Callable[[TargetSql], Sequence[str]]) -> list[tuple[object, ...]]:
        """The warehouse's answer; empty if the target doesn't exist."""
        return self._warehouse.ask(self._scope.table.target, words) or []

    def sums(
        self,
        spans: Sequence[Span] = (),
        digits: int = 0,
        *,
        without: Sequence[str] = (),
        prefixes: Sequence[str] = (),
        cells: int = 0,
        stop: Callable[[], bool] = lambda: False,
    ) -> tuple[dict[Place, Digest], dict[Span, Sketch]]:
        """The digests of ranges in key order or, with `digits`, of groups: of all, or at least those with these prefixes.

        They lack the rows that have the hashed keys `without`. With `cells`, also sketches of ranges. `stop` says
        that nobody wants the answer any more.
        """
        scope, sums, sketches = self._scope, dict[Place, Digest](), dict[Span, Sketch]()
        spans = () if digits else spans
        for at in range(0, len(spans) or 1, RANGES):
            if stop():
                break
            some = spans[at : at + RANGES]
            if scope.hash_key is not None:
                found, made = self._sums_by_us(some, digits, without, cells, stop)
                sketches |= made
            elif digits:
                found = summed(self.ask(lambda p: canonical.grouped(p, scope, digits, without, prefixes)))
            else:
                numbered = summed(self.ask(lambda p, some=some: canonical.digests(p, scope, some, without)))  # type: ignore[misc]
                found = {span: numbered.get(str(i), Digest()) for i, span in enumerate(some)}
            sums |= found
        return sums, sketches

    def _sums_by_us(
        self,
        spans: Sequence[Span],
        digits: int,
        without: Sequence[str],
        cells: int,
        stop: Callable[[], bool],
    ) -> tuple[dict[Place, Digest], dict[Span, Sketch]]:
        key, sums = key_of_hashes(self._scope), Sums(16**digits if digits else len(spans))
        sketches = Sketches(self._scope, cells, len(spans)) if cells else None
        # Half of each hash: should another row have the same, the sums differ, and the rows decide.
        gone = np.sort(words(from_hex(without))[:, 0])

        def each(columns: Sequence[Any]) -> None:
            *values, ranges = columns
            hashed, parts = hashes(values, key), ranges.to_numpy()
            keyed = hashes(key_columns(self._scope, values), key) if digits or without else None
            if digits:
                parts = groups(keyed, digits)
            if sketches is not None:
                sketches.add(values, hashed, parts)
            if without:
                halves = words(keyed)[:, 0]
                kept = gone[np.searchsorted(gone, halves).clip(max=len(gone) - 1)] != halves
                hashed, parts = hashed.filter(pa.array(kept)), parts[kept]
            sums.add(hashed, parts)

        self._handed_out(spans, each, stop)
        if digits:
            return dict[Place, Digest](sums.by_group(digits)), {}
        made = sketches.made() if sketches is not None else []
        return dict(zip(spans, sums.digests(), strict=True)), dict(zip(spans, made, strict=False))

    def rows(self, spans: Sequence[Span] = (), prefixes: Sequence[str] = ()) -> HashedRows:
        """The rows of ranges, or those whose hashed keys have one of the prefixes."""
        scope, listing = self._scope, Listing(self._scope)
        if scope.hash_key is not None:
            self._handed_out(spans, lambda columns: listing.add(columns[:-1], prefixes))
            return listing.rows()
        width = DIGITS + sum(form.width for form in scope.keys)
        at_once = max(1, ANSWER // (2 * GROUP * width))
        for at in range(0, len(prefixes) or 1, at_once):
            some = prefixes[at : at + at_once]
            listing.add_printed(self.ask(lambda p, some=some: canonical.entries(p, scope, spans, some)))  # type: ignore[misc]
        return listing.rows()

    def _handed_out(
        self,
        spans: Sequence[Span],
        each: Callable[[Sequence[Any]], None],
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        scope = self._scope
        assert isinstance(self._warehouse, HandsOutRows)
        self._warehouse.hand_out(
            scope.table.target,
            lambda place: canonical.fetched(place, scope, spans),
            lambda batch: each(batch.columns),
            width=sum(form.field.max_bytes + NUMBER for form in scope.forms),
            at_once=not scope.table.key,  # a difference would be reported without a second look
            stop=stop,
        )


def summed(rows: Sequence[Sequence[object]]) -> dict[Place, Digest]:
    """The digest of each part; the answer may have several rows per part."""
    found: dict[Place, Digest] = {}
    for part, count, total in rows:
        found[str(part)] = found.get(str(part), Digest()) + Digest(int(str(count)), int(str(total)))
    return found
