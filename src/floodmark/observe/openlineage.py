"""Sends OpenLineage events beside a run: in a thread of its own, for at most a few seconds at the end.

Off unless OpenLineage's own environment names a receiver (OPENLINEAGE_URL, OPENLINEAGE_CONFIG or a transport). What
can't be sent is dropped, with one line in the log: lineage neither fails nor delays a run. A table's run begins when its
plan has something to read, as the log event of that plan says; tables without work leave no events.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from floodmark.config.load import Config
from floodmark.model.run import SyncReport
from floodmark.model.secrets import Scrubber
from floodmark.model.times import stamp
from floodmark.observe.lineage import Event, Lineage

log = logging.getLogger("floodmark")

ENVIRONMENT = ("OPENLINEAGE_URL", "OPENLINEAGE_CONFIG", "OPENLINEAGE__TRANSPORT__TYPE")
MOST_WAITING = 2_000  # events; more are dropped
END_SECONDS = 5.0  # that the end of a run waits for what is being sent


def wanted(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment enables lineage."""
    disabled = environment.get("OPENLINEAGE_DISABLED", "").lower() == "true"
    return not disabled and any(environment.get(name) for name in ENVIRONMENT)


def missing() -> str | None:
    """What to install before events can be sent; None if it is there."""
    if find_spec("openlineage") is not None:
        return None
    return (
        "no lineage is sent: OPENLINEAGE_… is set, and the OpenLineage client is not installed; "
        "pip install 'floodmark[openlineage]', or OPENLINEAGE_DISABLED=true"
    )


class OpenLineage:
    """The events of one process's runs. A context manager."""

    def __init__(self, config: Config) -> None:
        environment = os.environ
        self._lineage = Lineage(
            config,
            environment.get("OPENLINEAGE_NAMESPACE") or "floodmark",
            environment.get("OPENLINEAGE_PARENT_ID"),
        )
        self._scrub = Scrubber()
        self._scrub.learn(config)
        self._lock = threading.Lock()
        self._started: dict[str, str] = {}  # table -> when its run began
        self._ended: dict[str, str] = {}
        self._run: str | None = None
        self._sender = _Sender()
        self._before = log.level

    def __enter__(self) -> OpenLineage:
        # A filter sees records before any handler. The user's own handlers get no more than they did.
        self._before, self._shown = log.level, log.getEffectiveLevel()
        if not log.isEnabledFor(logging.INFO):
            log.setLevel(logging.INFO)
        log.addFilter(self._look)
        return self

    def __exit__(self, *error: object) -> None:
        log.removeFilter(self._look)
        log.setLevel(self._before)
        with self._lock:
            left, self._started = dict(self._started), {}
        for table in left:  # interrupted: no report will come
            self._send(self._lineage.aborted(self._run or "", table, stamp()))
        self._sender.close()

    def began(self, run: str) -> None:
        """A run begins; log events from now on are its."""
        with self._lock:
            self._run, self._started, self._ended = run, {}, {}

    def ended(self, report: SyncReport | None) -> None:
        """A run has ended; None: before its tables had their turn."""
        with self._lock:
            started, self._started, run = dict(self._started), {}, self._run
        now = stamp()
        if report is None:
            for table in started:
                self._send(self._lineage.aborted(run or "", table, now))
            return
        for done in report.tables:
            if done.left_out or done.idle:
                continue
            if done.table not in started:  # failed before it had a plan, or only loads
                self._send(self._lineage.started(report.run, done.table, now))
            self._send(self._lineage.ended(report.run, done, self._ended.get(done.table, now)))

    def verified(self, run: str, results: Sequence[Mapping[str, Any]]) -> None:
        """Tables were compared."""
        config, now = self._lineage.config, stamp()
        for result in results:
            if result["error"]:
                continue
            name = str(result["table"])
            target = config.options(name).target or name.partition(".")[2].lower()
            self._send(self._lineage.started(run, name, now, "verify"))
            self._send(self._lineage.verified(run, result, target, now))

    def _look(self, record: logging.LogRecord) -> bool:
        """Notes when tables begin and end, from the log's events; lets through what was let through before."""
        event, table = getattr(record, "event", None), getattr(record, "table", None)
        if table and event in ("step_end", "table_end"):
            self._note(str(event), str(table), getattr(record, "step", None), getattr(record, "fields", {}))
        return record.levelno >= self._shown

    def _note(self, event: str, table: str, step: str | None, fields: Mapping[str, Any]) -> None:
        now = stamp()
        with self._lock:
            run = self._run
            if event == "table_end":
                self._ended[table] = now
                return
            if run is None or step != "plan" or not fields.get("slices") or table in self._started:
                return
            self._started[table] = now
        self._send(self._lineage.started(run, table, now))

    def _send(self, event: Event) -> None:
        self._sender.put(_masked(event, self._scrub))


def _masked(value: Any, scrub: Scrubber) -> Any:
    if isinstance(value, dict):
        return {name: _masked(inner, scrub) for name, inner in value.items()}
    if isinstance(value, list):
        return [_masked(inner, scrub) for inner in value]
    return scrub(value) if isinstance(value, str) else value


class _Sender:
    """A thread that sends what it is given, in order; started by the first event."""

    def __init__(self) -> None:
        self._events: queue.Queue[Event | None] = queue.Queue(MOST_WAITING)
        self._lock = threading.Lock()  # tables begin side by side
        self._thread: threading.Thread | None = None
        self._dropped = 0
        self._why = "the receiver can't keep up"

    def put(self, event: Event) -> None:
        """Takes an event, if there is room."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="openlineage", daemon=True)
                self._thread.start()
        try:
            self._events.put_nowait(event)
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Waits a few seconds for what is left; says so if something was not sent."""
        if self._thread is None:
            return
        try:
            self._events.put_nowait(None)
        except queue.Full:
            pass
        else:
            self._thread.join(END_SECONDS)
        left = self._dropped + sum(1 for one in list(self._events.queue) if one is not None)
        if left or self._thread.is_alive():
            log.warning("not all OpenLineage events were sent (%s left): %s", left, self._why)

    def _work(self) -> None:
        try:
            client = _client()
        except Exception as error:
            client, self._why = None, type(error).__name__  # its text may quote a key
        while (event := self._events.get()) is not None:
            if client is None:
                self._dropped += 1
                continue
            try:
                client.emit(_typed(event))
            except Exception as error:  # whatever the client, its transport or the receiver does
                self._dropped += 1
                self._why = type(error).__name__


def _client() -> Any:
    """A client that takes no settings from the working folder, where somebody else may write them."""
    from openlineage.client import OpenLineageClient

    class Client(OpenLineageClient):
        @staticmethod
        def _find_yaml_config_path() -> str | None:
            home = os.path.expanduser("~/.openlineage/openlineage.yml")
            return next(
                (p for p in (os.environ.get("OPENLINEAGE_CONFIG"), home) if p and os.path.isfile(p)), None
            )

    return Client()


def _typed(event: Event) -> Any:
    """The event as the client wants it; facets stay documents."""
    from openlineage.client import event_v2 as v2

    return v2.RunEvent(
        eventTime=event["eventTime"],
        producer=event["producer"],
        eventType=v2.RunState[event["eventType"]],
        run=v2.Run(**event["run"]),
        job=v2.Job(**event["job"]),
        inputs=[v2.InputDataset(**one) for one in event["inputs"]],
        outputs=[v2.OutputDataset(**one) for one in event["outputs"]],
    )
