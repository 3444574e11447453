"""Redshift's column types and their counterparts in PostgreSQL.

Lengths are in bytes: VARCHAR(n), CHAR(n) and VARBYTE(n) become domains with a check, one per length, created when
first needed. A type that Redshift lacks is refused, whether PostgreSQL knows it or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.support.redshift.tokens import Token, closing, says, split, syntax_error
from tests.support.redshift.wire import SqlError

_PLAIN = {
    "SMALLINT": "smallint", "INT2": "smallint", "INTEGER": "integer", "INT": "integer", "INT4": "integer",
    "BIGINT": "bigint", "INT8": "bigint", "REAL": "real", "FLOAT4": "real", "FLOAT8": "double precision",
    "BOOLEAN": "boolean", "BOOL": "boolean", "DATE": "date", "TIMESTAMPTZ": "timestamp with time zone",
    "TIMETZ": "time with time zone", "SUPER": "super",
}  # fmt: skip
_TEXT = {"VARCHAR", "NVARCHAR", "TEXT", "CHAR", "CHARACTER", "NCHAR", "BPCHAR"}
_BYTES = {"VARBYTE", "VARBINARY"}
VARCHAR_BYTES, CHAR_BYTES, VARBYTE_BYTES = 65_535, 4_096, 16_777_216


@dataclass(frozen=True)
class Domain:
    """A domain that the stand-in defines."""

    name: str
    base: str
    check: str

    @property
    def create(self) -> str:
        return f"CREATE DOMAIN pg_catalog.{self.name} AS {self.base} CHECK ({self.check})"


@dataclass(frozen=True)
class ColumnType:
    """A column's type: Redshift's family, PostgreSQL's name for it, and its length in bytes if it has one."""

    family: str
    pg: str
    size: int | None = None
    domain: Domain | None = None


def text_type(family: str, size: int) -> ColumnType:
    """VARCHAR(n) or CHAR(n), in bytes."""
    limit = VARCHAR_BYTES if family == "varchar" else CHAR_BYTES
    if not 1 <= size <= limit:
        raise SqlError("22023", f"length for type {family} cannot exceed {limit}" if size > limit
                       else f"length for type {family} must be at least 1")  # fmt: skip
    domain = Domain(f"rs_{family}_{size}", f"{family}({size})", f"octet_length(value) <= {size}")
    return ColumnType(family, f"pg_catalog.{domain.name}", size, domain)


def bytes_type(size: int) -> ColumnType:
    """VARBYTE(n)."""
    if not 1 <= size <= VARBYTE_BYTES:
        raise SqlError("22023", f"length for type varbyte must be between 1 and {VARBYTE_BYTES}")
    domain = Domain(f"rs_varbyte_{size}", "bytea", f"octet_length(value) <= {size}")
    return ColumnType("varbyte", f"pg_catalog.{domain.name}", size, domain)


def decimal_type(precision: int, scale: int) -> ColumnType:
    """DECIMAL(p,s); with 19 digits it is an 8-byte integer internally, which 19 nines don't fit."""
    if not 1 <= precision <= 38:
        raise SqlError("22023", f"DECIMAL precision {precision} must be between 1 and 38")
    if not 0 <= scale <= min(37, precision):
        raise SqlError("22023", f"DECIMAL scale {scale} must be between 0 and precision {precision}")
    pg = f"numeric({precision},{scale})"
    if precision != 19:
        return ColumnType("decimal", pg)
    domain = Domain(
        f"rs_decimal_19_{scale}", pg, f"abs(value) <= 9223372036854775807::numeric / 1e{scale}::numeric"
    )
    return ColumnType("decimal", f"pg_catalog.{domain.name}", None, domain)


def read_type(tokens: Sequence[Token], at: int) -> tuple[ColumnType, int]:
    """The type at a position, and the position after it."""
    if at >= len(tokens):
        raise syntax_error(None)
    first = tokens[at].up or tokens[at].name.upper()
    at += 1
    if first in _PLAIN:
        found = ColumnType(_PLAIN[first].split()[0], _PLAIN[first])
    elif first == "DOUBLE" and says(tokens, at, "PRECISION"):
        found, at = ColumnType("double", "double precision"), at + 1
    elif first in ("BINARY", "CHARACTER") and says(tokens, at, "VARYING"):
        sizes, at = _sizes(tokens, at + 1)
        found = (
            bytes_type(*(sizes or [64_000])) if first == "BINARY" else text_type("varchar", *(sizes or [256]))
        )
    elif first in _TEXT:
        family = "varchar" if "VAR" in first or first == "TEXT" else "char"
        sizes, at = _sizes(tokens, at)
        if first == "TEXT" and sizes:
            raise syntax_error(tokens[at - 1])
        found = text_type(
            family, *(sizes or [256 if first in ("TEXT", "BPCHAR", "VARCHAR", "NVARCHAR") else 1])
        )
    elif first in _BYTES:
        sizes, at = _sizes(tokens, at)
        found = bytes_type(*(sizes or [64_000]))
    elif first in ("DECIMAL", "NUMERIC"):
        sizes, at = _sizes(tokens, at)
        found = decimal_type(sizes[0] if sizes else 18, sizes[1] if len(sizes) > 1 else 0)
    elif first == "FLOAT":
        sizes, at = _sizes(tokens, at)
        found = (
            ColumnType("real", "real")
            if sizes and sizes[0] <= 24
            else ColumnType("double", "double precision")
        )
    elif first in ("TIMESTAMP", "TIME"):
        if at < len(tokens) and tokens[at].text == "(":
            raise syntax_error(tokens[at])  # no precision allowed: always microseconds
        zone = "without"
        if says(tokens, at, "WITHOUT", "TIME", "ZONE") or says(tokens, at, "WITH", "TIME", "ZONE"):
            zone, at = tokens[at].text.lower(), at + 3
        found = ColumnType(
            first.lower() + ("tz" if zone == "with" else ""), f"{first.lower()} {zone} time zone"
        )
    else:
        raise SqlError("42704", f'type "{tokens[at - 1].name}" does not exist')
    if at < len(tokens) and tokens[at].text == "[":
        raise SqlError("0A000", f'Column type "{tokens[at - 1].name}[]" is not supported')
    return found, at


def _sizes(tokens: Sequence[Token], at: int) -> tuple[list[int], int]:
    """The numbers in parentheses after a type; MAX is the longest VARCHAR."""
    if at >= len(tokens) or tokens[at].text != "(":
        return [], at
    end = closing(tokens, at)
    sizes = []
    for part in split(tokens[at + 1 : end], ","):
        if len(part) != 1 or not (part[0].kind == "number" or part[0].up == "MAX"):
            raise syntax_error(part[0] if part else tokens[end])
        sizes.append(VARCHAR_BYTES if part[0].up == "MAX" else int(part[0].text))
    return sizes, end + 1
