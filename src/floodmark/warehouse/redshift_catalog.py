"""What Redshift's catalog says of some names in a schema: kinds and columns, in one question.

The catalog also tells of tables that one may not read. It is on the leader node, so no other table can be asked for in
the same statement.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from floodmark.errors import ConfigError
from floodmark.warehouse.columns import TargetColumn
from floodmark.warehouse.redshift_names import literal
from floodmark.warehouse.redshift_steps import Row, Session


@dataclass(frozen=True)
class Relation:
    """Something in the schema."""

    kind: str = "r"  # r a table, v a view, and so on
    columns: tuple[TargetColumn, ...] = ()

    def has(self, column: str) -> bool:
        return any(found.name == column for found in self.columns)


def relations(session: Session, schema: str, names: Iterable[str]) -> dict[str, Relation]:
    """What there is of some names."""
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


def found_column(row: Row) -> TargetColumn:
    """A row of the catalog as a column; of a default it only says that there is one."""
    name, type_, not_null, has_default, spread = row
    default = "set" if has_default else None
    return TargetColumn(str(name), str(type_).lower(), not not_null, default, bool(spread))


def checked_columns(relation: Relation | None, target: str) -> tuple[TargetColumn, ...] | None:
    """The target's columns; None when it is not there. Anything but a table is refused."""
    if relation is None:
        return None
    if relation.kind != "r":
        what = {"v": "view", "m": "materialized view"}.get(relation.kind, "thing that is no table")
        raise ConfigError(f"the target {target} is a {what}, not a table", hint="set another `target`")
    return relation.columns


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
