"""A second, ordinary user on targets and tables of ours that somebody else has made: every missing right is named with the
statement that grants it, and that statement, as it was printed, is enough."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace

import pytest
from redshift_connector.core import Connection

from floodmark.config.load import Iam, StoreSpec, WarehouseSpec
from floodmark.load.redshift.catalog import relations
from floodmark.load.redshift.data_api import DataApiTransport
from floodmark.load.redshift.facts import assuming, look
from floodmark.load.redshift.socket import SocketTransport
from floodmark.load.redshift.steps import Transport
from floodmark.load.redshift.warehouse import Redshift
from floodmark.model.errors import ConfigError, TransientError
from floodmark.setup.doctor.check import Check
from floodmark.setup.doctor.warehouse import check_database
from floodmark.setup.services.s3 import SeaweedFS
from floodmark.store.store import Store
from tests.support.data_api import DataApi
from tests.support.redshift import RedshiftStandIn
from tests.support.warehouse_loads import (
    CODES,
    EVENTS,
    Fill,
    RedshiftPlace,
    code,
    own_schema,
)

PASSWORD = "Second-1"
OURS = ("floodmark_ledger", "floodmark_targets", "floodmark_lock_codes", "floodmark_keys_codes")


@dataclass
class Second:
    """A user who owns none of the tables but has all privileges on them to begin with."""

    fill: Fill
    place: RedshiftPlace
    user: str
    data_api: bool = False
    role: str = ""

    def __post_init__(self) -> None:
        self.role = self.role or self.place.server.role

    @property
    def transport(self) -> Transport:
        spec = self.place.server.warehouse_spec(self.place.schema, user=self.user, password=PASSWORD)
        if not self.data_api:
            return SocketTransport(spec, self.place.limits)
        spec = replace(spec, iam=Iam(cluster="c"), transport="data_api")
        return DataApiTransport(spec, self.place.limits, DataApi(self.connect), poll=0.01)

    def connect(self) -> Connection:
        return self.place.server.connection(user=self.user, password=PASSWORD)

    @property
    def warehouse(self) -> Redshift:
        return Redshift(self.transport, self.place.schema, iam_role=self.role)

    def load(self, n: int) -> None:
        self.warehouse.load(self.fill.request(self.fill.commit([code("a", n)])))

    def checks(self) -> dict[str, Check]:
        """What `doctor` says to the user."""
        facts = look(self.transport, self.place.schema, ["codes", "never_made"], self.role)
        spec = WarehouseSpec("redshift", self.place.schema, iam_role=self.role)
        return {check.name: check for check in check_database(facts, spec)}

    def run(self, statements: str) -> None:
        """Statements as they were printed."""
        for statement in statements.split("; "):
            self.place.run(statement)


@pytest.fixture
def second(redshift: RedshiftStandIn, seaweed: SeaweedFS, prefix: str) -> Iterator[Second]:
    with own_schema(redshift) as place:
        fill = Fill(place, Store(StoreSpec(**seaweed.store(prefix))), CODES)
        fill.load(fill.commit([code("A", 1)]))
        user = f"u_{secrets.token_hex(4)}"
        tables = ", ".join(f"{place.schema}.{name}" for name in ("codes", *OURS))
        redshift.create_user(
            user,
            PASSWORD,
            f"CREATE, USAGE ON SCHEMA {place.schema}",
            f"SELECT, INSERT, UPDATE, DELETE ON TABLE {tables}",
        )
        yield Second(fill, place, user)


def test_a_second_user_with_all_rights_loads_into_another_user_s_tables(second: Second) -> None:
    found = second.checks()
    assert not [check for check in found.values() if check.status == "failure"]
    assert "columns perhaps not changed" in found["owners"].detail
    second.load(2)
    assert second.fill.rows("code, n") == [("a", 2)]


@pytest.mark.parametrize("table", ["codes", *OURS])
def test_a_missing_right_on_a_table_is_named_and_its_grant_is_enough(second: Second, table: str) -> None:
    for right in ("SELECT", "INSERT", "UPDATE", "DELETE"):
        second.place.run(f"REVOKE {right} ON {second.place.schema}.{table} FROM {second.user}")
        said = second.checks()["tables"]
        assert said.status == "failure" and said.detail.endswith(f"lacks {right} on {table}")
        second.run(str(said.hint))
        assert second.checks()["tables"].status == "ok"


@pytest.mark.parametrize("table", ["codes", *OURS])
def test_a_load_without_a_right_names_all_that_is_missing_and_is_not_tried_again(
    second: Second, table: str
) -> None:
    second.place.run(f"REVOKE ALL ON {second.place.schema}.{table} FROM {second.user}")
    creating = [sql for sql in second.place.sent("CREATE TABLE") if second.place.schema in sql]
    with pytest.raises(ConfigError, match=f"no SELECT, INSERT, UPDATE, DELETE on {table}") as refused:
        second.load(2)
    tried = [sql for sql in second.place.sent("CREATE TABLE") if second.place.schema in sql]
    assert tried == creating, "it is there, though this user may not look into it"
    second.run(str(refused.value.hint).partition(": ")[2])
    second.load(2)
    assert second.fill.rows("code, n") == [("a", 2)]


@pytest.mark.parametrize("data_api", [False, True])
def test_a_change_of_columns_needs_the_owner_and_says_so(second: Second, data_api: bool) -> None:
    second.data_api = data_api
    second.place.run(f"ALTER TABLE {second.place.schema}.codes DROP COLUMN n")
    with pytest.raises(ConfigError, match="no ownership of codes") as refused:
        second.load(2)
    second.run(str(refused.value.hint).partition(": ")[2])
    second.load(2)
    assert second.fill.rows("code, n") == [("a", 2)]


@pytest.mark.parametrize("right", ["USAGE", "CREATE"])
def test_a_missing_right_on_the_schema(second: Second, right: str) -> None:
    second.place.run(f"REVOKE {right} ON SCHEMA {second.place.schema} FROM {second.user}")
    said = second.checks()["schema"]
    assert said.status == "failure" and right in str(said.hint)
    new = Fill(second.place, second.fill.store, EVENTS, log="log-2")
    request = new.request(new.commit([{"n": 1}], load_as="insert"))
    with pytest.raises(ConfigError, match="permission denied for schema") as refused:
        second.warehouse.load(request)
    assert str(said.hint) in str(refused.value.hint)
    second.run(str(said.hint))
    assert second.checks()["schema"].status == "ok"


def refused_until_granted(second: Second, check: str, words: str) -> None:
    """Doctor and a load name the same missing right, and both pass once it is granted as they say."""
    said = second.checks()[check]
    assert said.status == "failure"
    with pytest.raises(ConfigError, match=words) as refused:
        second.load(2)
    assert str(said.hint) in str(refused.value.hint)
    second.run(str(said.hint))
    assert second.checks()[check].status == "ok"
    second.load(2)


def test_temporary_tables_and_a_schema_that_has_to_be_made(second: Second) -> None:
    server = second.place.server
    server.execute("REVOKE TEMP ON DATABASE dev FROM PUBLIC")
    try:
        refused_until_granted(second, "temp tables", "temporary")
    finally:
        server.execute("GRANT TEMP ON DATABASE dev TO PUBLIC")
    second.place.schema = f"t_{secrets.token_hex(4)}"
    said = second.checks()["schema"]
    assert said.status == "failure" and "may not create it" in said.detail
    second.run(str(said.hint))
    assert second.checks()["schema"].status == "ok"


def test_the_rights_of_very_many_tables_are_granted_in_one_statement(second: Second) -> None:
    schema = second.place.schema
    for n in range(21):
        second.place.server.execute(f"CREATE TABLE {schema}.floodmark_lock_t{n} (nothing smallint)")
    said = second.checks()["tables"]
    assert "and 16 more tables" in said.detail and "ON ALL TABLES IN SCHEMA" in str(said.hint)
    second.run(str(said.hint))
    assert second.checks()["tables"].status == "ok"


def test_iam_users_are_quoted() -> None:
    assert assuming("default", "IAMR:loader") == 'GRANT ASSUMEROLE ON default TO "IAMR:loader" FOR COPY'


def test_a_table_s_columns_are_visible_without_the_right_to_read_it(second: Second) -> None:
    second.place.run(
        f"CREATE TABLE {second.place.schema}.kinds (a INT NOT NULL, b VARCHAR(7) DEFAULT 'x', c DECIMAL(18,4), "
        "d VARBYTE(9), e SUPER, f TIMESTAMP, g TIMESTAMPTZ, h DOUBLE PRECISION, i CHAR(3), j DECIMAL(19,0))"
    )
    second.place.run(f"ALTER TABLE {second.place.schema}.kinds DROP COLUMN h")
    with closing(second.warehouse._transport.open()) as session:
        found = relations(session, second.place.schema, ("kinds",))["kinds"]
    assert [(c.name, c.type, c.nullable, c.default is not None) for c in found.columns] == [
        ("a", "integer", False, False), ("b", "character varying(7)", True, True), ("c", "numeric(18,4)", True, False),
        ("d", "binary varying(9)", True, False), ("e", "super", True, False),
        ("f", "timestamp without time zone", True, False), ("g", "timestamp with time zone", True, False),
        ("i", "character(3)", True, False), ("j", "numeric(19,0)", True, False),
    ]  # fmt: skip


@pytest.mark.parametrize("role", ["{0}", "{0},{0}", "default"], ids=["a role", "a chain", "the default role"])
def test_assumerole_is_named_if_the_database_restricts_it(second: Second, role: str) -> None:
    second.role = role.format(second.role)
    assert second.checks()["ASSUMEROLE"].status == "ok"
    second.place.run("REVOKE ASSUMEROLE ON ALL FROM PUBLIC FOR ALL")
    try:
        refused_until_granted(second, "ASSUMEROLE", "ASSUMEROLE")
    finally:
        second.place.run("GRANT ASSUMEROLE ON ALL TO PUBLIC FOR ALL")


def test_the_holder_of_a_lock_is_named_to_users_who_may_see_it(second: Second) -> None:
    other = second.place.connect()
    try:
        other.cursor().execute("BEGIN")
        other.cursor().execute(f"LOCK TABLE {second.place.schema}.floodmark_lock_codes")
        second.place.limits = replace(second.place.limits, lock=0.5, attempts=1)
        with pytest.raises(TransientError, match="does not show"):
            second.load(2)
        said = second.checks()["sessions"]
        assert said.status == "ok" and "not visible" in said.detail
        second.run(said.detail.partition("holds a lock: ")[2])
        assert "are visible" in second.checks()["sessions"].detail
        with pytest.raises(TransientError, match=f"session .* of {second.place.server.user}"):
            second.load(2)
    finally:
        other.close()
