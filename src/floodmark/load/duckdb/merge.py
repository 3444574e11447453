"""How rows of Parquet files go into a DuckDB table: its shape, and rows merged, inserted, replaced, deleted or marked by key.

All of it runs inside the load's transaction. The files are read in place, exactly as written, with nothing guessed from
paths; nothing is copied into a staging table. Among rows of one key the later commit wins, within a commit the higher
cursor (NULL lowest). Losing rows are found by reading keys and cursors only, and only if there are any. What the target
has in columns that the files lack goes from the old row to the new one.
"""

from __future__ import annotations

import dataclasses
import glob
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from floodmark.load import merge
from floodmark.load.canonical import DUCKDB, TargetSql
from floodmark.load.columns import (
    TargetChange,
    TargetColumn,
    WantedColumn,
    changes,
    placed,
    relaxing,
    wanted_columns,
)
from floodmark.load.duckdb.file import ONLY_HERE, Connection, Volume, counting, translated
from floodmark.load.duckdb.ledger import kind_of
from floodmark.load.files import ascending, check_footer, hardly_repeats, too_few
from floodmark.load.merge import KEPT, STAGE, Do, Heap, Put
from floodmark.load.protocol import DELETED_AT, KEYS, Numbered, data_files, quote
from floodmark.model.commit import LoadAs
from floodmark.model.errors import ConfigError, DataError
from floodmark.model.names import OURS, marked
from floodmark.model.run import Step
from floodmark.model.table import Table
from floodmark.model.types import KEY_FIELD, Field, fields
from floodmark.model.warehouse import DUCKDB as CAN


@dataclass(frozen=True)
class Held:
    """What others have put on a table: it can keep DuckDB from altering columns, and may reject rows."""

    columns: frozenset[str] = frozenset()  # in a PRIMARY KEY, UNIQUE or CHECK: their types can't change
    indexes: tuple[str, ...] = ()  # while there are any, no column can be renamed or retyped


def check_alterable(schema: str, target: str, changes: Sequence[TargetChange], held: Held) -> None:
    """Refuse, with the statements to run, changes that DuckDB would refuse in the middle of a load."""
    altered = [change for change in changes if change.kind in ("rename", "widen")]
    if altered and held.indexes:
        drops = "; ".join(f"DROP INDEX {quote(schema, name)}" for name in held.indexes)
        raise DataError(
            f"column {altered[0].column} of {target} must be altered, but DuckDB can't alter columns of a table with an index",
            hint=f"drop the index, and create it again after the next sync; run: {drops}",
        )
    for change in altered:
        if change.kind == "widen" and change.column.lower() in held.columns:
            raise DataError(
                f"column {change.column} of {target} must become wider, but DuckDB can't alter a column in a PRIMARY KEY, "
                "UNIQUE or CHECK",
                hint=f"to rebuild the table without constraints, run: {_freed(schema, target)}",
            )


def _freed(schema: str, target: str) -> str:
    """The statements that rebuild a table without its constraints, which DuckDB can't drop."""
    table, copy = quote(schema, target), quote(schema, marked(f"{OURS}copy_{target}"))
    return (
        f"BEGIN; CREATE TABLE {copy} AS FROM {table}; DROP TABLE {table}; "
        f"ALTER TABLE {copy} RENAME TO {quote(target)}; COMMIT"
    )


def refused_rows(schema: str, target: str, found: Sequence[TargetColumn], held: Held, said: str) -> DataError:
    """The error for rows that violate a constraint of the target, with the statements to run."""
    table = quote(schema, target)
    free = [f"DROP INDEX {quote(schema, name)}" for name in held.indexes]
    free += [relaxing(table, c.name) for c in found if not c.nullable]
    return DataError(
        f"{target} has a constraint that Floodmark did not create, and the source's rows violate it: {said}",
        hint=f"to remove it, run: {_freed(schema, target) if held.columns else '; '.join(free)}",
    )


# DuckDB would take a folder named region=eu for the value of the column region.
_AS_WRITTEN = (
    "hive_partitioning = false, hive_types_autocast = false, union_by_name = false, filename = false, "
    "file_row_number = false, binary_as_string = false, allow_empty = false"
)


def reading(paths: Sequence[Path]) -> str:
    """The rows of the files as a table expression."""
    return f"read_parquet({_listed(paths)}, {_AS_WRITTEN})"


def rows_of(paths: Sequence[Path], fields: Sequence[Field], also: str = "", joined: str = "") -> str:
    """The same as a query, in columns named as the target's; a key's weight is KEY_FIELD."""
    names = [f"c{i}" for i in range(len(fields))]  # they hide nothing that DuckDB or a join adds
    columns = ", ".join(
        f"{_value(f's.{name}', field)} AS {quote(KEY_FIELD if field.file_only else field.target)}"
        for name, field in zip(names, fields, strict=True)
    )
    return f"(SELECT {columns}{also} FROM {reading(paths)} AS s({', '.join(names)}){joined})"


def check_itself(con: Connection, paths: Sequence[Path]) -> None:
    """DataError if DuckDB would read any other file."""
    if not any("\\" in str(path) for path in paths):
        return
    found = con.execute(f"SELECT file_name FROM parquet_file_metadata({_listed(paths)})").fetchall()
    if others := sorted({str(name) for (name,) in found} ^ {str(path) for path in paths}):
        raise DataError(
            f"DuckDB would read files that are not part of the load ({', '.join(others[:3])})",
            hint="use a folder without *, ? and [ in its name",
        )


def ask(table: Table, path: Path, words: Callable[[TargetSql], Sequence[str]]) -> list[tuple[Any, ...]]:
    """The rows that queries about one file of a table return, in DuckDB's SQL, as if it were the target."""
    every = fields(table)
    place = TargetSql(DUCKDB, rows_of([path], every), {field.target: CAN.type_of(field) for field in every})
    with duckdb.connect(config=ONLY_HERE) as con:
        try:
            check_itself(con, [path])
            return [row for sql in words(place) for row in con.execute(sql).fetchall()]
        except duckdb.Error as error:
            raise translated(error, path) from error


def _value(name: str, field: Field) -> str:
    """A file's value as the target stores it."""
    # Wall clocks are written as if UTC; a cast would shift them by the session's zone.
    return f"make_timestamp(epoch_us({name}))" if field.wall_clock else name


def _listed(paths: Sequence[Path]) -> str:
    files = (_itself(str(path)).replace("'", "''") for path in paths)
    return "[" + ", ".join(f"'{file}'" for file in files) + "]"


def _itself(path: str) -> str:
    """A pattern for exactly this path: DuckDB expands *, ? and [, as in a folder `lake[1]` beside `lake1`.

    A path with a backslash can't be escaped. DuckDB then takes it literally unless other files match, which
    `check_itself` detects.
    """
    return path if "\\" in path else glob.escape(path)


# The first database file format with zstd; a file keeps the format that it was created with.
ZSTD_SINCE = (1, 2)
# With more ranges than this, one query per range does not pay off.
MAX_RANGES = 64


@dataclass(frozen=True)
class DuckDBTarget:
    """A table in the warehouse, seen through one connection."""

    con: Connection
    schema: str
    name: str
    # Called with what is being done to it, and the rows that are in so far.
    at_work: Callable[[Step, int], None] = dataclasses.field(default=lambda step, rows: None, compare=False)

    @property
    def sql(self) -> str:
        return quote(self.schema, self.name)

    @property
    def weights(self) -> DuckDBTarget:
        """The table beside it: MySQL's weight of a text key -> the key as stored."""
        return DuckDBTarget(self.con, self.schema, KEYS + self.name)

    def columns(self) -> tuple[TargetColumn, ...] | None:
        """Its columns; None if there was no such table before this transaction."""
        if kind_of(self.con, self.schema, self.name) is None:
            return None
        found = self.con.execute(f"DESCRIBE {self.sql}").fetchall()
        return tuple(
            TargetColumn(name, type_, null == "YES", fill) for name, type_, null, _, fill, _ in found
        )

    def is_table(self) -> bool:
        """Whether it exists; ConfigError if it is anything but a table."""
        kind = kind_of(self.con, self.schema, self.name)
        if kind not in (None, "BASE TABLE"):
            raise ConfigError(
                f"the target {self.name} is a {kind.lower()}, not a table", hint="set another `target`"
            )
        return kind is not None

    def check_alterable(self, changes: Sequence[TargetChange]) -> None:
        """Refuse changes that DuckDB can't make to the table."""
        if any(change.column for change in changes):
            check_alterable(self.schema, self.name, changes, self.held())

    def held(self) -> Held:
        """The constraints and indexes that others have put on it."""
        here = [self.schema, self.name]
        where = (
            "WHERE database_name = current_database() AND schema_name = ? AND lower(table_name) = lower(?)"
        )
        held = self.con.execute(
            f"SELECT DISTINCT lower(unnest(constraint_column_names)) FROM duckdb_constraints() {where} "
            "AND constraint_type IN ('PRIMARY KEY', 'UNIQUE', 'CHECK')",
            here,
        ).fetchall()
        indexes = self.con.execute(
            f"SELECT index_name FROM duckdb_indexes() {where} ORDER BY index_name", here
        ).fetchall()
        return Held(frozenset(str(name) for (name,) in held), tuple(str(name) for (name,) in indexes))

    def count(self) -> int | None:
        """How many rows it has; None when there is no such table."""
        return self.number(f"SELECT count(*) FROM {self.sql}") if self.is_table() else None

    def has(self, condition: str) -> bool:
        """Whether a row meets a condition."""
        return self.con.execute(f"SELECT 1 FROM {self.sql} WHERE {condition} LIMIT 1").fetchone() is not None

    def generated(self) -> frozenset[str]:
        """Its columns that DuckDB computes, which nobody can write to."""
        found = self.con.execute(
            "SELECT lower(column_name) FROM information_schema.columns WHERE table_catalog = current_database() "
            "AND table_schema = ? AND lower(table_name) = lower(?) AND is_generated = 'ALWAYS'",
            [self.schema, self.name],
        ).fetchall()
        return frozenset(str(name) for (name,) in found)

    def number(self, sql: str) -> int:
        """The number that a statement returns: of a change, how many rows it changed."""
        row = self.con.execute(sql).fetchone()
        return int(row[0]) if row else 0

    def run(self, *steps: Do) -> None:
        """Run some statements."""
        for step in steps:
            self.con.execute(step.sql)


@dataclass(frozen=True, kw_only=True)
class DuckDBPut(Put):
    """A target in DuckDB, and the files on disk whose rows go into it."""

    commits: tuple[Numbered, ...]
    paths: tuple[Path, ...]
    # Whether rows that another row of their key replaces have been found, and are left out.
    losers: bool = False

    @property
    def staged(self) -> Heap:
        place = "s.file_index = l.file_index AND s.file_row_number = l.file_row_number"
        winners = f" ANTI JOIN temp.floodmark_losers AS l ON {place}" if self.losers else ""
        return Heap(STAGE, f"{rows_of(self.paths, self.fields, joined=winners)} AS {quote(STAGE)}")

    def without(self, other: str) -> str:
        return f"{self.staged.path} ANTI JOIN {quote(other)} ON {self.same(other)}"


def known(loaded: Table | None, newest: Table) -> dict[str, str]:
    """The columns, with their types, as the last load left them, which is how it described its files."""
    return {w.name: w.type for w in wanted_columns(placed(loaded, newest), CAN)} if loaded else {}


def packed(con: Connection, staged: DuckDBPut) -> frozenset[str]:
    """The text columns that zstd packs with less work than DuckDB's own choice, at almost the same size.

    DuckDB tries a dictionary first, which is wasted effort if the values differ: a quarter of the work of
    loading settlement rows.
    """
    commits = [commit for commit, _ in staged.commits]
    if too_few(sum(c.rows for c in commits), sum(c.bytes for c in commits)):
        return frozenset()
    found = con.execute(
        "SELECT tags['storage_version'] FROM duckdb_databases() WHERE database_name = current_database()"
    ).fetchone()
    version = re.match(r"v(\d+)\.(\d+)", str(found[0])) if found else None
    if version is None or (int(version[1]), int(version[2])) < ZSTD_SINCE:
        return frozenset()
    texts = (field for field in staged.columns if field.is_text)
    return frozenset(field.target for field in texts if hardly_repeats(staged.paths, field.name))


def volume(staged: DuckDBPut) -> Volume:
    """How much a load has; its widest rows are those of the row group with the widest ones on average.

    DataError if a file does not have the columns and rows that its commit says.
    """
    footers = [pq.read_metadata(path) for path in staged.paths]
    for footer, path, file in zip(footers, staged.paths, data_files(staged.commits), strict=True):
        check_footer(footer, file, staged.fields, str(path))
    groups = [footer.row_group(i) for footer in footers for i in range(footer.num_row_groups)]
    return Volume(
        sum(group.num_rows for group in groups),
        sum(group.total_byte_size for group in groups),
        max((group.total_byte_size // max(group.num_rows, 1) for group in groups), default=0),
    )


def put(target: DuckDBTarget, spec: DuckDBPut, way: LoadAs, rows: int) -> None:
    """Bring the files' rows, which are so many, into the target."""
    match way:
        case "merge":
            _merge(target, spec, rows)
        case "insert" if spec.paths:
            _insert(target, spec, rows)
        case "replace":
            _replace(target, spec, rows)
        case "delete":
            target.at_work(Step("merge"), 0)
            if spec.paths:
                target.run(*merge.delete(spec), *merge.forget_weights(spec))
        case "mark":
            _mark(target, spec)


def _merge(
    target: DuckDBTarget, spec: DuckDBPut, rows: int, first: bool = False, saved: bool = False
) -> None:
    """Put the newest row of each key into the target, replacing its rows; `first`: no weights known yet.

    `saved`: see `_insert`.
    """
    if not spec.paths:
        return
    target.at_work(Step("merge"), 0)
    ranges, keys = _ranges(spec), ", ".join(quote(name) for name in spec.identity)
    distinct = rows
    if ranges is None:
        distinct = target.number(f"SELECT count(*) FROM (SELECT DISTINCT {keys} FROM {spec.staged.path})")
    winners = dataclasses.replace(spec, losers=distinct < rows)
    if winners.losers:
        _find_losers(target, spec, keys)
    if spec.filled and (ranges is None or _any_within(target, spec, ranges)):
        saved = _save_kept(target, spec)
        target.run(*merge.delete(spec))
    _keep_weights(target, spec, winners, first)
    _insert(target, winners, distinct, saved)


def _replace(target: DuckDBTarget, spec: DuckDBPut, rows: int) -> None:
    """Replace everything in the target with these rows; without a key, they keep nothing of the old ones."""
    saved = _save_kept(target, spec)
    target.run(Do(f"DELETE FROM {spec.into}"), Do(f"DROP TABLE IF EXISTS {spec.beside}"))
    spec = dataclasses.replace(spec, filled=False, side_filled=False)
    if spec.table.mode != "full" and spec.table.key:
        # Not one consistent read: a row may be there twice.
        _merge(target, spec, rows, first=True, saved=saved)
    elif spec.paths:
        _keep_weights(target, spec, spec, first=True)
        _insert(target, spec, rows, saved)


def _mark(target: DuckDBTarget, spec: DuckDBPut) -> None:
    """Mark the rows whose keys are in the files as deleted, at the time of their commit."""
    if all(column.name.lower() != DELETED_AT for column in target.columns() or ()):
        target.run(Do(f"ALTER TABLE {spec.into} ADD COLUMN {quote(DELETED_AT)} TIMESTAMP"))
    paths = iter(spec.paths)
    for commit, _ in spec.commits:
        of_commit = dataclasses.replace(spec, paths=tuple(next(paths) for _ in commit.files))
        target.run(*(merge.mark(of_commit, commit.at) if of_commit.paths else ()))


def _ranges(spec: DuckDBPut) -> list[tuple[Any, Any]] | None:
    """The key's range in each file, if the files' order proves that no key repeats; None if it does not."""
    if spec.weighed or len(spec.keys) != 1:
        return None
    (key,) = spec.keys
    whole = pa.types.is_integer(key.arrow) or (pa.types.is_decimal(key.arrow) and key.arrow.scale == 0)
    return ascending(spec.paths, key.name) if whole else None


def _any_within(target: DuckDBTarget, spec: DuckDBPut, ranges: Sequence[tuple[Any, Any]]) -> bool:
    """Whether the target may have keys of the files; cheap, as DuckDB knows the range of each segment."""
    (key,) = spec.keys
    return len(ranges) > MAX_RANGES or any(
        target.has(f"{quote(key.target)} BETWEEN {low} AND {high}") for low, high in ranges
    )


def _find_losers(target: DuckDBTarget, spec: DuckDBPut, keys: str) -> None:
    """Collect the rows that another row of the same key replaces."""
    commit_of = [i for i, (commit, _) in enumerate(spec.commits) for _ in commit.files]
    file, number = quote(f"{OURS}file"), quote(f"{OURS}row")
    order = [f"{commit_of}[{file}::BIGINT + 1] DESC"]
    order += [
        f"{quote(f.target)} DESC NULLS LAST" for f in spec.columns if f.name == f.column == spec.table.cursor
    ]
    place = f", s.file_index AS {file}, s.file_row_number AS {number}"
    target.con.execute(
        f"CREATE OR REPLACE TEMP TABLE floodmark_losers AS SELECT {file} AS file_index, {number} AS file_row_number "
        f"FROM (SELECT {file}, {number}, row_number() OVER (PARTITION BY {keys} "
        f"ORDER BY {', '.join(order)}, {file} DESC, {number} DESC) AS place "
        f"FROM {rows_of(spec.paths, spec.fields, place)}) WHERE place > 1"
    )


def _save_kept(target: DuckDBTarget, spec: DuckDBPut) -> bool:
    """Save what the target's rows with the files' keys have in `spec.kept`; returns whether there are any."""
    if not (spec.kept and spec.paths and spec.keys):
        return False
    target.run(Do(f"DROP TABLE IF EXISTS temp.{quote(KEPT)}"))
    return target.number(merge.save_kept(spec).sql) > 0


def _insert(target: DuckDBTarget, spec: DuckDBPut, expected: int, saved: bool = False) -> None:
    """Add the rows; `saved`: those of saved keys with what the target had in `spec.kept`."""
    steps = merge.insert_with_kept(spec, expected) if saved else [merge.insert(spec, expected)]
    with counting(target.con, expected, lambda number: target.at_work(Step("insert"), number)):
        done = sum(target.number(step.sql) for step in steps)
    if done != expected:
        raise DataError(f"{done:,} rows went into {target.name} instead of {expected:,}")


def _keep_weights(target: DuckDBTarget, spec: DuckDBPut, winners: DuckDBPut, first: bool) -> None:
    """Store each key's weight, so that 'ABC' finds 'abc' later; `first`: no weights known yet."""
    if not spec.weighed:
        target.run(Do(f"DROP TABLE IF EXISTS {spec.beside}"))
        return
    columns = [WantedColumn(spec.weight, "BLOB"), *wanted_columns(spec.keys, CAN)]
    for change in changes(spec.beside, spec.side, columns, None if first else target.weights.columns()):
        target.run(Do(change.statement))
    target.run(*merge.forget_weights(spec), merge.store_weights(winners))
