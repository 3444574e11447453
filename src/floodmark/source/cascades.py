"""Foreign keys by which MySQL itself changes rows of a table without touching their last-changed time.

ON UPDATE CASCADE and ON DELETE SET NULL write into the child's columns without firing its triggers or its
ON UPDATE CURRENT_TIMESTAMP, on MySQL and MariaDB alike: no cursor reveals such a change.
"""

from __future__ import annotations

import re

from floodmark.model.errors import ConfigError
from floodmark.model.notes import Note
from floodmark.model.table import Cascade, Table
from floodmark.source.session import Session
from floodmark.source.sql import source

_WRITING = ("CASCADE", "SET NULL", "SET DEFAULT")
_NAMES = r"`(?:[^`]|``)+`(?:[.,] ?`(?:[^`]|``)+`)*"
_RULE = "RESTRICT|CASCADE|SET NULL|NO ACTION|SET DEFAULT"
_FOREIGN = re.compile(
    rf" *(?:CONSTRAINT {_NAMES} )?FOREIGN KEY \((?P<columns>{_NAMES})\) REFERENCES (?P<parent>{_NAMES}) \({_NAMES}\)"
    rf"(?: ON DELETE (?P<delete>{_RULE}))?(?: ON UPDATE (?P<update>{_RULE}))?"
)


def of(session: Session, table: Table) -> tuple[Cascade, ...]:
    """The foreign keys that write into a table. ON DELETE CASCADE removes rows, which is up to `deletes`.

    Read from its definition: MariaDB hides the constraints in information_schema from a user who may only
    read.
    """
    try:
        definition = session.rows(f"SHOW CREATE TABLE {source(table)}")[0][1] or b""
    except ConfigError:
        return ()  # MySQL doesn't show it to a user who may read only some columns
    return defined(definition.decode(errors="replace"))


def defined(definition: str) -> tuple[Cascade, ...]:
    """The same, parsed from a table's CREATE statement, which has one constraint per line."""
    found = []
    for line in definition.split("\n"):
        key = _FOREIGN.match(line)
        rules = writing(key["update"] or "", key["delete"] or "") if key else ()
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


def note(table: Table, found: tuple[Cascade, ...]) -> Note | None:
    """A note on the cascades, if rows are read by a cursor that misses them."""
    columns = touched(table, found)
    if table.cursor is None or not columns:
        return None
    by = tuple(cascade for cascade in found if set(cascade.columns) & set(columns))
    return Note("cascades", table.column(table.cursor), columns, cascades=by)
