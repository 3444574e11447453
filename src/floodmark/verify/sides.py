"""What a search asks of the two sides: digests and listings of the source, by Spark tasks, and of the warehouse.

Rows are fetched and hashed by us (`hashed`) if the scope has a key for hashes; else each server hashes its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import TypeVar

from floodmark.load import canonical
from floodmark.load.protocol import HandsOutRows
from floodmark.load.row_text import TargetSql
from floodmark.model.canonical import Digest, Part, Scope, Span
from floodmark.model.events import Advanced
from floodmark.model.origin import UNKNOWN_SOURCE, SourceId
from floodmark.model.position import Position
from floodmark.model.row_sketch import Sketch
from floodmark.model.table import Table
from floodmark.services import Services
from floodmark.spark.job import Job
from floodmark.verify import hashed
from floodmark.verify.hashed import Rows, Stopped, never
from floodmark.verify.portions import LEFT_OUT, RANGES, summed
from floodmark.verify.sketched import KeyedSketches
from floodmark.verify.task import Digested, DigestJob, EntriesJob, Listing

T = TypeVar("T")
Found = TypeVar("Found", Digested, Listing)

# Rows listed at once, on either side, if they are not in ranges: 16 bytes each, and their keys.
IN_MEMORY = 5_000_000


class Sides:
    """The source and the warehouse, as one scope sees them."""

    def __init__(self, services: Services, scope: Scope) -> None:
        self.services = services
        self.scope = scope
        self.table = scope.table

    @property
    def at_once(self) -> tuple[int, int]:
        """How many left-out keys, and of how many parts, go into one query: all, if no SQL has to name them."""
        return (IN_MEMORY, IN_MEMORY) if self.scope.hash_key is not None else (LEFT_OUT, RANGES)

    # the source

    def digest_job(self, span: Span, step: int | None = None, digits: int = 0, cells: int = 0) -> DigestJob:
        return DigestJob(self.services.config.source, self.scope, span, step, digits, cells, self._expected)

    def entries_job(self, spans: Sequence[Span], prefixes: Sequence[str] = ()) -> EntriesJob:
        return EntriesJob(
            self.services.config.source, self.scope, tuple(spans), tuple(prefixes), self._expected
        )

    @property
    def _expected(self) -> SourceId:
        return self.services.sources.expected(self.table.name) or UNKNOWN_SOURCE

    def source(self, jobs: Sequence[DigestJob]) -> list[Part]:
        """The parts of these ranges, in the order of the ranges."""
        found: dict[Position | None, tuple[Part, ...]] = {}
        for digested in self.results(jobs):
            found[digested.parts[0].span.after] = digested.parts
            if jobs[0].step is None:
                self.services.emit(Advanced(self.table.name, "verify", digested.rows))
        return [part for job in jobs for part in found[job.span.after]]

    def grouped(self, jobs: Sequence[DigestJob]) -> Iterator[Digested]:
        """The groups that these tasks find, as they come."""
        for digested in self.results(jobs):
            self.services.emit(Advanced(self.table.name, "verify", digested.rows))
            yield digested

    def results(self, jobs: Sequence[Job[Found]]) -> Iterator[Found]:
        """What these tasks find, as it comes, if it is of the run's source."""
        with closing(self.services.submit(jobs, self.table.name)) as results:
            for found in results:
                if found.refused:
                    raise Refused(found.unable)
                self.services.sources.check(self.table.name, found.source)
                yield found

    # the warehouse

    def warehouse(
        self, spans: Sequence[Span], without: Sequence[str] = (), stop: Callable[[], bool] = never
    ) -> list[Digest]:
        """The digests of ranges given in key order."""
        found: list[Digest] = []
        for at in range(0, len(spans), RANGES):
            if stop():
                raise Stopped
            found += self._digests(spans[at : at + RANGES], without, stop)
        return found

    def sketched(
        self, spans: Sequence[Span], cells: int, stop: Callable[[], bool] = never
    ) -> tuple[list[Digest], list[Sketch]]:
        """The digests of ranges in key order, and their sketches; only if we hash them."""
        digests: list[Digest] = []
        sketches: list[Sketch] = []
        for at in range(0, len(spans), RANGES):
            some = spans[at : at + RANGES]
            found = KeyedSketches(self.scope, cells, len(some)) if cells else None
            digests += hashed.stored_digests(self.hands_out, self.scope, some, (), stop, found)
            sketches += found.made() if found else [()] * len(some)
        return digests, sketches

    def _digests(
        self, spans: Sequence[Span], without: Sequence[str], stop: Callable[[], bool]
    ) -> list[Digest]:
        if self.scope.hash_key is not None:
            return hashed.stored_digests(self.hands_out, self.scope, spans, without, stop)
        seen = summed(self.ask(lambda place: canonical.digests(place, self.scope, spans, without)))
        return [seen.get(str(i), Digest()) for i in range(len(spans))]

    def entries(self, spans: Sequence[Span], prefixes: Sequence[str] = ()) -> list[tuple[object, ...]]:
        """The hashes and keys of the rows of ranges, or of groups; only if the servers hash."""
        return self.ask(lambda place: canonical.entries(place, self.scope, spans, prefixes))

    def ask(self, words: Callable[[TargetSql], Sequence[str]]) -> list[tuple[object, ...]]:
        """The warehouse's answer; empty if the target doesn't exist."""
        return self.services.warehouse().ask(self.table.target, words) or []

    def groups(
        self,
        digits: int,
        without: Sequence[str] = (),
        prefixes: Sequence[str] = (),
        stop: Callable[[], bool] = never,
    ) -> dict[str, Digest]:
        """The digests of groups, of all or of those with these prefixes."""
        if self.scope.hash_key is not None:
            return hashed.stored_groups(self.hands_out, self.scope, digits, without, stop)
        return summed(self.ask(lambda place: canonical.grouped(place, self.scope, digits, without, prefixes)))

    def stored(self, spans: Sequence[Span], prefixes: Sequence[str] = ()) -> Rows:
        """The rows of ranges, or of groups, with their hashes; only if we hash them."""
        return hashed.stored(self.hands_out, self.scope, spans, prefixes)

    @property
    def hands_out(self) -> HandsOutRows:
        warehouse = self.services.warehouse()
        assert isinstance(warehouse, HandsOutRows)
        return warehouse


class Refused(Exception):
    """A worker can't hash some rows as we do: the search begins anew, and the servers hash."""

    def __init__(self, unable: bool) -> None:
        """`unable`: it can hash no rows at all."""
        self.unable = unable


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


def parsed_columns(services: Services, table: Table) -> frozenset[str]:
    """The target's columns of parsed JSON: whoever created the target may have made text such a column."""
    types, can = services.warehouse().types(table.target) or {}, services.config.warehouse.can
    return frozenset(name for name, type_ in types.items() if type_.upper() == can.parsed)
