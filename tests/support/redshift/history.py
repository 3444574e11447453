"""SYS_QUERY_HISTORY: each statement with its label, session, state and times, rolled back or not.

Kept in memory and written to a file for PostgreSQL only when queried: ordinary statements cost nothing extra, and no
snapshot hides new entries.
"""

from __future__ import annotations

import itertools
import json
import threading
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

_KINDS = {"INSERT": "INSERT", "DELETE": "DELETE", "UPDATE": "UPDATE", "COPY": "COPY", "SELECT": "SELECT", "WITH": "SELECT",
          "CREATE": "DDL", "ALTER": "DDL", "DROP": "DDL", "TRUNCATE": "DDL", "MERGE": "MERGE"}  # fmt: skip
_UTILITIES = ("BEGIN", "START", "COMMIT", "END", "ROLLBACK", "ABORT", "SET", "SHOW", "RESET")


def now() -> datetime:
    return datetime.now(UTC).replace(tzinfo=None)


@dataclass
class Entry:
    """One execution of a statement."""

    query: int
    database: str
    user: str
    session: int
    label: str
    text: str
    kind: str
    started: datetime = field(default_factory=now)
    ended: datetime | None = None
    status: str = "running"
    error: str = ""

    def row(self, until: datetime) -> dict[str, object]:
        """Its row, as known at a given time."""
        ended = self.ended is not None and self.ended <= until
        return {
            "user_name": self.user, "query_id": self.query, "query_label": self.label[:320],
            "session_id": self.session, "database_name": self.database, "query_type": self.kind,
            "status": self.status if ended else "running", "start_time": self.started,
            "end_time": self.ended if ended else None, "error_message": self.error[:512] if ended else "",
            "query_text": self.text[:4000],
        }  # fmt: skip


class History:
    """The last statements of one stand-in."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1000)
        self._entries: deque[Entry] = deque(maxlen=2000)

    def begin(
        self, database: str, user: str, session: int, label: str, text: str, utilities: bool = False
    ) -> Entry:
        """Record the start of a statement; BEGIN, COMMIT and the like appear only with `utilities`."""
        first = text.split(None, 1)[0].upper().rstrip(";") if text.strip() else ""
        kind = _KINDS.get(first, "UTILITY")
        entry = Entry(next(self._numbers), database, user, session, label, text, kind)
        if utilities or first not in _UTILITIES:
            with self._lock:
                self._entries.append(entry)
        return entry

    def end(self, entry: Entry, error: str | None = None) -> None:
        """Record its end."""
        entry.ended, entry.error = now(), error or ""
        entry.status = "success" if error is None else "canceled" if "canceled" in error else "failed"

    def write(self, path: Path, lag: float = 0.0) -> None:
        """Write everything known `lag` seconds ago; the file is replaced atomically."""
        until = now() - timedelta(seconds=lag)
        with self._lock:
            rows = [entry.row(until) for entry in self._entries if entry.started <= until]
            text = json.dumps(rows, default=str).replace("\\u0000", "")
            part = path.with_suffix(".part")
            part.write_text(text)
            part.chmod(0o644)
            part.replace(path)
