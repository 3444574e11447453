"""How rows of Parquet files go into a Redshift table, as steps of one transaction. Pure.

Rows go from the staging table into the target by name; a new or emptied target that takes them as they are is
filled straight from the files. Among rows of one key the later commit wins, by the read time in the files if
it follows the commits' order. If it does not tell two commits with a common key apart, or older files lack
it, the commits are staged one after another, and the later read wins by coming later. Within a commit the
higher cursor wins, NULL lowest; between two rows with the same key and cursor the choice is undefined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from floodmark.model.commit import LoadAs
from floodmark.model.types import READ_FIELD
from floodmark.services.warehouse.protocol import DELETED_AT, HASH_FIELD, quote
from floodmark.services.warehouse.redshift.ddl import staging_type
from floodmark.services.warehouse.redshift.files import Proven
from floodmark.services.warehouse.redshift.match import (
    KEPT,
    WEIGHTS,
    bounded,
    kept_as,
    match,
    same_weight,
    save_kept,
    twice,
    unweigh,
    weigh,
    without_doubles,
)
from floodmark.services.warehouse.redshift.names import literal
from floodmark.services.warehouse.redshift.stage import (
    STAGE,
    STAGED,
    Heap,
    Put,
    copied,
    copied_or,
    copies,
    fine,
    is_told,
    proof,
    proven_stage,
    shared_reads,
    stage,
    staged_as,
)
from floodmark.services.warehouse.redshift.steps import Choose, Do, Step

_LISTED = 1000  # values that a condition lists one by one

Commits = Sequence[Sequence[Proven]]


def put(spec: Put, way: LoadAs, commits: Commits, at: Sequence[str] = ()) -> tuple[Step, ...]:
    """The steps that bring the files of some commits, in order, into the target; `at`: the commits' times."""
    if way == "mark":
        return tuple(
            step for commit, moment in zip(commits, at, strict=True) for step in _mark(spec, commit, moment)
        )
    steps: list[Step] = []
    was_there = spec.filled
    full = [commit for commit in commits if Proven.rows(commit)]
    if way == "replace" and spec.kept and full:
        return tuple(_staged(replace(spec, whole=True), full))
    if way == "replace":
        steps += _emptied(spec)
        spec = replace(spec, filled=False, side_filled=False)
    if not full:
        return tuple(steps)
    if way == "delete":
        steps += _removed(spec, _flat(full))
    elif way == "merge" or (way == "replace" and spec.table.mode != "full" and spec.table.key):
        # A reload is not one consistent read either: a row may be there twice.
        steps += _merge(spec, full)
    elif spec.direct and was_there:
        steps += _copied_again(spec, _flat(full))
    elif spec.direct:
        steps += copied(spec, Heap(spec.target, spec.into), _flat(full))
    else:
        steps += _inserted(spec, _flat(full))
    return tuple(steps)


def _inserted(spec: Put, files: Sequence[Proven]) -> list[Step]:
    """All rows of the files, through the staging table."""
    return [*proven_stage(spec, files), _insert(spec, Proven.rows(files))]


def _copied_again(spec: Put, files: Sequence[Proven]) -> list[Step]:
    """A snapshot into a target that has been emptied.

    Masking and row-level security may hide its rows from us. Then the rows are proven in the staging table
    instead.
    """

    def otherwise() -> tuple[Step, ...]:
        return (Do(f"DELETE FROM {spec.into}"), *_inserted(spec, files))

    return copied_or(spec, Heap(spec.target, spec.into), files, otherwise)


# ---------------------------------------------------------------- rows that merge by key


def _merge(spec: Put, commits: Commits) -> list[Step]:
    """Put the newest row of each key in place of what the target has."""
    return _straight(spec, commits) if spec.direct else _staged(spec, commits)


def _staged(spec: Put, commits: Commits) -> list[Step]:
    """Through the staging table."""
    files = _flat(commits)
    told = is_told(files)

    def in_order() -> tuple[Step, ...]:
        newest = (*_without_doubles(spec, STAGED, commits), *_place(spec, files, None))
        return (
            proof(spec, STAGED, files),
            *_in_order(spec, STAGED, commits, newest, lambda: (*_dropped(spec), *_one_by_one(spec, commits))),
        )

    return [
        *stage(spec, files),
        *weigh(spec, STAGED, told),
        Choose(
            fine(spec, STAGED, files, twice(spec, STAGED)),
            "",
            _place(spec, files, Proven.rows(files)),
            in_order,
        ),
    ]


def _straight(spec: Put, commits: Commits) -> list[Step]:
    """Straight into a new target, which has the file-only columns until the rows have been compared."""
    files = _flat(commits)
    target, told = Heap(spec.target, spec.into), is_told(files)
    more = {staged_as(field): staging_type(field) for field in spec.fields if field.file_only}
    more |= {READ_FIELD: "BIGINT"} if told else {}
    done = (
        *_keep_weights(spec),
        *(Do(f"ALTER TABLE {spec.into} DROP COLUMN {quote(name)}") for name in more),
    )

    def in_order() -> tuple[Step, ...]:
        newest = (*_without_doubles(spec, target, commits), *done)
        again = [Do(f"DROP TABLE {spec.into}"), Do(spec.created)] if spec.created else []
        return (
            proof(spec, target, files),
            *_in_order(
                spec, target, commits, newest, lambda: (*again, *unweigh(spec), *_one_by_one(spec, commits))
            ),
        )

    return [
        *(Do(f"ALTER TABLE {spec.into} ADD COLUMN {quote(name)} {type_}") for name, type_ in more.items()),
        *copies(spec, target, files),
        *weigh(spec, target, told),
        Choose(fine(spec, target, files, twice(spec, target)), "", done, in_order),
    ]


def _in_order(
    spec: Put,
    heap: Heap,
    commits: Commits,
    newest: tuple[Step, ...],
    one_by_one: Callable[[], tuple[Step, ...]],
) -> tuple[Step, ...]:
    """Some keys occur twice: keep the newest rows if the rows tell which, else go commit by commit."""
    shared = shared_reads(commits)
    if len(commits) == 1 or (shared is not None and not shared):
        return newest
    if shared is None:
        return one_by_one()
    among = f" WHERE {quote(READ_FIELD)} IN ({', '.join(map(str, sorted(shared)))})"
    question = twice(spec, heap, among if len(shared) <= _LISTED else "", READ_FIELD)
    return (Choose(question, 0, newest, one_by_one),)


def _without_doubles(spec: Put, heap: Heap, commits: Commits) -> list[Step]:
    return without_doubles(spec, heap, is_told(_flat(commits)), shared_reads(commits) is not None)


def _one_by_one(spec: Put, commits: Commits) -> tuple[Step, ...]:
    """Each commit through its own staging table: a later one replaces what an earlier one put there."""
    steps: list[Step] = []
    for i, commit in enumerate(commits):
        later = spec if not i else replace(spec, filled=True, side_filled=spec.weighed)
        told = is_told(commit)
        steps += [*proven_stage(later, commit), *weigh(later, STAGED, told)]
        steps += [*without_doubles(later, STAGED, told, False), *_place(later, commit, None)]
        steps += _dropped(spec)
    return tuple(steps)


def _place(spec: Put, files: Sequence[Proven], rows: int | None) -> tuple[Step, ...]:
    """Put the staged rows in place of what the target has for their keys, or of all that it has."""
    if not spec.filled:
        return (*_keep_weights(spec), _insert(spec, rows))
    gone = _emptied(spec) if spec.whole else _delete(spec, files)
    weights = _keep_weights(replace(spec, side_filled=False) if spec.whole else spec)
    if not spec.kept:
        return (*gone, *weights, _insert(spec, rows))
    return (save_kept(spec, files), *gone, *weights, *_inserted_with_kept(spec, rows))


def _emptied(spec: Put) -> list[Step]:
    """Delete all rows of the target, and all weights."""
    return [
        *([Do(f"DELETE FROM {spec.into}")] if spec.filled else []),
        *([Do(f"DELETE FROM {spec.beside}")] if spec.side_filled else []),
    ]


def _insert(
    spec: Put, rows: int | None, more: Sequence[tuple[str, str]] = (), among: str = quote(STAGE)
) -> Do:
    """Insert staged rows; `more`: further columns of the target, and their values."""
    values = {name: _value(spec, name) for _, name in spec.columns}
    values |= dict((*spec.constants, *more))
    names = ", ".join(quote(name) for name in values)
    return Do(f"INSERT INTO {spec.into} ({names}) SELECT {', '.join(values.values())} FROM {among}", rows)


def _inserted_with_kept(spec: Put, rows: int | None) -> list[Step]:
    """Insert the staged rows: those of saved keys with what the target had, the others as new rows.

    Two statements, because only a column that an INSERT leaves out gets its default.
    """
    same, (_, key) = match(spec, STAGE, KEPT), spec.keys[0]
    values = [(name, quote(KEPT, kept_as(i))) for i, name in enumerate(spec.kept)]
    new = f"LEFT JOIN {quote(KEPT)} ON {same} WHERE {quote(KEPT, key)} IS NULL"
    return [
        _insert(spec, None, values, f"{quote(STAGE)} JOIN {quote(KEPT)} ON {same}"),
        replace(_insert(spec, rows, among=f"{quote(STAGE)} {new}"), together=True),
        Do(f"DROP TABLE {quote(KEPT)}"),
    ]


def _value(spec: Put, name: str) -> str:
    column = quote(STAGE, name)
    if name in spec.documents:
        return f"JSON_PARSE(CAST({column} AS VARCHAR(MAX)))"
    return f"JSON_PARSE({column})" if name in spec.parsed else column


# ---------------------------------------------------------------- deleted keys


def _removed(spec: Put, files: Sequence[Proven]) -> list[Step]:
    """Delete the rows, and the weights, of deleted keys."""
    return [
        *proven_stage(spec, files),
        *weigh(spec, STAGED, is_told(files)),
        *_delete(spec, files),
        *_forget_weights(spec),
    ]


def _delete(spec: Put, files: Sequence[Proven]) -> list[Step]:
    """Delete the target's rows that have the files' keys."""
    return _by_key(spec, files, f"DELETE FROM {spec.into} USING")


def _mark(spec: Put, commit: Sequence[Proven], at: str) -> list[Step]:
    """Mark the rows whose keys are in a commit's files as deleted, at the commit's time."""
    if not Proven.rows(commit):
        return []
    moment = f"CAST({literal(at.replace('T', ' ').removesuffix('Z'))} AS TIMESTAMP)"
    there = f" AND {quote(spec.target)}.{quote(DELETED_AT)} IS NULL"
    return [
        *proven_stage(spec, commit),
        *weigh(spec, STAGED, is_told(commit)),
        *_by_key(spec, commit, f"UPDATE {spec.into} SET {quote(DELETED_AT)} = {moment} FROM", there),
        *_dropped(spec),
    ]


def _by_key(spec: Put, files: Sequence[Proven], statement: str, more: str = "") -> list[Step]:
    """A statement for the target's rows with the files' keys: by weight, and by bytes.

    Equal bytes are equal keys, and the weights may not cover rows that were there before.
    """
    more = bounded(spec, files) + more
    steps: list[Step] = []
    if spec.weighed and spec.side_filled:
        stored = f"{same_weight(spec.side)} AND {match(spec, spec.target, spec.side)}"
        steps.append(Do(f"{statement} {spec.beside}, {quote(WEIGHTS)} WHERE {stored}{more}"))
    steps.append(Do(f"{statement} {quote(STAGE)} WHERE {match(spec, spec.target, STAGE)}{more}"))
    return steps


def _keep_weights(spec: Put) -> list[Step]:
    """Store each key's weight, so that 'ABC' finds 'abc' later."""
    if not spec.weighed:
        return []
    names = ", ".join(quote(name) for name in (HASH_FIELD, *(name for _, name in spec.keys)))
    return [
        *_forget_weights(spec),
        Do(f"INSERT INTO {spec.beside} ({names}) SELECT {names} FROM {quote(WEIGHTS)}"),
    ]


def _forget_weights(spec: Put) -> list[Step]:
    """Drop the stored weights of the files' keys, by weight and by bytes (a collation may have changed)."""
    if not (spec.weighed and spec.side_filled):
        return []
    using = f"DELETE FROM {spec.beside} USING {quote(WEIGHTS)} WHERE"
    return [Do(f"{using} {same_weight(spec.side)}"), Do(f"{using} {match(spec, spec.side, WEIGHTS)}")]


def _dropped(spec: Put) -> list[Step]:
    """Drop the staging table, to make way for the next one."""
    return [Do(f"DROP TABLE {quote(STAGE)}"), *unweigh(spec)]


def _flat(commits: Commits) -> list[Proven]:
    return [proven for commit in commits for proven in commit]
