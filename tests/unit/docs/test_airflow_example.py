"""docs/examples/floodmark_dag.py: what each exit code becomes in Airflow, and how a task that is stopped ends the command.

Airflow itself is not installed; the few names that the example takes from it are modules made here.
"""

from __future__ import annotations

import importlib.util
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

EXAMPLE = Path(__file__).resolve().parents[3] / "docs" / "examples" / "floodmark_dag.py"


class Timeout(BaseException):
    """As Airflow's AirflowTaskTimeout, which is no Exception."""


class Task:
    """What `@task` makes of a function, as far as the example uses it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.expanded: dict[str, Any] = {}

    def expand(self, **values: Any) -> None:
        self.expanded = values


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    package, errors, sdk = (ModuleType(name) for name in ("airflow", "airflow.exceptions", "airflow.sdk"))
    for name in ("AirflowException", "AirflowFailException", "AirflowSkipException"):
        setattr(errors, name, type(name, (Exception,), {}))
    schedules: dict[str, object] = {}

    def dag(**options: Any) -> Callable[[Callable[[], None]], Callable[[], None]]:
        def made(function: Callable[[], None]) -> Callable[[], None]:
            schedules[function.__name__] = options["schedule"]
            return function

        return made

    def task(function: Callable[..., Any] | None = None, **_: Any) -> Any:
        return Task(function) if function else Task

    vars(sdk).update(dag=dag, task=task)
    for module in (package, errors, sdk):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    spec = importlib.util.spec_from_file_location("floodmark_dag", EXAMPLE)
    assert spec and spec.loader
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    vars(loaded).update(schedules=schedules, errors=errors)
    return loaded


def command(example: Any, folder: Path, script: str) -> Path:
    """A command in the place of floodmark; gives the folder that it writes to."""
    place = folder / "floodmark"
    place.write_text(f"#!/bin/sh\ncd {folder}\n{script}\n")
    place.chmod(0o755)
    example.FLOODMARK = str(place)
    return folder


@contextmanager
def timing_out_once(ready: Path) -> Iterator[None]:
    """An exception from a signal handler, as Airflow raises it, once the command is at work."""

    def ring(_number: int, _frame: FrameType | None) -> None:
        if not ready.exists():
            signal.setitimer(signal.ITIMER_REAL, 0.02)
            return
        raise Timeout

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    ("code", "raised"),
    [
        (3, "AirflowSkipException"),
        (4, "AirflowException"),
        (143, "AirflowException"),
        (2, "AirflowFailException"),
        (7, "AirflowFailException"),
    ],
)
def test_an_exit_code_becomes_what_airflow_should_do(
    example: Any, tmp_path: Path, code: int, raised: str
) -> None:
    command(example, tmp_path, f"echo 'floodmark: why' >&2; exit {code}")
    with pytest.raises(getattr(example.errors, raised), match="floodmark: why"):
        example.run_floodmark("sync", "-t", "s.t")


def test_a_document_is_passed_on(example: Any, tmp_path: Path) -> None:
    command(example, tmp_path, 'echo "$@" > arguments; echo \'{"ok": true}\'')
    assert example.run_floodmark("sync", "-t", "s.t") == {"ok": True}
    assert (tmp_path / "arguments").read_text().endswith("--json --quiet sync -t s.t\n")


def test_a_task_that_times_out_sends_sigterm_and_waits(example: Any, tmp_path: Path) -> None:
    command(example, tmp_path, "trap 'touch ended; exit 143' TERM\ntouch ready\nwhile :; do sleep 0.05; done")
    with pytest.raises(Timeout), timing_out_once(tmp_path / "ready"):
        example.run_floodmark("sync", "-t", "s.t")
    assert (tmp_path / "ended").exists()


def test_a_command_that_ignores_sigterm_is_killed(example: Any, tmp_path: Path) -> None:
    command(example, tmp_path, "trap '' TERM\ntouch ready\nwhile :; do sleep 0.05; done")
    example.STOP_SECONDS = 0.2
    began = time.monotonic()
    with pytest.raises(Timeout), timing_out_once(tmp_path / "ready"):
        example.run_floodmark("sync", "-t", "s.t")
    assert time.monotonic() - began < 30


def test_tables_are_verified_once_a_night(example: Any) -> None:
    assert example.schedules["floodmark_verify"] == "30 3 * * *"
    assert len(example.schedules) == 2
