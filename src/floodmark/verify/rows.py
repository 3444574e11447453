"""Rows of either side by their keys and hashes, as Arrow columns: tens of bytes per row. And which rows differ.

The keys are the servers' values if we have hashed the rows, else the texts that the servers print.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from floodmark.model.canonical import Printed, Scope, printed
from floodmark.model.row_hash import HASH, from_hex, groups, hashes

pc: Any = pyarrow.compute


@dataclass(frozen=True)
class HashedRows:
    """Rows by their keys: a column for each of the key's, and one of hashes; keys of rows outside the scope."""

    compared: pa.Table
    passed: pa.Table | None = None

    def keys(self, scope: Scope, which: Any = None) -> list[Printed]:
        """The printed keys, or those of the rows that a mask tells."""
        return _printed(scope, self.compared if which is None else self.compared.filter(which))

    @property
    def hashes(self) -> Any:
        return self.compared.column(self.compared.num_columns - 1)


class Listing:
    """Gathers rows, batch by batch."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        kinds = [pa.string() if scope.hash_key is None else form.field.arrow for form in scope.keys]
        names = [f"key{i}" for i in range(len(kinds))]
        self._schema = pa.schema(zip([*names, "hash"], [*kinds, HASH], strict=True))
        self._compared: list[pa.RecordBatch] = []
        self._passed: list[pa.RecordBatch] = []

    def add(self, columns: Sequence[Any], prefixes: Collection[str] = (), inside: Any = None) -> None:
        """Adds rows that we hash, or those whose hashed keys have a prefix; `inside`: whether each is in the scope."""
        keys = key_columns(self._scope, columns)
        batch = self._batch([*keys, hashes(columns, key_of_hashes(self._scope))])
        if prefixes:
            keyed = hashes(keys, key_of_hashes(self._scope))
            numbers = groups(keyed, len(next(iter(prefixes))))
            chosen = pa.array(np.isin(numbers, [int(prefix, 16) for prefix in prefixes]))
            batch, inside = batch.filter(chosen), None if inside is None else inside.filter(chosen)
        self._add(batch, inside)

    def add_printed(self, rows: Sequence[Sequence[object]], inside: Sequence[bool] | None = None) -> None:
        """Adds rows that a server has hashed: the hash, and the printed key."""
        if rows:
            hashed, *keys = zip(*rows, strict=True)
            texts = [pa.array([None if k is None else str(k) for k in key], pa.string()) for key in keys]
            self._add(self._batch([*texts, from_hex([str(h) for h in hashed])]), inside)

    def _batch(self, columns: Sequence[Any]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays(columns, names=self._schema.names)

    def _add(self, batch: pa.RecordBatch, inside: Any) -> None:
        if inside is None:
            self._compared.append(batch)
            return
        inside = pa.array(inside) if isinstance(inside, list) else inside
        self._compared.append(batch.filter(inside))
        self._passed.append(batch.filter(pc.invert(inside)))

    def rows(self) -> HashedRows:
        sides = (self._compared, self._passed)
        return HashedRows(*(pa.Table.from_batches(some, None if some else self._schema) for some in sides))


def key_of_hashes(scope: Scope) -> bytes:
    assert scope.hash_key is not None
    return scope.hash_key


def key_columns(scope: Scope, columns: Sequence[Any]) -> list[Any]:
    """Those of the scope's columns that make the key."""
    return [columns[scope.forms.index(form)] for form in scope.keys]


def _printed(scope: Scope, table: pa.Table) -> list[Printed]:
    columns = (
        [text for chunk in table.column(i).chunks for text in printed(form, chunk)]
        for i, form in enumerate(scope.keys)
    )
    return list(zip(*columns, strict=True))


def joined(some: Iterable[HashedRows]) -> HashedRows:
    """All rows of several listings."""
    every = list(some)
    passed = [rows.passed for rows in every if rows.passed is not None]
    return HashedRows(pa.concat_tables([rows.compared for rows in every]), pa.concat_tables(passed))


def differing(scope: Scope, mine: HashedRows, theirs: HashedRows) -> dict[Printed, bool]:
    """The keys whose rows differ between the two sides, and whether the warehouse has a row with it.

    Rows outside the scope are ignored, whatever the warehouse has of them.
    """
    both = (mine.hashes, theirs.hashes)
    own, other = (pc.invert(pc.is_in(a, value_set=b)) for a, b in (both, both[::-1]))
    if any(len(side) != len(side.unique()) for side in both):
        more = _more_often(*both)
        own = pc.or_(own, pc.is_in(mine.hashes, value_set=more))
        other = pc.or_(other, pc.is_in(theirs.hashes, value_set=more))
    found = dict.fromkeys(mine.keys(scope, own), False) | dict.fromkeys(theirs.keys(scope, other), True)
    passed = set(_printed(scope, mine.passed)) if mine.passed is not None and found else ()
    return {key: there for key, there in found.items() if key not in passed}


def _more_often(mine: Any, theirs: Any) -> Any:
    """The hashes of rows that the two sides don't have equally often."""
    counts = [Counter(side.to_pylist()) for side in (mine, theirs)]
    return pa.array([h for h in counts[0].keys() | counts[1].keys() if counts[0][h] != counts[1][h]], HASH)
