"""Alerts: judges tables, notifies receivers of changes, and records in the store who was notified of what.

A sync waits for it only a few seconds at its end, and never fails because of it: a dead receiver is reported once, left
alone for a while, and later gets what it has missed.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from floodmark.config.load import AlertSpec, Config
from floodmark.log.pipeline import StorePipeline
from floodmark.log.status import TableStatus, parse, read_status, update
from floodmark.model.errors import FloodmarkError
from floodmark.model.run import SyncReport, TableReport
from floodmark.model.times import stamp
from floodmark.status.facts import StoreFacts
from floodmark.status.health import DIFFERS, FAILED, TableFacts, limit_of, moment
from floodmark.status.notices import (
    AlertEvent,
    Standing,
    TableSaid,
    after_saying,
    standing,
    to_say,
)
from floodmark.status.receivers import (
    NO_ANSWER,
    PATIENCE,
    Message,
    beat,
    deliver,
    message,
    receivers,
)
from floodmark.store.store import Store

log = logging.getLogger("floodmark")

STATE = "status/alerts.json"
HEARTBEAT = "heartbeat"
# How long a receiver is left alone: one that did not answer, and one that answered with an error.
SILENT_FOR = timedelta(minutes=10)
REFUSED_FOR = timedelta(minutes=1)
# Least time between two heartbeats for a resident sync's good cycles: receivers limit requests.
BEAT_EVERY = timedelta(seconds=55)
# How often the dashboard judges all tables.
GUARD_EVERY = 60.0


@dataclass(frozen=True)
class Trouble:
    """A receiver that could not be reached."""

    at: str
    why: str


@dataclass(frozen=True)
class AlertState:
    """What was sent to whom, and who could not be reached."""

    tables: dict[str, TableSaid] = field(default_factory=dict)
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


def _of_this_run(status: TableStatus | None, table: TableReport, run: str) -> TableStatus | None:
    """The status; for a table that failed before it could write one, with what the run says."""
    if table.exit_code not in FAILED or table.error is None or (status is not None and status.run == run):
        return status
    last = status or TableStatus(table.table, run)
    return replace(last, exit_code=table.exit_code, error=table.error.message)


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
        if self._config.alerts is None or (self._thread is not None and self._thread.is_alive()):
            return
        self._begin(partial(self._after, report, error))

    def after_verify(self, names: Iterable[str]) -> None:
        """The same for a verify of these tables, which is not a run: no heartbeat."""
        if self._config.alerts is None:
            return
        tables = tuple(names)

        def tell() -> None:
            now = datetime.now(UTC)
            self._tell(
                [self._standing(TableFacts(n, status=read_status(self._store, n)), now) for n in tables], None
            )

        self._begin(tell)

    def _begin(self, tell: Callable[[], object]) -> None:
        self._thread = threading.Thread(target=self.quietly, args=(tell,), name="alerts", daemon=True)
        self._thread.start()

    def check(self) -> dict[str, Any]:
        """Judges every table by the store alone, and notifies; for when the scheduler itself is dead."""
        now = datetime.now(UTC)
        standings = self._all(now)
        results = self._tell(standings, None)
        known = {one.table for one in standings}
        unknown = [Standing(n) for n in self._config.tables if not set(n) & set("*?[") and n not in known]
        tables: list[dict[str, Any]] = [
            {
                "table": one.table,
                "state": one.word if one.exit_code is not None else "unknown",
                "detail": one.detail,
                "exit_code": one.exit_code,
                "behind_seconds": None if one.behind_seconds is None else round(one.behind_seconds, 1),
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

    def _standing(self, facts: TableFacts, now: datetime) -> Standing:
        return standing(facts, limit_of(self._config, facts.table), self._spec.on, now)

    def _all(self, now: datetime) -> list[Standing]:
        return [self._standing(facts, now) for facts in self._facts.tables() if not facts.retired]

    def _of_run(self, report: SyncReport, state: AlertState, now: datetime) -> list[Standing]:
        """The state of the run's tables; those with nothing to report cost no request."""
        found = []
        for table in report.tables:
            before = state.tables.get(table.table)
            if before is None and not self._worth_a_look(table):
                found.append(Standing(table.table, exit_code=0))
                continue
            status = _of_this_run(read_status(self._store, table.table), table, report.run)
            found.append(self._standing(TableFacts(table.table, status=status), now))
        return found

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
            log.info("alerts: %s", error.message)
        except Exception:
            log.debug("alerts", exc_info=True)

    def _after(self, report: SyncReport | None, error: FloodmarkError | None) -> None:
        now = datetime.now(UTC)
        state = read_state(self._store)
        standings = self._of_run(report, state, now) if report is not None else self._all(now)
        codes = [t.exit_code for t in report.tables] if report is not None else [error.code if error else 1]
        ok = good(codes, any(one.word == "behind" for one in standings))
        said = next((one.detail for one in standings if one.word != "ok" and one.detail), "")
        text = said or (error.message if error is not None and not ok else "")
        self._tell(standings, report.run if report else None, heartbeat=self._beat(ok, text, now))

    def _beat(self, ok: bool | None, text: str, now: datetime) -> Callable[[], str | None] | None:
        url = self._spec.heartbeat
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
        wanted = {one.table: to_say(state.tables.get(one.table), one, names, on, now) for one in standings}
        sends: dict[str, Callable[[], str | None]] = {}
        for receiver in willing:
            if events := [e for said in wanted.values() for e in said.get(receiver.name, ())]:
                sends[receiver.name] = partial(receiver.send, message(events, run))
        if heartbeat is not None and not left_alone(state.receivers.get(HEARTBEAT), now):
            sends[HEARTBEAT] = heartbeat
        results = deliver(sends, self._patience) if sends else {}
        self._complain(results, state)

        def remembered(newest: AlertState | None) -> AlertState | None:
            before = newest or AlertState()
            after = self._remembered(before, standings, wanted, results, now)
            return after if after != before else None

        # Read again: another run may have written while we were sending. Other tables' entries stay as they are.
        if ours and (sends or remembered(state) is not None):
            update(self._store, STATE, AlertState, remembered, "the record of alerts")
        return results

    def _remembered(
        self,
        state: AlertState,
        standings: Sequence[Standing],
        wanted: Mapping[str, Mapping[str, tuple[AlertEvent, ...]]],
        results: Mapping[str, str | None],
        now: datetime,
    ) -> AlertState:
        heard = {name for name, why in results.items() if why is None}
        tables = dict(state.tables)
        for one in standings:
            said = {name: events for name, events in wanted[one.table].items() if name in heard}
            kept = after_saying(tables.pop(one.table, None), one, said, self._spec.on, now)
            if kept is not None:
                tables[one.table] = kept
        troubled = {n: t for n, t in state.receivers.items() if n not in heard}
        troubled |= {n: Trouble(stamp(now), why) for n, why in results.items() if why is not None}
        return replace(state, tables=dict(sorted(tables.items())), receivers=troubled)

    def _complain(self, results: Mapping[str, str | None], state: AlertState) -> None:
        """Logs once that a receiver can't be reached, until it can be again."""
        for name, why in results.items():
            if why is not None:
                level = logging.INFO if name in state.receivers else logging.WARNING
                log.log(level, "alerts.%s could not be notified: %s", self._labels[name], why)

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
