"""Foreign keys by which MySQL itself changes rows of a table, and leaves the time of their last change as it was.

ON UPDATE CASCADE and ON DELETE SET NULL write into the child's columns without its triggers and without its
ON UPDATE CURRENT_TIMESTAMP, on MySQL and MariaDB alike: no cursor tells of such a change.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from floodmark.errors import ConfigError
from floodmark.model import Table
from floodmark.mysql.connect import Session
from floodmark.mysql.sql import source

_WRITING = ("CASCADE", "SET NULL", "SET DEFAULT")
_NAMES = r"`(?:[^`]|``)+`(?:[.,] ?`(?:[^`]|``)+`)*"
_RULE = "RESTRICT|CASCADE|SET NULL|NO ACTION|SET DEFAULT"
_FOREIGN = re.compile(
    rf" *(?:CONSTRAINT {_NAMES} )?FOREIGN KEY \((?P<columns>{_NAMES})\) REFERENCES (?P<parent>{_NAMES}) \({_NAMES}\)"
    rf"(?: ON DELETE (?P<delete>{_RULE}))?(?: ON UPDATE (?P<update>{_RULE}))?"
)


@dataclass(frozen=True)
class Cascade:
    """One foreign key: the columns that change with the parent, and on which occasions."""

    columns: tuple[str, ...]
    parent: str
    rules: tuple[str, ...]  # as `ON UPDATE CASCADE`


def of(session: Session, table: Table) -> tuple[Cascade, ...]:
    """The foreign keys of a table that write into it. ON DELETE CASCADE removes rows, which is for `deletes`.

    From its definition: MariaDB shows the constraints of information_schema to nobody who may only read.
    """
    try:
        definition = session.rows(f"SHOW CREATE TABLE {source(table)}")[0][1] or b""
    except ConfigError:
        return ()  # who may read some columns only is not shown it
    return defined(definition.decode(errors="replace"))


def defined(definition: str) -> tuple[Cascade, ...]:
    """The same, read from a table's CREATE statement: every constraint stands on a line of its own."""
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
    """The columns that are replicated and change that way, in the table's order."""
    named = {column for cascade in found for column in cascade.columns}
    return tuple(column.name for column in table.columns if column.name in named)


def note(table: Table, found: tuple[Cascade, ...]) -> str | None:
    """What is said of them, where rows are read by what changes."""
    columns = touched(table, found)
    if table.mode == "full" or not columns:
        return None
    why = ", ".join(
        dict.fromkeys(
            f"{' and '.join(cascade.rules)} from {cascade.parent}"
            for cascade in found
            if set(cascade.columns) & set(columns)
        )
    )
    return (
        f"{', '.join(columns)} can change without {table.cursor}, by {why}: such changes are not seen."
        " Set `cascades: follow`, or run `verify --repair` now and then."
    )
