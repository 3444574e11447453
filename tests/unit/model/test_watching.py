"""Progress for the library: a function that gets everything, or an object with some of the methods."""

from __future__ import annotations

from typing import Any

from floodmark.model import events
from floodmark.model.errors import TransientError
from floodmark.model.events import ProgressEvent, watching
from floodmark.model.run import Step, TableReport, Wait

FAILED = TableReport("a.b", rows_loaded=4, error=TransientError("no"))
CASES: list[tuple[events.Event, ProgressEvent, tuple[Any, ...]]] = [
    (events.TablesChosen("", ("a.b",)), ProgressEvent("tables", tables=("a.b",)), (("a.b",),)),
    (events.Noted("a.b", "hello"), ProgressEvent("note", "a.b", text="hello"), ("a.b", "hello")),
    (
        events.StageBegan("a.b", "extract", 10),
        ProgressEvent("begin", "a.b", "extract", 10),
        ("a.b", "extract", 10),
    ),
    (
        events.Advanced("a.b", "extract", 5, 1, 100),
        ProgressEvent("advance", "a.b", "extract", 5, 1, 100),
        ("a.b", "extract", 5, 1, 100),
    ),
    (
        events.Underway("a.b", "load", 3, Step("merge")),
        ProgressEvent("underway", "a.b", "load", 3),
        ("a.b", "load", 3, Step("merge")),
    ),
    (
        events.Waiting("a.b", Wait("lock", "somebody")),
        ProgressEvent("wait", "a.b", text="lock somebody"),
        ("a.b", Wait("lock", "somebody")),
    ),
    (events.Waiting("a.b", None), ProgressEvent("wait", "a.b"), ("a.b", None)),
    (events.StageEnded("a.b", "extract"), ProgressEvent("end", "a.b", "extract"), ("a.b", "extract")),
    (events.Ended("a.b", FAILED), ProgressEvent("finished", "a.b", rows=4, ok=False), (FAILED,)),
]
INSIDE: list[events.Event] = [
    events.Noted("a.b", "only for the report", aloud=False),
    events.TimeSpent("a.b", "extract", 1.0),
    events.RunBegan("", "r"),
    events.CommitBegan("a.b"),
]


def test_a_function_gets_an_event_for_everything_that_users_see() -> None:
    seen: list[ProgressEvent] = []
    for event in [*(event for event, _, _ in CASES), *INSIDE]:
        watching(seen.append)(event)
    assert seen == [said for _, said, _ in CASES]


def test_an_object_may_have_all_of_the_methods_or_some() -> None:
    calls: list[tuple[str, tuple[Any, ...]]] = []

    class All:
        def __getattr__(self, name: str) -> Any:
            return lambda *arguments: calls.append((name, arguments))

    class Notes:
        def note(self, table: str, text: str) -> None:
            calls.append(("note", (table, text)))

    for event in [*(event for event, _, _ in CASES), *INSIDE]:
        watching(All())(event)
    assert calls == [(said.event, arguments) for _, said, arguments in CASES]
    calls.clear()
    for event, _, _ in CASES:
        watching(Notes())(event)
        watching(None)(event)
    assert calls == [("note", ("a.b", "hello"))]
