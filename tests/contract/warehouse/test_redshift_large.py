"""Loads of Redshift that are large in one way or another; those that take long only with FLOODMARK_LONG=1."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from floodmark.config.load import StoreSpec
from floodmark.setup.services.s3 import SeaweedFS
from floodmark.store.store import Store
from tests.support.redshift import RedshiftStandIn
from tests.support.warehouse_loads import Fill, RedshiftPlace, row

FILE = 250_000


@pytest.fixture
def fill(redshift: RedshiftStandIn, seaweed: SeaweedFS, prefix: str) -> Iterator[Fill]:
    redshift.faults.clear()
    place = RedshiftPlace(redshift)
    yield Fill(place, Store(StoreSpec(**seaweed.store(prefix))))
    place.run("DROP TABLE orders")


@pytest.mark.long
def test_2500_files_are_one_load(fill: Fill) -> None:
    outcome = fill.load(fill.commit(*([row(i)] for i in range(2500))))
    assert (outcome.rows, outcome.files) == (2500, 2500)
    assert fill.place.open().rows("orders") == 2500


@pytest.mark.long
def test_a_backlog_of_500_commits_that_share_keys_is_one_copy(fill: Fill) -> None:
    chance = random.Random(5)
    newest: dict[int, str] = {}
    for n in range(500):
        ids = chance.sample(range(1000), 100)
        newest |= dict.fromkeys(ids, f"read {n}")
        fill.commit([row(i, f"read {n}", at=59 - n % 60) for i in ids])
    assert isinstance(fill.place, RedshiftPlace)
    sent = fill.place.server.faults.statements
    sent.clear()
    fill.load(*fill.made)
    assert sum(sql.startswith("COPY") for sql in sent) == 1
    assert fill.rows() == sorted(newest.items()) and len(fill.ledger()) == 500


@pytest.mark.long
def test_a_million_rows_with_30_percent_updates(fill: Fill) -> None:
    def files(ids: Sequence[int], name: str) -> list[list[dict[str, Any]]]:
        return [[row(i, name) for i in ids[first : first + FILE]] for first in range(0, len(ids), FILE)]

    fill.load(fill.commit(*files(range(1_000_000), "first")))
    changed = [i for i in range(1_000_000) if i % 10 < 3]
    fill.load(fill.commit(*files([*changed, *range(1_000_000, 1_700_000)], "second")))
    counted = (
        "SELECT count(*), count(DISTINCT id), sum(CASE WHEN name = 'second' THEN 1 ELSE 0 END) FROM orders"
    )
    assert fill.place.run(counted) == [(1_700_000, 1_700_000, 1_000_000)]
