"""Names and literals as Redshift reads them, and what its catalog says about some names in a schema.

Table names are folded to lower case, always quoted and at most 127 bytes long: Redshift silently truncates
longer ones. Column names are the same for every warehouse: `floodmark.model.names`. The catalog also lists tables
that the user may not read; it is on the leader node, so the same statement can't query other tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from floodmark.load.columns import TargetColumn
from floodmark.load.ledger import LedgerDialect
from floodmark.load.protocol import quote
from floodmark.load.redshift.steps import RedshiftSession, Row, StatementFailed
from floodmark.model.errors import ConfigError, ConflictError
from floodmark.model.ledger import SUMMED_DIGITS
from floodmark.model.names import LONGEST

_HEXES = """CHAR_LENGTH("digest") = 64 AND TRANSLATE("digest", '0123456789abcdef', '') = ''"""
_END = f'STRTOL(SUBSTRING("digest", {65 - SUMMED_DIGITS}, {SUMMED_DIGITS}), 16)'
WORDS = LedgerDialect(
    moment="""to_char({}, 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')""",
    # Malformed digests don't count.
    total=f"CAST(coalesce(sum(CASE WHEN {_HEXES} THEN CAST({_END} AS DECIMAL(38,0)) END), 0) AS VARCHAR)",
    backslash="\\\\",  # it begins an escape
)
literal = WORDS.literal


def folded(name: str, prefix: str = "") -> str:
    """The name as Redshift knows it, after our prefix; a name that is too long ends in its hash."""
    name = name.lower()
    if len((prefix + name).encode()) <= LONGEST:
        return prefix + name
    mark = "_" + hashlib.sha256(name.encode()).hexdigest()[:6]
    room = LONGEST - len(prefix) - len(mark)
    return prefix + name.encode()[:room].decode(errors="ignore") + mark


def checked_target(target: str) -> str:
    """The target's name; ConfigError if Redshift would take it for a temporary table (#)."""
    name = folded(target)
    if name.startswith("#"):
        raise ConfigError(
            f"the target {target} has a name that Redshift reserves", hint="set another `target`"
        )
    return name


def path(schema: str, name: str) -> str:
    """A table's name with its schema, quoted."""
    return quote(schema.lower(), name)


@dataclass(frozen=True)
class Relation:
    """A table, a view or the like in the schema."""

    kind: str = "r"  # r a table, v a view, and so on
    columns: tuple[TargetColumn, ...] = ()

    def has(self, column: str) -> bool:
        return any(found.name == column for found in self.columns)


def relations(session: RedshiftSession, schema: str, names: Iterable[str]) -> dict[str, Relation]:
    """Those of the names that exist, with what they are."""
    listed = ", ".join(literal(name) for name in names)
    rows = session.query(
        "SELECT c.relname, c.relkind, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull, a.atthasdef, "
        "a.attisdistkey FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped "
        f"WHERE n.nspname = {literal(schema.lower())} AND c.relname IN ({listed}) ORDER BY c.relname, a.attnum"
    )
    found: dict[str, Relation] = {}
    for name, kind, *about in rows:
        before = found.get(str(name), Relation(_text(kind)))
        column = () if about[0] is None else (found_column(tuple(about)),)
        found[str(name)] = Relation(before.kind, (*before.columns, *column))
    return found


def numbered(session: RedshiftSession, schema: str, name: str) -> frozenset[str]:
    """The IDENTITY columns of a table, which take no value from an INSERT."""
    rows = session.query(
        "SELECT a.attname FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid "
        "JOIN pg_namespace n ON n.oid = c.relnamespace "
        "JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum "
        f"WHERE n.nspname = {literal(schema.lower())} AND c.relname = {literal(name)} "
        "AND pg_get_expr(d.adbin, d.adrelid) LIKE '\"identity\"(%'"
    )
    return frozenset(_text(column) for (column,) in rows)


def found_column(row: Row) -> TargetColumn:
    """A row of the catalog as a column; of a default, only that there is one."""
    name, type_, not_null, has_default, spread = row
    default = "set" if has_default else None
    return TargetColumn(str(name), str(type_).lower(), not not_null, default, bool(spread))


def checked_columns(relation: Relation | None, target: str) -> tuple[TargetColumn, ...] | None:
    """The target's columns; None when it does not exist. ConfigError if it is anything but a table."""
    if relation is None:
        return None
    if relation.kind != "r":
        what = {"v": "view", "m": "materialized view"}.get(relation.kind, "relation of another kind")
        raise ConfigError(f"the target {target} is a {what}, not a table", hint="set another `target`")
    return relation.columns


def create_tables(
    session: RedshiftSession, schema: str, wanted: Mapping[str, str], found: Collection[str], seconds: float
) -> None:
    """Create those of our tables that were not found, and their schema, each in a statement by itself."""
    missing = {name: columns for name, columns in wanted.items() if name not in found}
    schemas = f"SELECT nspname FROM pg_catalog.pg_namespace WHERE nspname = {literal(schema.lower())}"
    if missing and not session.query(schemas):
        make(session, f"CREATE SCHEMA IF NOT EXISTS {quote(schema.lower())}", seconds)
    for name, columns in missing.items():
        make(session, f"CREATE TABLE IF NOT EXISTS {path(schema, name)} {columns}", seconds)


def make(session: RedshiftSession, statement: str, seconds: float) -> None:
    """Run a statement, unless another session has come first."""
    try:
        session.execute(statement, seconds=seconds)
    except StatementFailed as failed:
        if not isinstance(failed.error, ConflictError):
            raise


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
