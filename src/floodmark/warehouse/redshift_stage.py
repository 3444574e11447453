"""The files of a load in a table of Redshift, with proof that they arrived as they are. Pure: steps out.

COPY matches columns by their place and says neither where a row came from nor what it misread. So the staging table
has the files' columns in their order, and rows and ranges are compared with what the footers say. Where all files
tell when they were read (`READ_FIELD`), the table has that too: it is what puts the rows of one key in order.
An empty target that takes the rows as they are needs no staging table: it gets them by the same COPY.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa

from floodmark.errors import DataError
from floodmark.model import Table
from floodmark.names import OUR_TABLES
from floodmark.types import KEY_FIELD, READ_FIELD, SUPER, Field
from floodmark.warehouse import quote
from floodmark.warehouse.redshift_ddl import UNKEYABLE, staging_type
from floodmark.warehouse.redshift_files import Proven, Range, as_text, is_ranged, ranges
from floodmark.warehouse.redshift_names import literal, path
from floodmark.warehouse.redshift_steps import Check, Choose, Do, Step

STAGE = f"{OUR_TABLES}stage"


@dataclass(frozen=True)
class Heap:
    """The table that the files' rows are in: the staging table, or a target that was empty."""

    name: str  # before a column's
    path: str  # as statements call the table


STAGED = Heap(STAGE, quote(STAGE))


@dataclass(frozen=True)
class Put:
    """A target, and the files whose rows go into it."""

    table: Table
    schema: str
    target: str  # as Redshift knows it
    side: str  # the table beside it: MySQL's weight of a text key -> the key as it is stored
    fields: tuple[Field, ...]  # of the files, in their order
    parsed: frozenset[str]  # the target's columns that hold parsed JSON
    constants: tuple[tuple[str, str], ...]  # columns that the files don't have, and what rows get in them
    iam_role: str | None
    filled: bool  # whether the target has rows
    side_filled: bool
    manifest: Callable[[Sequence[Proven]], str]
    dist_key: str | None = None  # the target's
    created: str | None = None  # the statement that has made the target, where this load makes it
    direct: bool = False  # whether COPY may fill the target itself, once it is empty
    documents: frozenset[str] = frozenset()  # columns of JSON that is longer than a VARCHAR: staged as SUPER

    @property
    def columns(self) -> list[tuple[Field, str]]:
        """The fields that the target has too, with their names there."""
        return [(field, field.target) for field in self.fields if not field.file_only]

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

    @property
    def staged(self) -> list[str]:
        """The names of the files' columns in the staging table, in order."""
        return [staged_as(field) for field in self.fields]


def staged_as(field: Field) -> str:
    """What a file's column is called in the staging table."""
    return KEY_FIELD if field.file_only else field.target


def stage(spec: Put, files: Sequence[Proven]) -> list[Step]:
    """The files in the staging table, which is spread over the cluster as the target is."""
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
        *copied(spec, STAGED, files),
        *_document_check(spec),
    ]


def is_told(files: Sequence[Proven]) -> bool:
    """Whether some of the files tell when they were read."""
    return any(file.read for file in files)


def copied(spec: Put, heap: Heap, files: Sequence[Proven]) -> list[Step]:
    """The files in an empty table, with proof."""
    rows = Proven.rows(files)
    return [
        *_copies(spec, heap, files),
        Check(f"SELECT count(*) FROM {heap.path}", rows, _miscounted(rows, f"{heap.name} has")),
        *_range_check(heap, _wrong_ranges(spec, ranges(files, spec.fields))),
    ]


def copied_or(
    spec: Put, heap: Heap, files: Sequence[Proven], otherwise: Callable[[], tuple[Step, ...]]
) -> list[Step]:
    """The files in an empty table; other steps where the table does not show what is in them."""
    wrong = [f"WHEN count(*) <> {Proven.rows(files)} THEN 'rows'"]
    wrong += _wrong_ranges(spec, ranges(files, spec.fields))
    return [*_copies(spec, heap, files), Choose(_first_wrong(heap, wrong), "", (), otherwise)]


def _copies(spec: Put, heap: Heap, files: Sequence[Proven]) -> list[Step]:
    """One COPY, or two where older files lack the column that tells their order."""
    told, untold = [f for f in files if f.read], [f for f in files if not f.read]
    return [
        *_copy(spec, heap, told, [*spec.staged, READ_FIELD]),
        *_copy(spec, heap, untold, spec.staged),
    ]


def _copy(spec: Put, heap: Heap, files: Sequence[Proven], columns: Sequence[str]) -> list[Step]:
    rows = Proven.rows(files)
    if not rows:
        return []
    into = f"{heap.path} ({', '.join(quote(name) for name in columns)})"
    source = literal(spec.manifest(files))
    # A string that is a SUPER's whole value: it is parsed on its way into the target.
    more = " SERIALIZETOJSON" if spec.documents else ""
    # Nothing is said of STATUPDATE: then a table that was empty has statistics, by which joins with it are planned.
    return [
        Do(f"COPY {into} FROM {source} {role_clause(spec.iam_role)} MANIFEST FORMAT AS PARQUET{more}"),
        Check("SELECT pg_last_copy_count()", rows, _miscounted(rows, "COPY loaded")),
    ]


def role_clause(iam_role: str | None) -> str:
    """The role that COPY reads with; the cluster's default one is a keyword, not a name."""
    if iam_role is None or iam_role.lower() == "default":
        return "IAM_ROLE default"
    return f"IAM_ROLE {literal(iam_role)}"


def shared_reads(commits: Sequence[Sequence[Proven]]) -> frozenset[int] | None:
    """The values of READ_FIELD that several commits have; None when the values do not follow the commits' order.

    A row with a higher value is then of a later commit, and only among rows with one of these is that not told.
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


def _wrong_ranges(spec: Put, expected: dict[str, Range | None]) -> list[str]:
    """For each column whose range the files tell: the case that its lowest or highest value is another."""
    cases = []
    keys = {field.name for field, _ in spec.keys}
    for field in spec.fields:
        if field.name not in expected or not (is_ranged(field) or field.name in keys):
            continue
        column, span = quote(staged_as(field)), expected[field.name]
        if span is None:
            wrong = f"count({column}) <> 0"
        else:
            low, high = (f"CAST({literal(as_text(value))} AS {exact_type(field)})" for value in span)
            wrong = f"coalesce(min({column}) <> {low} OR max({column}) <> {high}, TRUE)"
        cases.append(f"WHEN {wrong} THEN {literal(field.name)}")
    return cases


def _first_wrong(heap: Heap, cases: Sequence[str]) -> str:
    return f"SELECT CASE {' '.join(cases)} ELSE '' END FROM {heap.path}"


def _range_check(heap: Heap, cases: Sequence[str]) -> list[Step]:
    """The lowest and highest values are those of the files; the answer is the name of a column where they aren't."""
    if not cases:
        return []

    def error(found: object) -> DataError:
        what = f"column {found}" if found else "a column of times, decimals or keys"
        return DataError(
            f"the values of {what} have another range in Redshift than in the files; nothing was loaded",
            hint="the files were not read as they were written; please report it with the files' schema",
        )

    return [Check(_first_wrong(heap, cases), "", error)]


def _document_check(spec: Put) -> list[Step]:
    """No long document is lost on its way out of SUPER: by default (`cast_super_null_on_error`) a failing cast is NULL."""
    if not spec.documents:
        return []
    lost = " OR ".join(
        f"({quote(name)} IS NOT NULL AND CAST({quote(name)} AS VARCHAR(MAX)) IS NULL)"
        for name in sorted(spec.documents)
    )

    def error(found: object) -> DataError:
        rows = f" ({int(str(found)):,})" if found is not None else ""
        return DataError(
            f"Redshift does not turn the JSON of some rows{rows} back into text; nothing was loaded",
            hint="set warehouse.large_strings: false, or exclude the column",
        )

    return [Check(f"SELECT count(*) FROM {STAGED.path} WHERE {lost}", 0, error)]


def exact_type(field: Field) -> str:
    """The type of a value that is compared with the field's."""
    return field.redshift if pa.types.is_decimal(field.arrow) else staging_type(field)


def _miscounted(rows: int, what: str) -> Callable[[object], DataError]:
    def error(found: object) -> DataError:
        said = f"{what} {int(str(found)):,} rows" if found is not None else "the rows were miscounted"
        return DataError(
            f"{said}, and the commits have {rows:,}; nothing was loaded",
            hint="floodmark watermark validate compares the files with the log",
        )

    return error
