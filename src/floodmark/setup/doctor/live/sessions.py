"""Two sessions at once: what a lock blocks, what the waiting session then sees, and what a second user can see."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from floodmark.services.warehouse.redshift.names import literal
from floodmark.services.warehouse.redshift.steps import Failed, RedshiftSession
from floodmark.setup.doctor.live.identity import isolation
from floodmark.setup.doctor.live.loads import ORDERS, Log, named
from floodmark.setup.doctor.live.place import Aside, Live
from floodmark.setup.doctor.live.probe import Answer, Probe, Refusal, Unknown, refusal, tried

_GROUP = "sessions"


def _tables(live: Live) -> None:
    """Create a table to lock and a ledger, once."""

    def make() -> bool:
        with live.session(live.first) as session:
            session.execute(f"CREATE TABLE {live.path('lock')} (nothing SMALLINT)")
            session.execute(f"CREATE TABLE {live.path('ledger')} (n BIGINT)")
        return True

    live.once("tables to lock", make)


@contextmanager
def _two(live: Live) -> Iterator[tuple[RedshiftSession, RedshiftSession]]:
    """Two sessions; open transactions are rolled back."""
    _tables(live)
    with live.session() as one, live.session() as other:
        yield one, other


def _waiter_sees(live: Live) -> Answer:
    with _two(live) as (one, other):
        before = live.count(one, "ledger")
        one.query("BEGIN")
        one.query(f"LOCK TABLE {live.path('lock')}")
        one.query(f"INSERT INTO {live.path('ledger')} VALUES (1)")
        other.query("BEGIN", seconds=live.scale.lock)
        waiting = Aside(lambda: other.query(f"LOCK TABLE {live.path('lock')}"))
        waited = waiting.waits(live.scale.wait)
        one.query("COMMIT")
        waiting.result(live.scale.lock)
        after = live.count(other, "ledger")
        other.query("ROLLBACK")
    seen = "sees" if after == before + 1 else "does not see"
    return Answer(
        waited and after == before + 1,
        f"the second session {'waits' if waited else 'does not wait'}, then {seen} the first one's row",
    )


def _timed(live: Live, statement: str) -> Answer:
    """A statement with a statement_timeout that runs into a held lock."""
    with _two(live) as (one, other):
        one.query("BEGIN")
        one.query(f"LOCK TABLE {live.path('lock')}")
        began = time.monotonic()
        other.query("BEGIN")
        waiting = Aside(lambda: tried(other, statement, live.scale.wait))
        try:
            found = waiting.result(live.scale.wait * 5 + 10)
        except Unknown:
            return Answer(False, f"still waiting after {time.monotonic() - began:.1f} s")
        finally:
            one.query("ROLLBACK")
        if not isinstance(found, Refusal):
            return Answer(False, "it does not wait")
        other.query("ROLLBACK")
    said = f"{found} after {waiting.seconds:.1f} s with a timeout of {live.scale.wait:g} s"
    return Answer(found.canceled and found.code in ("57014", ""), said, found.as_json())


def _lock_times_out(live: Live) -> Answer:
    return _timed(live, f"LOCK TABLE {live.path('lock')}")


def _lock_blocks_readers(live: Live) -> Answer:
    return _timed(live, f"SELECT count(*) FROM {live.path('lock')}")


def _skew(live: Live) -> tuple[int, list[Refusal]]:
    """Both sessions read the ledger, then both write to it: how many committed, and why the others did not."""
    committed, refusals = 0, []
    with _two(live) as (one, other):
        for session in (one, other):
            session.query("BEGIN")
            session.query(f"SELECT count(*) FROM {live.path('ledger')}")
        one.query(f"INSERT INTO {live.path('ledger')} VALUES (2)")
        second = Aside(lambda: _written(live, other))
        second.waits(live.scale.wait)
        for ending in (lambda: one.query("COMMIT"), lambda: second.result(live.scale.lock)):
            try:
                ending()
                committed += 1
            except Failed as failed:
                refusals.append(refusal(failed))
        for session in (one, other):
            tried(session, "ROLLBACK")
    return committed, refusals


def _written(live: Live, session: RedshiftSession) -> None:
    session.query(f"INSERT INTO {live.path('ledger')} VALUES (3)", seconds=live.scale.lock)
    session.query("COMMIT")


def _snapshot_skew(live: Live) -> Answer:
    if isolation(live) != "SNAPSHOT":
        raise Unknown("the database is SERIALIZABLE")
    committed, refusals = _skew(live)
    return Answer(committed == 2, f"{committed} of 2 committed" + "".join(f"; {r}" for r in refusals))


def _serializable_conflict(live: Live) -> Answer:
    if isolation(live) != "SERIALIZABLE":
        raise Unknown("the database has SNAPSHOT isolation")
    committed, refusals = _skew(live)
    known = committed == 1 and refusals[0].says(r"^1023\b|serializable isolation violation")
    return Answer(known, f"{committed} of 2 committed" + "".join(f"; {r}" for r in refusals))


def _two_loads(live: Live) -> Answer:
    """Two targets, loaded by our own code at the same time."""
    logs = [Log(live, named(ORDERS, name), live.way("socket")) for name in ("left", "right")]
    loads: list[Aside] = []
    for log in logs:
        commit = log.commit({"id": [1, 2], "name": ["a", "b"]})
        loads.append(Aside(lambda log=log, commit=commit: log.load(commit)))  # type: ignore[misc]
    rows = [load.result(live.scale.lock * 3).rows for load in loads]
    seconds = ", ".join(f"{load.seconds:.1f} s" for load in loads)
    return Answer(rows == [2, 2], f"both committed, in {seconds}")


def _own_lock_shown(live: Live) -> Answer:
    with _two(live) as (one, other):
        one.query("BEGIN")
        one.query(f"LOCK TABLE {live.path('lock')}")
        shown = _shown(live, other, one.pid)
        one.query("ROLLBACK")
    return Answer(shown, "shown" if shown else "not shown")


def _shown(live: Live, session: RedshiftSession, pid: int | None) -> bool:
    found = tried(session, f"SELECT count(*) FROM svv_transactions WHERE pid = {int(pid or 0)}")
    if isinstance(found, Refusal):
        raise Unknown(str(found))
    return int(found[0][0]) > 0


def _history(live: Live) -> Answer:
    """How long it takes for one of our statements to appear in the query history."""
    label = f"{live.schema} history"
    with live.session(label=label) as one, live.session() as other:
        one.query("BEGIN")
        one.query("SELECT 1")
        one.query("COMMIT")
        began = time.monotonic()
        while time.monotonic() - began < 30:
            found = tried(
                other,
                "SELECT trim(query_type), trim(query_text) FROM sys_query_history "
                f"WHERE query_label = {literal(label)} AND session_id = {int(one.pid or 0)}",
            )
            if isinstance(found, Refusal):
                raise Unknown(str(found))
            if found:
                commit = any(str(text).upper().startswith("COMMIT") for _, text in found)
                said = f"after {time.monotonic() - began:.1f} s; COMMIT is {'' if commit else 'not '}in it"
                return Answer(True, said, {"rows": [[str(a), str(b)[:80]] for a, b in found]})
            time.sleep(0.5)
    return Answer(False, "not within 30 s")


# ---------------------------------------------------------------- a second user


def _second(ask: Callable[[Live, RedshiftSession, RedshiftSession], Answer]) -> Callable[[Live], Answer]:
    def asked(live: Live) -> Answer:
        if live.second is None:
            raise Unknown("there is no second user: pass one with --second-url")
        _tables(live)
        with live.session() as one, live.opened(live.second) as other:
            return ask(live, one, other)

    return asked


def _stranger_lock(live: Live, one: RedshiftSession, other: RedshiftSession) -> Answer:
    one.query("BEGIN")
    one.query(f"LOCK TABLE {live.path('lock')}")
    shown = _shown(live, other, one.pid)
    one.query("ROLLBACK")
    return Answer(not shown, "shown" if shown else "not shown")


def _stranger_columns(live: Live, one: RedshiftSession, other: RedshiftSession) -> Answer:
    schema = literal(live.schema)
    view = tried(
        other, f"SELECT count(*) FROM svv_columns WHERE table_schema = {schema} AND table_name = 'ledger'"
    )
    catalog = tried(
        other,
        "SELECT count(*) FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n "
        f"ON n.oid = c.relnamespace WHERE n.nspname = {schema} AND c.relname = 'ledger' AND a.attnum > 0",
    )
    if isinstance(view, Refusal) or isinstance(catalog, Refusal):
        raise Unknown(f"{view}; {catalog}")
    seen, known = int(view[0][0]), int(catalog[0][0])
    return Answer((seen, known) == (0, 1), f"svv_columns shows {seen}, pg_attribute {known} of its 1 column")


def _stranger_reads(live: Live, one: RedshiftSession, other: RedshiftSession) -> Answer:
    found = tried(other, f"SELECT count(*) FROM {live.path('ledger')}")
    if not isinstance(found, Refusal):
        return Answer(False, "taken")
    return Answer(found.kind == "NoRights" and found.code in ("42501", ""), str(found), found.as_json())


PROBES = (
    Probe(
        _GROUP,
        "sees after a wait",
        "Does the session that waited for LOCK see the other one's ledger row?",
        "the second session waits, then sees the first one's row",
        _waiter_sees,
    ),
    Probe(
        _GROUP,
        "LOCK times out",
        "Does statement_timeout end a wait for LOCK?",
        "canceled (57014)",
        _lock_times_out,
    ),
    Probe(
        _GROUP,
        "LOCK blocks readers",
        "Does LOCK block a SELECT from the table?",
        "it waits until statement_timeout ends it (57014)",
        _lock_blocks_readers,
    ),
    Probe(
        _GROUP,
        "write skew",
        "Under SNAPSHOT: do two transactions that both read and write a table both commit?",
        "2 of 2 committed",
        _snapshot_skew,
    ),
    Probe(
        _GROUP,
        "1023",
        "Under SERIALIZABLE: is one of two transactions that both read and write a table refused?",
        "1 of 2 committed, the other got 1023",
        _serializable_conflict,
    ),
    Probe(
        _GROUP,
        "two loads",
        "Do loads of two targets commit at the same time?",
        "both committed",
        _two_loads,
    ),
    Probe(
        _GROUP,
        "own locks",
        "Does svv_transactions show another session of the same user?",
        "shown",
        _own_lock_shown,
    ),
    Probe(
        _GROUP,
        "history",
        "How soon does sys_query_history show a statement, and does it show COMMIT?",
        "within 30 s",
        _history,
    ),
    Probe(
        _GROUP,
        "second user: locks",
        "Does svv_transactions show our session to a second user?",
        "not shown without SYSLOG ACCESS UNRESTRICTED",
        _second(_stranger_lock),
    ),
    Probe(
        _GROUP,
        "second user: columns",
        "What does the catalog show about a table on which a second user has no privileges?",
        "svv_columns shows 0, pg_attribute 1 of its 1 column",
        _second(_stranger_columns),
    ),
    Probe(
        _GROUP,
        "second user: reads",
        "Which error does a second user without privileges on a table get when reading it?",
        "permission denied (42501)",
        _second(_stranger_reads),
    ),
)
