"""Sets of transactions by their GTIDs: MySQL's sets, with tags, and MariaDB's positions. Pure.

A MySQL set holds intervals of numbers for each server and tag. A MariaDB position names the last transaction of each
domain; its binlog state names the last one of each server in a domain. Both mean all earlier ones as well.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable

_MARIADB = re.compile(r"(\d+)-(\d+)-(\d+)\Z")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\Z")
_TAG = re.compile(r"[a-z_][a-z0-9_]{0,31}\Z")
_INTERVAL = re.compile(r"(\d+)(?:-(\d+))?\Z")

Source = str  # a MySQL server's UUID, perhaps with ":tag"
Server = tuple[int, int]  # MariaDB's domain and server


class GtidSet:
    """A set that grows: `add` takes one transaction in constant time if it is the next of its server."""

    def __init__(self) -> None:
        # MySQL: first and last number of each interval, in order; neighbours are joined.
        self._intervals: dict[Source, tuple[list[int], list[int]]] = {}
        self._last: dict[Server, int] = {}  # MariaDB

    @classmethod
    def parse(cls, text: str) -> GtidSet:
        """Parses a set, a position or a single GTID as a server prints it; ValueError if it is none of them."""
        found = cls()
        for part in "".join(text.split()).lower().split(","):
            if mariadb := _MARIADB.match(part):
                domain, server, number = map(int, mariadb.groups())
                found._advance((domain, server), number)
            elif part:
                found._parse_mysql(part)
        return found

    def _parse_mysql(self, part: str) -> None:
        uuid, *pieces = part.split(":")
        if not _UUID.match(uuid) or not pieces:
            raise ValueError(f"not a GTID set: {part[:80]}")
        source, empty = uuid, True
        for piece in pieces:
            if interval := _INTERVAL.match(piece):
                first = int(interval[1])
                last = int(interval[2] or first)
                if not first:
                    raise ValueError(f"GTIDs begin at 1: {part[:80]}")
                if first <= last:  # MySQL takes 5-3 for an empty interval
                    self._cover(source, first, last)
                empty = False
            elif _TAG.match(piece):
                source, empty = f"{uuid}:{piece}", True
            else:
                raise ValueError(f"not a GTID set: {part[:80]}")
        if empty:
            raise ValueError(f"not a GTID set: {part[:80]}")

    def add(self, gtid: str) -> None:
        """Adds one transaction: "uuid:7", "uuid:tag:7" or "0-1-7"."""
        source, colon, number = gtid.rpartition(":")
        if colon and (known := self._intervals.get(source)) and number.isdecimal():
            if known[1][-1] + 1 == (value := int(number)):
                known[1][-1] = value
            else:
                self._cover(source, value, value)
        else:
            self.update(GtidSet.parse(gtid))

    def update(self, other: GtidSet) -> None:
        """Adds all transactions of another set."""
        for source, first, last in other._each():
            self._cover(source, first, last)
        for server, number in other._last.items():
            self._advance(server, number)

    def contains(self, other: GtidSet | str) -> bool:
        """Whether all transactions of the other set are in this one.

        MariaDB: if this one doesn't name a transaction's server, the highest number in its domain decides.
        """
        if isinstance(other, str):
            source, _, number = other.rpartition(":")
            if number.isdecimal() and (
                known := self._intervals.get(source)
            ):  # a single one, as events have it
                at = bisect_left(known[1], int(number))
                return at < len(known[0]) and known[0][at] <= int(number)
            other = GtidSet.parse(other)
        return not other.minus(self)

    def minus(self, other: GtidSet) -> GtidSet:
        """The transactions that the other set lacks. MariaDB: the last one of each server whose last one it lacks."""
        left = GtidSet()
        for source, first, last in self._each():
            for a, b in other._gaps(source, first, last):
                left._cover(source, a, b)
        for server, number in self._last.items():
            if number > other._reached(server):
                left._last[server] = number
        return left

    def has_logged(self, position: GtidSet) -> bool:
        """Whether a MariaDB server with this binlog state has had each transaction that a position names.

        A domain's number alone doesn't prove that: two servers that have diverged count on alike.
        """
        return all(self._last.get(server, 0) >= number for server, number in position._last.items())

    def text(self) -> str:
        """As the server prints it: sorted, tags behind their UUID."""
        by_uuid: dict[str, list[str]] = {}
        for source in sorted(self._intervals):
            uuid, _, tag = source.partition(":")
            ranges = zip(*self._intervals[source], strict=True)
            by_uuid.setdefault(uuid, []).extend(
                [*([tag] if tag else []), *(str(a) if a == b else f"{a}-{b}" for a, b in ranges)]
            )
        mysql = [":".join([uuid, *pieces]) for uuid, pieces in by_uuid.items()]
        mariadb = [f"{domain}-{server}-{number}" for (domain, server), number in sorted(self._last.items())]
        return ",".join(mysql + mariadb)

    __str__ = text

    def __repr__(self) -> str:
        return f"GtidSet({self.text()!r})"

    def __bool__(self) -> bool:
        return bool(self._intervals or self._last)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GtidSet):
            return NotImplemented
        return self._intervals == other._intervals and self._last == other._last

    __hash__ = None  # type: ignore[assignment]  # it changes

    def _each(self) -> Iterable[tuple[Source, int, int]]:
        for source, (firsts, lasts) in self._intervals.items():
            for first, last in zip(firsts, lasts, strict=True):
                yield source, first, last

    def _cover(self, source: Source, first: int, last: int) -> None:
        """Adds an interval, joined with all that it overlaps or touches."""
        firsts, lasts = self._intervals.setdefault(source, ([], []))
        low, high = bisect_left(lasts, first - 1), bisect_right(firsts, last + 1)
        if low < high:
            first, last = min(first, firsts[low]), max(last, lasts[high - 1])
        firsts[low:high], lasts[low:high] = [first], [last]

    def _gaps(self, source: Source, first: int, last: int) -> Iterable[tuple[int, int]]:
        """What of an interval is not in the set."""
        firsts, lasts = self._intervals.get(source, ([], []))
        at = bisect_left(lasts, first)
        while at < len(firsts) and firsts[at] <= last:
            if first < firsts[at]:
                yield first, firsts[at] - 1
            first = lasts[at] + 1
            at += 1
        if first <= last:
            yield first, last

    def _advance(self, server: Server, number: int) -> None:
        self._last[server] = max(number, self._last.get(server, 0))

    def _reached(self, server: Server) -> int:
        """The last number of the server; of its domain if the server isn't named."""
        named = self._last.get(server)
        if named is not None:
            return named
        return max((number for (domain, _), number in self._last.items() if domain == server[0]), default=0)


def unaccounted(before: str, end: str, seen: str) -> GtidSet:
    """The transactions that an end promises beyond the one before, and that the log between them didn't have.

    If there are any, the log does not tell everything: all tables must be reconciled.
    """
    left = GtidSet.parse(end).minus(GtidSet.parse(before))
    return left.minus(GtidSet.parse(seen))


def plus_gtids(one: str, other: str) -> str:
    """Both sets together."""
    both = GtidSet.parse(one)
    both.update(GtidSet.parse(other))
    return both.text()
