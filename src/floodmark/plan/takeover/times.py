"""What a time written by the older tool can mean in a cursor's own terms.

The tool wrote some times without a zone, and some with the wrong one. Of all possible meanings the earliest
counts: reading too much costs time, reading too little loses rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from floodmark.config.load import TableOptions
from floodmark.model import times
from floodmark.model.table import Table
from floodmark.services.mysql import time_zones
from floodmark.services.mysql.session import Session

_HOUR = 3600
# MySQL servers know no time zones beyond this moment.
_LAST = 2**31 - 1


class Reading:
    """What a time with no zone, or the wrong one, can mean in the cursor's own terms."""

    def __init__(self, session: Session, table: Table, options: TableOptions) -> None:
        assert table.cursor is not None
        self.table = table
        self._kind = table.column(table.cursor).data_type
        # TIMESTAMPs are stored in UTC, but the older tool printed them in the server's zone.
        zone = "server" if self._kind == "timestamp" else options.cursor_timezone
        zoned = time_zones.ZoneClock(session, zone)
        self._now, self._zone = zoned.now(), zoned.offsets

    def plain(self, moment: datetime) -> str:
        """The digits, unconverted."""
        return self._text(moment.replace(tzinfo=None))

    def earliest(self, moment: datetime) -> str:
        """The earliest value of the cursor that the time can mean."""
        digits = moment.replace(tzinfo=None)
        meant = [digits]
        if self._kind == "timestamp":
            meant.append(_shift(digits, -max(self._near(digits))))
            if moment.tzinfo is not None:
                meant.append(moment.astimezone(UTC).replace(tzinfo=None))
        elif moment.tzinfo is not None:
            utc = moment.astimezone(UTC).replace(tzinfo=None)
            meant.append(_shift(utc, min(self._near(utc))))
        return self._text(min(meant))

    def latest(self) -> str:
        """The upper limit of a plausible watermark."""
        now = datetime.fromtimestamp(self._now + _HOUR, UTC).replace(tzinfo=None)
        return self._text(now if self._kind == "timestamp" else _shift(now, max(self._near(now))))

    def _near(self, moment: datetime) -> Sequence[int]:
        """The zone's offsets around a moment, so that both sides of a shift are covered."""
        centre = int(moment.replace(tzinfo=UTC).timestamp())
        return self._zone([min(max(0, centre + days * 86_400), _LAST) for days in (-1, 0, 1)])

    def _text(self, moment: datetime) -> str:
        return times.cursor_value(self.table, moment.isoformat())


def shown(value: str) -> str:
    """A cursor's value without trailing zeros."""
    return value.removesuffix(".000000")


def digits(text: str | None) -> datetime:
    """The digits of a time as a sort key; anything that isn't a time sorts first."""
    moment = parsed(text) if text else None
    return moment.replace(tzinfo=None) if moment else datetime.min


def _shift(moment: datetime, seconds: int) -> datetime:
    return times.parse_time(times.shifted(moment.isoformat(), seconds))


def parsed(text: str) -> datetime | None:
    """The time in a text, with its zone if it has one; None if there is no time in it."""
    try:
        return times.parse_time(text)
    except ValueError:
        return None
