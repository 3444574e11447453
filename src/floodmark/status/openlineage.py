"""Sends OpenLineage events beside a run: in a thread of its own, for at most a few seconds at the end.

Off unless OpenLineage's own environment names a receiver (OPENLINEAGE_URL, OPENLINEAGE_CONFIG or a transport). What
can't be sent is dropped, with one line in the log: lineage neither fails nor delays a run. A table's run begins when its
plan has something to read; tables without work leave no events.
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
from floodmark.model.events import Compared, Ended, Event, Planned, RunBegan, RunEnded
from floodmark.model.run import TableReport
from floodmark.model.secrets import Scrubber, masked
from floodmark.model.times import stamp
from floodmark.status.lineage import Document, LineageEvents

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
        self._lineage = LineageEvents(
            config,
            environment.get("OPENLINEAGE_NAMESPACE") or "floodmark",
            environment.get("OPENLINEAGE_PARENT_ID"),
        )
        self._scrub = Scrubber.of(config)
        self._lock = threading.Lock()
        self._started: set[str] = set()  # tables whose run has begun and not ended
        self._run: str | None = None
        self._sender = _Sender()

    def __enter__(self) -> OpenLineage:
        return self

    def __exit__(self, *error: object) -> None:
        self._abort()  # interrupted: no report will come
        self._sender.close()

    def __call__(self, event: Event) -> None:
        try:
            self._take(event)
        except Exception:  # lineage is never worth a sync
            log.debug("lineage", exc_info=True)

    def _take(self, event: Event) -> None:
        match event:
            case RunBegan(_, run, "sync", False):
                self._run, self._started = run, set()
            case Planned(table) if event.slices:
                self._start(table)
            case Ended(table, report) if table in self._started or not (report.left_out or report.idle):
                self._start(table)  # if it failed before it had a plan, or only loads
                self._end(report)
            case RunEnded():
                self._abort()
            case Compared(_, run, results):
                self._compared(run, results)

    def _start(self, table: str) -> None:
        with self._lock:
            if self._run is None or table in self._started:
                return
            self._started.add(table)
        self._send(self._lineage.started(self._run, table, stamp()))

    def _end(self, report: TableReport) -> None:
        if self._run is not None and not report.stopped:
            self._started.discard(report.table)
            self._send(self._lineage.ended(self._run, report, stamp()))

    def _abort(self) -> None:
        with self._lock:
            left, self._started = self._started, set()
        for table in left:
            self._send(self._lineage.aborted(self._run or "", table, stamp()))

    def _compared(self, run: str, results: Sequence[Mapping[str, Any]]) -> None:
        config, now = self._lineage.config, stamp()
        for result in results:
            if result["error"]:
                continue
            name = str(result["table"])
            target = config.options(name).target or name.partition(".")[2].lower()
            self._send(self._lineage.started(run, name, now, "verify"))
            self._send(self._lineage.verified(run, result, target, now))

    def _send(self, event: Document) -> None:
        self._sender.put(masked(event, self._scrub))


class _Sender:
    """A thread that sends what it is given, in order; started by the first event."""

    def __init__(self) -> None:
        self._events: queue.Queue[Document | None] = queue.Queue(MOST_WAITING)
        self._lock = threading.Lock()  # tables begin side by side
        self._thread: threading.Thread | None = None
        self._dropped = 0
        self._why = "the receiver can't keep up"

    def put(self, event: Document) -> None:
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


def _typed(event: Document) -> Any:
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
