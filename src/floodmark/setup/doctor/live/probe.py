"""A probe: one question to a live Redshift, the answer we assume, and how the real one compares."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from floodmark.services.warehouse.redshift.steps import Failed, RedshiftSession, Row

if TYPE_CHECKING:
    from floodmark.setup.doctor.live.place import Live

State = Literal["as assumed", "differs", "unknown", "failed"]
STATES: tuple[State, ...] = ("as assumed", "differs", "unknown", "failed")


@dataclass(frozen=True)
class Answer:
    """What we saw, and whether it is what we assume."""

    as_assumed: bool
    found: str
    details: dict[str, Any] = field(default_factory=dict)


class Unknown(Exception):
    """The question can't be answered here; the message says why."""


@dataclass(frozen=True)
class Probe:
    """One question, and the answer we assume."""

    group: str
    name: str
    question: str
    assumed: str
    ask: Callable[[Live], Answer]


@dataclass(frozen=True)
class Result:
    """A probe and its outcome."""

    probe: Probe
    state: State
    found: str
    seconds: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        probe = self.probe
        return {
            "group": probe.group,
            "name": probe.name,
            "question": probe.question,
            "assumed": probe.assumed,
            "state": self.state,
            "found": self.found,
            "seconds": round(self.seconds, 3),
            "details": self.details,
        }


@dataclass(frozen=True)
class Refusal:
    """A refused statement: SQLSTATE (none through the Data API), Redshift's message, and how we classify it."""

    code: str
    text: str
    kind: str
    canceled: bool = False

    def __str__(self) -> str:
        return f"refused{f' ({self.code})' if self.code else ''}: {self.text}"

    def says(self, words: str) -> bool:
        return re.search(words, self.text, re.IGNORECASE) is not None

    def as_json(self) -> dict[str, Any]:
        return {"sqlstate": self.code or None, "text": self.text, "read_as": self.kind}


def refusal(failed: Failed) -> Refusal:
    """A failure as a refusal; re-raised if it ended the session, since Redshift then gave no answer."""
    if failed.lost:
        raise failed
    return Refusal(
        failed.code, failed.said or failed.error.message, type(failed.error).__name__, failed.canceled
    )


def tried(session: RedshiftSession, sql: str, seconds: float = 60.0) -> list[Row] | Refusal:
    """Run a statement on its own: its rows, or why it was refused."""
    try:
        return session.query(sql, seconds=seconds)
    except Failed as failed:
        return refusal(failed)


def taken(answer: list[Row] | Refusal) -> Answer:
    """The answer for a statement that we assume Redshift accepts."""
    if isinstance(answer, Refusal):
        return Answer(False, str(answer), answer.as_json())
    return Answer(True, "accepted" if not answer else f"accepted: {_row(answer)}")


def refused(answer: list[Row] | Refusal, words: str = "", code: str = "") -> Answer:
    """The answer for a statement that we assume Redshift refuses, with these words or this SQLSTATE."""
    if not isinstance(answer, Refusal):
        return Answer(False, "accepted" if not answer else f"accepted: {_row(answer)}")
    known = (
        (not words and not code)
        or (bool(words) and answer.says(words))
        or (bool(code) and answer.code == code)
    )
    return Answer(known, str(answer), answer.as_json())


def _row(rows: list[Row]) -> str:
    return ", ".join(str(cell)[:120] for cell in rows[0])
