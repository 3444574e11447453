"""How far a watermark lags behind the source: measured quickly, or unknown. Never fails and never hangs.

The work runs in a thread that is joined with a short timeout: resolving a name may take long, and so may a
connection attempt to a server that is down.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping

from floodmark.config.load import Config, SourceSpec
from floodmark.log import source_log
from floodmark.log.fold import State
from floodmark.log.following import here
from floodmark.log.log import Log
from floodmark.model import zones as clock
from floodmark.model.changes import SOURCE_LOG
from floodmark.model.errors import FloodmarkError
from floodmark.model.position import Position
from floodmark.model.run import Lag
from floodmark.model.table import Table
from floodmark.model.times import parse_time, temporal
from floodmark.model.zones import FUTURE_SLACK
from floodmark.plan.followed import TableNews, followed_lag
from floodmark.source import ranges as edges
from floodmark.source import time_zones
from floodmark.source.session import Session
from floodmark.store.store import Store

logger = logging.getLogger("floodmark")

CONNECT_SECONDS = 1
STATEMENT_SECONDS = 2
# For all tables together; tables not reached by then are unknown.
PATIENCE = 3.0


def lags(config: Config, states: Mapping[str, State], patience: float = PATIENCE) -> dict[str, Lag]:
    """The lag of each table for which the source answers in time; other tables are missing.

    That of a table that follows the binary log is how far it is behind the last read of the log: only the store knows.
    """
    followed = _followed(config, states)
    asked = {
        name: (state.table, state.position)
        for name, state in states.items()
        if state.table is not None and state.table.cursor is not None and state.position
    }
    if not asked:
        return followed
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
                        continue  # a missing or slow table does not hide the others
        except Exception as error:
            logger.debug("the lag is unknown: %s", error, extra={"step": "lag"})

    thread = threading.Thread(target=ask, name="lag", daemon=True)
    thread.start()
    thread.join(patience)
    return followed | found


def _followed(config: Config, states: Mapping[str, State]) -> dict[str, Lag]:
    stands = {name: state.followed_to for name, state in states.items() if state.followed_to is not None}
    if not stands:
        return {}
    try:
        log = Log(Store(config.store), SOURCE_LOG, repairs=False)
        state = log.read()
        if (newest := here(state)) is None:
            return {}
        waiting = source_log.waiting(log, state, stands)
    except FloodmarkError as error:
        logger.debug("the lag is unknown: %s", error, extra={"step": "lag"})
        return {}
    found = {
        name: followed_lag(place, TableNews(newest, waiting.get(name))) for name, place in stands.items()
    }
    return {name: lag for name, lag in found.items() if lag is not None}


def _session(spec: SourceSpec) -> Session:
    session = Session(
        spec, connect_timeout=CONNECT_SECONDS, read_timeout=STATEMENT_SECONDS + 1, purpose="lag"
    )
    # Let the server enforce the limit: this query must not cost it more than a moment.
    mariadb = b"MariaDB" in (session.rows("SELECT VERSION()")[0][0] or b"")
    limit = f"max_statement_time = {STATEMENT_SECONDS}"
    session.rows(f"SET SESSION {limit if mariadb else f'max_execution_time = {STATEMENT_SECONDS * 1000}'}")
    return session


def cursor_now(session: Session, table: Table, timezone: str, ahead: float = 0.0) -> str:
    """The server's clock, `ahead` seconds later, in the terms of the table's cursor."""
    assert table.cursor is not None
    kind = table.column(table.cursor).data_type
    zoned = time_zones.ZoneClock(session, "UTC" if kind == "timestamp" else timezone)
    moment = zoned.now() + ahead
    value = clock.sample(zoned.offsets, moment).at(moment)
    return value[:10] if kind == "date" else value


def measured(session: Session, table: Table, position: Position | None, zone: str) -> Lag | None:
    """One table's lag if an index answers at once; None if unknown."""
    if not position or table.cursor is None or not (table.source.cursor_index or table.order == table.key):
        return None
    try:
        return _lag(session, table, position, zone)
    except (FloodmarkError, ValueError):
        return None  # purely informational: must not fail a run


def _lag(session: Session, table: Table, position: Position, zone: str) -> Lag:
    if not temporal(table):
        newest = edges.last(session, table, None)
        here, there = position[0], newest[0] if newest else position[0]
        return Lag(ids=max(0, there - here)) if isinstance(here, int) and isinstance(there, int) else Lag()
    # Every sync reads cursors in the future again, so they never become a position.
    assert table.cursor is not None
    ahead = 86_400.0 if table.column(table.cursor).data_type == "date" else FUTURE_SLACK
    newest = edges.last(session, table, cursor_now(session, table, zone, ahead))
    if newest is None:
        return Lag(seconds=0.0)
    behind = parse_time(str(newest[0])) - parse_time(str(position[0]))
    return Lag(seconds=max(0.0, behind.total_seconds()))
