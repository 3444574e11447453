"""Windows, slices and what is read again, decided without a source."""

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from floodmark import plan
from floodmark.model import Column, Position, Table, Window
from floodmark.mysql import edges, sql
from floodmark.plan import Request

ID = Column("id", "bigint(20)", "bigint", nullable=False, extra="auto_increment")
AT = Column("update_at", "datetime", "datetime", nullable=False, fraction=0)
TABLE = Table(
    "shop", "orders", (ID, AT), ("id",), "update_at", "upsert", "orders", key_index="PRIMARY", cursor_index="at"
)  # fmt: skip
BY_ID = Table(
    "shop", "log", (ID,), ("id",), "id", "append", "log", key_index="PRIMARY", cursor_index="PRIMARY"
)

Row = tuple[str, int]
LOW: Row = ("2025-01-01 00:00:00.000000", 3)
HIGH: Row = ("2025-01-01 00:00:02.000000", 7)


def inside(low: Position | None, row: Row, high: Position | None) -> bool:
    """What (low, high] means, with prefixes."""
    return (low is None or row[: len(low)] > low) and (high is None or row[: len(high)] <= high)


rows = st.tuples(st.sampled_from([f"2025-01-01 00:00:0{s}.000000" for s in range(4)]), st.integers(0, 9))


@given(st.lists(rows, unique=True), st.lists(rows, unique=True, max_size=5))
def test_every_row_of_a_window_lies_in_exactly_one_slice_by_cursor(table: list[Row], cuts: list[Row]) -> None:
    window = Window("w", LOW, HIGH, "cursor", tuple(sorted(c for c in cuts if LOW < c < HIGH)))
    for row in table:
        homes = [s for s in plan.slices(window) if inside(s.after, row, s.upto)]
        assert len(homes) == (1 if LOW < row <= HIGH else 0)


@given(st.lists(rows, unique=True), st.lists(st.integers(0, 9), unique=True, max_size=5))
def test_every_row_of_a_window_lies_in_exactly_one_slice_by_key(table: list[Row], cuts: list[int]) -> None:
    window = Window("w", LOW, HIGH, "key", tuple((c,) for c in sorted(cuts)))
    for row in table:
        homes = [
            s
            for s in plan.slices(window)
            if (s.after is None or row[1:] > s.after) and (s.upto is None or row[1:] <= s.upto)
            and inside(s.low, row, s.high)
        ]  # fmt: skip
        assert len(homes) == (1 if LOW < row <= HIGH else 0)


def test_a_resumed_window_has_only_the_slices_that_were_not_committed() -> None:
    window = Window(
        "w", None, HIGH, "cursor", (("2025-01-01 00:00:00.000000", 9), ("2025-01-01 00:00:01.000000", 9))
    )
    assert [s.number for s in plan.slices(window, done=(1,))] == [0, 2]


def test_a_window_is_scattered_when_no_position_stands_for_what_was_committed_of_it() -> None:
    by_cursor = Window("w", None, HIGH, "cursor", (LOW, ("2025-01-01 00:00:01.000000", 9)))
    assert not plan.scattered(by_cursor, ())
    assert not plan.scattered(by_cursor, (0, 1))
    assert plan.scattered(by_cursor, (0, 2))
    by_key = Window("w", None, HIGH, "key", ((3,), (6,)))
    assert not plan.scattered(by_key, ())
    assert plan.scattered(by_key, (0,))


def test_the_predicate_of_a_position_keeps_ties_apart_and_can_be_read_as_an_index_range() -> None:
    text = sql.after(TABLE, TABLE.order, LOW)
    at = sql.literal(AT, LOW[0])
    assert text == f"`update_at` >= {at} AND (`update_at` > {at} OR (`update_at` = {at} AND `id` > 3))"


def test_a_prefix_as_low_end_means_behind_every_row_that_shares_it() -> None:
    assert sql.after(TABLE, TABLE.order, LOW[:1]) == f"`update_at` > {sql.literal(AT, LOW[0])}"


def test_no_value_can_end_its_literal() -> None:
    text = Column("name", "varchar(9)", "varchar")
    assert sql.literal(text, "'; DROP TABLE x; --") == "_utf8mb4 X'" + b"'; DROP TABLE x; --".hex() + "'"
    assert sql.quote("a`b") == "`a``b`"


def test_a_large_share_is_cut_by_key_and_a_small_one_by_the_cursors_index() -> None:
    assert plan.cut_by(Request(), TABLE, share=0.9, rows=10**6) == "key"
    assert plan.cut_by(Request(), TABLE, share=0.01, rows=10**6) == "cursor"


def test_a_bounded_or_ordered_run_is_cut_in_position_order() -> None:
    assert plan.cut_by(Request(limit=50), TABLE, share=1, rows=10**7) == "cursor"
    assert plan.cut_by(Request(strategy="sequential"), TABLE, share=1, rows=10**7) == "cursor"


def test_limit_times_chunks_bounds_the_run() -> None:
    assert Request(limit=50, max_chunks=3).most == 150
    assert Request(max_chunks=2, slice_rows=1000).most == 2000
    assert Request().most is None


def test_the_overlap_begins_before_the_watermark_and_never_before_the_start() -> None:
    low: Position = ("2025-06-01 00:05:00.000000", 9)
    assert plan.overlap_from(TABLE, low, None, 600, None) == ("2025-05-31 23:55:00.000000",)
    start: Position = ("2025-06-01 00:00:00.000000",)
    assert plan.overlap_from(TABLE, low, start, 600, None) == start
    assert plan.overlap_from(TABLE, low, None, 0, None) is None


def test_the_repeated_hour_is_read_again_from_its_first_moment() -> None:
    low: Position = ("2025-11-02 01:45:00.000000", 9)
    again = plan.overlap_from(TABLE, low, None, 0, "2025-11-02 01:00:00.000000")
    assert again == ("2025-11-02 00:59:59.999999",)


def test_ids_are_read_again_by_number() -> None:
    assert plan.overlap_from(BY_ID, (50_000,), None, 600, None) == (40_000,)


def test_integers_that_tell_the_time_are_read_again_in_their_own_unit() -> None:
    updated = Column("updated", "bigint(20)", "bigint")
    table = replace(TABLE, columns=(ID, updated), cursor="updated", unix="ms")
    low = (1_700_000_000_000, 9)
    assert plan.overlap_from(table, low, None, 600, None) == (1_699_999_400_000,)
    assert plan.overlap_from(table, low, None, 0, None) is None
    assert plan.within_reach(table, low, 1_700_000_600_000, 600)
    assert not plan.within_reach(table, low, 1_700_000_600_001, 600)


def test_a_date_reaches_every_time_of_its_day_and_integers_compare_by_size() -> None:
    assert plan.reaches("2025-06-01", "2025-06-01 23:00:00.000000")
    assert not plan.reaches("2025-05-31", "2025-06-01 00:00:00.000000")
    assert not plan.reaches(999, 1000)


def test_sparse_ids_make_no_empty_slices() -> None:
    ids = sorted([*range(1, 1001), *range(10**9, 10**9 + 1000), 10**15])

    def dive(low: int, high: int) -> int:
        return 2 * sum(low < i <= high for i in ids)  # dives overstate, by a constant factor

    inner = edges.bisect(dive, 0, ids[-1], 8)
    ends = [0, *inner, ids[-1]]
    counts = [sum(a < i <= b for i in ids) for a, b in itertools.pairwise(ends)]
    assert len(counts) == 8
    assert min(counts) > 100 and max(counts) < 500


def test_a_snapshot_that_shrank_to_nothing_is_not_believed() -> None:
    assert plan.implausible(before=100_000, now=12)
    assert not plan.implausible(before=100_000, now=90_000)
    assert not plan.implausible(before=5, now=0)
