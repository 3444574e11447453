"""The check object: when a sync last looked at a table. Derived, overwritten, and lost without harm.

Of a table that has no log yet it also says why the last attempt failed; once there is a log, the published copies do.
"""

from __future__ import annotations

from dataclasses import dataclass

from floodmark.errors import FloodmarkError
from floodmark.model import dump, load
from floodmark.state.watermark import Failure, log
from floodmark.store import Store, encode


@dataclass(frozen=True)
class Check:
    """One table's last look."""

    table_name: str
    run: str
    last_check_time: (
        str | None
    )  # when a sync last looked, whether or not it found something; None: none has yet
    failure: Failure | None = None


def check_path(table_name: str) -> str:
    """Where a table's check object lies."""
    return f"status/checks/{encode(table_name)}.json"


def read_check(store: Store, table_name: str) -> Check | None:
    """The table's check object; None when there is none, or anything else in its place."""
    try:
        found = load(Check, store.get(check_path(table_name)) or b"")
    except ValueError:
        return None
    return found if found.table_name == table_name else None


def write_check(store: Store, check: Check) -> None:
    """Overwrites the check object; what can't be written stops nothing."""
    try:
        store.put(check_path(check.table_name), dump(check))
    except FloodmarkError as error:
        log.info("%s: the check could not be written: %s", check.table_name, error.message)
