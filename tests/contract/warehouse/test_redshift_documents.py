"""JSON on its way into Redshift: parsed, and longer than a VARCHAR where the cluster takes it."""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
from pathlib import Path

import pytest

from floodmark.load.redshift.socket import SocketTransport
from floodmark.load.redshift.warehouse import Redshift
from floodmark.model.errors import ConfigError, DataError
from floodmark.model.table import Column
from tests.support.described import changed
from tests.support.warehouse_loads import (
    ID,
    NAME,
    ORDERS,
    SEEN,
    Fill,
    RedshiftPlace,
    row,
)

DOCS = changed(ORDERS, columns=(ID, SEEN, Column("doc", "json", "json")))
LONG = json.dumps({"text": "ü" * 100_000, "n": [1, None]}, ensure_ascii=False)


@pytest.fixture
def place(redshift_place: RedshiftPlace) -> RedshiftPlace:
    return redshift_place


def warehouse(place: RedshiftPlace, setting: str, longest_cast: int = 16_000_000) -> Redshift:
    """The cluster as it is for a user for whom large strings are switched on or off, configured to have them."""
    user, secret = f"u_{secrets.token_hex(4)}", "Ordinary1"
    place.server.create_user(user, secret, "TEMP ON DATABASE dev", f"CREATE, USAGE ON SCHEMA {place.schema}")
    place.server.execute(f"ALTER ROLE {user} SET floodmark.large_strings TO '{setting}'")
    place.server.execute(f"ALTER ROLE {user} SET floodmark.longest_cast TO '{longest_cast}'")
    spec = place.server.warehouse_spec(place.schema, user=user, password=secret)
    transport = SocketTransport(spec, place.limits)
    return Redshift(transport, place.schema, iam_role=place.server.role, large_strings=True)


def test_long_documents_arrive_whole_if_the_cluster_accepts_them(fill: Fill, place: RedshiftPlace) -> None:
    fill.table, fill.warehouse = DOCS, warehouse(place, "on")
    fill.load(fill.commit([{"id": 1, "doc": LONG}, {"id": 2, "doc": '"a string"'}, {"id": 3}]))
    fill.load(*(fill.commit([{**row(2, at=at), "doc": f'{{"n": {at}}}'}]) for at in (1, 2)))
    assert place.run("SELECT json_typeof(doc) FROM orders ORDER BY id") == [("object",), ("object",), (None,)]
    question = f"SELECT octet_length(doc ->> 'text'), doc ->> 'n' FROM {place.schema}.orders WHERE id IN (1, 2) ORDER BY id"
    ((size, _), (_, n)) = place.server.execute(question)
    assert (int(size), int(n)) == (200_000, 2)


def test_a_document_that_a_cast_would_turn_into_null_stops_the_load(fill: Fill, place: RedshiftPlace) -> None:
    fill.table, fill.warehouse = DOCS, warehouse(place, "on", longest_cast=100_000)
    fill.load(fill.commit([{"id": 1, "doc": "{}"}]))
    with pytest.raises(DataError, match=r"JSON of some rows \(1\) back to text"):
        fill.load(fill.commit([{"id": 1, "doc": LONG}, {"id": 2, "doc": "[1]"}, {"id": 3}]))
    assert place.run("SELECT id, json_typeof(doc) FROM orders") == [(1, "object")]


def test_a_cluster_without_large_strings_is_refused_before_a_row_is_read(
    fill: Fill, place: RedshiftPlace
) -> None:
    off = warehouse(place, "off")
    with pytest.raises(ConfigError, match=r"large_strings is set, but large strings are disabled") as refused:
        off.changes(DOCS)
    assert "enable_large_strings_opt_in" in str(refused.value.hint)
    assert off.changes(ORDERS)  # no document, no query


def test_a_column_of_text_is_found_before_long_documents_are_read_for_it(
    fill: Fill, place: RedshiftPlace
) -> None:
    fill.table, fill.warehouse = DOCS, warehouse(place, "on")
    place.run("CREATE TABLE orders (id BIGINT, update_at TIMESTAMP, doc VARCHAR(65535))")
    place.run("INSERT INTO orders (id, doc) VALUES (1, '{\"n\": 1}')")
    with pytest.raises(DataError, match="column doc of orders is text") as refused:
        fill.warehouse.changes(DOCS)
    for statement in str(refused.value.hint).partition("run: ")[2].split("; "):
        place.run(statement)
    place.server.execute(f"GRANT ALL ON {place.schema}.orders TO PUBLIC")
    assert fill.warehouse.changes(DOCS) == ()
    fill.load(fill.commit([{"id": 2, "doc": LONG}]))
    assert place.run("SELECT json_typeof(doc) FROM orders") == [("object",), ("object",)]


def test_a_long_document_without_the_option_is_refused_by_copy(fill: Fill) -> None:
    fill.table = DOCS
    with pytest.raises(DataError, match="longer than"):
        fill.load(fill.commit([{"id": 1, "doc": LONG}]))


def test_a_text_that_is_not_json_loads_once_its_column_is_a_varchar_again(
    fill: Fill, place: RedshiftPlace
) -> None:
    """With the statements that the documentation has for a table `orders` with a column `notes`."""
    fill.table = changed(ORDERS, columns=(ID, SEEN, replace(NAME, name="notes")))
    place.run("CREATE TABLE orders (id BIGINT, update_at TIMESTAMP, notes SUPER)")
    fill.load(fill.commit([{"id": 1, "notes": '{"a": 5}'}, {"id": 2}]))
    broken = fill.commit([{"id": 3, "notes": "{broken"}])
    with pytest.raises(DataError, match=r"(?i)json") as refused:
        fill.load(broken)
    assert "docs/redshift.md has the statements" in str(refused.value.hint)
    page = (Path(__file__).parents[3] / "docs" / "redshift.md").read_text()
    [block] = (block for block in page.split("```sql")[1:] if "JSON_SERIALIZE" in block)
    for statement in block.partition("```")[0].split(";")[:-1]:
        place.run(statement)
    fill.load(broken)
    assert fill.rows("id, notes") == [(1, '{"a":5}'), (2, None), (3, "{broken")]
