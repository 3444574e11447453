"""What a column is called in the target. Pure, and by its own name alone.

Names are folded to lower case and otherwise kept, whatever is in them: they are always quoted. A name that a
warehouse can't have, or that Floodmark needs itself, carries a piece of its own hash. Because no other column has a
say in it, a column that is added later never renames one that is there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from floodmark.errors import ConfigError

LONGEST = 127  # bytes: Redshift cuts what is longer without a word
OURS = "_floodmark_"  # columns that begin so are Floodmark's own
OUR_TABLES = "floodmark_"  # tables of a warehouse that begin so are Floodmark's own
DELETED = "_deleted_at"  # when a row was found to be deleted, of targets that keep such rows
DERIVED = (
    "__raw",
    "__srid",
)  # further columns of a source column: an impossible date's text, a geometry's SRID
# Columns that every table of Redshift has, whatever it was created with.
_SYSTEM = frozenset(("oid", "tableoid", "ctid", "xmin", "xmax", "cmin", "cmax", "insertxid", "deletexid"))
# Up to here MySQL and Unicode agree on which letter is the small form of which.
_AGREED = 0x590


def target_name(name: str, *, derived: bool = False) -> str:
    """The column's name in the target; `derived` columns alone may end like one."""
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
    """Whether a target would have the name of one of Floodmark's own tables: the ledger, or what lies beside targets."""
    return target.lower().startswith(OUR_TABLES)


def check_target(target: str, table: str) -> None:
    """Refuse a table whose target has a reserved name."""
    if reserved(target):
        raise ConfigError(
            f"the target {target.lower()} has a name that Floodmark keeps for its own tables ({OUR_TABLES}…)",
            hint=f"set tables.{table}.target in the configuration",
            table=table,
        )


def marked(name: str, digits: int = 6) -> str:
    """The name with a piece of its hash, in a form that every warehouse takes."""
    # MySQL tells no A from an a either: a name that changes its case only stays the same.
    text = name.lower() if digits == 6 else name
    mark = "_" + hashlib.sha256(text.encode()).hexdigest()[:digits]
    clean = "".join(letter if letter.isprintable() else "_" for letter in name.lower())
    if clean.startswith(OURS):
        clean = clean[1:]
    return clean.encode()[: LONGEST - len(mark)].decode(errors="ignore") + mark


def apart(name: str, wished: str, taken: Iterable[str]) -> str:
    """The wished name, or one with more of the hash where another column has it: two never become one."""
    others, digits = set(taken), 6
    while wished in others:
        digits += 2
        wished = marked(name, digits)
    return wished


def _folds(letter: str) -> bool:
    """Whether no other letter has the same small form, but for the one that MySQL finds equal, too."""
    small = letter.lower()
    return letter.isascii() or small == letter or (ord(letter) < _AGREED and small.upper() == letter)
