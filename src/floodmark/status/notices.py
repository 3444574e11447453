"""Which tables are in trouble, and whom to notify of what. Pure: no store, no clock, no receiver.

One message for every change of a table's state, then one a day while it lasts. What was sent is recorded per receiver,
so that one that was down gets it later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Literal

from floodmark.model.times import stamp
from floodmark.status.health import NO_FAILURE, TableFacts, behind_seconds, judge, moment

AlertWord = Literal["ok", "failed", "behind", "differs"]
ALERT_WORDS: tuple[AlertWord, ...] = ("failed", "behind", "differs")
EventKind = Literal["failed", "behind", "differs", "schema", "recovered"]

AGAIN = timedelta(days=1)


@dataclass(frozen=True)
class Standing:
    """The present state of a table."""

    table: str
    word: AlertWord = "ok"
    detail: str = ""
    exit_code: int | None = None
    behind_seconds: float | None = None  # the most that it can be behind its source; None: unknown
    schema_at: str | None = None
    schema: tuple[str, ...] = ()


@dataclass(frozen=True)
class Said:
    """What a receiver was last notified of about a table."""

    word: AlertWord
    at: str


@dataclass(frozen=True)
class TableSaid:
    """What was sent about a table, by receiver."""

    since: str  # when the reported state began
    said: dict[str, Said] = field(default_factory=dict)
    schema: dict[str, str] = field(default_factory=dict)  # the last reported change of columns, by its time


@dataclass(frozen=True)
class AlertEvent:
    """One event to report about a table."""

    kind: EventKind
    stands: Standing
    since: str
    again: bool = False  # a reminder, a day or more after the last message

    def as_json(self) -> dict[str, object]:
        stands = self.stands
        return {
            "event": self.kind,
            "table": stands.table,
            "since": self.since,
            "again": self.again,
            "exit_code": stands.exit_code,
            "behind_seconds": None if stands.behind_seconds is None else round(stands.behind_seconds, 1),
            "detail": stands.detail,
        }


def standing(facts: TableFacts, limit: float, on: Collection[str], now: datetime) -> Standing:
    """A table's state as far as receivers are notified of it."""
    status = facts.status
    if status is None:
        return Standing(facts.table)
    health = judge(facts, limit, now, words=[word for word in ALERT_WORDS if word in on])
    detail = health.why
    if health.word == "behind" and status.exit_code in NO_FAILURE:
        detail = ""  # how far it is behind says it
    return Standing(
        facts.table,
        health.word if health.word in ALERT_WORDS else "ok",
        detail,
        status.exit_code,
        behind_seconds(facts, now),
        status.schema_at,
        tuple(str(change) for change in status.schema_changes),
    )


def to_say(
    before: TableSaid | None,
    now_stands: Standing,
    receivers: Iterable[str],
    on: Collection[str],
    now: datetime,
) -> dict[str, tuple[AlertEvent, ...]]:
    """The events to send each receiver about a table now."""
    found: dict[str, tuple[AlertEvent, ...]] = {}
    since = since_when(before, now_stands, now)
    for receiver in receivers:
        last = before.said.get(receiver) if before else None
        events: list[AlertEvent] = []
        if now_stands.word == "ok":
            if last is not None and last.word != "ok" and "recovered" in on:
                events.append(AlertEvent("recovered", now_stands, last.at))
        elif last is None or last.word != now_stands.word:
            events.append(AlertEvent(now_stands.word, now_stands, since))
        elif _age(last.at, now) >= AGAIN:
            events.append(AlertEvent(now_stands.word, now_stands, since, again=True))
        if "schema" in on and _new_schema(before, now_stands, receiver, now):
            assert now_stands.schema_at is not None
            changed = replace(now_stands, detail="; ".join(now_stands.schema))
            events.append(AlertEvent("schema", changed, now_stands.schema_at))
        if events:
            found[receiver] = tuple(events)
    return found


def after_saying(
    before: TableSaid | None,
    now_stands: Standing,
    heard: Mapping[str, tuple[AlertEvent, ...]],
    on: Collection[str],
    now: datetime,
) -> TableSaid | None:
    """The record of a table after these receivers got these events; None: there is nothing left to record."""
    said = dict(before.said) if before else {}
    schema = dict(before.schema) if before else {}
    for receiver, events in heard.items():
        for event in events:
            if event.kind == "schema":
                schema[receiver] = now_stands.schema_at or ""
            elif event.kind == "recovered":
                said.pop(receiver, None)
            else:
                said[receiver] = Said(event.kind, stamp(now))
    if now_stands.word == "ok" and "recovered" not in on:
        said = {}  # no receiver wants to be notified of recoveries
    return TableSaid(since_when(before, now_stands, now), said, schema) if said or schema else None


def since_when(before: TableSaid | None, now_stands: Standing, now: datetime) -> str:
    """When the present state began, as far as it was seen."""
    words = {s.word for s in before.said.values()} if before else set()
    return before.since if before and now_stands.word in words else stamp(now)


def _new_schema(before: TableSaid | None, stands: Standing, receiver: str, now: datetime) -> bool:
    """Whether the receiver has yet to be notified of changed columns; changes from long before it was configured don't count."""
    if stands.schema_at is None:
        return False
    told = before.schema.get(receiver) if before else None
    return stands.schema_at > told if told is not None else _age(stands.schema_at, now) < AGAIN


def _age(at: str, now: datetime) -> timedelta:
    seen = moment(at)
    return now - seen if seen is not None else AGAIN
