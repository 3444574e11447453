"""The search for rows that differ: digests of both sides, and where they don't agree, of ever smaller parts.

Ranges of the key where the warehouse orders keys as MySQL does; else groups by the first digits of the keys' hashes,
which both sides compute. The source is asked by Spark tasks, the warehouse beside it; where they differ, once more
without the rows that had changed since the watermark when the source was asked. What is found are suspects: `compare` asks again.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

from floodmark.compared import DIGITS, Digest, Entry, Part, Scope, Span
from floodmark.errors import DataError
from floodmark.measure import Digested, DigestJob, EntriesJob
from floodmark.model import Position
from floodmark.mysql import edges
from floodmark.mysql.connect import Session
from floodmark.warehouse import canonical
from floodmark.warehouse.canonical import Place
from floodmark.work import Work

T = TypeVar("T")

# Rows of a range to begin with, and into how many a range is cut that differs.
FIRST = 100_000
FANOUT = 16
# Ranges of up to so many rows are compared row by row; where most ranges differ, of so many.
LISTED = 500
BROAD = 20_000
# Rows and ranges that one task lists.
LISTING = 50_000
SPANS = 20
# Ranges, and keys that are left out, in one question to the warehouse.
RANGES = 200
LEFT_OUT = 2000
# Bytes of one answer with keys: the Data API ends at 500 MB, and ended at 100 MB.
ANSWER = 80_000_000
# Rows of a group, where the warehouse has another order.
GROUP = 3000
GROUP_FIRST = 500_000

Printed = tuple[str | None, ...]


@dataclass
class Found:
    """What a search has seen."""

    suspects: dict[Printed, None] = field(default_factory=dict)
    source: Digest = field(default_factory=Digest)
    warehouse: Digest = field(default_factory=Digest)
    beyond: int = 0  # rows of the source that were left out
    suspicious: bool = False  # of a table without a key: the sums differ


class Search:
    """One search through one table."""

    def __init__(
        self,
        work: Work,
        scope: Scope,
        totals: Callable[[int, int], None],
        moved: int | None = None,
        most: int | None = None,
    ) -> None:
        self.work = work
        self.scope = scope
        self.moved = moved  # about so many rows are in the scope, where that is known
        self.table = scope.table
        self.found = Found()
        self._totals = totals
        self._most = most  # missing rows that are held; a search that finds more is given up
        self._missing = 0

    def go(self) -> Found:
        """The suspects."""
        with self.work.session("verify") as session:
            rows = edges.table_rows(session, self.table)
            self.work.progress.begin(self.table.name, "verify", min(rows, self.moved or rows))
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
        """Whether the rows are few, and an index leads to them."""
        return (
            self.moved is not None and self.moved <= min(FIRST, rows // 4) and bool(self.table.cursor_index)
        )

    def _spans(self, session: Session, rows: int) -> list[Span]:
        step = FIRST if self.scope.ordered else GROUP_FIRST
        if not self.table.key or not self.table.key_index or rows <= step or self.scope.recent:
            return [Span()]
        cuts = edges.split_key(session, self.table, math.ceil(rows / step), step)
        return [Span(a, b) for a, b in zip((None, *cuts), (*cuts, None), strict=True)]

    # a table without a key

    def _whole(self) -> None:
        [part] = self._source([DigestJob(self.work.config.source, self.scope, Span())])
        [digest] = self._warehouse([part.span])
        self._count([part], [digest])
        self.found.suspicious = part.digest != digest

    # a few rows at the end

    def _recent(self) -> None:
        parts = self._source([DigestJob(self.work.config.source, self.scope, Span())])
        digests = self._warehouse([Span()])
        self._count(parts, digests)
        if self._differing(parts, digests):
            self._list_ranges(parts)

    # ranges

    def _by_ranges(self, spans: Sequence[Span]) -> None:
        source = self.work.config.source
        with _beside(lambda: self._warehouse(spans)) as asked:
            parts = self._source([DigestJob(source, self.scope, span) for span in spans])
            digests = asked.result()
        self._count(parts, digests)
        differing = self._differing(parts, digests)
        leaves: list[Part] = []
        while differing:
            # Where most ranges differ, finer ones would differ as well: their rows are listed at once.
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
        """The parts that don't agree, even when rows that had changed already are left out."""
        differing = [p for p, d in zip(parts, digests, strict=True) if p.digest != d]
        again = [p for p in differing if p.beyond and not p.crowded]
        settled: set[Span] = set()
        for some in portions(again, lambda p: len(p.beyond)):
            without = [hashed for p in some for hashed in p.beyond]
            seen = self._warehouse([p.span for p in some], without)
            settled |= {p.span for p, d in zip(some, seen, strict=True) if p.digest == d}
        return [p for p in differing if p.span not in settled]

    def _list_ranges(self, leaves: Sequence[Part]) -> None:
        source = self.work.config.source
        jobs = [EntriesJob(source, self.scope, spans) for spans in listings(leaves)]
        for listing in self.work.submit(jobs, self.table.name):
            self._suspect(listing.entries, self._entries(listing.spans))

    # groups

    def _by_groups(self, spans: Sequence[Span], digits: int) -> None:
        source = self.work.config.source
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
        for some in portions(sorted(left_out), lambda p: len(left_out[p])):
            seen = self._groups(digits, [h for p in some for h in left_out[p]], some)
            differing -= {p for p in some if seen.get(p, Digest()) == groups.get(p, Digest())}
        if differing:
            prefixes = tuple(sorted(differing))
            asking = [EntriesJob(source, self.scope, (span,), prefixes) for span in spans]
            listed = [e for some in self.work.submit(asking, self.table.name) for e in some.entries]
            answers = portions(
                prefixes, lambda p: stored.get(p, Digest()).rows * self._width(), ANSWER, len(prefixes)
            )
            self._suspect(listed, (row for some in answers for row in self._entries((), some)))

    def _width(self) -> int:
        """The most bytes of one row of `_entries`."""
        return DIGITS + sum(form.width for form in self.scope.keys)

    def _grouped(self, jobs: Sequence[DigestJob]) -> Iterator[Digested]:
        for digested in self.work.submit(jobs, self.table.name):
            self.work.progress.advance(self.table.name, "verify", digested.rows, 0, 0)
            yield digested

    def _groups(
        self, digits: int, without: Sequence[str] = (), prefixes: Sequence[str] = ()
    ) -> dict[str, Digest]:
        return _summed(
            self._ask(lambda place: canonical.grouped(place, self.scope, digits, without, prefixes))
        )

    # both

    def _source(self, jobs: Sequence[DigestJob]) -> list[Part]:
        """The parts of some ranges, in the order of the ranges."""
        found: dict[Position | None, tuple[Part, ...]] = {}
        for digested in self.work.submit(jobs, self.table.name):
            found[digested.parts[0].span.after] = digested.parts
            if jobs[0].step is None:
                self.work.progress.advance(self.table.name, "verify", digested.rows, 0, 0)
        return [part for job in jobs for part in found[job.span.after]]

    def _warehouse(self, spans: Sequence[Span], without: Sequence[str] = ()) -> list[Digest]:
        """The digests of ranges that are in the keys' order."""
        found: list[Digest] = []
        for at in range(0, len(spans), RANGES):
            found += self._digests(spans[at : at + RANGES], without)
        return found

    def _digests(self, spans: Sequence[Span], without: Sequence[str]) -> list[Digest]:
        seen = _summed(self._ask(lambda place: canonical.digests(place, self.scope, spans, without)))
        return [seen.get(str(i), Digest()) for i in range(len(spans))]

    def _entries(self, spans: Sequence[Span], prefixes: Sequence[str] = ()) -> list[tuple[object, ...]]:
        return self._ask(lambda place: canonical.entries(place, self.scope, spans, prefixes))

    def _ask(self, words: Callable[[Place], Sequence[str]]) -> list[tuple[object, ...]]:
        return ask(self.work, self.scope, words)

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
                f"{missing:,} rows or more that were read are not in {self.table.target}: too many to be looked up one by one",
                hint=f"load all files again: floodmark watermark reset -t {self.table.name} --redshift-only; "
                f"or compare every row: floodmark verify -t {self.table.name} --repair",
                table=self.table.name,
            )


@contextmanager
def _beside(question: Callable[[], T]) -> Iterator[Future[T]]:
    """The warehouse asked while the source is: without the rows that are left out, its answer does not depend on it."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="verify warehouse")
    try:
        yield pool.submit(question)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def ask(work: Work, scope: Scope, words: Callable[[Place], Sequence[str]]) -> list[tuple[object, ...]]:
    """The warehouse's answer; of a target that is not there, none."""
    return work.warehouse().ask(scope.table.target, words) or []


def _summed(rows: Iterable[Sequence[object]]) -> dict[str, Digest]:
    """The digest of each part, of which the answer may have several rows."""
    found: dict[str, Digest] = {}
    for part, count, total in rows:
        found[str(part)] = found.get(str(part), Digest()) + Digest(int(str(count)), int(str(total)))
    return found


# ---------------------------------------------------------------- pure


def suspects(listed: Iterable[Entry], stored: Iterable[tuple[Printed, str]]) -> Iterator[Printed]:
    """The keys whose rows are not the same on both sides; rows that have changed since are left alone."""
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
    """The ranges that one task lists: as many as have so many rows, those that adjoin as one."""
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


def portions(
    items: Sequence[T], size: Callable[[T], int], most: int = LEFT_OUT, at_once: int = RANGES
) -> Iterator[list[T]]:
    """The items, in order, as many at a time as one question takes."""
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
