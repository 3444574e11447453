"""What tests of faults in a load share: a schema of their own in the stand-in for Redshift, and a log to fill it from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from floodmark.config.load import StoreSpec
from floodmark.setup.services.s3 import SeaweedFS
from floodmark.store.store import Store
from tests.support.redshift import RedshiftStandIn
from tests.support.warehouse_loads import Fill, RedshiftPlace, own_schema


@pytest.fixture
def place(redshift: RedshiftStandIn) -> Iterator[RedshiftPlace]:
    with own_schema(redshift) as place:
        yield place


@pytest.fixture
def fill(place: RedshiftPlace, seaweed: SeaweedFS, prefix: str) -> Fill:
    return Fill(place, Store(StoreSpec(**seaweed.store(prefix))))
