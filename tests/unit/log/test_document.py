"""The watermark that people see."""

from dataclasses import replace
from typing import Any

import pytest

from floodmark.cli.layout import position
from floodmark.cli.watermark import watermark_lines
from floodmark.log.document import data_position, document, observe
from floodmark.log.fold import Data, Extraction, Progress, State
from floodmark.model.changes import FollowedTo, LogIdentity, LogPlace
from floodmark.model.commit import Batch, Reset, Set
from floodmark.model.ledger import LedgerRow
from floodmark.model.position import Position, Value
from floodmark.model.results import Watermark
from floodmark.model.table import Column
from tests.support.described import changed
from tests.support.samples import ID, TABLE, History, at, files, window
from tests.support.watermark_copies import FIELDS, synced, uri


def show(state: State, ledger: list[LedgerRow] | None, **more: Any) -> dict[str, Any]:
    return document(observe(state, ledger, **more), uri)


def test_a_table_without_state_has_zeros_nulls_and_pending_stages() -> None:
    shown = show(State("shop.orders"), [])
    assert list(shown) == FIELDS
    assert shown["commit"] is None and shown["last_mysql_data_timestamp"] is None
    assert (shown["mysql_rows_extracted"], shown["redshift_rows_loaded"], shown["s3_file_count"]) == (0, 0, 0)
    assert (shown["mysql_status"], shown["redshift_status"]) == ("pending", "pending")
    assert (shown["processed_s3_files"], shown["pending_s3_files"], shown["last_error"]) == ([], [], None)


def test_an_extracted_and_loaded_table_shows_both_stages() -> None:
    history = synced()
    shown = show(history.state, history.ledger(loaded_at="2025-08-14T17:12:45.654321Z"))
    assert list(shown) == FIELDS
    assert shown | {"created_at": 0, "updated_at": 0, "last_mysql_extraction_time": 0} == {
        "table_name": "shop.orders",
        "commit": 2,
        "last_mysql_extraction_time": 0,
        "last_mysql_data_timestamp": "2025-08-14T15:00:42.000000",
        "last_mysql_data_id": [7],
        "mysql_rows_extracted": 100,
        "mysql_rows_reread": 0,
        "mysql_status": "success",
        "last_redshift_load_time": "2025-08-14T17:12:45.654321Z",
        "redshift_rows_loaded": 100,
        "redshift_rows_reloaded": 0,
        "redshift_status": "success",
        "backup_strategy": "sequential",
        "s3_file_count": 2,
        "processed_s3_files": [uri(f.path) for f in files(99, 1)],
        "pending_s3_files": [],
        "last_error": None,
        "created_at": 0,
        "updated_at": 0,
        "metadata": {
            "manual_watermark": False,
            "total_processing_time_seconds": 1.5,
            "average_batch_size": 100,
        },
        "backup_metadata": {"saved_at": None, "session_id": None, "backup_locations": []},
    }
    assert shown["created_at"] == history.commits[0][0].at


def test_files_are_pending_until_the_ledger_has_their_commit() -> None:
    history = synced()
    shown = show(history.state, [])
    assert (shown["mysql_status"], shown["redshift_status"]) == ("success", "pending")
    assert len(shown["pending_s3_files"]) == 2 and shown["redshift_rows_loaded"] == 0


def test_a_sync_that_found_no_rows_is_a_success_until_the_position_is_removed() -> None:
    looked = State(
        "s.t", log="l", n=2, extraction=Extraction(last_extraction_time="2025-01-02T00:00:00.000000Z")
    )
    assert statuses(looked) == ("success", "pending")  # its target may not be there yet
    reset = replace(
        looked, data=Data(load_epoch=3), progress=Progress(moved_at="2025-01-03T00:00:00.000000Z")
    )
    assert statuses(reset) == ("pending", "pending")
    again = replace(reset, extraction=Extraction(last_extraction_time="2025-01-04T00:00:00.000000Z"))
    assert statuses(again) == ("success", "success")


def statuses(state: State) -> tuple[str, str]:
    body = show(state, [])
    return body["mysql_status"], body["redshift_status"]


def test_an_open_window_keeps_the_extraction_pending() -> None:
    history = History()
    history.claim(window=window("w", None, (at(10, 1),), at(42, 7)))
    history.add(Batch, window_id="w", slices=(0,), files=files(5))
    shown = show(history.state, history.ledger())
    assert (shown["mysql_status"], shown["redshift_status"]) == ("pending", "success")
    assert shown["last_mysql_data_timestamp"] == "2025-08-14T15:00:10.000000"


def test_a_ledger_row_of_another_epoch_or_digest_loads_nothing() -> None:
    history = synced()
    row = history.ledger()[0]
    for other in (row._replace(epoch=9), row._replace(digest="ab" * 32)):
        assert show(history.state, [other])["redshift_status"] == "pending"


def test_after_a_reset_of_both_stages_nothing_is_counted_and_nothing_is_pending() -> None:
    history = synced()
    before = history.ledger()
    history.add(Reset, stages=("extract", "load"))
    shown = show(history.state, before)
    assert (shown["mysql_rows_extracted"], shown["redshift_rows_loaded"], shown["s3_file_count"]) == (0, 0, 0)
    assert (shown["mysql_status"], shown["redshift_status"]) == ("pending", "pending")
    assert (shown["processed_s3_files"], shown["pending_s3_files"]) == ([], [])
    assert (shown["last_mysql_data_timestamp"], shown["last_mysql_extraction_time"]) == (None, None)
    assert (shown["backup_strategy"], shown["last_redshift_load_time"]) == (None, None)


def test_after_a_reset_of_the_load_the_files_are_pending_again() -> None:
    history = synced()
    before = history.ledger()
    history.add(Reset, stages=("load",))
    shown = show(history.state, before)
    assert (shown["mysql_status"], shown["redshift_status"]) == ("success", "pending")
    assert (shown["mysql_rows_extracted"], shown["redshift_rows_loaded"]) == (100, 0)
    assert len(shown["pending_s3_files"]) == 2
    assert show(history.state, history.ledger())["redshift_status"] == "success"


def test_after_a_reset_of_the_extraction_what_was_loaded_stays_loaded() -> None:
    history = synced()
    history.add(Reset, stages=("extract",))
    shown = show(history.state, history.ledger())
    assert (shown["mysql_status"], shown["redshift_status"]) == ("pending", "success")
    assert (shown["mysql_rows_extracted"], shown["redshift_rows_loaded"]) == (0, 100)
    assert len(shown["processed_s3_files"]) == 2


def test_a_manual_watermark_is_success_and_pending_until_something_is_loaded_after_it() -> None:
    history = synced()
    history.add(Set, position=at(30))
    shown = show(history.state, history.ledger(loaded_at="2020-01-01T00:00:00.000000Z"))
    assert (shown["mysql_status"], shown["redshift_status"]) == ("success", "pending")
    assert (shown["backup_strategy"], shown["metadata"]["manual_watermark"]) == ("manual_cli", True)
    assert (shown["last_mysql_data_timestamp"], shown["last_mysql_data_id"]) == (
        "2025-08-14T15:00:30.000000",
        None,
    )
    assert show(history.state, history.ledger())["redshift_status"] == "success"


VERSION = Column("version", "bigint(20)", "bigint", nullable=False)
BY_ID = changed(TABLE, columns=(ID,), cursor="id")
BY_VERSION = changed(TABLE, columns=(ID, VERSION), cursor="version")
TWO_KEYS = changed(TABLE, key=("shop", "update_at", "id"))


@pytest.mark.parametrize(
    ("table", "position", "shown"),
    [
        (TABLE, at(1, 9), ("2025-08-14T15:00:01.000000", [9])),
        (TABLE, at(1), ("2025-08-14T15:00:01.000000", None)),
        (BY_ID, (12,), (None, [12])),
        (BY_VERSION, (5, 12), (None, [12])),
        (TWO_KEYS, (*at(1), "x", 12), ("2025-08-14T15:00:01.000000", ["x", at(1)[0], 12])),
        (changed(TABLE, key=()), at(1), ("2025-08-14T15:00:01.000000", None)),
        (None, at(1), ("2025-08-14T15:00:01.000000", None)),
        (None, at(1, 9), ("2025-08-14T15:00:01.000000", [9])),
        (None, (12,), (None, [12])),
        (TABLE, None, (None, None)),
    ],
)
def test_a_position_is_shown_as_a_time_and_the_key_s_values(
    table: Any, position: Position | None, shown: tuple[str | None, list[Value] | None]
) -> None:
    assert data_position(State("shop.orders", table=table, progress=Progress(position))) == shown


def test_long_file_lists_are_truncated_and_say_so() -> None:
    history = History()
    history.claim()
    history.add(Batch, files=files(*[1] * 700, prefix="a"))
    assert "processed_s3_files_truncated" not in show(history.state, history.ledger())
    history.add(Batch, files=files(*[1] * 700, prefix="b"))
    shown = show(history.state, history.ledger())
    assert len(shown["processed_s3_files"]) == 1000 and shown["processed_s3_files_truncated"] is True
    assert shown["processed_s3_files"][-1] == uri(files(*[1] * 700, prefix="b")[-1].path)
    assert "pending_s3_files_truncated" not in shown and shown["s3_file_count"] == 1400
    shown = show(history.state, history.ledger(3))
    assert len(shown["pending_s3_files"]) == 300 and shown["pending_s3_files_truncated"] is True
    assert len(shown["processed_s3_files"]) == 700 and "processed_s3_files_truncated" not in shown


def test_a_table_that_follows_the_binary_log_shows_where_it_stands_and_keeps_its_counts() -> None:
    place = FollowedTo(
        "source", 7, "d7", LogPlace("binlog.000042", 1234), LogIdentity("uuid", False),
        "2025-08-14T16:45:33.123456Z", "uuid:1-77",
    )  # fmt: skip
    history = History()
    first = window("w", None, ((10,),), None, by="key", followed_to=place)
    history.claim(table=changed(TABLE, cursor=None, changes="binlog"), window=first)
    history.add(Batch, window_id="w", slices=(0,), files=files(5))
    shown = show(history.state, history.ledger())
    assert "binlog" not in shown and shown["mysql_status"] == "pending"
    history.add(Batch, window_id="w", slices=(1,), files=files(6))
    shown = show(history.state, history.ledger())
    assert (shown["last_mysql_data_timestamp"], shown["last_mysql_data_id"]) == (
        "2025-08-14T16:45:33.123456",
        None,
    )
    assert shown["binlog"] == {"file": "binlog.000042", "position": 1234, "gtid": "uuid:1-77"}
    assert (shown["mysql_rows_extracted"], shown["redshift_rows_loaded"]) == (11, 11)
    assert (shown["mysql_status"], shown["redshift_status"]) == ("success", "success")
    mark = Watermark.of({**shown, "mode": "upsert"})
    assert position(mark) == "2025-08-14 16:45:33.123456 (binlog.000042:1234)"
    [line] = [line for line in watermark_lines(mark, False) if "Binary log" in line]
    assert line.split("  ")[-1].strip() == f"followed up to {position(mark)}"
    [start] = [line for line in watermark_lines(mark, False) if "Will start from" in line]
    assert start.endswith("binlog.000042:1234")
