"""The target's shape in Redshift: how it is created, and how it is adapted when the files change.

All of it is decided from the catalog, read just before. What Redshift can do inside a transaction is part of the
load's. It lengthens a VARCHAR only outside one: that statement runs before, loses nothing by itself, and after a crash
in between the next load simply finds it done.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from floodmark.load.columns import (
    Difference,
    TargetChange,
    TargetColumn,
    WantedColumn,
    adding,
    constants,
    differences,
    fits,
    left_alone,
    placed,
    plain,
    renamed,
    renamings,
    same,
    target_renames,
    wanted_columns,
)
from floodmark.load.files import file_fields, key_fields
from floodmark.load.protocol import DELETED_AT, HASH_FIELD, LoadRequest, quote
from floodmark.load.redshift.catalog import literal, path
from floodmark.load.redshift.merge import UNKEYABLE, RedshiftPut, hashed, staging_type
from floodmark.load.redshift.steps import Busy, RedshiftSession, Row, StatementFailed
from floodmark.model.commit import LoadAs, by_key
from floodmark.model.errors import ConfigError, DataError
from floodmark.model.names import OURS, marked
from floodmark.model.policies import tells_rows_apart
from floodmark.model.table import Table
from floodmark.model.types import KEY_FIELD, Field
from floodmark.model.warehouse import MAX_VARCHAR, SUPER
from floodmark.model.warehouse import REDSHIFT as CAN

_HASH_TYPE = "VARCHAR(32)"
_DISTRIBUTED = " DISTSTYLE KEY DISTKEY ({})"


@dataclass(frozen=True)
class Shape:
    """What the target needs before rows go in, and which of its columns hold parsed JSON."""

    changes: tuple[TargetChange, ...] = ()
    parsed: frozenset[str] = frozenset()  # columns of the target that are SUPER
    found: frozenset[str] = frozenset()  # columns that existed already, by their new names

    @property
    def before(self) -> tuple[TargetChange, ...]:
        """Each by itself, before the transaction."""
        return tuple(change for change in self.changes if change.outside)

    @property
    def inside(self) -> tuple[str, ...]:
        """The statements in the load's transaction."""
        return tuple(s for change in self.changes if not change.outside for s in change.statements)


def shape(
    table: Table,
    schema: str,
    target: str,
    fields: Sequence[Field],
    found: Sequence[TargetColumn] | None,
    *,
    newest: Table | None = None,
    known: Sequence[Field] = (),
    side: bool = False,
) -> Shape:
    """How the target is made to take the fields; `side`: it is a table of ours that needs no keys.

    `known`: the columns as the last load left them.
    """
    now = newest or table
    wanted = wanted_columns(fields, CAN, None if side else now)
    if side:
        wanted = [WantedColumn(HASH_FIELD, _HASH_TYPE), *wanted]
    where = path(schema, target)
    if found is None:
        columns = ", ".join(f"{quote(w.name)} {w.type}" for w in wanted)
        keys = _DISTRIBUTED.format(quote(HASH_FIELD)) if side else _keys(table, fields)
        parsed = frozenset(w.name for w in wanted if w.type == SUPER)
        return Shape((TargetChange("create", (f"CREATE TABLE {where} ({columns}){keys}",)),), parsed)
    renames = target_renames(now)
    named = renamed(found, renames)
    have = {name.lower(): column.type.upper() for column, name in named}
    parsed = frozenset(w.name for w in wanted if have.get(w.name, w.type) == SUPER)
    keyed = frozenset(f.target for f in fields if tells_rows_apart(f, table))
    compared = [w._replace(type=_compared(w, have.get(w.name), keyed)) for w in wanted]
    made = list(renamings(where, found, renames))

    for d in differences(
        target,
        where,
        compared,
        found,
        renames=renames,
        known={w.name: _compared(w, have.get(w.name), keyed) for w in wanted_columns(known, CAN)},
        widening=lambda name, type_: "; ".join(replacing(where, name, type_)),
        relaxing=lambda name: f"ALTER TABLE {where} DROP COLUMN {quote(name)}",
    ):
        if d.kind == "add":
            # Redshift can't drop a default, so every INSERT gives the column's value.
            default = f" DEFAULT {constant(d.type, d.fill)}" if d.fill is not None and d.type != SUPER else ""
            made.append(TargetChange("add", (f"{adding(where, d.name, d.type)}{default}",)))
            if side and d.name == HASH_FIELD and KEY_FIELD in have:
                # An earlier version stored the weights themselves.
                fill = f"UPDATE {where} SET {quote(HASH_FIELD)} = {hashed(quote(KEY_FIELD))}"
                drop = f"ALTER TABLE {where} DROP COLUMN {quote(KEY_FIELD)}"
                made.append(TargetChange("widen", (fill, drop), column=KEY_FIELD))
        elif d.was is not None and _alterable(d):
            # Runs before the transaction, in which the column gets its new name.
            longer = f"ALTER TABLE {where} ALTER COLUMN {quote(d.was.name)} TYPE {d.type}"
            made.append(TargetChange("widen", (longer,), True, replacing(where, d.name, d.type), d.was.name))
        else:
            was = d.was.name if d.was else d.name
            after: tuple[str, ...] = ()
            if d.was is not None and d.was.dist_key and was == d.name == dist_column(table, fields):
                # AWS does not say whether these run inside a transaction, so each runs by itself. EVEN, not
                # AUTO: older documentation knows no way back from AUTO to a DISTKEY.
                made.append(
                    TargetChange("widen", (f"ALTER TABLE {where} ALTER DISTSTYLE EVEN",), True, column=was)
                )
                after = (f"ALTER TABLE {where} ALTER DISTKEY {quote(was)}",)
            made.append(TargetChange("widen", replacing(where, d.name, d.type), column=was, after=after))
    return Shape(tuple(made), parsed, frozenset(have))


def keys_query(schema: str, table: str) -> str:
    """The query for a table's DISTKEY and SORTKEY columns."""
    return (
        "SELECT a.attname, a.attisdistkey, a.attsortkeyord FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid "
        f"JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = {literal(schema.lower())} "
        f"AND c.relname = {literal(table)} AND a.attnum > 0 AND (a.attisdistkey OR a.attsortkeyord <> 0)"
    )


def replaced(changes: Sequence[TargetChange]) -> tuple[TargetChange, ...]:
    """The changes that replace a column with a wider one."""
    return tuple(change for change in changes if change.kind == "widen" and not change.outside)


def check_replaceable(schema: str, target: str, changes: Sequence[TargetChange], keys: Sequence[Row]) -> None:
    """Refuse, with what to run, to replace a DISTKEY or SORTKEY column, which Redshift would not drop.

    A DISTKEY that we chose is removed and restored, except beside an interleaved SORTKEY, where Redshift
    refuses that.
    """
    where = path(schema, target)
    interleaved = any(int(place or 0) < 0 for _, _, place in keys)
    for change in replaced(changes):
        for name, is_dist_key, place in keys:
            freed = bool(change.after) and not place and not interleaved
            if str(name).lower() == change.column.lower() and not freed:
                dist = (
                    "DISTKEY",
                    f"ALTER TABLE {where} ALTER DISTSTYLE EVEN",
                    f"ALTER DISTKEY {quote(str(name))}",
                )
                sort = ("SORTKEY", f"ALTER TABLE {where} ALTER SORTKEY NONE", "ALTER SORTKEY (…)")
                what, free, back = zip(*[dist] * bool(is_dist_key), *[sort] * bool(place), strict=True)
                raise DataError(
                    f"column {name} of {target} must become wider, but Redshift can't replace a column that is {' and '.join(what)}",
                    hint="set another `target`, or take the key off the column for the next sync, and restore it afterwards "
                    f"({', '.join(back)}); run: {'; '.join(free)}",
                )


def check_parsed(schema: str, target: str, fields: Sequence[Field], fit: Shape) -> None:
    """Refuse, with what to run, long JSON for a text column, which ends at 65,535 bytes on any cluster."""
    for field in fields:
        if field.document and field.target not in fit.parsed:
            statements = replacing(path(schema, target), field.target, SUPER, "JSON_PARSE({})")
            raise DataError(
                f"warehouse.large_strings is set, but column {field.target} of {target} is text, which holds at most "
                f"{MAX_VARCHAR:,} bytes",
                hint=f"remove the option, or run: {'; '.join(statements)}",
            )


def constant(type_: str, value: str | None) -> str:
    """A value of the type as an SQL literal."""
    return value if value is not None and plain(type_, value) else literal(value)


def _compared(wanted: WantedColumn, have: str | None, keyed: Collection[str]) -> str:
    """The type that the target's column is compared with.

    Text goes into a SUPER column as JSON, unless it is a key, and JSON goes unparsed into a VARCHAR of maximum
    length.
    """
    text = wanted.type.startswith("VARCHAR") and wanted.name not in keyed
    if have == SUPER and (text or wanted.type == SUPER):
        return SUPER
    return f"VARCHAR({MAX_VARCHAR})" if wanted.type == SUPER and have is not None else wanted.type


def _alterable(difference: Difference) -> bool:
    """Whether it is a longer VARCHAR without a default: the only change that Redshift makes in place."""
    has_default = difference.was is not None and difference.was.default is not None
    return difference.type.upper().startswith("VARCHAR") and not has_default


def replacing(where: str, name: str, type_: str, value: str = "") -> tuple[str, ...]:
    """Replace a column with a wider one; it becomes the last, which does not matter to inserts by name."""
    wider = marked(f"{OURS}wider_{name}")
    new = quote(wider)
    return (
        adding(where, wider, type_),
        f"UPDATE {where} SET {new} = {value.format(quote(name)) if value else f'CAST({quote(name)} AS {type_})'}",
        f"ALTER TABLE {where} DROP COLUMN {quote(name)}",
        f"ALTER TABLE {where} RENAME COLUMN {new} TO {quote(name)}",
    )


def dist_column(table: Table, fields: Sequence[Field]) -> str | None:
    """The DISTKEY of a new target: the configured column, or the only column of a merge key.

    Rows of one key are then on one node, in target and staging table alike, and a merge moves none of them.
    """
    if table.recipe.dist_key:
        return _key_column(table.recipe.dist_key, "dist_key", fields)
    if table.mode != "upsert" or len(table.key) != 1:
        return None
    key = next((f for f in fields if f.name == f.column == table.key[0]), None)
    return key.target if key is not None and not CAN.type_of(key).startswith(UNKEYABLE) else None


def _keys(table: Table, fields: Sequence[Field]) -> str:
    """The DISTKEY and SORTKEY clauses of a new table; without them, Redshift chooses (AUTO)."""
    clauses = ""
    if (spread := dist_column(table, fields)) is not None:
        clauses += _DISTRIBUTED.format(quote(spread))
    if table.recipe.sort_key:
        names = (quote(_key_column(column, "sort_key", fields)) for column in table.recipe.sort_key)
        clauses += f" COMPOUND SORTKEY ({', '.join(names)})"
    return clauses


def _key_column(column: str, option: str, fields: Sequence[Field]) -> str:
    """The target's column that an option names."""
    field = next((f for f in fields if f.name.lower() == column.lower() and not f.file_only), None)
    if field is None:
        raise ConfigError(f"{option} names {column}, which is not a column", hint=f"check `{option}`")
    if CAN.type_of(field).startswith(UNKEYABLE):
        raise ConfigError(
            f"{option} names {column}, which is {CAN.type_of(field)}: that can't be a key in Redshift"
        )
    return field.target


@dataclass(frozen=True)
class Fit:
    """How the tables are made to take the files' rows, and how these go in."""

    put: RedshiftPut
    before: tuple[TargetChange, ...]  # each by itself, before the transaction
    inside: tuple[str, ...]
    replaced: tuple[TargetChange, ...] = ()  # the target's columns that are replaced by wider ones
    after: tuple[str, ...] = ()  # each runs by itself after the load, successful or not


def fitted(
    request: LoadRequest,
    way: LoadAs,
    schema: str,
    names: tuple[str, str],
    found: tuple[Sequence[TargetColumn] | None, Sequence[TargetColumn] | None],
) -> Fit:
    """How to change the target and the table beside it, given their names and present columns."""
    table, now = request.table, request.now
    (target, side), (there, beside) = names, found
    read = file_fields(table, way, now)
    weighed = any(field.file_only for field in read)
    if by_key(way) and there is not None:
        fit = Shape(renamings(path(schema, target), there, target_renames(now)))
    else:
        known = placed(request.loaded, now) if request.loaded and way != "replace" else ()
        fit = shape(table, schema, target, placed(table, now), there, newest=now, known=known)
    about = Shape()
    if weighed:
        about = shape(table, schema, side, key_fields(table, read), beside, newest=now, side=True)
    inside = [*fit.inside, *about.inside]
    if beside is not None and not weighed and not by_key(way):
        inside.append(f"DROP TABLE {path(schema, side)}")
    if way == "mark" and all(column.name.lower() != DELETED_AT for column in there or ()):
        inside.append(f"ALTER TABLE {path(schema, target)} ADD COLUMN {quote(DELETED_AT)} TIMESTAMP")
    given = tuple(
        c for c in constants(table, now) if c.target in fit.found and not (c.field and c.field.document)
    )
    names_there = (name for _, name in renamed(there or (), target_renames(now)))
    kept = left_alone(names_there, read, given) if table.key and not by_key(way) else ()
    made = next((change.statement for change in fit.changes if change.kind == "create"), None)
    changed = bool(fit.changes) and made is None
    put = RedshiftPut(
        table=table,
        schema=schema.lower(),
        target=target,
        side=side,
        fields=read,
        constants=tuple((c.target, constant(c.type(CAN), c.value)) for c in given),
        kept=kept,
        filled=there is not None,
        side_filled=beside is not None and weighed,
        parsed=fit.parsed,
        documents=frozenset(field.target for field in read if field.document) & fit.parsed,
        dist_key=dist_column(table, placed(table, now))
        if there is None
        else next((column.name for column in there if column.dist_key), None),
        created=made,
        direct=not (fit.parsed or given or changed or kept) and _takes(table, way, read, there),
    )
    after = tuple(statement for change in fit.changes for statement in change.after)
    return Fit(put, (*fit.before, *about.before), tuple(inside), replaced(fit.changes), after)


def _takes(table: Table, way: LoadAs, read: Sequence[Field], there: Sequence[TargetColumn] | None) -> bool:
    """Whether COPY may fill the target itself: it is new, or a snapshot replaces its rows.

    COPY converts nothing, so the target's types must be those of the files; only text and bytes may be
    longer.
    """
    if there is None:
        return not by_key(way)
    types = {column.name.lower(): column.type for column in there}
    return (
        way == "replace"
        and table.mode == "full"
        and all(_same_or_longer(staging_type(field), types[field.target]) for field in read)
    )


def _same_or_longer(type_: str, found: str) -> bool:
    return same(type_, found) or (type_.startswith(("VARCHAR", "VARBYTE")) and fits(type_, found))


def check_large_strings(session: RedshiftSession) -> None:
    """Refuse long documents if the cluster does not take them, whatever the configuration says."""
    try:
        answer = session.query("SELECT is_large_string_enabled()")
    except StatementFailed as failed:
        if failed.code != "42883" and "does not exist" not in failed.said:
            raise
        answer = []  # an older cluster, without that function
    if not answer or str(answer[0][0]).lower() not in ("true", "t", "yes", "on", "1"):
        raise ConfigError(
            "warehouse.large_strings is set, but large strings are disabled on the cluster",
            hint="set enable_large_strings_opt_in in its parameter group and reboot it, or remove the option",
        )


def altered(session: RedshiftSession, change: TargetChange, seconds: float) -> tuple[str, ...]:
    """Run a change that Redshift refuses inside a transaction; returns what is left to do inside instead.

    `seconds`: how long it may wait for the table's users, since everyone who comes later queues behind it.
    Moving rows to other nodes takes longer than that by itself, and is not limited.
    """
    bounded = not change.statement.endswith("DISTSTYLE EVEN")
    try:
        session.execute(change.statement, seconds=seconds if bounded else None)
    except StatementFailed as failed:
        if failed.canceled and bounded:
            raise StatementFailed(Busy(change.statement, seconds)) from failed
        if "target column size should be different" in failed.said:
            return ()  # someone else has just created it
        if failed.code != "0A000":
            raise
        return change.instead
    return ()
