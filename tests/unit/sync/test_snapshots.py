"""How to tell whether a table has changed since its last snapshot, and which snapshot that is."""

from __future__ import annotations

from decimal import Decimal
from itertools import pairwise
from typing import cast

import pyarrow as pa
import pytest

from floodmark.extract.files import Fingerprint
from floodmark.model.commit import Batch, Reset
from floodmark.model.window import Intent, Slice, Window
from floodmark.plan.decide import Pass, TablePlan
from floodmark.services import Services
from floodmark.sync.passes import known, mark, only_if_changed
from tests.support.described import changed
from tests.support.samples import TABLE, History, files

# Any query to the source or the warehouse fails.
NOBODY = cast(Services, None)
FULL = changed(TABLE, key=(), cursor=None, mode="full")


def snapshot(history: History, found: str | None) -> None:
    history.claim(table=FULL)
    history.add(Batch, files=files(5), load_as="replace", overlap=mark(history.state, found))


def test_a_fingerprint_belongs_to_its_own_snapshot_only() -> None:
    history = History()
    assert known(history.state) is None
    snapshot(history, "abc 5 17")
    assert known(history.state) == "abc 5 17"
    history.claim(table=FULL)
    assert known(history.state) == "abc 5 17", "a claim changes no rows"
    snapshot(history, None)
    assert known(history.state) is None, "a later snapshot, by a sync that made no fingerprint"
    snapshot(history, "abc 5 18")
    assert known(history.state) == "abc 5 18"


def test_after_a_reset_the_table_is_read_again() -> None:
    for stages in (("extract", "load"), ("extract",)):
        history = History()
        snapshot(history, "abc 5 17")
        history.claim()
        history.add(Reset, stages=stages)
        assert known(history.state) is None


def test_a_snapshot_whose_window_was_left_open_is_made_whatever_its_rows() -> None:
    history = History()
    snapshot(history, "abc 5 17")
    window = Window("w", None, None, "snapshot", (), None, 5)
    history.claim(table=FULL, window=window)  # by a run that died then
    plan = TablePlan(
        Intent("sync", FULL, window),
        (Pass("window", (Slice("snapshot", 0, "snapshot", rows=5),), "replace"),),
    )
    assert known(history.state) == "abc 5 17"
    assert only_if_changed(NOBODY, plan, history.state) is plan


TYPES: dict[str, pa.DataType] = {
    "a": pa.int32(),
    "b": pa.string(),
    "c": pa.float64(),
    "d": pa.decimal128(9, 2),
    "e": pa.bool_(),
}
SCHEMA = pa.schema(TYPES)


def rows(count: int, changed: int | None = None, **to: object) -> pa.RecordBatch:
    made: list[dict[str, object]] = [
        {"a": i, "b": None if i % 3 else f"t{i}", "c": i / 7, "d": Decimal(i), "e": i % 2 == 0}
        for i in range(count)
    ]
    if changed is not None:
        made[changed] |= to
    return pa.RecordBatch.from_pylist(made, SCHEMA)


def fingerprint(*batches: pa.RecordBatch) -> str:
    made = Fingerprint(SCHEMA)
    for batch in batches:
        made.add(batch)
    return made.text()


def test_a_fingerprint_does_not_depend_on_how_the_rows_arrive() -> None:
    whole = rows(775)
    expected = fingerprint(whole)
    for cuts in ([1, 2, 300], [384], [255, 257, 512], list(range(1, 700))):
        parts = (whole.slice(a, b - a) for a, b in pairwise([0, *cuts, whole.num_rows]))
        assert fingerprint(*parts) == expected
    assert fingerprint(pa.RecordBatch.from_pylist(whole.to_pylist(), SCHEMA)) == expected
    assert fingerprint() == fingerprint(whole.slice(0, 0)) != expected


def test_memory_behind_a_null_does_not_count() -> None:
    schema = pa.schema([("a", pa.int32())])
    made = []
    for garbage in (7, 8):
        values = pa.array([1, garbage, 3], pa.int32())
        null = pa.Array.from_buffers(pa.int32(), 3, [pa.py_buffer(b"\x05"), values.buffers()[1]])
        one = Fingerprint(schema)
        one.add(pa.RecordBatch.from_arrays([null], schema=schema))
        made.append(one.text())
    assert made[0] == made[1]


def test_texts_are_distinguished_by_where_they_end() -> None:
    types: dict[str, pa.DataType] = {"a": pa.binary(), "b": pa.large_string()}
    schema = pa.schema(types)
    made = set()
    for texts in (["ab", "c"], ["a", "bc"], ["", "abc"], [None, "abc"], ["abc", None]):
        one = Fingerprint(schema)
        one.add(pa.RecordBatch.from_pylist([{"a": t and t.encode(), "b": "x"} for t in texts], schema))
        made.add(one.text())
    assert len(made) == 5


@pytest.mark.parametrize(
    "to", [{"a": -1}, {"a": None}, {"b": ""}, {"b": "t1 "}, {"c": 1 / 7 + 2**-54}, {"d": Decimal("0.01")}, {"e": None}]
)  # fmt: skip
def test_any_changed_value_is_detected(to: dict[str, object]) -> None:
    assert fingerprint(rows(500, 1, **to)) != fingerprint(rows(500))


def test_duplicates_and_missing_rows_are_detected() -> None:
    whole = rows(500)
    assert fingerprint(whole, whole.slice(499)) != fingerprint(whole) != fingerprint(whole.slice(0, 499))
