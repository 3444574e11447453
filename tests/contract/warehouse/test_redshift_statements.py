"""Every statement that is sent to Redshift, by socket and by the Data API, is SQL of its own dialect to sqlglot."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest
import sqlglot
from sqlglot import exp

from floodmark.config.load import StoreSpec
from floodmark.model.commit import LoadAs
from floodmark.model.errors import DataError, TransientError
from floodmark.model.ledger import TargetFiller
from floodmark.model.table import Column
from floodmark.model.warehouse import MAX_VARCHAR
from floodmark.setup.services.s3 import SeaweedFS
from floodmark.store.store import Store
from tests.support.described import changed
from tests.support.redshift import RedshiftStandIn
from tests.support.warehouse_loads import (
    CODES,
    EVENTS,
    ID,
    INT,
    NAME,
    ORDERS,
    SEEN,
    DataApiPlace,
    Fill,
    RedshiftPlace,
    code,
    row,
)

DOC = Column("doc", "json", "json")
PRICE = Column("price", "decimal(6,2)", "decimal", precision=6, scale=2)
ODD = changed(
    ORDERS,
    columns=(ID, NAME, SEEN, INT, PRICE, DOC),
    dist_key="id",
    sort_key=("update_at",),
    target="it's \\ odd",
)
WIDE = changed(
    ODD,
    columns=(
        ID, replace(NAME, characters=99, octets=396, type="varchar(99)"), SEEN,
        replace(INT, type="bigint(20)", data_type="bigint"),
        replace(PRICE, type="decimal(12,4)", precision=12, scale=4), DOC, replace(INT, name="added"),
    ),
)  # fmt: skip
KINDS = {"Copy", "Create", "Insert", "Delete", "Update", "Alter", "Select", "Set", "Drop"}


def merges(fill: Fill) -> None:
    """Loads that stage together, in order, and one by one; with commits that are taken back."""
    fill.load(fill.commit([{**row(1), "doc": "{}"}]))
    fill.load(fill.commit([row(2)]), fill.commit([row(1, "x"), row(1, "y")]))
    fill.load(*(fill.commit([row(1)], read=40) for _ in range(2)))
    fill.load(fill.commit([row(7)], read=None), fill.commit([row(8)]))
    early, late = fill.commit([row(1, "early")]), fill.commit([row(1, "late")])
    fill.load(late)
    fill.load(early, late, retake=frozenset({(late[0].n, late[1])}))
    fill.load(fill.commit([{"id": 1}], load_as="delete"))
    fill.load(fill.commit([{"id": 2}], load_as="mark", at="2025-01-01T00:00:00.000000Z"))
    commit = fill.commit([{"id": 3, "price": Decimal("1.5")}], table=WIDE)
    fill.load(commit, table=WIDE)


def others(fill: Fill) -> None:
    """Keys with weights, snapshots."""
    for table, values in (
        (CODES, code("a", 1)),
        (CODES, code("A", 2)),
        (changed(EVENTS, mode="full"), {"n": 1}),
    ):
        other = Fill(fill.place, fill.store, table, log=f"log-{table.target}", n=fill.n)
        fill.n += 1
        way: LoadAs = "replace" if table.mode == "full" else "merge"
        other.load(other.commit([values], load_as=way))
        if table is CODES:
            keys = [{"code": "b", "_floodmark_key": b"B"}]
            other.load(other.commit(keys, load_as="delete"), other.commit(keys, load_as="delete"))
            other.load(other.commit(keys, load_as="mark", at="2025-01-01T00:00:00.000000Z"))


def failures(fill: Fill, place: RedshiftPlace) -> None:
    """Lost answers, a COPY that fails, a lock that somebody keeps."""
    place.open().set_epoch(TargetFiller("pipe-1", "log-1", ODD.name, 99), ODD.target)
    place.open().ledger("log-1", ODD.target)
    faults = place.server.faults
    other = Fill(place, fill.store, log="log-orders", n=100)
    other.warehouse = place.faulty()
    faults.drop_after_commit()
    other.load(other.commit([row(1)]))
    faults.fail_copy("The length of the data column name is longer than the length defined in the table")
    with pytest.raises(DataError):
        other.load(other.commit([row(2)]))
    faults.conflicts()
    other.load(other.commit([row(2)]))
    held = place.connect()
    cursor = held.cursor()
    cursor.execute("BEGIN")
    cursor.execute("LOCK TABLE floodmark_lock_orders")
    with pytest.raises(TransientError):
        place.faulty(replace(place.limits, lock=0.3)).load(other.request(other.commit([row(3)])))
    held.close()


@pytest.mark.parametrize("kind", [RedshiftPlace, DataApiPlace])
def test_every_statement_parses_as_redshift_sql_in_sqlglot(
    kind: type[RedshiftPlace], redshift: RedshiftStandIn, seaweed: SeaweedFS, prefix: str
) -> None:
    redshift.faults.clear()
    place = kind(redshift)
    redshift.faults.statements.clear()
    fill = Fill(place, Store(StoreSpec(**seaweed.store(prefix))), ODD)
    merges(fill)
    others(fill)
    if kind is RedshiftPlace:
        failures(fill, place)
    theirs = ("LOCK TABLE floodmark_lock_orders", "SET search_path", "SELECT n FROM")
    ours = [sql for sql in dict.fromkeys(redshift.faults.statements) if not sql.startswith(theirs)]
    kinds = set()
    for sql in ours:
        (tree,) = sqlglot.parse(sql, read="redshift")
        assert tree is not None, sql
        # sqlglot does not know LOCK; everything else it must understand.
        assert not isinstance(tree, exp.Command) or sql.startswith(("LOCK TABLE ", "BEGIN", "ROLLBACK")), sql
        assert len(sql.encode()) <= 100_000, sql[:200]
        kinds.add(type(tree).__name__)
    assert kinds >= KINDS, KINDS - kinds
    staged = [
        sql for sql in ours if sql.startswith("CREATE TEMP TABLE") and '"doc"' in sql and "SELECT" not in sql
    ]
    assert staged and all(f'"doc" VARCHAR({MAX_VARCHAR})' in sql for sql in staged)
