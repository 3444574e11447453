"""How the rows of Parquet files go into a Redshift table, as steps of one transaction. Pure.

From the staging table rows go into the target by name. For one key the later commit wins: by the time of reading that
the files tell, where it follows the commits' order; where it does not tell two commits apart that share a key, or in
files of an older kind, the commits are staged one after the other, and the later read wins by coming later. Inside
a commit the higher cursor wins, NULL lowest; which of two rows with one key and one cursor is left open.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from floodmark.model import LoadAs
from floodmark.names import OUR_TABLES
from floodmark.types import KEY_FIELD, READ_FIELD, Field
from floodmark.warehouse import DELETED_AT, quote
from floodmark.warehouse.redshift_files import Proven
from floodmark.warehouse.redshift_names import literal
from floodmark.warehouse.redshift_stage import STAGE, Put, shared_reads, stage
from floodmark.warehouse.redshift_steps import Choose, Do, Step

NEWEST = f"{OUR_TABLES}newest"
_PLACE = f"_{OUR_TABLES}place"
_LISTED = 1000  # values that a condition names one by one


def put(
    spec: Put, way: LoadAs, commits: Sequence[Sequence[Proven]], at: Sequence[str] = ()
) -> tuple[Step, ...]:
    """The steps that bring the files of some commits, in order and each of a time, into the target."""
    files = [proven for commit in commits for proven in commit]
    steps: list[Step] = []
    if way == "replace":
        steps.append(Do(f"DELETE FROM {spec.into}"))
        if spec.side_filled:
            steps.append(Do(f"DELETE FROM {spec.beside}"))
    if not Proven.rows(files):
        return tuple(steps)
    if way == "mark":
        return tuple(
            step for commit, moment in zip(commits, at, strict=True) for step in _mark(spec, commit, moment)
        )
    steps += stage(spec, files)
    match way:
        case "merge":
            full = [commit for commit in commits if Proven.rows(commit)]
            steps.append(_merge(spec, full))
        case "insert":
            steps.append(_insert(spec, STAGE, Proven.rows(files)))
        case "replace" if spec.table.mode != "full" and spec.table.key:
            # Not one consistent read: a row may be there twice.
            emptied = replace(spec, filled=False, side_filled=False)
            steps.append(_merge(emptied, [commit for commit in commits if Proven.rows(commit)]))
        case "replace":
            steps += _keep_weights(replace(spec, side_filled=False), STAGE)
            steps.append(_insert(spec, STAGE, Proven.rows(files)))
        case "delete":
            steps += _delete(spec)
            steps += _forget_weights(spec)
    return tuple(steps)


# ---------------------------------------------------------------- into the target


def _merge(spec: Put, commits: Sequence[Sequence[Proven]]) -> Step:
    """The newest row of each key in the place of what the target has."""
    rows = sum(Proven.rows(commit) for commit in commits)
    shared = shared_reads(commits)

    def newest() -> tuple[Step, ...]:
        told = shared is not None
        return (_newest(spec, told), *_place(spec, NEWEST, None))

    def in_order() -> tuple[Step, ...]:
        if len(commits) == 1 or (shared is not None and not shared):
            return newest()
        if shared is None:
            return one_by_one()
        among = f" WHERE {quote(READ_FIELD)} IN ({', '.join(map(str, sorted(shared)))})"
        question = _twice(spec, among if len(shared) <= _LISTED else "", READ_FIELD)
        return (Choose(question, 0, newest(), one_by_one),)

    def one_by_one() -> tuple[Step, ...]:
        steps: list[Step] = [Do(f"DROP TABLE {quote(STAGE)}")]
        for i, commit in enumerate(commits):
            # What an earlier commit has put there, a later one replaces.
            later = spec if not i else replace(spec, filled=True, side_filled=spec.weighed)
            steps += [*stage(later, commit), _newest(later, False), *_place(later, NEWEST, None)]
            steps += [Do(f"DROP TABLE {quote(name)}") for name in (STAGE, NEWEST)]
        return tuple(steps)

    return Choose(_twice(spec), 0, _place(spec, STAGE, rows), in_order)


def _twice(spec: Put, among: str = "", *also: str) -> str:
    """The question how many keys there are more than once, in rows that are alike in some more columns."""
    identity = ", ".join([*_identity(spec), *(quote(name) for name in also)])
    again = f"SELECT {identity} FROM {quote(STAGE)}{among} GROUP BY {identity} HAVING count(*) > 1"
    return f"SELECT count(*) FROM ({again}) AS again"


def _newest(spec: Put, told: bool) -> Step:
    """The winners in a table of their own; `told`: by when they were read, else the rows are of one commit."""
    columns = ", ".join(quote(name) for name in spec.staged)
    cursor = next((name for f, name in spec.columns if f.name == f.column == spec.table.cursor), None)
    order = [f"{quote(READ_FIELD)} DESC"] if told else []
    order += [f"{quote(cursor)} DESC NULLS LAST"] if cursor is not None else []
    by = f" ORDER BY {', '.join(order)}" if order else ""
    return Do(
        f"CREATE TEMP TABLE {quote(NEWEST)} AS SELECT {columns} FROM (SELECT {columns}, row_number() OVER "
        f"(PARTITION BY {', '.join(_identity(spec))}{by}) AS {quote(_PLACE)} FROM {quote(STAGE)}) "
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
    values = {
        name: f"JSON_PARSE({quote(name)})" if name in spec.parsed else quote(name) for _, name in spec.columns
    }
    values |= dict(spec.constants)
    names = ", ".join(quote(name) for name in values)
    return Do(
        f"INSERT INTO {spec.into} ({names}) SELECT {', '.join(values.values())} FROM {quote(source)}", rows
    )


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


def _mark(spec: Put, commit: Sequence[Proven], at: str) -> list[Step]:
    """Say of the rows whose keys are in a commit's files since when they are gone: the commit's time."""
    if not Proven.rows(commit):
        return []
    moment = f"CAST({literal(at.replace('T', ' ').removesuffix('Z'))} AS TIMESTAMP)"
    update = f"UPDATE {spec.into} SET {quote(DELETED_AT)} = {moment} FROM"
    there = f"{quote(spec.target)}.{quote(DELETED_AT)} IS NULL"
    steps = stage(spec, commit)
    if spec.weighed and spec.side_filled:
        weight = f"{quote(spec.side)}.{quote(KEY_FIELD)} = {quote(STAGE)}.{quote(KEY_FIELD)}"
        stored = _match(spec, spec.target, spec.side)
        steps.append(Do(f"{update} {spec.beside}, {quote(STAGE)} WHERE {weight} AND {stored} AND {there}"))
    steps.append(Do(f"{update} {quote(STAGE)} WHERE {_match(spec, spec.target, STAGE)} AND {there}"))
    return [*steps, Do(f"DROP TABLE {quote(STAGE)}")]


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
