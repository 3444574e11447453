"""SQL statements in the log: a logger of their own that only `--debug` enables, with their literals masked."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager

from floodmark.model.log_lines import tell

STATEMENTS = logging.getLogger("floodmark.statements")

_LONGEST = 1_000  # characters of a statement that are logged
_TIME = re.compile(r"\d{4}-\d\d-\d\d[\d :.T]*")
# MySQL reads a backslash as an escape, the warehouses don't.
_ESCAPED_TEXT = re.compile(r"'(?:[^'\\]|\\.|'')*'", re.DOTALL)
_PLAIN_TEXT = re.compile(r"'(?:[^']|'')*'")
_ENCODED = re.compile(r"(?:\b_utf8mb4 )?\b[Xx]'([0-9A-Fa-f]*)'")
_BYTES = re.compile(r"\b0x[0-9A-Fa-f]{2,}")
_MANY = re.compile(r"(\(-?\d+(?:, -?\d+){3})(?:, -?\d+){4,}\)")


@contextmanager
def statement(service: str, sql: str) -> Iterator[None]:
    """Logs a statement with its duration, if statements are logged at all."""
    began = time.monotonic()
    try:
        yield
    finally:
        log_statement(service, sql, time.monotonic() - began)


def log_statement(service: str, sql: str, seconds: float) -> None:
    """Logs a statement with the time it took."""
    if STATEMENTS.isEnabledFor(logging.DEBUG):
        seconds, text = round(seconds, 4), masked(sql, service == "mysql")
        tell(STATEMENTS, logging.DEBUG, "statement", f"{service}, {seconds:.3f} s: {text}",
             service=service, sql=text, seconds=seconds)  # fmt: skip


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
