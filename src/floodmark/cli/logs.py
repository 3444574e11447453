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
from typing import TYPE_CHECKING, Any

from floodmark.model.errors import ConfigError
from floodmark.model.secrets import Scrubber, masked
from floodmark.model.statements import STATEMENTS
from floodmark.model.text import clock, shown, shown_json
from floodmark.model.times import stamp

if TYPE_CHECKING:
    from floodmark.cli.options import Settings

KEYS = ("run", "table", "commit", "step")

logger = logging.getLogger("floodmark")


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


def to_stderr(settings: Settings) -> logging.Handler:
    """Writes to stderr what the global options ask for."""
    handler = _Stderr()
    handler.setFormatter(_form(settings, tracebacks=settings.debug))
    usual = logging.INFO if settings.json_logs else logging.WARNING
    handler.setLevel(logging.DEBUG if settings.debug else logging.ERROR if settings.quiet else usual)
    # What was printed as a plain line is not repeated as a log line.
    handler.addFilter(
        lambda record: _ours(record) and (settings.json_logs or not getattr(record, "said", False))
    )
    return handler


def to_file(settings: Settings, file: Path) -> logging.Handler:
    """Appends everything to a file; ConfigError if it can't be opened."""
    try:
        # Opening a pipe that nobody reads would block without O_NONBLOCK.
        os.close(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666))
        handler = logging.FileHandler(file, mode="a", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        why = error.strerror or str(error)
        hint = "name a file in an existing folder that you can write to"
        raise ConfigError(f"--log-file {file}: {why}", hint=hint) from error
    handler.setFormatter(_form(settings, tracebacks=True))
    # Other libraries only with their warnings: py4j alone writes a line per call.
    handler.addFilter(lambda record: _ours(record) or record.levelno >= logging.WARNING)
    return handler


def _form(settings: Settings, tracebacks: bool) -> logging.Formatter:
    form = JsonLines if settings.json_logs else TextLines
    return form(settings.scrub, lambda: settings.run, tracebacks)


@contextmanager
def attach(handler: logging.Handler) -> Iterator[None]:
    """The handler gets the log lines, until the block ends."""
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()


@contextmanager
def levels(debug: bool) -> Iterator[None]:
    """Everything of ours is logged, warnings and what ends a thread too, until the block ends."""
    before, statements = logger.level, STATEMENTS.level
    hook, raising = threading.excepthook, logging.raiseExceptions
    logger.setLevel(logging.DEBUG)
    STATEMENTS.setLevel(logging.DEBUG if debug else logging.WARNING)
    logging.captureWarnings(True)
    logging.raiseExceptions = False
    threading.excepthook = _thread_failed
    try:
        yield
    finally:
        threading.excepthook, logging.raiseExceptions = hook, raising
        logging.captureWarnings(False)
        logger.setLevel(before)
        STATEMENTS.setLevel(statements)


def _thread_failed(args: threading.ExceptHookArgs) -> None:
    """Logs why a thread died, without a traceback on the terminal."""
    if args.exc_value is not None:
        name = args.thread.name if args.thread else "?"
        info = (args.exc_type, args.exc_value, args.exc_traceback)
        said = traceback.format_exception_only(args.exc_type, args.exc_value)[-1].strip()
        logger.error("thread %s failed: %s", name, said, exc_info=info)
