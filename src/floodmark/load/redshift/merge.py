"""How rows of Parquet files go into a Redshift table, as steps of one transaction. Pure.

COPY matches columns by position and reports neither where a row came from nor what it misread. So the staging
table has the files' columns in their order, and row counts and ranges are compared with the footers. From there, rows
go into the target by name; a new or emptied target that takes them as they are is filled straight from the files.

Among rows of one key the later commit wins, by the read time in the files (`READ_FIELD`) if it follows the commits'
order. If it does not tell two commits with a common key apart, or older files lack it, the commits are staged one
after another, and the later read wins by coming later. Within a commit the higher cursor wins, NULL lowest; between
two rows with the same key and cursor the choice is undefined.

Keys are compared by their bytes, or by MySQL's weights where a collation considers different bytes equal. A weight is
VARBYTE, and AWS does not document grouping or partitioning by that type; so its hash stands for it, computed once into
a narrow table beside the staged rows. Joins compare columns with columns, as DELETE … USING expects.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import pyarrow as pa

from floodmark.load import merge
from floodmark.load.columns import adding
from floodmark.load.merge import STAGE, STAGED, Do, Heap, Put, match
from floodmark.load.protocol import HASH_FIELD, quote
from floodmark.load.redshift.catalog import literal
from floodmark.load.redshift.files import Proven, WriteManifest, as_text, is_ranged, ranges
from floodmark.load.redshift.steps import Choose, Expect, Step
from floodmark.model.commit import LoadAs
from floodmark.model.errors import DataError
from floodmark.model.names import OUR_TABLES
from floodmark.model.types import KEY_FIELD, READ_FIELD, Field
from floodmark.model.warehouse import MAX_VARCHAR, SUPER
from floodmark.model.warehouse import REDSHIFT as CAN

WEIGHTS = f"{OUR_TABLES}weights"
PLACE = f"_{OUR_TABLES}place"
UNKEYABLE = ("SUPER", "VARBYTE")  # types that can't be a DISTKEY or SORTKEY


def staging_type(field: Field) -> str:
    """The type that takes the file's column as it is; JSON stays text until it is parsed."""
    return f"VARCHAR({MAX_VARCHAR})" if field.document else CAN.type_of(field)


def hashed(weight: str) -> str:
    """The hash for a weight. MD5 takes only text; `MAX_WEIGHT` keeps a weight's hex below 65,535 bytes."""
    return f"MD5(TO_HEX({weight}))"


@dataclass(frozen=True, kw_only=True)
class RedshiftPut(Put):
    """A target in Redshift, and the files that COPY brings."""

    iam_role: str | None = None
    manifest: WriteManifest = lambda files: ""
    parsed: frozenset[str] = frozenset()  # the target's columns that hold parsed JSON
    dist_key: str | None = None  # the target's
    created: str | None = None  # the statement that creates the target, if this load does
    direct: bool = False  # whether COPY may fill the target itself, once it is empty
    documents: frozenset[str] = frozenset()  # JSON columns longer than a VARCHAR: staged as SUPER
    whole: bool = False  # the files' rows replace all of the target's, not only those with their keys

    weight = HASH_FIELD

    @property
    def weights(self) -> Heap:
        return Heap(WEIGHTS, quote(WEIGHTS))

    @property
    def names(self) -> list[str]:
        """The names of the files' columns in the staging table, in order."""
        return [staged_as(field) for field in self.fields]

    @property
    def identity(self) -> list[str]:
        return [field.target for field in self.keys]

    def same(self, other: str) -> str:
        return match(self, STAGE, other)

    def equal(self, field: Field, one: str, other: str) -> str:
        # To Redshift 'a' equals 'a '; with something after the spaces it does not.
        text = f" AND {one} || '.' = {other} || '.'" if is_text(field) else ""
        return f"{one} = {other}{text}"

    def value(self, field: Field) -> str:
        column = quote(STAGE, field.target)
        if field.target in self.documents:
            return f"JSON_PARSE(CAST({column} AS VARCHAR(MAX)))"
        return f"JSON_PARSE({column})" if field.target in self.parsed else column

    def one_each(self, columns: str, rows: str) -> str:
        by = ", ".join(grouped(field).by[-1] for field in self.keys)
        return (
            f"SELECT {columns} FROM (SELECT {columns}, row_number() OVER (PARTITION BY {by}) AS {quote(PLACE)} "
            f"FROM ({rows}) AS pairs) AS ranked WHERE {quote(PLACE)} = 1"
        )


@dataclass(frozen=True)
class Grouped:
    """A key column for GROUP BY, which ignores trailing spaces and can't compare VARBYTE."""

    select: str
    by: tuple[str, ...]


def grouped(field: Field, table: str = "") -> Grouped:
    name = field.target
    column = quote(table, name) if table else quote(name)
    if field.type[0] in ("bytes", "weight"):
        return Grouped(f"FROM_HEX(TO_HEX({column})) AS {quote(name)}", (f"TO_HEX({column})",))
    return Grouped(column, (column, f"{column} || '.'") if is_text(field) else (column,))


def is_text(field: Field) -> bool:
    return field.is_text and not field.document


def staged_as(field: Field) -> str:
    """The name of a file's column in the staging table."""
    return KEY_FIELD if field.file_only else field.target


def stage(spec: RedshiftPut, files: Sequence[Proven]) -> list[Step]:
    """The files in the staging table, which is distributed as the target is; not proven yet."""
    types = {
        staged_as(field): SUPER if field.target in spec.documents else staging_type(field)
        for field in spec.fields
    }
    columns = [f"{quote(name)} {type_}" for name, type_ in types.items()]
    if is_told(files):
        columns.append(f"{quote(READ_FIELD)} BIGINT")
    key = spec.dist_key
    spread = key is not None and key in types and not types[key].startswith(UNKEYABLE)
    style = f" DISTSTYLE KEY DISTKEY ({quote(key)})" if spread and key else ""
    return [
        Do(f"CREATE TEMP TABLE {quote(STAGE)} ({', '.join(columns)}){style}"),
        *copies(spec, STAGED, files),
        *_document_check(spec),
    ]


def proven_stage(spec: RedshiftPut, files: Sequence[Proven]) -> list[Step]:
    """The files in the staging table, with proof."""
    return [*stage(spec, files), proof(spec, STAGED, files)]


def is_told(files: Sequence[Proven]) -> bool:
    """Whether any of the files has a read time."""
    return any(file.read for file in files)


def copies(spec: RedshiftPut, heap: Heap, files: Sequence[Proven]) -> list[Step]:
    """One COPY, or two if older files lack the read time."""
    told, untold = [f for f in files if f.read], [f for f in files if not f.read]
    return [*_copy(spec, heap, told, [*spec.names, READ_FIELD]), *_copy(spec, heap, untold, spec.names)]


def _copy(spec: RedshiftPut, heap: Heap, files: Sequence[Proven], columns: Sequence[str]) -> list[Step]:
    if not Proven.rows(files):
        return []
    into = f"{heap.path} ({', '.join(quote(name) for name in columns)})"
    source = literal(spec.manifest(files))
    # The SUPER holds the document as one string, which is parsed on its way into the target.
    more = " SERIALIZETOJSON" if spec.documents else ""
    # No STATUPDATE: by default COPY gathers statistics for an empty table, and joins are planned by them.
    return [Do(f"COPY {into} FROM {source} {role_clause(spec.iam_role)} MANIFEST FORMAT AS PARQUET{more}")]


def role_clause(iam_role: str | None) -> str:
    """The role that COPY reads with; the cluster's default role is a keyword, not a name."""
    if iam_role is None or iam_role.lower() == "default":
        return "IAM_ROLE default"
    return f"IAM_ROLE {literal(iam_role)}"


def shared_reads(commits: Sequence[Sequence[Proven]]) -> frozenset[int] | None:
    """The values of READ_FIELD that several commits share; None if they don't follow the commits' order.

    If they do, a higher value means a later commit; only rows with a shared value can't be told apart by it.
    """
    spans = []
    for commit in commits:
        reads = [file.read for file in commit if file.file.rows]
        if not all(reads):
            return None
        spans.append((min(read[0] for read in reads if read), max(read[1] for read in reads if read)))
    if any(later[0] < earlier[1] for earlier, later in pairwise(spans)):
        return None
    return frozenset(later[0] for earlier, later in pairwise(spans) if later[0] == earlier[1])


# ---------------------------------------------------------------- proof


def proof(spec: RedshiftPut, heap: Heap, files: Sequence[Proven]) -> Step:
    """Check that the table has the files' number of rows and their lowest and highest values, in one scan."""
    rows = Proven.rows(files)

    def error(found: object) -> DataError:
        what, _, which = str(found or "").partition(" ")
        if what == "rows":
            return DataError(
                f"{heap.name} has {int(which):,} rows, but the commits have {rows:,}; nothing was loaded",
                hint="floodmark watermark validate compares the files with the log",
            )
        differs = (
            f"column {which} has a different range of values in Redshift than in the files"
            if which
            else "Redshift's rows differ from the files': in number, or in a range of times, decimals or keys"
        )
        return DataError(
            f"{differs}; nothing was loaded",
            hint="the files were not read as they were written; please report it with the files' schema",
        )

    return Expect(fine(spec, heap, files), "", error)


def fine(spec: RedshiftPut, heap: Heap, files: Sequence[Proven], doubles: str = "") -> str:
    """The query whose answer is empty if the table has the files' rows, and what is wrong otherwise.

    It compares the row count, and each column's lowest and highest value; the query `doubles` must return 0.
    """
    cases = [f"WHEN count(*) <> {Proven.rows(files)} THEN 'rows ' || CAST(count(*) AS VARCHAR)"]
    keys = {field.name for field in spec.keys}
    expected = ranges(files, spec.fields)
    for field in spec.fields:
        if field.name not in expected or not (is_ranged(field) or field.name in keys):
            continue
        column, span = quote(staged_as(field)), expected[field.name]
        if span is None:
            wrong = f"count({column}) <> 0"
        else:
            low, high = (f"CAST({literal(as_text(value))} AS {exact_type(field)})" for value in span)
            wrong = f"coalesce(min({column}) <> {low} OR max({column}) <> {high}, TRUE)"
        cases.append(f"WHEN {wrong} THEN {literal(f'column {field.name}')}")
    cases += [f"WHEN ({doubles}) <> 0 THEN 'twice'"] if doubles else []
    return f"SELECT CASE {' '.join(cases)} ELSE '' END FROM {heap.path}"


def _document_check(spec: RedshiftPut) -> list[Step]:
    """Check that casting out of SUPER loses no long document.

    By default (`cast_super_null_on_error`) a cast that fails returns NULL.
    """
    if not spec.documents:
        return []
    lost = " OR ".join(
        f"({quote(name)} IS NOT NULL AND CAST({quote(name)} AS VARCHAR(MAX)) IS NULL)"
        for name in sorted(spec.documents)
    )

    def error(found: object) -> DataError:
        rows = f" ({int(str(found)):,})" if found is not None else ""
        return DataError(
            f"Redshift can't convert the JSON of some rows{rows} back to text; nothing was loaded",
            hint="set warehouse.large_strings: false, or exclude the column",
        )

    return [Expect(f"SELECT count(*) FROM {STAGED.path} WHERE {lost}", 0, error)]


def exact_type(field: Field) -> str:
    """The type of a value that is compared with the field."""
    return CAN.type_of(field) if pa.types.is_decimal(field.arrow) else staging_type(field)


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
