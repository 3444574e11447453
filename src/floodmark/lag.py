"""How far a watermark lies behind the source: asked for quickly, or not known. Never fails and never hangs.

All of it happens in a thread that is not waited for longer than a moment: names may take long to resolve, and a
server that is away may take its time to say so.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from datetime import datetime

from floodmark import clock
from floodmark.config import Config, SourceSpec
from floodmark.errors import FloodmarkError
from floodmark.model import Lag, Position, Table
from floodmark.mysql import bounds, edges
from floodmark.mysql.connect import Session
from floodmark.plan import temporal
from floodmark.state import State

log = logging.getLogger("floodmark")

CONNECT_SECONDS = 1
STATEMENT_SECONDS = 2
# For all tables together; those that were not reached by then are unknown.
PATIENCE = 3.0


def lags(config: Config, states: Mapping[str, State], patience: float = PATIENCE) -> dict[str, Lag]:
    """The lag of each table that the source tells in time; the others are missing."""
    asked = {
        name: (state.table, state.position)
        for name, state in states.items()
        if state.table is not None and state.table.cursor is not None and state.position
    }
    if not asked:
        return {}
    zones = {name: config.options(name).cursor_timezone for name in asked}
    found: dict[str, Lag] = {}
    give_up = time.monotonic() + patience

    def ask() -> None:
        try:
            with _session(config.source) as session:
                for name, (table, position) in asked.items():
                    if time.monotonic() > give_up:
                        return
                    try:
                        found[name] = _lag(session, table, position, zones[name])
                    except (FloodmarkError, ValueError):
                        continue  # a table that is gone or too slow does not hide the others
        except Exception as error:
            log.debug("the lag is unknown: %s", error, extra={"step": "lag"})

    thread = threading.Thread(target=ask, name="lag", daemon=True)
    thread.start()
    thread.join(patience)
    return dict(found)


def _session(spec: SourceSpec) -> Session:
    session = Session(
        spec, connect_timeout=CONNECT_SECONDS, read_timeout=STATEMENT_SECONDS + 1, purpose="lag"
    )
    # The server is to stop by itself: a look must not cost it more than a moment.
    mariadb = b"MariaDB" in (session.rows("SELECT VERSION()")[0][0] or b"")
    limit = f"max_statement_time = {STATEMENT_SECONDS}"
    session.rows(f"SET SESSION {limit if mariadb else f'max_execution_time = {STATEMENT_SECONDS * 1000}'}")
    return session


def cursor_now(session: Session, table: Table, timezone: str, ahead: float = 0.0) -> str:
    """The server's clock, so many seconds ahead, in the terms of the table's cursor."""
    assert table.cursor is not None
    kind = table.column(table.cursor).data_type
    moment = bounds.now(session) + ahead
    offset = bounds.zone_offsets(session, "UTC" if kind == "timestamp" else timezone)([int(moment)])[0]
    value = clock.text(moment, offset)
    return value[:10] if kind == "date" else value


def measured(session: Session, table: Table, position: Position | None, zone: str) -> Lag | None:
    """One table's lag, where an index tells it at once; None: not known."""
    if not position or table.cursor is None or not (table.cursor_index or table.order == table.key):
        return None
    try:
        return _lag(session, table, position, zone)
    except (FloodmarkError, ValueError):
        return None  # what is only told must not fail a run


def _lag(session: Session, table: Table, position: Position, zone: str) -> Lag:
    if not temporal(table):
        newest = edges.last(session, table, None)
        here, there = position[0], newest[0] if newest else position[0]
        return Lag(ids=max(0, there - here)) if isinstance(here, int) and isinstance(there, int) else Lag()
    # Cursors in the future are read again by every sync and never become a position.
    assert table.cursor is not None
    ahead = 86_400.0 if table.column(table.cursor).data_type == "date" else bounds.FUTURE_SLACK
    newest = edges.last(session, table, cursor_now(session, table, zone, ahead))
    if newest is None:
        return Lag(seconds=0.0)
    behind = datetime.fromisoformat(str(newest[0])) - datetime.fromisoformat(str(position[0]))
    return Lag(seconds=max(0.0, behind.total_seconds()))
