"""Files that our writer never or rarely writes: what COPY does with them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from floodmark.services.warehouse.redshift.names import literal
from floodmark.setup.doctor.live.place import Live
from floodmark.setup.doctor.live.probe import Answer, Probe, Refusal, tried

_GROUP = "files"
_NOON = datetime(2025, 1, 2, 12, 34, 56, 789012)


def _one(kind: pa.DataType, *values: Any) -> pa.Table:
    return pa.table({"c": pa.array(values, kind)})


def _loaded(
    live: Live, column: str, content: pa.Table, shown: str = "c", before: str = ""
) -> list[tuple[Any, ...]] | Refusal:
    """A file's rows as loaded into a column of a given type, or why they were refused."""
    manifest = live.manifest(live.put(content).entry())
    with live.session(live.first if not before else "socket") as session:
        session.execute(f"DROP TABLE IF EXISTS {live.path('odd')}")
        session.execute(f"CREATE TABLE {live.path('odd')} (c {column})")
        if before:
            session.query(before)
        found = tried(session, live.copy("odd", manifest), live.scale.statement)
        if isinstance(found, Refusal):
            return found
        return tried(session, f"SELECT {shown} FROM {live.path('odd')} ORDER BY 1")


def _either(found: list[tuple[Any, ...]] | Refusal, want: list[Any], also_refused: bool = False) -> Answer:
    """Right if the rows loaded as expected, or were refused where that is just as good."""
    if isinstance(found, Refusal):
        return Answer(also_refused, str(found), found.as_json())
    values = [row[0] for row in found]
    said = ", ".join(repr(value)[:80] for value in values) or "no rows"
    return Answer(values == want, f"loaded: {said}")


def _naive(live: Live) -> Answer:
    shown = "TO_CHAR(c, 'YYYY-MM-DD HH24:MI:SS.US')"
    found = _loaded(live, "TIMESTAMP", _one(pa.timestamp("us"), _NOON), shown)
    right = not isinstance(found, Refusal) and [row[0] for row in found] == ["2025-01-02 12:34:56.789012"]
    answer = _either(found, [])
    return Answer(not right, answer.found, answer.details)


def _int32(live: Live) -> Answer:
    return _refused(_loaded(live, "BIGINT", _one(pa.int32(), 7)))


def _wider(live: Live) -> Answer:
    return _refused(_loaded(live, "DECIMAL(10,2)", _one(pa.decimal128(20, 2), Decimal("1.25"))))


def _refused(found: list[tuple[Any, ...]] | Refusal) -> Answer:
    if isinstance(found, Refusal):
        return Answer(True, str(found), found.as_json())
    return Answer(False, f"loaded: {', '.join(repr(row[0]) for row in found)}")


def _nul(live: Live) -> Answer:
    return _refused(_loaded(live, "VARCHAR(20)", _one(pa.string(), "a\0b"), "OCTET_LENGTH(c)"))


def _empty(live: Live) -> Answer:
    return _either(_loaded(live, "BIGINT", _one(pa.int64())), [], also_refused=True)


def _zone(kind: str) -> Callable[[Live], Answer]:
    """UTC-adjusted times in a session with another time zone: neither column may shift."""

    def ask(live: Live) -> Answer:
        content = _one(pa.timestamp("us", "UTC"), _NOON.replace(tzinfo=UTC))
        utc = "c" if kind == "TIMESTAMP" else "c AT TIME ZONE 'UTC'"
        shown = f"TO_CHAR({utc}, 'YYYY-MM-DD HH24:MI:SS.US')"
        found = _loaded(live, kind, content, shown, f"SET TIMEZONE TO {literal('America/New_York')}")
        return _either(found, ["2025-01-02 12:34:56.789012"])

    return ask


def _probe(name: str, question: str, assumed: str, ask: Callable[[Live], Answer]) -> Probe:
    return Probe(_GROUP, name, question, assumed, ask)


PROBES = (
    _probe(
        "naive times",
        "How are INT64 times loaded that are not marked as UTC?",
        "refused, or shifted: not to be relied on",
        _naive,
    ),
    _probe(
        "INT32 into BIGINT",
        "Can an INT32 be loaded into a BIGINT column?",
        "refused: widths must match",
        _int32,
    ),
    _probe(
        "wider decimals",
        "Can a file's DECIMAL(20,2) be loaded into DECIMAL(10,2)?",
        "refused: precisions must match",
        _wider,
    ),
    _probe("U+0000", "Can a text with U+0000 be loaded into VARCHAR?", "refused", _nul),
    _probe("no rows", "What happens to a file without rows?", "no rows, or refused", _empty),
    _probe(
        "zone, TIMESTAMP",
        "Does the session's time zone shift UTC times loaded into TIMESTAMP?",
        "loaded: '2025-01-02 12:34:56.789012'",
        _zone("TIMESTAMP"),
    ),
    _probe(
        "zone, TIMESTAMPTZ",
        "Does the session's time zone shift UTC times loaded into TIMESTAMPTZ?",
        "loaded: '2025-01-02 12:34:56.789012'",
        _zone("TIMESTAMPTZ"),
    ),
)
