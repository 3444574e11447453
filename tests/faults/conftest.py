"""What tests of faults in a load share: a schema of their own in the stand-in for Redshift, and a log to fill it from."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from floodmark.store import Store, StoreSpec
from floodmark.testing.redshift import RedshiftStandIn
from floodmark.testing.services import SeaweedFS
from tests.fill import Fill, RedshiftPlace, own_schema


@pytest.fixture
def place(redshift: RedshiftStandIn) -> Iterator[RedshiftPlace]:
    with own_schema(redshift) as place:
        yield place


@pytest.fixture
def fill(place: RedshiftPlace, seaweed: SeaweedFS, prefix: str) -> Fill:
    return Fill(place, Store(StoreSpec(**seaweed.store(prefix))))
