"""What tests of warehouses share: each of them over every warehouse, and a session with the stand-in for Redshift."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from floodmark.config.load import StoreSpec
from floodmark.setup.services.s3 import SeaweedFS
from floodmark.store.store import Store
from tests.support.redshift import RedshiftStandIn
from tests.support.standin_sessions import Client, Connect, Lake
from tests.support.warehouse_loads import (
    DuckPlace,
    Fill,
    Place,
    RedshiftPlace,
    own_schema,
)


@pytest.fixture
def redshift_place(redshift: RedshiftStandIn) -> Iterator[RedshiftPlace]:
    with own_schema(redshift) as place:
        yield place


@pytest.fixture(params=["duckdb", "redshift", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "duckdb":
        return DuckPlace(tmp_path)
    place: Place = request.getfixturevalue(f"{request.param}_place")
    return place


@pytest.fixture
def store(place: Place, request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """S3 for Redshift, which reads only from there; else a folder."""
    if place.kind != "redshift":
        return Store(StoreSpec(url=str(tmp_path / "lake")))
    return Store(StoreSpec(**request.getfixturevalue("seaweed").store(request.getfixturevalue("prefix"))))


@pytest.fixture
def fill(place: Place, store: Store) -> Fill:
    return Fill(place, store)


@pytest.fixture
def connect(redshift: RedshiftStandIn, record_property: Callable[[str, object], None]) -> Iterator[Connect]:
    """Opens sessions of the real driver, all in one schema; faults end with the test."""
    schema = redshift.new_schema()
    links = [redshift.connection()]
    links[0].cursor().execute(f"CREATE SCHEMA {schema}")

    def connect(autocommit: bool = False, **options: Any) -> Client:
        link = redshift.connection(**options)
        links.append(link)
        client = Client(link, schema, lambda refusal: record_property("refused", refusal))
        client(f"SET search_path TO {schema}")
        link.autocommit = autocommit
        return client

    yield connect
    redshift.faults.clear()
    for link in links:
        with suppress(Exception):
            link.close()


@pytest.fixture
def client(connect: Connect) -> Client:
    return connect()


@pytest.fixture
def lake(seaweed: SeaweedFS, prefix: str, redshift: RedshiftStandIn) -> Lake:
    return Lake(Store(StoreSpec(**seaweed.store(prefix))), redshift.role)
