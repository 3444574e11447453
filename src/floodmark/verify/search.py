"""The search for rows that differ: digests of both sides and, where they disagree, the rows' keys and hashes.

The parts are ranges of the key if the warehouse orders keys as MySQL does, else groups (`groups`) by the first
digits of the keys' hashes. Spark tasks query the source, with the warehouse queried in parallel (`sides`). Where they
differ, the warehouse is queried once more without the rows that were already after the watermark. The results
are only suspects: `compare` checks them again.

If we hash the rows, both sides also make sketches of ranges (`sketched`), which tell the rows that differ unless they are
too many. If the servers hash, ranges that differ in few rows are first split into ever smaller ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from floodmark.load import canonical
from floodmark.load.protocol import HandsOutRows
from floodmark.model.canonical import Digest, Part, Scope, Span
from floodmark.model.events import StageBegan
from floodmark.model.row_hash import compiled, new_key
from floodmark.services import Services
from floodmark.source import ranges as edges
from floodmark.source.session import Session
from floodmark.verify import hashed, sketched
from floodmark.verify.gathered import Gathering, SearchResult
from floodmark.verify.groups import GroupSearch, digits_for
from floodmark.verify.portions import chunks, in_key_order, listings
from floodmark.verify.sides import Refused, Sides, beside

# Rows per initial range if we hash them; fewer for a table of only a few ranges, so that every core has some.
FETCHED = 250_000
FEW_FETCHED = 50_000
AT_LEAST = 4
# The same if MySQL hashes them, in ranges or in groups.
FIRST = 100_000
GROUP_FIRST = 500_000
# The number of parts into which a differing range is cut.
FANOUT = 16
# Ranges of up to this many rows are compared row by row; BROAD applies where most ranges differ.
LISTED = 500
BROAD = 20_000


def search(
    services: Services,
    scope: Scope,
    totals: Callable[[int, int], None],
    expected_rows: int | None = None,
    most: int | None = None,
) -> SearchResult:
    """Searches one table. `expected_rows`: about how many are in the scope, if known. If more than `most` are missing, it gives up."""
    if hands_out_rows(services, scope):
        try:
            return _search(services, replace(scope, hash_key=new_key()), totals, expected_rows, most)
        except Refused as refused:
            if refused.unable:
                services.workers_hash = False  # for the other tables too
    return _search(services, scope, totals, expected_rows, most)


def hands_out_rows(services: Services, scope: Scope) -> bool:
    """Whether rows can be fetched from both sides and hashed by us."""
    warehouse, table = services.warehouse(), scope.table
    if compiled is None or services.config.source.hash_on_server or not services.workers_hash:
        return False
    if not table.key:
        return False  # the reader is checked by looking some rows up, which needs a key
    types = warehouse.types(table.target) if isinstance(warehouse, HandsOutRows) else None
    return types is not None and canonical.same_values(scope, types)


def _search(
    services: Services,
    scope: Scope,
    totals: Callable[[int, int], None],
    expected_rows: int | None,
    most: int | None,
) -> SearchResult:
    table = scope.table
    gathering = Gathering(table, totals, most)
    with services.session("verify") as session:
        rows = edges.table_rows(session, table)
        services.emit(StageBegan(table.name, "verify", min(rows, expected_rows or rows)))
        few = expected_rows is not None and expected_rows <= min(FIRST, rows // 4)
        if few and table.source.cursor_index:
            scope = replace(scope, recent=True)
        spans = _spans(session, scope, rows)
    sides = Sides(services, scope)
    if scope.ordered or scope.recent or not table.key:
        RangeSearch(sides, gathering).go(spans, rows)
    else:
        GroupSearch(sides, gathering).go(spans, digits_for(rows, scope.hash_key is not None))
    return gathering.found


def _spans(session: Session, scope: Scope, rows: int) -> list[Span]:
    """The ranges to begin with."""
    table = scope.table
    step = FIRST if scope.ordered else GROUP_FIRST
    if scope.hash_key is not None:
        step = max(FEW_FETCHED, min(FETCHED, -(-rows // AT_LEAST)))
    if not table.key or not table.source.key_index or rows <= step or scope.recent:
        return [Span()]
    cuts = edges.split_key(session, table, math.ceil(rows / step), step)
    return [Span(a, b) for a, b in zip((None, *cuts), (*cuts, None), strict=True)]


class RangeSearch:
    """One search through one table by ranges of its key, or in one range: of few rows, or of a table without a key."""

    def __init__(self, sides: Sides, gathering: Gathering) -> None:
        self._sides = sides
        self._gathering = gathering

    def go(self, spans: Sequence[Span], rows: int = 0) -> None:
        """Searches these ranges, which have about so many rows."""
        if not self._sides.table.key:
            self._whole()
        elif self._sides.scope.recent:
            self._recent()
        else:
            self._by_ranges(spans, rows)

    def _whole(self) -> None:
        """A table without a key."""
        [part] = self._sides.source([self._sides.digest_job(Span())])
        [digest] = self._sides.warehouse([part.span])
        self._gathering.count([part], [digest])
        self._gathering.found.suspicious = part.digest != digest

    def _recent(self) -> None:
        """A few rows at the end of the change order."""
        parts = self._sides.source([self._sides.digest_job(Span())])
        digests = self._sides.warehouse([Span()])
        self._gathering.count(parts, digests)
        if self._differing(parts, digests):
            self._list_ranges(parts)

    def _by_ranges(self, spans: Sequence[Span], rows: int) -> None:
        if self._sides.scope.hash_key is not None:
            self._by_sketches(spans, sketched.cells_for(self._sides.scope, rows, len(spans)))
            return
        with beside(lambda stop: self._sides.warehouse(spans, stop=stop)) as asked:
            parts = self._sides.source([self._sides.digest_job(span) for span in spans])
            digests = asked.result()
        self._gathering.count(parts, digests)
        differing = self._differing(parts, digests)
        many = {p.span for p, d in zip(parts, digests, strict=True) if abs(p.digest.rows - d.rows) > FANOUT}
        # So many are missing that finer ranges would differ as well.
        leaves = [p for p in differing if p.span in many]
        differing = [p for p in differing if p.span not in many]
        while differing:
            # If most ranges differ, finer ones would differ as well: list their rows at once.
            scattered = len(parts) >= FANOUT and len(differing) > len(parts) // 2
            most = BROAD if scattered else LISTED
            leaves += [p for p in differing if p.digest.rows <= most]
            jobs = [
                self._sides.digest_job(p.span, step=max(1, -(-p.digest.rows // FANOUT)))
                for p in differing
                if p.digest.rows > most
            ]
            parts = self._sides.source(jobs)
            differing = self._differing(parts, self._sides.warehouse([part.span for part in parts]))
        self._list_ranges(leaves)

    def _by_sketches(self, spans: Sequence[Span], cells: int) -> None:
        """Takes the rows that differ from the ranges' sketches, or lists the ranges where they are too many for that."""
        with beside(lambda stop: self._sides.sketched(spans, cells, stop)) as asked:
            parts = self._sides.source([self._sides.digest_job(span, cells=cells) for span in spans])
            digests, sketches = asked.result()
        self._gathering.count(parts, digests)
        unknown: list[tuple[Part, Digest]] = []
        for part, digest, sketch in zip(parts, digests, sketches, strict=True):
            if part.digest == digest:
                continue
            found = None
            if not part.crowded:  # else only a listing can tell which rows were left out
                found = sketched.differing(self._sides.scope, part.sketch, sketch, part.beyond)
            if found is None:
                unknown.append((part, digest))
            else:
                self._gathering.suspected(found)
        # To read a range again and list it costs what digests of its parts would.
        self._list_ranges(self._differing([part for part, _ in unknown], [digest for _, digest in unknown]))

    def _differing(self, parts: Sequence[Part], digests: Sequence[Digest]) -> list[Part]:
        """The parts that disagree even without the rows that had already changed."""
        differing = [p for p, d in zip(parts, digests, strict=True) if p.digest != d]
        again = [p for p in differing if p.beyond and not p.crowded]
        settled: set[Span] = set()
        for some in chunks(again, lambda p: len(p.beyond), *self._sides.at_once):
            without = [key for p in some for key in p.beyond]
            seen = self._sides.warehouse([p.span for p in some], without)
            settled |= {p.span for p, d in zip(some, seen, strict=True) if p.digest == d}
        return [p for p in differing if p.span not in settled]

    def _list_ranges(self, leaves: Sequence[Part]) -> None:
        jobs = [self._sides.entries_job(spans) for spans in listings(in_key_order(self._sides.scope, leaves))]
        unexplained: list[Span] = []
        for listing in self._sides.results(jobs):
            if listing.rows is not None:
                theirs = self._sides.stored(listing.spans)
                some = self._gathering.suspected(hashed.differing(self._sides.scope, listing.rows, theirs))
            else:
                some = self._gathering.suspect(listing.entries, self._sides.entries(listing.spans))
            unexplained += () if some else listing.spans
        order = {span: n for n, job in enumerate(jobs) for span in job.spans}
        if not self._sides.scope.skipped:  # else sums of the warehouse include rows that were skipped
            self._gathering.settle(sorted(unexplained, key=order.__getitem__), self._still_differing)

    def _still_differing(self, spans: list[Span]) -> list[Span]:
        parts = self._sides.source([self._sides.digest_job(span) for span in spans])
        differing = self._differing(parts, self._sides.warehouse(spans))
        # If more rows were left out than are named, only the listing can tell.
        return [part.span for part in differing if not part.crowded]
