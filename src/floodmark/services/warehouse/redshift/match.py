"""Which staged rows share a key, and which of the target's rows have it too. Pure: conditions and steps out.

Keys are compared by their bytes, or by MySQL's weights where a collation considers different bytes equal. A
weight is VARBYTE, and AWS does not document grouping or partitioning by that type; so its hash stands for it,
computed once into a narrow table beside the staged rows. Joins compare columns with columns, as DELETE …
USING expects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from floodmark.model.names import OUR_TABLES, OURS
from floodmark.model.types import KEY_FIELD, READ_FIELD, Field
from floodmark.services.warehouse.protocol import HASH_FIELD, quote
from floodmark.services.warehouse.redshift.ddl import hashed
from floodmark.services.warehouse.redshift.files import Proven, as_text, key_ranges
from floodmark.services.warehouse.redshift.names import literal
from floodmark.services.warehouse.redshift.stage import STAGE, Heap, Put, exact_type
from floodmark.services.warehouse.redshift.steps import Do, Step

WEIGHTS = f"{OUR_TABLES}weights"
KEPT = f"{OUR_TABLES}kept"
_TWICE = f"{OUR_TABLES}twice"
_OLDER = f"{OUR_TABLES}older"
_TIED = f"{OUR_TABLES}tied"
_NEWEST = f"{OUR_TABLES}newest"
_PLACE = f"_{OUR_TABLES}place"


# ---------------------------------------------------------------- conditions


def match(spec: Put, one: str, other: str) -> str:
    """The condition that rows of two tables have the same key, byte by byte."""
    terms = []
    for field, name in spec.keys:
        left, right = f"{quote(one)}.{quote(name)}", f"{quote(other)}.{quote(name)}"
        terms.append(f"{left} = {right}")
        if _is_text(field):
            # To Redshift 'a' equals 'a '; with something after the spaces it does not.
            terms.append(f"{left} || '.' = {right} || '.'")
    return " AND ".join(terms)


def same_weight(one: str, other: str = WEIGHTS) -> str:
    """The condition that rows of two tables have keys that MySQL considers equal."""
    return f"{quote(one)}.{quote(HASH_FIELD)} = {quote(other)}.{quote(HASH_FIELD)}"


def bounded(spec: Put, files: Sequence[Proven]) -> str:
    """More conditions that every target row with a key of the files meets: Redshift can skip most blocks.

    The ranges are the footers', and the staged rows were checked against them.
    """
    terms = ""
    for name, (low, high) in key_ranges(files, [field for field, _ in spec.keys]).items():
        field, column = next((f, c) for f, c in spec.keys if f.name == name)
        ends = [f"CAST({literal(as_text(value))} AS {exact_type(field)})" for value in (low, high)]
        terms += f" AND {quote(spec.target)}.{quote(column)} BETWEEN {ends[0]} AND {ends[1]}"
    return terms


# ---------------------------------------------------------------- weights


def weigh(spec: Put, heap: Heap, told: bool) -> list[Step]:
    """Hash the rows' weights, beside their keys, unless bytes decide; `told`: with the read time."""
    if not spec.weighed:
        return []
    names = [quote(name) for _, name in spec.keys] + ([quote(READ_FIELD)] if told else [])
    return [
        Do(
            f"CREATE TEMP TABLE {quote(WEIGHTS)} AS SELECT {hashed(quote(KEY_FIELD))} AS {quote(HASH_FIELD)}, "
            f"{', '.join(names)} FROM {heap.path}"
        )
    ]


def unweigh(spec: Put) -> list[Step]:
    """Drop the hashes."""
    return [Do(f"DROP TABLE {quote(WEIGHTS)}")] if spec.weighed else []


# ---------------------------------------------------------------- what the files lack


def save_kept(spec: Put, files: Sequence[Proven]) -> Step:
    """Save what the target's rows with the staged keys have in columns that the files lack, a row for each key."""
    keys = [name for _, name in spec.keys]
    values = [f"{quote(spec.target, name)} AS {quote(kept_as(i))}" for i, name in enumerate(spec.kept)]

    def found(staged: str, condition: str) -> str:
        mine = [quote(staged, name) for name in keys]
        return f"SELECT {', '.join([*mine, *values])} FROM {condition}{bounded(spec, files)}"

    pairs = found(STAGE, f"{spec.into}, {quote(STAGE)} WHERE {match(spec, spec.target, STAGE)}")
    if spec.weighed and spec.side_filled:
        stored = f"{same_weight(spec.side)} AND {match(spec, spec.target, spec.side)}"
        pairs += (
            f" UNION ALL {found(WEIGHTS, f'{spec.into}, {spec.beside}, {quote(WEIGHTS)} WHERE {stored}')}"
        )
    listed = ", ".join(quote(name) for name in (*keys, *map(kept_as, range(len(spec.kept)))))
    by = ", ".join(_grouped(field, name).by[-1] for field, name in spec.keys)
    return Do(
        f"CREATE TEMP TABLE {quote(KEPT)} AS SELECT {listed} FROM (SELECT {listed}, row_number() OVER "
        f"(PARTITION BY {by}) AS {quote(_PLACE)} FROM ({pairs}) AS pairs) AS ranked WHERE {quote(_PLACE)} = 1"
    )


def kept_as(i: int) -> str:
    """The name of a saved column, which no staged one has."""
    return f"{OURS}kept_{i}"


# ---------------------------------------------------------------- rows of one key


@dataclass(frozen=True)
class _Grouped:
    """A key column for GROUP BY, which ignores trailing spaces and can't compare VARBYTE."""

    select: str
    by: tuple[str, ...]


def _grouped(field: Field, name: str, table: str = "") -> _Grouped:
    column = f"{quote(table)}.{quote(name)}" if table else quote(name)
    if field.redshift.startswith("VARBYTE"):
        return _Grouped(f"FROM_HEX(TO_HEX({column})) AS {quote(name)}", (f"TO_HEX({column})",))
    if _is_text(field):
        return _Grouped(column, (column, f"{column} || '.'"))
    return _Grouped(column, (column,))


def twice(spec: Put, heap: Heap, among: str = "", *also: str) -> str:
    """The query for how many keys occur more than once among rows that agree in the columns `also`."""
    rows = quote(WEIGHTS) if spec.weighed else heap.path
    by = ", ".join([*_identity(spec), *(quote(name) for name in also)])
    again = f"SELECT {by} FROM {rows}{among} GROUP BY {by} HAVING count(*) > 1"
    return f"SELECT count(*) FROM ({again}) AS again"


def _identity(spec: Put, table: str = "") -> list[str]:
    """What to group by so that rows of one key are one group."""
    if spec.weighed:
        return [quote(HASH_FIELD)]
    return [_grouped(field, name, table).by[-1] for field, name in spec.keys]


def without_doubles(spec: Put, heap: Heap, told: bool, ordered: bool) -> list[Step]:
    """Keep the newest row of each key; `ordered`: by read time, otherwise the rows are of one commit.

    For keys that occur twice, only the columns that decide the order are sorted; whole rows, with their long
    texts, only where that order is a tie.
    """
    cursor = next((name for f, name in spec.columns if f.name == f.column == spec.table.cursor), None)
    order = [READ_FIELD] if ordered else []
    order += [cursor] if cursor is not None else []
    alike = _TIED if order else _TWICE
    columns = [quote(name) for name in spec.staged]
    listed = ", ".join(columns)
    mine = ", ".join(f"{quote(heap.name)}.{name}" for name in columns)
    made = [_TWICE, *([_OLDER, _TIED] if order else []), _NEWEST]
    return [
        _doubled(spec, heap),
        *(_without_older(spec, heap, order) if order else []),
        Do(
            f"CREATE TEMP TABLE {quote(_NEWEST)} AS SELECT {listed} FROM (SELECT {mine}, row_number() OVER "
            f"(PARTITION BY {_partition(spec, heap, alike)}) AS {quote(_PLACE)} FROM {heap.path} JOIN {quote(alike)} "
            f"ON {match(spec, heap.name, alike)}) AS ranked WHERE {quote(_PLACE)} = 1"
        ),
        Do(f"DELETE FROM {heap.path} USING {quote(alike)} WHERE {match(spec, heap.name, alike)}"),
        Do(f"INSERT INTO {heap.path} ({listed}) SELECT {listed} FROM {quote(_NEWEST)}"),
        Do(f"DROP TABLE {', '.join(quote(name) for name in made)}"),
        *unweigh(spec),
        *weigh(spec, heap, told),
    ]


def _without_older(spec: Put, heap: Heap, order: Sequence[str]) -> list[Step]:
    """Delete rows that are older than another of their key, and collect the keys that still occur twice."""
    names = list(dict.fromkeys([*(name for _, name in spec.keys), *order]))
    mine = ", ".join(f"{quote(heap.name)}.{quote(name)}" for name in names)
    by = ", ".join(f"{quote(heap.name)}.{quote(name)} DESC NULLS LAST" for name in order)
    return [
        Do(
            f"CREATE TEMP TABLE {quote(_OLDER)} AS SELECT {', '.join(quote(name) for name in names)} FROM (SELECT {mine}, "
            f"rank() OVER (PARTITION BY {_partition(spec, heap, _TWICE)} ORDER BY {by}) AS {quote(_PLACE)} "
            f"FROM {heap.path} JOIN {quote(_TWICE)} ON {match(spec, heap.name, _TWICE)}) AS ranked WHERE {quote(_PLACE)} > 1"
        ),
        Do(
            f"DELETE FROM {heap.path} USING {quote(_OLDER)} WHERE {match(spec, heap.name, _OLDER)} AND "
            + " AND ".join(_alike(heap.name, _OLDER, name) for name in order)
        ),
        _tied(spec, heap),
    ]


def _alike(one: str, other: str, name: str) -> str:
    """The condition that two tables have the same value in a column, or both NULL."""
    left, right = f"{quote(one)}.{quote(name)}", f"{quote(other)}.{quote(name)}"
    return f"coalesce({left} = {right}, {left} IS NULL AND {right} IS NULL)"


def _partition(spec: Put, heap: Heap, keys: str) -> str:
    """What rows of one key have in common when joined with a table of keys."""
    return f"{quote(keys)}.{quote(HASH_FIELD)}" if spec.weighed else ", ".join(_identity(spec, heap.name))


def _tied(spec: Put, heap: Heap) -> Step:
    """Those of the keys found twice that still occur twice."""
    rows = f"{heap.path} JOIN {quote(_TWICE)} ON {match(spec, heap.name, _TWICE)}"
    create = f"CREATE TEMP TABLE {quote(_TIED)} AS SELECT"
    if spec.weighed:
        names = ", ".join(quote(name) for name in (HASH_FIELD, *(name for _, name in spec.keys)))
        weight = f"{quote(_TWICE)}.{quote(HASH_FIELD)}"
        again = f"SELECT {weight} FROM {rows} GROUP BY {weight} HAVING count(*) > 1"
        return Do(f"{create} {names} FROM {quote(_TWICE)} WHERE {quote(HASH_FIELD)} IN ({again})")
    columns = [_grouped(field, name, _TWICE) for field, name in spec.keys]
    select = ", ".join(column.select for column in columns)
    by = ", ".join(term for column in columns for term in column.by)
    return Do(f"{create} {select} FROM {rows} GROUP BY {by} HAVING count(*) > 1")


def _doubled(spec: Put, heap: Heap) -> Step:
    """The keys that occur more than once; with weights, every key of such a weight."""
    columns = [_grouped(field, name) for field, name in spec.keys]
    select = [column.select for column in columns]
    by = [term for column in columns for term in column.by]
    rows, which = heap.path, " HAVING count(*) > 1"
    if spec.weighed:
        rows, which, weight = quote(WEIGHTS), "", quote(HASH_FIELD)
        select, by = [weight, *select], [weight, *by]
        again = f"SELECT {weight} FROM {rows} GROUP BY {weight} HAVING count(*) > 1"
        rows += f" WHERE {weight} IN ({again})"
    return Do(
        f"CREATE TEMP TABLE {quote(_TWICE)} AS SELECT {', '.join(select)} FROM {rows} GROUP BY {', '.join(by)}{which}"
    )


def _is_text(field: Field) -> bool:
    return field.redshift.startswith("VARCHAR")
