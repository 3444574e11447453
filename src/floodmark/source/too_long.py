"""A brief search for values that the warehouse can't hold, before a large window is read.

Only the values themselves tell how long they are, and checking all of them costs about as much as reading
them. So the server stops after a moment: whatever it hasn't found by then, the read itself will.
"""

from __future__ import annotations

from collections.abc import Mapping

from floodmark.model.errors import DataError, TransientError
from floodmark.model.table import Table
from floodmark.model.types import Field, fields
from floodmark.model.warehouse import Capabilities
from floodmark.model.window import Window
from floodmark.source import sql
from floodmark.source.convert import refused_above, way_out
from floodmark.source.session import Session
from floodmark.source.version import Version, version

# About as long as Spark takes to start.
LOOK_SECONDS = 2


def bounded(table: Table, limits: Capabilities) -> dict[Field, int]:
    """The fields whose values may stop the read, and how many bytes of them the warehouse holds."""
    return {f: limit for f in fields(table) if (limit := refused_above(f, table, limits)) is not None}


def check_lengths(session: Session, table: Table, window: Window | None, limits: Capabilities) -> None:
    """Raises DataError if it finds a value that the read would stop at."""
    found = bounded(table, limits)
    question = look(table, window, found, version(session)) if found else None
    if question is None:
        return
    try:
        rows = session.rows(question)
    except TransientError:  # the time is up; if the server is gone, the read will notice
        return
    for row in rows:
        for (field, limit), cell in zip(found.items(), row, strict=True):
            if cell is not None and int(cell) > limit:
                raise DataError(
                    f"column {field.column}: a value of {int(cell):,} bytes, but the warehouse holds at most {limit:,}",
                    hint=way_out(field, table, limits),
                    table=table.name,
                )


def look(table: Table, window: Window | None, found: Mapping[Field, int], server: Version) -> str | None:
    """The query for one row with such a value; None if the server can't enforce a time limit."""
    lengths = {field: _length(field) for field in found}
    long = " OR ".join(f"{lengths[field]} > {limit}" for field, limit in found.items())
    conditions = sql.between(table, table.order, window.low, window.high) if window and table.order else []
    conditions += [sql.matches(table)] if table.recipe.where else []
    body = f"{', '.join(lengths.values())} FROM {sql.source(table)}{sql.where([*conditions, long])} LIMIT 1"
    if server.mariadb:
        limited = f"SET STATEMENT max_statement_time = {LOOK_SECONDS} FOR SELECT"
        return f"{limited} {body}" if server.numbers >= (10, 1) else None
    return (
        f"SELECT /*+ MAX_EXECUTION_TIME({LOOK_SECONDS * 1000}) */ {body}"
        if server.numbers >= (5, 7)
        else None
    )


def _length(field: Field) -> str:
    """A value's length in bytes as written to the file."""
    value = f"CONVERT({field.select} USING utf8mb4)" if field.is_text else field.select
    return f"OCTET_LENGTH({value})"
