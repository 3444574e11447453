"""FloodmarkOperator: exit codes, stops and rows as Airflow sees them; and the DAGs of docs/examples.

Airflow itself is not installed: the few names that the operator takes from it are made here. tests/e2e/integrations has a
real one.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, ModuleType, SimpleNamespace
from typing import Any

import pytest

EXAMPLE = Path(__file__).resolve().parents[3] / "docs" / "examples" / "floodmark_dag.py"
TOLD = '{"run": "r", "tables": [%s]}'
TABLE = (
    '{"table": "s.t", "ok": true, "files_loaded": %d, "rows_loaded": 5, "rows_deleted": 0, '
    '"watermark": {"last_redshift_load_time": "2025-08-19T15:30:00Z", "commit": 42, "processed_s3_files": ["f"]}}'
)


class Timeout(BaseException):
    """As Airflow's AirflowTaskTimeout, which is no Exception."""


@dataclass(frozen=True)
class Asset:
    name: str
    uri: str = ""


class Operator:
    """The base class, as far as the operator uses it."""

    log = logging.getLogger("operator")
    expanded: list[dict[str, Any]]

    def __init__(self, *, task_id: str, inlets: Any = None, outlets: Any = None, **_: Any) -> None:
        self.task_id, self.inlets, self.outlets = task_id, inlets, outlets

    @classmethod
    def partial(cls, **options: Any) -> Any:
        return SimpleNamespace(expand=lambda **more: [cls(**options, tables=one) for one in more["tables"]])


@dataclass
class Events:
    """The events that were added, and those of the past."""

    added: list[tuple[Asset, dict[str, Any]]] = field(default_factory=list)
    past: list[Any] = field(default_factory=list)

    def add(self, asset: Asset, extra: dict[str, Any]) -> None:
        self.added.append((asset, extra))

    @property
    def context(self) -> Any:
        alias = Asset("floodmark:floodmark")
        return {"outlet_events": {alias: self}, "inlet_events": {alias: self.past}}


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The operator's module, with `errors` and `schedules` of the fake Airflow."""
    package, sdk, errors = (ModuleType(name) for name in ("airflow", "airflow.sdk", "airflow.sdk.exceptions"))
    for name in ("AirflowException", "AirflowFailException", "AirflowSkipException"):
        setattr(errors, name, type(name, (Exception,), {}))
    schedules: dict[str, object] = {}

    def dag(**options: Any) -> Callable[[Callable[[], None]], Callable[[], None]]:
        def made(function: Callable[[], None]) -> Callable[[], None]:
            schedules[function.__name__] = options["schedule"]
            return function

        return made

    vars(sdk).update(
        dag=dag, task=lambda function: function, Asset=Asset, AssetAlias=Asset, BaseOperator=Operator
    )
    for module in (package, sdk, errors):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    loaded = importlib.import_module("floodmark.airflow")
    vars(loaded).update(errors=errors, schedules=schedules)
    yield loaded
    sys.modules.pop(loaded.__name__, None)


def operator(airflow: Any, folder: Path, script: str, **options: Any) -> Any:
    """An operator with another program instead of the command."""
    program = folder / "floodmark"
    program.write_text(f"#!/bin/sh\ncd {folder}\n{script}\n")
    program.chmod(0o755)
    return airflow.FloodmarkOperator(task_id="x", tables="s.t", program=str(program), **options)


@contextmanager
def timing_out_once(ready: Path) -> Iterator[None]:
    """An exception from a signal handler, as Airflow raises it, while the command is running."""

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
        (5, "AirflowException"),
        (143, "AirflowException"),
        (2, "AirflowFailException"),
        (6, "AirflowFailException"),
        (7, "AirflowFailException"),
    ],
)
def test_an_exit_code_becomes_what_airflow_should_do(
    airflow: Any, tmp_path: Path, code: int, raised: str
) -> None:
    made = operator(airflow, tmp_path, f"echo 'floodmark: why' >&2; exit {code}")
    with pytest.raises(getattr(airflow.errors, raised), match="floodmark: why"):
        made.execute(Events().context)


def test_the_report_is_handed_on_and_rows_that_moved_are_an_event(airflow: Any, tmp_path: Path) -> None:
    events, told = Events(), TOLD % (TABLE % 1)
    made = operator(airflow, tmp_path, f"echo \"$@\" > arguments; echo '{told}'", options={"limit": 5})
    report = made.execute(events.context)
    assert (tmp_path / "arguments").read_text() == "--json sync -t s.t --limit 5\n"
    assert report["run"] == "r" and "processed_s3_files" not in report["tables"][0]["watermark"]
    ((asset, extra),) = events.added
    assert asset.uri == "floodmark://floodmark/s.t" and (extra["rows"], extra["commit"]) == (5, 42)


@pytest.mark.parametrize(("last", "events"), [("2025-08-19T15:00:00Z", 1), ("2025-08-19T15:30:00Z", 0)])
def test_a_load_without_an_event_gets_one_now(airflow: Any, tmp_path: Path, last: str, events: int) -> None:
    past = SimpleNamespace(asset=airflow.asset("s.t"), extra={"loaded_at": last})
    seen = Events(past=[past])
    operator(airflow, tmp_path, f"echo '{TOLD % (TABLE % 0)}'").execute(seen.context)
    assert len(seen.added) == events


def test_a_verify_makes_no_events(airflow: Any, tmp_path: Path) -> None:
    made = operator(airflow, tmp_path, """echo '{"ok": true, "tables": []}'""", command="verify")
    assert made.execute({}) == {"ok": True, "tables": []}


def test_a_task_that_times_out_sends_sigterm_and_waits(airflow: Any, tmp_path: Path) -> None:
    script = "trap 'touch ended; exit 143' TERM\ntouch ready\nwhile :; do sleep 0.05; done"
    made = operator(airflow, tmp_path, script)
    with pytest.raises(Timeout), timing_out_once(tmp_path / "ready"):
        made.execute(Events().context)
    assert (tmp_path / "ended").exists()


def test_a_command_that_ignores_sigterm_is_killed(airflow: Any, tmp_path: Path) -> None:
    script = "trap '' TERM\ntouch ready\nwhile :; do sleep 0.05; done"
    made = operator(airflow, tmp_path, script, stop_seconds=0.2)
    with pytest.raises(Timeout), timing_out_once(tmp_path / "ready"):
        made.execute(Events().context)
    made.on_kill()  # it has ended


def test_users_import_the_operator_by_its_short_name(airflow: Any) -> None:
    short = importlib.import_module("floodmark.airflow")
    assert short.FloodmarkOperator is airflow.FloodmarkOperator and short.asset is airflow.asset


def test_tables_have_to_be_named(airflow: Any) -> None:
    with pytest.raises(ValueError, match="name the tables"):
        airflow.FloodmarkOperator(task_id="x")
    with pytest.raises(ValueError, match="name the tables"):
        airflow.FloodmarkOperator(task_id="x", tables="s.t", all_tables=True)


def test_the_example_loads_and_verifies_tables_once_a_night(airflow: Any) -> None:
    spec = importlib.util.spec_from_file_location("floodmark_dag", EXAMPLE)
    assert spec and spec.loader
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    assert airflow.schedules["floodmark_verify"] == "30 3 * * *"
    assert airflow.schedules["orders_changed"] == [airflow.asset("settlement.orders")]
    assert set(airflow.schedules) == {"floodmark_sync", "orders_changed", "floodmark_verify"}
