"""What a database reports about itself to `doctor`, over both transports; checking leaves nothing behind."""

from __future__ import annotations

import pytest

from floodmark.config.load import StoreSpec
from floodmark.load.redshift.facts import look
from floodmark.load.redshift.steps import Transport
from floodmark.setup.services.s3 import SeaweedFS
from floodmark.store.store import Store
from tests.support.redshift import RedshiftStandIn
from tests.support.warehouse_loads import DataApiPlace, Fill, RedshiftPlace, row


@pytest.fixture(params=[RedshiftPlace, DataApiPlace])
def fill(request: pytest.FixtureRequest, redshift: RedshiftStandIn, seaweed: SeaweedFS, prefix: str) -> Fill:
    redshift.faults.clear()
    place = request.param(redshift)
    return Fill(place, Store(StoreSpec(**seaweed.store(prefix))))


def way(fill: Fill) -> Transport:
    return fill.redshift.faulty()._transport


def test_rights_isolation_and_ledger_are_reported(fill: Fill, redshift: RedshiftStandIn) -> None:
    schema = fill.redshift.schema
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
    assert (before.sorted_ledger, after.sorted_ledger) == (None, True)
    ours = ["floodmark_ledger", "floodmark_lock_orders", "floodmark_targets"]
    assert [table.name for table in rights.tables] == [*ours, "orders"], "targets are known from our own list"
    assert rights.grants == () and after.version.startswith("Redshift")
    if redshift.standin:  # where we are the superuser
        assert rights.superuser and after.user == redshift.user
    fill.place.run("CREATE TABLE earlier AS SELECT * FROM floodmark_ledger")
    fill.place.run("DROP TABLE floodmark_ledger")
    fill.place.run("ALTER TABLE earlier RENAME TO floodmark_ledger")
    assert look(way(fill), schema).sorted_ledger is False


@pytest.mark.parametrize("missing", ["stv_db_isolation_level", "svv_redshift_databases"])
def test_the_isolation_level_is_known_if_one_of_the_views_is_missing(
    redshift: RedshiftStandIn, missing: str
) -> None:
    place = RedshiftPlace(redshift)
    redshift.faults.clear()
    redshift.faults.fail(f".*{missing}", "42P01", f'relation "{missing}" does not exist', times=100)
    warehouse = place.faulty()
    assert look(warehouse._transport, place.schema).isolation == "Snapshot Isolation"
    redshift.faults.clear()
