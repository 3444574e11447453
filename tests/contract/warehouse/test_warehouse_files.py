"""The files of a load, in every warehouse: all there, and what their commit describes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from floodmark.model.errors import DataError
from floodmark.store.store import Store
from tests.support.described import changed
from tests.support.warehouse_loads import (
    ID,
    NAME,
    ORDERS,
    SEEN,
    Fill,
    Place,
    row,
)


class Remote(Store):
    """A store that is not on this disk: its files have to be downloaded."""

    def local(self, path: str) -> Path | None:
        return None


@pytest.fixture(params=[Store, Remote])
def any_fill(request: pytest.FixtureRequest, place: Place, store: Store) -> Fill:
    if place.kind == "redshift" and request.param is Remote:
        pytest.skip("Redshift reads its files by itself")
    return Fill(place, request.param(store.spec))


def test_a_missing_file_is_named_and_nothing_is_loaded(any_fill: Fill) -> None:
    first, second = any_fill.commit([row(1)]), any_fill.commit([row(2)])
    any_fill.store.delete([second[0].files[0].path])
    with pytest.raises(DataError, match=r"log-1-2-0\.parquet") as gone:
        any_fill.load(first, second)
    assert gone.value.code == 6 and gone.value.hint and gone.value.table == "shop.orders"
    assert any_fill.place.open().ledger("log-1", "orders").rows == ()


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_a_file_that_does_not_match_its_commit_is_refused(any_fill: Fill, damage: str) -> None:
    commit = any_fill.commit([row(1, "a")])
    path = commit[0].files[0].path
    data = any_fill.store.get(path) or b""
    any_fill.store.put(path, data[:-10] if damage == "cut" else b"x" + data[1:])
    with pytest.raises(DataError, match="does not match its commit"):
        any_fill.load(commit)


def test_a_file_with_other_columns_than_in_the_log_is_refused(any_fill: Fill) -> None:
    swapped = changed(ORDERS, columns=(NAME, ID, SEEN))
    commit, digest = any_fill.commit([row(1)], table=swapped)
    with pytest.raises(DataError, match="columns"):
        any_fill.load((replace(commit, schema=ORDERS.fingerprint), digest))


def test_many_files_load_in_parallel(any_fill: Fill) -> None:
    any_fill.load(any_fill.commit(*([row(i)] for i in range(300))))
    assert any_fill.place.open().rows("orders") == 300
