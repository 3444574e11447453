"""A warehouse that nothing in src knows of: registered by its descriptor, it does all that the commands ask of one."""

from __future__ import annotations

import threading

import pytest

from floodmark.model.warehouse import WAREHOUSES
from floodmark.setup.doctor.warehouse import examine_warehouse
from tests.conftest import Workspace
from tests.support.postgres import DESCRIPTOR
from tests.support.warehouse_loads import PostgresPlace


@pytest.fixture
def elsewhere(
    workspace: Workspace, postgres_place: PostgresPlace, monkeypatch: pytest.MonkeyPatch
) -> Workspace:
    """A workspace whose warehouse is a schema of PostgreSQL."""
    monkeypatch.setitem(WAREHOUSES, "postgres", DESCRIPTOR)
    monkeypatch.setenv("PGHOST", str(postgres_place.folder))
    url = f"postgres://loader@localhost/{postgres_place.database}"
    workspace.write(warehouse={"url": url, "schema": postgres_place.schema})
    return workspace


def test_a_sync_fills_it_and_a_verify_finds_every_difference(
    elsewhere: Workspace, postgres_place: PostgresPlace
) -> None:
    elsewhere.execute(
        "CREATE TABLE things (code VARCHAR(20) COLLATE utf8mb4_general_ci PRIMARY KEY, n BIGINT UNSIGNED, price DECIMAL(12,4), "
        "f FLOAT, d DOUBLE, day DATE, at DATETIME(6), bin VARBINARY(40), doc LONGTEXT, flag BIT(1), kind ENUM('a','b'), "
        "seen TIMESTAMP(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6), KEY (seen))",
        "INSERT INTO things (code, n, price, f, d, day, at, bin, doc, flag, kind) VALUES "
        "('abc', 18446744073709551615, -0.5, 0.1, 1e300, '1000-01-01', '9999-12-31 23:59:59.999999', x'00ff5c', 'tab\\t, \\\\ and \\n', 1, 'b'), "
        "('ünï', NULL, 12345678.1234, -3.4e38, -0.0, '9999-12-31', '1000-01-01', '', '', 0, NULL), "
        "('x', 0, 0, 0, 0, NULL, NULL, NULL, NULL, NULL, 'a')",
    )
    elsewhere.write(tables={elsewhere.full_name("things"): {}})
    assert elsewhere.synced("things")["rows_loaded"] == 3
    found = elsewhere.verified("things")
    assert found["ok"] and (found["rows_source"], found["rows_warehouse"]) == (3, 3)
    elsewhere.execute("UPDATE things SET code = 'ABC', n = 1 WHERE code = 'abc'")
    assert elsewhere.synced("things")["rows_loaded"] == 1
    assert elsewhere.verified("things")["ok"]
    postgres_place.run("UPDATE things SET bin = 'x' WHERE code = 'x'")
    assert [elsewhere.verified("things")[name] for name in ("ok", "different")] == [False, 1]
    assert elsewhere.settings.warehouse.label == f"postgres://localhost:5432/{postgres_place.database}"


def test_the_doctor_reads_its_ledger(elsewhere: Workspace) -> None:
    (check,) = examine_warehouse(elsewhere.settings, threading.Lock())
    assert (check.name, check.status) == ("ledger", "ok")
