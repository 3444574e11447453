"""Which staged rows have one key, and which of the target's have it too. Pure: conditions and steps out.

Keys are compared by their bytes, or by MySQL's weight of them where a collation finds different bytes equal. A weight
is VARBYTE, by which Redshift is not documented to group or partition: its hash stands for it, computed once into a
narrow table beside the staged rows. Joins compare columns with columns, as DELETE … USING wants it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from floodmark.names import OUR_TABLES
from floodmark.types import KEY_FIELD, READ_FIELD, Field
from floodmark.warehouse import quote
from floodmark.warehouse.redshift_ddl import HASH_FIELD, hashed
from floodmark.warehouse.redshift_files import Proven, as_text, key_ranges
from floodmark.warehouse.redshift_names import literal
from floodmark.warehouse.redshift_stage import Heap, Put, exact_type
from floodmark.warehouse.redshift_steps import Do, Step

WEIGHTS = f"{OUR_TABLES}weights"
_TWICE = f"{OUR_TABLES}twice"
_NEWEST = f"{OUR_TABLES}newest"
_PLACE = f"_{OUR_TABLES}place"


# ---------------------------------------------------------------- conditions


def match(spec: Put, one: str, other: str) -> str:
    """The condition that rows of two tables have one key, byte by byte."""
    terms = []
    for field, name in spec.keys:
        left, right = f"{quote(one)}.{quote(name)}", f"{quote(other)}.{quote(name)}"
        terms.append(f"{left} = {right}")
        if _is_text(field):
            # Redshift finds 'a' and 'a ' equal; with something behind the spaces it does not.
            terms.append(f"{left} || '.' = {right} || '.'")
    return " AND ".join(terms)


def same_weight(one: str, other: str = WEIGHTS) -> str:
    """The condition that rows of two tables have keys that MySQL finds equal."""
    return f"{quote(one)}.{quote(HASH_FIELD)} = {quote(other)}.{quote(HASH_FIELD)}"


def bounded(spec: Put, files: Sequence[Proven]) -> str:
    """Conditions that the target's rows with a key of the files meet, to be added: they spare most of its blocks.

    The ranges are the footers', and the staged rows were compared with them.
    """
    terms = ""
    for name, (low, high) in key_ranges(files, [field for field, _ in spec.keys]).items():
        field, column = next((f, c) for f, c in spec.keys if f.name == name)
        ends = [f"CAST({literal(as_text(value))} AS {exact_type(field)})" for value in (low, high)]
        terms += f" AND {quote(spec.target)}.{quote(column)} BETWEEN {ends[0]} AND {ends[1]}"
    return terms


# ---------------------------------------------------------------- weights


def weigh(spec: Put, heap: Heap, told: bool) -> list[Step]:
    """The hashes of the rows' weights, with the keys; none where bytes decide. `told`: with the time of reading."""
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
    """The hashes are no longer needed."""
    return [Do(f"DROP TABLE {quote(WEIGHTS)}")] if spec.weighed else []


# ---------------------------------------------------------------- rows of one key


@dataclass(frozen=True)
class _Grouped:
    """A key column as rows are grouped by it: GROUP BY compares neither trailing spaces nor VARBYTE."""

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
    """The question how many keys there are more than once, in rows that are alike in some more columns."""
    rows = quote(WEIGHTS) if spec.weighed else heap.path
    by = ", ".join([*_identity(spec), *(quote(name) for name in also)])
    again = f"SELECT {by} FROM {rows}{among} GROUP BY {by} HAVING count(*) > 1"
    return f"SELECT count(*) FROM ({again}) AS again"


def _identity(spec: Put, table: str = "") -> list[str]:
    """What makes two rows rows of one key, where it is grouped by."""
    if spec.weighed:
        return [quote(HASH_FIELD)]
    return [_grouped(field, name, table).by[-1] for field, name in spec.keys]


def without_doubles(spec: Put, heap: Heap, told: bool, ordered: bool) -> list[Step]:
    """Leave the newest row of each key; `ordered`: by when they were read, else the rows are of one commit.

    Only rows whose key is there twice are ranked: no other row, with its long texts, has to be sorted.
    """
    columns = [quote(name) for name in spec.staged]
    mine = [f"{quote(heap.name)}.{name}" for name in columns]
    cursor = next((name for f, name in spec.columns if f.name == f.column == spec.table.cursor), None)
    order = [f"{quote(heap.name)}.{quote(READ_FIELD)} DESC"] if ordered else []
    order += [f"{quote(heap.name)}.{quote(cursor)} DESC NULLS LAST"] if cursor is not None else []
    by = f" ORDER BY {', '.join(order)}" if order else ""
    alike = [f"{quote(_TWICE)}.{quote(HASH_FIELD)}"] if spec.weighed else _identity(spec, heap.name)
    listed = ", ".join(columns)
    return [
        _doubled(spec, heap),
        Do(
            f"CREATE TEMP TABLE {quote(_NEWEST)} AS SELECT {listed} FROM (SELECT {', '.join(mine)}, row_number() OVER "
            f"(PARTITION BY {', '.join(alike)}{by}) AS {quote(_PLACE)} FROM {heap.path} JOIN {quote(_TWICE)} "
            f"ON {match(spec, heap.name, _TWICE)}) AS ranked WHERE {quote(_PLACE)} = 1"
        ),
        Do(f"DELETE FROM {heap.path} USING {quote(_TWICE)} WHERE {match(spec, heap.name, _TWICE)}"),
        Do(f"INSERT INTO {heap.path} ({listed}) SELECT {listed} FROM {quote(_NEWEST)}"),
        *(Do(f"DROP TABLE {quote(name)}") for name in (_TWICE, _NEWEST)),
        *unweigh(spec),
        *weigh(spec, heap, told),
    ]


def _doubled(spec: Put, heap: Heap) -> Step:
    """The keys that are there more than once; of one weight, each of its keys."""
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
