"""Column names in the target. Pure, and derived from the column's own name alone.

Names are folded to lower case and otherwise kept as they are, since they are always quoted. A name that a
warehouse does not allow, or that Floodmark reserves, gets a piece of its own hash as a suffix. Because no
other column matters, adding a column never renames an existing one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from floodmark.model.errors import ConfigError

LONGEST = 127  # bytes: Redshift silently truncates longer names
OURS = "_floodmark_"  # prefix of Floodmark's own columns
OUR_TABLES = "floodmark_"  # prefix of Floodmark's own tables in the warehouse
DELETED = "_deleted_at"  # when a row was found deleted, in targets that keep such rows
# Suffixes of columns derived from a source column: an impossible date's text, a geometry's SRID.
DERIVED = ("__raw", "__srid")
# System columns that every Redshift table has.
_SYSTEM = frozenset(("oid", "tableoid", "ctid", "xmin", "xmax", "cmin", "cmax", "insertxid", "deletexid"))
# Below this code point, MySQL and Unicode agree on lower case.
_AGREED = 0x590


def target_name(name: str, *, derived: bool = False) -> str:
    """The column's name in the target; only a `derived` column may have a derived column's suffix."""
    lower = name.lower()
    plain = (
        len(lower.encode()) <= LONGEST
        and lower.isprintable()
        and all(_folds(letter) for letter in name)
        and lower not in _SYSTEM | {DELETED}
        and not lower.startswith(OURS)
        and (derived or not lower.endswith(DERIVED))
    )
    return lower if plain else marked(name)


def reserved(target: str) -> bool:
    """Whether the name is reserved for Floodmark's own tables: the ledger, and tables kept beside targets."""
    return target.lower().startswith(OUR_TABLES)


def check_target(target: str, table: str) -> None:
    """Raises ConfigError if the table's target has a reserved name."""
    if reserved(target):
        raise ConfigError(
            f"the target {target.lower()} has a name reserved for Floodmark's own tables ({OUR_TABLES}…)",
            hint=f"set tables.{table}.target in the configuration",
        )


def marked(name: str, digits: int = 6) -> str:
    """The name with a piece of its hash, in a form that every warehouse accepts."""
    # Column names are case-insensitive in MySQL too: changing only the case must not change the hash.
    text = name.lower() if digits == 6 else name
    mark = "_" + hashlib.sha256(text.encode()).hexdigest()[:digits]
    clean = "".join(letter if letter.isprintable() else "_" for letter in name.lower())
    if clean.startswith(OURS):
        clean = clean[1:]
    return clean.encode()[: LONGEST - len(mark)].decode(errors="ignore") + mark


def apart(name: str, wished: str, taken: Iterable[str]) -> str:
    """The preferred name, or one with more of the hash if it is taken: two columns never share a name."""
    others, digits = set(taken), 6
    while wished in others:
        digits += 2
        wished = marked(name, digits)
    return wished


def _folds(letter: str) -> bool:
    """Whether the letter's lower case is shared only with letters that MySQL also considers equal."""
    small = letter.lower()
    return letter.isascii() or small == letter or (ord(letter) < _AGREED and small.upper() == letter)
