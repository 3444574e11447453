"""A source's time zones: that of its clock, and those of the sessions that write to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime

from floodmark.model import zones as clock
from floodmark.model.errors import ConfigError, TransientError
from floodmark.model.times import parse_time
from floodmark.source import open_work
from floodmark.source.session import Session


def offsets(session: Session, moments: Sequence[int]) -> list[int]:
    """The offsets of the session's current zone at the given moments."""
    return _named_offsets(session, moments)[1]


def _named_offsets(session: Session, moments: Sequence[int]) -> tuple[bytes | None, list[int]]:
    """The name of the session's current zone, and its offsets, in one question."""
    asked = ["@@session.time_zone", *(f"FROM_UNIXTIME({int(m)})" for m in moments)]
    name, *cells = session.rows(f"SELECT {', '.join(asked)}")[0]
    return name, [_wall_seconds(cell or b"") - m for cell, m in zip(cells, moments, strict=True)]


def _wall_seconds(cell: bytes) -> int:
    wall = parse_time(cell.decode())
    return int((wall - datetime(1970, 1, 1)).total_seconds())


class ZoneClock:
    """The source's clock, and the offsets of its cursors' zone: the server's default for DATETIME, or another.

    The server's default may be changed at any time. Its name is asked with every reading of the clock, and the
    offsets are those of the name asked first: if another name shows up, rows may have cursors in either zone. So what
    was worked out between two readings of the clock holds for one zone.
    """

    def __init__(self, session: Session, zone: str) -> None:
        self._session = session
        self._server = zone == "server"
        self._fixed = clock.utc if zone.upper() == "UTC" or self._server else clock.named(zone)
        self._name: list[bytes | None] = []  # of the server's default, once it is known

    def now(self) -> float:
        """The server's clock."""
        if not self._server:
            return open_work.now(self._session)
        [(now, name)] = self._session.rows(f"SELECT {open_work.CLOCK}, @@global.time_zone")
        self._check(name)
        return float(now or 0)

    def offsets(self, moments: Sequence[int]) -> list[int]:
        """The zone's offsets at these moments; the server is asked for those that the session has not met yet."""
        if not self._server:
            return self._fixed(moments)
        if not self._name:
            self._check(self._session.rows("SELECT @@global.time_zone")[0][0])
        # A server reads a zone's rules only once, so they hold as long as the connection.
        known = self._session.zone_offsets.setdefault(self._name[0], {})
        if new := [m for m in moments if m not in known]:
            with _inside(self._session, "@@global.time_zone"):
                name, found = _named_offsets(self._session, new)
            self._check(name)
            known.update(zip(new, found, strict=True))
        return [known[m] for m in moments]

    def _check(self, name: bytes | None) -> None:
        if not self._name:
            self._name.append(name)
        if self._name[0] != name:
            raise TransientError(
                f"the source's time zone changed to {(name or b'').decode()} while it was being read",
                hint="try again; rows written in between may have cursors in either zone",
            )


@contextmanager
def _inside(session: Session, zone: str) -> Iterator[None]:
    """Switches the session to a zone, given as an SQL expression, and back to UTC at the end."""
    session.rows(f"SET time_zone = {zone}")
    try:
        yield
    finally:
        session.rows("SET time_zone = '+00:00'")


def behind(session: Session, zones: Iterable[str], ours: Mapping[int, int]) -> int:
    """By how many seconds at most these zones lag the cursor's zone, whose offsets are given."""
    widest = 0
    for zone in zones:
        with suppress(ConfigError), _inside(session, f"CONVERT(X'{zone.encode().hex()}' USING utf8mb4)"):
            theirs = offsets(session, list(ours))
            widest = max(widest, *(ours[m] - there for m, there in zip(ours, theirs, strict=True)))
    return widest


def zones_beside(session: Session) -> tuple[str, ...] | None:
    """The time zones of sessions that may write, if not the server's; None if the server doesn't show them.

    Sessions that declared themselves read-only, like ours, don't count. MySQL takes 0.3 ms per session.
    """
    try:
        rows = session.rows(
            "SELECT DISTINCT zone, read_only = 'OFF' AND zone <> @@global.time_zone FROM ("
            "SELECT MAX(IF(VARIABLE_NAME = 'time_zone', VARIABLE_VALUE, NULL)) AS zone,"
            " MAX(IF(VARIABLE_NAME = 'time_zone', NULL, VARIABLE_VALUE)) AS read_only"
            " FROM performance_schema.variables_by_thread"
            " WHERE VARIABLE_NAME IN ('time_zone', 'transaction_read_only') GROUP BY THREAD_ID) AS sessions"
        )
    except ConfigError:
        return None
    if not rows:  # not even this session is listed: the instrument is off
        return None
    return tuple(sorted((zone or b"").decode(errors="replace") for zone, other in rows if int(other or 0)))
