"""What a time that the older tool wrote can mean in a cursor's own terms.

It wrote some without a zone, and some with a zone that was not theirs. Of all that a time can mean, the earliest
counts: to read too much costs time, to read too little costs rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from floodmark import clock, plan
from floodmark.config import TableOptions
from floodmark.model import Table
from floodmark.mysql import bounds
from floodmark.mysql.connect import Session

_HOUR = 3600
# Beyond it, servers know no zones.
_LAST = 2**31 - 1


class Reading:
    """What a time that carries no zone, or the wrong one, can mean in the cursor's own terms."""

    def __init__(self, session: Session, table: Table, options: TableOptions) -> None:
        assert table.cursor is not None
        self.table = table
        self._kind = table.column(table.cursor).data_type
        # TIMESTAMPs count in UTC, but whoever printed them did so in the server's zone.
        zone = "server" if self._kind == "timestamp" else options.cursor_timezone
        self._zone = bounds.zone_offsets(session, zone)
        self._now = bounds.now(session)

    def plain(self, moment: datetime) -> str:
        """The digits as they stand."""
        return self._text(moment.replace(tzinfo=None))

    def earliest(self, moment: datetime) -> str:
        """The earliest value of the cursor that is meant."""
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
        """What no honest watermark can be above."""
        now = datetime.fromtimestamp(self._now + _HOUR, UTC).replace(tzinfo=None)
        return self._text(now if self._kind == "timestamp" else _shift(now, max(self._near(now))))

    def before(self, value: str) -> str:
        """The place right before every row with this cursor."""
        if self._kind == "date":
            return clock.shifted(value, -86_400)[:10]
        return clock.shifted(value, -1e-6)

    def _near(self, moment: datetime) -> Sequence[int]:
        """The zone's offsets around a moment, whichever side of a shift it lies on."""
        centre = int(moment.replace(tzinfo=UTC).timestamp())
        return self._zone([min(max(0, centre + days * 86_400), _LAST) for days in (-1, 0, 1)])

    def _text(self, moment: datetime) -> str:
        return str(plan.cursor_value(self.table, moment.isoformat(sep=" ")))


def shown(value: str) -> str:
    """A cursor's value without the digits that say nothing."""
    return value.removesuffix(".000000")


def digits(text: str | None) -> datetime:
    """The digits of a time, to be sorted by; what is none comes first."""
    moment = parsed(text) if text else None
    return moment.replace(tzinfo=None) if moment else datetime.min


def _shift(moment: datetime, seconds: int) -> datetime:
    return datetime.fromisoformat(clock.shifted(moment.isoformat(sep=" "), seconds))


def parsed(text: str) -> datetime | None:
    """The time that a text holds, with its zone if it has one; None when it holds none."""
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError:
        return None
