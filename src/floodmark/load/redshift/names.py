"""Names and literals as Redshift reads them. Pure.

Table names are folded to lower case, always quoted and at most 127 bytes long: Redshift silently truncates
longer ones. Column names are the same for every warehouse: `floodmark.model.names`.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

from floodmark.load.protocol import quote
from floodmark.model.errors import ConfigError
from floodmark.model.names import LONGEST
from floodmark.model.times import wall_clock


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


def literal(value: int | str | datetime | None) -> str:
    """A value as an SQL literal, times in UTC; Redshift treats a backslash as an escape character."""
    if value is None:
        return "NULL"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, datetime):
        value = wall_clock(value.astimezone(UTC))
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def path(schema: str, name: str) -> str:
    """A table's name with its schema, quoted."""
    return quote(schema.lower(), name)
