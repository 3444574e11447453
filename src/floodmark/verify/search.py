"""The search for rows that differ: digests of both sides and, where they disagree, of ever smaller parts.

The parts are ranges of the key if the warehouse orders keys as MySQL does, else groups by the first digits of
the keys' hashes, which both sides compute. Spark tasks query the source, with the warehouse queried in
parallel. Where they differ, the warehouse is queried once more without the rows that had already changed
since the watermark. The results are only suspects: `compare` checks them again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

from floodmark.model.canonical import DIGITS, Digest, Entry, Part, Scope, Span
from floodmark.model.errors import DataError
from floodmark.model.position import Position
from floodmark.services.mysql import ranges as edges
from floodmark.services.mysql.session import Session
from floodmark.services.run import Services
from floodmark.services.warehouse import canonical
from floodmark.services.warehouse.canonical import TargetSql
from floodmark.verify.task import Digested, DigestJob, EntriesJob

T = TypeVar("T")

# Rows per initial range, and the number of parts into which a differing range is cut.
FIRST = 100_000
FANOUT = 16
# Ranges of up to this many rows are compared row by row; BROAD applies where most ranges differ.
LISTED = 500
BROAD = 20_000
# Rows and ranges listed by one task.
LISTING = 50_000
SPANS = 20
# Ranges, and left-out keys, per query to the warehouse.
RANGES = 200
LEFT_OUT = 2000
# Bytes per answer with keys: the Data API's limit is 500 MB, and used to be 100 MB.
ANSWER = 80_000_000
# Rows per group, if the warehouse orders keys differently.
GROUP = 3000
GROUP_FIRST = 500_000

Printed = tuple[str | None, ...]


@dataclass
class SearchResult:
    """What a search has found."""

    suspects: dict[Printed, None] = field(default_factory=dict)
    source: Digest = field(default_factory=Digest)
    warehouse: Digest = field(default_factory=Digest)
    beyond: int = 0  # rows of the source that were left out
    suspicious: bool = False  # for a table without a key: the sums differ


class Search:
    """One search through one table."""

    def __init__(
        self,
        services: Services,
        scope: Scope,
        totals: Callable[[int, int], None],
        expected_rows: int | None = None,
        most: int | None = None,
    ) -> None:
        self.services = services
        self.scope = scope
        self.expected_rows = expected_rows  # approximate rows in the scope, if known
        self.table = scope.table
        self.found = SearchResult()
        self._totals = totals
        self._most = most  # maximum missing rows to hold; a search that finds more gives up
        self._missing = 0

    def go(self) -> SearchResult:
        """Runs the search."""
        with self.services.session("verify") as session:
            rows = edges.table_rows(session, self.table)
            self.services.progress.begin(self.table.name, "verify", min(rows, self.expected_rows or rows))
            if self._few(rows):
                self.scope = replace(self.scope, recent=True)
            spans = self._spans(session, rows)
        if not self.table.key:
            self._whole()
        elif self.scope.recent:
            self._recent()
        elif self.scope.ordered:
            self._by_ranges(spans)
        else:
            self._by_groups(spans, max(1, math.ceil(math.log(max(1, rows / GROUP), 16))))
        return self.found

    def _few(self, rows: int) -> bool:
        """Whether the rows are few and an index leads to them."""
        return (
            self.expected_rows is not None
            and self.expected_rows <= min(FIRST, rows // 4)
            and bool(self.table.source.cursor_index)
        )

    def _spans(self, session: Session, rows: int) -> list[Span]:
        step = FIRST if self.scope.ordered else GROUP_FIRST
        if not self.table.key or not self.table.source.key_index or rows <= step or self.scope.recent:
            return [Span()]
        cuts = edges.split_key(session, self.table, math.ceil(rows / step), step)
        return [Span(a, b) for a, b in zip((None, *cuts), (*cuts, None), strict=True)]

    # a table without a key

    def _whole(self) -> None:
        [part] = self._source([DigestJob(self.services.config.source, self.scope, Span())])
        [digest] = self._warehouse([part.span])
        self._count([part], [digest])
        self.found.suspicious = part.digest != digest

    # a few rows at the end

    def _recent(self) -> None:
        parts = self._source([DigestJob(self.services.config.source, self.scope, Span())])
        digests = self._warehouse([Span()])
        self._count(parts, digests)
        if self._differing(parts, digests):
            self._list_ranges(parts)

    # ranges

    def _by_ranges(self, spans: Sequence[Span]) -> None:
        source = self.services.config.source
        with _beside(lambda: self._warehouse(spans)) as asked:
            parts = self._source([DigestJob(source, self.scope, span) for span in spans])
            digests = asked.result()
        self._count(parts, digests)
        differing = self._differing(parts, digests)
        leaves: list[Part] = []
        while differing:
            # If most ranges differ, finer ones would differ as well: list their rows at once.
            scattered = len(parts) >= FANOUT and len(differing) > len(parts) // 2
            most = BROAD if scattered else LISTED
            leaves += [p for p in differing if p.digest.rows <= most]
            jobs = [
                DigestJob(source, self.scope, p.span, step=max(1, -(-p.digest.rows // FANOUT)))
                for p in differing
                if p.digest.rows > most
            ]
            parts = self._source(jobs)
            differing = self._differing(parts, self._warehouse([part.span for part in parts]))
        self._list_ranges(leaves)

    def _differing(self, parts: Sequence[Part], digests: Sequence[Digest]) -> list[Part]:
        """The parts that disagree even without the rows that had already changed."""
        differing = [p for p, d in zip(parts, digests, strict=True) if p.digest != d]
        again = [p for p in differing if p.beyond and not p.crowded]
        settled: set[Span] = set()
        for some in chunks(again, lambda p: len(p.beyond)):
            without = [hashed for p in some for hashed in p.beyond]
            seen = self._warehouse([p.span for p in some], without)
            settled |= {p.span for p, d in zip(some, seen, strict=True) if p.digest == d}
        return [p for p in differing if p.span not in settled]

    def _list_ranges(self, leaves: Sequence[Part]) -> None:
        source = self.services.config.source
        jobs = [EntriesJob(source, self.scope, spans) for spans in listings(leaves)]
        for listing in self.services.submit(jobs, self.table.name):
            self._suspect(listing.entries, self._entries(listing.spans))

    # groups

    def _by_groups(self, spans: Sequence[Span], digits: int) -> None:
        source = self.services.config.source
        groups: dict[str, Digest] = {}
        beyond: list[str] = []
        jobs = [DigestJob(source, self.scope, span, digits=digits) for span in spans]
        with _beside(lambda: self._groups(digits)) as asked:
            results = list(self._grouped(jobs))
            stored = asked.result()
        for digested in results:
            for prefix, digest in (digested.groups or {}).items():
                groups[prefix] = groups.get(prefix, Digest()) + digest
            beyond += digested.beyond
            self.found.beyond += digested.left_out
        self.found.source = sum(groups.values(), Digest())
        self.found.warehouse = sum(stored.values(), Digest())
        self._tell()
        differing = {p for p in groups.keys() | stored.keys() if groups.get(p) != stored.get(p)}
        left_out: dict[str, list[str]] = {}
        for hashed in beyond:
            if hashed[:digits] in differing:
                left_out.setdefault(hashed[:digits], []).append(hashed)
        for some in chunks(sorted(left_out), lambda p: len(left_out[p])):
            seen = self._groups(digits, [h for p in some for h in left_out[p]], some)
            differing -= {p for p in some if seen.get(p, Digest()) == groups.get(p, Digest())}
        if differing:
            prefixes = tuple(sorted(differing))
            asking = [EntriesJob(source, self.scope, (span,), prefixes) for span in spans]
            listed = [e for some in self.services.submit(asking, self.table.name) for e in some.entries]
            answers = chunks(
                prefixes, lambda p: stored.get(p, Digest()).rows * self._width(), ANSWER, len(prefixes)
            )
            self._suspect(listed, (row for some in answers for row in self._entries((), some)))

    def _width(self) -> int:
        """The maximum bytes of one row of `_entries`."""
        return DIGITS + sum(form.width for form in self.scope.keys)

    def _grouped(self, jobs: Sequence[DigestJob]) -> Iterator[Digested]:
        for digested in self.services.submit(jobs, self.table.name):
            self.services.progress.advance(self.table.name, "verify", digested.rows, 0, 0)
            yield digested

    def _groups(
        self, digits: int, without: Sequence[str] = (), prefixes: Sequence[str] = ()
    ) -> dict[str, Digest]:
        return _summed(
            self._ask(lambda place: canonical.grouped(place, self.scope, digits, without, prefixes))
        )

    # both

    def _source(self, jobs: Sequence[DigestJob]) -> list[Part]:
        """The parts of these ranges, in the order of the ranges."""
        found: dict[Position | None, tuple[Part, ...]] = {}
        for digested in self.services.submit(jobs, self.table.name):
            found[digested.parts[0].span.after] = digested.parts
            if jobs[0].step is None:
                self.services.progress.advance(self.table.name, "verify", digested.rows, 0, 0)
        return [part for job in jobs for part in found[job.span.after]]

    def _warehouse(self, spans: Sequence[Span], without: Sequence[str] = ()) -> list[Digest]:
        """The digests of ranges given in key order."""
        found: list[Digest] = []
        for at in range(0, len(spans), RANGES):
            found += self._digests(spans[at : at + RANGES], without)
        return found

    def _digests(self, spans: Sequence[Span], without: Sequence[str]) -> list[Digest]:
        seen = _summed(self._ask(lambda place: canonical.digests(place, self.scope, spans, without)))
        return [seen.get(str(i), Digest()) for i in range(len(spans))]

    def _entries(self, spans: Sequence[Span], prefixes: Sequence[str] = ()) -> list[tuple[object, ...]]:
        return self._ask(lambda place: canonical.entries(place, self.scope, spans, prefixes))

    def _ask(self, words: Callable[[TargetSql], Sequence[str]]) -> list[tuple[object, ...]]:
        return ask(self.services, self.scope, words)

    def _count(self, parts: Sequence[Part], digests: Sequence[Digest]) -> None:
        self.found.source = sum((p.digest for p in parts), Digest())
        self.found.warehouse = sum(digests, Digest())
        self.found.beyond = sum(p.left_out for p in parts)
        self._tell()

    def _tell(self) -> None:
        self._totals(self.found.source.rows + self.found.beyond, self.found.warehouse.rows)
        self._check(self.found.source.rows - self.found.warehouse.rows)

    def _suspect(self, listed: Sequence[Entry], stored: Iterable[Sequence[object]]) -> None:
        theirs = [(tuple(None if k is None else str(k) for k in keys), str(h)) for h, *keys in stored]
        found = dict.fromkeys(suspects(listed, theirs))
        if self._most is not None:
            there = {key for key, _ in theirs}
            self._missing += sum(1 for key in found if key not in there)
            self._check(self._missing)
        self.found.suspects |= found

    def _check(self, missing: int) -> None:
        if self._most is not None and missing > self._most:
            raise DataError(
                f"at least {missing:,} rows that were read are missing from {self.table.target}: too many to look up one by one",
                hint=f"load all files again: floodmark watermark reset -t {self.table.name} --redshift-only; "
                f"or compare every row: floodmark verify -t {self.table.name} --repair",
                table=self.table.name,
            )


@contextmanager
def _beside(question: Callable[[], T]) -> Iterator[Future[T]]:
    """Queries the warehouse in parallel with the source; independent as long as no rows are left out."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="verify warehouse")
    try:
        yield pool.submit(question)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def ask(
    services: Services, scope: Scope, words: Callable[[TargetSql], Sequence[str]]
) -> list[tuple[object, ...]]:
    """The warehouse's answer; empty if the target doesn't exist."""
    return services.warehouse().ask(scope.table.target, words) or []


def _summed(rows: Iterable[Sequence[object]]) -> dict[str, Digest]:
    """The digest of each part; the answer may have several rows per part."""
    found: dict[str, Digest] = {}
    for part, count, total in rows:
        found[str(part)] = found.get(str(part), Digest()) + Digest(int(str(count)), int(str(total)))
    return found


# ---------------------------------------------------------------- pure


def suspects(listed: Iterable[Entry], stored: Iterable[tuple[Printed, str]]) -> Iterator[Printed]:
    """The keys whose rows differ between the two sides; rows changed since the watermark are ignored."""
    mine: list[tuple[Printed, str]] = []
    passed: set[Printed] = set()
    for entry in listed:
        if entry.place == "in":
            mine.append((entry.key, entry.hash))
        else:
            passed.add(entry.key)
    theirs = list(stored)
    once = (set(mine), set(theirs))
    differing = once[0] ^ once[1]
    if (len(mine), len(theirs)) != (len(once[0]), len(once[1])):  # the same row more than once
        counts = (Counter(mine), Counter(theirs))
        differing |= {row for row in once[0] & once[1] if counts[0][row] != counts[1][row]}
    yield from {key: None for key, _ in differing if key not in passed}


def listings(parts: Sequence[Part]) -> Iterator[tuple[Span, ...]]:
    """Groups ranges for one task each, up to a number of rows; adjacent ranges are joined."""
    spans: list[Span] = []
    rows = 0
    for part in parts:
        joins = bool(spans) and spans[-1].upto is not None and spans[-1].upto == part.span.after
        if spans and (rows + part.digest.rows > LISTING or (len(spans) >= SPANS and not joins)):
            yield tuple(spans)
            spans, rows, joins = [], 0, False
        if joins:
            spans[-1] = Span(spans[-1].after, part.span.upto)
        else:
            spans.append(part.span)
        rows += part.digest.rows
    if spans:
        yield tuple(spans)


def chunks(
    items: Sequence[T], size: Callable[[T], int], most: int = LEFT_OUT, at_once: int = RANGES
) -> Iterator[list[T]]:
    """The items, in order, in portions of one query each."""
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
