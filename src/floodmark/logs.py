"""Logs: fixed keys (run, table, commit, step), to stderr and to `--log-file`, with secrets masked.

Every line passes through one `Scrubber`, which learns the secrets when the configuration has been read;
nothing that Floodmark writes to stderr goes around it. Tracebacks are shown with `--debug` only; the log
file has them always.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import sys
import threading
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

from floodmark.errors import ConfigError
from floodmark.units import shown, shown_json

KEYS = ("run", "table", "commit", "step")
MASK = "***"
_SECRET_NAMES = frozenset({"password", "secret_access_key", "access_key_id", "session_token", "passphrase"})
_SECRET_SETTING = re.compile(r"secret|password|passphrase|token|access[._-]?key", re.IGNORECASE)
# `user:password@` is what our own hints say; a real password of that name is masked when it has been learned.
_URL_PASSWORD = re.compile(r"(?P<user>\b[a-z][a-z0-9+.-]*://[^\s:/@]*):(?!password@)[^\s@]+@", re.IGNORECASE)
# Below this length a secret is masked only where it stands alone: a password "a" must not blank all text.
_SHORT = 6

log = logging.getLogger("floodmark")


class Scrubber:
    """Masks the secrets that it has learned, and the passwords of URLs, in any text."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._pattern: re.Pattern[str] | None = None
        self._secrets: set[str] = set()
        self.add(secrets)

    def add(self, secrets: Iterable[str]) -> None:
        """Mask these from now on, also as URLs, JSON and Python's repr would write them."""
        for secret in secrets:
            if secret.strip():
                written = {secret, quote(secret, safe=""), quote_plus(secret)}
                written |= {json.dumps(secret)[1:-1], repr(secret)[1:-1]}
                self._secrets |= written
        longest_first = sorted(self._secrets, key=lambda s: (-len(s), s))
        parts = [re.escape(s) if len(s) >= _SHORT else rf"(?<!\w){re.escape(s)}(?!\w)" for s in longest_first]
        self._pattern = re.compile("|".join(parts)) if parts else None

    def learn(self, value: object) -> None:
        """Mask every secret inside a configuration: fields hidden from its repr, and well-known names."""
        self.add(_secrets_in(value))

    def __call__(self, text: str) -> str:
        text = _URL_PASSWORD.sub(rf"\g<user>:{MASK}@", text)
        return self._pattern.sub(MASK, text) if self._pattern else text


def told(name: str, text: str) -> Iterator[str]:
    """The secrets in a setting of Spark's or Java's: its value if its name says so, and those of `-Dname=value`."""
    if _SECRET_SETTING.search(name) and text.lower() not in ("true", "false"):
        yield text
    for inner, value in re.findall(r"-D([^=\s]+)=(\S+)", text):
        yield from told(inner, value.strip("\"'"))


def _secrets_in(value: object) -> Iterator[str]:
    if not dataclasses.is_dataclass(value):
        return
    for field in dataclasses.fields(value):
        inner = getattr(value, field.name, None)
        if isinstance(inner, str) and (not field.repr or field.name in _SECRET_NAMES):
            yield inner
        elif isinstance(inner, dict):  # settings of another program, by their names
            yield from (
                secret for name, text in inner.items() if isinstance(text, str) for secret in told(name, text)
            )
        elif dataclasses.is_dataclass(inner):
            yield from _secrets_in(inner)


def _keys(record: logging.LogRecord, run: str) -> dict[str, Any]:
    found = {key: getattr(record, key, None) for key in KEYS}
    found["run"] = found["run"] or run
    return {key: value for key, value in found.items() if value not in (None, "")}


def _moment(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class TextLines(logging.Formatter):
    """`2025-08-14T16:45:33.123456Z WARNING message (table=s.t step=extract run=…)`."""

    def __init__(self, scrub: Scrubber, run: str, tracebacks: bool) -> None:
        super().__init__()
        self._scrub, self._run, self._tracebacks = scrub, run, tracebacks

    def format(self, record: logging.LogRecord) -> str:
        keys = " ".join(f"{key}={value}" for key, value in _keys(record, self._run).items())
        message = " ".join(record.getMessage().split("\n"))
        line = f"{_moment(record)} {record.levelname:<7} {message}" + (f" ({keys})" if keys else "")
        lines = [self._scrub(line)]  # whatever is in it by a name: it stays one
        if record.exc_info and self._tracebacks:
            lines += self._scrub(self.formatException(record.exc_info)).split("\n")
        return "\n".join(shown(each) for each in lines)


class JsonLines(TextLines):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        keys = {key: _scrubbed(self._scrub, value) for key, value in _keys(record, self._run).items()}
        entry = {"at": _moment(record), "level": record.levelname.lower(), "logger": record.name}
        entry |= {"message": self._scrub(record.getMessage()), **keys}
        if record.exc_info and self._tracebacks:
            entry["traceback"] = self._scrub(self.formatException(record.exc_info))
        return shown_json(json.dumps(entry, ensure_ascii=False, default=str))


def _scrubbed(scrub: Scrubber, value: Any) -> Any:
    return scrub(value) if isinstance(value, str) else value


class _Stderr(logging.StreamHandler[Any]):
    """Writes to whatever sys.stderr is at that moment: progress bars put themselves in between."""

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
    scrub: Scrubber, run: str, *, debug: bool, quiet: bool, json_logs: bool, log_file: Path | None
) -> Iterator[None]:
    """Logging as the global options ask for it, until the block ends."""
    form = JsonLines if json_logs else TextLines
    stderr = _Stderr()
    stderr.setFormatter(form(scrub, run, tracebacks=debug))
    usual = logging.INFO if json_logs else logging.WARNING
    stderr.setLevel(logging.DEBUG if debug else logging.ERROR if quiet else usual)
    # What has been said as a plain line already is not repeated as a log line beside it.
    stderr.addFilter(lambda record: _ours(record) and (json_logs or not getattr(record, "said", False)))
    handlers: list[logging.Handler] = [stderr]
    if log_file is not None:
        try:
            # Who opens a pipe without a reader waits for one, unless told not to.
            os.close(os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666))
            file = logging.FileHandler(log_file, mode="a", encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            why = error.strerror or str(error)
            hint = "name a file in a folder that exists and that you may write to"
            raise ConfigError(f"--log-file {log_file}: {why}", hint=hint) from error
        file.setFormatter(form(scrub, run, tracebacks=True))
        # Other libraries only with their warnings: py4j alone writes a line per call.
        file.addFilter(lambda record: _ours(record) or record.levelno >= logging.WARNING)
        handlers.append(file)
    with _attached(handlers):
        yield


@contextmanager
def _attached(handlers: list[logging.Handler]) -> Iterator[None]:
    root, before = logging.getLogger(), log.level
    hook, raising = threading.excepthook, logging.raiseExceptions
    for handler in handlers:
        root.addHandler(handler)
    log.setLevel(logging.DEBUG)
    logging.captureWarnings(True)
    logging.raiseExceptions = False
    threading.excepthook = _thread_failed
    try:
        yield
    finally:
        threading.excepthook, logging.raiseExceptions = hook, raising
        logging.captureWarnings(False)
        log.setLevel(before)
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()


def _thread_failed(args: threading.ExceptHookArgs) -> None:
    """A thread's last words, without a traceback on the terminal."""
    if args.exc_value is not None:
        name = args.thread.name if args.thread else "?"
        info = (args.exc_type, args.exc_value, args.exc_traceback)
        said = traceback.format_exception_only(args.exc_type, args.exc_value)[-1].strip()
        log.error("thread %s ended: %s", name, said, exc_info=info)
