"""Our own loads with the plan of every statement: sessions that run EXPLAIN before each statement they send.

A statement is explained inside its transaction, because the staging tables exist only there. If Redshift refuses the
EXPLAIN, the transaction starts over without it for that statement.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from floodmark.model.errors import TransientError
from floodmark.services.warehouse.redshift.steps import (
    Check,
    Choose,
    Do,
    Failed,
    Lock,
    Outcome,
    RedshiftSession,
    Row,
    Step,
    Transport,
)
from floodmark.setup.doctor.live.place import SCHEMA

_EXPLAINED = re.compile(
    r"(SELECT|INSERT|DELETE|UPDATE|CREATE (TEMP )?TABLE .*? AS SELECT)\b", re.IGNORECASE | re.DOTALL
)
# Rows travel between nodes; with DS_DIST_NONE and DS_DIST_ALL_NONE none do.
_MOVED = re.compile(r"\bDS_(BCAST_INNER|DIST_(?!NONE|ALL_NONE)\w+)")
# Plans that run on the leader node alone, such as catalog queries, have no XN; their row counts don't matter.
_NESTED = re.compile(r"\bXN Nested Loop\b")
_TABLES = re.compile(rf'"{SCHEMA}\w+"\."(\w+)"')


def has_plan(sql: str) -> bool:
    """Whether EXPLAIN accepts it."""
    return _EXPLAINED.match(sql) is not None


@dataclass(frozen=True)
class Sent:
    """A statement as it was sent, with its plan where it has one."""

    sql: str
    plan: tuple[str, ...] = ()
    unexplained: str = ""
    seconds: float = 0.0

    @property
    def moves(self) -> tuple[str, ...]:
        return tuple(sorted({found[0] for line in self.plan for found in _MOVED.finditer(line)}))

    @property
    def distributed(self) -> bool:
        """Whether the plan runs on the compute nodes."""
        return any("XN " in line for line in self.plan)

    @property
    def nested(self) -> bool:
        return any(_NESTED.search(line) for line in self.plan)

    def as_json(self) -> dict[str, Any]:
        said: dict[str, Any] = {"sql": self.sql[:600], "seconds": round(self.seconds, 3)}
        if self.plan:
            said |= {
                "moves": list(self.moves),
                "nested_loop": self.nested,
                "plan": [line[:300] for line in self.plan[:40]],
            }
        return said | ({"unexplained": self.unexplained} if self.unexplained else {})


@dataclass
class Notes:
    """Everything that was sent."""

    sent: list[Sent] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)  # statements that can't be explained, and why
    failed: list[tuple[str, str]] = field(default_factory=list)  # those that were refused, and why

    def kinds(self) -> dict[str, Sent]:
        """One statement of each shape, ignoring table names and values."""
        return {_shape(sent.sql): sent for sent in self.sent}


def _shape(sql: str) -> str:
    for name in set(_TABLES.findall(sql)):
        sql = sql.replace(f'"{name}"', '"?"')
    return re.sub(r"\s+", " ", re.sub(r"'(?:[^']|'')*'|\b\d+\b", "?", sql))


class Unexplained(Exception):
    """EXPLAIN was refused, which aborted the transaction."""


class Explaining:
    """A transport whose sessions record what they send; it drops the answers to the first `lost` COMMITs."""

    def __init__(self, transport: Transport, notes: Notes, seconds: float, lost: int = 0) -> None:
        self._transport = transport
        self._notes = notes
        self._seconds = seconds
        self._lost = [TransientError("the answer to COMMIT was lost, on purpose")] * lost
        self.longest = transport.longest

    def open(self, label: str = "") -> RedshiftSession:
        return _Session(self._transport.open(label), self._notes, self._seconds, self._lost)


class _Session:
    """A session over a socket: BEGIN, LOCK, the steps and COMMIT, each explained and recorded."""

    def __init__(
        self, session: RedshiftSession, notes: Notes, seconds: float, lost: list[TransientError]
    ) -> None:
        self._session = session
        self._notes = notes
        self._seconds = seconds
        self._lost = lost

    @property
    def pid(self) -> int | None:
        return self._session.pid

    @pid.setter
    def pid(self, pid: int | None) -> None:
        self._session.pid = pid

    def query(
        self, sql: str, lock: Lock | None = None, *, seconds: float | None = None, waits: float | None = None
    ) -> list[Row]:
        if lock is not None:
            self._notes.sent.append(Sent(sql))
            return self._session.query(sql, lock, seconds=seconds)
        try:
            return self._run(sql)
        except Unexplained:  # outside a transaction: nothing to start over
            return self._run(sql)

    def execute(self, sql: str, *, seconds: float | None = None) -> None:
        began = time.monotonic()
        self._session.execute(sql, seconds=seconds)
        self._notes.sent.append(Sent(sql, seconds=time.monotonic() - began))

    def close(self) -> None:
        self._session.close()

    def transaction(self, lock: Lock, steps: Sequence[Step]) -> Outcome:
        while True:
            noted, waiting = len(self._notes.sent), True
            try:
                self._session.query("BEGIN", seconds=lock.seconds)
                self._run(f"LOCK TABLE {lock.table}")
                waiting = False
                self._session.query("SELECT pg_backend_pid()", seconds=self._seconds)
                self._steps(steps)
                self._run("COMMIT")
                return Outcome("unknown", self._lost.pop(), lost=True) if self._lost else Outcome("committed")
            except Unexplained:
                del self._notes.sent[noted:]
                self._session.query("ROLLBACK")
            except Failed as failed:
                if not failed.lost:
                    self._session.query("ROLLBACK")
                locked = waiting and failed.canceled
                return Outcome("rolled back", failed.error, failed.again, locked=locked, lost=failed.lost)

    def _steps(self, steps: Sequence[Step]) -> None:
        for step in steps:
            match step:
                case Do():
                    self._run(step.sql)
                case Check():
                    found = self._run(step.sql)
                    if not found or found[0][0] != step.want:
                        raise Failed(step.error(found[0][0] if found else None), again=step.again)
                case Choose():
                    found = self._run(step.sql)
                    hoped = bool(found) and found[0][0] == step.want
                    self._steps(step.then if hoped else step.otherwise())
                case _:
                    raise Failed(TransientError(f"this probe does not know the step {type(step).__name__}"))

    def _run(self, sql: str) -> list[Row]:
        plan: tuple[str, ...] = ()
        if has_plan(sql) and _shape(sql) not in self._notes.refused:
            try:
                plan = tuple(str(row[0]) for row in self._session.query(f"EXPLAIN {sql}"))
            except Failed as failed:
                if failed.lost:
                    raise
                self._notes.refused[_shape(sql)] = failed.error.message
                raise Unexplained from failed
        began = time.monotonic()
        try:
            rows = self._session.query(sql)
        except Failed as failed:
            self._notes.failed.append((sql, failed.error.message))
            raise
        why = self._notes.refused.get(_shape(sql), "")
        self._notes.sent.append(Sent(sql, plan, why, time.monotonic() - began))
        return rows
