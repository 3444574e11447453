"""Columns whose names suggest that they record a row's last change. Pure.

Discovery picks such a column on its own only if its name is one of a few, or MySQL maintains it: only the
application knows whether every change sets it. So these are merely proposed, and a person decides.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from floodmark.model.table import Column

_CHANGED = r"updated?|updates?|upd|modif(?:y|ied|ication)|mod|changed?|chg|edit(?:ed)?|altered|amended|touched|revised|mtime"
_BESIDE = r"last|date|datetime|time|timestamp|tstamp|stamp|ts|dt|at|on|gmt|utc|row|record|rec|sys|system|when"


def likely_cursor(columns: Sequence[Column], table: str) -> Column | None:
    """The first DATETIME or TIMESTAMP named after changes of the row; NOT NULL columns come first."""
    named = [c for c in columns if c.data_type in ("datetime", "timestamp") and tells_changes(c.name, table)]
    return min(named, key=lambda c: c.nullable, default=None)


def tells_changes(name: str, table: str = "") -> bool:
    """Whether a name refers to a row's last change and nothing else, such as its creation or a new password.

    `modified`, `date_changed`, `LastUpdatedOn`, `ts_update`; in the table `wp_posts` also `post_modified`.
    """
    own = "|".join(re.escape(word) for word in _words_of(table))
    beside = f"{_BESIDE}|{own}" if own else _BESIDE
    letters = re.sub(r"[^a-z]", "", name.lower())
    return re.fullmatch(rf"(?:{beside})*(?:{_CHANGED})(?:{beside})*", letters) is not None


def _words_of(table: str) -> set[str]:
    """The words of a table's name, and their singulars: `wp_posts` gives wp, posts and post."""
    words = {word for word in re.split(r"[^a-z]+", table.lower()) if len(word) > 1}
    letters = re.sub(r"[^a-z]", "", table.lower())
    words |= {letters} if len(letters) > 1 else set()
    singular = {re.sub(r"ies$", "y", word) for word in words} | {re.sub(r"e?s$", "", word) for word in words}
    return words | {word for word in singular if len(word) > 1}
