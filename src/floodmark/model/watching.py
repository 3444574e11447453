"""Progress for the library's users: one function for everything, or any object with some of the methods named below."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from floodmark.model import events


@dataclass(frozen=True)
class ProgressEvent:
    """Something that happened during a run.

    `event` is the method that an object may have for it: tables, note, begin, advance, underway, wait, end or finished.
    """

    event: str
    table: str = ""
    stage: str | None = None
    rows: int | None = None
    files: int | None = None
    bytes: int | None = None
    text: str | None = None  # a note, or what the table waits for
    tables: tuple[str, ...] = ()  # those of the run
    ok: bool | None = None  # how the table's run ended


Callback = Callable[[ProgressEvent], object]
_METHODS: dict[type[events.Event], str] = {
    events.StageBegan: "begin",
    events.Advanced: "advance",
    events.Underway: "underway",
    events.StageEnded: "end",
}


def watching(progress: Callback | object | None) -> events.Emit:
    """Passes a run's events on to the caller's progress, in its words."""

    def emit(event: events.Event) -> None:
        name, arguments, more = _call(event)
        if not name:
            return
        if callable(progress):
            progress(ProgressEvent(name, event.table, **more))
        elif (method := getattr(progress, name, None)) is not None:
            method(*arguments)

    return emit


def _call(event: events.Event) -> tuple[str, tuple[Any, ...], dict[str, Any]]:
    """The method that stands for an event, its arguments, and the fields of a `ProgressEvent`; "": it is not passed on."""
    match event:
        case events.TablesChosen(_, names):
            return "tables", (names,), {"tables": names}
        case events.Noted(table, text, aloud=True):
            return "note", (table, text), {"text": text}
        case events.Waiting(table, on):
            return "wait", (table, on), {"text": f"{on.kind} {on.who}".strip() if on else None}
        case events.Ended(_, report):
            return "finished", (report,), {"rows": report.rows_loaded, "ok": report.error is None}
    given = {field.name: getattr(event, field.name) for field in fields(event)}
    more = {name: value for name, value in given.items() if name not in ("table", "step")}
    return _METHODS.get(type(event), ""), tuple(given.values()), more
