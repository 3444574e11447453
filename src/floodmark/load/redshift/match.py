"""Which staged rows share a key, and which of the target's rows have it too. Pure: conditions and steps out.

Keys are compared by their bytes, or by MySQL's weights where a collation considers different bytes equal. A
weight is VARBYTE, and AWS does not document grouping or partitioning by that type; so its hash stands for it,
computed once into a narrow table beside the staged rows. Joins compare columns with columns, as DELETE …
USING expects.
"""

from __future__ import annotations

from collections.abc import Sequence

from floodmark.load.merge import Do, Heap, match
from floodmark.load.protocol import HASH_FIELD, quote
from floodmark.load.redshift.ddl import hashed
from floodmark.load.redshift.files import Proven, as_text, ranges
from floodmark.load.redshift.names import literal
from floodmark.load.redshift.stage import PLACE, WEIGHTS, RedshiftPut, exact_type, grouped
from floodmark.load.redshift.steps import Step
from floodmark.model.names import OUR_TABLES
from floodmark.model.types import KEY_FIELD, READ_FIELD

_TWICE = f"{OUR_TABLES}twice"
_OLDER = f"{OUR_TABLES}older"
_TIED = f"{OUR_TABLES}tied"
_NEWEST = f"{OUR_TABLES}newest"


# ---------------------------------------------------------------- conditions


def bounded(spec: RedshiftPut, files: Sequence[Proven]) -> str:
    """More conditions that every target row with a key of the files meets: Redshift can skip most blocks.

    The ranges are the footers', and the staged rows were checked against them.
    """
    terms = ""
    known = ranges(files, spec.keys)
    for field in spec.keys:
        if not (span := known.get(field.name)):
            continue
        ends = [f"CAST({literal(as_text(value))} AS {exact_type(field)})" for value in span]
        terms += f" AND {quote(spec.target, field.target)} BETWEEN {ends[0]} AND {ends[1]}"
    return terms


# ---------------------------------------------------------------- weights


def weigh(spec: RedshiftPut, heap: Heap, told: bool) -> list[Step]:
    """Hash the rows' weights, beside their keys, unless bytes decide; `told`: with the read time."""
    if not spec.weighed:
        return []
    names = [quote(name) for name in spec.identity] + ([quote(READ_FIELD)] if told else [])
    return [
        Do(
            f"CREATE TEMP TABLE {quote(WEIGHTS)} AS SELECT {hashed(quote(KEY_FIELD))} AS {quote(HASH_FIELD)}, "
            f"{', '.join(names)} FROM {heap.path}"
        )
    ]


def unweigh(spec: RedshiftPut) -> list[Step]:
    """Drop the hashes."""
    return [Do(f"DROP TABLE {quote(WEIGHTS)}")] if spec.weighed else []


# ---------------------------------------------------------------- rows of one key


def twice(spec: RedshiftPut, heap: Heap, among: str = "", *also: str) -> str:
    """The query for how many keys occur more than once among rows that agree in the columns `also`."""
    rows = quote(WEIGHTS) if spec.weighed else heap.path
    by = ", ".join([*_identity(spec), *(quote(name) for name in also)])
    again = f"SELECT {by} FROM {rows}{among} GROUP BY {by} HAVING count(*) > 1"
    return f"SELECT count(*) FROM ({again}) AS again"


def _identity(spec: RedshiftPut, table: str = "") -> list[str]:
    """What to group by so that rows of one key are one group."""
    if spec.weighed:
        return [quote(HASH_FIELD)]
    return [grouped(field, table).by[-1] for field in spec.keys]


def without_doubles(spec: RedshiftPut, heap: Heap, told: bool, ordered: bool) -> list[Step]:
    """Keep the newest row of each key; `ordered`: by read time, otherwise the rows are of one commit.

    For keys that occur twice, only the columns that decide the order are sorted; whole rows, with their long
    texts, only where that order is a tie.
    """
    cursor = next((f.target for f in spec.columns if f.name == f.column == spec.table.cursor), None)
    order = [READ_FIELD] if ordered else []
    order += [cursor] if cursor is not None else []
    alike = _TIED if order else _TWICE
    columns = [quote(name) for name in spec.names]
    listed = ", ".join(columns)
    mine = ", ".join(f"{quote(heap.name)}.{name}" for name in columns)
    made = [_TWICE, *([_OLDER, _TIED] if order else []), _NEWEST]
    return [
        _doubled(spec, heap),
        *(_without_older(spec, heap, order) if order else []),
        Do(
            f"CREATE TEMP TABLE {quote(_NEWEST)} AS SELECT {listed} FROM (SELECT {mine}, row_number() OVER "
            f"(PARTITION BY {_partition(spec, heap, alike)}) AS {quote(PLACE)} FROM {heap.path} JOIN {quote(alike)} "
            f"ON {match(spec, heap.name, alike)}) AS ranked WHERE {quote(PLACE)} = 1"
        ),
        Do(f"DELETE FROM {heap.path} USING {quote(alike)} WHERE {match(spec, heap.name, alike)}"),
        Do(f"INSERT INTO {heap.path} ({listed}) SELECT {listed} FROM {quote(_NEWEST)}"),
        Do(f"DROP TABLE {', '.join(quote(name) for name in made)}"),
        *unweigh(spec),
        *weigh(spec, heap, told),
    ]


def _without_older(spec: RedshiftPut, heap: Heap, order: Sequence[str]) -> list[Step]:
    """Delete rows that are older than another of their key, and collect the keys that still occur twice."""
    names = list(dict.fromkeys([*spec.identity, *order]))
    mine = ", ".join(f"{quote(heap.name)}.{quote(name)}" for name in names)
    by = ", ".join(f"{quote(heap.name)}.{quote(name)} DESC NULLS LAST" for name in order)
    return [
        Do(
            f"CREATE TEMP TABLE {quote(_OLDER)} AS SELECT {', '.join(quote(name) for name in names)} FROM (SELECT {mine}, "
            f"rank() OVER (PARTITION BY {_partition(spec, heap, _TWICE)} ORDER BY {by}) AS {quote(PLACE)} "
            f"FROM {heap.path} JOIN {quote(_TWICE)} ON {match(spec, heap.name, _TWICE)}) AS ranked WHERE {quote(PLACE)} > 1"
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


def _partition(spec: RedshiftPut, heap: Heap, keys: str) -> str:
    """What rows of one key have in common when joined with a table of keys."""
    return f"{quote(keys)}.{quote(HASH_FIELD)}" if spec.weighed else ", ".join(_identity(spec, heap.name))


def _tied(spec: RedshiftPut, heap: Heap) -> Step:
    """Those of the keys found twice that still occur twice."""
    rows = f"{heap.path} JOIN {quote(_TWICE)} ON {match(spec, heap.name, _TWICE)}"
    create = f"CREATE TEMP TABLE {quote(_TIED)} AS SELECT"
    if spec.weighed:
        names = ", ".join(quote(name) for name in (HASH_FIELD, *spec.identity))
        weight = f"{quote(_TWICE)}.{quote(HASH_FIELD)}"
        again = f"SELECT {weight} FROM {rows} GROUP BY {weight} HAVING count(*) > 1"
        return Do(f"{create} {names} FROM {quote(_TWICE)} WHERE {quote(HASH_FIELD)} IN ({again})")
    columns = [grouped(field, _TWICE) for field in spec.keys]
    select = ", ".join(column.select for column in columns)
    by = ", ".join(term for column in columns for term in column.by)
    return Do(f"{create} {select} FROM {rows} GROUP BY {by} HAVING count(*) > 1")


def _doubled(spec: RedshiftPut, heap: Heap) -> Step:
    """The keys that occur more than once; with weights, every key of such a weight."""
    columns = [grouped(field) for field in spec.keys]
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
