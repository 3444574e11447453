"""ALTER TABLE: one change per statement; the only type change is a wider VARCHAR, outside of transactions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tests.support.redshift.columntypes import ColumnType, read_type
from tests.support.redshift.ddl import FIXED_ENCODINGS, Table, marking, read_column, table_constraint
from tests.support.redshift.plans import Context, Plan, script
from tests.support.redshift.postgres import literal
from tests.support.redshift.tokens import Token, has, quote, says, split, sql_of, syntax_error
from tests.support.redshift.wire import SqlError

_OUTSIDE = "ALTER TABLE {} cannot run inside a transaction block"


def alter_table(sql: str, tokens: Sequence[Token]) -> Plan:
    """The plan of an ALTER TABLE."""
    at = 3
    while at + 1 < len(tokens) and tokens[at].text == ".":
        at += 2
    table, action = "".join(t.text for t in tokens[2:at]), list(tokens[at:])
    if not action:
        raise syntax_error(None)
    if len(split(action, ",")) > 1:
        raise syntax_error(next(t for t in action if t.text == ","))
    match action[0].up:
        case "ADD":
            return _add(sql, table, action)
        case "DROP":
            return _drop(sql, table, action)
        case "RENAME" | "OWNER":
            return Plan(sql, sql_of(tokens))
        case "APPEND":
            raise SqlError("0A000", "the stand-in has no ALTER TABLE APPEND")
        case "ALTER":
            return _alter(sql, table, action)
    raise syntax_error(action[0])


def _add(sql: str, table: str, action: Sequence[Token]) -> Plan:
    if action[1].up in ("CONSTRAINT", "PRIMARY", "UNIQUE", "FOREIGN", "CHECK"):
        table_constraint(Table(likes=["unknown"]), action[1:])
        return Plan(sql, run=script(f"SELECT {literal(table)}::pg_catalog.regclass", tag="ALTER TABLE"))
    definition = action[2:] if action[1].up == "COLUMN" else action[1:]
    column = read_column(definition)
    for mark, word in (
        ("distkey", "DISTKEY"),
        ("sortkey", "SORTKEY"),
        ("key", "UNIQUE, PRIMARY KEY or FOREIGN KEY"),
    ):
        if mark in column.marks:
            raise SqlError("0A000", f"ALTER TABLE ADD COLUMN cannot add a column that is {word}")
    if column.identity:
        raise SqlError("0A000", "ALTER TABLE ADD COLUMN does not support IDENTITY")
    if column.not_null and (column.default is None or column.default.upper() == "NULL"):
        words = "ALTER TABLE ADD COLUMN defined as NOT NULL must have a non-null default expression"
        raise SqlError("0A000", words)
    domains = frozenset({column.type.domain} if column.type.domain else ())
    return Plan(sql, f"ALTER TABLE {table} ADD COLUMN {column.sql()}", domains=domains)


def _drop(sql: str, table: str, action: Sequence[Token]) -> Plan:
    if action[1].up in ("CONSTRAINT", "PRIMARY"):
        return Plan(sql, run=script(tag="ALTER TABLE"))
    at = 2 if action[1].up == "COLUMN" else 1
    if at >= len(action):
        raise syntax_error(None)
    return Plan(sql, run=partial(_drop_column, table, action[at].name, sql_of(action[at + 1 :])))


def _drop_column(table: str, column: str, rest: str, context: Context) -> str:
    for mark in ("distkey", "sortkey"):
        if _marked(context, table, column, mark):
            raise SqlError("0A000", f'cannot drop {mark} column "{column}"')
    context.backend.query(f"ALTER TABLE {table} DROP COLUMN {quote(column)} {rest}")
    return "ALTER TABLE"


def _alter(sql: str, table: str, action: Sequence[Token]) -> Plan:
    if action[1].up in ("DISTSTYLE", "SORTKEY") and says(
        action, 2, "EVEN" if action[1].up == "DISTSTYLE" else "NONE"
    ):
        return Plan(sql, run=partial(_unmark, table, "distkey" if action[1].up == "DISTSTYLE" else "sortkey"))
    if "DISTKEY" in (action[1].up, action[-2].up):
        return Plan(sql, run=partial(_mark_distkey, table, action[-1].name))
    if action[1].up in ("DISTSTYLE", "SORTKEY", "COMPOUND", "INTERLEAVED", "ENCODE"):
        return Plan(sql, run=script(f"SELECT {literal(table)}::pg_catalog.regclass", tag="ALTER TABLE"))
    at = 2 if action[1].up == "COLUMN" else 1
    if says(action, at + 1, "ENCODE"):
        return Plan(sql, run=script(tag="ALTER TABLE"))
    if not says(action, at + 1, "TYPE"):
        raise syntax_error(action[at + 1] if at + 1 < len(action) else None)
    if has(action, "USING"):
        raise syntax_error(next(t for t in action if t.up == "USING"))
    kind, end = read_type(action, at + 2)
    if end < len(action):
        raise syntax_error(action[end])
    domains = frozenset({kind.domain} if kind.domain else ())
    run = partial(_change_type, table, action[at].name, kind)
    return Plan(sql, run=run, outside=_OUTSIDE.format("ALTER COLUMN"), domains=domains)


def _mark_distkey(table: str, column: str, context: Context) -> str:
    """Make this column the DISTKEY, and no other."""
    _unmark(table, "distkey", context)
    context.backend.query(f"ALTER TABLE {table} ADD {marking(column, 'distkey')}")
    return "ALTER TABLE"


def _unmark(table: str, mark: str, context: Context) -> str:
    """Remove a key's mark from all columns."""
    found = context.backend.query(
        f"SELECT conname FROM pg_catalog.pg_constraint WHERE conrelid = {literal(table)}::pg_catalog.regclass "
        f"AND conname LIKE 'rs!_{mark}!_%' ESCAPE '!'"
    )
    for row in found:
        context.backend.query(f"ALTER TABLE {table} DROP CONSTRAINT {quote((row[0] or b'').decode())}")
    return "ALTER TABLE"


def _change_type(table: str, column: str, kind: ColumnType, context: Context) -> str:
    found = context.backend.query(
        "SELECT pg_catalog.rs_type(atttypid, atttypmod), atthasdef FROM pg_catalog.pg_attribute "
        f"WHERE attrelid = {literal(table)}::pg_catalog.regclass AND attname = {literal(column)} AND NOT attisdropped"
    )
    if not found:
        raise SqlError("42703", f'column "{column}" of relation "{table}" does not exist')
    words, has_default = (found[0][0] or b"").decode(), found[0][1] == b"t"
    family, _, size = words.rstrip(")").partition("(")
    if family != "character varying" or kind.family != "varchar" or kind.size is None:
        raise SqlError(
            "0A000",
            f'cannot alter column "{column}" of relation "{table}", only VARCHAR columns can be altered',
        )
    if int(size) == kind.size:
        raise SqlError(
            "0A000",
            f'cannot alter column "{column}" of relation "{table}", target column size should be different',
        )
    for wrong, what in (
        (has_default, "a column with a default value"),
        (
            _marked(context, table, column, "key"),
            "a column that is part of a UNIQUE, PRIMARY KEY or FOREIGN KEY",
        ),
        (
            any(_marked(context, table, column, f"encode_{e}") for e in FIXED_ENCODINGS),
            "a column of this encoding",
        ),
    ):
        if wrong:
            raise SqlError(
                "0A000", f'cannot alter column "{column}" of relation "{table}", {what} is not supported'
            )
    limit = f"SELECT coalesce(max(octet_length({quote(column)})), 0) > {kind.size} FROM {table}"
    if context.backend.query(limit)[0][0] == b"t":
        words = f'cannot alter column "{column}" of relation "{table}", target column size is smaller than the data'
        raise SqlError("0A000", words)
    context.backend.query(f"ALTER TABLE {table} ALTER COLUMN {quote(column)} TYPE {kind.pg}")
    return "ALTER TABLE"


def _marked(context: Context, table: str, column: str, mark: str) -> bool:
    """Whether a column carries a mark."""
    found = context.backend.query(
        f"SELECT pg_catalog.rs_marked(attrelid, attnum, {literal(mark)}) FROM pg_catalog.pg_attribute "
        f"WHERE attrelid = {literal(table)}::pg_catalog.regclass AND attname = {literal(column)}"
    )
    return bool(found) and found[0][0] == b"t"
