"""Log lines: the fields that `--json-logs` prints with each message, a contract documented in docs/logs.md.

`EVENTS` is the complete vocabulary; a test checks it against every call of `tell` and against the document. `LogLines`
makes the lines of a run from its events.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from floodmark.model import events, text
from floodmark.model.tally import VERBS, Tally, said_at_end, said_so_far
from floodmark.model.text import counted, duration

if TYPE_CHECKING:  # the command line needs this module before it needs the model
    from floodmark.model.position import Position
    from floodmark.model.window import Slice

logger = logging.getLogger("floodmark")

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


def tell(
    to: logging.Logger,
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
    to.log(level, "%s", message, extra={**extra, "event": event, "fields": known}, exc_info=cause)


def place(position: Position | None, otherwise: str) -> str:
    """A position as text for a message."""
    return text.place(position) if position else otherwise


class LogLines:
    """Logs a run's events, and knows how far each stage of each table has got. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._tallies: dict[str, dict[str, Tally]] = {}  # by table and stage

    def __call__(self, event: events.Event) -> None:
        with self._lock:
            tally = self._counted(event)
        match event:  # outside the lock: whoever draws on the terminal may wait for it
            case events.Noted(_, said, aloud=True):
                _log(logging.INFO, "note", said, event, said=True)
                self._print(event, said)
            case events.StageBegan(_, stage, rows):
                said = f"{VERBS[stage][0]} begins"
                _log(logging.DEBUG, "step_start", said, event, stage, said=True, rows=rows)
            case events.StageEnded(_, stage) if tally is not None and stage != "plan":
                said = said_at_end(stage, tally)
                _log(logging.INFO, "step_end", said, event, stage, said=True, **tally.fields)
                if tally.rows:
                    self._print(event, said)
            case events.Advanced(_, stage) | events.Underway(_, stage) if tally is not None:
                said = said_so_far(stage, tally)
                fields = {**tally.fields, "rows": tally.so_far, "rows_expected": tally.expected}
                _log(logging.INFO, "progress", said, event, stage, said=True, **fields)
                self._print(event, said)
            case events.Planned():
                _log_plan(event)
            case events.SliceBegan(_, piece):
                _log_slice(event, piece, f"about {counted(piece.rows, 'row')}", rows=piece.rows)
            case events.SliceRead(_, piece, rows, files, size, seconds):
                read = f"read {counted(rows, 'row')} in {counted(files, 'file')}, {duration(seconds)}"
                more = {"rows": rows, "files": files, "bytes": size, "seconds": round(seconds, 3)}
                _log_slice(event, piece, read, **more)
            case events.CommitBegan():
                _log(logging.DEBUG, "step_start", "commit begins", event, "commit")
            case events.Committed(_, n, kind, position, rows, seconds, counts):
                files = counts.files_written
                said = f"commit {n} ({kind}): {counted(rows, 'row')} in {counted(files, 'file')}"
                _log(
                    logging.INFO, "step_end", said, event, "commit", commit=n, rows=rows, files=files,
                    bytes=counts.bytes_written, seconds=seconds, position=position,
                )  # fmt: skip
            case events.Ended(_, report, position) if not report.left_out:
                read, loaded = counted(report.rows_extracted, "row"), counted(report.rows_loaded, "row")
                ended = f"ended with exit code {report.exit_code} after {duration(report.seconds)}"
                _log(
                    logging.INFO, "table_end", f"{ended}: {read} extracted, {loaded} loaded", event,
                    **report.log_fields, exit_code=report.exit_code, seconds=round(report.seconds, 3), position=position,
                )  # fmt: skip

    def _print(self, event: events.Event, text: str) -> None:
        """For those that print some of the lines as well."""

    def _counted(self, event: events.Event) -> Tally | None:
        """Counts the event; returns the tally of its stage if there is something to log about it."""
        stages = self._tallies.get(event.table, {})
        match event:
            case events.Ended():
                self._tallies.pop(event.table, None)
            case events.StageBegan(table, stage, rows):
                self._tallies.setdefault(table, {})[stage] = Tally(rows)
            case events.Advanced(table, stage, rows, files, size):
                tally = self._tallies.setdefault(table, {}).setdefault(stage, Tally(None))
                tally.add(rows, files, size)
                return tally if tally.due() else None
            case events.Underway(_, stage, rows, step) if stage in stages:
                stages[stage].at_work(rows, step)
                return stages[stage] if stages[stage].due() else None
            case events.StageEnded(_, stage) if stage in stages and stages[stage].end():
                return stages[stage]
        return None


def _log(
    level: int, name: str, message: str, event: events.Event, step: str | None = None, **fields: Any
) -> None:
    tell(logger, level, name, message, table=event.table, step=step, **fields)


def _log_plan(plan: events.Planned) -> None:
    low, high = (plan.window.low, plan.window.high) if plan.window is not None else (None, None)
    said = "planned: nothing to read"
    if not plan.empty:
        begin = f"after {place(low, '')}" if low else "from the first row"
        ends = f"{begin}, up to {place(high, 'the last')}"
        what = f"{'the open' if plan.resumed else 'a'} window {ends}" if plan.window else "no window"
        again = "".join(f", {counted(rows, 'row')} to read again ({kind})" for kind, rows in plan.again)
        rows, slices = counted(plan.rows, "row"), counted(plan.slices, "slice")
        said = f"planned: {what}{again}; about {rows} in {slices}, {plan.strategy}: {plan.reason}"
    _log(
        logging.INFO, "step_end", said, plan, "plan", rows=plan.rows, slices=plan.slices, strategy=plan.strategy,
        low=low, high=high, seconds=round(plan.seconds, 3),
    )  # fmt: skip


def _log_slice(event: events.Event, piece: Slice, what: str, **fields: Any) -> None:
    if logger.isEnabledFor(logging.DEBUG):
        low, high = piece.after or piece.low, piece.upto or piece.high
        ends = f"after {place(low, 'the first row')}, up to {place(high, 'the last')}"
        said = f"slice {piece.number} ({piece.kind}, by {piece.by}, {ends}): {what}"
        about = {"slice": piece.number, "kind": piece.kind, "low": low, "high": high}
        _log(logging.DEBUG, "slice", said, event, "extract", **about, **fields)
