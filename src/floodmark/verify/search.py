"""The search for rows that differ: digests of both sides and, where they disagree, the rows' keys and hashes.

The parts are ranges of the key if the warehouse orders keys as MySQL does, else groups by the first digits of
the keys' hashes, which both sides compute. Spark tasks query the source, with the warehouse queried in
parallel. Where they differ, the warehouse is queried once more without the rows that had already changed
since the watermark. The results are only suspects: `compare` checks them again.

Rows are fetched and hashed by us (`hashed`) if the warehouse hands them out; else each server hashes its own,
and ranges that differ in few rows are first split into ever smaller ones.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TypeVar

from floodmark.model.canonical import DIGITS, Digest, Entry, Part, Scope, Span
from floodmark.model.errors import DataError
from floodmark.model.position import Position
from floodmark.model.row_hash import compiled, new_key
from floodmark.services.mysql import ranges as edges
from floodmark.services.mysql.session import Session
from floodmark.services.run import Services
from floodmark.services.warehouse import canonical
from floodmark.services.warehouse.canonical import TargetSql
from floodmark.services.warehouse.protocol import HandsOutRows
from floodmark.verify import hashed
from floodmark.verify.hashed import Printed, Stopped, never
from floodmark.verify.portions import (
    LEFT_OUT,
    RANGES,
    chunks,
    in_key_order,
    listings,
    most_rows,
    summed,
    suspects,
)
from floodmark.verify.task import Digested, DigestJob, EntriesJob, Listing

T = TypeVar("T")

# Rows per initial range if we hash them; fewer for a table of only a few ranges, so that every core has some.
FETCHED = 250_000
FEW_FETCHED = 50_000
AT_LEAST = 4
# Rows listed at once, on either side, if they are not in ranges: 16 bytes each, and their keys.
IN_MEMORY = 5_000_000
# The same if MySQL hashes them, and the number of parts into which a differing range is cut.
FIRST = 100_000
FANOUT = 16
# Ranges of up to this many rows are compared row by row; BROAD applies where most ranges differ.
LISTED = 500
BROAD = 20_000
# Bytes per answer with keys: the Data API's limit is 500 MB, and used to be 100 MB.
ANSWER = 80_000_000
# Rows per group, if the warehouse orders keys differently.
GROUP = 3000
GROUP_FIRST = 500_000
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


@dataclass
class _GroupSums:
    """The digests of groups on both sides, and the rows of the source that they leave out."""

    source: dict[str, Digest] = field(default_factory=dict)
    warehouse: dict[str, Digest] = field(default_factory=dict)
    beyond: list[str] = field(default_factory=list)
    left_out: int = 0
    sample: list[Printed] = field(default_factory=list)

    def add(self, digested: Digested) -> None:
        """Adds what a task found, as it comes: there may be a million groups in each."""
        for prefix, digest in (digested.groups or {}).items():
            self.source[prefix] = self.source.get(prefix, Digest()) + digest
        self.beyond += digested.beyond
        self.left_out += digested.left_out
        self.sample += digested.sample


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
        if self._hands_out_rows():
            scope = replace(self.scope, hash_key=new_key())
            try:
                return Search(self.services, scope, self._totals, self.expected_rows, self._most)._go()
            except _Refused as refused:
                if refused.unable:
                    self.services.workers_hash = False  # for the other tables too
        return self._go()

    def _hands_out_rows(self) -> bool:
        """Whether rows can be fetched from both sides and hashed by us."""
        warehouse = self.services.warehouse()
        if compiled is None or self.services.config.source.hash_on_server or not self.services.workers_hash:
            return False
        if not self.table.key:
            return False  # the reader is checked by looking some rows up, which needs a key
        types = warehouse.types(self.table.target) if isinstance(warehouse, HandsOutRows) else None
        return types is not None and canonical.same_values(self.scope, types)

    def _go(self) -> SearchResult:
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
            digits = max(1, math.ceil(math.log(max(1, rows / GROUP), 16)))
            self._by_groups(spans, min(digits, hashed.MOST_DIGITS) if self.scope.hash_key else digits)
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
        if self.scope.hash_key is not None:
            step = max(FEW_FETCHED, min(FETCHED, -(-rows // AT_LEAST)))
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
        with _beside(lambda stop: self._warehouse(spans, stop=stop)) as asked:
            parts = self._source([DigestJob(source, self.scope, span) for span in spans])
            digests = asked.result()
        self._count(parts, digests)
        differing = self._differing(parts, digests)
        if self.scope.hash_key is not None:
            # To read a range again and list it costs what digests of its parts would.
            self._list_ranges(differing)
            return
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
        for some in chunks(again, lambda p: len(p.beyond), *self._at_once(again)):
            without = [key for p in some for key in p.beyond]
            seen = self._warehouse([p.span for p in some], without)
            settled |= {p.span for p, d in zip(some, seen, strict=True) if p.digest == d}
        return [p for p in differing if p.span not in settled]

    def _at_once(self, items: Sized) -> tuple[int, int]:
        """How many left-out keys, and of how many parts, go into one query: all, if no SQL has to name them."""
        return (IN_MEMORY, len(items)) if self.scope.hash_key is not None else (LEFT_OUT, RANGES)

    def _list_ranges(self, leaves: Sequence[Part]) -> None:
        source = self.services.config.source
        jobs = [EntriesJob(source, self.scope, spans) for spans in listings(in_key_order(self.scope, leaves))]
        unexplained: list[Span] = []
        for listing in self._listed(jobs):
            if listing.rows is not None:
                theirs = hashed.stored(self._handing_out, self.scope, listing.spans)
                some = self._suspected(hashed.differing(self.scope, listing.rows, theirs))
            else:
                some = self._suspect(listing.entries, self._entries(listing.spans))
            unexplained += () if some else listing.spans
        order = {span: n for n, job in enumerate(jobs) for span in job.spans}
        self._settle(sorted(unexplained, key=order.__getitem__))

    def _settle(self, spans: Sequence[Span]) -> None:
        """Judges ranges whose sums differed though none of their rows did: rows may have changed in between."""
        for _ in range(TRIES):
            if not spans or self.scope.skipped:  # sums of the warehouse include rows that were skipped
                return
            time.sleep(PAUSE)
            parts = self._source([DigestJob(self.services.config.source, self.scope, span) for span in spans])
            differing = self._differing(parts, self._warehouse(spans))
            # If more rows were left out than are named, only the listing can tell.
            spans = [part.span for part in differing if not part.crowded]
        self.found.suspicious |= bool(spans)

    def _listed(self, jobs: Sequence[EntriesJob]) -> Iterator[Listing]:
        for listing in self.services.submit(jobs, self.table.name):
            if listing.refused:
                raise _Refused(listing.unable)
            yield listing

    @property
    def _handing_out(self) -> HandsOutRows:
        warehouse = self.services.warehouse()
        assert isinstance(warehouse, HandsOutRows)
        return warehouse

    # groups

    def _by_groups(self, spans: Sequence[Span], digits: int) -> None:
        seen = self._group_sums(spans, digits)
        self.found.sample += seen.sample
        self.found.source = sum(seen.source.values(), Digest())
        self.found.warehouse = sum(seen.warehouse.values(), Digest())
        self.found.beyond = seen.left_out
        self._tell()
        unexplained = self._list_groups(spans, sorted(self._differing_groups(seen, digits)), seen)
        for _ in range(TRIES):
            if not unexplained or self.scope.skipped:
                return
            time.sleep(PAUSE)
            seen = self._group_sums(spans, digits)
            unexplained &= self._differing_groups(seen, digits)
            if seen.left_out > len(seen.beyond):
                return  # more rows were left out than are named: only the listing can tell
        self.found.suspicious |= bool(unexplained)

    def _group_sums(self, spans: Sequence[Span], digits: int) -> _GroupSums:
        seen = _GroupSums()
        jobs = [DigestJob(self.services.config.source, self.scope, span, digits=digits) for span in spans]
        with _beside(lambda stop: self._groups(digits, stop=stop)) as asked:
            for digested in self._grouped(jobs):
                seen.add(digested)
            seen.warehouse = asked.result()
        return seen

    def _differing_groups(self, seen: _GroupSums, digits: int) -> set[str]:
        """The groups that disagree even without the rows that had already changed."""
        groups, stored = seen.source, seen.warehouse
        differing = {p for p in groups.keys() | stored.keys() if groups.get(p) != stored.get(p)}
        left_out: dict[str, list[str]] = {}
        for key in seen.beyond:
            if key[:digits] in differing:
                left_out.setdefault(key[:digits], []).append(key)
        for some in chunks(sorted(left_out), lambda p: len(left_out[p]), *self._at_once(left_out)):
            again = self._groups(digits, [h for p in some for h in left_out[p]], some)
            differing -= {p for p in some if again.get(p, Digest()) == groups.get(p, Digest())}
        return differing

    def _list_groups(self, spans: Sequence[Span], prefixes: Sequence[str], seen: _GroupSums) -> set[str]:
        """Lists the rows of groups; returns those without a suspect."""
        if not prefixes:
            return set()
        source, unexplained = self.services.config.source, set[str]()
        if self.scope.hash_key is None:
            asking = [EntriesJob(source, self.scope, (span,), tuple(prefixes)) for span in spans]
            listed = [e for found in self._listed(asking) for e in found.entries]
            answers = chunks(
                prefixes,
                lambda p: seen.warehouse.get(p, Digest()).rows * self._width(),
                ANSWER,
                len(prefixes),
            )
            found = self._suspect(listed, (row for some in answers for row in self._entries((), some)))
            return set() if found else set(prefixes)
        # No more at once than memory should hold; each time, the source is read again.
        for some in chunks(
            prefixes, lambda p: most_rows(p, seen.source, seen.warehouse), IN_MEMORY, len(prefixes)
        ):
            jobs = [EntriesJob(source, self.scope, (span,), tuple(some)) for span in spans]
            mine = hashed.joined([found.rows for found in self._listed(jobs) if found.rows is not None])
            theirs = hashed.stored(self._handing_out, self.scope, (), some)
            unexplained |= set() if self._suspected(hashed.differing(self.scope, mine, theirs)) else set(some)
        return unexplained

    def _width(self) -> int:
        """The maximum bytes of one row of `_entries`."""
        return DIGITS + sum(form.width for form in self.scope.keys)

    def _grouped(self, jobs: Sequence[DigestJob]) -> Iterator[Digested]:
        for digested in self.services.submit(jobs, self.table.name):
            if digested.refused:
                raise _Refused(digested.unable)
            self.services.progress.advance(self.table.name, "verify", digested.rows, 0, 0)
            yield digested

    def _groups(
        self,
        digits: int,
        without: Sequence[str] = (),
        prefixes: Sequence[str] = (),
        stop: Callable[[], bool] = never,
    ) -> dict[str, Digest]:
        if self.scope.hash_key is not None:
            return hashed.stored_groups(self._handing_out, self.scope, digits, without, stop)
        return summed(
            self._ask(lambda place: canonical.grouped(place, self.scope, digits, without, prefixes))
        )

    # both

    def _source(self, jobs: Sequence[DigestJob]) -> list[Part]:
        """The parts of these ranges, in the order of the ranges."""
        found: dict[Position | None, tuple[Part, ...]] = {}
        for digested in self.services.submit(jobs, self.table.name):
            if digested.refused:
                raise _Refused(digested.unable)
            found[digested.parts[0].span.after] = digested.parts
            if jobs[0].step is None:
                self.services.progress.advance(self.table.name, "verify", digested.rows, 0, 0)
        return [part for job in jobs for part in found[job.span.after]]

    def _warehouse(
        self, spans: Sequence[Span], without: Sequence[str] = (), stop: Callable[[], bool] = never
    ) -> list[Digest]:
        """The digests of ranges given in key order."""
        found: list[Digest] = []
        for at in range(0, len(spans), RANGES):
            if stop():
                raise Stopped
            found += self._digests(spans[at : at + RANGES], without, stop)
        return found

    def _digests(
        self, spans: Sequence[Span], without: Sequence[str], stop: Callable[[], bool]
    ) -> list[Digest]:
        if self.scope.hash_key is not None:
            return hashed.stored_digests(self._handing_out, self.scope, spans, without, stop)
        seen = summed(self._ask(lambda place: canonical.digests(place, self.scope, spans, without)))
        return [seen.get(str(i), Digest()) for i in range(len(spans))]

    def _entries(self, spans: Sequence[Span], prefixes: Sequence[str] = ()) -> list[tuple[object, ...]]:
        return self._ask(lambda place: canonical.entries(place, self.scope, spans, prefixes))

    def _ask(self, words: Callable[[TargetSql], Sequence[str]]) -> list[tuple[object, ...]]:
        return ask(self.services, self.scope, words)

    def _count(self, parts: Sequence[Part], digests: Sequence[Digest]) -> None:
        self.found.sample += [key for part in parts for key in part.sample]
        self.found.source = sum((p.digest for p in parts), Digest())
        self.found.warehouse = sum(digests, Digest())
        self.found.beyond = sum(p.left_out for p in parts)
        self._tell()

    def _tell(self) -> None:
        self._totals(self.found.source.rows + self.found.beyond, self.found.warehouse.rows)
        self._check(self.found.source.rows - self.found.warehouse.rows)

    def _suspect(self, listed: Sequence[Entry], stored: Iterable[Sequence[object]]) -> bool:
        theirs = [(tuple(None if k is None else str(k) for k in keys), str(h)) for h, *keys in stored]
        found = dict.fromkeys(suspects(listed, theirs), False)
        return self._suspected(found | {key: True for key, _ in theirs if key in found})

    def _suspected(self, found: Mapping[Printed, bool]) -> bool:
        self._missing += sum(not there for there in found.values())
        self._check(self._missing)
        self.found.suspects |= found
        return bool(found)

    def _check(self, missing: int) -> None:
        if self._most is not None and missing > self._most:
            raise DataError(
                f"at least {missing:,} rows that were read are missing from {self.table.target}: too many to look up one by one",
                hint=f"load all files again: floodmark watermark reset -t {self.table.name} --redshift-only; "
                f"or compare every row: floodmark verify -t {self.table.name} --repair",
                table=self.table.name,
            )


class _Refused(Exception):
    """A worker can't hash some rows as we do: the search begins anew, and the servers hash."""

    def __init__(self, unable: bool) -> None:
        """`unable`: it can hash no rows at all."""
        self.unable = unable


@contextmanager
def _beside(question: Callable[[Callable[[], bool]], T]) -> Iterator[Future[T]]:
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


def ask(
    services: Services, scope: Scope, words: Callable[[TargetSql], Sequence[str]]
) -> list[tuple[object, ...]]:
    """The warehouse's answer; empty if the target doesn't exist."""
    return services.warehouse().ask(scope.table.target, words) or []
