"""Logs: to stderr and to `--log-file`, as text or as JSON lines with the fields of docs/logs.md, with secrets masked.

Every line passes through one `Scrubber`, which learns the secrets once the configuration has been read; nothing that
Floodmark writes to stderr goes around it. Tracebacks appear on stderr only with `--debug`, in the log file always;
statements appear in either only with `--debug`.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from floodmark.model.errors import ConfigError
from floodmark.model.secrets import Scrubber, masked
from floodmark.model.statements import STATEMENTS
from floodmark.model.text import clock, shown, shown_json
from floodmark.model.times import stamp

KEYS = ("run", "table", "commit", "step")

log = logging.getLogger("floodmark")


def _keys(record: logging.LogRecord, run: str) -> dict[str, Any]:
    found = {key: getattr(record, key, None) for key in KEYS}
    found["run"] = found["run"] or run
    return {key: value for key, value in found.items() if value not in (None, "")}


def _moment(record: logging.LogRecord) -> str:
    return stamp(datetime.fromtimestamp(record.created, UTC))


class TextLines(logging.Formatter):
    """`2025-08-14 16:45:33.123 UTC  WARNING message (run=… table=s.t step=extract)`."""

    def __init__(self, scrub: Scrubber, run: Callable[[], str], tracebacks: bool) -> None:
        super().__init__()
        self._scrub, self._run, self._tracebacks = scrub, run, tracebacks

    def format(self, record: logging.LogRecord) -> str:
        keys = " ".join(f"{key}={value}" for key, value in _keys(record, self._run()).items())
        message = record.getMessage()
        if getattr(record, "event", None) == "error" and (hint := record.fields.get("hint")):  # type: ignore[attr-defined]
            message += f"; {hint}"
        message = " ".join(message.split("\n"))
        at = clock(_moment(record), digits=3)
        line = f"{at}  {record.levelname:<7} {message}" + (f" ({keys})" if keys else "")
        lines = [self._scrub(line)]  # one line, whatever a name or a server put into it
        if record.exc_info and self._tracebacks:
            lines += self._scrub(self.formatException(record.exc_info)).split("\n")
        return "\n".join(shown(each) for each in lines)


class JsonLines(TextLines):
    """One JSON object per line, with the fields of docs/logs.md."""

    def format(self, record: logging.LogRecord) -> str:
        event = getattr(record, "event", None) or ("error" if record.levelno >= logging.ERROR else "log")
        entry = {"at": _moment(record), "level": record.levelname.lower(), "event": event}
        entry |= {"message": record.getMessage(), **_keys(record, self._run())}
        entry |= getattr(record, "fields", {})
        entry["logger"] = record.name
        if record.exc_info and self._tracebacks:
            entry["traceback"] = self.formatException(record.exc_info)
        return shown_json(json.dumps(masked(entry, self._scrub), ensure_ascii=False, default=str))


class _Stderr(logging.StreamHandler[Any]):
    """Writes to whatever sys.stderr is at that moment: progress bars replace it while they are up."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> Any:
        return sys.stderr

    def handleError(self, record: logging.LogRecord) -> None:
        """A terminal that went away must not stop a sync."""


def _ours(record: logging.LogRecord) -> bool:
    return record.name == "floodmark" or record.name.startswith("floodmark.")


@contextmanager
def configured(
    scrub: Scrubber,
    run: Callable[[], str],
    *,
    debug: bool,
    quiet: bool,
    json_logs: bool,
    log_file: Path | None,
) -> Iterator[None]:
    """Logging as the global options specify, until the block ends."""
    form = JsonLines if json_logs else TextLines
    stderr = _Stderr()
    stderr.setFormatter(form(scrub, run, tracebacks=debug))
    usual = logging.INFO if json_logs else logging.WARNING
    stderr.setLevel(logging.DEBUG if debug else logging.ERROR if quiet else usual)
    # What was printed as a plain line is not repeated as a log line.
    stderr.addFilter(lambda record: _ours(record) and (json_logs or not getattr(record, "said", False)))
    handlers: list[logging.Handler] = [stderr]
    if log_file is not None:
        try:
            # Opening a pipe that nobody reads would block without O_NONBLOCK.
            os.close(os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666))
            file = logging.FileHandler(log_file, mode="a", encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            why = error.strerror or str(error)
            hint = "name a file in an existing folder that you can write to"
            raise ConfigError(f"--log-file {log_file}: {why}", hint=hint) from error
        file.setFormatter(form(scrub, run, tracebacks=True))
        # Other libraries only with their warnings: py4j alone writes a line per call.
        file.addFilter(lambda record: _ours(record) or record.levelno >= logging.WARNING)
        handlers.append(file)
    with _attached(handlers, debug):
        yield


@contextmanager
def _attached(handlers: list[logging.Handler], debug: bool) -> Iterator[None]:
    root, before, statements = logging.getLogger(), log.level, STATEMENTS.level
    hook, raising = threading.excepthook, logging.raiseExceptions
    for handler in handlers:
        root.addHandler(handler)
    log.setLevel(logging.DEBUG)
    STATEMENTS.setLevel(logging.DEBUG if debug else logging.WARNING)
    logging.captureWarnings(True)
    logging.raiseExceptions = False
    threading.excepthook = _thread_failed
    try:
        yield
    finally:
        threading.excepthook, logging.raiseExceptions = hook, raising
        logging.captureWarnings(False)
        log.setLevel(before)
        STATEMENTS.setLevel(statements)
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()


def _thread_failed(args: threading.ExceptHookArgs) -> None:
    """Logs why a thread died, without a traceback on the terminal."""
    if args.exc_value is not None:
        name = args.thread.name if args.thread else "?"
        info = (args.exc_type, args.exc_value, args.exc_traceback)
        said = traceback.format_exception_only(args.exc_type, args.exc_value)[-1].strip()
        log.error("thread %s failed: %s", name, said, exc_info=info)
