"""Every statement that we ever send, once and with its plan: our own loads, resets and questions in a new schema."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from floodmark.compared import Scope, Span, forms
from floodmark.doctor.live.explain import Explaining, Notes, Sent
from floodmark.doctor.live.loads import CODES, EVENTS, NAME, NUMBER, ORDERS, Log
from floodmark.doctor.live.place import Live
from floodmark.doctor.live.probe import Answer, Probe, Unknown
from floodmark.errors import TransientError
from floodmark.model import Column
from floodmark.warehouse import Part
from floodmark.warehouse.canonical import digests, entries, grouped, rows
from floodmark.warehouse.redshift import Redshift
from floodmark.warehouse.redshift_facts import look

_GROUP = "statements"
_T = 1_735_689_600_000_000  # 2025-01-01, in microseconds


def _orders(*ids: int, name: str = "a", at: int = 0) -> dict[str, list[Any]]:
    return {"id": list(ids), "name": [name] * len(ids), "update_at": [_T + at] * len(ids)}


def _codes(*codes: str) -> dict[str, list[Any]]:
    keys = [code.upper().encode() for code in codes]
    return {
        "code": list(codes),
        "n": [1] * len(codes),
        "update_at": [_T] * len(codes),
        "_floodmark_key": keys,
    }


def _merges(log: Log) -> None:
    """One after the other: into a new table, over what is there, several commits at once, taken back."""
    log.load(log.commit(_orders(1, 2, 3)))
    log.load(log.commit(_orders(2, 4, name="b", at=1)))
    log.load(log.commit(_orders(5)), log.commit(_orders(5, name="later", at=2)))
    log.load(*(log.commit(_orders(6, name=name), read=99) for name in ("one", "two")))
    early, late = log.commit(_orders(1, name="early")), log.commit(_orders(1, name="late"))
    log.load(late)
    log.load(early, late, retake=frozenset({(late[0].n, late[1])}))


def _deletes(log: Log) -> None:
    log.load(log.commit({"id": [4]}, "delete"))
    log.load(log.commit({"id": [3]}, "mark"))


def _wider(log: Log) -> None:
    """Columns that came, and that became wider."""
    wide = replace(
        log.table,
        columns=(
            log.table.columns[0],
            replace(NAME, characters=99, octets=396, type="varchar(99)"),
            log.table.columns[2],
            replace(NUMBER, type="bigint(20)", data_type="bigint"),
            Column("doc", "json", "json"),
        ),
    )
    later = replace_table(log, wide)
    later.load(later.commit({**_orders(7), "n": [1], "doc": ["{}"]}))


def replace_table(log: Log, table: Any) -> Log:
    """The same log, whose table has changed."""
    return Log(log.live, table, log.transport, log.n)


def _others(live: Live, transport: Any) -> None:
    """Keys with weights, tables without a key, copies of a whole table."""
    codes = Log(live, CODES, transport)
    codes.load(codes.commit(_codes("a", "b")))
    codes.load(codes.commit(_codes("A", "c")))
    codes.load(codes.commit({"code": ["B"], "_floodmark_key": [b"B"]}, "delete"))
    codes.load(codes.commit({"code": ["c"], "_floodmark_key": [b"C"]}, "mark"))
    events = Log(live, EVENTS, transport)
    events.load(events.commit({"n": [1, 2], "name": ["a", "b"]}, "insert"))
    whole = Log(live, replace(EVENTS, mode="full", table="copies", target="copies"), transport)
    for n in (1, 2):
        whole.load(whole.commit({"n": [n], "name": ["a"]}, "replace"))


def _questions(live: Live, transport: Any) -> None:
    """What `verify`, `plan` and a reset ask."""
    warehouse = live.warehouse(transport)
    for table in (ORDERS, CODES):
        scope = Scope(table, forms(table, redshift=True))
        key = [["1" if table is ORDERS else "a"]]
        for words in (
            partial(digests, scope=scope, spans=[Span()]),
            partial(grouped, scope=scope, digits=2),
            partial(entries, scope=scope, spans=[Span()]),
            partial(rows, scope=scope, keys=key),
        ):
            warehouse.ask(table.target, words)
    warehouse.changes(ORDERS)
    warehouse.rows("orders")
    log = "log-orders"
    warehouse.ledger(log, "orders")
    warehouse.ledger(log, "orders", Part(0, 3, superseded=1, cleaned=((0, 1),)))
    warehouse.set_epoch("live", log, ORDERS.name, "orders", 99)


def _sent(live: Live) -> Notes:
    """Everything, by socket."""
    notes = Notes()
    transport = Explaining(live.way("socket"), notes, live.scale.statement)
    orders = Log(live, ORDERS, transport)
    _merges(orders)
    _deletes(orders)
    _wider(orders)
    _others(live, transport)
    _questions(live, transport)
    return notes


def _all(live: Live) -> list[Sent]:
    return list(live.once("every statement", lambda: _sent(live)).kinds().values())


def _taken(live: Live) -> Answer:
    sent = _all(live)
    with live.session() as session:
        left = live.count(session, "orders")
    return Answer(
        left == 6,  # 1, 2, 3 (marked), 5, 6, 7
        f"{len(sent)} different statements, {left} rows in the end",
        {"statements": [one.as_json() for one in sent]},
    )


def _explained(live: Live) -> list[Sent]:
    found = [sent for sent in _all(live) if sent.distributed]
    if not found:
        plans = any(sent.plan for sent in _all(live))
        why = next((sent.unexplained for sent in _all(live) if sent.unexplained), "nothing was explained")
        raise Unknown("these are not Redshift's plans" if plans else why)
    return found


def _nested(live: Live) -> Answer:
    plans = _explained(live)
    nested = [sent.sql[:200] for sent in plans if sent.nested]
    return Answer(
        not nested, f"{len(nested)} of {len(plans)} plans have a nested loop", {"statements": nested}
    )


def _moved(live: Live) -> Answer:
    """Small tables say little of what moves; the timed merge says more."""
    plans = _explained(live)
    moved = [{"moves": list(sent.moves), "sql": sent.sql[:200]} for sent in plans if sent.moves]
    both = [one for one in moved if "DS_DIST_BOTH" in one["moves"] or "DS_DIST_ALL_INNER" in one["moves"]]
    return Answer(
        not both,
        f"{len(moved)} of {len(plans)} plans move rows, {len(both)} of both sides",
        {"statements": moved},
    )


def _asked(live: Live) -> Answer:
    """What `doctor` asks, where each refusal is told; by itself it takes one for "not known"."""
    notes = Notes()
    transport = Explaining(live.way("socket"), notes, live.scale.statement)
    look(transport, live.schema, ["orders"], live.spec.iam_role)
    refused = [{"sql": sql[:300], "text": why} for sql, why in notes.failed]
    return Answer(
        not refused,
        f"{len(refused)} of {len(notes.sent) + len(refused)} refused"
        + "".join(f"; {one['text']}" for one in refused),
        {"refused": refused},
    )


def _lost_commit(live: Live) -> Answer:
    """A load that does not learn whether it was committed."""
    log = Log(live, replace(ORDERS, table="unanswered", target="unanswered"))
    log.transport = Explaining(live.way("socket"), notes := Notes(), live.scale.statement, lost=1)
    log.load(log.commit(_orders(1, 2)))
    rows = live.warehouse().rows("unanswered")
    commits = sum(sent.sql == "COMMIT" for sent in notes.sent)
    return Answer(rows == 2 and commits == 1, f"{rows} rows of 2, by {commits} COMMIT")


def _kept_lock(live: Live) -> Answer:
    """A load of a target whose lock somebody keeps: who is named."""
    log = Log(live, replace(ORDERS, table="kept_locked", target="kept_locked"))
    log.transport = Explaining(live.way("socket"), notes := Notes(), live.scale.statement)
    log.load(log.commit(_orders(1)))
    lock = next(sent.sql for sent in notes.sent if sent.sql.startswith("LOCK TABLE"))
    patience = replace(live.limits, lock=live.scale.wait, attempts=2)
    waiting = Redshift(live.way("socket"), live.schema, iam_role=live.spec.iam_role, limits=patience)
    with live.session() as holder:
        holder.query("BEGIN")
        holder.query(lock)
        try:
            waiting.load(log.request(log.commit(_orders(2))))
        except TransientError as error:
            named = str(holder.pid) in error.message
            return Answer(named, f"{error.message}{f'; {error.hint}' if error.hint else ''}")
        finally:
            holder.query("ROLLBACK")
    return Answer(False, "the load did not wait for the lock")


def _repeated(live: Live) -> Answer:
    """A load whose commits are in the ledger already."""
    table = replace(ORDERS, table="again", target="again")
    log = Log(live, table, live.way(live.first))
    commit = log.commit(_orders(1, 2))
    log.load(commit)
    second = log.load(commit)
    return Answer(
        second.already == (1,) and not second.loaded, f"loaded {len(second.loaded)} of 1 the second time"
    )


PROBES = (
    Probe(
        _GROUP,
        "taken",
        "Is every statement taken that a load, a reset or a comparison sends?",
        "all of them, with the right rows in the end",
        _taken,
    ),
    Probe(_GROUP, "nested loops", "Does a plan have a nested loop?", "none", _nested),
    Probe(
        _GROUP,
        "moved rows",
        "Which plans send rows from node to node?",
        "none of both sides of a join",
        _moved,
    ),
    Probe(_GROUP, "doctor", "Is every question taken that `doctor` asks?", "0 refused", _asked),
    Probe(
        _GROUP,
        "lost COMMIT",
        "Is a load whose COMMIT was not answered loaded once?",
        "2 rows of 2, by 1 COMMIT",
        _lost_commit,
    ),
    Probe(
        _GROUP,
        "kept lock",
        "Is a session of the same user named that keeps a target locked?",
        "another load keeps it locked, with the session's number",
        _kept_lock,
    ),
    Probe(
        _GROUP,
        "repeated",
        "Is a load that is repeated loaded once?",
        "loaded 0 of 1 the second time",
        _repeated,
    ),
)
