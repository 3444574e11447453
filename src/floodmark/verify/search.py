"""The search for rows that differ: sums of both sides and, where they disagree, the rows' keys and hashes.

The rows are summed by ranges of the key if the warehouse orders keys as MySQL does, else by groups: the first digits
of the keys' hashes. Spark tasks query the source (`task`) with the warehouse queried in parallel (`warehouse`). Where
they differ, the warehouse is queried once more without the rows that were already after the watermark, and by smaller
pieces if MySQL has summed such. The rows of what still differs are listed. The results are only suspects: `compare`
checks them again.

If we hash the rows, both sides also make sketches of ranges (`sketch`), which tell the rows that differ unless they are
too many.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

from floodmark.load import canonical
from floodmark.load.protocol import HandsOutRows
from floodmark.model.canonical import Digest, Printed, Scope, Span
from floodmark.model.errors import DataError
from floodmark.model.events import Advanced, StageBegan
from floodmark.model.row_hash import compiled, new_key
from floodmark.services import Services
from floodmark.source import ranges as edges
from floodmark.source.session import Session
from floodmark.verify import rows, sketch
from floodmark.verify.task import Place, SourceJob, SourceRows
from floodmark.verify.warehouse import GROUP, RANGES, WarehouseRows

T = TypeVar("T")

# Rows per initial range if we hash them; fewer for a table of only a few ranges, so that every core has some.
FETCHED = 250_000
FEW_FETCHED = 50_000
AT_LEAST = 4
# The same if MySQL hashes them, in ranges or in groups.
FIRST = 100_000
GROUP_FIRST = 500_000
# More digits would make more groups than are worth returning.
MOST_DIGITS = 5
# Rows and ranges listed by one task; rows listed at once if they are in groups: 16 bytes each, and their keys.
LISTING = 50_000
SPANS = 20
IN_MEMORY = 5_000_000
# Left-out keys per query to the warehouse, if SQL has to name them.
LEFT_OUT = 2000
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


def search(
    services: Services,
    scope: Scope,
    totals: Callable[[int, int], None],
    expected_rows: int | None = None,
    most: int | None = None,
) -> SearchResult:
    """Searches one table. `expected_rows`: about how many are in the scope, if known. If more than `most` are missing, it gives up.

    `totals` receives the rows of both sides, and may raise.
    """
    if hands_out_rows(services, scope):
        with suppress(RefusedRows):  # then the servers hash
            return _search(services, replace(scope, hash_key=new_key()), totals, expected_rows, most)
    return _search(services, scope, totals, expected_rows, most)


def hands_out_rows(services: Services, scope: Scope) -> bool:
    """Whether rows can be fetched from both sides and hashed by us."""
    warehouse, table = services.warehouse(), scope.table
    if compiled is None or services.config.source.hash_on_server:
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
    with services.session("verify") as session:
        rows = edges.table_rows(session, table)
        services.emit(StageBegan(table.name, "verify", min(rows, expected_rows or rows)))
        few = expected_rows is not None and expected_rows <= min(FIRST, rows // 4)
        if few and table.source.cursor_index:
            scope = replace(scope, recent=True)
        spans = _spans(session, scope, rows)
    return Search(services, scope, totals, most).run(spans, rows)


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


class RefusedRows(Exception):
    """A worker can't hash some rows as we do: the search begins anew, and the servers hash."""


class Search:
    """One search through one table: by ranges, in one range of few rows or of a table without a key, or by groups."""

    def __init__(
        self,
        services: Services,
        scope: Scope,
        totals: Callable[[int, int], None] = lambda source, warehouse: None,
        most: int | None = None,
    ) -> None:
        self.found = SearchResult()
        self._services = services
        self._scope = scope
        self._table = scope.table
        self._warehouse = WarehouseRows(services.warehouse(), scope)
        self._totals = totals
        self._most = most
        self._missing = 0
        self._digits = self._cells = 0
        self._stored: dict[Place, Digest] = {}  # the warehouse's sums, as last seen

    def run(self, spans: Sequence[Span], rows: int) -> SearchResult:
        """Searches these ranges, which have about so many rows."""
        scope, by_us = self._scope, self._scope.hash_key is not None
        if self._table.key and not scope.recent:
            if not scope.ordered:
                self._digits = digits_for(rows, by_us)
            elif by_us:
                self._cells = sketch.cells_for(scope, rows, len(spans))
        differing = self._differing(spans, first=True)
        if not self._table.key:
            self.found.suspicious = bool(differing)
            return self.found
        unexplained = self._list(spans, differing)
        if not scope.skipped:  # else sums of the warehouse include rows that were skipped
            self._settle(spans, unexplained)
        return self.found

    # ------------------------------------------------------------ the sums of both sides

    def _differing(self, spans: Sequence[Span], first: bool = False) -> list[SourceRows]:
        """What disagrees even without the rows that had already changed: ranges with their pieces, or groups.

        At first, both sides are counted, and the rows of ranges whose sketches tell them become suspects.
        """
        cells = self._cells if first else 0
        with beside(lambda stop: self._warehouse.sums(spans, self._digits, cells=cells, stop=stop)) as asked:
            mine = self._source(spans, cells)
            theirs, sketches = asked.result()
        self._stored = theirs
        if first:
            self.found.sample = [key for some in mine for key in some.sample]
            self.found.source = sum((some.digest for some in mine), Digest())
            self.found.warehouse = sum(theirs.values(), Digest())
            self.found.beyond = sum(some.left_out for some in mine)
            self._totals(self.found.source.rows + self.found.beyond, self.found.warehouse.rows)
            self._check(self.found.source.rows - self.found.warehouse.rows)
        if self._digits:
            unknown = _groups(mine[0], theirs, self._digits)
        else:
            unknown = []
            for some in mine:
                if some.digest == theirs[some.spans[0]]:
                    continue
                stored = sketches.get(some.spans[0], ())
                # Of a crowded range, only a listing can tell which rows were left out.
                found = (
                    None if some.crowded else sketch.differing(self._scope, some.sketch, stored, some.beyond)
                )
                if found is None:
                    unknown.append(some)
                else:
                    self._suspect(found)
        if not self._digits:
            left_out = [some for some in unknown if some.beyond and not some.crowded]
            whole = self._agreeing([({some.spans[0]: some.digest}, some.beyond) for some in left_out])
            unknown = [some for some in unknown if some.spans[0] not in whole]
        again = [some for some in unknown if len(some.sums) > 1 or (self._digits and some.beyond)]
        agreeing = self._agreeing([(some.sums, some.beyond) for some in again])
        left = (
            replace(some, sums={p: d for p, d in some.sums.items() if p not in agreeing}) for some in unknown
        )
        return [some for some in left if some.sums]

    def _agreeing(self, mine: Sequence[tuple[Mapping[Place, Digest], Sequence[str]]]) -> set[Place]:
        """Those ranges or groups of which the warehouse has the same sums, without the keys that each leaves out."""
        agreeing = set[Place]()
        at_once = (LEFT_OUT, RANGES) if self._scope.hash_key is None else (IN_MEMORY, IN_MEMORY)
        for some in chunks(mine, lambda one: len(one[1]), *at_once):
            sums = {place: digest for places, _ in some for place, digest in places.items()}
            theirs, _ = self._warehouse.sums(
                [place for place in sums if isinstance(place, Span)], self._digits,
                without=[key for _, beyond in some for key in beyond],
                prefixes=[place for place in sums if isinstance(place, str)],
            )  # fmt: skip
            agreeing |= {place for place, digest in sums.items() if theirs.get(place, Digest()) == digest}
        return agreeing

    def _source(self, spans: Sequence[Span], cells: int) -> list[SourceRows]:
        """What the source has in these ranges, in their order; of groups, all in one."""
        by_span, groups = dict[tuple[Span, ...], SourceRows](), dict[Place, Digest]()
        beyond, sample, left_out = list[str](), list[Printed](), 0
        for some in self._results([self._job([span], cells=cells) for span in spans]):
            self._services.emit(Advanced(self._table.name, "verify", some.digest.rows))
            if not self._digits:
                by_span[some.spans] = some
                continue
            for prefix, digest in some.sums.items():  # as it comes: there may be a million groups in each
                groups[prefix] = groups.get(prefix, Digest()) + digest
            beyond += some.beyond
            sample += some.sample
            left_out += some.left_out
        if self._digits:
            return [SourceRows(tuple(spans), groups, tuple(beyond), left_out, tuple(sample))]
        return [by_span[(span,)] for span in spans]

    def _job(
        self, spans: Sequence[Span], listed: bool = False, prefixes: Sequence[str] = (), cells: int = 0
    ) -> SourceJob:
        services = self._services
        return SourceJob(
            services.config.source, self._scope, tuple(spans), listed, tuple(prefixes), self._digits, cells,
            services.sources.expected(self._table.name),
        )  # fmt: skip

    def _results(self, jobs: Sequence[SourceJob]) -> Iterator[SourceRows]:
        """What these tasks find, as it comes, if it is of the run's source."""
        with closing(self._services.submit(jobs, self._table.name)) as results:
            for some in results:
                if some.refused:
                    raise RefusedRows
                self._services.sources.check(self._table.name, some.source)
                yield some

    # ------------------------------------------------------------ rows

    def _list(self, spans: Sequence[Span], differing: Sequence[SourceRows]) -> list[Place]:
        """Lists the rows of what differs; returns the ranges or groups without a suspect."""
        unexplained = set[Place]()
        sums = {place: digest for some in differing for place, digest in some.sums.items()}
        if self._digits:
            # No more at once than memory should hold; each time, the source is read again.
            size = {
                str(p): max(digest.rows, self._stored.get(p, Digest()).rows) for p, digest in sums.items()
            }
            for some in chunks(list(size), size.__getitem__, IN_MEMORY, len(size)):
                jobs = [self._job([span], True, some) for span in spans]
                mine = rows.joined([found.rows for found in self._results(jobs) if found.rows is not None])
                theirs = self._warehouse.rows(prefixes=some)
                if not self._suspect(rows.differing(self._scope, mine, theirs)):
                    unexplained |= {*some}
            return [*unexplained]
        jobs = [self._job(some, True) for some in listings(sums.items())]
        for found in self._results(jobs):
            assert found.rows is not None
            theirs = self._warehouse.rows(found.spans)
            if not self._suspect(rows.differing(self._scope, found.rows, theirs)):
                unexplained |= {*found.spans}
        order: list[Place] = [span for job in jobs for span in job.spans]
        return [span for span in order if span in unexplained]

    def _settle(self, spans: Sequence[Span], unexplained: Sequence[Place]) -> None:
        """Judges sums that differed though none of their rows did: rows may have changed in between."""
        for _ in range(TRIES):
            if not unexplained:
                return
            time.sleep(PAUSE)
            ranges = [place for place in unexplained if isinstance(place, Span)]
            # If more rows were left out than are named, only the listing can tell.
            differing = [some for some in self._differing(ranges or spans) if not some.crowded]
            unexplained = [p for some in differing for p in some.sums if ranges or p in unexplained]
        self.found.suspicious |= bool(unexplained)

    def _suspect(self, found: Mapping[Printed, bool]) -> bool:
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
            )


@contextmanager
def beside(question: Callable[[Callable[[], bool]], T]) -> Iterator[Future[T]]:
    """Queries the warehouse in parallel with the source; independent as long as no rows are left out.

    The question is given a function that tells whether to stop: nobody waits for its answer any more.
    """
    over = threading.Event()
    pool = ThreadPoolExecutor(1, thread_name_prefix="verify warehouse")
    try:
        yield pool.submit(question, over.is_set)
    finally:
        over.set()
        pool.shutdown(wait=False, cancel_futures=True)


def digits_for(rows: int, by_us: bool) -> int:
    """How many digits make groups of a few thousand rows. Pure."""
    digits = max(1, math.ceil(math.log(max(1, rows / GROUP), 16)))
    return min(digits, MOST_DIGITS) if by_us else digits


def _groups(mine: SourceRows, theirs: Mapping[Place, Digest], digits: int) -> list[SourceRows]:
    """The groups that disagree, each with the keys that it leaves out. Pure."""
    differing = {
        place for place in mine.sums.keys() | theirs.keys() if mine.sums.get(place) != theirs.get(place)
    }
    beyond: dict[Place, list[str]] = {place: [] for place in differing}
    for key in mine.beyond:
        if key[:digits] in differing:
            beyond[key[:digits]].append(key)
    more = mine.left_out - len(mine.beyond)
    return [
        SourceRows((), {place: mine.sums.get(place, Digest())}, tuple(keys), len(keys) + more)
        for place, keys in sorted(beyond.items(), key=lambda item: str(item[0]))
    ]


def listings(sums: Iterable[tuple[Place, Digest]]) -> Iterator[tuple[Span, ...]]:
    """Groups ranges in key order for one task each, up to a number of rows; adjacent ranges are joined. Pure."""
    spans: list[Span] = []
    rows = 0
    for span, digest in sums:
        assert isinstance(span, Span)
        joins = bool(spans) and spans[-1].upto is not None and spans[-1].upto == span.after
        if spans and (rows + digest.rows > LISTING or (len(spans) >= SPANS and not joins)):
            yield tuple(spans)
            spans, rows, joins = [], 0, False
        if joins:
            spans[-1] = Span(spans[-1].after, span.upto)
        else:
            spans.append(span)
        rows += digest.rows
    if spans:
        yield tuple(spans)


def chunks(
    items: Sequence[T], size: Callable[[T], int], most: int = LEFT_OUT, at_once: int = IN_MEMORY
) -> Iterator[list[T]]:
    """The items, in order, in portions of one query each. Pure."""
    some: list[T] = []
    total = 0
    for item in items:
        if some and (total + size(item) > most or len(some) >= at_once):
            yield some
            some, total = [], 0
        some.append(item)
        total += size(item)
    if some:
        yield some
