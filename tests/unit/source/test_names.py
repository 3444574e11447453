"""A table's name is looked up by itself: the work of a run must not grow with the square of the tables."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from floodmark.model.errors import ConfigError
from floodmark.source.describe import resolve
from floodmark.source.session import Session


@dataclass
class Server:
    """Answers what `resolve` asks, from a list of tables; ignores case as information_schema does."""

    tables: list[tuple[str, str, str]]
    folds: bool = False
    listings: int = 0
    spec: Any = field(default_factory=lambda: cast(Any, type("Spec", (), {"user": "reader"})))

    def rows(self, sql: str) -> list[tuple[bytes, ...]]:
        if "lower_case_table_names" in sql:
            return [(b"1" if self.folds else b"0",)]
        asked = re.findall(r"TABLE_SCHEMA = _utf8mb4 X'(\w+)' AND TABLE_NAME = _utf8mb4 X'(\w+)'", sql)
        if not asked:
            self.listings += 1
            return [_cells(table) for table in self.tables]
        wanted = [tuple(bytes.fromhex(part).decode().lower() for part in pair) for pair in asked]
        return [_cells(t) for one in wanted for t in self.tables if (t[0].lower(), t[1].lower()) == one]


def _cells(table: tuple[str, ...]) -> tuple[bytes, ...]:
    return (*(part.encode() for part in table), b"InnoDB")


def found(server: Server, name: str, database: str | None = None) -> str:
    return resolve(cast(Session, server), name, database)


MANY = [("shop", f"t{n}", "BASE TABLE") for n in range(1000)]


def test_a_table_that_is_there_takes_no_listing_of_all_tables() -> None:
    server = Server(MANY)
    assert found(server, "shop.t7") == "shop.t7"
    assert found(server, "shop.t8", "shop") == "shop.t8"
    assert found(server, "t9", "shop") == "shop.t9"
    assert server.listings == 0


def test_names_that_differ_in_case_only_are_two_tables() -> None:
    server = Server([("shop", "Orders", "BASE TABLE"), ("shop", "orders", "BASE TABLE")])
    assert found(server, "shop.Orders") == "shop.Orders"
    assert found(server, "orders", "shop") == "shop.orders"


def test_a_name_without_a_schema_is_searched_in_all_of_them() -> None:
    server = Server([("a", "orders", "BASE TABLE"), ("b", "visits", "BASE TABLE"), ("c", "visits", "VIEW")])
    assert found(server, "orders") == "a.orders"
    with pytest.raises(ConfigError, match=r"visits could be b\.visits or c\.visits"):
        found(server, "visits")
    with pytest.raises(ConfigError, match=r"c\.visits is a view"):
        found(server, "c.visits")


def test_a_name_with_dots_that_could_be_two_tables_is_refused() -> None:
    server = Server([("a", "b.c", "BASE TABLE"), ("a.b", "c", "BASE TABLE")])
    with pytest.raises(ConfigError, match=r"a\.b\.c could be"):
        found(server, "a.b.c")


def test_case_counts_unless_the_server_folds_it() -> None:
    orders = [("shop", "orders", "BASE TABLE")]
    assert found(Server(orders, folds=True), "shop.Orders") == "shop.orders"
    with pytest.raises(ConfigError, match="there is no table") as error:
        found(Server(orders), "shop.Orders")
    assert error.value.hint == "did you mean shop.orders?"
