"""Parquet files as DuckDB reads them: exactly these files, as written, with nothing guessed from paths."""

from __future__ import annotations

import glob
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb

from floodmark.load.canonical import DUCKDB, TargetSql
from floodmark.load.duckdb.errors import translated
from floodmark.load.duckdb.file import ONLY_HERE, Connection
from floodmark.load.protocol import quote
from floodmark.model.errors import DataError
from floodmark.model.table import Table
from floodmark.model.types import KEY_FIELD, Field, fields

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
    place = TargetSql(DUCKDB, rows_of([path], every), {field.target: field.duckdb for field in every})
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
