"""What a load does to its target, and to the table of weights beside it, before rows go in.

All of it is decided from the catalog, read just before. What Redshift refuses inside a transaction runs
before it and is harmless on its own; the rest is part of the load's transaction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from floodmark.load.column_mapping import constants, left_alone, placed, target_renames
from floodmark.load.columns import Change, TargetColumn, fits, renamed, renamings, same
from floodmark.load.files import file_fields, key_fields
from floodmark.load.protocol import DELETED_AT, LoadRequest, quote
from floodmark.load.redshift.ddl import (
    Shape,
    constant,
    dist_column,
    replaced,
    shape,
    staging_type,
)
from floodmark.load.redshift.names import path
from floodmark.load.redshift.stage import RedshiftPut
from floodmark.load.redshift.steps import Busy, Failed, RedshiftSession
from floodmark.model.commit import LoadAs, by_key
from floodmark.model.errors import ConfigError
from floodmark.model.table import Table
from floodmark.model.types import Field
from floodmark.model.warehouse import SUPER


@dataclass(frozen=True)
class Fit:
    """How the tables are made to take the files' rows, and how these go in."""

    put: RedshiftPut
    before: tuple[Change, ...]  # each by itself, before the transaction
    inside: tuple[str, ...]
    replaced: tuple[Change, ...] = ()  # the target's columns that are replaced by wider ones
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
    given = tuple(c for c in constants(table, now) if c.target in fit.found and c.redshift != SUPER)
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
        constants=tuple((c.target, constant(c.redshift, c.value)) for c in given),
        kept=kept,
        filled=there is not None,
        side_filled=beside is not None and weighed,
        parsed=fit.parsed,
        documents=frozenset(field.target for field in read if field.redshift == SUPER) & fit.parsed,
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
    except Failed as failed:
        if failed.code != "42883" and "does not exist" not in failed.said:
            raise
        answer = []  # an older cluster, without that function
    if not answer or str(answer[0][0]).lower() not in ("true", "t", "yes", "on", "1"):
        raise ConfigError(
            "warehouse.large_strings is set, but large strings are disabled on the cluster",
            hint="set enable_large_strings_opt_in in its parameter group and reboot it, or remove the option",
        )


def altered(session: RedshiftSession, change: Change, seconds: float) -> tuple[str, ...]:
    """Run a change that Redshift refuses inside a transaction; returns what is left to do inside instead.

    `seconds`: how long it may wait for the table's users, since everyone who comes later queues behind it.
    Moving rows to other nodes takes longer than that by itself, and is not limited.
    """
    bounded = not change.statement.endswith("DISTSTYLE EVEN")
    try:
        session.execute(change.statement, seconds=seconds if bounded else None)
    except Failed as failed:
        if failed.canceled and bounded:
            raise Failed(Busy(change.statement, seconds)) from failed
        if "target column size should be different" in failed.said:
            return ()  # someone else has just created it
        if failed.code != "0A000":
            raise
        return change.instead
    return ()
