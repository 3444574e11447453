"""A client that dies in the middle: what becomes of its transaction, and how long its lock stays."""

from __future__ import annotations

import time
from contextlib import suppress

import pyarrow as pa

from floodmark.doctor.live.place import Aside, Live
from floodmark.doctor.live.probe import Answer, Probe, Unknown
from floodmark.warehouse.redshift_steps import Failed, Lock, Session

_GROUP = "deaths"
_ROWS = 200_000


def _begun(live: Live, session: Session, name: str) -> None:
    """A transaction that holds its lock, as a load's does."""
    session.execute(f"CREATE TABLE {live.path(f'{name}_lock')} (nothing SMALLINT)")
    session.execute(f"CREATE TABLE {live.path(name)} (id BIGINT)")
    session.query("BEGIN")
    session.query(f"LOCK TABLE {live.path(f'{name}_lock')}", seconds=live.scale.lock)


def _settled(live: Live, name: str) -> tuple[int, float]:
    """The rows that another session finds once it has the lock, and how long it waited for that."""
    began = time.monotonic()
    with live.session() as other:
        question = f"SELECT count(*) FROM {live.path(name)}"
        rows = other.query(question, Lock(live.path(f"{name}_lock"), live.scale.lock))[0][0]
    return int(rows), time.monotonic() - began


def _in_copy(live: Live) -> Answer:
    table = pa.table({"id": pa.array(range(_ROWS), pa.int64())})
    manifest = live.manifest(*(live.put(table).entry() for _ in range(2)))
    with live.session() as dying:
        _begun(live, dying, "dies_in_copy")
        copying = Aside(
            lambda: dying.query(live.copy("dies_in_copy", manifest), seconds=live.scale.statement)
        )
        if not copying.waits(live.scale.wait / 6):
            copying.result(0)
            with suppress(Failed):
                dying.query("ROLLBACK")
            raise Unknown("COPY was over before the socket could be cut")
        live.cut(dying)
        rows, seconds = _settled(live, "dies_in_copy")
    return Answer(
        rows == 0,
        f"{rows} rows; the lock was free after {seconds:.1f} s",
        {"lock_seconds": round(seconds, 2)},
    )


def _in_commit(live: Live) -> Answer:
    with live.session() as dying:
        _begun(live, dying, "dies_in_commit")
        dying.query(f"INSERT INTO {live.path('dies_in_commit')} VALUES (1)")
        committing = Aside(lambda: dying.query("COMMIT"))
        answered = not committing.waits(0.0)
        live.cut(dying)
        first, seconds = _settled(live, "dies_in_commit")
        with suppress(Failed, Unknown):
            committing.result(5)
        time.sleep(min(1.0, live.scale.wait))
        second, _ = _settled(live, "dies_in_commit")
    said = "committed" if first else "rolled back"
    how = "after its answer" if answered else "before its answer"
    return Answer(
        first == second,
        f"cut {how}: {said}, and it stays so; the lock was free after {seconds:.1f} s"
        if first == second
        else f"{first} rows under the lock, and {second} later",
        {"lock_seconds": round(seconds, 2), "committed": bool(first)},
    )


def _idle(live: Live) -> Answer:
    with live.session() as dying:
        _begun(live, dying, "dies_idle")
        dying.query(f"INSERT INTO {live.path('dies_idle')} VALUES (1)")
        live.cut(dying)
        rows, seconds = _settled(live, "dies_idle")
    return Answer(
        rows == 0,
        f"{rows} rows; the lock was free after {seconds:.1f} s",
        {"lock_seconds": round(seconds, 2)},
    )


def _ended(live: Live) -> Answer:
    """What we do with a dead session of our own: pg_terminate_backend."""
    with live.session() as dying, live.session() as other:
        _begun(live, dying, "is_ended")
        began = time.monotonic()
        other.query(f"SELECT pg_terminate_backend({int(dying.pid or 0)})")
        _settled(live, "is_ended")
        seconds = time.monotonic() - began
    return Answer(True, f"the lock was free after {seconds:.1f} s", {"lock_seconds": round(seconds, 2)})


_FREE = "0 rows: rolled back, and the lock is free soon"

PROBES = (
    Probe(_GROUP, "in COPY", "What becomes of a load whose client dies in mid-COPY?", _FREE, _in_copy),
    Probe(
        _GROUP,
        "in COMMIT",
        "What becomes of a load whose client dies in mid-COMMIT?",
        "committed or rolled back; who has the lock next sees which, and it stays so",
        _in_commit,
    ),
    Probe(
        _GROUP,
        "idle",
        "What becomes of a transaction whose client dies between statements?",
        _FREE,
        _idle,
    ),
    Probe(
        _GROUP,
        "ended",
        "Does pg_terminate_backend free the lock of a session of the same user?",
        "the lock is free soon",
        _ended,
    ),
)
