"""Every statement that we ever send, each once and with its plan: our own loads, resets and queries in a new schema."""

from __future__ import annotations

from dataclasses import replace

from floodmark.model.errors import TransientError
from floodmark.services.warehouse.redshift.facts import look
from floodmark.services.warehouse.redshift.lock import Locked
from floodmark.services.warehouse.redshift.warehouse import Redshift
from floodmark.setup.doctor.live.explain import Explaining, Notes, Sent
from floodmark.setup.doctor.live.loads import ORDERS, Log, named
from floodmark.setup.doctor.live.place import Live
from floodmark.setup.doctor.live.probe import Answer, Probe, Unknown
from floodmark.setup.doctor.live.ways import ROWS, WAYS, orders

_GROUP = "statements"


def sent(live: Live) -> Notes:
    """Everything that `WAYS` sends, over the socket."""
    notes = Notes()
    transport = Explaining(live.way("socket"), notes, live.scale.statement)
    for way in WAYS:
        way(live, transport)
    return notes


def _all(live: Live) -> list[Sent]:
    return list(live.once("every statement", lambda: sent(live)).kinds().values())


def _taken(live: Live) -> Answer:
    statements = _all(live)
    with live.session() as session:
        left = {name: live.count(session, name) for name in ROWS}
    wrong = [f"{name} has {left[name]} rows of {rows}" for name, rows in ROWS.items() if left[name] != rows]
    return Answer(
        not wrong,
        "; ".join([f"{len(statements)} different statements, {sum(left.values())} rows at the end", *wrong]),
        {"statements": [one.as_json() for one in statements]},
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
    """Small tables say little about data movement; the timed merge says more."""
    plans = _explained(live)
    moved = [{"moves": list(sent.moves), "sql": sent.sql[:200]} for sent in plans if sent.moves]
    both = [one for one in moved if "DS_DIST_BOTH" in one["moves"] or "DS_DIST_ALL_INNER" in one["moves"]]
    return Answer(
        not both,
        f"{len(moved)} of {len(plans)} plans move rows, {len(both)} on both sides of a join",
        {"statements": moved},
    )


def _asked(live: Live) -> Answer:
    """The queries of `doctor`, with every refusal reported; `doctor` itself treats a refusal as "not known"."""
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
    """A load that does not learn whether its COMMIT succeeded."""
    log = Log(live, named(ORDERS, "unanswered"))
    log.transport = Explaining(live.way("socket"), notes := Notes(), live.scale.statement, lost=1)
    log.load(log.commit(orders(1, 2)))
    rows = live.warehouse().rows("unanswered")
    commits = sum(sent.sql == "COMMIT" for sent in notes.sent)
    return Answer(rows == 2 and commits == 1, f"{rows} rows of 2, by {commits} COMMIT")


def _kept_lock(live: Live) -> Answer:
    """A load into a target whose lock another session holds: the error must name the holder."""
    log = Log(live, named(ORDERS, "kept_locked"))
    log.transport = Explaining(live.way("socket"), notes := Notes(), live.scale.statement)
    log.load(log.commit(orders(1)))
    lock = next(sent.sql for sent in notes.sent if sent.sql.startswith("LOCK TABLE"))
    patience = replace(live.limits, lock=live.scale.wait, attempts=2)
    waiting = Redshift(live.way("socket"), live.schema, iam_role=live.spec.iam_role, limits=patience)
    with live.session() as holder:
        holder.query("BEGIN")
        holder.query(lock)
        try:
            waiting.load(log.request(log.commit(orders(2))))
        except TransientError as error:
            told = isinstance(error, Locked) and holder.pid in error.pids
            return Answer(told, f"{error.message}{f'; {error.hint}' if error.hint else ''}")
        finally:
            holder.query("ROLLBACK")
    return Answer(False, "the load did not wait for the lock")


def _repeated(live: Live) -> Answer:
    """A load whose commits are already in the ledger."""
    table = named(ORDERS, "again")
    log = Log(live, table, live.way(live.first))
    commit = log.commit(orders(1, 2))
    log.load(commit)
    second = log.load(commit)
    return Answer(
        second.already == (1,) and not second.loaded, f"loaded {len(second.loaded)} of 1 the second time"
    )


PROBES = (
    Probe(
        _GROUP,
        "taken",
        "Is every statement of a load, a reset or a comparison accepted?",
        "all of them, with the right rows at the end",
        _taken,
    ),
    Probe(_GROUP, "nested loops", "Does a plan have a nested loop?", "none", _nested),
    Probe(
        _GROUP,
        "moved rows",
        "Which plans move rows between nodes?",
        "none on both sides of a join",
        _moved,
    ),
    Probe(_GROUP, "doctor", "Is every query of `doctor` accepted?", "0 refused", _asked),
    Probe(
        _GROUP,
        "lost COMMIT",
        "Is a load whose COMMIT got no answer loaded once?",
        "2 rows of 2, by 1 COMMIT",
        _lost_commit,
    ),
    Probe(
        _GROUP,
        "kept lock",
        "Does the error name a session of the same user that keeps a target locked?",
        "another load keeps it locked, with the session's number",
        _kept_lock,
    ),
    Probe(
        _GROUP,
        "repeated",
        "Is a repeated load loaded once?",
        "loaded 0 of 1 the second time",
        _repeated,
    ),
)
