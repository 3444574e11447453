"""Names and literals as Redshift reads them. Pure.

Names of tables are folded to lower case, always quoted and never longer than 127 bytes: Redshift would cut them
without a word. What columns are called is the same for every warehouse: `floodmark.names`.
"""

from __future__ import annotations

import hashlib

from floodmark.errors import ConfigError
from floodmark.names import LONGEST
from floodmark.warehouse import quote


def folded(name: str, prefix: str = "") -> str:
    """The name that Redshift knows, behind a prefix of ours; a name that is too long ends in its own hash."""
    name = name.lower()
    if len((prefix + name).encode()) <= LONGEST:
        return prefix + name
    mark = "_" + _mark(name)
    room = LONGEST - len(prefix) - len(mark)
    return prefix + name.encode()[:room].decode(errors="ignore") + mark


def checked_target(target: str) -> str:
    """The target's name; that of a temporary table is refused."""
    name = folded(target)
    if name.startswith("#"):
        raise ConfigError(
            f"the target {target} has a name that Redshift uses itself", hint="set another `target`"
        )
    return name


def literal(value: int | str) -> str:
    """A value inside a statement; a backslash is an escape character there."""
    if isinstance(value, int):
        return str(value)
    return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"


def path(schema: str, name: str) -> str:
    """A table's name in its schema, quoted."""
    return quote(schema.lower(), name)


def _mark(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:6]
