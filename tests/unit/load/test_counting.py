"""The row count that the next load expects, as a warehouse works it out after this load."""

from types import SimpleNamespace
from typing import Any, cast

import duckdb
import pytest

from floodmark.load.decide import Decision, count_after
from floodmark.model.ledger import Ledger

NEW, AGAIN = SimpleNamespace(beside=False, rows=4), SimpleNamespace(beside=True, rows=4)


@pytest.mark.parametrize(
    ("counted", "before", "way", "commit", "after", "expected"),
    [
        (None, 5, "merge", NEW, 9, 9),  # nothing was counted
        (7, None, "merge", NEW, 4, 4),  # the target was dropped
        (7, 5, "replace", NEW, 4, 4),
        (7, 5, "merge", NEW, 9, 11),  # new rows leave a difference as it is
        (5, 7, "merge", NEW, 11, 9),
        (5, 5, "merge", AGAIN, 6, 6),
        (7, 5, "merge", AGAIN, 6, 7),  # others deleted two: rows that come back may be those
        (7, 5, "merge", AGAIN, 9, 9),
        (7, 5, "delete", AGAIN, 2, 3),  # of four deleted keys, two may have been gone before
        (7, 5, "delete", AGAIN, 5, 5),
        (5, 7, "delete", AGAIN, 4, 4),  # others added two: deleted rows may be those
        (5, 7, "delete", AGAIN, 6, 5),
        (5, 7, "delete", AGAIN, 7, 5),
        (5, 7, "merge", AGAIN, 9, 7),
    ],
)
def test_a_difference_stays_on_record_until_it_may_be_settled(
    counted: int | None, before: int | None, way: Any, commit: Any, after: int, expected: int
) -> None:
    request, numbered = cast(Any, SimpleNamespace(adopt=False)), ((commit, ""),)
    decision = Decision(numbered, numbered, (), way, False)
    rule = count_after(request, Ledger(counted=counted), decision, before, "n")
    with duckdb.connect() as link:
        assert link.execute(f"SELECT {rule} FROM (SELECT {after} AS n)").fetchone() == (expected,)
