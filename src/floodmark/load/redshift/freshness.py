"""`floodmark_freshness` in Redshift: one transaction for all targets of a run.

Writers take turns by a lock on the table itself, taken before the transaction sees anything: they would end each other
under serializable isolation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from floodmark.load.freshness import COLUMNS, FRESHNESS, Freshness
from floodmark.load.protocol import quote
from floodmark.load.redshift.catalog import create_tables, relations
from floodmark.load.redshift.names import literal, path
from floodmark.load.redshift.steps import Do, Limits, Lock, RedshiftSession, Step

_TYPES = (
    '"target" VARCHAR(1024), "source_table" VARCHAR(1024), "as_of" TIMESTAMP, "checked_at" TIMESTAMP, '
    '"watermark" VARCHAR(128), "commit_n" BIGINT, "run" VARCHAR(128)'
)
_AT_ONCE = 200  # rows in one statement: the Data API takes statements of 100 kB at most


def write(session: RedshiftSession, schema: str, rows: Sequence[Freshness], limits: Limits) -> None:
    """Replaces the rows that are not newer."""
    table = path(schema, FRESHNESS)
    if FRESHNESS not in relations(session, schema, (FRESHNESS,)):
        create_tables(session, schema, {FRESHNESS: f"({_TYPES}) DISTSTYLE ALL"}, (), limits.lock)
    elif not (rows := _not_older(session, table, rows)):
        return
    session.transaction(Lock(table, limits.lock), list(_steps(table, rows)))


def _not_older(session: RedshiftSession, table: str, rows: Sequence[Freshness]) -> list[Freshness]:
    """The rows whose targets have no newer one yet: a target has one row. If one comes meanwhile, the next run removes ours."""
    newer: set[str] = set()
    for first in range(0, len(rows), _AT_ONCE):
        some = rows[first : first + _AT_ONCE]
        found = session.query(f'SELECT "target" FROM {table} WHERE {_of(some, ">")}')
        newer |= {str(row[0]) for row in found}
    return [row for row in rows if row.target not in newer]


def _of(rows: Sequence[Freshness], than: str) -> str:
    return " OR ".join(
        f'("target" = {literal(row.target)} AND "as_of" {than} {literal(row.as_of)})' for row in rows
    )


def _steps(table: str, rows: Sequence[Freshness]) -> Iterator[Step]:
    names = ", ".join(quote(name) for name in COLUMNS)
    for first in range(0, len(rows), _AT_ONCE):
        some = rows[first : first + _AT_ONCE]
        yield Do(f"DELETE FROM {table} WHERE {_of(some, '<=')}")
        values = ", ".join(f"({', '.join(literal(value) for value in vars(row).values())})" for row in some)
        yield Do(f"INSERT INTO {table} ({names}) VALUES {values}")
