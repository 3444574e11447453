"""The options of a run, and how a stretch of the order is queried from MySQL."""

import itertools
from dataclasses import replace

import pytest

from floodmark.model.errors import TransientError
from floodmark.model.position import Position
from floodmark.model.run import SyncOptions, implausible
from floodmark.model.table import Column, Table
from floodmark.model.window import Intent, Slice
from floodmark.plan.decide import Again, TablePlan, again, check_begun, passes
from floodmark.source import ranges as edges
from floodmark.source import sql
from tests.support.described import changed, described

ID = Column("id", "bigint(20)", "bigint", nullable=False, extra="auto_increment")
AT = Column("update_at", "datetime", "datetime", nullable=False, fraction=0)
TABLE = described(
    "shop", "orders", (ID, AT), ("id",), "update_at", "upsert", "orders", key_index="PRIMARY", cursor_index="at"
)  # fmt: skip

LOW: Position = ("2025-01-01 00:00:00.000000", 3)


def test_the_predicate_of_a_position_keeps_ties_apart_and_can_be_read_as_an_index_range() -> None:
    text = sql.after(TABLE, TABLE.order, LOW)
    at = sql.literal(AT, LOW[0])
    assert text == f"`update_at` >= {at} AND (`update_at` > {at} OR (`update_at` = {at} AND `id` > 3))"


def test_a_prefix_as_the_low_end_means_after_every_row_that_shares_it() -> None:
    assert sql.after(TABLE, TABLE.order, LOW[:1]) == f"`update_at` > {sql.literal(AT, LOW[0])}"


def test_no_value_can_end_its_literal() -> None:
    text = Column("name", "varchar(9)", "varchar")
    assert sql.literal(text, "'; DROP TABLE x; --") == "_utf8mb4 X'" + b"'; DROP TABLE x; --".hex() + "'"
    assert sql.quote("a`b") == "`a``b`"


def test_limit_times_chunks_bounds_the_run() -> None:
    assert SyncOptions(limit=50, max_chunks=3).most == 150
    assert SyncOptions(max_chunks=2, slice_rows=1000).most == 2000
    assert SyncOptions().most is None


def test_sparse_ids_make_no_empty_slices() -> None:
    ids = sorted([*range(1, 1001), *range(10**9, 10**9 + 1000), 10**15])

    def dive(low: int, high: int) -> int:
        return 2 * len([i for i in ids if low < i <= high])  # dives overstate, by a constant factor

    inner = edges.bisect(dive, 0, ids[-1], 8)
    ends = [0, *inner, ids[-1]]
    counts = [sum(a < i <= b for i in ids) for a, b in itertools.pairwise(ends)]
    assert len(counts) == 8
    assert min(counts) > 100 and max(counts) < 500


def test_a_snapshot_that_shrank_to_nothing_is_refused() -> None:
    assert implausible(before=100_000, now=12)
    assert not implausible(before=100_000, now=90_000)
    assert not implausible(before=5, now=0)


def test_a_plan_is_complete_up_to_its_bound_or_the_moment_before_it_was_made() -> None:
    plan = TablePlan(Intent("sync", TABLE))
    assert plan.complete_at(1000.0) == 1000.0  # ids with nothing open, and snapshots
    assert replace(plan, held=("transaction of 'app'",)).complete_at(1000.0) is None
    assert replace(plan, held=("transaction of 'app'",), bound=400.0).complete_at(1000.0) == 400.0
    assert replace(plan, bound=1000.4).complete_at(1000.0) == 1000.0


def test_a_first_sync_that_leaves_all_rows_waiting_fails_for_now_and_names_what_they_wait_for() -> None:
    waiting = TablePlan(Intent("sync", TABLE), held=("transaction of connection 7",), waits=True)
    with pytest.raises(TransientError, match="all rows wait for the transaction of connection 7"):
        check_begun(waiting)
    with pytest.raises(TransientError, match="to settle"):
        check_begun(replace(waiting, held=()))
    check_begun(replace(waiting, waits=False))  # an empty table, or one with a position
    check_begun(replace(waiting, passes=again(TABLE, [Slice("loose", 1)])))  # something is read


WINDOW = (Slice("window", 0, rows=7), Slice("window", 1, rows=8))
BESIDE = Again((Slice("overlap", 0, rows=2), Slice("loose", 1, rows=1)), overlap="kept")


def order(
    table: Table = TABLE,
    window: tuple[Slice, ...] = WINDOW,
    beside: Again = BESIDE,
    columns: int = 0,
    whole: bool = False,
) -> list[tuple[str, str, str, int]]:
    """The passes of a plan: kind, how they load, how they are committed, and their slices."""
    reread = tuple(Slice("since", i) for i in range(columns))
    found = passes(SyncOptions(), table, reread, beside, window, outside=False, whole=whole)
    return [(one.kind, one.load_as, one.commits, len(one.slices)) for one in found]


def test_rows_beside_the_window_are_read_before_it_so_that_the_position_never_passes_them() -> None:
    assert order(columns=3) == [
        ("columns", "merge", "often", 3), ("again", "merge", "once", 2), ("window", "merge", "often", 2),
    ]  # fmt: skip
    assert order(beside=Again()) == [("window", "merge", "often", 2)]
    assert order(window=()) == [("again", "merge", "once", 2)]
    assert order(window=(), beside=Again()) == []


def test_rows_that_replace_all_others_come_first_and_in_one_commit_whichever_they_are() -> None:
    assert order(whole=True) == [("window", "replace", "once", 2), ("again", "merge", "once", 2)]
    assert order(whole=True, window=()) == [("window", "replace", "once", 2)]
    assert order(whole=True, window=(), beside=Again()) == [("window", "replace", "once", 0)]


def test_rows_that_can_t_be_merged_are_committed_one_slice_after_the_other() -> None:
    keyless = changed(TABLE, key=(), mode="append")
    assert order(keyless, beside=Again()) == [("window", "insert", "each", 2)]
    assert order(keyless, whole=True) == [("window", "replace", "once", 2), ("again", "replace", "once", 2)]


def test_what_is_known_of_rows_outside_where_is_forgotten_when_rows_are_read_by_key() -> None:
    chosen = changed(TABLE, where="status = 1")
    for kind, overlap in (("overlap", "kept"), ("since", "|"), ("keys", "|")):
        [one] = again(chosen, [Slice(kind, 0)], "kept")  # type: ignore[arg-type]
        assert one.overlap == overlap
    [one] = again(TABLE, [Slice("keys", 0)])
    assert one.overlap is None
