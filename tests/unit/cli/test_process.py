"""The command as a process: signals, a reader that is gone, output that can't be written, the module."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import floodmark
from floodmark.cli.main import main
from floodmark.model.errors import DataError
from floodmark.model.run import SyncReport, TableReport
from tests.unit.conftest import does


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_run_with_its_code_and_says_that_the_next_one_continues(
    pipeline: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: signal.Signals, code: int
) -> None:
    def step(*args: Any) -> Any:
        os.kill(os.getpid(), number)
        time.sleep(10)

    before = signal.getsignal(number)
    does(pipeline, sync=step)
    assert main(["sync", "-t", "a.b"]) == code
    assert signal.getsignal(number) is before
    (line,) = capsys.readouterr().err.splitlines()
    assert "the next run continues" in line


def test_a_signal_that_a_library_wrapped_is_still_an_interruption(
    pipeline: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def step(
        config: Any, tables: Any, all_tables: bool, options: Any, progress: Any, run: str, spark: Any
    ) -> Any:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        except Exception as error:
            if options.force:
                raise RuntimeError("the gateway broke") from error
        return SyncReport(run, 1.0, (TableReport("a.b", error=DataError("broke")),))

    does(pipeline, sync=step)
    for more in ([], ["--force"]):
        assert main(["sync", "-t", "a.b", *more]) == 143
        assert "the next run continues" in capsys.readouterr().err


STUBBORN = """
import sys, time
from floodmark.cli.main import main
from floodmark.sync import preview
def plan(*args):
    while True:
        try:
            print("ready", flush=True)
            time.sleep(60)
        except Exception:
            pass
preview.plan = plan
sys.exit(main(["plan", "-t", "a.b"]))
"""


def test_a_second_ctrl_c_ends_the_process_at_once(config: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for _ in range(2):
            assert process.stdout.readline() == "ready\n"
            time.sleep(0.4)
            process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


PRINTING = """
import sys
from floodmark.cli.main import main
from floodmark.watermark import show
from floodmark.model.results import WatermarkList
show.watermark_list = lambda config, tables: WatermarkList.of({"tables": [{"table_name": "x" * 100}] * 5000})
sys.exit(main(["watermark", "list"]))
"""


def test_a_closed_pipe_is_not_a_failure(config: Path) -> None:
    script = f"{sys.executable} -c '{PRINTING}' | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1


HELP = "import sys; from floodmark.cli.main import main; sys.exit(main(['watermark', 'get', '--help']))"


@pytest.mark.parametrize("command", [PRINTING, HELP])
def test_a_result_that_cannot_be_written_is_code_4(config: Path, command: str) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", command], stdout=full, stderr=subprocess.PIPE, text=True, timeout=120
        )
    assert done.returncode == 4
    assert "could not be written" in done.stderr and "bug" not in done.stderr


HOLDING = """
import sys, threading, time, duckdb
def hold():
    con = duckdb.connect()
    held.set()
    time.sleep(60)
held = threading.Event()
threading.Thread(target=hold, daemon=True).start()
held.wait()
from floodmark.cli.main import main
sys.argv = ["floodmark", "--version"]
sys.exit(main())
"""


def test_the_process_ends_quietly_while_a_thread_still_uses_a_library() -> None:
    done = subprocess.run([sys.executable, "-c", HOLDING], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "floodmark, version" in done.stdout


def test_the_module_runs_like_the_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "floodmark", "--version"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (0, f"floodmark, version {floodmark.__version__}\n")
