"""The Data API: what one batch accepts, how it fails, and that a client token allows only one submission."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import uuid4

from floodmark.services.warehouse.redshift.raw import Requests
from floodmark.services.warehouse.redshift.steps import Failed
from floodmark.setup.doctor.live.loads import ORDERS, Log, named
from floodmark.setup.doctor.live.place import Aside, Live
from floodmark.setup.doctor.live.probe import Answer, Probe, refusal

_GROUP = "Data API"


def _requests(live: Live) -> Requests:
    return Requests(live.way("data_api"))


def _table(live: Live, requests: Requests, name: str) -> str:
    requests.run([f"CREATE TABLE IF NOT EXISTS {live.path(name)} (n BIGINT)"])
    return live.path(name)


def _count(live: Live, name: str) -> int:
    with live.session("data_api") as session:
        return live.count(session, name)


def _said(ended: dict[str, Any]) -> str:
    return f"{ended['Status']}{': ' + ' '.join(str(ended['Error']).split()) if ended.get('Error') else ''}"


def _log_in(live: Live) -> Answer:
    with live.session("data_api") as session:
        user = session.query("SELECT current_user")[0][0]
    return Answer(bool(user), "it answers")


def _settings(live: Live) -> Answer:
    requests = _requests(live)
    table = _table(live, requests, "api_lock")
    ended = requests.run(
        [
            "SET query_group TO 'floodmark live'",
            "SET TIMEZONE TO 'UTC'",
            "SET statement_timeout TO 60000",
            f"LOCK TABLE {table}",
            "SET statement_timeout TO 600000",
            f"INSERT INTO {table} VALUES (1)",
        ]
    )
    return Answer(ended["Status"] == "FINISHED" and _count(live, "api_lock") == 1, _said(ended))


def _division(live: Live) -> Answer:
    requests = _requests(live)
    table = _table(live, requests, "api_division")
    ended = requests.run([f"INSERT INTO {table} VALUES (1)", "SELECT 1 / CASE WHEN 1 = 2 THEN 1 ELSE 0 END"])
    rows = _count(live, "api_division")
    told = "divi" in str(ended.get("Error", "")).lower()
    subs = [sub.get("Status") for sub in ended.get("SubStatements", ())]
    return Answer(
        ended["Status"] == "FAILED" and told and rows == 0 and subs[-1:] == ["FAILED"],
        f"{_said(ended)}; {rows} rows remain",
        {"substatements": subs},
    )


def _statements(number: int) -> Callable[[Live], Answer]:
    def ask(live: Live) -> Answer:
        try:
            ended = _requests(live).run(["SELECT 1"] * number)
        except Failed as failed:
            found = refusal(failed)
            return Answer(number > 40, str(found), found.as_json())
        return Answer(number <= 40 and ended["Status"] == "FINISHED", _said(ended))

    return ask


def _bytes(number: int) -> Callable[[Live], Answer]:
    def ask(live: Live) -> Answer:
        sql = f"SELECT OCTET_LENGTH('{'x' * 50_000}') + OCTET_LENGTH('')"
        sql = sql[:-2] + "y" * (number - len(sql)) + sql[-2:]
        try:
            ended = _requests(live).run([sql])
        except Failed as failed:
            found = refusal(failed)
            return Answer(number > 100_000, str(found), found.as_json())
        return Answer(number <= 100_000 and ended["Status"] == "FINISHED", _said(ended))

    return ask


def _waits(live: Live) -> Answer:
    """A batch whose LOCK waits: the SET before it must not have taken the snapshot."""
    requests = _requests(live)
    table = _table(live, requests, "api_waits")
    with live.session() as holder:
        holder.query("BEGIN")
        holder.query(f"LOCK TABLE {table}")
        holder.query(f"INSERT INTO {table} VALUES (1)")
        seen = f"SELECT 1 / CASE WHEN (SELECT count(*) FROM {table}) = 1 THEN 1 ELSE 0 END"
        batch = ["SET TIMEZONE TO 'UTC'", "SET statement_timeout TO 60000", f"LOCK TABLE {table}", seen]
        waiting = Aside(lambda: requests.run(batch))
        waited = waiting.waits(live.scale.wait)
        holder.query("COMMIT")
        ended = waiting.result(120.0)
    return Answer(
        waited and ended["Status"] == "FINISHED",
        f"it {'waits' if waited else 'does not wait'}: {_said(ended)}",
    )


def _token(live: Live) -> Answer:
    requests = _requests(live)
    table = _table(live, requests, "api_token")
    statements, token = [f"INSERT INTO {table} VALUES (1)", "SELECT 1"], uuid4().hex
    ids = [requests.submit(statements, token) for _ in range(2)]
    for id_ in ids:
        requests.ended(id_, 120.0)
    rows = _count(live, "api_token")
    same = "the same id" if ids[0] == ids[1] else "another id"
    return Answer(ids[0] == ids[1] and rows == 1, f"{same}, {rows} rows")


def _load(live: Live) -> Answer:
    log = Log(live, named(ORDERS, "by_api"), live.way("data_api"))
    log.load(log.commit({"id": [1, 2], "name": ["a", "b"], "update_at": [0, 0]}))
    log.load(log.commit({"id": [2, 3], "name": ["c", "d"], "update_at": [1, 1]}))
    rows = _count(live, "by_api")
    return Answer(rows == 3, f"{rows} rows after merging 2 and 2 rows with one key in common")


def _probe(name: str, question: str, assumed: str, ask: Callable[[Live], Answer]) -> Probe:
    return Probe(_GROUP, name, question, assumed, ask)


PROBES = (
    _probe("log-in", "Does the Data API answer?", "it answers", _log_in),
    _probe("settings", "Does a batch accept SET and LOCK?", "FINISHED", _settings),
    _probe(
        "sees after a wait",
        "Does a batch that waited for LOCK see what was committed meanwhile?",
        "it waits: FINISHED",
        _waits,
    ),
    _probe(
        "division",
        "Does a division by zero undo the whole batch?",
        "FAILED, divide by zero; 0 rows remain",
        _division,
    ),
    _probe("40 statements", "Does a batch accept 40 statements?", "FINISHED", _statements(40)),
    _probe("41 statements", "Does a batch accept 41 statements?", "refused", _statements(41)),
    _probe("99 kB", "Does it accept a statement of 99,000 bytes?", "FINISHED", _bytes(99_000)),
    _probe("101 kB", "Does it accept a statement of 101,000 bytes?", "refused", _bytes(101_000)),
    _probe(
        "token",
        "Does a batch that is submitted twice with one token run once?",
        "the same id, 1 rows",
        _token,
    ),
    _probe("load", "Do our own loads work through it?", "3 rows", _load),
)
