"""What a table looks like and how it is to be read: columns, key, cursor, mode, by the contract's rules.

Whatever the user named is checked against the server before anything is read; what is only unfortunate (a nullable
cursor, no index on it) is no error but a note.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from floodmark.config import TableOptions
from floodmark.errors import ConfigError, FloodmarkError
from floodmark.model import Column, Mode, Table
from floodmark.mysql import cascades as cascading
from floodmark.mysql.connect import Session
from floodmark.mysql.indexes import Index, Keys, crooked, cursor_index, indexes
from floodmark.mysql.likely import likely_cursor
from floodmark.mysql.version import version
from floodmark.names import check_target
from floodmark.types import comparison, fields, quote

CURSORS = ("update_at", "updated_at", "update_time", "modified_at", "last_modified", "last_update")
CLOCKS = {"datetime", "timestamp"}
INTEGERS = {"tinyint", "smallint", "mediumint", "int", "bigint"}
_ORDERED = CLOCKS | INTEGERS | {"date", "decimal"}
_SYSTEM = "('information_schema', 'mysql', 'performance_schema', 'sys')"
_TABLES = ("BASE TABLE", "SYSTEM VERSIONED")


def list_tables(session: Session, database: str | None) -> list[str]:
    """The tables that the user may see, of one database or of all."""
    return [f"{schema}.{table}" for schema, table, kind in _visible(session, database) if kind in _TABLES]


def resolve(session: Session, name: str, database: str | None) -> str:
    """The full name of the table that the user means; ConfigError when there is none, or more than one."""
    schema, table = _resolve(session, name, database)
    return f"{schema}.{table}"


def discover(session: Session, name: str, options: TableOptions, database: str | None) -> Table:
    """The table as it will be read."""
    schema, table = _resolve(session, name, database)
    try:
        return _discover(session, schema, table, options)
    except FloodmarkError as error:
        raise error.of(f"{schema}.{table}") from error.__cause__


def _discover(session: Session, schema: str, name: str, options: TableOptions) -> Table:
    check_target(options.target or name, f"{schema}.{name}")
    columns = _columns(session, schema, name)
    found = indexes(session, schema, name)
    notes: list[str] = []
    key, key_index = _key(columns, found, options, notes)
    for column in (*options.exclude, *((options.cursor,) if options.cursor else ())):
        _named(columns, column)
    cursor, mode = _reading(columns, key, options, notes)
    kept = tuple(c for c in columns if c.name not in {_named(columns, e).name for e in options.exclude})
    for needed in (*key, *((cursor,) if cursor else ())):
        if all(c.name != needed for c in kept):
            what = "cursor" if needed == cursor else "key"
            raise ConfigError(
                f"{needed} is the table's {what} and can't be excluded", hint="take it out of `exclude`"
            )
    table = Table(
        schema, name, kept, key, cursor, mode, (options.target or name).lower(), options.where, key_index,
        zero_dates=options.zero_dates, overflow=options.overflow,
        dist_key=_named(columns, options.dist_key).name if options.dist_key else None,
        sort_key=tuple(_named(columns, column).name for column in options.sort_key),
        renames=tuple(options.renames.items()), deletes=options.deletes,
    )  # fmt: skip
    table = replace(table, cursor_index=cursor_index(found, table.order))
    along = ((table.key_index, table.key), (table.cursor_index, table.order))
    sorted_ = {i for i, order in along if i and crooked(found, i, [table.column(c) for c in order])}
    table = replace(table, crooked=tuple(sorted(sorted_)))
    _check_readable(session, table)
    if not _sees_all(session, table):
        notes.append("The user may not read every column: those that it can't see are left out.")
    likely = proposed_cursor(table) if options.cursor is None and options.mode != "full" else None
    if likely is not None:
        notes.append(
            f"{likely.name} looks like the time of a row's last change, and is not used by itself:"
            f" if every change sets it, set `cursor: {likely.name}`."
        )
    if options.cascades == "ignore" and (said := cascading.note(table, cascading.of(session, table))):
        notes.append(said)
    return replace(table, notes=(*notes, *_notes(table)))


# ---------------------------------------------------------------- names


def _visible(session: Session, database: str | None) -> list[tuple[str, str, str]]:
    condition = f"TABLE_SCHEMA = {_text(database)}" if database else f"TABLE_SCHEMA NOT IN {_SYSTEM}"
    rows = session.rows(
        "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE FROM information_schema.TABLES"
        f" WHERE {condition} ORDER BY TABLE_SCHEMA, TABLE_NAME"
    )
    return [(_str(schema), _str(table), _str(kind).upper()) for schema, table, kind in rows]


def _resolve(session: Session, name: str, database: str | None) -> tuple[str, str]:
    parts = name.split(".")
    meant = {(".".join(parts[:i]), ".".join(parts[i:])) for i in range(1, len(parts))}
    if database:
        meant.add((database, name))
    seen = _visible(session, None)
    found = [t for t in seen if (t[0], t[1]) in meant] or [
        t for t in seen if t[1] == name and not (database and len(parts) == 1)
    ]
    if not found and int(session.rows("SELECT @@lower_case_table_names")[0][0] or 0):
        folded = {(schema.lower(), table.lower()) for schema, table in meant}
        found = [t for t in seen if (t[0].lower(), t[1].lower()) in folded]
    if not found:
        full = [f"{schema}.{table}" for schema, table, _ in seen]
        raise ConfigError(
            f"there is no table {name}, or {session.spec.user} may not see it",
            hint=_did_you_mean(name if len(parts) > 1 or not database else f"{database}.{name}", full)
            or "check the name, and GRANT SELECT on it",
            table=name if len(parts) > 1 else None,
        )
    if len(found) > 1:
        raise ConfigError(
            f"{name} could be {' or '.join(f'{schema}.{table}' for schema, table, _ in found)}",
            hint="name the schema too",
        )
    schema, table, kind = found[0]
    if kind not in _TABLES:
        what = "a view" if "VIEW" in kind else f"a {kind.lower()}"
        raise ConfigError(
            f"{schema}.{table} is {what}; only tables can be replicated",
            hint="replicate the tables behind it",
            table=f"{schema}.{table}",
        )
    return schema, table


def _named(columns: Sequence[Column], name: str) -> Column:
    """The column of that name, in any case as MySQL has it; ConfigError when there is none."""
    for column in columns:
        if column.name.lower() == name.lower():
            return column
    raise ConfigError(
        f"there is no column {name}",
        hint=_did_you_mean(name, [c.name for c in columns])
        or f"the columns are {', '.join(c.name for c in columns)}",
    )


def _did_you_mean(name: str, known: Iterable[str]) -> str | None:
    by_folded = {k.lower(): k for k in known}
    close = difflib.get_close_matches(name.lower(), by_folded, n=1, cutoff=0.7)
    if not close:  # the right table in another schema
        tail = name.lower().rpartition(".")[2]
        close = [k for k in by_folded if k.rpartition(".")[2] == tail][:1]
    return f"did you mean {by_folded[close[0]]}?" if close else None


# ---------------------------------------------------------------- columns


def _columns(session: Session, schema: str, table: str) -> list[Column]:
    expression = "GENERATION_EXPRESSION" if version(session).generates else "NULL"
    rows = session.rows(
        "SELECT COLUMN_NAME, COLUMN_TYPE, DATA_TYPE, IS_NULLABLE, CHARACTER_MAXIMUM_LENGTH, CHARACTER_OCTET_LENGTH,"
        " NUMERIC_PRECISION, NUMERIC_SCALE, DATETIME_PRECISION, CHARACTER_SET_NAME, COLLATION_NAME, COLUMN_DEFAULT,"
        f" EXTRA, {expression} FROM information_schema.COLUMNS"
        f" WHERE TABLE_SCHEMA = {_text(schema)} AND TABLE_NAME = {_text(table)} ORDER BY ORDINAL_POSITION"
    )
    return [
        Column(
            name=_str(r[0]),
            type=_str(r[1]),
            data_type=_str(r[2]).lower(),
            nullable=r[3] == b"YES",
            characters=_int(r[4]),
            octets=_int(r[5]),
            precision=_int(r[6]),
            scale=_int(r[7]),
            fraction=_int(r[8]),
            charset=_str(r[9]) or None,
            collation=_str(r[10]) or None,
            default=None if r[11] is None else _str(r[11]),
            extra=_str(r[12]),
            generated=_str(r[13]) if expression != "NULL" else None,
        )
        for r in rows
    ]


# ---------------------------------------------------------------- key, cursor, mode


def _key(
    columns: Sequence[Column], found: Sequence[Index], options: TableOptions, notes: list[str]
) -> tuple[tuple[str, ...], str | None]:
    keys = Keys(columns, found)
    if options.key is not None:
        named = tuple(_named(columns, k) for k in options.key)
        for column in named:
            reason = keys.unusable(column)
            if reason:
                raise ConfigError(
                    f"{column.name} can't be part of the key: {reason}", hint="choose another key"
                )
        return keys.configured(tuple(c.name for c in named), notes)
    return keys.discovered(notes)


def _reading(
    columns: Sequence[Column], key: tuple[str, ...], options: TableOptions, notes: list[str]
) -> tuple[str | None, Mode]:
    """The cursor and the mode."""
    if options.mode == "full":
        return None, "full"
    counter = next((c.name for c in columns if key == (c.name,) and c.auto_increment), None)
    clock = _clock(columns, options, notes)
    if options.cursor is not None:
        cursor: str | None = _configured_cursor(columns, options.cursor).name
    elif options.mode == "append":
        cursor = counter or clock
    else:
        cursor = clock if key and clock else counter
    if options.mode is None:
        if not key:
            if cursor or clock:
                notes.append("The table has no key, so every sync reads all of it (mode full).")
            return None, "full"
        if cursor is None:
            notes.append("No column tells what has changed, so every sync reads the whole table (mode full).")
            return None, "full"
        return cursor, "append" if cursor == counter else "upsert"
    if options.mode == "upsert" and not key:
        raise ConfigError("mode upsert needs a key, and the table has none", hint="set `key`, or mode: full")
    if cursor is None:
        raise ConfigError(f"mode {options.mode} needs a cursor", hint="set `cursor`, or mode: full")
    return cursor, options.mode


def _configured_cursor(columns: Sequence[Column], name: str) -> Column:
    column = _named(columns, name)
    if column.data_type not in _ORDERED:
        raise ConfigError(
            f"{column.name} can't be the cursor: it is {column.type}",
            hint="a cursor is a time or a growing number",
        )
    return column


def _clock(columns: Sequence[Column], options: TableOptions, notes: list[str]) -> str | None:
    """The column that tells when a row was changed."""
    excluded = {e.lower() for e in options.exclude} if options.cursor else set()
    by_name = {c.name.lower(): c for c in columns if c.name.lower() not in excluded}
    for name in CURSORS:
        column = by_name.get(name)
        if column is not None and column.data_type in CLOCKS:
            return column.name
        if column is not None and options.cursor is None:
            notes.append(
                f"{column.name} is {column.type}, not a time, and is not used as the cursor by itself."
            )
    return next((c.name for c in columns if c.maintained and c.data_type in CLOCKS), None)


def proposed_cursor(table: Table) -> Column | None:
    """The column by which changes might be seen, of a table in which they aren't, or which is read whole."""
    if table.mode == "upsert" or not table.key:
        return None
    return likely_cursor([c for c in table.columns if c.name != table.cursor], table.table)


# ---------------------------------------------------------------- checks and notes


def _check_readable(session: Session, table: Table) -> None:
    """Asks for no row, but for every column and the `where`, so that a missing right or a wrong name shows now."""
    where = f" WHERE ({table.where}\n)" if table.where else ""
    names = ", ".join(f.select for f in fields(table))
    session.rows(f"SELECT {names} FROM {quote(table.schema)}.{quote(table.table)}{where} LIMIT 0")


def _sees_all(session: Session, table: Table) -> bool:
    """Whether no column is hidden from the user, as information_schema hides what it has no right to."""
    try:
        session.rows(f"SELECT * FROM {quote(table.schema)}.{quote(table.table)} LIMIT 0")
    except ConfigError:
        return False
    return True


def _notes(table: Table) -> list[str]:
    if table.cursor is None:
        return []
    cursor = table.column(table.cursor)
    notes = []
    if cursor.nullable:
        notes.append(f"{cursor.name} can be NULL: rows without a value are read again by every sync.")
    if table.cursor_index is None:
        notes.append(
            f"No index begins with {cursor.name}: every sync scans the whole table to find what has changed."
        )
    if cursor.data_type in CLOCKS:
        if not cursor.fraction:
            notes.append(f"{cursor.name} has no sub-second digits: many rows can share one value.")
        if not cursor.maintained:
            notes.append(
                f"Nothing in MySQL keeps {cursor.name} current (no ON UPDATE CURRENT_TIMESTAMP):"
                " a change that leaves it as it was is not seen."
            )
    if cursor.name in table.key and table.mode == "append":
        notes.append(f"The table is read by {cursor.name}: new rows are seen, changes of old ones are not.")
    if any(comparison(table.column(k)) == "unknown" for k in table.key) and table.mode != "upsert":
        notes.append("The key's collation can't be compared outside of MySQL.")
    return notes


def _text(value: str) -> str:
    return f"_utf8mb4 X'{value.encode().hex()}'" if value else "''"


def _str(cell: bytes | None) -> str:
    return (cell or b"").decode()


def _int(cell: bytes | None) -> int | None:
    return None if cell is None else int(cell)
