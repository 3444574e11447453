"""Compares source and warehouse (DuckDB, or the stand-in for Redshift) without a line of the pipeline's code.

Both engines print every row as text in the same form and hash it. Counts and sums of the hashes are compared
per thousand keys, and row by row where they differ. A single changed, missing, extra or duplicated row is found
and named.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import duckdb

from floodmark.model.errors import ConfigError
from floodmark.setup.services.databases import DatabaseServer, Row
from floodmark.setup.services.s3 import SeaweedFS

_SAME_TEXT = {"tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "char", "varchar", "tinytext",
              "text", "mediumtext", "longtext", "date", "time", "year", "enum", "set"}  # fmt: skip
_BUCKET = 1000
# tests.support.redshift.RedshiftStandIn: a context manager that stops it on exit.
StandIn = Any


@dataclass(frozen=True)
class Comparison:
    """What each side holds. `checksum` is the sum of the row hashes."""

    source_rows: int
    warehouse_rows: int
    source_checksum: int
    warehouse_checksum: int
    differences: tuple[str, ...]  # the first few, in words; empty when equal

    @property
    def equal(self) -> bool:
        mine = (self.source_rows, self.source_checksum)
        return not self.differences and mine == (self.warehouse_rows, self.warehouse_checksum)


def compare(
    db: DatabaseServer, table: str, warehouse: Path | StandIn, target: str | None = None, key: str = "id"
) -> Comparison:
    """Compare `schema.table` with its target over every column; the key is one integer column."""
    schema, name = table.split(".")
    target = target or name.lower()
    with _opened(warehouse) as lake, ThreadPoolExecutor(1) as aside:
        mine, theirs = _texts(db, schema, name, lake)
        number = f"CAST(CONV(LEFT(SHA2({mine}, 256), 15), 16, 10) AS UNSIGNED)"
        asked = aside.submit(_ask, db, _buckets(table, key, number))
        copied = _by_bucket(lake.ask(_buckets(target, key, lake.number.format(lake.hash.format(theirs)))))
        source = _by_bucket(asked.result())
        differences: list[str] = []
        for bucket in sorted(source.keys() | copied.keys()):
            if source.get(bucket) != copied.get(bucket) and len(differences) < 10:
                span = f"FLOOR({key} / {_BUCKET}) = {bucket}"
                left = _ask(db, f"SELECT {key}, SHA2({mine}, 256) FROM {table} WHERE {span}")
                right = lake.ask(f"SELECT {key}, {lake.hash.format(theirs)} FROM {target} WHERE {span}")
                differences += _rows(left, right)
    return Comparison(
        sum(n for n, _ in source.values()),
        sum(n for n, _ in copied.values()),
        sum(s for _, s in source.values()),
        sum(s for _, s in copied.values()),
        tuple(differences),
    )


@dataclass(frozen=True)
class _Lake:
    """A warehouse to query, and the expressions that differ between engines."""

    source: duckdb.DuckDBPyConnection | StandIn
    time: str  # a timestamp as text, with six fractional digits
    hash: str  # SHA-256 in hex
    number: str  # the first 15 hex digits as a number
    json: str  # a JSON document as text

    def ask(self, sql: str) -> list[Row]:
        found = self.source.execute(sql)
        return found if isinstance(found, list) else found.fetchall()


@contextmanager
def _opened(warehouse: Path | StandIn) -> Iterator[_Lake]:
    if not isinstance(warehouse, Path):
        time, number = "to_char({}, 'YYYY-MM-DD HH24:MI:SS.US')", "('x' || left({}, 15))::bit(60)::bigint"
        yield _Lake(warehouse, time, "sha2({}, 256)", number, "json_serialize({})")
        return
    with duckdb.connect(str(warehouse), read_only=True) as lake:
        lake.execute("SET TimeZone = 'UTC'")
        number = "CAST('0x' || left({}, 15) AS BIGINT)"
        yield _Lake(lake, "strftime({}, '%Y-%m-%d %H:%M:%S.%f')", "sha256({})", number, "CAST({} AS VARCHAR)")


def _texts(db: DatabaseServer, schema: str, name: str, lake: _Lake) -> tuple[str, str]:
    """The expressions that print one row, for MySQL and for the warehouse."""
    columns = db.execute(
        "SELECT column_name, data_type, is_nullable, datetime_precision, character_maximum_length "
        f"FROM information_schema.columns WHERE table_schema = '{schema}' AND table_name = '{name}' "
        "ORDER BY ordinal_position"
    )
    if not columns:
        raise ConfigError(f"{schema}.{name} is not in the source")
    values, lengths = [], []
    for column, kind, nullable, digits, characters in columns:
        quoted = f'"{column.lower()}"'
        left, right = f"`{column}`", f"CAST({quoted} AS VARCHAR)"
        if kind in ("datetime", "timestamp"):
            width = 20 + digits if digits else 19
            right = f"left({lake.time.format(quoted)}, {width})"
        elif kind == "json":  # MySQL only; on MariaDB, JSON is text
            left, right = (_close(text) for text in (f"CAST(`{column}` AS CHAR)", lake.json.format(quoted)))
        elif kind not in _SAME_TEXT:
            raise ConfigError(f"{schema}.{name}.{column}: {kind} has no common text to compare")
        values.append((left, right))
        if nullable == "YES" or characters is not None:
            # CONCAT_WS skips NULLs, and a text may contain the separator: the lengths remove the ambiguity.
            lengths.append(
                (f"IFNULL(CHAR_LENGTH({left}), 'N')", f"coalesce(CAST(length({right}) AS VARCHAR), 'N')")
            )
    mine, theirs = (", ".join(side) for side in zip(*values, *lengths, strict=True))
    return f"CONVERT(CONCAT_WS('|', {mine}) USING utf8mb4)", f"concat_ws('|', {theirs})"


def _close(json: str) -> str:
    """JSON without the whitespace that only some engines put between its parts."""
    return f"REPLACE(REPLACE({json}, ': ', ':'), ', ', ',')"


def _buckets(table: str, key: str, number: str) -> str:
    return f"SELECT FLOOR({key} / {_BUCKET}), COUNT(*), SUM({number}) FROM {table} GROUP BY 1"


def _by_bucket(rows: list[Row]) -> dict[int, tuple[int, int]]:
    return {int(bucket): (int(count), int(checksum)) for bucket, count, checksum in rows}


def _rows(left: list[Row], right: list[Row]) -> list[str]:
    """The differences between two lists of (key, hash), in words."""
    mine, theirs = ({int(key): text for key, text in side} for side in (left, right))
    words = [
        f"row {key} {'differs in' if key in theirs else 'is missing from'} the warehouse"
        for key, text in mine.items()
        if theirs.get(key) != text
    ]
    times = Counter(int(key) for key, _ in right)
    words += [f"row {key} is in the warehouse only" for key in times if key not in mine]
    words += [f"row {key} is in the warehouse {n} times" for key, n in times.items() if n > 1]
    return words


def _ask(db: DatabaseServer, sql: str) -> list[Row]:
    return db.execute("SET time_zone = '+00:00'", sql)


def stand_in() -> Callable[[SeaweedFS], StandIn]:
    """A factory for stand-ins (not yet started) that read from an S3 server; ConfigError where there are none."""
    root = Path(__file__).parents[4]
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    try:
        module = import_module("tests.support.redshift")
    except ImportError:  # not a checkout, or another package is called `tests`
        raise ConfigError(
            "the stand-in for Redshift comes with the source code only",
            hint="run it from a checkout: make demo WAREHOUSE=redshift",
        ) from None
    made: Callable[[SeaweedFS], StandIn] = module.RedshiftStandIn
    return made
