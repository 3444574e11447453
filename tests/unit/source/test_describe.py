"""Which columns look like the time of a row's last change."""

from __future__ import annotations

import pytest

from floodmark.model.table import Column
from floodmark.source.describe import likely_cursor, tells_changes


@pytest.mark.parametrize(
    "name",
    [
        "date_changed", "date_modified", "changed_at", "modified", "modification_date", "last_updated", "updatedAt", "ts_update",
        "ModifiedDate", "lastmodifieddate", "updated", "updated_on", "date_upd", "gmt_modified", "timemodified", "mtime",
        "last_change", "row_updated_at", "LAST_UPD_TS", "edited_at", "update_datetime", "lastUpdateTimestamp", "update_date",
    ],
)  # fmt: skip
def test_common_names_of_update_columns_are_recognized(name: str) -> None:
    assert tells_changes(name)


@pytest.mark.parametrize(
    "name",
    [
        "created_at", "date_created", "creation_date", "inserted_at", "date_added", "created_or_updated", "password_changed_at",
        "last_status_change", "exchanged_at", "changed_by", "updated_by", "mode", "model_date", "last_login", "deleted_at",
        "update_count", "next_update", "published_at", "date", "last", "ts", "price_updated_at", "expected_update",
    ],
)  # fmt: skip
def test_names_of_other_times_are_not_recognized(name: str) -> None:
    assert not tells_changes(name)


@pytest.mark.parametrize(
    ("name", "table"),
    [("post_modified_gmt", "wp_posts"), ("products_last_modified", "products"), ("category_updated", "categories")],
)  # fmt: skip
def test_a_name_may_begin_with_its_table_s_name(name: str, table: str) -> None:
    assert tells_changes(name, table)
    assert not tells_changes(name, "t")


def test_a_time_that_is_never_null_comes_first_and_other_types_never() -> None:
    number = Column("modified", "int", "int")
    nullable = Column("date_changed", "datetime", "datetime")
    sure = Column("last_updated", "timestamp", "timestamp", nullable=False)
    assert likely_cursor((number, nullable, sure), "t") is sure
    assert likely_cursor((number, nullable), "t") is nullable
    assert likely_cursor((number,), "t") is None
