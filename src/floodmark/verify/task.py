"""The body of a Spark task that compares: digests of a range of the source, or its rows' keys and hashes.

The task fetches the rows and hashes them, or MySQL hashes them if the scope has no key for hashes. It returns only
a few numbers and, if it hashed the rows, perhaps a sketch. The digest and the left-out keys come from the same
snapshot, so that the later query to the warehouse leaves out exactly the rows that the digest does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar, cast

from floodmark.config.load import SourceSpec
from floodmark.model import row_hash
from floodmark.model.canonical import Digest, Entry, Membership, Part, Printed, Scope, Span
from floodmark.model.errors import DataError
from floodmark.model.origin import UNKNOWN_SOURCE, SourceId
from floodmark.model.position import Position
from floodmark.model.table import Table
from floodmark.source import canonical
from floodmark.source import ranges as edges
from floodmark.source.identity import end_read, session_on
from floodmark.source.read import UnfitValue
from floodmark.source.session import Row, Session
from floodmark.spark.job import Relay
from floodmark.verify import hashed
from floodmark.verify.hashed import Rows
from floodmark.verify.sketched import KeyedSketches

Result = TypeVar("Result", "Digested", "Listing")

# How many rows after the watermark are listed per range; and per range of rows that are hashed here.
LISTED = 2000
LISTED_HERE = 20_000
# A range is a single answer, which takes as long as reading all its rows.
READ_SECONDS = 1800
# MySQL's only warning when it turns an expression longer than max_allowed_packet into NULL.
_TOO_LONG = 1301


@dataclass(frozen=True)
class DigestJob:
    """One range to digest; with `step`, first cut into ranges of that many rows."""

    source: SourceSpec
    scope: Scope
    span: Span
    step: int | None = None
    digits: int = 0  # group by this many first digits of the keys' hashes
    cells: int = 0  # of a table in the sketch, if there is to be one
    expected: SourceId = UNKNOWN_SOURCE  # the server and the table to read

    @property
    def table(self) -> Table:
        return self.scope.table

    def title(self, of: int) -> str:
        """The task's name in Spark's UI."""
        return f"verify {self.table.name}, one of {of} ranges"

    def go(self, told: Callable[[int], None] = lambda rows: None, relay: Relay | None = None) -> Digested:
        """The digests from one snapshot of the source; raises FloodmarkError."""
        return _looked(self, Digested(), self._grouped if self.digits else self._digested)

    def _digested(self, session: Session) -> Digested:
        span, cuts = self.span, tuple[Position, ...]()
        if self.step:
            cuts = edges.walk(session, self.table, self.table.key, span.after, span.upto, self.step)
        ends = zip((span.after, *cuts), (*cuts, span.upto), strict=True)
        return Digested(tuple(self._part(session, Span(after, upto)) for after, upto in ends))

    def _part(self, session: Session, span: Span) -> Part:
        if self.scope.hash_key is not None:
            sketches = KeyedSketches(self.scope, self.cells) if self.cells else None
            sums, sample = hashed.sums_of(session, self.scope, span, sketches=sketches)
            [sketch] = sketches.made() if sketches else [()]
            return Part(span, sums.digests()[0], *self._beyond(session, span, LISTED_HERE), sample, sketch)
        [(rows, total)] = session.rows(canonical.digest(self.scope, span))
        _check(session, self.table)
        beyond = self._beyond(session, span, LISTED)
        return Part(span, Digest(int(rows or 0), int(total or 0)), *beyond)

    def _grouped(self, session: Session) -> Digested:
        if self.scope.hash_key is not None:
            sums, sample = hashed.sums_of(session, self.scope, self.span, self.digits)
            groups = hashed.grouped(sums, self.digits)
            return Digested((), groups, *self._beyond(session, self.span, 50 * LISTED), sample)
        found = session.rows(canonical.digest(self.scope, self.span, self.digits))
        _check(session, self.table)
        groups = {
            (part or b"").decode(): Digest(int(rows or 0), int(total or 0)) for part, rows, total in found
        }
        return Digested((), groups, *self._beyond(session, self.span, 50 * LISTED))

    def _beyond(self, session: Session, span: Span, most: int) -> tuple[tuple[str, ...], int]:
        """The hashed keys of left-out rows, up to `most`, and their total number."""
        question, count = (canonical.beyond(self.scope, span, n) for n in (most + 1, None))
        if question is None or count is None:
            return (), 0
        if self.scope.hash_key is not None:
            found = tuple(hashed.beyond(session, self.scope, span, most + 1))
        else:
            found = tuple((cell or b"").decode() for (cell,) in session.rows(question))
        if len(found) <= most:
            return found, len(found)
        return found[:most], int(session.rows(count)[0][0] or 0)


@dataclass(frozen=True)
class Digested:
    """What a task found."""

    parts: tuple[Part, ...] = ()
    groups: dict[str, Digest] | None = None
    beyond: tuple[str, ...] = ()
    left_out: int = 0
    sample: tuple[Printed, ...] = ()  # keys of some rows, if they were hashed here
    source: SourceId = UNKNOWN_SOURCE  # what was really read
    refused: bool = False  # the rows can't be hashed here: the servers have to
    unable: bool = False  # nor can any others: this Python lacks the compiled hash

    @property
    def rows(self) -> int:
        return sum(p.digest.rows for p in self.parts) + sum(d.rows for d in (self.groups or {}).values())


@dataclass(frozen=True)
class EntriesJob:
    """Ranges whose rows are to be listed: all rows, or those whose hashed keys have one of the prefixes."""

    source: SourceSpec
    scope: Scope
    spans: tuple[Span, ...]
    prefixes: tuple[str, ...] = ()
    expected: SourceId = UNKNOWN_SOURCE  # the server and the table to read

    @property
    def table(self) -> Table:
        return self.scope.table

    def title(self, of: int) -> str:
        return f"verify {self.table.name}, rows of {len(self.spans)} ranges"

    def go(self, told: Callable[[int], None] = lambda rows: None, relay: Relay | None = None) -> Listing:
        """The rows' keys and hashes; raises FloodmarkError."""
        return _looked(self, Listing(self.spans), self._listed)

    def _listed(self, session: Session) -> Listing:
        if self.scope.hash_key is not None:
            return Listing(self.spans, rows=hashed.listed(session, self.scope, self.spans, self.prefixes))
        found: list[Entry] = []
        for span in self.spans:
            rows = session.rows(canonical.entries(self.scope, span, self.prefixes))
            _check(session, self.table)
            found += [entry(self.scope, row) for row in rows]
        return Listing(self.spans, tuple(found))


@dataclass(frozen=True)
class Listing:
    """The rows of some ranges, as entries or, if they were hashed here, as Arrow columns."""

    spans: tuple[Span, ...]
    entries: tuple[Entry, ...] = ()
    rows: Rows | None = None
    source: SourceId = UNKNOWN_SOURCE  # what was really read
    refused: bool = False  # the rows can't be hashed here
    unable: bool = False  # nor any others


def _able(scope: Scope) -> bool:
    """Whether this Python has the compiled hash, if it is needed; another machine may lack it."""
    return scope.hash_key is None or row_hash.compiled is not None


def entry(scope: Scope, row: Row) -> Entry:
    """A row of `canonical.entries` or `canonical.rows`."""
    place, hash_, *cells = [None if cell is None else cell.decode() for cell in row]
    keys = len(scope.table.key)
    return Entry(
        tuple(cells[:keys]), hash_ or "", tuple(c or "" for c in cells[keys:]), cast(Membership, place)
    )


def _looked(job: DigestJob | EntriesJob, nothing: Result, look: Callable[[Session], Result]) -> Result:
    """What a look finds whose queries all see the same snapshot: that of the first one, which also keeps the table as it is."""

    def opened() -> Session:
        return Session(job.source, read_timeout=READ_SECONDS, purpose=f"verify {job.table.name}")

    if not _able(job.scope):
        return replace(nothing, refused=True, unable=True)
    with session_on(job.expected.server, opened) as session:
        session.rows("START TRANSACTION")
        try:
            found = look(session)
        except UnfitValue:
            return replace(nothing, refused=True)
        return replace(found, source=end_read(session, job.table, job.expected))


def _check(session: Session, table: Table) -> None:
    if session.warnings() and any(
        int(code or 0) == _TOO_LONG for _, code, _ in session.rows("SHOW WARNINGS")
    ):
        raise DataError(
            "a value is longer than max_allowed_packet: MySQL can't compute its checksum",
            hint="raise max_allowed_packet on the source, or exclude the column",
            table=table.name,
        )
