"""Alerts: judges tables, notifies receivers of changes, and records in the store who was notified of what.

One message for every change of a table's state, then one a day while it lasts. A sync waits for it only a few seconds at
its end, and never fails because of it: a dead receiver is reported once, left alone for a while, and later gets what it
has missed. Addresses of receivers are secrets: no error quotes one, nor what a library says about it.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from importlib.util import find_spec
from typing import Any, Literal

from floodmark import __version__
from floodmark.config.load import AlertKind, AlertSpec, Config
from floodmark.log.pipeline import StorePipeline
from floodmark.log.status import TableStatus, parse, read_status, update
from floodmark.model.errors import ConfigError, FloodmarkError
from floodmark.model.run import SyncReport, TableReport
from floodmark.model.text import counted, duration
from floodmark.model.times import stamp
from floodmark.status.facts import StoreFacts
from floodmark.status.health import (
    DIFFERS,
    FAILED,
    NO_FAILURE,
    TableFacts,
    behind_seconds,
    judge,
    limit_of,
    moment,
)
from floodmark.store.store import Store

logger = logging.getLogger("floodmark")

AlertWord = Literal["ok", "failed", "behind", "differs"]
ALERT_WORDS: tuple[AlertWord, ...] = ("failed", "behind", "differs")
STATE = "status/alerts.json"
HEARTBEAT = "heartbeat"
AGAIN = timedelta(days=1)
# How long a receiver may take for one message, and how long it is then left alone: one that did not answer, and one that
# answered with an error.
PATIENCE = 5.0
NO_ANSWER = "no answer"
SILENT_FOR = timedelta(minutes=10)
REFUSED_FOR = timedelta(minutes=1)
# Least time between two heartbeats for a resident sync's good cycles: receivers limit requests.
BEAT_EVERY = timedelta(seconds=55)
# How often the dashboard judges all tables.
GUARD_EVERY = 60.0
# Tables that a message names one by one.
NAMED = 20


# ---------------------------------------------------------------- what to report of a table: pure


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

    @property
    def seconds(self) -> float | None:
        """How far it is behind, as documents have it."""
        return None if self.behind_seconds is None else round(self.behind_seconds, 1)


@dataclass(frozen=True)
class Notice:
    """What a receiver was last notified of about a table."""

    word: AlertWord
    at: str


@dataclass(frozen=True)
class NoticeRecord:
    """What was sent about a table, by receiver."""

    since: str  # when the reported state began
    said: dict[str, Notice] = field(default_factory=dict)
    schema: dict[str, str] = field(default_factory=dict)  # the last reported change of columns, by its time


@dataclass(frozen=True)
class AlertEvent:
    """One event to report about a table."""

    kind: AlertKind
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
            "behind_seconds": stands.seconds,
            "detail": stands.detail,
        }


def standing(facts: TableFacts, limit: float, on: Collection[str], now: datetime) -> Standing:
    """A table's state as far as receivers are notified of it."""
    status = facts.status
    if status is None:
        return Standing(facts.table)
    health = judge(facts, limit, now, words=[word for word in ALERT_WORDS if word in on])
    distance_says_it = health.word == "behind" and status.exit_code in NO_FAILURE
    return Standing(
        facts.table,
        health.word if health.word in ALERT_WORDS else "ok",
        "" if distance_says_it else health.why,
        status.exit_code,
        behind_seconds(facts, now),
        status.schema_at,
        tuple(str(change) for change in status.schema_changes),
    )


def events_due(
    before: NoticeRecord | None,
    now_stands: Standing,
    receivers: Iterable[str],
    on: Collection[str],
    now: datetime,
) -> dict[str, tuple[AlertEvent, ...]]:
    """The events to send each receiver about a table now."""
    found: dict[str, tuple[AlertEvent, ...]] = {}
    since = _since(before, now_stands, now)
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
        if "schema" in on and (at := now_stands.schema_at) is not None:
            heard = before.schema.get(receiver) if before else None
            # Changes from long before the receiver was configured don't count.
            if at > heard if heard is not None else _age(at, now) < AGAIN:
                changed = replace(now_stands, detail="; ".join(now_stands.schema))
                events.append(AlertEvent("schema", changed, at))
        if events:
            found[receiver] = tuple(events)
    return found


def record_after(
    before: NoticeRecord | None,
    now_stands: Standing,
    heard: Mapping[str, tuple[AlertEvent, ...]],
    on: Collection[str],
    now: datetime,
) -> NoticeRecord | None:
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
                said[receiver] = Notice(event.kind, stamp(now))
    if now_stands.word == "ok" and "recovered" not in on:
        said = {}  # no receiver wants to be notified of recoveries
    return NoticeRecord(_since(before, now_stands, now), said, schema) if said or schema else None


def _since(before: NoticeRecord | None, now_stands: Standing, now: datetime) -> str:
    """When the present state began, as far as it was seen."""
    words = {s.word for s in before.said.values()} if before else set()
    return before.since if before and now_stands.word in words else stamp(now)


def _age(at: str, now: datetime) -> timedelta:
    seen = moment(at)
    return now - seen if seen is not None else AGAIN


# ---------------------------------------------------------------- messages and receivers


@dataclass(frozen=True)
class Message:
    """What is sent: a headline, a line for each event, and the same as values."""

    title: str
    lines: tuple[str, ...]
    events: tuple[AlertEvent, ...] = ()
    run: str | None = None

    @property
    def text(self) -> str:
        return "\n".join((self.title, *self.lines))

    def as_json(self) -> dict[str, object]:
        """The webhook's document; `text` is what Slack and its like show."""
        return {
            "text": self.text,
            "floodmark": __version__,
            "at": stamp(),
            "host": socket.gethostname(),
            "run": self.run,
            "events": [event.as_json() for event in self.events],
        }


def message(events: Sequence[AlertEvent], run: str | None = None) -> Message:
    """The events in words."""
    lines = [_line(event) for event in events[:NAMED]]
    if len(events) > NAMED:
        lines.append(f"and {len(events) - NAMED} more")
    if len(events) == 1:
        return Message(f"Floodmark: {lines[0]}", (), tuple(events), run)
    kinds = Counter(event.kind for event in events)
    title = ", ".join(f"{count} {_WORDS[kind]}" for kind, count in kinds.items())
    return Message(f"Floodmark: {counted(len(events), 'message')}: {title}", tuple(lines), tuple(events), run)


_WORDS = {
    "failed": "failed",
    "behind": "behind",
    "differs": "different from the source",
    "schema": "with changed columns",
    "recovered": "recovered",
}


def _line(event: AlertEvent) -> str:
    stands = event.stands
    still = "still " if event.again else ""
    since = f" (since {event.since[:16].replace('T', ' ')} UTC)" if event.again else ""
    detail = f": {stands.detail}" if stands.detail else ""
    match event.kind:
        case "failed":
            failing = "is still failing" if event.again else "has failed"
            return f"{stands.table} {failing}{since}{detail}"
        case "behind":
            far = duration(stands.behind_seconds or 0.0)
            return f"{stands.table} is {still}{far} behind its source{since}{detail}"
        case "differs":
            return f"{stands.table} {still}differs from its source{since}{detail}"
        case "schema":
            return f"{stands.table}: the source's columns have changed{detail}"
        case "recovered":
            return f"{stands.table} has recovered"


@dataclass(frozen=True)
class Receiver:
    """One receiver: what people and the store call it, without a secret, and how to send to it.

    `send` returns why it failed, or None.
    """

    label: str  # as the configuration has it: webhook, to[0]
    name: str
    send: Callable[[Message], str | None]


def receivers(spec: AlertSpec) -> list[Receiver]:
    """The receivers of events; raises ConfigError if the extra for one of them is not installed."""
    if spec.to and find_spec("apprise") is None:
        raise ConfigError(
            "alerts.to needs Apprise, which is not installed", hint="pip install 'floodmark[notify]'"
        )
    found = [Receiver(f"to[{n}]", _name("to", url), partial(_apprise, url)) for n, url in enumerate(spec.to)]
    if (hook := spec.webhook) is not None:
        found.insert(0, Receiver("webhook", _name("webhook", hook), lambda m: post(hook, m.as_json())))
    return found


def _name(kind: str, url: str) -> str:
    """A receiver's name in the store: distinct, but without a trace of the address."""
    return f"{kind}-{sha256(url.encode()).hexdigest()[:12]}"


Beat = Literal["", "fail", "log"]  # a good run; a failed one; only a line for the receiver's log


def beat(url: str, kind: Beat, text: str = "") -> str | None:
    """The heartbeat, by healthchecks.io's convention; returns why it failed, or None."""
    place, mark, query = url.partition("?")
    return post((f"{place.rstrip('/')}/{kind}" if kind else place) + mark + query, text)


def post(url: str, body: Mapping[str, object] | str) -> str | None:
    """One POST; returns why it failed, without quoting the address, or None."""
    kind = "text/plain; charset=utf-8" if isinstance(body, str) else "application/json"
    data = body.encode() if isinstance(body, str) else json.dumps(body, ensure_ascii=False).encode()
    headers = {"Content-Type": kind, "User-Agent": f"floodmark/{__version__}"}
    try:
        request = urllib.request.Request(url, data=data, headers=headers, method="POST")
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            answer.read(1024)
        return None
    except urllib.error.HTTPError as error:
        error.close()
        return f"it answered {error.code}"
    except urllib.error.URLError as error:
        return _why(error.reason)
    except Exception as error:  # http.client has its own errors for what is not HTTP
        return _why(error)


def _why(reason: object) -> str:
    if isinstance(reason, TimeoutError):
        return NO_ANSWER
    if isinstance(reason, OSError) and reason.strerror:
        return str(reason.strerror).lower()
    return type(reason).__name__ if isinstance(reason, BaseException) else "it could not be reached"


def _apprise(url: str, message: Message) -> str | None:
    import logging

    import apprise

    logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)  # it quotes addresses
    sender = apprise.Apprise()
    if not sender.add(url):
        return "Apprise does not support this kind of address"
    done = sender.notify(title=message.title, body="\n".join(message.lines) or message.title)
    return None if done else "Apprise could not deliver it"


def deliver(
    sends: Mapping[str, Callable[[], str | None]], patience: float = PATIENCE
) -> dict[str, str | None]:
    """Sends in parallel, and waits at most `patience` seconds for all; returns for each name why it failed, or None."""
    results: dict[str, str | None] = {}

    def one(name: str, send: Callable[[], str | None]) -> None:
        try:
            results[name] = send()
        except Exception as error:
            results[name] = type(error).__name__

    threads = [threading.Thread(target=one, args=each, daemon=True) for each in sends.items()]
    for thread in threads:
        thread.start()
    end = time.monotonic() + patience
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return {name: results.get(name, NO_ANSWER) for name in sends}


# ---------------------------------------------------------------- alerts


@dataclass(frozen=True)
class Trouble:
    """A receiver that could not be reached."""

    at: str
    why: str


@dataclass(frozen=True)
class AlertState:
    """What was sent to whom, and who could not be reached."""

    tables: dict[str, NoticeRecord] = field(default_factory=dict)
    receivers: dict[str, Trouble] = field(default_factory=dict)


def read_state(store: Store) -> AlertState:
    """What was sent so far; empty if that was lost or damaged, so that it is sent once more."""
    return parse(AlertState, store.get(STATE)) or AlertState()


def good(codes: Sequence[int], behind: bool) -> bool | None:
    """What the heartbeat says about a run: good, failed, or nothing (a failure that may pass on its own, while no table is behind)."""
    if all(code == 0 for code in codes):
        return True
    if behind or any(code in (*FAILED, DIFFERS) for code in codes):
        return False
    return None


def left_alone(trouble: Trouble | None, now: datetime) -> bool:
    """Whether a receiver is not tried again yet."""
    if trouble is None or (at := moment(trouble.at)) is None:
        return False
    return timedelta(0) <= now - at < (SILENT_FOR if trouble.why == NO_ANSWER else REFUSED_FOR)


class Alerts:
    """The alerts of one configuration. A context manager; its exit waits for what is being sent, but not for long."""

    def __init__(self, config: Config, patience: float = PATIENCE) -> None:
        """Raises ConfigError when a receiver needs an extra that is not installed."""
        self._config = config
        self._spec = config.alerts or AlertSpec()
        self._store = Store(config.store)
        self._facts = StoreFacts(self._store)
        self._pipeline = StorePipeline(self._store, config.warehouse.label)
        self._patience = patience
        self._receivers = receivers(self._spec)
        self._labels = {HEARTBEAT: HEARTBEAT} | {r.name: r.label for r in self._receivers}
        self._thread: threading.Thread | None = None
        self._beaten: datetime | None = None

    def __enter__(self) -> Alerts:
        return self

    def __exit__(self, *error: object) -> None:
        if self._thread is not None:
            self._thread.join(self._patience + 1)

    def after(self, report: SyncReport | None, error: FloodmarkError | None = None) -> None:
        """Notifies, in the background, of what a run has changed; does nothing while the last notification is still being sent."""
        if self._thread is None or not self._thread.is_alive():
            self._begin(partial(self._after, report, error))

    def after_verify(self, names: Sequence[str]) -> None:
        """The same for a verify of these tables, which is not a run: no heartbeat."""
        self._begin(lambda: self._tell([self._read(name) for name in names], None))

    def _begin(self, tell: Callable[[], object]) -> None:
        self._thread = threading.Thread(target=self.quietly, args=(tell,), name="alerts", daemon=True)
        self._thread.start()

    def check(self) -> dict[str, Any]:
        """Judges every table by the store alone, and notifies; for when the scheduler itself is dead."""
        standings = self._all()
        results = self._tell(standings, None)
        known = {one.table for one in standings}
        unknown = [Standing(n) for n in self._config.tables if not set(n) & set("*?[") and n not in known]
        tables: list[dict[str, Any]] = [
            {
                "table": one.table,
                "state": one.word if one.exit_code is not None else "unknown",
                "detail": one.detail,
                "exit_code": one.exit_code,
                "behind_seconds": one.seconds,
                "behind_limit_seconds": limit_of(self._config, one.table),
            }
            for one in (*standings, *unknown)
        ]
        ok = all(t["state"] in ("ok", "unknown") for t in tables)
        return {"ok": ok, "tables": tables, "receivers": self._results(results)}

    def test(self) -> dict[str, Any]:
        """Sends one message to every receiver, whatever was sent before."""
        said = Message(
            "Floodmark: this is a test of your alerts",
            ("Nothing is wrong; `floodmark alerts test` was run.",),
        )
        sends: dict[str, Callable[[], str | None]] = {r.name: partial(r.send, said) for r in self._receivers}
        if self._spec.heartbeat is not None:
            sends[HEARTBEAT] = partial(beat, self._spec.heartbeat, "log", said.title)  # not a beat
        results = self._results(deliver(sends, 2 * self._patience))
        return {"ok": all(one["ok"] for one in results), "receivers": results}

    # how tables stand

    def _standing(self, facts: TableFacts) -> Standing:
        return standing(facts, limit_of(self._config, facts.table), self._spec.on, datetime.now(UTC))

    def _read(self, name: str, report: TableReport | None = None, run: str = "") -> Standing:
        """A table by its status; one that failed before it could write that, by what the run says."""
        status = read_status(self._store, name)
        last = status or TableStatus(name)
        if report is not None and report.error and report.exit_code in FAILED and last.run != run:
            status = replace(
                last, run=last.run or run, exit_code=report.exit_code, error=report.error.message
            )
        return self._standing(TableFacts(name, status=status))

    def _all(self) -> list[Standing]:
        return [self._standing(facts) for facts in self._facts.tables() if not facts.retired]

    def _of_run(self, report: SyncReport, state: AlertState) -> list[Standing]:
        """The state of the run's tables; those with nothing to report cost no request."""
        return [
            self._read(table.table, table, report.run)
            if table.table in state.tables or self._worth_a_look(table)
            else Standing(table.table, exit_code=0)
            for table in report.tables
        ]

    def _worth_a_look(self, table: TableReport) -> bool:
        lag = table.lag_after.seconds if table.lag_after else None
        waits = bool(table.watermark and table.watermark["pending_s3_files"])
        late = lag is not None and lag > limit_of(self._config, table.table)
        return bool(table.exit_code or table.schema_changes or waits or late)

    # telling

    def quietly(self, tell: Callable[[], object]) -> None:
        """Calls it, and only logs what goes wrong."""
        try:
            tell()
        except FloodmarkError as error:
            logger.info("alerts: %s", error.message)
        except Exception:
            logger.debug("alerts", exc_info=True)

    def _after(self, report: SyncReport | None, error: FloodmarkError | None) -> None:
        standings = self._of_run(report, read_state(self._store)) if report is not None else self._all()
        codes = [t.exit_code for t in report.tables] if report is not None else [error.code if error else 1]
        ok = good(codes, any(one.word == "behind" for one in standings))
        said = next((one.detail for one in standings if one.word != "ok" and one.detail), "")
        text = said or (error.message if error is not None and not ok else "")
        self._tell(standings, report.run if report else None, heartbeat=self._beat(ok, text))

    def _beat(self, ok: bool | None, text: str) -> Callable[[], str | None] | None:
        url, now = self._spec.heartbeat, datetime.now(UTC)
        if url is None or ok is None:
            return None
        if ok and self._beaten is not None and now - self._beaten < BEAT_EVERY:
            return None
        self._beaten = now if ok else None
        return partial(beat, url, "" if ok else "fail", text)

    def _tell(
        self,
        standings: Sequence[Standing],
        run: str | None,
        heartbeat: Callable[[], str | None] | None = None,
    ) -> dict[str, str | None]:
        """Sends what is due, and records who got it; returns for each receiver why it failed, or None."""
        now, on = datetime.now(UTC), self._spec.on
        state = read_state(self._store)
        ours = self._pipeline.ours()  # a copied configuration knows nothing about the owner's tables
        standings = standings if ours else []
        willing = [r for r in self._receivers if not left_alone(state.receivers.get(r.name), now)]
        names = [r.name for r in willing]
        wanted = {
            one.table: events_due(state.tables.get(one.table), one, names, on, now) for one in standings
        }
        sends: dict[str, Callable[[], str | None]] = {}
        for receiver in willing:
            if events := [e for said in wanted.values() for e in said.get(receiver.name, ())]:
                sends[receiver.name] = partial(receiver.send, message(events, run))
        if heartbeat is not None and not left_alone(state.receivers.get(HEARTBEAT), now):
            sends[HEARTBEAT] = heartbeat
        results = deliver(sends, self._patience) if sends else {}
        self._complain(results, state)

        heard = {name for name, why in results.items() if why is None}

        def remembered(newest: AlertState | None) -> AlertState | None:
            before = newest or AlertState()
            tables = dict(before.tables)
            for one in standings:
                events = {name: said for name, said in wanted[one.table].items() if name in heard}
                record = record_after(tables.pop(one.table, None), one, events, on, now)
                if record is not None:
                    tables[one.table] = record
            troubled = {n: t for n, t in before.receivers.items() if n not in heard}
            troubled |= {n: Trouble(stamp(now), why) for n, why in results.items() if why is not None}
            after = AlertState(dict(sorted(tables.items())), troubled)
            return after if after != before else None

        # Read again: another run may have written while we were sending. Other tables' entries stay as they are.
        if ours and (sends or remembered(state) is not None):
            update(self._store, STATE, AlertState, remembered, "the record of alerts")
        return results

    def _complain(self, results: Mapping[str, str | None], state: AlertState) -> None:
        """Logs once that a receiver can't be reached, until it can be again."""
        for name, why in results.items():
            if why is not None:
                level = logging.INFO if name in state.receivers else logging.WARNING
                logger.log(level, "alerts.%s could not be notified: %s", self._labels[name], why)

    def _results(self, results: Mapping[str, str | None]) -> list[dict[str, Any]]:
        return [
            {"receiver": label, "ok": results[name] is None, "error": results[name]}
            for name, label in self._labels.items()
            if name in results
        ]


@contextmanager
def guarding(config: Config, every: float = GUARD_EVERY) -> Iterator[None]:
    """Judges all tables again and again, in the background, if the configuration has `alerts`.

    Raises ConfigError when a receiver needs an extra that is not installed. A store that can't be read is tried again.
    """
    if config.alerts is None:
        yield
        return
    alerts, stop = Alerts(config), threading.Event()

    def guard() -> None:
        while not stop.wait(every):
            alerts.quietly(alerts.check)

    threading.Thread(target=guard, name="guard", daemon=True).start()
    try:
        yield
    finally:
        stop.set()
