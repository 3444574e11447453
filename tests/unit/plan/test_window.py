"""Which window a run reads, and its slices, decided without a source: rows are a list here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from floodmark.log.fold import Progress, State
from floodmark.model.errors import ConfigError
from floodmark.model.position import Position, Value
from floodmark.model.run import SyncOptions
from floodmark.model.table import Table
from floodmark.model.window import Slice, Window
from floodmark.plan.bound import Settled
from floodmark.plan.decide import (
    COUNT_EXACTLY_BELOW,
    Chosen,
    Nth,
    by_bytes,
    cut_by,
    finer,
    left_open,
    limited,
    opened,
    parts,
    parts_of_the_key,
    rows_of_a_slice,
    shared,
    size,
    slices,
)
from tests.support.described import changed
from tests.support.samples import TABLE as ORDERS

TABLE = changed(ORDERS, where=None, key_index="PRIMARY", cursor_index="at")
KEYLESS = changed(TABLE, key=(), key_index=None, mode="append")

Row = tuple[str, int]
LOW: Row = ("2025-01-01 00:00:00.000000", 3)
HIGH: Row = ("2025-01-01 00:00:02.000000", 7)


def inside(low: Position | None, row: Row, high: Position | None) -> bool:
    """What (low, high] means, with prefixes."""
    return (low is None or row[: len(low)] > low) and (high is None or row[: len(high)] <= high)


rows = st.tuples(st.sampled_from([f"2025-01-01 00:00:0{s}.000000" for s in range(4)]), st.integers(0, 9))


@given(st.lists(rows, unique=True), st.lists(rows, unique=True, max_size=5))
def test_every_row_of_a_window_is_in_exactly_one_slice_by_cursor(table: list[Row], cuts: list[Row]) -> None:
    window = Window("w", LOW, HIGH, "cursor", tuple(sorted(c for c in cuts if LOW < c < HIGH)))
    for row in table:
        homes = [s for s in slices(window) if inside(s.after, row, s.upto)]
        assert len(homes) == (1 if LOW < row <= HIGH else 0)


@given(st.lists(rows, unique=True), st.lists(st.integers(0, 9), unique=True, max_size=5))
def test_every_row_of_a_window_is_in_exactly_one_slice_by_key(table: list[Row], cuts: list[int]) -> None:
    window = Window("w", LOW, HIGH, "key", tuple((c,) for c in sorted(cuts)))
    for row in table:
        homes = [
            s
            for s in slices(window)
            if (s.after is None or row[1:] > s.after) and (s.upto is None or row[1:] <= s.upto)
            and inside(s.low, row, s.high)
        ]  # fmt: skip
        assert len(homes) == (1 if LOW < row <= HIGH else 0)


def test_a_resumed_window_has_only_the_slices_that_were_not_committed() -> None:
    window = Window(
        "w", None, HIGH, "cursor", (("2025-01-01 00:00:00.000000", 9), ("2025-01-01 00:00:01.000000", 9))
    )
    assert [s.number for s in slices(window, done=(1,))] == [0, 2]


def test_a_window_is_scattered_if_no_position_covers_its_committed_slices() -> None:
    by_cursor = Window("w", None, HIGH, "cursor", (LOW, ("2025-01-01 00:00:01.000000", 9)))
    by_key = Window("w", None, HIGH, "key", ((3,), (6,)))
    cases = ((by_cursor, (), False), (by_cursor, (0, 1), False), (by_cursor, (0, 2), True))
    for window, done, expected in (*cases, (by_key, (), False), (by_key, (0,), True)):
        assert Progress(window=window, done=done).scattered is expected


def test_a_large_share_is_cut_by_key_and_a_small_one_by_the_cursors_index() -> None:
    assert cut_by(SyncOptions(), TABLE, share=0.9, rows=10**6) == "key"
    assert cut_by(SyncOptions(), TABLE, share=0.01, rows=10**6) == "cursor"


def test_a_bounded_or_ordered_run_is_cut_in_position_order() -> None:
    assert cut_by(SyncOptions(limit=50), TABLE, share=1, rows=10**7) == "cursor"
    assert cut_by(SyncOptions(strategy="sequential"), TABLE, share=1, rows=10**7) == "cursor"


def test_a_window_without_an_index_on_the_cursor_is_cut_by_key_and_one_without_a_key_by_the_cursor() -> None:
    assert cut_by(SyncOptions(), changed(TABLE, cursor_index=None), share=0.01, rows=10) == "key"
    assert cut_by(SyncOptions(), KEYLESS, share=1, rows=10**7) == "cursor"


# ---------------------------------------------------------------- a window that was left open


def left(done: tuple[int, ...], by: str = "cursor") -> State:
    edges: tuple[Position, ...] = (LOW, (LOW[0], 9)) if by == "cursor" else ((3,), (6,))
    window = Window("w", None, HIGH, by, edges)  # type: ignore[arg-type]
    return State("shop.orders", progress=Progress(window=window, done=done))


def test_an_interrupted_window_is_finished_unless_nothing_of_it_was_committed() -> None:
    """Another server may be read now, which lacks its last rows."""
    assert left_open(left(()), SyncOptions()) == "none"
    for done in ((0,), (0, 2)):
        assert left_open(left(done), SyncOptions()) == "resume"
    assert left_open(left((1,), "key"), SyncOptions(strategy="sequential")) == "resume"


def test_a_bounded_run_continues_from_the_position_or_cuts_the_window_finer_if_none_covers_it() -> None:
    bounded = SyncOptions(limit=5)
    assert left_open(left((0, 1)), bounded) == "none"
    assert left_open(left((0, 2)), bounded) == "cut finer"
    assert left_open(left((0,), "key"), bounded) == "cut finer"


def test_a_snapshot_that_was_left_open_starts_over() -> None:
    snapshot = State("shop.orders", progress=Progress(window=Window("w", None, None, "snapshot")))
    assert left_open(snapshot, SyncOptions()) == left_open(State("shop.orders"), SyncOptions()) == "none"


def nth_of(rows: Sequence[Position]) -> Nth:
    def nth(after: Position | None, upto: Position | None, n: int) -> Position | None:
        found = [r for r in sorted(rows) if _within(after, r, upto)]
        return found[n - 1] if len(found) >= n else None

    return nth


def _within(after: Position | None, row: Position, upto: Position | None) -> bool:
    return (after is None or row[: len(after)] > after) and (upto is None or row[: len(upto)] <= upto)


def cut_finer(
    rows: Sequence[Position], window: Window, done: tuple[int, ...], request: SyncOptions
) -> Chosen:
    return finer(window, done, request, nth_of(rows), lambda a, b: len([r for r in rows if _within(a, r, b)]))


def read(rows: Sequence[Position], pieces: Sequence[Slice]) -> list[Position]:
    return [r for s in pieces for r in rows if _within(s.after, r, s.upto)]


@given(
    st.lists(st.integers(0, 30), unique=True, max_size=20),
    st.lists(st.integers(0, 30), unique=True, max_size=4),
    st.sets(st.integers(0, 4)),
    st.integers(1, 10),
    st.integers(1, 10),
)
@example([0, 1], [1], {1}, 2, 1)  # a slice that is done, behind one that is cut
@example([0, 20, 21], [10], set(), 2, 7)  # a slice with fewer rows than the limit, and one with more
def test_a_window_that_is_cut_finer_reads_nothing_twice_and_no_more_than_the_limit_and_forgets_nothing(
    numbers: list[int], cuts: list[int], done: set[int], limit: int, slice_rows: int
) -> None:
    rows = [(n,) for n in sorted(numbers)]
    window = Window("w", None, (31,), "key", tuple((c,) for c in sorted(cuts)))
    finished = tuple(sorted(d for d in done if d < window.slices))
    unread = [r for s in slices(window, finished) for r in read(rows, [s])]
    found = cut_finer(rows, window, finished, SyncOptions(limit=limit, slice_rows=slice_rows))
    assert found.resumed and found.window is not None
    assert list(found.window.edges) == sorted(set(found.window.edges))
    assert read(rows, found.slices) == unread[:limit]
    # What is left of it are the slices that are neither chosen nor done.
    chosen = {s.number for s in found.slices}
    rest = [s for s in slices(found.window, found.window.done) if s.number not in chosen]
    assert read(rows, rest) == unread[limit:]


# ---------------------------------------------------------------- a new window


def at(second: int, *key: int) -> Position:
    return (f"2025-01-01 00:00:{second:02}.000000", *key)


def limit(table: Table, rows: Sequence[Position], most: int, low: Position | None = None) -> Position:
    def last(below: Value) -> Position | None:
        return max((r for r in rows if str(r[0]) < str(below)), default=None)

    return limited(table, low, max(rows), most, nth_of(rows), last)


def test_a_limit_ends_the_window_after_that_many_rows_even_within_one_timestamp() -> None:
    rows = [at(1, 1), at(1, 2), at(1, 3), at(2, 4)]
    assert limit(TABLE, rows, 2) == at(1, 2)
    assert limit(TABLE, rows, 9) == at(2, 4)


def test_without_a_key_a_limit_stops_before_a_timestamp_that_it_would_cut_in_two() -> None:
    rows = [at(1), at(1), at(2), at(2), at(3)]
    assert limit(KEYLESS, rows, 2) == at(1)
    assert limit(KEYLESS, rows, 3) == at(1)
    assert limit(KEYLESS, rows, 4) == at(2)
    with pytest.raises(ConfigError, match="--limit 1: more rows than that share the cursor") as refused:
        limit(KEYLESS, rows, 1)
    assert refused.value.hint == "use a larger --limit"
    with pytest.raises(ConfigError, match="share the cursor 2025-01-01 00:00:02"):
        limit(KEYLESS, rows, 1, low=at(1))  # everything before it was read already


def test_rows_are_counted_where_that_is_quick_because_estimates_are_inexact() -> None:
    assert size(total=1000, inside=200, everything=900, counted=90) == (90, 0.1)


def test_an_estimate_of_about_half_of_the_table_counts_as_all_of_it() -> None:
    """InnoDB never estimates a range at more."""
    large = 10 * COUNT_EXACTLY_BELOW
    assert size(large, large // 2, large, None) == (large, 1.0)
    assert size(large, large // 4, large, None) == (large // 4, 0.25)


def test_slices_have_the_size_of_a_chunk_if_that_is_smaller() -> None:
    assert rows_of_a_slice(SyncOptions(slice_rows=1000)) == 1000
    assert rows_of_a_slice(SyncOptions(slice_rows=1000, limit=10)) == 10
    assert rows_of_a_slice(SyncOptions(slice_rows=1000, limit=5000)) == 1000
    request = SyncOptions(slice_rows=1000)
    assert [parts_of_the_key(request, rows) for rows in (0, 1000, 1001)] == [1, 1, 2]


def test_a_new_window_ends_at_the_settled_bound_and_keeps_it_with_the_clock() -> None:
    settled = Settled(HIGH, HIGH, bound=1000.5, ahead=-0.25)
    found = opened(SyncOptions(slice_rows=10), LOW, settled, HIGH, "cursor", (at(1, 5),), rows=99)
    window = found.window
    assert window is not None and not found.resumed
    assert (window.low, window.high, window.bound, window.ahead) == (LOW, HIGH, 1000.5, -0.25)
    assert window.rows == 20  # no more than its slices hold
    assert [(s.after, s.upto) for s in found.slices] == [(LOW, at(1, 5)), (at(1, 5), HIGH)]
    bounded = SyncOptions(limit=7, max_chunks=2)
    cut = opened(bounded, LOW, settled, HIGH, "cursor", (at(1, 5), at(1, 6)), rows=99).window
    assert cut is not None and cut.rows == 14  # nor than the run may read


def test_rows_that_replace_everything_are_marked_so_and_no_rows_are_an_empty_snapshot() -> None:
    found = opened(SyncOptions(), None, Settled(HIGH, HIGH), HIGH, "cursor", (), rows=9)
    assert found.window is not None
    assert found.replacing(None) == replace(found.window, whole=True)
    none = Chosen().replacing(LOW)
    assert (none.by, none.whole, none.low, none.high) == ("snapshot", True, LOW, None)


@given(st.lists(st.integers(-50, 50), unique=True, max_size=5))
def test_every_row_of_a_snapshot_lies_in_exactly_one_of_its_parts(cuts: list[int]) -> None:
    window = Window("w", None, None, "snapshot", (), None, 900)
    found = parts(window, tuple((edge,) for edge in sorted(cuts)))
    assert [piece.number for piece in found] == list(range(len(cuts) + 1))
    assert {piece.kind for piece in found} == {"snapshot"}
    for key in range(-60, 60):
        homes = [
            s for s in found if (s.after is None or s.after < (key,)) and (s.upto is None or (key,) <= s.upto)
        ]
        assert len(homes) == 1


def test_a_snapshot_without_edges_is_read_whole() -> None:
    window = Window("w", None, None, "snapshot", (), None, 900)
    assert parts(window, ()) == slices(window)


@pytest.mark.parametrize(
    ("request_", "rows", "expected"),
    [
        (SyncOptions(slice_rows=100), 101, True),
        (SyncOptions(slice_rows=100), 100, False),
        (SyncOptions(slice_rows=100, strategy="sequential"), 900, False),
        (SyncOptions(slice_rows=100, repeated=True), 900, False),
    ],
)
def test_several_connections_read_a_snapshot_of_more_than_one_slice(
    request_: SyncOptions, rows: int, expected: bool
) -> None:
    assert shared(request_, rows) is expected


@pytest.mark.parametrize(
    ("width", "size", "slice_rows"),
    [
        (200, 10**12, 250_000),  # ordinary rows, however many
        (65_536, 0, 1024),
        (1_000_000, 2 * 10**9, 67),
        (1_000_000, 10**12, 500),  # more slices than a claim should list
        (2**32, 2**40, 1),
    ],
)
def test_a_slice_of_wide_rows_is_bounded_by_bytes(width: int, size: int, slice_rows: int) -> None:
    assert by_bytes(SyncOptions(), width, size).slice_rows == slice_rows


def test_a_slice_has_no_more_rows_than_configured_and_a_bounded_run_reads_what_was_asked() -> None:
    assert by_bytes(SyncOptions(slice_rows=10), 1_000_000, 0).slice_rows == 10
    bounded = SyncOptions(max_chunks=3)
    assert by_bytes(bounded, 1_000_000, 0) == bounded
