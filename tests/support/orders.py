"""The table `orders` that most source tests start with: its definition, and statements that fill it.

It has an id, some columns and the cursor `update_at`. A test that needs something else states the difference.
"""

from __future__ import annotations

AMOUNT_AND_NOTE = "amount DECIMAL(12,2) NOT NULL, note VARCHAR(40)"
NOTE = "note VARCHAR(40)"


def create_orders(
    columns: str = AMOUNT_AND_NOTE,
    at: str = "DATETIME",
    *,
    name: str = "orders",
    kept: bool = True,
    null: bool = False,
    index: str | None = "update_at",
) -> str:
    """The definition, with `columns` between the id and a cursor of type `at`.

    The server keeps the cursor current, to the type's precision; with `kept=False` that is up to the application.
    """
    digits = at[at.find("(") :] if "(" in at else ""
    now = f"CURRENT_TIMESTAMP{digits}"
    cursor = f"update_at {at} {'NULL' if null else 'NOT NULL'}"
    if kept:
        cursor += f" DEFAULT {now} ON UPDATE {now}"
    parts = ["id BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY", columns, cursor]
    if index:
        parts.append(f"KEY ({index})")
    return f"CREATE TABLE {name} ({', '.join(parts)})"


def fill_orders(
    rows: int,
    after: str = "(seq DIV 400) SECOND",
    *,
    name: str = "orders",
    since: str = "2025-03-01",
    **values: str,
) -> str:
    """A statement that adds this many rows, each `after` the time `since`.

    `after` and the column values are SQL over `seq`, which numbers the rows from 1. By default: ids with gaps, amounts
    and notes.
    """
    values = values or {"id": "seq * 7", "amount": "seq / 100", "note": "CONCAT('n', seq)"}
    return (
        f"INSERT INTO {name} ({', '.join(values)}, update_at) "
        f"SELECT {', '.join(values.values())}, '{since}' + INTERVAL {after} FROM seq_1_to_{rows}"
    )
