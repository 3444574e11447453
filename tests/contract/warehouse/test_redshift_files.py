"""The files of a load on their way into Redshift: what a manifest names, and how few COPYs bring many commits in order."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from floodmark.config.load import StoreSpec
from floodmark.load.protocol import Numbered
from floodmark.model.errors import ConfigError
from floodmark.store.store import Store
from tests.support.described import changed
from tests.support.warehouse_loads import (
    ID,
    INT,
    ORDERS,
    SEEN,
    Fill,
    RedshiftPlace,
    row,
)


@pytest.fixture
def place(redshift_place: RedshiftPlace) -> RedshiftPlace:
    return redshift_place


def test_a_store_that_is_a_folder_is_a_config_error(fill: Fill, tmp_path: Path) -> None:
    fill.store = Store(StoreSpec(url=str(tmp_path)))
    with pytest.raises(ConfigError, match="only from S3"):
        fill.load(fill.commit([row(1)]))


def test_files_without_rows_are_not_in_the_manifest(fill: Fill, place: RedshiftPlace) -> None:
    outcome = fill.load(fill.commit([row(1)], [], [row(2)]), fill.commit([]))
    assert (outcome.rows, outcome.files) == (2, 4)
    assert fill.rows("id") == [(1,), (2,)] and fill.ledger() == [1, 2]
    read = place.run("SELECT trim(file_name) FROM sys_load_detail WHERE file_name LIKE '%/log-1-1-%'")
    assert [uri for (uri,) in read if uri.startswith(fill.store.uri(""))] == [
        fill.store.uri(f"data/shop.orders/log-1-1-{i}.parquet") for i in (0, 2)
    ]


def copies(fill: Fill, place: RedshiftPlace, *commits: Numbered) -> int:
    """How many COPYs a load takes."""
    place.server.faults.statements.clear()
    fill.load(*commits)
    return len(place.sent("COPY"))


def test_many_commits_take_one_copy_even_if_they_share_keys(fill: Fill, place: RedshiftPlace) -> None:
    # The rows that are read again are of the claim's first commit, and one key is in a commit twice.
    commits = [fill.commit([row(n % 2, f"read {n}", at=9 - n), row(9, str(n))]) for n in range(4)]
    again = fill.commit([row(1, "again"), row(9, "again")], read=12)
    window = fill.commit([row(1, "low"), row(1, "high", at=2)], read=13)
    assert copies(fill, place, *commits, again, window) == 1
    assert fill.rows() == [(0, "read 2"), (1, "high"), (9, "again")]


def test_commits_of_one_claim_are_copied_one_by_one_if_they_share_a_key(
    fill: Fill, place: RedshiftPlace
) -> None:
    apart = [fill.commit([row(n)], read=7) for n in range(5)]
    assert copies(fill, place, *apart) == 1
    again, one = fill.commit([row(1, "again")], read=8), fill.commit([row(1, "late", at=9)], read=9)
    assert copies(fill, place, again, one, fill.commit([row(2)], read=9)) == 1
    one, other = fill.commit([row(1, "first", at=9)], read=11), fill.commit([row(1, "second")], read=11)
    assert copies(fill, place, one, other) == 3
    assert fill.rows()[1] == (1, "second")


def test_files_of_an_older_format_load_too_alone_or_with_new_ones(fill: Fill, place: RedshiftPlace) -> None:
    assert copies(fill, place, *(fill.commit([row(n)], read=None) for n in range(3))) == 1
    assert copies(fill, place, fill.commit([row(5)], read=None), fill.commit([row(6)])) == 2
    old = [fill.commit([row(1, f"old {n}", at=9 - n)], read=None) for n in range(2)]
    copies(fill, place, *old, fill.commit([row(1, "new")]), fill.commit([row(2, "new")]))
    assert fill.rows()[:3] == [(0, None), (1, "new"), (2, "new")] and len(fill.rows()) == 5


def test_read_times_that_contradict_the_log_are_not_trusted(fill: Fill) -> None:
    late, early = fill.commit([row(1, "first")], read=50), fill.commit([row(1, "second")], read=40)
    fill.load(late, early)
    assert fill.rows() == [(1, "second")]


def test_a_column_with_the_name_of_ours_is_loaded_too(fill: Fill) -> None:
    fill.table = changed(ORDERS, columns=(ID, SEEN, replace(INT, name="_floodmark_READ")))
    fill.load(fill.commit([{"id": 1, "_floodmark_READ": 5}], read=None))
    fill.load(*(fill.commit([{"id": 1, "_floodmark_READ": n}], read=None) for n in (6, 7)))
    assert [found[2] for found in fill.place.run("SELECT * FROM orders")] == [7]


def test_a_file_rewritten_with_the_same_bytes_is_accepted(fill: Fill) -> None:
    commit, digest = fill.commit([row(1)])
    (file,) = commit.files
    assert file.etag
    fill.load((replace(commit, files=(replace(file, etag='"of another upload"'),)), digest))
    assert fill.rows("id") == [(1,)]


def test_a_file_whose_etag_nobody_noted_is_compared_by_size_and_footer(fill: Fill) -> None:
    commit, digest = fill.commit([row(1)])
    fill.load((replace(commit, files=(replace(commit.files[0], etag=None),)), digest))
    assert fill.rows("id") == [(1,)]
