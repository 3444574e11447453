"""What a table looks like and how to read it: columns, indexes, key, cursor, mode, by the contract's rules.

Everything the user has named is checked against the server before anything is read. A mere drawback (a
nullable cursor, no index on it) is a note, not an error.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile

from floodmark.config.load import TableOptions
from floodmark.model.errors import ConfigError, about
from floodmark.model.lineage import only_asks_for_a_cursor
from floodmark.model.names import check_target
from floodmark.model.notes import Note, Unfit, not_followed, why_unfit
from floodmark.model.table import Cascade, Column, Mode, Recipe, SourceTable, Table
from floodmark.model.types import comparison, fields, quote
from floodmark.source import sql
from floodmark.source.session import Session, as_text, version

CURSORS = ("update_at", "updated_at", "update_time", "modified_at", "last_modified", "last_update")
CLOCKS = {"datetime", "timestamp"}
INTEGERS = {"tinyint", "smallint", "mediumint", "int", "bigint"}
_ORDERED = CLOCKS | INTEGERS | {"date", "decimal"}
_SYSTEM = "('information_schema', 'mysql', 'performance_schema', 'sys')"
_TABLES = ("BASE TABLE", "SYSTEM VERSIONED")
# Servers allow 4,096 columns in a result.
_FEW_COLUMNS = 1000


class Unseen(ConfigError):
    """The user sees no table of that name: there is none, or a right is missing."""


def list_tables(session: Session, database: str | None) -> list[str]:
    """The tables that the user may see, in one database or in all."""
    return [f"{schema}.{table}" for schema, table, kind, _ in _visible(session, database) if kind in _TABLES]


def resolve(session: Session, name: str, database: str | None) -> str:
    """The full name of the table that the user means; ConfigError if there is none, or more than one."""
    schema, table, _ = _resolve(session, name, database)
    return f"{schema}.{table}"


@dataclass(frozen=True)
class Discovered:
    """A table as it will be read, and what the user should know about it."""

    table: Table
    notes: tuple[Note, ...]
    engine: str = "InnoDB"


def discover(session: Session, name: str, options: TableOptions, database: str | None) -> Table:
    """The table as it will be read."""
    return discover_with_notes(session, name, options, database).table


def discover_with_notes(
    session: Session, name: str, options: TableOptions, database: str | None
) -> Discovered:
    """The table as it will be read, with notes for the user."""
    schema, table, engine = _resolve(session, name, database)
    with about(f"{schema}.{table}"):
        return replace(_discover(session, schema, table, options), engine=engine)


def _discover(session: Session, schema: str, name: str, options: TableOptions) -> Discovered:
    check_target(options.target or name, f"{schema}.{name}")
    if options.conflict is not None:
        raise ConfigError(options.conflict, hint=f"remove it, or set tables.{schema}.{name}.changes: cursor")
    columns = _columns(session, schema, name)
    found = indexes(session, schema, name)
    notes: list[Note] = []
    key, key_index = _key(columns, found, options, notes)
    excluded = {column.lower() for column in options.exclude}
    unseen = [e for e in options.exclude if e.lower() not in {c.name.lower() for c in columns}]
    # MySQL doesn't show columns that the user may not read; excluding one by name confirms that this is
    # intended. `floodmark.plan.reread` refuses other names.
    all_seen = sees_all(session, schema, name) if unseen else None
    if options.cursor:
        _named(columns, options.cursor)
    cursor, mode = _reading(columns, key, options, notes)
    kept = tuple(c for c in columns if c.name.lower() not in excluded)
    for needed in (*key, *((cursor,) if cursor else ())):
        if all(c.name != needed for c in kept):
            what = "cursor" if needed == cursor else "key"
            raise ConfigError(
                f"{needed} is the table's {what} and can't be excluded", hint="remove it from `exclude`"
            )
    layout = tuple((c.name, c.type) for c in columns) if len(kept) < len(columns) else ()
    recipe = Recipe(
        key, cursor, mode, (options.target or name).lower(), options.where,
        zero_dates=options.zero_dates, overflow=options.overflow,
        dist_key=_named(columns, options.dist_key).name if options.dist_key else None,
        sort_key=tuple(_named(columns, column).name for column in options.sort_key),
        renames=tuple(options.renames.items()), deletes=options.deletes, holds=options.holds,
        changes="binlog" if options.changes == "binlog" else None,
    )  # fmt: skip
    table = Table(SourceTable(schema, name, kept, key_index, layout=layout), recipe)
    index = cursor_index(found, table.order)
    along = ((key_index, key), (index, table.order))
    sorted_ = {i for i, order in along if i and needs_sorting(found, i, [table.column(c) for c in order])}
    source = replace(table.source, cursor_index=index, needs_sort=tuple(sorted(sorted_)))
    table = replace(table, source=source)
    if all_seen is None:
        all_seen = _reads_all(session, table, len(columns))
    else:
        _check_readable(session, table)
    if not all_seen:
        notes.append(Note("hidden_columns"))
    if unseen:
        notes.append(Note("unseen_excludes", columns=tuple(unseen)))
    likely = proposed_cursor(table) if options.cursor is None and options.mode != "full" else None
    if likely is not None:
        notes.append(Note("likely_cursor", likely))
    if options.cascades == "ignore" and (note := missed_cascades(session, table)):
        notes.append(note)
    return Discovered(table, (*notes, *_notes(table)))


# ---------------------------------------------------------------- names


_LISTED = "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_TYPE, ENGINE FROM information_schema.TABLES WHERE"

# Schema, name, kind and engine.
_Shown = tuple[str, str, str, str]


def _visible(session: Session, database: str | None) -> list[_Shown]:
    condition = f"TABLE_SCHEMA = {sql.text(database)}" if database else f"TABLE_SCHEMA NOT IN {_SYSTEM}"
    return _shown(session, f"{_LISTED} {condition} ORDER BY TABLE_SCHEMA, TABLE_NAME")


def _visible_by_name(session: Session, meant: set[tuple[str, str]]) -> list[_Shown]:
    """Those of these tables that the user may see, by their exact names.

    The server looks them up one by one: listing all tables for each of 1,000 would take a million rows.
    """
    questions = (
        f"{_LISTED} TABLE_SCHEMA NOT IN {_SYSTEM} AND TABLE_SCHEMA = {sql.text(schema)} AND TABLE_NAME = {sql.text(table)}"
        for schema, table in sorted(meant)
    )
    # The server may ignore case here, and show a table twice.
    found = dict.fromkeys(_shown(session, " UNION ALL ".join(questions))) if meant else {}
    return [one for one in found if one[:2] in meant]


def _shown(session: Session, question: str) -> list[_Shown]:
    return [
        (as_text(schema), as_text(table), as_text(kind).upper(), as_text(engine))
        for schema, table, kind, engine in session.rows(question)
    ]


def _resolve(session: Session, name: str, database: str | None) -> tuple[str, str, str]:
    """Schema, name and engine of the table that the user means."""
    parts = name.split(".")
    meant = {(".".join(parts[:i]), ".".join(parts[i:])) for i in range(1, len(parts))}
    if database:
        meant.add((database, name))
    found = _visible_by_name(session, meant)
    seen = [] if found else _visible(session, None)
    found = found or [t for t in seen if t[1] == name and not (database and len(parts) == 1)]
    if not found and int(session.rows("SELECT @@lower_case_table_names")[0][0] or 0):
        folded = {(schema.lower(), table.lower()) for schema, table in meant}
        found = [t for t in seen if (t[0].lower(), t[1].lower()) in folded]
    if not found:
        full = [f"{schema}.{table}" for schema, table, *_ in seen]
        raise Unseen(
            f"there is no table {name}, or {session.spec.user} may not see it",
            hint=did_you_mean(name if len(parts) > 1 or not database else f"{database}.{name}", full)
            or "check the name, and GRANT SELECT on it",
            table=name if len(parts) > 1 else None,
        )
    if len(found) > 1:
        raise ConfigError(
            f"{name} could be {' or '.join(f'{schema}.{table}' for schema, table, *_ in found)}",
            hint="name the schema too",
        )
    schema, table, kind, engine = found[0]
    if kind not in _TABLES:
        what = "a view" if "VIEW" in kind else f"a {kind.lower()}"
        raise ConfigError(
            f"{schema}.{table} is {what}; only tables can be replicated",
            hint="replicate the tables behind it",
            table=f"{schema}.{table}",
        )
    return schema, table, engine


def _named(columns: Sequence[Column], name: str) -> Column:
    """The column with that name, case-insensitive as in MySQL; ConfigError if there is none."""
    for column in columns:
        if column.name.lower() == name.lower():
            return column
    raise ConfigError(
        f"there is no column {name}",
        hint=did_you_mean(name, [c.name for c in columns])
        or f"the columns are {', '.join(c.name for c in columns)}",
    )


def did_you_mean(name: str, known: Iterable[str]) -> str | None:
    """A question that suggests the closest match, if there is one."""
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
        f" WHERE TABLE_SCHEMA = {sql.text(schema)} AND TABLE_NAME = {sql.text(table)} ORDER BY ORDINAL_POSITION"
    )
    return [
        Column(
            name=as_text(r[0]),
            type=as_text(r[1]),
            data_type=as_text(r[2]).lower(),
            nullable=r[3] == b"YES",
            characters=_int(r[4]),
            octets=_int(r[5]),
            precision=_int(r[6]),
            scale=_int(r[7]),
            fraction=_int(r[8]),
            charset=as_text(r[9]) or None,
            collation=as_text(r[10]) or None,
            default=None if r[11] is None else as_text(r[11]),
            extra=as_text(r[12]),
            generated=as_text(r[13]) if expression != "NULL" else None,
        )
        for r in rows
    ]


# ---------------------------------------------------------------- key, cursor, mode


# A key's columns, and an index that yields them in this order, if there is one.
_Key = tuple[tuple[str, ...], str | None]


def _key(columns: Sequence[Column], found: Sequence[Index], options: TableOptions, notes: list[Note]) -> _Key:
    """The user's key, or else the primary key or the shortest unique one; () if none can tell rows apart."""
    by_name = {c.name: c for c in columns}

    def short(index: Index) -> bool:
        """Whether a B-tree could hold the index; MariaDB hashes unique columns that are too long for one."""
        return sum(by_name[name].octets or 0 for name in index.columns) <= LONGEST_KEY

    unique = [i for i in found if i.unique and i.whole and (i.ordered or short(i))]
    rest = [i for i in found if i not in unique]
    if options.key is not None:
        key = tuple(_named(columns, name).name for name in options.key)
        for name in key:
            if unfit := _unfit(by_name[name]):
                why = why_unfit(unfit, by_name[name])
                raise ConfigError(f"{name} can't be part of the key: {why}", hint="choose another key")
        for index in unique:
            if set(index.columns) == set(key):
                return index.columns, index.name if index.ordered else None
        if not any(set(i.columns) <= set(key) for i in unique):
            notes.append(Note("no_unique_index", columns=key))
        leading = (i.name for i in rest if i.whole and i.ordered and i.columns[: len(key)] == key)
        return key, next(leading, None)
    for index in sorted(unique, key=lambda i: (i.name != "PRIMARY", not i.ordered, len(i.columns))):
        wrong = next((c for c in map(by_name.__getitem__, index.columns) if _unfit(c)), None)
        if wrong is None:
            return index.columns, index.name if index.ordered else None
        notes.append(Note("unfit_index", wrong, index=index.name, unfit=_unfit(wrong)))
    notes += [Note("unfit_index", index=i.name, unfit="in_part") for i in rest if i.unique and not i.whole]
    return (), None


def _unfit(column: Column) -> Unfit | None:
    """Why the column can't be part of a key, if so."""
    if column.nullable:
        return "nullable"
    if column.data_type in ("float", "double"):
        return "inexact"
    return "unknown_collation" if comparison(column) == "unknown" else None


def _reading(
    columns: Sequence[Column], key: tuple[str, ...], options: TableOptions, notes: list[Note]
) -> tuple[str | None, Mode]:
    """The cursor and the mode."""
    if options.mode == "full":
        return None, "full"
    if options.changes == "binlog" and (key or options.mode is None):
        if not key:
            notes.append(Note("whole_if_changed"))
        return None, "upsert" if key else "full"
    counter = next((c.name for c in columns if key == (c.name,) and c.auto_increment), None)
    clock = _clock(columns, options, notes)
    if options.cursor is not None:
        column = _named(columns, options.cursor)
        if column.data_type not in _ORDERED:
            raise ConfigError(
                f"{column.name} can't be the cursor: it is {column.type}",
                hint="a cursor is a time or a growing number",
            )
        cursor: str | None = column.name
    elif options.mode == "append":
        cursor = counter or clock
    else:
        cursor = clock if key and clock else counter
    if options.mode is None:
        if not key:
            if cursor or clock:
                notes.append(Note("no_key"))
            return None, "full"
        if cursor is None:
            notes.append(Note("no_cursor"))
            return None, "full"
        return cursor, "append" if cursor == counter else "upsert"
    if options.mode == "upsert" and not key:
        raise ConfigError("mode upsert needs a key, but the table has none", hint="set `key`, or mode: full")
    if cursor is None:
        raise ConfigError(f"mode {options.mode} needs a cursor", hint="set `cursor`, or mode: full")
    return cursor, options.mode


def _clock(columns: Sequence[Column], options: TableOptions, notes: list[Note]) -> str | None:
    """The column that records when a row was last changed."""
    excluded = {e.lower() for e in options.exclude} if options.cursor else set()
    by_name = {c.name.lower(): c for c in columns if c.name.lower() not in excluded}
    for name in CURSORS:
        column = by_name.get(name)
        if column is not None and column.data_type in CLOCKS:
            return column.name
        if column is not None and options.cursor is None:
            notes.append(Note("not_a_time", column))
    return next((c.name for c in columns if c.maintained and c.data_type in CLOCKS), None)


def proposed_cursor(table: Table) -> Column | None:
    """A column that might reveal changes, for a table that is read whole or for new rows only."""
    if table.mode == "upsert" or not table.key:
        return None
    return likely_cursor([c for c in table.columns if c.name != table.cursor], table.source.table)


# ---------------------------------------------------------------- checks and notes


def _check_readable(session: Session, table: Table, also: str = "") -> None:
    """Selects all columns with the `where` but no rows, so that missing rights and wrong names show now."""
    session.rows(sql.query(table, also + ", ".join(f.select for f in fields(table)), most=0))


def _reads_all(session: Session, table: Table, columns: int) -> bool:
    """Checks the same, and whether the user sees every column: in one question, if nothing is wrong."""
    if columns <= _FEW_COLUMNS:
        with suppress(ConfigError):
            _check_readable(session, table, "*, ")
            return True
    _check_readable(session, table)
    return sees_all(session, table.source.schema, table.source.table)


def sees_all(session: Session, schema: str, table: str) -> bool:
    """Whether the user sees every column; information_schema hides those that it may not read."""
    try:
        session.rows(f"SELECT * FROM {quote(schema)}.{quote(table)} LIMIT 0")
    except ConfigError:
        return False
    return True


def _notes(table: Table) -> list[Note]:
    if table.mode == "full":
        return []
    notes = [] if table.cursor is None else _cursor_notes(table, table.column(table.cursor))
    notes += [Note(kind) for kind in not_followed(table, table.recipe.deletes)]
    if any(comparison(table.column(k)) == "unknown" for k in table.key) and table.mode != "upsert":
        notes.append(Note("unknown_collation"))
    if table.recipe.where and (why := sql.unsteady(table.recipe.where)):
        notes.append(Note("unsteady_where", columns=why))
    return notes


def _cursor_notes(table: Table, cursor: Column) -> list[Note]:
    notes = []
    if cursor.nullable and not only_asks_for_a_cursor(table):
        notes.append(Note("nullable_cursor" if table.key else "nullable_cursor_without_key", cursor))
    if table.source.cursor_index is None:
        notes.append(Note("unindexed_cursor", cursor))
    if cursor.data_type in CLOCKS:
        if not cursor.fraction:
            notes.append(Note("whole_seconds", cursor))
        if not cursor.maintained:
            notes.append(Note("unmaintained_cursor", cursor))
    return notes


def _int(cell: bytes | None) -> int | None:
    return None if cell is None else int(cell)


# ---------------------------------------------------------------- indexes

LONGEST_KEY = 3072  # bytes in a B-tree of InnoDB


@dataclass(frozen=True)
class Index:
    """One index that the optimizer may use, its columns in order."""

    name: str
    unique: bool
    columns: tuple[str, ...]
    whole: bool  # no part is an expression or a column prefix
    ordered: bool  # a B-tree; a hash (MEMORY tables) finds single rows, but no ranges
    descending: tuple[bool, ...] = ()  # per column; empty if the server doesn't say

    def runs(self, primary: Index | None) -> list[tuple[str, bool]]:
        """The columns that order its entries, and whether each descends: InnoDB appends the primary key."""
        parts = [self, *([primary] if primary is not None and primary.whole else [])]
        found: dict[str, bool] = {}
        for part in parts:
            down = part.descending or (False,) * len(part.columns)
            for name, descends in zip(part.columns, down, strict=True):
                found.setdefault(name, descends)
        return list(found.items())


def indexes(session: Session, schema: str, table: str) -> list[Index]:
    """The table's indexes, primary key first. Ignored and invisible ones can't be used and are left out."""
    switches = session.once(
        "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = 'information_schema'"
        " AND TABLE_NAME = 'STATISTICS' AND COLUMN_NAME IN ('IGNORED', 'IS_VISIBLE')"
    )
    usable = {b"IGNORED": " AND IGNORED = 'NO'", b"IS_VISIBLE": " AND IS_VISIBLE = 'YES'"}
    rows = session.rows(
        "SELECT INDEX_NAME, NON_UNIQUE, COLUMN_NAME, SUB_PART, INDEX_TYPE, COLLATION FROM information_schema.STATISTICS"
        f" WHERE TABLE_SCHEMA = {sql.text(schema)} AND TABLE_NAME = {sql.text(table)}"
        f"{''.join(usable[(name or b'').upper()] for (name,) in switches)}"
        " ORDER BY INDEX_NAME <> 'PRIMARY', NON_UNIQUE, INDEX_NAME, SEQ_IN_INDEX"
    )
    parts: dict[str, list[tuple[bytes | None, ...]]] = {}
    for row in rows:
        parts.setdefault((row[0] or b"").decode(), []).append(row)
    return [
        Index(
            name,
            unique=found[0][1] == b"0",
            columns=tuple((r[2] or b"").decode() for r in found),
            whole=all(r[3] is None and r[2] is not None for r in found),
            ordered=found[0][4] == b"BTREE",
            descending=tuple(r[5] == b"D" for r in found),
        )
        for name, found in parts.items()
    ]


def cursor_index(found: Sequence[Index], order: Sequence[str]) -> str | None:
    """The index to read along: one in exactly this order, else the one that follows it furthest; shortest."""
    usable = [i for i in found if order and i.ordered and i.whole and i.columns[0] == order[0]]

    def rank(index: Index) -> tuple[bool, int, int]:
        common = sum(
            1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(index.columns, order, strict=False))
        )
        return not _straight(found, index, order), -common, len(index.columns)

    best = min(usable, key=rank, default=None)
    return best.name if best else None


def needs_sorting(found: Sequence[Index], name: str | None, order: Sequence[Column]) -> bool:
    """Whether MySQL must sort to get this order from the index: for (a DESC, b), or an ENUM's number."""
    index = next((i for i in found if i.name == name), None)
    if index is None:
        return False
    # Such a column is ordered by an expression; see `sql.expression`.
    return any(c.data_type in sql.NUMBERED for c in order) or not _straight(
        found, index, [c.name for c in order]
    )


def _straight(found: Sequence[Index], index: Index, order: Sequence[str]) -> bool:
    """Whether the index, read in one direction, yields rows in this order."""
    primary = next((i for i in found if i.name == "PRIMARY"), None)
    along = index.runs(primary)[: len(order)]
    return [name for name, _ in along] == list(order) and len({down for _, down in along}) == 1


# ---------------------------------------------------------------- names of columns that record changes

# Discovery picks such a column on its own only if its name is one of CURSORS, or MySQL maintains it: only the
# application knows whether every change sets it. So these are merely proposed, and a person decides.
_CHANGED = r"updated?|updates?|upd|modif(?:y|ied|ication)|mod|changed?|chg|edit(?:ed)?|altered|amended|touched|revised|mtime"
_BESIDE = r"last|date|datetime|time|timestamp|tstamp|stamp|ts|dt|at|on|gmt|utc|row|record|rec|sys|system|when"


def likely_cursor(columns: Sequence[Column], table: str) -> Column | None:
    """The first DATETIME or TIMESTAMP named after changes of the row; NOT NULL columns come first."""
    named = [c for c in columns if c.data_type in CLOCKS and tells_changes(c.name, table)]
    return min(named, key=lambda c: c.nullable, default=None)


def tells_changes(name: str, table: str = "") -> bool:
    """Whether a name refers to a row's last change and nothing else, such as its creation or a new password.

    `modified`, `date_changed`, `LastUpdatedOn`, `ts_update`; in the table `wp_posts` also `post_modified`.
    """
    own = "|".join(re.escape(word) for word in _words_of(table))
    beside = f"{_BESIDE}|{own}" if own else _BESIDE
    letters = re.sub(r"[^a-z]", "", name.lower())
    return re.fullmatch(rf"(?:{beside})*(?:{_CHANGED})(?:{beside})*", letters) is not None


def _words_of(table: str) -> set[str]:
    """The words of a table's name, and their singulars: `wp_posts` gives wp, posts and post."""
    words = {word for word in re.split(r"[^a-z]+", table.lower()) if len(word) > 1}
    letters = re.sub(r"[^a-z]", "", table.lower())
    words |= {letters} if len(letters) > 1 else set()
    singular = {re.sub(r"ies$", "y", word) for word in words} | {re.sub(r"e?s$", "", word) for word in words}
    return words | {word for word in singular if len(word) > 1}


# ---------------------------------------------------------------- foreign keys that write

# ON UPDATE CASCADE and ON DELETE SET NULL write into the child's columns without firing its triggers or its
# ON UPDATE CURRENT_TIMESTAMP, on MySQL and MariaDB alike: no cursor reveals such a change.
_WRITING = ("CASCADE", "SET NULL", "SET DEFAULT")
# The first MySQL that writes what foreign keys change to its binary log; MariaDB never does.
LOGS_CASCADES = (9, 6)
_NAMES = r"`(?:[^`]|``)+`(?:[.,] ?`(?:[^`]|``)+`)*"
_RULE = "RESTRICT|CASCADE|SET NULL|NO ACTION|SET DEFAULT"
_FOREIGN = re.compile(
    rf" *(?:CONSTRAINT {_NAMES} )?FOREIGN KEY \((?P<columns>{_NAMES})\) REFERENCES (?P<parent>{_NAMES}) \({_NAMES}\)"
    rf"(?: ON DELETE (?P<delete>{_RULE}))?(?: ON UPDATE (?P<update>{_RULE}))?"
)


def missed_cascades(session: Session, table: Table) -> Note | None:
    """A note on the foreign keys by which rows change unseen: by no cursor, or, on servers that don't log it, not in the binary log."""
    if not table.recipe.changes:
        return cascade_note(table, cascades(session, table))
    known = version(session)
    if not known.mariadb and known.numbers >= LOGS_CASCADES:
        return None
    found = cascades(session, table, removing=True)
    return Note("unlogged_cascades", cascades=found) if found else None


def cascades(session: Session, table: Table, *, removing: bool = False) -> tuple[Cascade, ...]:
    """The foreign keys by which MySQL itself changes rows of a table. ON DELETE CASCADE removes rows, which is up to `deletes`.

    Read from its definition: MariaDB hides the constraints in information_schema from a user who may only
    read.
    """
    try:
        definition = session.rows(f"SHOW CREATE TABLE {sql.source(table)}")[0][1] or b""
    except ConfigError:
        return ()  # MySQL doesn't show it to a user who may read only some columns
    return cascades_in(definition.decode(errors="replace"), removing)


def cascades_in(definition: str, removing: bool = False) -> tuple[Cascade, ...]:
    """The same, parsed from a table's CREATE statement, which has one constraint per line."""
    found = []
    for line in definition.split("\n"):
        key = _FOREIGN.match(line)
        rules = writing(key["update"] or "", key["delete"] or "") if key else ()
        if removing and key and key["delete"] == "CASCADE":
            rules = (*rules, "ON DELETE CASCADE")
        if key and rules:
            found.append(Cascade(_names(key["columns"]), ".".join(_names(key["parent"])), rules))
    return tuple(found)


def _names(quoted: str) -> tuple[str, ...]:
    return tuple(name.replace("``", "`") for name in re.findall(r"`((?:[^`]|``)+)`", quoted))


def writing(update: str, delete: str) -> tuple[str, ...]:
    """The rules of a foreign key that change its child's columns."""
    rules = (("ON UPDATE", update), ("ON DELETE", delete))
    return tuple(f"{when} {what}" for when, what in rules if what in _WRITING[when == "ON DELETE" :])


def touched(table: Table, found: tuple[Cascade, ...]) -> tuple[str, ...]:
    """The replicated columns that change that way, in the table's order."""
    named = {column for cascade in found for column in cascade.columns}
    return tuple(column.name for column in table.columns if column.name in named)


def cascade_note(table: Table, found: tuple[Cascade, ...]) -> Note | None:
    """A note on the cascades, if rows are read by a cursor that misses them."""
    columns = touched(table, found)
    if table.cursor is None or not columns:
        return None
    by = tuple(cascade for cascade in found if set(cascade.columns) & set(columns))
    return Note("cascades", table.column(table.cursor), columns, cascades=by)
