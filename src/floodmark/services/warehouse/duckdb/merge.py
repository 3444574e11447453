"""How rows of Parquet files go into a DuckDB table: merged, inserted, replaced, deleted or marked by key.

The files are read in place; nothing is copied into a staging table. Among rows of one key the later commit
wins, within a commit the higher cursor (NULL lowest). Losing rows are found by reading keys and cursors only,
and only if there are any. What the target has in columns that the files lack goes from the old row to the new one.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from floodmark.model.errors import ConfigError, DataError
from floodmark.model.run import Step
from floodmark.model.table import Table
from floodmark.model.types import KEY_FIELD, READ_FIELD, Field
from floodmark.services.warehouse.column_mapping import Constant, placed
from floodmark.services.warehouse.columns import Change, TargetColumn, Wanted, same
from floodmark.services.warehouse.duckdb.ddl import Held, changes, check_alterable, literal
from floodmark.services.warehouse.duckdb.file import Connection, Volume, counting
from floodmark.services.warehouse.duckdb.files import FileColumns, check_itself, reading, value
from floodmark.services.warehouse.duckdb.ledger import kind_of
from floodmark.services.warehouse.files import ascending, hardly_repeats, key_fields, too_few
from floodmark.services.warehouse.protocol import DELETED_AT, KEYS, Numbered, data_files, quote

# The first database file format with zstd; a file keeps the format that it was created with.
ZSTD_SINCE = (1, 2)
# With more ranges than this, one query per range does not pay off.
MAX_RANGES = 64
WEIGHT = KEY_FIELD  # makes keys compare as in MySQL's collation


@dataclass(frozen=True)
class Target:
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
    def weights(self) -> Target:
        """The table beside it: MySQL's weight of a text key -> the key as stored."""
        return Target(self.con, self.schema, KEYS + self.name)

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

    def check_alterable(self, changes: Sequence[Change]) -> None:
        """Refuse changes that DuckDB can't make to the table."""
        if any(change.column for change in changes):
            check_alterable(self.schema, self.name, changes, self.held())

    def relaxing(self, column: TargetColumn) -> str:
        """The statement that makes a column nullable."""
        return f"ALTER TABLE {self.sql} ALTER COLUMN {quote(column.name)} DROP NOT NULL"

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
        return self.rows() if self.is_table() else None

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

    def rows(self) -> int:
        """How many rows it has, even if this transaction has created it."""
        return _number(self.con, f"SELECT count(*) FROM {self.sql}")


@dataclass(frozen=True)
class Staged:
    """The rows of some commits: their files on disk, and what is in them."""

    table: Table
    fields: tuple[Field, ...]  # of the files, in their order
    commits: tuple[Numbered, ...]
    paths: tuple[Path, ...]
    constants: tuple[Constant, ...] = ()  # columns that the files lack, and what rows get in them
    kept: tuple[str, ...] = ()  # columns that the files lack, in which existing rows keep their values

    @property
    def columns(self) -> tuple[Field, ...]:
        """The fields that the target has too."""
        return tuple(field for field in self.fields if not field.file_only)

    @property
    def keys(self) -> tuple[Field, ...]:
        return tuple(field for field in key_fields(self.table, self.fields) if not field.file_only)

    @property
    def weighed(self) -> bool:
        """Whether keys are compared by MySQL's weights instead of their bytes."""
        return any(field.file_only for field in self.fields)

    @property
    def identity(self) -> list[str]:
        """The columns by which rows are compared, as they are called while the files are read."""
        return [WEIGHT] if self.weighed else [_inner(field) for field in self.keys]

    @property
    def rows(self) -> str:
        """The rows as a table expression, alias s."""
        names = ", ".join(quote(_inner(f)) for f in self.fields)
        return f"{reading(self.paths)} AS s({names})"


def wanted(fields: Sequence[Field], fills: Mapping[str, str]) -> list[Wanted]:
    """The target's columns for some fields, and what existing rows get in those that have to be added."""
    return [Wanted(f.target, f.duckdb, fills.get(f.target)) for f in fields if not f.file_only]


def known(loaded: Table | None, newest: Table) -> dict[str, str]:
    """The columns, with their types, as the last load left them, which is how it described its files."""
    return {w.name: w.type for w in wanted(placed(loaded, newest), {})} if loaded else {}


def check_files(con: Connection, staged: Staged, found: FileColumns) -> None:
    """DataError if DuckDB would not read these files, or finds other columns in them."""
    check_itself(con, staged.paths)
    expected = [(field.name, _file_type(field)) for field in staged.fields]
    if found[len(expected) :] == [(READ_FIELD, "BIGINT")]:
        found = found[:-1]  # not needed: the commits' order says as much
    if [name for name, _ in found] != [name for name, _ in expected]:
        raise DataError(f"the files have columns {[n for n, _ in found]}, not {[n for n, _ in expected]}")
    for (name, is_type), (_, type_) in zip(found, expected, strict=True):
        if not same(is_type, type_):
            raise DataError(f"column {name} is {is_type} in the files, not {type_}")


def packed(con: Connection, staged: Staged) -> frozenset[str]:
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
    texts = (field for field in staged.columns if field.duckdb == "VARCHAR")
    return frozenset(field.target for field in texts if hardly_repeats(staged.paths, field.name))


def volume(staged: Staged) -> Volume:
    """How much a load has; its widest rows are those of the row group with the widest ones on average.

    DataError if a file does not have the rows that its commit says.
    """
    footers = [pq.read_metadata(path) for path in staged.paths]
    for footer, file in zip(footers, data_files(staged.commits), strict=True):
        if footer.num_rows != file.rows:
            raise DataError(
                f"the file {file.path} has {footer.num_rows:,} rows, but its commit says {file.rows:,}"
            )
    groups = [footer.row_group(i) for footer in footers for i in range(footer.num_row_groups)]
    return Volume(
        sum(group.num_rows for group in groups),
        sum(group.total_byte_size for group in groups),
        max((group.total_byte_size // max(group.num_rows, 1) for group in groups), default=0),
    )


def merge(
    target: Target, staged: Staged, rows: int, *, filled: bool, first: bool = False, saved: bool = False
) -> None:
    """Put the newest row of each key into the target, replacing its rows; `first`: no weights known yet.

    `saved`: see `_insert`.
    """
    if not staged.paths:
        return
    con = target.con
    target.at_work(Step("merge"), 0)
    names = ", ".join(f"s.{quote(name)}" for name in staged.identity)
    ranges = _ranges(staged)
    distinct = (
        rows
        if ranges is not None
        else _number(con, f"SELECT count(*) FROM (SELECT DISTINCT {names} FROM {staged.rows})")
    )
    winners = staged.rows
    if distinct < rows:
        _find_losers(con, staged, names)
        place = "s.file_index = l.file_index AND s.file_row_number = l.file_row_number"
        winners += f" ANTI JOIN temp.floodmark_losers AS l ON {place}"
    if filled and (ranges is None or _any_within(target, staged, ranges)):
        saved = _save_kept(target, staged)
        _delete(target, staged)
    _keep_weights(target, staged, winners, first)
    _insert(target, staged, winners, distinct, saved)


def insert(target: Target, staged: Staged, rows: int) -> None:
    """Add the rows."""
    if staged.paths:
        _insert(target, staged, staged.rows, rows)


def replace(target: Target, staged: Staged, rows: int) -> None:
    """Replace everything in the target with these rows; without a key, they keep nothing of the old ones."""
    saved = _save_kept(target, staged)
    target.con.execute(f"DELETE FROM {target.sql}")
    target.con.execute(f"DROP TABLE IF EXISTS {target.weights.sql}")
    if staged.table.mode != "full" and staged.table.key:
        # Not one consistent read: a row may be there twice.
        merge(target, staged, rows, filled=False, first=True, saved=saved)
    elif staged.paths:
        _keep_weights(target, staged, staged.rows, first=True)
        _insert(target, staged, staged.rows, rows, saved)


def delete(target: Target, staged: Staged) -> None:
    """Delete the rows whose keys are in the files."""
    target.at_work(Step("merge"), 0)
    if staged.paths:
        _delete(target, staged)
        if staged.weighed:
            _forget_weights(target, staged)


def mark(target: Target, staged: Staged) -> None:
    """Mark the rows whose keys are in the files as deleted, at the time of their commit."""
    if all(column.name.lower() != DELETED_AT for column in target.columns() or ()):
        target.con.execute(f"ALTER TABLE {target.sql} ADD COLUMN {quote(DELETED_AT)} TIMESTAMP")
    paths = iter(staged.paths)
    for commit, digest in staged.commits:
        of_commit = tuple(next(paths) for _ in commit.files)
        if of_commit:
            _mark(
                target, dataclasses.replace(staged, commits=((commit, digest),), paths=of_commit), commit.at
            )


def _mark(target: Target, staged: Staged, at: str) -> None:
    moment = f"TIMESTAMP '{at.replace('T', ' ').removesuffix('Z')}'"
    update = f"UPDATE {target.sql} AS t SET {quote(DELETED_AT)} = {moment} FROM"
    there = f"t.{quote(DELETED_AT)} IS NULL"
    if staged.weighed and target.weights.columns():
        stored = _match(staged, "t", lambda field: f"k.{quote(field.target)}")
        target.con.execute(
            f"{update} {target.weights.sql} AS k, {staged.rows} "
            f"WHERE k.{quote(WEIGHT)} = s.{quote(WEIGHT)} AND {stored} AND {there}"
        )
    target.con.execute(f"{update} {staged.rows} WHERE {_match(staged, 't', _value)} AND {there}")


def _ranges(staged: Staged) -> list[tuple[Any, Any]] | None:
    """The key's range in each file, if the files' order proves that no key repeats; None if it does not."""
    if staged.weighed or len(staged.keys) != 1:
        return None
    (key,) = staged.keys
    whole = pa.types.is_integer(key.arrow) or (pa.types.is_decimal(key.arrow) and key.arrow.scale == 0)
    return ascending(staged.paths, key.name) if whole else None


def _any_within(target: Target, staged: Staged, ranges: Sequence[tuple[Any, Any]]) -> bool:
    """Whether the target may have keys of the files; cheap, as DuckDB knows the range of each segment."""
    if len(ranges) > MAX_RANGES:
        return True
    (key,) = staged.keys
    ask = f"SELECT 1 FROM {target.sql} WHERE {quote(key.target)} BETWEEN {{}} AND {{}} LIMIT 1"
    return any(target.con.execute(ask.format(low, high)).fetchone() for low, high in ranges)


def _find_losers(con: Connection, staged: Staged, names: str) -> None:
    """Collect the rows that another row of the same key replaces."""
    commit_of = [i for i, (commit, _) in enumerate(staged.commits) for _ in commit.files]
    order = f"{commit_of}[s.file_index::BIGINT + 1] DESC"
    cursor = next((f for f in staged.columns if f.name == f.column == staged.table.cursor), None)
    if cursor is not None:
        order += f", s.{quote(_inner(cursor))} DESC NULLS LAST"
    con.execute(
        f"CREATE OR REPLACE TEMP TABLE floodmark_losers AS SELECT file_index, file_row_number FROM ("
        f"SELECT s.file_index, s.file_row_number, row_number() OVER (PARTITION BY {names} "
        f"ORDER BY {order}, s.file_index DESC, s.file_row_number DESC) AS place FROM {staged.rows}) "
        f"WHERE place > 1"
    )


def _save_kept(target: Target, staged: Staged) -> bool:
    """Save what the target's rows with the files' keys have in `staged.kept`; returns whether there are any."""
    if not (staged.kept and staged.paths and staged.keys):
        return False
    names = ", ".join(quote(name) for name in staged.identity)
    values = ", ".join(f"t.{quote(name)} AS {_kept(i)}" for i, name in enumerate(staged.kept))
    mine = ", ".join(f"s.{quote(name)}" for name in staged.identity)
    found = f"SELECT {mine}, {values} FROM {target.sql} AS t, {staged.rows}"
    pairs = f"{found} WHERE {_match(staged, 't', _value)}"
    if staged.weighed and target.weights.columns():
        stored = _match(staged, "t", lambda field: f"k.{quote(field.target)}")
        pairs += f" UNION ALL {found}, {target.weights.sql} AS k "
        pairs += f"WHERE k.{quote(WEIGHT)} = s.{quote(WEIGHT)} AND {stored}"
    kept = f"CREATE OR REPLACE TEMP TABLE floodmark_kept AS SELECT DISTINCT ON ({names}) * FROM ({pairs})"
    return _number(target.con, kept) > 0


def _kept(i: int) -> str:
    """The name of a saved column; a prefix of its own keeps it apart from `_inner`."""
    return quote(f"_kept_{i}")


def _insert(target: Target, staged: Staged, rows: str, expected: int, saved: bool = False) -> None:
    """Add the rows; `saved`: those of saved keys with what the target had in `staged.kept`."""
    values = {field.target: _value(field) for field in staged.columns}
    values |= {c.target: literal(c.duckdb, c.value) for c in staged.constants}
    parts = [(values, rows)]
    if saved:
        same = " AND ".join(f"s.{quote(n)} IS NOT DISTINCT FROM h.{quote(n)}" for n in staged.identity)
        old = values | {name: f"h.{_kept(i)}" for i, name in enumerate(staged.kept)}
        parts = [
            (old, f"{rows} JOIN temp.floodmark_kept AS h ON {same}"),
            (values, f"{rows} ANTI JOIN temp.floodmark_kept AS h ON {same}"),
        ]
    done = 0
    with counting(target.con, expected, lambda number: target.at_work(Step("insert"), number)):
        for given, chosen in parts:
            names, select = ", ".join(quote(name) for name in given), ", ".join(given.values())
            done += _number(target.con, f"INSERT INTO {target.sql} ({names}) SELECT {select} FROM {chosen}")
    if done != expected:
        raise DataError(f"{done:,} rows went into {target.name} instead of {expected:,}")


def _delete(target: Target, staged: Staged) -> None:
    """Delete the target's rows that have the files' keys."""
    if staged.weighed and target.weights.columns():
        stored = _match(staged, "t", lambda field: f"k.{quote(field.target)}")
        target.con.execute(
            f"DELETE FROM {target.sql} AS t USING {target.weights.sql} AS k, {staged.rows} "
            f"WHERE k.{quote(WEIGHT)} = s.{quote(WEIGHT)} AND {stored}"
        )
    # Also by bytes: equal bytes are equal keys, and the weights may not cover rows that were there before.
    target.con.execute(
        f"DELETE FROM {target.sql} AS t USING {staged.rows} WHERE {_match(staged, 't', _value)}"
    )


def _keep_weights(target: Target, staged: Staged, rows: str, first: bool = False) -> None:
    """Store each key's weight, so that 'ABC' finds 'abc' later; `first`: no weights known yet."""
    con, side = target.con, target.weights
    if not staged.weighed:
        con.execute(f"DROP TABLE IF EXISTS {side.sql}")
        return
    columns = [Wanted(WEIGHT, "BLOB"), *wanted(staged.keys, {})]
    for change in changes(side.schema, side.name, columns, None if first else side.columns()):
        con.execute(change.statement)
    if not first:
        _forget_weights(target, staged)
    names = ", ".join(quote(column.name) for column in columns)
    values = ", ".join([f"s.{quote(WEIGHT)}", *(_value(field) for field in staged.keys)])
    con.execute(f"INSERT INTO {side.sql} ({names}) SELECT {values} FROM {rows}")


def _forget_weights(target: Target, staged: Staged) -> None:
    """Drop the stored weights of the files' keys, by weight and by bytes (a collation may have changed)."""
    side, weight = target.weights, quote(WEIGHT)
    if side.count():
        using = f"DELETE FROM {side.sql} AS k USING {staged.rows} WHERE"
        target.con.execute(f"{using} k.{weight} = s.{weight}")
        target.con.execute(f"{using} {_match(staged, 'k', _value)}")


def _match(staged: Staged, alias: str, value: Callable[[Field], str]) -> str:
    """The condition that a row has a given key; NULLs in a key equal each other."""
    terms = []
    for field in staged.keys:
        equal = "IS NOT DISTINCT FROM" if staged.table.column(field.column).nullable else "="
        terms.append(f"{alias}.{quote(field.target)} {equal} {value(field)}")
    return " AND ".join(terms)


def _value(field: Field) -> str:
    """A file's value as the target stores it."""
    return value(f"s.{quote(_inner(field))}", field)


def _inner(field: Field) -> str:
    """The column's name while read from a file; prefixed to hide nothing that DuckDB or a join adds."""
    return WEIGHT if field.file_only else f"_source_{field.target}"


def _file_type(field: Field) -> str:
    """The type that DuckDB sees in a file, where both kinds of timestamp are instants."""
    return "TIMESTAMP WITH TIME ZONE" if pa.types.is_timestamp(field.arrow) else field.duckdb


def _number(con: Connection, sql: str) -> int:
    row = con.execute(sql).fetchone()
    return int(row[0]) if row else 0
