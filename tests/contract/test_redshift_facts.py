"""What a database says of itself to `doctor`, through both ways in; looking leaves nothing behind."""

from __future__ import annotations

import secrets

import pytest

from floodmark.store import Store, StoreSpec
from floodmark.testing.redshift import RedshiftStandIn
from floodmark.testing.services import SeaweedFS
from floodmark.warehouse.redshift_facts import look
from floodmark.warehouse.redshift_steps import Transport
from tests.fill import DataApiPlace, Fill, RedshiftPlace, row


@pytest.fixture(params=[RedshiftPlace, DataApiPlace])
def fill(request: pytest.FixtureRequest, redshift: RedshiftStandIn, seaweed: SeaweedFS, prefix: str) -> Fill:
    redshift.faults.clear()
    place = request.param(redshift, f"t_{secrets.token_hex(4)}")
    return Fill(place, Store(StoreSpec(**seaweed.store(prefix))))


def way(fill: Fill) -> Transport:
    return fill.place.faulty()._transport  # type: ignore[union-attr, no-any-return]


def test_rights_isolation_and_ledger_are_told(fill: Fill, redshift: RedshiftStandIn) -> None:
    schema = fill.place.schema
    assert not look(way(fill), "not_there").rights.schema_exists
    before = look(way(fill), schema)
    assert (before.rights.create_schema, before.rights.temp) == (True, True)
    assert (before.isolation, before.commits) == ("Snapshot Isolation", None)
    fill.load(fill.commit([row(1, "a")]))
    after = look(way(fill), schema)
    rights = after.rights
    assert (rights.schema_exists, rights.use_schema, rights.create_in_schema, after.commits) == (
        True,
        True,
        True,
        1,
    )
    ours = ["floodmark_ledger", "floodmark_lock_orders", "floodmark_targets"]
    assert [table.name for table in rights.tables] == [*ours, "orders"], "targets are known from our own list"
    assert rights.grants == () and rights.superuser
    assert after.version.startswith("Redshift") and after.user == redshift.user
