"""What Spark's own failures become; no JVM is started."""

from __future__ import annotations

import socketserver
import threading
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.accumulators import AccumulatorUnixServer

from floodmark.model.errors import ConfigError, FloodmarkError, TransientError
from floodmark.spark import context
from floodmark.spark.context import Spark
from floodmark.spark.failures import start_error
from floodmark.spark.jvm import Jvm
from floodmark.spark.pyspark_internals import _end as _end_server
from floodmark.spark.start import Started

TRACE = """Job aborted due to stage failure: Task 0 in stage 0.0 failed 4 times, most recent failure: Lost task 0.3 in stage 0.0
 (TID 3) (10.0.0.7 executor 1): org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "pyspark.zip/pyspark/worker.py", line 1, in main
{said}

Driver stacktrace:"""


class JavaException:
    """As Py4J hands it over."""

    _target_id = "o1"

    def __init__(self, name: str, message: str | None) -> None:
        self._name, self._message = name, message

    def getMessage(self) -> str | None:
        return self._message

    def getClass(self) -> JavaException:
        return self

    def getSimpleName(self) -> str:
        return self._name


def thrown(message: str | None, name: str = "SparkException") -> Exception:
    error: Exception = Py4JJavaError("An error occurred", JavaException(name, message))
    return error


def lost(said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FloodmarkError:
    monkeypatch.setattr(Spark, "alive", True)
    return Spark("spark://host:7077", log_path=tmp_path / "log")._lost(thrown(said), "shop.orders")


@pytest.mark.parametrize(
    "said",
    [
        "ModuleNotFoundError: No module named 'pyarrow'",
        "ImportError: libstdc++.so.6: cannot open shared object file: No such file or directory",
    ],
)
def test_a_missing_package_on_a_machine_is_a_config_error_and_is_not_retried(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = lost(TRACE.format(said=said), tmp_path, monkeypatch)
    assert isinstance(error, ConfigError)
    assert said in error.message and "docs/cluster.md" in (error.hint or "")


def test_an_archive_that_does_not_fit_the_executors_is_a_mistake_in_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = "Floodmark's archive is for Python 3.11 on Linux x86_64, but this machine is Linux aarch64: run `floodmark pack` on one like it"
    text = f"Job aborted: Lost task 0.3 in stage 0.0: org.apache.spark.SparkException: \nError from python worker:\n  {refused}\nPYTHONPATH was:\n"
    error = lost(text, tmp_path, monkeypatch)
    assert isinstance(error, ConfigError) and error.message.endswith(refused)


def test_a_session_whose_workers_have_another_python_is_a_mistake_that_names_both_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = (
        "pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.10"
        " than that in driver: 3.11, PySpark cannot run with different minor versions."
    )
    error = lost(TRACE.format(said=said), tmp_path, monkeypatch)
    assert isinstance(error, ConfigError) and error.message.endswith(
        "version: 3.10 than that in driver: 3.11"
    )
    assert "PYSPARK_PYTHON" in (error.hint or "")


def test_another_error_of_a_worker_is_a_lost_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = lost(TRACE.format(said="EOFError: it ended"), tmp_path, monkeypatch)
    assert isinstance(error, TransientError) and "EOFError: it ended" in error.message


def test_a_start_that_fails_with_nothing_but_a_path_names_the_exception(tmp_path: Path) -> None:
    said = thrown("/srv/environment.tar.gz", "NoSuchFileException")
    error = start_error(said, Jvm({"spark.master": "spark://host:7077"}, tmp_path / "log"))
    assert error.message == "Spark did not start: NoSuchFileException: /srv/environment.tar.gz"


def test_a_start_that_fails_without_a_message_names_the_exception(tmp_path: Path) -> None:
    jvm = Jvm({"spark.master": "spark://host:7077"}, tmp_path / "log")
    error = start_error(thrown(None, "NullPointerException"), jvm)
    assert "NullPointerException" in error.message


@pytest.mark.parametrize("named", [True, False], ids=["its log says why", "its log says nothing"])
def test_a_master_that_can_t_be_reached_is_exit_code_4_whenever_spark_ends_the_context(
    named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark gives up in a thread of its own, perhaps after it has handed out the context."""

    class Ended:
        def getConf(self) -> None:
            raise thrown("Cannot call methods on a stopped SparkContext.\nIt was created at: …")

    said = "ERROR StandaloneSchedulerBackend: All masters are unresponsive! Giving up." if named else ""
    monkeypatch.setattr(Jvm, "said", lambda _: said)
    monkeypatch.setattr(context, "started", lambda _: Started(Ended(), None, "own JVM"))
    with pytest.raises(TransientError) as caught:
        Spark("spark://127.0.0.1:1", log_path=tmp_path / "log").start()
    assert caught.value.code == 4 and "spark.master (spark://127.0.0.1:1)" in str(caught.value.hint)
    assert ("spark://127.0.0.1:1 is unreachable" in caught.value.message) is named


def test_a_socket_that_goes_at_the_same_moment_does_not_make_an_end_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = AccumulatorUnixServer(str(tmp_path / "sock"), socketserver.StreamRequestHandler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    (tmp_path / "sock").unlink()
    with monkeypatch.context() as race:
        race.setattr("os.path.exists", lambda path: True)
        _end_server(server)
    thread.join(10)
    assert not thread.is_alive()
