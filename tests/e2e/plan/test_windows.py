"""What a window holds: rows without a place in the order, before the start, of an interrupted run, cut into slices."""

from __future__ import annotations

import json
from typing import Any

import pytest

from floodmark.model.errors import TransientError
from floodmark.model.events import Event, SliceRead
from floodmark.model.run import SyncOptions, new_run
from floodmark.sync import run as pipeline
from floodmark.sync.preview import plan
from tests.conftest import Silent, Workspace
from tests.support.open_transactions import (
    ORDERS,
    ORDERS_BY_HAND,
    equal,
    notes,
    old_rows,
)
from tests.support.orders import NOTE, create_orders

pytestmark = pytest.mark.source


def test_null_and_future_cursors_are_read_by_every_sync_and_move_no_position(workspace: Workspace) -> None:
    workspace.write(defaults={"overlap_seconds": 0})
    workspace.execute(
        ORDERS_BY_HAND,
        old_rows(3),
        "INSERT INTO orders (note, update_at) VALUES ('none', NULL), ('far', '2099-01-01'), ('none', NULL)",
    )
    table = workspace.synced("orders")
    assert (table["rows_extracted"], table["rows_reread"]) == (3, 3)
    assert "3 rows with a NULL cursor or one in the future" in notes(table)
    assert table["watermark"]["last_mysql_data_timestamp"] == "2025-03-01T00:03:00.000000"
    equal(workspace, 6)
    # Corrected to now, and changed without a cursor: both arrive, and the later read wins.
    workspace.execute(
        "UPDATE orders SET note = 'corrected', update_at = NOW() WHERE note = 'far'",
        "UPDATE orders SET note = 'still none' WHERE id = 4",
    )
    table = workspace.synced("orders")
    assert (table["rows_extracted"], table["rows_reread"]) == (1, 2)
    equal(workspace, 6)


def test_a_cursor_without_an_index_is_still_read(workspace: Workspace) -> None:
    workspace.execute(create_orders(NOTE, index=None), old_rows(2000))
    workspace.write(defaults={"slice_rows": 300})
    table = workspace.synced("orders", strategy="intra-table")
    assert table["rows_extracted"] == 2000
    assert "No index starts with update_at" in notes(table)
    workspace.execute("UPDATE orders SET note = 'new' WHERE id % 4 = 1")
    assert workspace.synced("orders", limit=130)["rows_extracted"] == 130
    assert workspace.synced("orders", strategy="sequential")["rows_extracted"] == 370
    equal(workspace, 2000)


def test_rows_at_or_before_the_start_are_counted_and_left_out(workspace: Workspace) -> None:
    workspace.execute(ORDERS, old_rows(30))
    workspace.write(defaults={"start": "2025-03-01 00:12:00"})
    assert plan(workspace.settings, "orders", SyncOptions()).plan.before_start == 12
    table = workspace.synced("orders")
    assert table["rows_extracted"] == 18
    assert "12 rows at or before" in notes(table)
    assert "rows at or before" not in notes(workspace.synced("orders"))


@pytest.mark.parametrize(("policy", "left_out"), [("null", 11), ("error", 12)])
def test_rows_with_a_zero_cursor_are_left_out_by_the_start_only_if_no_sync_reads_them(
    workspace: Workspace, policy: str, left_out: int
) -> None:
    workspace.execute(
        ORDERS, old_rows(30), "SET sql_mode = ''", "UPDATE orders SET update_at = 0 WHERE id = 5"
    )
    workspace.write(defaults={"start": "2025-03-01 00:12:00", "zero_dates": policy})
    assert plan(workspace.settings, "orders", SyncOptions()).plan.before_start == left_out
    table = workspace.synced("orders")
    assert table["rows_extracted"] + table["rows_reread"] == 30 - left_out


# ---------------------------------------------------------------- interrupted


class Dies(Silent):
    """Ends a run with its n-th result, after the earlier ones have been committed."""

    def __init__(self, results: int) -> None:
        self.left = results

    def __call__(self, event: Event) -> None:
        self.left -= isinstance(event, SliceRead)
        if isinstance(event, SliceRead) and self.left <= 0:
            raise TransientError("the power is gone")


def interrupted(workspace: Workspace, results: int, monkeypatch: pytest.MonkeyPatch, **options: Any) -> int:
    """A run that dies with its n-th result; the rows that it has committed."""
    with monkeypatch.context() as patch:
        patch.setattr("floodmark.sync.passes.COMMIT_EVERY", 0)
        report = pipeline.sync(
            workspace.settings, [workspace.full_name("orders")], False,
            SyncOptions(**options), Dies(results), new_run(), spark=workspace.spark(),
        )  # fmt: skip
    assert report.exit_code == 4
    return report.tables[0].rows_extracted


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ("intra-table", {}),
        ("intra-table", {"strategy": "sequential"}),
        ("intra-table", {"limit": 350, "max_chunks": 2}),
        ("sequential", {"strategy": "intra-table"}),
        ("sequential", {"limit": 700}),
    ],
)
def test_an_interrupted_window_is_finished_without_rereading_committed_slices(
    workspace: Workspace, first: str, then: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace.execute(ORDERS, old_rows(4000))
    workspace.write(defaults={"slice_rows": 500})
    done = interrupted(workspace, 4, monkeypatch, strategy=first)
    assert 1000 <= done <= 2000
    # What comes meanwhile is a window of its own.
    workspace.execute("INSERT INTO orders (note) VALUES ('new')")
    table = workspace.synced("orders", **then)
    if then.get("limit"):
        assert table["rows_extracted"] == 700
        assert workspace.synced("orders")["rows_extracted"] == 4001 - done - 700
    else:
        assert table["rows_extracted"] == 4001 - done
    equal(workspace, 4001)


# ---------------------------------------------------------------- slices


def test_sparse_ids_make_no_empty_slices(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace.execute(ORDERS)
    at = "'2025-03-01' + INTERVAL seq SECOND"
    for first in (1, 10**6, 10**12):
        workspace.execute(f"INSERT INTO orders SELECT {first} + seq, 'x', {at} FROM seq_1_to_1000")
    workspace.execute(
        f"INSERT INTO orders VALUES ({9 * 10**18}, 'far', '2025-03-01')", "ANALYZE TABLE orders"
    )
    workspace.write(defaults={"slice_rows": 300})
    monkeypatch.setattr("floodmark.sync.passes.COMMIT_EVERY", 0)
    table = workspace.synced("orders", strategy="intra-table")
    assert table["rows_extracted"] == 3001
    log = workspace.folder / "lake" / "commits" / workspace.full_name("orders")
    batches = [
        c for c in map(json.loads, (p.read_text() for p in sorted(log.iterdir()))) if c["kind"] == "batch"
    ]
    sizes = [sum(f["rows"] for f in c["files"]) for c in batches]
    assert len(sizes) >= 8
    assert min(sizes) > 0 and max(sizes) < 1000
    equal(workspace, 3001)
