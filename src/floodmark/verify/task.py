"""The source's side, in a Spark task: the sums of a range's rows, or the rows' keys and hashes.

If the scope has a key for hashes, the task fetches the rows as an extraction does, so that a comparison loads the
source no more than a sync, and hashes them; else MySQL hashes them. Sums and left-out keys come from the same
snapshot, so that a later query to the warehouse leaves out exactly the rows that the sums do.

An error of the reader itself would be in the warehouse as well, and both sides would agree. So some rows of every
range are also compared as the servers print them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pyarrow.compute

from floodmark.config.load import SourceSpec
from floodmark.model import row_hash
from floodmark.model.canonical import Digest, Form, Printed, Scope, Span, printed
from floodmark.model.errors import DataError
from floodmark.model.origin import UNKNOWN_SOURCE, SourceId
from floodmark.model.row_hash import Sums, groups, hashes, to_hex
from floodmark.model.table import Table
from floodmark.model.types import Field
from floodmark.source import canonical, sql
from floodmark.source.identity import end_read, session_on
from floodmark.source.read import Batches, UnfitValue
from floodmark.source.session import Session
from floodmark.spark.job import Relay
from floodmark.verify.rows import HashedRows, Listing, key_columns, key_of_hashes
from floodmark.verify.sketch import Sketch, Sketches

pc: Any = pyarrow.compute

# A range of keys, or the first digits of the hashed keys of a group.
Place = Span | str

# How many left-out rows are listed: of groups, of a range that we hash, and of one that MySQL hashes.
LISTED_OF_GROUPS = 100_000
LISTED_HERE = 20_000
LISTED = 2000
# Rows of each range that are also compared as the servers print them.
SAMPLE = 50
# MySQL sums a range in so many pieces.
PIECES = 10
# A range is a single answer, which takes as long as reading all its rows.
READ_SECONDS = 1800
# MySQL's only warning when it turns an expression longer than max_allowed_packet into NULL.
_TOO_LONG = 1301


@dataclass(frozen=True)
class SourceRows:
    """What a task found, all of it in one snapshot."""

    spans: tuple[Span, ...]
    sums: dict[Place, Digest] = field(default_factory=dict)  # of pieces of the range, in order, or of groups
    beyond: tuple[str, ...] = ()  # hashed keys of rows after the watermark, as far as they are listed
    left_out: int = 0  # how many rows are after the watermark
    sample: tuple[Printed, ...] = ()  # keys of some rows, if they were hashed here
    sketch: Sketch = field(default=(), repr=False)  # empty: none was made
    rows: HashedRows | None = None  # if they were to be listed
    source: SourceId = UNKNOWN_SOURCE  # what was really read
    refused: bool = False  # the rows can't be hashed here: the servers have to

    @property
    def digest(self) -> Digest:
        return sum(self.sums.values(), Digest())

    @property
    def crowded(self) -> bool:
        """Whether more rows are after the watermark than are listed."""
        return self.left_out > len(self.beyond)


@dataclass(frozen=True)
class SourceJob:
    """One range to sum, or ranges whose rows are to be listed."""

    source: SourceSpec
    scope: Scope
    spans: tuple[Span, ...]
    listed: bool = False
    prefixes: tuple[str, ...] = ()  # list only rows whose hashed keys have one of these
    digits: int = 0  # sum groups, by this many first digits of the keys' hashes
    cells: int = 0  # of a table in the sketch, if there is to be one
    expected: SourceId = UNKNOWN_SOURCE  # the server and the table to read

    @property
    def table(self) -> Table:
        return self.scope.table

    def title(self, of: int) -> str:
        """The task's name in Spark's UI."""
        what = f"rows of {len(self.spans)} ranges" if self.listed else f"one of {of} ranges"
        return f"verify {self.table.name}, {what}"

    def go(self, told: Callable[[int], None] = lambda rows: None, relay: Relay | None = None) -> SourceRows:
        """What all queries see in the snapshot of the first one, which also keeps the table as it is; raises FloodmarkError."""

        def opened() -> Session:
            return Session(self.source, read_timeout=READ_SECONDS, purpose=f"verify {self.table.name}")

        nothing = SourceRows(self.spans)
        if self.scope.hash_key is not None and row_hash.compiled is None:  # another machine may lack it
            return replace(nothing, refused=True)
        with session_on(self.expected.server, opened) as session:
            session.rows("START TRANSACTION")
            try:
                found = self._rows(session) if self.listed else self._summed(session)
            except UnfitValue:
                return replace(nothing, refused=True)
            return replace(found, source=end_read(session, self.table, self.expected))

    def _summed(self, session: Session) -> SourceRows:
        [span] = self.spans
        found = self._by_server(session, span) if self.scope.hash_key is None else self._by_us(session, span)
        beyond, left_out = self._beyond(session, span)
        return replace(found, beyond=beyond, left_out=left_out)

    def _by_server(self, session: Session, span: Span) -> SourceRows:
        sums = dict[Place, Digest]()
        for piece in [span] if self.digits else pieces(self.table, span):
            for part, rows, total in session.rows(canonical.digest(self.scope, piece, self.digits)):
                group = (part or b"").decode()
                sums[group if self.digits else piece] = Digest(int(rows or 0), int(total or 0))
            _check(session, self.table)
        return SourceRows(self.spans, sums)

    def _by_us(self, session: Session, span: Span) -> SourceRows:
        """Raises UnfitValue if a value can't be had as in a file."""
        scope, sums, sample = self.scope, Sums(16**self.digits), tuple[Printed, ...]()
        sketches = Sketches(scope, self.cells) if self.cells else None
        for batch in _batches(session, scope, canonical.fetched(scope, span), scope.forms):
            columns, hashed = batch.columns, hashes(batch.columns, key_of_hashes(scope))
            keys = key_columns(scope, columns)
            sums.add(hashed, groups(hashes(keys, key_of_hashes(scope)), self.digits) if self.digits else None)
            if sketches is not None:
                sketches.add(columns, hashed)
            sample = sample or _sample(scope, keys)
        found: dict[Place, Digest] = (
            dict(sums.by_group(self.digits)) if self.digits else {span: sums.digests()[0]}
        )
        [sketch] = sketches.made() if sketches is not None else [()]
        return SourceRows(self.spans, found, sample=sample, sketch=sketch)

    def _beyond(self, session: Session, span: Span) -> tuple[tuple[str, ...], int]:
        """The hashed keys of left-out rows, as far as they are listed, and their total number."""
        by_us = self.scope.hash_key is not None
        most = LISTED_OF_GROUPS if self.digits else LISTED_HERE if by_us else LISTED
        question, count = (canonical.beyond(self.scope, span, n) for n in (most + 1, None))
        if question is None or count is None:
            return (), 0
        if by_us:
            batches = _batches(session, self.scope, question, self.scope.keys)
            key = key_of_hashes(self.scope)
            found = [text for batch in batches for text in to_hex(hashes(batch.columns, key))]
        else:
            found = [(cell or b"").decode() for (cell,) in session.rows(question)]
        left_out = len(found) if len(found) <= most else int(session.rows(count)[0][0] or 0)
        return tuple(found[:most]), left_out

    def _rows(self, session: Session) -> SourceRows:
        """The rows of some ranges, or those of them whose hashed keys have one of the prefixes."""
        scope, listing = self.scope, Listing(self.scope)
        place = Field("place", scope.table.key[0], select="", arrow=pa.int64())
        for span in self.spans:
            if scope.hash_key is not None:
                for batch in _batches(
                    session, scope, canonical.fetched_places(scope, span), scope.forms, place
                ):
                    *columns, inside = batch.columns
                    listing.add(columns, self.prefixes, pc.equal(inside, 1))
                continue
            rows = session.rows(canonical.entries(scope, span, self.prefixes))
            _check(session, self.table)
            texts = [[None if cell is None else cell.decode() for cell in row] for row in rows]
            listing.add_printed([row[1:] for row in texts], [row[0] in ("in", "loose") for row in texts])
        return SourceRows(self.spans, rows=listing.rows())


def pieces(table: Table, span: Span) -> list[Span]:
    """A range in pieces of equal width, if its ends are numbers: to cut it into equal numbers of rows would take a scan."""
    if not (span.after and span.upto and table.column(table.key[0]).data_type in sql.NUMERIC - {"decimal"}):
        return [span]
    low, high = int(span.after[0]), int(span.upto[0])
    cuts = sorted({low + (high - low) * n // PIECES for n in range(1, PIECES)} - {low, high})
    ends = [span.after, *((cut,) for cut in cuts), span.upto]
    return [Span(after, upto) for after, upto in pairwise(ends)]


def _batches(session: Session, scope: Scope, sql: str, chosen: Sequence[Form], *more: Field) -> Iterator[Any]:
    pa.set_memory_pool(pa.system_memory_pool())  # as in an extraction, for the same reason
    return Batches(session, scope.table, sql, chosen=[*(form.field for form in chosen), *more])


def _sample(scope: Scope, keys: Sequence[Any]) -> tuple[Printed, ...]:
    """The printed keys of rows that lie evenly in a batch."""
    which = slice(None, None, max(1, -(-len(keys[0]) // SAMPLE)))
    return tuple(zip(*(printed(f, key[which]) for f, key in zip(scope.keys, keys, strict=True)), strict=True))


def _check(session: Session, table: Table) -> None:
    if session.warnings() and any(
        int(code or 0) == _TOO_LONG for _, code, _ in session.rows("SHOW WARNINGS")
    ):
        raise DataError(
            "a value is longer than max_allowed_packet: MySQL can't compute its checksum",
            hint="raise max_allowed_packet on the source, or exclude the column",
        )
