"""Names and literals as Redshift reads them. Pure.

Names are folded to lower case, always quoted, never longer than 127 bytes (Redshift would cut them without a word)
and never those of the columns that every table has. Two source columns never become one: whatever had to be changed
carries a piece of the name's own hash.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from floodmark.errors import ConfigError
from floodmark.types import KEY_FIELD, Field
from floodmark.warehouse import quote

LONGEST = 127  # bytes
OURS = "floodmark_"  # tables that begin so are Floodmark's own
# Columns that every table has, whatever it was created with.
_SYSTEM = frozenset(("oid", "tableoid", "ctid", "xmin", "xmax", "cmin", "cmax", "insertxid", "deletexid"))


def folded(name: str, prefix: str = "") -> str:
    """The name that Redshift knows, behind a prefix of ours; a name that is too long ends in its own hash."""
    name = name.lower()
    if len((prefix + name).encode()) <= LONGEST:
        return prefix + name
    mark = "_" + _mark(name)
    room = LONGEST - len(prefix) - len(mark)
    return prefix + name.encode()[:room].decode(errors="ignore") + mark


def column_names(fields: Iterable[Field]) -> dict[str, str]:
    """What each field is called in the target, by its name in the file; all different."""
    names: dict[str, str] = {}
    taken: set[str] = {KEY_FIELD}
    # Those that stay as they are come first, so that no changed name takes one of theirs.
    every = [field for field in fields if not field.file_only]
    for field in sorted(every, key=lambda f: _column(f.name) != f.name.lower()):
        name = _column(field.name)
        while name in taken:
            name = folded(f"{name}_{_mark(field.name)}")
        taken.add(name)
        names[field.name] = name
    return {field.name: names[field.name] for field in every}


def checked_target(target: str) -> str:
    """The target's name; those of Floodmark's own tables are refused."""
    name = folded(target)
    if name.startswith((OURS, "#")):
        raise ConfigError(
            f"the target {target} has a name that Redshift or Floodmark uses itself",
            hint="set another `target`",
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


def _column(name: str) -> str:
    lower = folded(name)
    return f"{lower}_" if lower in _SYSTEM else lower


def _mark(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:6]
