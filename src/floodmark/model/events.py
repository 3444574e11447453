"""Log events: the fields that `--json-logs` prints with each message, a contract documented in docs/logs.md.

`EVENTS` is the complete vocabulary; a test checks it against every call of `tell` and against the document.
SQL statements go to a separate logger that only `--debug` enables, with their literals masked.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from floodmark.model import text

if TYPE_CHECKING:  # the command line needs this module before it needs the model
    from floodmark.model.position import Position

COUNTS = ("rows", "rows_reread", "rows_loaded", "files", "bytes")

# Every event, and the fields it may carry besides those common to all lines.
EVENTS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "step_start": ("rows",),
        "progress": ("rows", "rows_expected", "files", "bytes", "seconds"),
        "step_end": ("rows", "files", "bytes", "seconds", "position", "slices", "strategy", "low", "high"),
        "table_end": (*COUNTS, "seconds", "position", "exit_code"),
        "cycle_end": ("cycle", "tables", "failed", *COUNTS, "seconds", "exit_code"),
        "run_end": ("tables", "failed", *COUNTS, "seconds", "exit_code"),
        "note": (),
        "error": ("exit_code", "kind", "hint"),
        "failing": ("cycle", "exit_code", "kind", "hint"),
        "recovered": ("cycle", "failures", "seconds"),
        "slice": ("slice", "kind", "low", "high", "rows", "files", "bytes", "seconds"),
        "decision": ("files", "rows", "position", "high", "connections", "attempts"),
        "statement": ("service", "sql", "seconds"),
        "log": (),
    }
)

STATEMENTS = logging.getLogger("floodmark.statements")

_LONGEST = 1_000  # characters of a statement that are logged
_TIME = re.compile(r"\d{4}-\d\d-\d\d[\d :.T]*")
# MySQL reads a backslash as an escape, the warehouses don't.
_ESCAPED_TEXT = re.compile(r"'(?:[^'\\]|\\.|'')*'", re.DOTALL)
_PLAIN_TEXT = re.compile(r"'(?:[^']|'')*'")
_ENCODED = re.compile(r"(?:\b_utf8mb4 )?\b[Xx]'([0-9A-Fa-f]*)'")
_BYTES = re.compile(r"\b0x[0-9A-Fa-f]{2,}")
_MANY = re.compile(r"(\(-?\d+(?:, -?\d+){3})(?:, -?\d+){4,}\)")


def tell(
    log: logging.Logger,
    level: int,
    event: str,
    message: str,
    *,
    run: str | None = None,
    table: str | None = None,
    step: str | None = None,
    commit: int | None = None,
    said: bool = False,
    cause: BaseException | None = None,
    **fields: Any,
) -> None:
    """Logs one event; `said`: it was also printed as a plain line; `cause`: an exception, for its traceback."""
    known = {name: value for name, value in fields.items() if value is not None}
    extra = {"run": run, "table": table, "step": step, "commit": commit, "said": said}
    log.log(level, "%s", message, extra={**extra, "event": event, "fields": known}, exc_info=cause)


@contextmanager
def statement(service: str, sql: str) -> Iterator[None]:
    """Logs a statement with its duration, if statements are logged at all."""
    if not STATEMENTS.isEnabledFor(logging.DEBUG):
        yield
        return
    began = time.monotonic()
    try:
        yield
    finally:
        told(service, sql, time.monotonic() - began)


def told(service: str, sql: str, seconds: float) -> None:
    """Logs a statement with the time it took."""
    if STATEMENTS.isEnabledFor(logging.DEBUG):
        seconds, text = round(seconds, 4), masked(sql, service == "mysql")
        tell(STATEMENTS, logging.DEBUG, "statement", f"{service}, {seconds:.3f} s: {text}",
             service=service, sql=text, seconds=seconds)  # fmt: skip


def place(position: Position | None, otherwise: str) -> str:
    """A position as text for a message."""
    return text.place(position) if position else otherwise


def masked(sql: str, escapes: bool) -> str:
    """A statement on one line with its text literals masked, because they may be row data. Times stay."""

    def decoded(found: re.Match[str]) -> str:
        return (
            f"'{_shown(bytes.fromhex(found[1]).decode(errors='replace'))}'"
            if len(found[1]) % 2 == 0
            else "'…'"
        )

    text = _ENCODED.sub(decoded, sql)
    text = (_ESCAPED_TEXT if escapes else _PLAIN_TEXT).sub(lambda found: f"'{_shown(found[0][1:-1])}'", text)
    text = _MANY.sub(r"\1, …)", _BYTES.sub("0x…", text))
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} … ({len(text):,} characters)"


def _shown(text: str) -> str:
    return text if not text or _TIME.fullmatch(text) else "…"
