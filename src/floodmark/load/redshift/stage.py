"""The files of a load in a Redshift table, with proof that they arrived intact. Pure: steps out.

COPY matches columns by position and reports neither where a row came from nor what it misread. So the staging
table has the files' columns in their order, and row counts and ranges are compared with the footers. If files
have a read time (`READ_FIELD`), so has the table: it puts the rows of one key in order. An empty target that
takes the rows as they are needs no staging table: the same COPY fills it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import pyarrow as pa

from floodmark.load.merge import STAGE, STAGED, Do, Heap, Put
from floodmark.load.protocol import HASH_FIELD, quote
from floodmark.load.redshift.ddl import UNKEYABLE, staging_type
from floodmark.load.redshift.files import Proven, WriteManifest, as_text, is_ranged, ranges
from floodmark.load.redshift.names import literal
from floodmark.load.redshift.steps import Check, Step
from floodmark.model.errors import DataError
from floodmark.model.names import OUR_TABLES
from floodmark.model.types import KEY_FIELD, READ_FIELD, Field
from floodmark.model.warehouse import SUPER

WEIGHTS = f"{OUR_TABLES}weights"
PLACE = f"_{OUR_TABLES}place"


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
    if field.redshift.startswith("VARBYTE"):
        return Grouped(f"FROM_HEX(TO_HEX({column})) AS {quote(name)}", (f"TO_HEX({column})",))
    return Grouped(column, (column, f"{column} || '.'") if is_text(field) else (column,))


def is_text(field: Field) -> bool:
    return field.redshift.startswith("VARCHAR")


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
    return [
        *_copy(spec, heap, told, [*spec.names, READ_FIELD]),
        *_copy(spec, heap, untold, spec.names),
    ]


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

    return Check(fine(spec, heap, files), "", error)


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

    return [Check(f"SELECT count(*) FROM {STAGED.path} WHERE {lost}", 0, error)]


def exact_type(field: Field) -> str:
    """The type of a value that is compared with the field."""
    return field.redshift if pa.types.is_decimal(field.arrow) else staging_type(field)
