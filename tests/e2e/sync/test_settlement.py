"""The demo's table is what it says, and the comparison finds a single wrong row."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from floodmark.setup.services import settlement
from floodmark.setup.services.compare import compare
from floodmark.setup.services.databases import DatabaseServer

pytestmark = pytest.mark.source

COUNTS = f"SELECT COUNT(*), COUNT(DISTINCT update_at), MIN(update_at) > '2025-01-01' FROM {settlement.NAME}"


def test_the_table_has_ties_and_no_row_before_the_default_start(server: DatabaseServer) -> None:
    settlement.create(server, 4000)
    assert server.execute(COUNTS) == [(4000, 96, 1)]
    job = f"SELECT COUNT(*) FROM {settlement.NAME} WHERE update_at = '{settlement.NIGHTLY_JOB}'"
    assert server.execute(job) == [(200,)]


def test_the_same_arguments_give_the_same_rows(server: DatabaseServer) -> None:
    checksums = []
    for _ in range(2):
        settlement.create(server, 1000, cursor="TIMESTAMP(6)")
        checksums.append(server.execute(f"CHECKSUM TABLE {settlement.NAME}"))
    assert checksums[0] == checksums[1]


def test_changes_insert_and_update_the_requested_number_of_rows(server: DatabaseServer) -> None:
    settlement.create(server, 1000)
    settlement.change(server, 30, 70)
    newer = f"SELECT COUNT(*), SUM(update_at > NOW() - INTERVAL 1 HOUR) FROM {settlement.NAME}"
    assert server.execute(newer) == [(1030, 100)]


WRONG = {
    "UPDATE t SET remark = '' WHERE id = 5": "row 5 differs",
    "UPDATE t SET update_at = update_at + INTERVAL 1 MICROSECOND WHERE id = 6": "row 6 differs",
    "DELETE FROM t WHERE id = 17": "row 17 is missing",
    "INSERT INTO t SELECT * FROM t WHERE id = 20": "row 20 is in the warehouse 2 times",
    "INSERT INTO t SELECT * REPLACE (99999 AS id) FROM t WHERE id = 21": "row 99999 is in the warehouse only",
}


@pytest.mark.parametrize("cursor", ["DATETIME(6)", "TIMESTAMP(6)"])
def test_the_comparison_finds_each_kind_of_wrong_row_and_no_other(
    server: DatabaseServer, tmp_path: Path, cursor: str
) -> None:
    settlement.create(server, 3000, cursor=cursor)
    settlement.change(server, 10, 10)
    warehouse = tmp_path / "w.duckdb"
    link = server.connect(settlement.DATABASE, init_command="SET time_zone = '+00:00'")
    rows = link.cursor()
    rows.execute(f"SELECT * FROM {settlement.TABLE}")
    names = [column[0] for column in rows.description]
    source = pa.table(dict(zip(names, map(pa.array, zip(*rows.fetchall(), strict=True)), strict=True)))
    link.close()
    for wrong, said in {"SELECT 1": "", **WRONG}.items():
        with duckdb.connect(str(warehouse)) as lake:
            lake.execute("SET TimeZone = 'UTC'")
            kind = "TIMESTAMPTZ" if cursor.startswith("TIMESTAMP") else "TIMESTAMP"
            lake.register("source", source)
            lake.execute(
                f"CREATE OR REPLACE TABLE t AS SELECT * REPLACE (update_at::{kind} AS update_at) FROM source"
            )
            lake.execute(wrong)
        found = compare(server, settlement.NAME, warehouse, "t")
        assert found.equal == (not said)
        assert [d.startswith(said) for d in found.differences] == [True] * bool(said), found.differences
