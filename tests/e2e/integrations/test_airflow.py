"""FloodmarkOperator in a real Airflow: `airflow dags test`, with states, XComs and asset events from its database."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Workspace
from tests.support.environments import PROGRAM, SOURCE, environment, run
from tests.support.orders import NOTE, create_orders, fill_orders

pytestmark = pytest.mark.long

HEAD = """
from datetime import datetime, timedelta
from airflow.sdk import DAG
from floodmark.airflow import FloodmarkOperator

with DAG("{dag}", schedule=None, start_date=datetime(2025, 1, 1), default_args={{"retries": {retries}, "retry_delay": timedelta(0)}}):
"""
TASK = """    FloodmarkOperator(task_id="{task}", tables=["{table}"], config="{config}", program="{program}")
"""


@dataclass
class Airflow:
    """A home of Airflow with its own database."""

    home: Path
    workspace: Workspace

    @property
    def env(self) -> dict[str, str]:
        return {
            "AIRFLOW_HOME": str(self.home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(self.home / "dags"),
            "AIRFLOW__CORE__UNIT_TEST_MODE": "False",
        }

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run("airflow", "-m", "airflow", *arguments, cwd=self.home, env=self.env)

    def write(self, dag: str, programs: Mapping[str, Path], retries: int = 0) -> None:
        """A DAG with a task for each program."""
        table, config = self.workspace.full_name("orders"), self.workspace.file
        tasks = [
            TASK.format(task=task, table=table, config=config, program=program)
            for task, program in programs.items()
        ]
        text = HEAD.format(dag=dag, retries=retries) + "".join(tasks)
        (self.home / "dags" / f"{dag}.py").write_text(text)

    def script(self, name: str, text: str) -> Path:
        """A program that replaces the command."""
        program = self.home / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
        return program

    def test(self, dag: str) -> subprocess.CompletedProcess[str]:
        return self.command("dags", "test", dag)

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        with sqlite3.connect(self.home / "airflow.db") as link:
            return link.execute(sql).fetchall()

    def states(self, dag: str) -> list[tuple[str, str]]:
        """Tasks and their states, oldest run first."""
        found = self.query(
            f"SELECT task_id, state FROM task_instance WHERE dag_id = '{dag}' ORDER BY start_date"
        )
        return [(str(task), str(state)) for task, state in found]

    def events(self) -> list[tuple[str, dict[str, Any]]]:
        found = self.query(
            "SELECT a.uri, e.extra FROM asset_event e JOIN asset a ON a.id = e.asset_id ORDER BY e.id"
        )
        return [(str(uri), json.loads(extra)) for uri, extra in found]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("airflow")
    (folder / "dags").mkdir()
    return folder


@pytest.fixture
def airflow(workspace: Workspace, home: Path) -> Airflow:
    workspace.execute(create_orders(NOTE), fill_orders(20, "seq MINUTE", note="'n'"))
    made = Airflow(home, workspace)
    if not (home / "airflow.db").exists():
        done = made.command("db", "migrate")
        assert done.returncode == 0, done.stderr
    return made


def test_a_sync_is_an_xcom_and_an_event_only_where_rows_moved(airflow: Airflow) -> None:
    airflow.write("moves", {"sync": PROGRAM})
    first = airflow.test("moves")
    assert airflow.states("moves") == [("sync", "success")], first.stdout + first.stderr
    ((uri, extra),) = airflow.events()
    assert uri == f"floodmark://floodmark/{airflow.workspace.full_name('orders')}"
    assert (extra["rows"], bool(extra["watermark"]), bool(extra["commit"])) == (20, True, True)
    ((value,),) = airflow.query("SELECT value FROM xcom WHERE dag_id = 'moves' AND key = 'return_value'")
    report = json.loads(value)
    report = json.loads(report) if isinstance(report, str) else report
    assert report["tables"][0]["rows_loaded"] == 20
    assert "processed_s3_files" not in report["tables"][0]["watermark"]

    airflow.test("moves")  # nothing new
    assert airflow.states("moves") == [("sync", "success")] * 2 and len(airflow.events()) == 1

    # Rows loaded by a run elsewhere, or by an attempt that failed afterwards, are reported by the next one.
    airflow.workspace.execute(fill_orders(5, "seq DAY", id="seq + 100", note="'n'"))
    airflow.workspace.synced("orders")
    airflow.test("moves")
    assert len(airflow.events()) == 2


def test_exit_codes_skip_retry_or_fail_the_task(airflow: Airflow) -> None:
    expected = {3: ("skipped", 1), 4: ("failed", 2), 5: ("failed", 2), 2: ("failed", 1), 6: ("failed", 1)}
    programs = {
        f"code_{code}": airflow.script(
            f"ends_{code}", f"echo x >> {airflow.home}/asked_{code}; echo 'it was {code}' >&2; exit {code}"
        )
        for code in expected
    }
    airflow.write("codes", programs, retries=1)
    done = airflow.test("codes")
    tries = {code: len((airflow.home / f"asked_{code}").read_text().split()) for code in expected}
    states = dict(airflow.states("codes"))
    found = {code: (states[f"code_{code}"], tries[code]) for code in expected}
    assert found == expected, done.stdout + done.stderr
    assert "it was 4" in done.stdout + done.stderr


def test_a_killed_task_ends_the_sync_as_sigterm_does(airflow: Airflow) -> None:
    log = airflow.home / "log"
    program = airflow.script(
        "held", f"trap 'echo ended >> {log}; exit 143' TERM\necho began >> {log}\nwhile :; do sleep 0.1; done"
    )
    airflow.write("killed", {"sync": program})
    process = subprocess.Popen(
        [str(environment("airflow")), "-m", "airflow", "dags", "test", "killed"],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(SOURCE), **airflow.env},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while not log.exists() and process.poll() is None:
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    process.wait(300)
    assert log.read_text().split() == ["began", "ended"]


def test_an_airflow_that_is_too_old_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "airflow").mkdir()
    (tmp_path / "airflow" / "__init__.py").write_text("__version__ = '2.10.5'\n")
    info = tmp_path / "apache_airflow-2.10.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: apache-airflow\nVersion: 2.10.5\n")
    env = {"PYTHONPATH": f"{SOURCE}:{tmp_path}"}
    done = run("dagster", "-c", "import floodmark.airflow", cwd=tmp_path, env=env)
    assert done.stderr.splitlines()[-1] == (
        "floodmark.integrations.command.Missing: FloodmarkOperator needs Airflow 3.0 or newer, and 2.10.5 is installed "
        "(No module named 'airflow.sdk'): pip install 'floodmark[airflow]'"
    )
