"""What people read in states that the story of tests/e2e/cli never reaches, whole, beside what was accepted.

`FLOODMARK_GOLDEN=1` writes what is printed now. Every state is one text, so a test's sentence is its name.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from floodmark.cli.sync import ResultStyle, sync_lines
from floodmark.cli.verify import verify_lines
from floodmark.cli.watermark import cleared_lines, list_lines, watermark_lines
from floodmark.model.errors import DataError, TransientError
from floodmark.model.results import OlderWatermark, PlanResult, SystemWatermark, VerifiedTable, Watermark
from floodmark.model.run import Finding, TableReport
from tests.unit.conftest import mark

GOLDEN = Path(__file__).parents[2] / "golden" / "states"
INDEX = "No index starts with updated_at: every sync scans the whole table to find changes."

# ---------------------------------------------------------------- watermarks

NO_POSITION = {"last_mysql_data_timestamp": None, "last_mysql_data_id": None, "lag_seconds": None}
EMPTY = mark(
    **NO_POSITION, mode="upsert", mysql_rows_extracted=0, pending_s3_files=[],
    next_start="2025-01-01 00:00:00", next_start_by="`start` in the configuration",
)  # fmt: skip
RUNNING = {"state": "running", "run": "20250819_153000_ab12", "host": "db1", "pid": 12,
           "since": "2025-08-14T17:12:45.654321Z", "stage": "extract", "rows": 5000}  # fmt: skip
AWAY = mark(redshift_rows_loaded=None, redshift_status=None, last_redshift_load_time=None)
MARKS: dict[str, Watermark] = {
    "a-table-with-files-that-wait": mark(),
    "a-whole-table-without-a-snapshot": mark(
        **NO_POSITION, mode="full", mysql_rows_extracted=2, last_mysql_extraction_time=None
    ),
    "an-empty-table-that-is-up-to-date-is-not-pending": EMPTY.but(redshift_status="pending"),
    "an-empty-table-that-was-loaded": EMPTY.but(redshift_status="success"),
    "a-table-before-its-first-sync-is-pending": EMPTY.but(mysql_status="pending"),
    "changes-that-are-not-followed": mark(not_followed=["deletes", "updates"]),
    "a-table-read-by-id": mark(last_mysql_data_timestamp=None),
    "an-unreachable-warehouse-is-unknown": AWAY.but(redshift_status_as_of=None),
    "a-load-stage-as-it-was-last-known": mark(redshift_status_as_of="2025-08-14T17:00:00.000000Z"),
    "a-table-at-work": mark(activity=RUNNING, mysql_rows_reread=70),
    "an-interrupted-table": mark(
        activity={**RUNNING, "state": "interrupted"}, last_error="MySQL is away", last_error_time=RUNNING["since"]
    ),
    "a-retired-table": mark(activity={"state": "idle"}, retired=True),
}  # fmt: skip
OLDER = [OlderWatermark(table_name="shop.old", timestamp="2025-08-14T15:30:22", uri="s3://b/shop_old.json")]
HEALTH = {"a.late": "behind", "a.fine": "ok", "a.broken": "failed", "a.later": "behind"}
CLEARED = SystemWatermark(timestamp=None, undo="floodmark watermark set …")


def listed(*marks: Watermark, **how: Any) -> str:
    return "\n".join(list_lines(marks, **how))


def watermarks() -> dict[str, str]:
    found = {f"get: {name}": "\n".join(watermark_lines(one, True)) for name, one in MARKS.items()}
    paint = mark(redshift_status="success", redshift_status_as_of="2025-08-14T17:12:45.654321Z")
    failed = mark(mysql_status="failed", redshift_status=None, redshift_status_as_of=None)
    return {
        **found,
        "list: all of these": listed(*MARKS.values(), warehouse="DuckDB"),
        "list: health that is not ok, the worst first": listed(
            *(mark(table_name=name, health=word) for name, word in HEALTH.items())
        ),
        "list: of many tables, some are named": listed(
            *(mark(table_name=f"a.t{n}", health="differs") for n in range(20)), width=80
        ),
        "list: watermarks of the older tool": listed(older=OLDER),
        "list: and of ours": listed(mark(), older=OLDER),
        "list: a status has its colour even if the warehouse is away": listed(paint, failed, paint=True),
        "clear: how to undo it": "\n".join(cleared_lines(CLEARED, "2025-01-01 00:00:00")),
        "clear: there was none": "\n".join(cleared_lines(SystemWatermark(timestamp=None), None)),
    }


# ---------------------------------------------------------------- sync

GOOD = TableReport(
    "shop.orders", strategy="intra-table", rows_extracted=1250000, rows_reread=3, bytes_written=83_100_000,
    files_written=5, rows_loaded=1250003, files_loaded=5, commits=(41, 42), watermark=mark(),
)  # fmt: skip
BAD = TableReport("shop.items", error=TransientError("MySQL is away", hint="try again", table="shop.items"))
HELD = TableReport(
    "shop.held", held_back_by=("transaction of connection 208 (root@127.0.0.1), open for 21 s",)
)
AGAIN = TableReport("shop.orders", rows_reread=17, rows_loaded=17, files_written=1, watermark=mark())
IDLE = TableReport("shop.idle")


def planned(rows: int, slices: int, files: int, *ddl: str, unknown: str | None = None) -> PlanResult:
    pending = None if unknown else {"files": files, "rows": files * 100}
    return PlanResult.of(
        {"rows": rows, "files": slices, "slices": slices, "window": None, "read_again": [], "pending": pending,
         "ddl": list(ddl), "warehouse_unknown": unknown}
    )  # fmt: skip


TODO = TableReport("shop.orders", plan=planned(1000, 4, 2, "CREATE TABLE main.orders (id BIGINT)"))
NOTHING = TableReport("shop.items", plan=planned(0, 0, 0))
UNKNOWN = TableReport("shop.away", plan=planned(5, 1, 0, unknown="refused"))
REFUSED = replace(UNKNOWN, error=DataError("column note", table="shop.away"))


def run(*tables: TableReport, **how: Any) -> str:
    return "\n".join(sync_lines("20250819_153000_ab12", tables, 2.0, ResultStyle(**how)))


def syncs() -> dict[str, str]:
    many = [TableReport(f"shop.t{n}") for n in range(60)]
    notes = {t.table: [INDEX, f"{n + 1} rows before 2025-01-01 are left out."] for n, t in enumerate(many)}
    notes["shop.t7"].append("only here")
    return {
        "sync: several tables": run(GOOD, BAD, HELD, IDLE, replace(GOOD, held_back_by=HELD.held_back_by)),
        "sync: painted": run(GOOD, BAD, HELD, IDLE, paint=True),
        "sync: one table in full": run(GOOD, notes={"shop.orders": [INDEX]}),
        "sync: verbose": run(GOOD, BAD, verbose=True, notes={"shop.orders": [INDEX]}),
        "sync: rows that were read again are counted once on a narrow terminal": run(
            AGAIN, replace(AGAIN, rows_extracted=5, rows_loaded=22), width=40
        ),
        "sync: a note is printed once": run(*many, notes=notes),
        "sync: interrupted": run(GOOD, unfinished=["shop.late", "shop.later"]),
        "dry run: several tables": run(TODO, NOTHING, UNKNOWN, dry_run=True),
        "dry run: one table": run(TODO, dry_run=True),
        "dry run: refused, and the warehouse is away": run(REFUSED, dry_run=True),
    }


# ---------------------------------------------------------------- verify

TABLE = VerifiedTable(
    table="shop.orders", ok=False, error=None, seconds=1.5, rows_source=10, rows_warehouse=9, rows_left_out=0, missing=0,
    extra=0, different=0, loose=0, rows_changed=0, findings=(), notes=(), compared_with="source",
)  # fmt: skip


def verified(repair: bool = False, **changed: Any) -> str:
    return "\n".join(verify_lines([TABLE.but(**changed)], repair))


def verifies() -> dict[str, str]:
    finding = Finding("extra_row", "shop.orders", "id = 9 is in the warehouse and not at the source")
    return {
        "verify: missing and different": verified(missing=1, different=2),
        "verify: extra": verified(extra=1, findings=(finding,)),
        "verify: without a key, no kind is counted": verified(),
        "verify: after a repair": verified(repair=True, missing=1),
        "verify: rows that may only have changed": verified(different=2, loose=1),
        "verify: repaired": verified(ok=True, repaired=3),
        "verify: rows after the watermark": verified(ok=True, rows_left_out=4, notes=("a note",)),
        "verify: a snapshot agrees by the target's rows": verified(
            ok=True, rows_source=602, rows_warehouse=600, compared_with="snapshot"
        ),
        "verify: one row of a snapshot": verified(
            ok=True, rows_source=0, rows_warehouse=1, compared_with="snapshot"
        ),
        # The target's 600th is left out: it has changed after the watermark.
        "verify: the source's rows agree": verified(ok=True, rows_source=599, rows_warehouse=600),
    }


@pytest.mark.parametrize("states", [watermarks, syncs, verifies])
def test_every_state_reads_as_it_was_accepted(states: Any) -> None:
    texts = states()
    shown = "\n".join(f"===== {name}\n{text}" for name, text in texts.items()).replace("\x1b", "ESC") + "\n"
    file = GOLDEN / f"{states.__name__}.txt"
    if os.environ.get("FLOODMARK_GOLDEN"):
        GOLDEN.mkdir(parents=True, exist_ok=True)
        file.write_text(shown)
    assert shown == file.read_text()
