"""Which runs of a resident sync leave a report: all that did something, and one an hour for a failure that lasts.

A failure lasts until its table, or the run as a whole, succeeds: the next one is reported at once.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from floodmark.model.errors import FloodmarkError
from floodmark.model.run import SyncReport

EVERY = 3600.0


@dataclass
class Reported:
    """The failures that were reported, and when; by table and exit code, because messages may differ each time."""

    _at: dict[tuple[str | None, int], float] = field(default_factory=dict)

    def wanted(self, report: SyncReport, error: FloodmarkError | None, now: float) -> bool:
        """Whether a run leaves its report; if so, its failures count as reported. `error`: of the run as a whole."""
        failed: list[tuple[str | None, int]] = [(t.table, t.exit_code) for t in report.tables if t.error]
        if error is not None:
            failed.append((None, error.code))
        over = {t.table for t in report.tables if not t.error} | (set() if error else {None})
        self._at = {one: at for one, at in self._at.items() if one[0] not in over and now - at < EVERY}
        did_something = any(t.commits or t.files_loaded for t in report.tables)
        if failed and all(one in self._at for one in failed) and not did_something:
            return False
        self._at |= dict.fromkeys(failed, now)
        return True
