"""A client that dies in the middle: what happens to its transaction, and how long its lock stays."""

from __future__ import annotations

import time
from contextlib import suppress

import pyarrow as pa

from floodmark.services.warehouse.redshift.steps import Failed, Lock, RedshiftSession
from floodmark.setup.doctor.live.place import Aside, Live
from floodmark.setup.doctor.live.probe import Answer, Probe, Unknown

_GROUP = "deaths"
_ROWS = 200_000


def _begun(live: Live, session: RedshiftSession, name: str) -> None:
    """Begin a transaction that holds its lock, as a load does."""
    session.execute(f"CREATE TABLE {live.path(f'{name}_lock')} (nothing SMALLINT)")
    session.execute(f"CREATE TABLE {live.path(name)} (id BIGINT)")
    session.query("BEGIN")
    session.query(f"LOCK TABLE {live.path(f'{name}_lock')}", seconds=live.scale.lock)


def _rows_after_lock(live: Live, name: str) -> tuple[int, float]:
    """The rows that another session finds once it has the lock, and how long it waited."""
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
            raise Unknown("COPY finished before the socket could be cut")
        live.cut(dying)
        return _rolled_back(*_rows_after_lock(live, "dies_in_copy"))


def _rolled_back(rows: int, seconds: float) -> Answer:
    return Answer(
        rows == 0,
        f"{rows} rows; the lock was free after {seconds:.1f} s",
        {"lock_seconds": round(seconds, 2)},
    )


def _in_commit(live: Live) -> Answer:
    """The socket closes with COMMIT in flight: what the next session sees under the lock must be final."""
    with live.session() as dying:
        _begun(live, dying, "dies_in_commit")
        dying.query(f"INSERT INTO {live.path('dies_in_commit')} VALUES (1)")
        live.cut(dying, committing=True)
        first, seconds = _rows_after_lock(live, "dies_in_commit")
        time.sleep(min(1.0, live.scale.wait))
        second, _ = _rows_after_lock(live, "dies_in_commit")
    said = "committed" if first else "rolled back"
    return Answer(
        first == second,
        f"{said}, and that did not change; the lock was free after {seconds:.1f} s"
        if first == second
        else f"{first} rows under the lock, but {second} later",
        {"lock_seconds": round(seconds, 2), "committed": bool(first)},
    )


def _idle(live: Live) -> Answer:
    with live.session() as dying:
        _begun(live, dying, "dies_idle")
        dying.query(f"INSERT INTO {live.path('dies_idle')} VALUES (1)")
        live.cut(dying)
        return _rolled_back(*_rows_after_lock(live, "dies_idle"))


def _ended(live: Live) -> Answer:
    """How we end a dead session of ours: pg_terminate_backend."""
    with live.session() as dying, live.session() as other:
        _begun(live, dying, "is_ended")
        began = time.monotonic()
        other.query(f"SELECT pg_terminate_backend({int(dying.pid or 0)})")
        _rows_after_lock(live, "is_ended")
        seconds = time.monotonic() - began
    return Answer(True, f"the lock was free after {seconds:.1f} s", {"lock_seconds": round(seconds, 2)})


_FREE = "0 rows: rolled back, and the lock is soon free"

PROBES = (
    Probe(_GROUP, "in COPY", "What happens to a load whose client dies during COPY?", _FREE, _in_copy),
    Probe(
        _GROUP,
        "in COMMIT",
        "What happens to a load whose client dies during COMMIT?",
        "committed or rolled back; the next holder of the lock sees which, and that does not change",
        _in_commit,
    ),
    Probe(
        _GROUP,
        "idle",
        "What happens to a transaction whose client dies between statements?",
        _FREE,
        _idle,
    ),
    Probe(
        _GROUP,
        "ended",
        "Does pg_terminate_backend release the lock of another session of the same user?",
        "the lock is soon free",
        _ended,
    ),
)
