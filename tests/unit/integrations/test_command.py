"""The command as an orchestrator sees it: its exit code, its document, and how it ends."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from floodmark.integrations.command import (
    CommandProcess,
    CommandResult,
    Missing,
    moved,
    short,
    sync_arguments,
    verdict,
)
from floodmark.model.errors import PRECEDENCE, ConfigError


@pytest.mark.parametrize(
    ("codes", "expected"),
    [((0,), "done"), ((3,), "skip"), ((4, 5, 130, 143, -9, -15), "retry"), ((1, 2, 6, 7, 99), "fail")],
)
def test_an_exit_code_is_done_skipped_tried_again_or_final(codes: tuple[int, ...], expected: str) -> None:
    assert {verdict(code) for code in codes} == {expected}


def test_every_exit_code_of_the_contract_has_a_verdict() -> None:
    assert {code: verdict(code) for code in sorted(PRECEDENCE)} == {
        1: "fail", 2: "fail", 3: "skip", 4: "retry", 5: "retry", 6: "fail", 7: "fail",
    }  # fmt: skip


def script(code: str, **more: Any) -> tuple[CommandProcess, list[str]]:
    said: list[str] = []
    return CommandProcess((), (sys.executable, "-c", code), say=said.append, **more), said


def test_the_document_is_what_the_command_prints_and_its_errors_are_passed_on() -> None:
    command, said = script(
        "import os, sys; print('{\"run\": \"r\"}'); print('oh', file=sys.stderr); sys.exit(int(os.environ['CODE']))",
        env={"CODE": "4"},
    )
    ended = command.run()
    assert (ended.code, ended.document, said) == (4, {"run": "r"}, ["oh"])
    assert ended.why == "oh"


def test_a_listener_that_fails_does_not_hold_the_command() -> None:
    def fails(line: str) -> None:
        raise ConnectionError(line)

    code = "import sys; [print('x' * 99, file=sys.stderr) for _ in range(5000)]; print('{}')"  # fills a pipe
    ended = CommandProcess((), (sys.executable, "-c", code), say=fails).run()
    assert (ended.code, ended.document) == (0, {})


def test_why_it_failed_is_the_error_of_the_document() -> None:
    error = {"message": "MySQL is away.", "hint": "run again"}
    assert CommandResult(4, {"ok": False, "error": error}, ("x",)).why == "MySQL is away. run again"
    assert (
        CommandResult(4, {"tables": [{"error": None}, {"error": error}]}, ()).why
        == "MySQL is away. run again"
    )
    assert CommandResult(-9, None, ()).why == "floodmark ended with exit code -9"


def test_stop_ends_the_command_by_sigterm(tmp_path: Path) -> None:
    command, _ = script(
        "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *a: sys.exit(143)); "
        f"open({str(tmp_path / 'up')!r}, 'w').close(); time.sleep(60)"
    )
    ended: list[CommandResult] = []
    thread = threading.Thread(target=lambda: ended.append(command.run()))
    thread.start()
    while not (tmp_path / "up").exists():
        thread.join(0.01)
    command.stop()
    thread.join()
    assert ended[0].code == 143
    command.stop()  # it has ended


def test_stop_from_a_signal_handler_ends_a_run_that_waits_below_it(tmp_path: Path) -> None:
    (tmp_path / "child.py").write_text("import time; open('up', 'w').close(); time.sleep(60)")
    code = """
import os, signal, sys, threading, time
from pathlib import Path
from floodmark.integrations.command import CommandProcess

command = CommandProcess((), (sys.executable, "child.py"))
signal.signal(signal.SIGTERM, lambda *a: command.stop())

def strike():
    while not Path("up").exists():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=strike, daemon=True).start()
print(command.run().code)
"""
    parent = [sys.executable, "-c", code]
    done = subprocess.run(parent, cwd=tmp_path, capture_output=True, text=True, timeout=50, check=False)
    assert done.stdout.strip() == "-15", done.stderr


def test_a_command_that_does_not_end_is_killed(tmp_path: Path) -> None:
    command, _ = script(
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"open({str(tmp_path / 'up')!r}, 'w').close(); time.sleep(60)",
        stop_seconds=0.1,
    )
    ended: list[CommandResult] = []
    thread = threading.Thread(target=lambda: ended.append(command.run()))
    thread.start()
    while not (tmp_path / "up").exists():
        thread.join(0.01)
    command.stop()
    thread.join()
    assert ended[0].code == -9


def test_options_become_a_command_line() -> None:
    options = {"limit": 5, "verify_data": True, "force": False, "since": None}
    assert sync_arguments(["a.b", "a.c"], False, options, "f.yaml", "sync") == [
        "--json", "--config", "f.yaml", "sync", "-t", "a.b", "-t", "a.c", "--limit", "5", "--verify-data",
    ]  # fmt: skip
    assert sync_arguments((), True, {}, None, "verify") == ["--json", "verify", "--all"]


def table(name: str, **more: Any) -> dict[str, Any]:
    mark = {
        "last_redshift_load_time": "2025-08-19T15:30:00.000000Z", "last_mysql_data_timestamp": "2025-08-19T15:29:00",
        "last_mysql_data_id": [7], "commit": 42, "processed_s3_files": ["a"] * 1000, "pending_s3_files": [],
    }  # fmt: skip
    none = {"ok": True, "files_loaded": 0, "rows_loaded": 0, "rows_deleted": 0, "watermark": mark}
    return {"table": name, **none, **more}


def test_only_targets_whose_rows_changed_get_events() -> None:
    document = {
        "run": "r",
        "tables": [
            table("idle"),
            table("filled", files_loaded=2, rows_loaded=9),
            table("emptied", rows_deleted=1),
            table("failed", ok=False, files_loaded=1),
        ],
    }
    assert list(moved(document)) == ["filled", "emptied"]
    assert moved(document)["filled"] == {
        "run": "r", "rows": 9, "rows_deleted": 0, "watermark": "2025-08-19T15:29:00", "watermark_id": [7],
        "commit": 42, "loaded_at": "2025-08-19T15:30:00.000000Z",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("last", "told"),
    [("2025-08-19T15:00:00.000000Z", ["t"]), ("2025-08-19T15:30:00.000000Z", []), (None, ["t"])],
)
def test_rows_that_a_failed_attempt_has_loaded_are_reported_by_the_next_one(
    last: str | None, told: list[str]
) -> None:
    assert list(moved({"tables": [table("t")]}, lambda name: last)) == told


def test_what_goes_from_task_to_task_has_no_lists_of_files() -> None:
    (kept,) = short({"run": "r", "tables": [table("t")]})["tables"]
    assert kept["watermark"]["commit"] == 42 and "processed_s3_files" not in kept["watermark"]
    assert short({"ok": True}) == {"ok": True}


@pytest.mark.parametrize("name", ["airflow", "dagster"])
def test_a_missing_orchestrator_is_one_line_that_says_what_to_install(name: str) -> None:
    with pytest.raises(ImportError) as failed:
        __import__(f"floodmark.{name}")
    error = failed.value
    assert isinstance(error, ConfigError) and error.code == 2
    assert str(error).endswith(f"which is not installed: pip install 'floodmark[{name}]'")


def test_an_orchestrator_that_is_too_old_is_named_with_its_version() -> None:
    found = Missing.extra("It", "pytest", "tests", "pytest 99", ImportError("no module named future"))
    assert str(found) == (
        f"It needs pytest 99 or newer, and {pytest.__version__} is installed (no module named future): "
        "pip install 'floodmark[tests]'"
    )
