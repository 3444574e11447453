"""How rows of Parquet files go into a Redshift table, as steps of one transaction. Pure.

Rows go from the staging table into the target by name; a new or emptied target that takes them as they are is
filled straight from the files. Among rows of one key the later commit wins, by the read time in the files if
it follows the commits' order. If it does not tell two commits with a common key apart, or older files lack
it, the commits are staged one after another, and the later read wins by coming later. Within a commit the
higher cursor wins, NULL lowest; between two rows with the same key and cursor the choice is undefined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from floodmark.load import merge
from floodmark.load.columns import adding
from floodmark.load.merge import STAGE, STAGED, Do, Heap
from floodmark.load.protocol import quote
from floodmark.load.redshift.ddl import staging_type
from floodmark.load.redshift.files import Proven
from floodmark.load.redshift.match import bounded, twice, unweigh, weigh, without_doubles
from floodmark.load.redshift.stage import (
    RedshiftPut,
    copies,
    fine,
    is_told,
    proof,
    proven_stage,
    shared_reads,
    stage,
    staged_as,
)
from floodmark.load.redshift.steps import Choose, Step
from floodmark.model.commit import LoadAs
from floodmark.model.types import READ_FIELD

_LISTED = 1000  # values that a condition lists one by one

Commits = Sequence[Sequence[Proven]]


def put(spec: RedshiftPut, way: LoadAs, commits: Commits, at: Sequence[str] = ()) -> tuple[Step, ...]:
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
    elif spec.direct:
        steps += _copied(spec, _flat(full), was_there)
    else:
        steps += _inserted(spec, _flat(full))
    return tuple(steps)


def _inserted(spec: RedshiftPut, files: Sequence[Proven]) -> list[Step]:
    """All rows of the files, through the staging table."""
    return [*proven_stage(spec, files), merge.insert(spec, Proven.rows(files))]


def _copied(spec: RedshiftPut, files: Sequence[Proven], was_there: bool) -> list[Step]:
    """All rows of the files, straight into a target that is new, or has been emptied.

    Masking and row-level security may hide the rows of one that was there from us. Then they are proven in the
    staging table instead.
    """
    target = Heap(spec.target, spec.into)

    def otherwise() -> tuple[Step, ...]:
        return (Do(f"DELETE FROM {spec.into}"), *_inserted(spec, files))

    proven = Choose(fine(spec, target, files), "", (), otherwise) if was_there else proof(spec, target, files)
    return [*copies(spec, target, files), proven]


# ---------------------------------------------------------------- rows that merge by key


def _merge(spec: RedshiftPut, commits: Commits) -> list[Step]:
    """Put the newest row of each key in place of what the target has."""
    return _straight(spec, commits) if spec.direct else _staged(spec, commits)


def _staged(spec: RedshiftPut, commits: Commits) -> list[Step]:
    """Through the staging table."""
    files = _flat(commits)
    every, newest = _place(spec, files, Proven.rows(files)), _place(spec, files, None)
    return [*stage(spec, files), *_in_order(spec, STAGED, commits, every, newest, _dropped(spec))]


def _straight(spec: RedshiftPut, commits: Commits) -> list[Step]:
    """Straight into a new target, which has the file-only columns until the rows have been compared."""
    files = _flat(commits)
    target = Heap(spec.target, spec.into)
    more = {staged_as(field): staging_type(field) for field in spec.fields if field.file_only}
    more |= {READ_FIELD: "BIGINT"} if is_told(files) else {}
    done = (
        *_keep_weights(spec),
        *(Do(f"ALTER TABLE {spec.into} DROP COLUMN {quote(name)}") for name in more),
    )
    again = [Do(f"DROP TABLE {spec.into}"), Do(spec.created)] if spec.created else []
    return [
        *(Do(adding(spec.into, name, type_)) for name, type_ in more.items()),
        *copies(spec, target, files),
        *_in_order(spec, target, commits, done, done, [*again, *unweigh(spec)]),
    ]


def _in_order(
    spec: RedshiftPut,
    heap: Heap,
    commits: Commits,
    every: tuple[Step, ...],
    newest: tuple[Step, ...],
    undo: Sequence[Step],
) -> list[Step]:
    """With the files' rows in a table: `every` if no key occurs twice, else keep the newest rows, then `newest`.

    If the rows don't tell which are the newest, `undo` what has been done, and go commit by commit.
    """
    files, shared = _flat(commits), shared_reads(commits)
    told = is_told(files)

    def one_by_one() -> tuple[Step, ...]:
        return (*undo, *_one_by_one(spec, commits))

    def some_twice() -> tuple[Step, ...]:
        proven = proof(spec, heap, files)
        kept = (*without_doubles(spec, heap, told, shared is not None), *newest)
        if len(commits) == 1 or (shared is not None and not shared):
            return (proven, *kept)
        if shared is None:
            return (proven, *one_by_one())
        among = f" WHERE {quote(READ_FIELD)} IN ({', '.join(map(str, sorted(shared)))})"
        question = twice(spec, heap, among if len(shared) <= _LISTED else "", READ_FIELD)
        return (proven, Choose(question, 0, kept, one_by_one))

    doubles = fine(spec, heap, files, twice(spec, heap))
    return [*weigh(spec, heap, told), Choose(doubles, "", every, some_twice)]


def _one_by_one(spec: RedshiftPut, commits: Commits) -> tuple[Step, ...]:
    """Each commit through its own staging table: a later one replaces what an earlier one put there."""
    steps: list[Step] = []
    for i, commit in enumerate(commits):
        later = spec if not i else replace(spec, filled=True, side_filled=spec.weighed)
        told = is_told(commit)
        steps += [*proven_stage(later, commit), *weigh(later, STAGED, told)]
        steps += [*without_doubles(later, STAGED, told, False), *_place(later, commit, None)]
        steps += _dropped(spec)
    return tuple(steps)


def _place(spec: RedshiftPut, files: Sequence[Proven], rows: int | None) -> tuple[Step, ...]:
    """Put the staged rows in place of what the target has for their keys, or of all that it has."""
    if not spec.filled:
        return (*_keep_weights(spec), merge.insert(spec, rows))
    gone = _emptied(spec) if spec.whole else merge.delete(spec, bounded(spec, files))
    weights = _keep_weights(replace(spec, side_filled=False) if spec.whole else spec)
    if not spec.kept:
        return (*gone, *weights, merge.insert(spec, rows))
    return (merge.save_kept(spec, bounded(spec, files)), *gone, *weights, *merge.insert_with_kept(spec, rows))


def _emptied(spec: RedshiftPut) -> list[Step]:
    """Delete all rows of the target, and all weights."""
    return [
        *([Do(f"DELETE FROM {spec.into}")] if spec.filled else []),
        *([Do(f"DELETE FROM {spec.beside}")] if spec.side_filled else []),
    ]


# ---------------------------------------------------------------- deleted keys


def _removed(spec: RedshiftPut, files: Sequence[Proven]) -> list[Step]:
    """Delete the rows, and the weights, of deleted keys."""
    return [
        *proven_stage(spec, files),
        *weigh(spec, STAGED, is_told(files)),
        *merge.delete(spec, bounded(spec, files)),
        *merge.forget_weights(spec),
    ]


def _mark(spec: RedshiftPut, commit: Sequence[Proven], at: str) -> list[Step]:
    """Mark the rows whose keys are in a commit's files as deleted, at the commit's time."""
    if not Proven.rows(commit):
        return []
    return [
        *proven_stage(spec, commit),
        *weigh(spec, STAGED, is_told(commit)),
        *merge.mark(spec, at, bounded(spec, commit)),
        *_dropped(spec),
    ]


def _keep_weights(spec: RedshiftPut) -> list[Step]:
    """Store each key's weight, so that 'ABC' finds 'abc' later."""
    if not spec.weighed:
        return []
    return [*merge.forget_weights(spec), merge.store_weights(spec)]


def _dropped(spec: RedshiftPut) -> list[Step]:
    """Drop the staging table, to make way for the next one."""
    return [Do(f"DROP TABLE {quote(STAGE)}"), *unweigh(spec)]


def _flat(commits: Commits) -> list[Proven]:
    return [proven for commit in commits for proven in commit]
