"""Which results of tasks that read a snapshot together count: only those of the attempts that saw one moment."""

from __future__ import annotations

from floodmark.extract.shared_snapshot import Share
from floodmark.extract.task import SliceResult
from floodmark.model.window import Slice
from floodmark.services.spark.meeting import MeetingOver
from floodmark.sync.shared_snapshot import Outcome, gathered


def result(number: int) -> SliceResult:
    return SliceResult(Slice("snapshot", number, "key"), (), 0, 0, 0.0, 0)


GIVEN = Outcome(2, 1, {0: [0, 2], 1: [1]}, {0: "a", 1: "b"})
FIRST, SECOND = Share(0, "a", (result(0), result(2))), Share(1, "b", (result(1),))


def test_all_slices_of_the_attempts_that_took_part_count_in_order() -> None:
    found = gathered(GIVEN, [SECOND, FIRST, Share(2, "late")], 3)
    assert found is not None and [r.slice.number for r in found] == [0, 1, 2]


def test_anything_else_counts_for_nothing() -> None:
    assert gathered(GIVEN, [FIRST], 3) is None, "a slice is missing"
    assert gathered(GIVEN, [FIRST, SECOND], 4) is None
    assert gathered(GIVEN, [FIRST, SECOND, SECOND], 3) is None, "a slice came twice"
    assert gathered(GIVEN, [FIRST, Share(1, "other attempt", SECOND.results)], 3) is None
    assert gathered(GIVEN, [FIRST, Share(2, "b", SECOND.results)], 3) is None, "it was sent home"
    assert gathered(GIVEN, [Share(0, "a", (result(0),)), Share(1, "b", (result(1), result(2)))], 3) is None
    assert gathered(Outcome(2, 1, GIVEN.given, GIVEN.members, MeetingOver("")), [FIRST, SECOND], 3) is None
