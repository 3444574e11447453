"""Progress for the library: a function that gets everything, or an object with some of the methods."""

from __future__ import annotations

from typing import Any

from floodmark.model.errors import TransientError
from floodmark.model.run import TableReport, Unwatched, Wait
from floodmark.model.watching import ProgressEvent, watching

METHODS = [name for name in vars(Unwatched) if not name.startswith("_")]


def everything(progress: Any) -> None:
    progress.tables(["a.b"])
    progress.note("a.b", "hello")
    progress.begin("a.b", "extract", 10)
    progress.advance("a.b", "extract", 5, 1, 100)
    progress.underway("a.b", "extract", 3)
    progress.wait("a.b", Wait("lock", "somebody"))
    progress.wait("a.b", None)
    progress.end("a.b", "extract")
    progress.finished(TableReport("a.b", rows_loaded=4, error=TransientError("no")))


def test_a_function_gets_an_event_for_everything_that_happens() -> None:
    seen: list[ProgressEvent] = []
    everything(watching(seen.append))
    assert {event.event for event in seen} == set(METHODS)
    assert seen[0] == ProgressEvent("tables", tables=("a.b",))
    assert seen[3] == ProgressEvent("advance", "a.b", "extract", 5, 1, 100)
    assert [event.text for event in seen if event.event == "wait"] == ["lock somebody", None]
    assert seen[-1] == ProgressEvent("finished", "a.b", rows=4, ok=False)


def test_an_object_may_have_only_some_of_the_methods() -> None:
    class Notes:
        def __init__(self) -> None:
            self.said: list[str] = []

        def note(self, table: str, text: str) -> None:
            self.said.append(text)

    notes: Any = Notes()
    everything(watching(notes))
    everything(watching(None))
    assert notes.said == ["hello"]
