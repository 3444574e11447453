"""Which Spark is used, decided without a JVM: versions, unusable sessions, clusters that give a run no executor."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from floodmark.config.load import SourceSpec
from floodmark.model.errors import ConfigError, Interrupted, TransientError
from floodmark.spark import pyspark_internals as internals
from floodmark.spark.context import DESERTED, FORSAKEN, Executors, Spark, attempts_at_once
from floodmark.spark.failures import refusal
from floodmark.spark.jvm import settings


@pytest.mark.parametrize(
    ("version", "known"), [("4.0.2", True), ("4.3.0", True), ("4.4.0.dev1", False), ("5.0", False)]
)
def test_known_versions_of_pyspark_are_started_by_us_and_others_by_their_own_launcher(
    version: str, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert internals.is_known()
    monkeypatch.setattr(internals, "version_text", lambda: version)
    assert internals.is_known() is known


def test_a_pyspark_that_is_too_old_is_refused_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(internals, "version_text", lambda: "3.5.1")
    with pytest.raises(ConfigError, match=r"pyspark 3\.5 is too old") as caught:
        internals.check_installed()
    assert "pyspark>=4.0" in str(caught.value.hint)


def test_a_jvm_that_pyspark_launched_ends_with_its_stdin() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        internals.end_launched(SimpleNamespace(proc=process))
        assert process.wait(60) == 0


def test_each_private_name_of_pyspark_may_vanish() -> None:
    """As with a version that we don't know: it costs a convenience, never a run."""
    from pyspark import SparkContext

    class Plain:
        """A context with nothing but its public interface."""

        def __init__(self, alive: bool) -> None:
            self._alive = alive

        def statusTracker(self) -> Any:
            return SimpleNamespace(getActiveJobsIds=self._jobs)

        def _jobs(self) -> list[int]:
            if not self._alive:
                raise ConnectionRefusedError
            return []

    plain = Plain(alive=True)
    internals.end_launched(plain)
    assert internals.executors(plain) is None
    assert not internals.is_stopped(plain) and internals.is_stopped(Plain(alive=False))
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_active_spark_context", "_gateway", "_ensure_initialized"):
            patch.delattr(SparkContext, name)
        assert internals.active_context() is None and internals.gateway_of_pyspark() is None
        assert not internals.connect_to_submitted()
        internals.forget(object())
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "pyspark.core", None)
        with internals.own_environment():
            pass


def test_only_values_of_numpy_reach_pysparks_converters_of_them() -> None:
    """Their first look at any value imports numpy and, if it is installed, pandas."""
    asked: list[object] = []

    class NumpyScalarConverter:
        def can_convert(self, value: object) -> bool:
            asked.append(value)
            return True

        def convert(self, value: object, client: object) -> str:
            return "converted"

    other, number = object(), np.float64(1)
    gateway = SimpleNamespace(_gateway_client=SimpleNamespace(converters=[NumpyScalarConverter(), other]))
    internals.spare_numpy(gateway)
    first, second = gateway._gateway_client.converters
    assert [first.can_convert(value) for value in (1, "text", number)] == [False, False, True]
    assert asked == [number] and first.convert(number, None) == "converted" and second is other


def test_a_spark_connect_session_is_refused_with_a_hint() -> None:
    connect = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})
    with pytest.raises(ConfigError, match="Spark Connect"):
        Spark.over(connect())


def test_an_object_that_is_not_spark_is_refused_by_its_type() -> None:
    with pytest.raises(ConfigError, match="not int"):
        Spark.over(5)


CLUSTER = {"spark.master": "spark://there:7077"}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[frozenset[str] | None]:
    """What a cluster answers next when queried for its executors."""
    told: list[frozenset[str] | None] = []
    monkeypatch.setattr(internals, "executors", lambda _: told.pop(0))
    return told


def test_lost_executors_are_named_once(answers: list[frozenset[str] | None]) -> None:
    executors = Executors(CLUSTER)
    answers += [frozenset({"0", "1"}), frozenset({"0"}), frozenset({"0"}), None]
    said: list[str] = []
    for _ in range(4):
        executors.look(None, said.append)
    assert executors.alone is None
    assert said == ["Spark lost 1 of 2 executors; their slices run again"]


def test_executors_released_between_two_runs_of_jobs_are_not_missed(
    answers: list[frozenset[str] | None],
) -> None:
    spark = Spark("spark://there:7077")
    said: list[str] = []
    answers += [frozenset({"0"}), frozenset()]
    spark._executors.look(None, said.append)
    jobs: Any = [
        SimpleNamespace(table=SimpleNamespace(name="s.t"), source=SourceSpec("h", 1, "u", "p"), title=str)
    ]
    with pytest.raises(Interrupted):  # it was never started
        list(spark.run(jobs, "t"))
    spark._executors.look(None, said.append)
    assert said == []


@pytest.mark.parametrize("seen", [True, False], ids=["had some", "never had any"])
def test_a_cluster_without_executors_is_abandoned_sooner_once_it_has_lost_them_all(
    answers: list[frozenset[str] | None], monkeypatch: pytest.MonkeyPatch, seen: bool
) -> None:
    """A master that was restarted no longer knows the application, and would leave it waiting for ever."""
    executors = Executors(CLUSTER)
    clock = [1000.0]
    monkeypatch.setattr("floodmark.spark.context.time.monotonic", lambda: clock[0])
    answers += [frozenset({"0"}) if seen else frozenset(), *[frozenset[str]()] * 3]
    executors.look(None, print)
    executors.look(None, print)
    assert executors.alone == clock[0]
    clock[0] += FORSAKEN if seen else DESERTED
    executors.look(None, print)
    clock[0] += 1
    with pytest.raises(TransientError, match="no executor") as caught:
        executors.look(None, print, "s.t")
    assert "spark.driver.host" in str(caught.value.hint)
    assert executors.gone


def test_an_unreachable_master_is_not_reported_as_refusing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert refusal(f"spark://127.0.0.1:{port}", "4.0.2") is None


def test_a_master_that_is_up_but_does_not_answer_is_named_with_both_versions() -> None:
    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'<img/><span class="version me-3">4.3.0</span>')

        def log_message(self, *_: object) -> None: ...

    with socket.create_server(("127.0.0.1", 0)) as master, HTTPServer(("127.0.0.1", 0), Page) as page:
        threading.Thread(target=page.handle_request, daemon=True).start()
        url = f"spark://gone.invalid:1,127.0.0.1:{master.getsockname()[1]}"
        why = refusal(url, "4.0.2", page.server_port)
    assert isinstance(why, ConfigError) and "pyspark 4.0.2; it runs Spark 4.3.0" in why.message


def test_a_slice_may_be_attempted_twice_at_once_only_with_speculation_by_a_threshold() -> None:
    both = {"spark.speculation": "true", "spark.speculation.task.duration.threshold": "60s"}
    for master, conf, attempts in (
        ("spark://host:7077", both, 2), ("spark://host:7077", {"spark.speculation": "true"}, 1),
        ("spark://host:7077", {**both, "spark.speculation": "false"}, 1), ("local[4]", both, 1),
    ):  # fmt: skip
        assert attempts_at_once(settings(master, conf, "x")) == attempts


def test_a_spark_that_has_ended_holds_no_meeting_and_says_so() -> None:
    ended = Spark("local[1]")
    with pytest.raises(TransientError, match="JVM has ended"):
        ended.meeting()

    class Dead:
        """A context whose JVM is gone."""

        def __getattr__(self, name: str) -> Any:
            raise ConnectionRefusedError

    ended._context = Dead()
    with pytest.raises(TransientError, match="JVM has ended"):
        ended.meeting()
