"""How the rows of Parquet files go into a Redshift table, as steps of one transaction. Pure.

COPY fills a temporary table that has the files' columns in their order; from there rows go into the target by name.
COPY does not say which file a row came from. So commits are staged together only as long as no key is in them
twice; where one is, they are staged one after the other, and the later read wins by coming later. Inside a commit
the higher cursor wins, NULL lowest; which of two rows with one key and one cursor is left open.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from floodmark.errors import DataError
from floodmark.model import LoadAs, Table
from floodmark.types import KEY_FIELD, Field
from floodmark.warehouse import quote
from floodmark.warehouse.redshift_ddl import staging_type
from floodmark.warehouse.redshift_files import Proven, Range, as_text, ranges
from floodmark.warehouse.redshift_names import OURS, column_names, literal, path
from floodmark.warehouse.redshift_steps import Check, Choose, Do, Step

STAGE = f"{OURS}stage"
NEWEST = f"{OURS}newest"
_PLACE = f"_{OURS}place"


@dataclass(frozen=True)
class Put:
    """A target, and the files whose rows go into it."""

    table: Table
    schema: str
    target: str  # as Redshift knows it
    side: str  # the table beside it: MySQL's weight of a text key -> the key as it is stored
    fields: tuple[Field, ...]  # of the files, in their order
    parsed: frozenset[str]  # the target's columns that hold parsed JSON
    iam_role: str | None
    filled: bool  # whether the target has rows
    side_filled: bool
    manifest: Callable[[Sequence[Proven]], str]

    @property
    def names(self) -> dict[str, str]:
        return column_names(self.fields)

    @property
    def columns(self) -> list[tuple[Field, str]]:
        """The fields that the target has too, with their names there."""
        return [(field, self.names[field.name]) for field in self.fields if not field.file_only]

    @property
    def keys(self) -> list[tuple[Field, str]]:
        key = self.table.key
        return [(f, name) for f, name in self.columns if f.column in key and f.name == f.column]

    @property
    def weighed(self) -> bool:
        """Whether keys are compared by MySQL's weights instead of by their bytes."""
        return any(field.file_only for field in self.fields)

    @property
    def into(self) -> str:
        return path(self.schema, self.target)

    @property
    def beside(self) -> str:
        return path(self.schema, self.side)


def put(spec: Put, way: LoadAs, commits: Sequence[Sequence[Proven]]) -> tuple[Step, ...]:
    """The steps that bring the files of some commits, in order, into the target."""
    files = [proven for commit in commits for proven in commit]
    steps: list[Step] = []
    if way == "replace":
        steps.append(Do(f"DELETE FROM {spec.into}"))
        if spec.side_filled:
            steps.append(Do(f"DELETE FROM {spec.beside}"))
    if not Proven.rows(files):
        return tuple(steps)
    steps += _stage(spec, files)
    match way:
        case "merge":
            full = [commit for commit in commits if Proven.rows(commit)]
            steps.append(_merge(spec, full))
        case "insert":
            steps.append(_insert(spec, STAGE, Proven.rows(files)))
        case "replace":
            steps += _keep_weights(replace(spec, side_filled=False), STAGE)
            steps.append(_insert(spec, STAGE, Proven.rows(files)))
        case "delete":
            steps += _delete(spec)
            steps += _forget_weights(spec)
    return tuple(steps)


# ---------------------------------------------------------------- staging


def _stage(spec: Put, files: Sequence[Proven]) -> list[Step]:
    """The files in the staging table, and proof that they arrived as they are."""
    rows = Proven.rows(files)
    columns = ", ".join(f"{quote(_staged(spec, field))} {staging_type(field)}" for field in spec.fields)
    role = f"IAM_ROLE {literal(spec.iam_role)}" if spec.iam_role else "IAM_ROLE default"
    counted = Check("SELECT pg_last_copy_count()", rows, _miscounted(rows, "COPY loaded"))
    steps: list[Step] = [
        Do(f"CREATE TEMP TABLE {quote(STAGE)} ({columns})"),
        Do(
            f"COPY {quote(STAGE)} FROM {literal(spec.manifest(files))} {role} MANIFEST FORMAT AS PARQUET "
            "STATUPDATE OFF"
        ),
        counted,
        Check(f"SELECT count(*) FROM {quote(STAGE)}", rows, _miscounted(rows, "the staging table has")),
    ]
    if check := _range_check(spec, ranges(files, spec.fields)):
        steps.append(check)
    return steps


def _range_check(spec: Put, expected: dict[str, Range | None]) -> Check | None:
    """The lowest and highest values are those of the files; the answer is the name of a column where they aren't."""
    cases = []
    for field in spec.fields:
        if field.name not in expected:
            continue
        column, span = quote(_staged(spec, field)), expected[field.name]
        if span is None:
            wrong = f"count({column}) <> 0"
        else:
            low, high = (f"CAST({literal(as_text(value))} AS {_exact(field)})" for value in span)
            wrong = f"coalesce(min({column}) <> {low} OR max({column}) <> {high}, TRUE)"
        cases.append(f"WHEN {wrong} THEN {literal(field.name)}")
    if not cases:
        return None

    def error(found: object) -> DataError:
        what = f"column {found}" if found else "a column of times or decimals"
        return DataError(
            f"the values of {what} have another range in Redshift than in the files; nothing was loaded",
            hint="the files were not read as they were written; please report it with the files' schema",
        )

    return Check(f"SELECT CASE {' '.join(cases)} ELSE '' END FROM {quote(STAGE)}", "", error)


def _exact(field: Field) -> str:
    return field.redshift if pa.types.is_decimal(field.arrow) else staging_type(field)


def _staged(spec: Put, field: Field) -> str:
    return KEY_FIELD if field.file_only else spec.names[field.name]


def _miscounted(rows: int, what: str) -> Callable[[object], DataError]:
    def error(found: object) -> DataError:
        said = f"{what} {int(str(found)):,} rows" if found is not None else "the rows were miscounted"
        return DataError(
            f"{said}, and the commits have {rows:,}; nothing was loaded",
            hint="floodmark watermark validate compares the files with the log",
        )

    return error


# ---------------------------------------------------------------- into the target


def _merge(spec: Put, commits: Sequence[Sequence[Proven]]) -> Step:
    """The newest row of each key in the place of what the target has."""
    rows = sum(Proven.rows(commit) for commit in commits)
    identity = ", ".join(_identity(spec))
    again = f"(SELECT {identity} FROM {quote(STAGE)} GROUP BY {identity} HAVING count(*) > 1) AS again"
    once = _place(spec, STAGE, rows)

    def newest() -> tuple[Step, ...]:
        if len(commits) == 1:
            return (_newest(spec), *_place(spec, NEWEST, None))
        steps: list[Step] = [Do(f"DROP TABLE {quote(STAGE)}")]
        for i, commit in enumerate(commits):
            # What an earlier commit has put there, a later one replaces.
            later = spec if not i else replace(spec, filled=True, side_filled=spec.weighed)
            steps += [*_stage(later, commit), _newest(later), *_place(later, NEWEST, None)]
            steps += [Do(f"DROP TABLE {quote(name)}") for name in (STAGE, NEWEST)]
        return tuple(steps)

    return Choose(f"SELECT count(*) FROM {again}", 0, once, newest)


def _newest(spec: Put) -> Step:
    """The winners of one commit in a table of their own."""
    columns = ", ".join(quote(_staged(spec, field)) for field in spec.fields)
    cursor = next((name for f, name in spec.columns if f.name == f.column == spec.table.cursor), None)
    order = f" ORDER BY {quote(cursor)} DESC NULLS LAST" if cursor is not None else ""
    return Do(
        f"CREATE TEMP TABLE {quote(NEWEST)} AS SELECT {columns} FROM (SELECT {columns}, row_number() OVER "
        f"(PARTITION BY {', '.join(_identity(spec))}{order}) AS {quote(_PLACE)} FROM {quote(STAGE)}) "
        f"AS ranked WHERE {quote(_PLACE)} = 1"
    )


def _place(spec: Put, source: str, rows: int | None) -> tuple[Step, ...]:
    steps: list[Step] = []
    if spec.filled:
        steps += _delete(spec, source)
    steps += _keep_weights(spec, source)
    steps.append(_insert(spec, source, rows))
    return tuple(steps)


def _insert(spec: Put, source: str, rows: int | None) -> Step:
    names = ", ".join(quote(name) for _, name in spec.columns)
    values = ", ".join(
        f"JSON_PARSE({quote(name)})" if name in spec.parsed else quote(name) for _, name in spec.columns
    )
    return Do(f"INSERT INTO {spec.into} ({names}) SELECT {values} FROM {quote(source)}", rows)


def _delete(spec: Put, source: str = STAGE) -> list[Step]:
    """Remove what the files' keys have in the target."""
    steps: list[Step] = []
    if spec.weighed and spec.side_filled:
        weight = f"{quote(spec.side)}.{quote(KEY_FIELD)} = {quote(source)}.{quote(KEY_FIELD)}"
        stored = _match(spec, spec.target, spec.side)
        steps.append(
            Do(f"DELETE FROM {spec.into} USING {spec.beside}, {quote(source)} WHERE {weight} AND {stored}")
        )
    # Also by the bytes: equal bytes are equal keys, and the weights may not know rows that were there before.
    steps.append(
        Do(f"DELETE FROM {spec.into} USING {quote(source)} WHERE {_match(spec, spec.target, source)}")
    )
    return steps


def _keep_weights(spec: Put, source: str) -> list[Step]:
    """Remember which stored key has which weight, so that 'ABC' finds 'abc' later."""
    if not spec.weighed:
        return []
    names = ", ".join(quote(name) for name in (KEY_FIELD, *(name for _, name in spec.keys)))
    return [
        *_forget_weights(spec, source),
        Do(f"INSERT INTO {spec.beside} ({names}) SELECT {names} FROM {quote(source)}"),
    ]


def _forget_weights(spec: Put, source: str = STAGE) -> list[Step]:
    """Drop what is remembered of the files' keys, by weight and by bytes (a collation may have changed)."""
    if not (spec.weighed and spec.side_filled):
        return []
    using = f"DELETE FROM {spec.beside} USING {quote(source)} WHERE"
    weight = f"{quote(spec.side)}.{quote(KEY_FIELD)} = {quote(source)}.{quote(KEY_FIELD)}"
    return [Do(f"{using} {weight}"), Do(f"{using} {_match(spec, spec.side, source)}")]


def _match(spec: Put, one: str, other: str) -> str:
    """The condition that two rows have one key; NULLs in a key are equal to each other."""
    terms = []
    for field, name in spec.keys:
        left, right = f"{quote(one)}.{quote(name)}", f"{quote(other)}.{quote(name)}"
        equal = f"{left} = {right}"
        if _is_text(field):
            # Redshift finds 'a' and 'a ' equal; with something behind the spaces it does not.
            equal += f" AND {left} || '.' = {right} || '.'"
        if spec.table.column(field.column).nullable:
            equal = f"({equal} OR ({left} IS NULL AND {right} IS NULL))"
        terms.append(equal)
    return " AND ".join(terms)


def _identity(spec: Put) -> list[str]:
    """What makes two staged rows rows of one key."""
    if spec.weighed:
        return [quote(KEY_FIELD)]
    return [f"{quote(name)} || '.'" if _is_text(field) else quote(name) for field, name in spec.keys]


def _is_text(field: Field) -> bool:
    return field.redshift.startswith("VARCHAR")
