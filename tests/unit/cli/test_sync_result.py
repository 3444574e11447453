"""The result of a sync as people see it: one table for all, notes grouped, a table in full, a dry run, Ctrl-C."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from floodmark.cli.main import main
from floodmark.cli.sync import Shown, sync_lines
from floodmark.model import events
from floodmark.model.errors import DataError, Interrupted, TransientError
from floodmark.model.results import PlanResult
from floodmark.model.run import SyncReport, TableReport
from floodmark.model.text import cells
from tests.unit.conftest import does, mark

GOOD = TableReport(
    "shop.orders", strategy="intra-table", rows_extracted=1250000, rows_reread=3, bytes_written=83_100_000,
    files_written=5, rows_loaded=1250003, files_loaded=5, commits=(41, 42,), watermark=mark(),
)  # fmt: skip
BAD = TableReport("shop.items", error=TransientError("MySQL is away", hint="try again", table="shop.items"))
INDEX = "No index starts with updated_at: every sync scans the whole table to find changes."


def lines_of(tables: Sequence[TableReport], how: Shown) -> list[str]:
    return sync_lines("20250819_153000_ab12", tables, 2.0, how)


def test_several_tables_are_one_table_and_errors_follow_on_stderr(
    pipeline: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    does(pipeline, sync=lambda *given: SyncReport(given[5], 2.0, (GOOD, BAD)))
    assert main(["sync", "--all"]) == 4
    text = capsys.readouterr()
    assert text.out.splitlines()[:-1] == [
        "Table                      Rows  Files   Time  Watermark            Lag  State",
        "shop.orders  1,250,000 +3 again      5  0.0 s  2025-08-14 15:30:22  –    ok",
        "shop.items                    –      –  0.0 s  –                    –    failed (4)",
        "",
        "Notes",
        "  2 files waiting to be loaded",
        "      shop.orders",
        "",
    ]
    assert text.out.splitlines()[-1].endswith("2 tables, 1 table failed, 2.0 s")
    assert text.err.splitlines() == ["floodmark: shop.items: MySQL is away", "  try again"]
    assert main(["sync", "--all", "--json"]) == 4
    assert [table["exit_code"] for table in json.loads(capsys.readouterr().out)["tables"]] == [0, 4]


def test_one_table_or_verbose_is_shown_in_full() -> None:
    lines = [
        "shop.orders: ok, intra-table",
        "  extracted     1,250,000 rows, and 3 read again, 5 files, 83.1 MB, 625,002 rows/s",
        "  loaded        1,250,003 rows, 5 files",
        "  watermark     2025-08-14 15:30:22 (id 1250000), commit 42, 2 files waiting",
        f"  note          {INDEX}",
    ]
    notes = {"shop.orders": [INDEX]}
    assert lines_of([GOOD], Shown(notes=notes))[:-1] == lines
    both = lines_of([GOOD, BAD], Shown(verbose=True, notes=notes))
    assert both[:-1] == [*lines, "shop.items: failed (exit code 4)"]


def test_a_table_whose_newer_rows_wait_is_not_up_to_date() -> None:
    held = TableReport(
        "shop.held", held_back_by=("transaction of connection 208 (root@127.0.0.1), open for 21 s",)
    )
    tables = (held, TableReport("shop.idle"), replace(GOOD, held_back_by=held.held_back_by))
    assert [line.split("  ")[-1] for line in lines_of(tables, Shown())[1:4]] == [
        "held back",
        "up to date",
        "ok",
    ]
    assert "held_back_by" in tables[0].as_json() and "held_back_by" not in tables[1].as_json()


def test_rows_that_were_only_read_again_are_counted_once_on_a_narrow_terminal() -> None:
    again = TableReport("shop.orders", rows_reread=17, rows_loaded=17, files_written=1, watermark=mark())
    both = replace(again, rows_extracted=5, rows_loaded=22)
    lines = lines_of([again, both], Shown(width=40))
    assert "  ok, 17 rows again, 1 file, 0.0 s" in lines and "  ok, 5 rows, 17 again, 1 file, 0.0 s" in lines


def test_a_note_is_printed_once_with_the_tables_that_it_concerns() -> None:
    tables = [TableReport(f"shop.t{n}") for n in range(60)]
    notes = {
        t.table: [INDEX, f"{n + 1} rows at or before 2025-01-01 are left out."] for n, t in enumerate(tables)
    }
    notes["shop.t7"].append("only here")
    lines = lines_of(tables, Shown(notes=notes))
    assert lines[62:-2] == [
        "Notes",
        f"  {INDEX}",
        "      shop.t0, shop.t1, shop.t2 and 57 more tables",
        "  1 rows at or before 2025-01-01 are left out.",
        "      shop.t0; the same, with other numbers: shop.t1, shop.t2, shop.t3 and 56 more tables",
        "  only here",
        "      shop.t7",
    ]


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("paint", [False, True])
def test_a_result_fits_the_terminal_and_conveys_nothing_by_colour_alone(width: int, paint: bool) -> None:
    tables = (GOOD, BAD, TableReport("settlement.settlement_normal_delivery_detail", rows_extracted=12))
    for reports in (tables, (*tables, TableReport("a.b", error=Interrupted("x", code=130)))):
        lines = lines_of(reports, Shown(width=width, paint=paint, notes={"shop.orders": [INDEX]}))
        plain = [line.replace("\x1b[0m", "") for line in lines]
        for colour in ("31", "32", "33"):
            plain = [line.replace(f"\x1b[{colour}m", "") for line in plain]
        assert not any("\x1b" in line for line in plain)
        assert max(map(cells, plain)) <= width
        text = " ".join(" ".join(plain).split())
        for told in (
            "1,250,000",
            "shop.orders",
            "settlement_normal_delivery_detail",
            "failed (4)",
            "No index starts",
        ):
            assert told in text
        assert ("✓ ok" in text and "✗ failed" in text) == paint


def planned(rows: int, slices: int, files: int, *ddl: str, unknown: str | None = None) -> PlanResult:
    found = {
        "rows": rows, "files": slices, "slices": slices, "window": None, "read_again": [],
        "pending": None if unknown else {"files": files, "rows": files * 100}, "ddl": list(ddl),
        "warehouse_unknown": unknown,
    }  # fmt: skip
    return PlanResult.of(found)


def test_a_dry_run_shows_rows_slices_pending_files_and_statements() -> None:
    create = "CREATE TABLE main.orders (id BIGINT)"
    todo = TableReport("shop.orders", plan=planned(1000, 4, 2, create))
    idle = TableReport("shop.items", plan=planned(0, 0, 0))
    away = TableReport("shop.away", plan=planned(5, 1, 0, unknown="refused"))
    assert lines_of([todo, idle, away], Shown(dry_run=True)) == [
        "Table         Rows  Slices  Files  Waiting  State",
        "shop.orders  1,000       4      4  2 files  to do",
        "shop.items       0       0      0  0 files  nothing to do",
        "shop.away        5       1      1        ?  to do",
        "",
        "Statements for the target",
        f"  {create}",
        "",
        "Run 20250819_153000_ab12: 3 tables, dry run, nothing written, 2.0 s",
    ]
    assert lines_of([todo], Shown(dry_run=True))[:-1] == [
        "shop.orders: to do",
        "  would read about 1,000 rows in 4 slices, into 4 files",
        "  would load 2 files (200 rows) written earlier",
        f"  would run     {create}",
    ]
    assert "  the warehouse could not be reached: refused" in lines_of([away], Shown(dry_run=True))


def test_ctrl_c_prints_what_was_finished_and_what_was_not(
    pipeline: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def step(
        config: Any, names: Any, all_tables: bool, options: Any, progress: Any, run: str, spark: Any
    ) -> Any:
        progress(
            events.TablesChosen(
                "",
                (
                    "shop.orders",
                    "shop.items",
                    "shop.late",
                    "shop.retired",
                ),
            )
        )
        progress(events.Ended(GOOD.table, GOOD))
        progress(events.Ended("shop.retired", TableReport("shop.retired", left_out=True)))
        progress(events.StageBegan("shop.items", "extract", 10))
        progress(
            events.Ended(
                "shop.items",
                TableReport("shop.items", rows_extracted=5, error=Interrupted("stopped", code=130)),
            )
        )
        raise Interrupted("interrupted by Ctrl-C", code=130)

    does(pipeline, sync=step)
    assert main(["sync", "--all"]) == 130
    text = capsys.readouterr()
    states = {line.split()[0]: line for line in text.out.splitlines() if line.startswith("shop.")}
    assert states["shop.orders"].endswith("ok")
    assert states["shop.items"].endswith("interrupted")
    assert set(states) == {"shop.orders", "shop.items"}
    assert "Not started: shop.late" in text.out.splitlines()
    assert "3 tables, 2 tables not finished" in text.out
    assert text.err.splitlines()[-1] == "floodmark: interrupted by Ctrl-C"
    assert main(["sync", "--all", "--json"]) == 130
    assert json.loads(capsys.readouterr().out)["error"]["code"] == 130
    assert main(["sync", "--all", "--quiet"]) == 130
    assert capsys.readouterr().out == ""


def test_what_a_dry_run_finds_refused_is_an_error_next_to_the_plan() -> None:
    refused = TableReport(
        "shop.orders", plan=planned(5, 1, 0), error=DataError("column note", table="shop.orders")
    )
    assert lines_of([refused], Shown(dry_run=True))[0] == "shop.orders: failed (exit code 6)"
