"""Rows that are fetched from both sides and hashed here: the source's in Spark workers, the warehouse's in the driver.

The workers read as an extraction does, so a comparison loads the source no more than a sync. Equal rows have
equal hashes because both sides hand out the same Arrow values. From a worker only sums and sketches return or, of
ranges that differ much, keys and hashes as Arrow columns: tens of bytes per row.

An error of the reader itself would be in the warehouse as well, and both sides would agree. So some rows of every
range are also compared as the servers print them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from floodmark.load import canonical
from floodmark.load.protocol import HandsOutRows
from floodmark.model.canonical import Digest, Form, Printed, Scope, Span, printed
from floodmark.model.row_hash import HASH, Lookup, Sums, among, from_hex, groups, hashes, to_hex
from floodmark.model.types import Field
from floodmark.source import canonical as source_sql
from floodmark.source.read import Batches
from floodmark.source.session import Session
from floodmark.verify.sketched import KeyedSketches

pc: Any = pyarrow.compute

# Rows of each range that are also compared as the servers print them.
SAMPLE = 50
# Bytes of a value that is neither text nor bytes, at most.
NUMBER = 16
# More digits would make more groups than are worth returning.
MOST_DIGITS = 5


@dataclass(frozen=True)
class Rows:
    """Rows by their keys: a column for each of the key's, and one of hashes; keys of rows outside the scope."""

    compared: pa.Table
    passed: pa.Table | None = None

    def keys(self, scope: Scope, which: Any = None) -> list[Printed]:
        """The printed keys, or those of the rows that a mask tells."""
        return _printed(scope, self.compared if which is None else self.compared.filter(which))

    @property
    def hashes(self) -> Any:
        return self.compared.column(HASHES)


HASHES = "hash"


def _printed(scope: Scope, table: pa.Table) -> list[Printed]:
    columns = (
        [text for chunk in table.column(i).chunks for text in printed(form, chunk)]
        for i, form in enumerate(scope.keys)
    )
    return list(zip(*columns, strict=True))


class _Listing:
    """Gathers rows, batch by batch."""

    def __init__(self, scope: Scope) -> None:
        self._key = _key(scope)
        self._keys = [scope.forms.index(form) for form in scope.keys]
        self._kinds = [form.field.arrow for form in scope.keys]
        self._names = [*(f"key{i}" for i in range(len(scope.keys))), HASHES]
        self.compared: list[pa.RecordBatch] = []
        self.passed: list[pa.RecordBatch] = []

    def add(self, columns: Sequence[Any], which: Any = None, inside: Any = None) -> None:
        """Adds rows, or those of them that a mask tells; `inside`: whether each is in the scope."""
        keys = [columns[i] for i in self._keys]
        batch = pa.RecordBatch.from_arrays([*keys, hashes(columns, self._key)], names=self._names)
        if which is not None:
            batch = batch.filter(which)
            inside = None if inside is None else inside.filter(which)
        if inside is None:
            self.compared.append(batch)
            return
        self.compared.append(batch.filter(inside))
        self.passed.append(batch.filter(pc.invert(inside)))

    def rows(self) -> Rows:
        schema = pa.schema(zip(self._names, [*self._kinds, HASH], strict=True))
        return Rows(
            *(pa.Table.from_batches(some, None if some else schema) for some in (self.compared, self.passed))
        )


def _key(scope: Scope) -> bytes:
    assert scope.hash_key is not None
    return scope.hash_key


def _keyed(scope: Scope, columns: Sequence[Any]) -> Any:
    """The hashes of the rows' keys."""
    return hashes([columns[scope.forms.index(form)] for form in scope.keys], _key(scope))


def _chosen(scope: Scope, columns: Sequence[Any], prefixes: Collection[str]) -> Any:
    """Which rows have a key whose hash begins with one of the prefixes."""
    numbers = [int(prefix, 16) for prefix in prefixes]
    digits = len(next(iter(prefixes)))
    return pa.array(np.isin(groups(_keyed(scope, columns), digits), numbers))


def grouped(sums: Sums, digits: int) -> dict[str, Digest]:
    """The digests of groups by so many digits that have rows."""
    return {f"{n:0{digits}x}": digest for n, digest in enumerate(sums.digests()) if digest.rows}


# ---------------------------------------------------------------- the source, in a worker


def _batches(session: Session, scope: Scope, sql: str, chosen: Sequence[Form], *more: Field) -> Iterator[Any]:
    pa.set_memory_pool(pa.system_memory_pool())  # as in an extraction, for the same reason
    return Batches(session, scope.table, sql, chosen=[*(form.field for form in chosen), *more])


def sums_of(
    session: Session, scope: Scope, span: Span, digits: int = 0, sketches: KeyedSketches | None = None
) -> tuple[Sums, tuple[Printed, ...]]:
    """The sums of a range's rows, by the first digits of their keys' hashes, and the keys of some rows.

    Raises UnfitValue if a value can't be had as in a file.
    """
    sums, sample = Sums(16**digits), tuple[Printed, ...]()
    for batch in _batches(session, scope, source_sql.fetched(scope, span), scope.forms):
        columns, hashed = batch.columns, hashes(batch.columns, _key(scope))
        sums.add(hashed, groups(_keyed(scope, columns), digits) if digits else None)
        if sketches is not None:
            sketches.add(columns, hashed)
        sample = sample or _sample(scope, columns)
    return sums, sample


def _sample(scope: Scope, columns: Sequence[Any]) -> tuple[Printed, ...]:
    """The printed keys of rows that lie evenly in a batch."""
    which = slice(None, None, max(1, -(-len(columns[0]) // SAMPLE)))
    keys = ((form, columns[scope.forms.index(form)][which]) for form in scope.keys)
    return tuple(zip(*(printed(form, column) for form, column in keys), strict=True))


def beyond(session: Session, scope: Scope, span: Span, most: int) -> list[str]:
    """The hashed keys of up to so many left-out rows."""
    sql = source_sql.beyond(scope, span, most, fetched=True)
    found = _batches(session, scope, sql, scope.keys) if sql is not None else ()
    return [text for batch in found for text in to_hex(hashes(batch.columns, _key(scope)))]


def listed(session: Session, scope: Scope, spans: Sequence[Span], prefixes: Collection[str]) -> Rows:
    """The rows of some ranges, or those of them whose hashed keys have one of the prefixes."""
    listing = _Listing(scope)
    place = Field("place", scope.table.key[0], select="", arrow=pa.int64())
    for span in spans:
        for batch in _batches(session, scope, source_sql.fetched_places(scope, span), scope.forms, place):
            *columns, inside = batch.columns
            which = _chosen(scope, columns, prefixes) if prefixes else None
            listing.add(columns, which, pc.equal(inside, 1))
    return listing.rows()


# ---------------------------------------------------------------- the warehouse, in the driver


class Stopped(Exception):
    """Nobody wants the result any more."""


def never() -> bool:
    return False


def _handed_out(
    warehouse: HandsOutRows,
    scope: Scope,
    spans: Sequence[Span],
    each: Callable[[Sequence[Any]], None],
    stop: Callable[[], bool] = never,
) -> None:
    warehouse.hand_out(
        scope.table.target,
        lambda place: canonical.fetched(place, scope, spans),
        lambda batch: each(batch.columns),
        width=sum(form.field.max_bytes + NUMBER for form in scope.forms),
        at_once=not scope.table.key,  # a difference would be reported without a second look
        stop=stop,
    )
    if stop():
        raise Stopped


def stored_digests(
    warehouse: HandsOutRows,
    scope: Scope,
    spans: Sequence[Span],
    without: Sequence[str],
    stop: Callable[[], bool] = never,
    sketches: KeyedSketches | None = None,
) -> list[Digest]:
    """The digests of ranges in key order, without the rows that have these hashed keys; sketches have all."""
    return _stored_sums(warehouse, scope, spans, without, stop, sketches).digests()


def stored_groups(
    warehouse: HandsOutRows,
    scope: Scope,
    digits: int,
    without: Sequence[str],
    stop: Callable[[], bool] = never,
) -> dict[str, Digest]:
    """The digests of all rows but those with these hashed keys, by the first digits of the keys' hashes."""
    return grouped(_stored_sums(warehouse, scope, (), without, stop, digits=digits), digits)


def _stored_sums(
    warehouse: HandsOutRows,
    scope: Scope,
    spans: Sequence[Span],
    without: Sequence[str],
    stop: Callable[[], bool],
    sketches: KeyedSketches | None = None,
    digits: int = 0,
) -> Sums:
    """The sums of ranges, or of groups by so many digits."""
    sums, gone = Sums(16**digits if digits else len(spans)), Lookup(from_hex(without))

    def each(columns: Sequence[Any]) -> None:
        *values, ranges = columns
        hashed, keyed = hashes(values, _key(scope)), _keyed(scope, values) if without or digits else None
        parts = groups(keyed, digits) if digits else ranges.to_numpy()
        if sketches is not None:
            sketches.add(values, hashed, parts)
        if without:
            kept = pc.invert(gone.among(keyed))
            hashed, parts = hashed.filter(kept), parts[kept.to_numpy(zero_copy_only=False)]
        sums.add(hashed, parts)

    _handed_out(warehouse, scope, spans, each, stop)
    return sums


def stored(
    warehouse: HandsOutRows, scope: Scope, spans: Sequence[Span], prefixes: Collection[str] = ()
) -> Rows:
    """The rows of some ranges, or those whose hashed keys have one of the prefixes."""
    listing = _Listing(scope)

    def each(columns: Sequence[Any]) -> None:
        values = columns[:-1]
        listing.add(values, _chosen(scope, values, prefixes) if prefixes else None)

    _handed_out(warehouse, scope, spans, each)
    return listing.rows()


# ---------------------------------------------------------------- both


def joined(some: Sequence[Rows]) -> Rows:
    """All rows of several listings."""
    return Rows(
        pa.concat_tables([rows.compared for rows in some]),
        pa.concat_tables([rows.passed for rows in some if rows.passed is not None]),
    )


def differing(scope: Scope, mine: Rows, theirs: Rows) -> dict[Printed, bool]:
    """The keys whose rows differ between the two sides, and whether the warehouse has a row with it.

    Rows outside the scope are ignored, whatever the warehouse has of them.
    """
    own, other = (
        pc.invert(among(a, b)) for a, b in ((mine.hashes, theirs.hashes), (theirs.hashes, mine.hashes))
    )
    if any(len(side.hashes) != len(side.hashes.unique()) for side in (mine, theirs)):
        more = _more_often(mine.hashes, theirs.hashes)
        own, other = pc.or_(own, among(mine.hashes, more)), pc.or_(other, among(theirs.hashes, more))
    ours, stored_keys = mine.keys(scope, own), theirs.keys(scope, other)
    passed = set(_printed(scope, mine.passed)) if mine.passed is not None and (ours or stored_keys) else set()
    found = dict.fromkeys(ours, False) | dict.fromkeys(stored_keys, True)
    return {key: there for key, there in found.items() if key not in passed}


def _more_often(mine: Any, theirs: Any) -> Any:
    """The hashes of rows that the two sides don't have equally often."""
    counts = [Counter(side.to_pylist()) for side in (mine, theirs)]
    return pa.array([h for h in counts[0].keys() | counts[1].keys() if counts[0][h] != counts[1][h]], HASH)
