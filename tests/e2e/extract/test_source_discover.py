"""Discovery by the contract's rules: what is found, what is refused, what is noted."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from floodmark.config.load import SourceSpec, TableOptions
from floodmark.model.errors import ConfigError
from floodmark.model.notes import Kind, Note
from floodmark.model.table import Table
from floodmark.model.types import fields
from floodmark.model.warehouse import REDSHIFT
from floodmark.source.describe import discover, discover_with_notes, list_tables, resolve
from floodmark.source.session import Session
from tests.support.orders import create_orders

pytestmark = pytest.mark.source


@pytest.fixture
def session(database: Any) -> Iterator[Session]:
    server = database.server
    with Session(SourceSpec(server.host, server.port, server.user, server.password, database.name)) as opened:
        yield opened


def found(session: Session, name: str = "t", **options: Any) -> Table:
    return discover(session, name, TableOptions(**options), session.spec.database)


def noted(session: Session, name: str = "t", **options: Any) -> dict[Kind, Note]:
    found = discover_with_notes(session, name, TableOptions(**options), session.spec.database)
    return {note.kind: note for note in found.notes}


def refused(session: Session, name: str = "t", **options: Any) -> ConfigError:
    with pytest.raises(ConfigError) as error:
        found(session, name, **options)
    return error.value


FULL = "update_at DATETIME(6) NOT NULL ON UPDATE CURRENT_TIMESTAMP(6)"


def test_a_well_made_table_is_understood_without_a_note(database: Any, session: Session) -> None:
    database.execute(
        f"CREATE TABLE T1 (Id BIGINT PRIMARY KEY, {FULL}, n DECIMAL(9,3), KEY cur (update_at, Id))"
    )
    table = found(session, "T1")
    assert (table.source.schema, table.source.table, table.target) == (database.name, "T1", "t1")
    assert (table.key, table.source.key_index, table.cursor, table.source.cursor_index) == (
        ("Id",),
        "PRIMARY",
        "update_at",
        "cur",
    )
    assert (table.mode, noted(session, "T1")) == ("upsert", {"deletes": Note("deletes")})
    assert table.order == ("update_at", "Id")
    number = table.column("n")
    assert (number.type, number.precision, number.scale, number.nullable) == ("decimal(9,3)", 9, 3, True)
    assert table.column("update_at").fraction == 6


@pytest.mark.parametrize(
    ("columns", "key", "cursor", "mode"),
    [
        (f"id INT PRIMARY KEY, {FULL}", ("id",), "update_at", "upsert"),
        ("id INT PRIMARY KEY, updated_at TIMESTAMP, last_update DATETIME", ("id",), "updated_at", "upsert"),
        ("id INT PRIMARY KEY, x TIMESTAMP ON UPDATE CURRENT_TIMESTAMP", ("id",), "x", "upsert"),
        ("id INT PRIMARY KEY, updated_at BIGINT", ("id",), None, "full"),
        ("id INT AUTO_INCREMENT PRIMARY KEY, x INT", ("id",), "id", "append"),
        ("id INT PRIMARY KEY, x INT", ("id",), None, "full"),
        (f"a INT, {FULL}", (), None, "full"),
        (f"a INT, {FULL}, UNIQUE (a)", (), None, "full"),  # NULLs are never equal
        (f"a INT NOT NULL, {FULL}, UNIQUE u (a)", ("a",), "update_at", "upsert"),
        (f"a INT NOT NULL, b INT NOT NULL, c INT NOT NULL, {FULL}, UNIQUE u (a, b), UNIQUE v (c)", ("c",), "update_at", "upsert"),
        (f"f FLOAT PRIMARY KEY, {FULL}", (), None, "full"),
        (f"f DOUBLE PRIMARY KEY, a INT NOT NULL, {FULL}, UNIQUE (a)", ("a",), "update_at", "upsert"),
        (f"a TEXT NOT NULL, {FULL}, PRIMARY KEY (a(10))", (), None, "full"),
        (f"a VARCHAR(9) CHARSET big5 PRIMARY KEY, {FULL}", (), None, "full"),
        (f"b INT, a INT, {FULL}, PRIMARY KEY (b, a)", ("b", "a"), "update_at", "upsert"),
    ],
)  # fmt: skip
def test_key_cursor_and_mode_follow_the_contract(
    database: Any, session: Session, columns: str, key: tuple[str, ...], cursor: str | None, mode: str
) -> None:
    database.execute(f"CREATE TABLE t ({columns})")
    table = found(session)
    assert (table.key, table.cursor, table.mode) == (key, cursor, mode)


def test_the_configuration_wins(database: Any, session: Session) -> None:
    database.execute(
        f"CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, a INT NOT NULL, at DATETIME, {FULL}, n TEXT)"
    )
    table = found(
        session,
        key=("a",),
        cursor="at",
        target="Other",
        where="a <> 9 -- nine",
        exclude=("n",),
        zero_dates="null",
    )
    assert (table.key, table.source.key_index, table.cursor, table.mode) == (("a",), None, "at", "upsert")
    assert (table.target, table.recipe.where, table.recipe.zero_dates) == ("other", "a <> 9 -- nine", "null")
    assert [c.name for c in table.columns] == ["id", "a", "at", "update_at"]
    assert noted(session, key=("a",), cursor="at")["no_unique_index"].columns == ("a",)
    assert found(session, mode="append").cursor == "id"
    assert found(session, cursor="id").mode == "append"
    assert found(session, mode="full").cursor is None


def test_drawbacks_of_a_table_are_noted(database: Any, session: Session) -> None:
    database.execute("CREATE TABLE t (id INT PRIMARY KEY, update_at DATETIME)")
    notes = noted(session)
    assert set(notes) == {
        "nullable_cursor", "unindexed_cursor", "whole_seconds", "unmaintained_cursor", "deletes"
    }  # fmt: skip
    assert {note.column.name for note in notes.values() if note.column} == {"update_at"}


def test_a_column_that_looks_like_an_update_column_is_named_where_changes_are_not_seen(
    database: Any, session: Session
) -> None:
    database.execute(
        "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, date_created DATETIME, date_changed DATETIME)"
    )

    def named(**options: Any) -> bool:
        note = noted(session, **options).get("likely_cursor")
        return note is not None and note.column is not None and note.column.name == "date_changed"

    assert found(session).mode == "append" and named()
    assert not named(cursor="date_changed") and not named(cursor="id")
    assert not named(exclude=("date_changed",)) and not named(mode="full")


def test_the_best_index_is_read_along(database: Any, session: Session, kind: str) -> None:
    database.execute(
        f"CREATE TABLE t (id INT PRIMARY KEY, x INT, {FULL}, KEY a (update_at, x), KEY b (update_at, id), KEY c (update_at))"
    )
    assert found(session).source.cursor_index == "b"
    hidden = "IGNORED" if kind == "mariadb" else "INVISIBLE"
    database.execute(f"ALTER TABLE t ALTER INDEX b {hidden}")
    assert found(session).source.cursor_index == "c"
    database.execute("ALTER TABLE t DROP INDEX a, DROP INDEX b, DROP INDEX c, ADD INDEX d (x, update_at)")
    assert found(session).source.cursor_index is None


def test_generated_and_invisible_columns_are_read_too(database: Any, session: Session) -> None:
    database.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, g INT AS (id+1) VIRTUAL, i INT INVISIBLE DEFAULT 3)"
    )
    assert [c.name for c in found(session).columns] == ["id", "g", "i"]


def test_a_view_is_refused(database: Any, session: Session) -> None:
    database.execute("CREATE TABLE t (id INT PRIMARY KEY)", "CREATE VIEW v AS SELECT * FROM t")
    assert "is a view" in refused(session, "v").message
    assert list_tables(session, database.name) == [f"{database.name}.t"]


@pytest.mark.both_servers
def test_json_is_a_document_on_mysql_and_text_on_mariadb(database: Any, session: Session, kind: str) -> None:
    database.execute("CREATE TABLE t (id INT PRIMARY KEY, doc JSON)")
    table = found(session)
    expected = {"mysql": ("json", "SUPER"), "mariadb": ("longtext", "VARCHAR(65535)")}
    assert (table.column("doc").data_type, REDSHIFT.type_of(fields(table)[1])) == expected[kind]


@pytest.mark.mariadb_only
def test_a_sequence_is_refused(database: Any, session: Session) -> None:
    database.execute("CREATE TABLE t (id INT PRIMARY KEY)", "CREATE SEQUENCE s")
    assert "is a sequence" in refused(session, "s").message
    assert list_tables(session, database.name) == [f"{database.name}.t"]


def test_a_misspelt_name_gets_the_right_one_as_a_hint(database: Any, session: Session) -> None:
    database.execute(create_orders())
    assert refused(session, "oders").hint == f"did you mean {database.name}.orders?"
    assert refused(session, f"{database.name}.order").hint == f"did you mean {database.name}.orders?"
    error = refused(session, "orders", cursor="updat_at")
    assert (error.hint, error.table) == ("did you mean update_at?", f"{database.name}.orders")
    assert "no column idd" in refused(session, "orders", key=("idd",)).message


def test_a_table_name_in_two_schemas_needs_its_schema(database: Any, server: Any) -> None:
    other = f"o_{secrets.token_hex(4)}"
    server.execute(f"CREATE DATABASE {other}", f"CREATE TABLE {other}.twin_{other} (id INT)")
    server.execute(
        f"CREATE TABLE {database.name}.twin_{other} (id INT)", f"CREATE TABLE {other}.`a.{other}` (id INT)"
    )
    try:
        with Session(SourceSpec(server.host, server.port, server.user, server.password)) as session:
            with pytest.raises(ConfigError, match=r"could be .* or ") as error:
                resolve(session, f"twin_{other}", None)
            assert "schema" in (error.value.hint or "")
            assert resolve(session, f"twin_{other}", other) == f"{other}.twin_{other}"
            assert resolve(session, f"a.{other}", None) == f"{other}.a.{other}"
    finally:
        server.execute(f"DROP DATABASE {other}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"exclude": ("id",)}, "id is the table's key and can't be excluded"),
        ({"exclude": ("update_at",)}, "update_at is the table's cursor and can't be excluded"),
        ({"cursor": "n"}, "n can't be the cursor"),
        ({"key": ("x",)}, "x can't be part of the key: it can be NULL"),
        ({"key": ("f",)}, "f can't be part of the key: double"),
        ({"key": ("n",)}, "n can't be part of the key"),
        ({"where": "nope = 1"}, "nope"),
        ({"where": "id = = 1"}, "SQL syntax"),
    ],
)
def test_options_that_cannot_work_are_refused(
    database: Any, session: Session, options: dict[str, Any], message: str
) -> None:
    database.execute(
        f"CREATE TABLE t (id INT PRIMARY KEY, x INT, f DOUBLE NOT NULL, n TEXT NOT NULL, {FULL})"
    )
    assert message in refused(session, **options).message


def test_a_mode_that_lacks_what_it_needs_is_refused(database: Any, session: Session) -> None:
    database.execute("CREATE TABLE t (a INT)", f"CREATE TABLE u (a INT, {FULL})")
    assert "mode upsert needs a key" in refused(session, "u", mode="upsert").message
    assert "mode append needs a cursor" in refused(session, "t", mode="append").message
    table = found(session, "u", mode="append")
    assert (table.key, table.cursor) == ((), "update_at")


def test_columns_that_fold_to_one_name_stay_distinct(database: Any, session: Session) -> None:
    database.execute("SET sql_mode = ''", "CREATE TABLE t (id INT PRIMARY KEY, d DATE, `D__RAW` INT)")
    named = {f.name: f.target for f in fields(found(session, zero_dates="keep"))}
    assert len({name.lower() for name in named}) == len(set(named.values())) == 4
    assert named["d"] == "d" and "d__raw" in named.values()
    assert named["D__RAW"] == fields(found(session))[2].target


def test_a_missing_privilege_is_a_config_error_with_its_grant(database: Any, server: Any) -> None:
    database.execute("CREATE TABLE t (id INT PRIMARY KEY, secret INT)", "CREATE TABLE u (id INT)")
    user = f"u_{secrets.token_hex(4)}"
    server.execute(
        f"CREATE USER {user} IDENTIFIED BY 'pw'", f"GRANT INSERT ON {database.name}.u TO {user}",
        f"GRANT SELECT (id) ON {database.name}.t TO {user}",
    )  # fmt: skip
    with Session(SourceSpec(server.host, server.port, user, "pw", database.name)) as session:
        assert "denied" in refused(session, "u").message
        # A column without the right is not even shown; the rest of the table can be read, and it is said.
        table = found(session, "t")
        assert [c.name for c in table.columns] == ["id"]
        assert "hidden_columns" in noted(session, "t")
        assert "may not see it" in refused(session, "mysql.user").message
    with Session(SourceSpec(server.host, server.port, server.user, server.password)) as session:
        assert list_tables(session, database.name) == [f"{database.name}.t", f"{database.name}.u"]


def test_the_primary_key_of_a_memory_table_is_a_key_though_its_index_has_no_order(
    database: Any, session: Session
) -> None:
    database.execute(
        "CREATE TABLE t (id INT AUTO_INCREMENT PRIMARY KEY, n INT) ENGINE=MEMORY",
        "CREATE TABLE u (n INT NOT NULL, m INT NOT NULL, UNIQUE (n), UNIQUE b USING BTREE (m)) ENGINE=MEMORY",
    )
    table = found(session)
    assert (table.key, table.source.key_index, table.mode, table.cursor) == (("id",), None, "append", "id")
    assert noted(session).keys() == {"deletes", "updates", "unindexed_cursor"}
    assert found(session, "u").key == ("m",), "a range can be read along this one"
    assert found(session, "u", key=("n",)).source.key_index is None
