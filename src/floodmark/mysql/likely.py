"""Columns that look as if they told when a row was last changed, by their names. Pure.

Discovery uses such a column by itself only where its name is one of a few or MySQL keeps it current: whether every
change sets it is the application's secret. So these are proposed, and a person decides.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from floodmark.model import Column

_CHANGED = r"updated?|updates?|upd|modif(?:y|ied|ication)|mod|changed?|chg|edit(?:ed)?|altered|amended|touched|revised|mtime"
_BESIDE = r"last|date|datetime|time|timestamp|tstamp|stamp|ts|dt|at|on|gmt|utc|row|record|rec|sys|system|when"


def likely_cursor(columns: Sequence[Column], table: str) -> Column | None:
    """The first DATETIME or TIMESTAMP named after changes of the row, one that is never NULL before others."""
    named = [c for c in columns if c.data_type in ("datetime", "timestamp") and tells_changes(c.name, table)]
    return min(named, key=lambda c: c.nullable, default=None)


def tells_changes(name: str, table: str = "") -> bool:
    """Whether a name speaks of a row's last change, and of nothing else: not of its creation, nor of a password's.

    `modified`, `date_changed`, `LastUpdatedOn`, `ts_update`; in the table `wp_posts` also `post_modified`.
    """
    own = "|".join(re.escape(word) for word in _words_of(table))
    beside = f"{_BESIDE}|{own}" if own else _BESIDE
    letters = re.sub(r"[^a-z]", "", name.lower())
    return re.fullmatch(rf"(?:{beside})*(?:{_CHANGED})(?:{beside})*", letters) is not None


def _words_of(table: str) -> set[str]:
    """The words of a table's name, each in the singular too: `wp_posts` gives wp, posts and post."""
    words = {word for word in re.split(r"[^a-z]+", table.lower()) if len(word) > 1}
    letters = re.sub(r"[^a-z]", "", table.lower())
    words |= {letters} if len(letters) > 1 else set()
    singular = {re.sub(r"ies$", "y", word) for word in words} | {re.sub(r"e?s$", "", word) for word in words}
    return words | {word for word in singular if len(word) > 1}
