"""The source of a kept store: its tables, their rows as functions of an id, and what happens to them on the way.

Every value is written out, so that the same rows can be laid into any server, on any day.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

SCHEMA = "kept"
FIRST = datetime(2025, 3, 1)
# The server's own clock would make a store of another day out of it.
ENDING = "ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci"
PLAIN = f"""CREATE TABLE {{name}} (
  id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  amount DECIMAL(12,2) NOT NULL,
  note VARCHAR(40),
  update_at DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP,
  KEY update_at (update_at)
) {ENDING}"""
TIMESTAMPS = PLAIN.replace("DATETIME", "TIMESTAMP(6)").replace("CURRENT_TIMESTAMP", "CURRENT_TIMESTAMP(6)")
NULLABLE = PLAIN.replace(
    "DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP ON UPDATE CURRENT_TIMESTAMP", "DATETIME NULL"
)
APPENDED = f"""CREATE TABLE {{name}} (
  id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  note VARCHAR(40)
) {ENDING}"""
WHOLE = f"""CREATE TABLE {{name}} (
  id BIGINT NOT NULL,
  note VARCHAR(40)
) {ENDING}"""
# As it was first; then `dropped` went, `note` was called `remark`, and `added` came.
CHANGED_FIRST = PLAIN.replace("  note", "  dropped INT,\n  note")
CHANGE = (
    "ALTER TABLE {name} DROP COLUMN dropped, CHANGE note remark VARCHAR(40), ADD added INT NOT NULL DEFAULT 7"
)
CHANGED = PLAIN.replace("  note", "  remark").replace("  KEY", "  added INT NOT NULL DEFAULT 7,\n  KEY")

# The tables as they are when the store is kept, by the state that each is in.
CREATE = {
    "open_window": PLAIN,
    "open_snapshot": WHOLE,
    "pending": PLAIN,
    "hard_deletes": PLAIN,
    "soft_deletes": PLAIN,
    "snapshot": WHOLE,
    "taken_over": PLAIN,
    "older_tool": PLAIN,
    "cleaned": PLAIN,
    "given_up": PLAIN,
    "damaged_log": PLAIN,
    "manual_set": PLAIN,
    "reset_both": PLAIN,
    "reset_load": PLAIN,
    "restored": PLAIN,
    "appended": APPENDED,
    "loose": NULLABLE,
    "changed": CHANGED,
    "stamps_é": TIMESTAMPS,
}
CONFIG = {
    "defaults": {"settle_seconds": 0.2, "slice_rows": 10},
    "tables": {
        f"{SCHEMA}.hard_deletes": {"deletes": "hard", "deletes_every": "0s"},
        f"{SCHEMA}.soft_deletes": {"deletes": "soft", "deletes_every": "0s"},
        f"{SCHEMA}.changed": {"renames": {"note": "remark"}},
        f"{SCHEMA}.stamps_é": {"target": "stamps"},
        f"{SCHEMA}.loose": {"overlap_seconds": 0},
    },
}


def target(table: str) -> str:
    """What to compare a table with: its target, without rows that are only marked as deleted."""
    if table == "soft_deletes":
        return "(SELECT * FROM soft_deletes WHERE _deleted_at IS NULL)"
    return "stamps" if table == "stamps_é" else table


def has_cursor(table: str) -> bool:
    return "update_at" in CREATE[table]


def note_of(table: str) -> str:
    """What its column `note` is called."""
    return "remark" if table == "changed" else "note"


def insert(table: str, ids: Iterable[int], name: str | None = None) -> str:
    """New rows: two of them share each moment, and every fifth has no note."""
    text = name or note_of(table)
    names = ["id", "amount", text, "update_at"] if has_cursor(table) else ["id", text]
    rows = []
    for i in ids:
        note = "NULL" if i % 5 == 0 else f"'{table} {i} ö'"
        rows.append(f"({i}, {note})" if len(names) == 2 else f"({i}, {i}.25, {note}, '{moment(i)}')")
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES {', '.join(rows)}"


def moment(i: int) -> datetime:
    return FIRST + timedelta(seconds=10 * (i // 2))


def update(table: str, where: str, note: str, seconds: int | None = None) -> str:
    """Change rows that are there: so many seconds after the first row, or, without them, behind the cursor's back."""
    at = "update_at" if seconds is None else f"'{FIRST + timedelta(seconds=seconds)}'"
    also = f", update_at = {at}" if has_cursor(table) else ""
    return f"UPDATE {table} SET {note_of(table)} = '{note}'{also} WHERE {where}"


def dumped(name: str, columns: str, rows: Iterable[tuple[object, ...]]) -> Iterator[str]:
    """Statements that make a table with just these rows, for MariaDB and MySQL alike."""
    yield CREATE[name].format(name=name)
    values = ",\n  ".join(f"({', '.join(map(_literal, row))})" for row in rows)
    yield f"INSERT INTO {name} ({columns}) VALUES\n  {values}"


def _literal(value: object) -> str:
    if value is None or isinstance(value, int):
        return "NULL" if value is None else str(value)
    return "'{}'".format(str(value).replace("'", "''"))
