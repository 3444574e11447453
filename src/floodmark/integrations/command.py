"""The command as a child process of an orchestrator: its document, its exit code, and an orderly end.

Imports nothing beyond Python's own library and ours that do the same, so that an orchestrator's environment needs none of Floodmark's packages:
the command may live in an environment of its own.
"""

from __future__ import annotations

import json
import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any, Literal

from floodmark.host.process import child_environment
from floodmark.model.errors import ConfigError

PROGRAM = (sys.executable, "-m", "floodmark")
STOP_SECONDS = 60.0  # from SIGTERM to SIGKILL; a sync usually needs a few

Verdict = Literal["done", "skip", "retry", "fail"]

# What an orchestrator should do about an exit code. Any other fails for good and needs a person.
VERDICTS: Mapping[int, Verdict] = {
    0: "done",
    3: "skip",  # another run holds the table and does the work
    4: "retry",  # a service failed; nothing is lost
    5: "retry",  # the warehouse's answer was lost; the next run finds out
    130: "retry",
    143: "retry",
}


def verdict(code: int) -> Verdict:
    """What to do about an exit code; a process that a signal has killed is tried again."""
    return "retry" if code < 0 else VERDICTS.get(code, "fail")


@dataclass(frozen=True)
class CommandResult:
    """How a command ended."""

    code: int
    document: dict[str, Any] | None  # what it printed with --json, if it was JSON
    errors: tuple[str, ...]  # the last lines of stderr

    @property
    def failure(self) -> str:
        """That it failed, and why."""
        return f"floodmark ended with exit code {self.code}: {self.why}"

    @property
    def why(self) -> str:
        """Why it failed, in its own words."""
        error = (self.document or {}).get("error") or next(
            (table["error"] for table in (self.document or {}).get("tables", ()) if table.get("error")), None
        )
        if isinstance(error, dict) and error.get("message"):
            return f"{error['message']} {error.get('hint') or ''}".strip()
        return self.errors[-1] if self.errors else f"floodmark ended with exit code {self.code}"


@dataclass
class CommandProcess:
    """One call of the command. `run` returns when it has ended; `stop` may be called from anywhere."""

    arguments: Sequence[str]
    program: Sequence[str] = PROGRAM
    env: Mapping[str, str] | None = None  # beside this process's own
    say: Callable[[str], object] = print  # gets each line of stderr
    stop_seconds: float = STOP_SECONDS
    _process: subprocess.Popen[str] | None = field(default=None, init=False)

    def run(self) -> CommandResult:
        """Runs the command; whatever interrupts the wait, such as a timeout, stops the command cleanly."""
        process = self._process = subprocess.Popen(
            [*self.program, *self.arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env=child_environment(self.env),
        )
        lines: list[str] = []
        reader = threading.Thread(target=self._relay, args=(process, lines), daemon=True)
        reader.start()
        assert process.stdout is not None
        try:
            printed = process.stdout.read()
            _has_ended(process)
        except BaseException:  # a timeout of the orchestrator, or somebody stopped the task
            self.stop()
            raise
        reader.join(10)
        document = None
        with suppress(ValueError):
            found = json.loads(printed)
            document = found if isinstance(found, dict) else None
        return CommandResult(process.returncode, document, tuple(lines[-20:]))

    def stop(self) -> None:
        """Sends SIGTERM, so that the command ends cleanly; SIGKILL after `stop_seconds`."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        if not _has_ended(process, self.stop_seconds):
            process.kill()
            _has_ended(process)

    def _relay(self, process: subprocess.Popen[str], lines: list[str]) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line.rstrip("\n"))
            del lines[:-20]
            with suppress(Exception):  # keep reading: a full pipe would block the command
                self.say(lines[-1])


def _has_ended(process: subprocess.Popen[str], seconds: float = math.inf) -> bool:
    """Waits for the process to end, at most this many seconds; whether it has.

    Not `wait()`, which holds a lock: `stop` may run in a signal handler, on top of a `run` that waits.
    """
    until = time.monotonic() + seconds
    while process.poll() is None:
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def sync_arguments(
    tables: Sequence[str], all_tables: bool, options: Mapping[str, Any], config: str | None, command: str
) -> list[str]:
    """The command line; an option `since` is `--since`, True is a flag, a list is repeated."""
    found = ["--json", *(("--config", config) if config else ()), command]
    found += ["--all"] if all_tables else [part for table in tables for part in ("-t", table)]
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is True:
            found.append(flag)
        elif value is not None and value is not False:
            for one in value if isinstance(value, list | tuple) else [value]:
                found += [flag, str(one)]
    return found


def short(document: Any) -> Any:
    """The document without its lists of files, which may be thousands: small enough to pass between tasks."""
    lists = ("processed_s3_files", "pending_s3_files")
    if isinstance(document, list):
        return [short(one) for one in document]
    if isinstance(document, dict):
        return {name: short(value) for name, value in document.items() if name not in lists}
    return document


def moved(
    document: Mapping[str, Any], told: Callable[[str], str | None] | None = None
) -> dict[str, dict[str, Any]]:
    """Of each table of a sync whose target has changed, in this run or since the load last reported (`told`): how.

    An attempt may load rows and fail afterwards; the next one then finds nothing to do, and must report them.
    """
    found = {}
    for table in document.get("tables", ()):
        watermark = table.get("watermark") or {}
        loaded_at = watermark.get("last_redshift_load_time")
        before = told(table["table"]) if told else None
        late = bool(told and loaded_at and (not before or loaded_at > before))
        if not table.get("ok") or not (table["files_loaded"] or table["rows_deleted"] or late):
            continue
        found[table["table"]] = {
            "run": document.get("run"),
            "rows": table["rows_loaded"],
            "rows_deleted": table["rows_deleted"],
            "watermark": watermark.get("last_mysql_data_timestamp"),
            "watermark_id": watermark.get("last_mysql_data_id"),
            "commit": watermark.get("commit"),
            "loaded_at": loaded_at,
        }
    return found


class Missing(ConfigError, ImportError):
    """A package that an integration needs; an ImportError, too, because it is raised by an import."""

    @classmethod
    def extra(cls, what: str, package: str, extra: str, least: str, error: ImportError) -> Missing:
        """`what` needs `least`, which the extra brings; the error says what could not be imported."""
        hint = f"pip install 'floodmark[{extra}]'"
        try:
            version = metadata.version(package)
        except metadata.PackageNotFoundError:
            return cls(f"{what} needs {least} or newer, which is not installed", hint=hint)
        return cls(f"{what} needs {least} or newer, and {version} is installed ({error})", hint=hint)

    def __str__(self) -> str:
        return f"{self.message}: {self.hint}"
