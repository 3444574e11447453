"""The result of a sync as people see it, beside test_rendered.py: its errors, narrow terminals, Ctrl-C."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from floodmark.cli.main import main
from floodmark.cli.sync import ResultStyle, sync_lines
from floodmark.model import events
from floodmark.model.errors import Interrupted, TransientError
from floodmark.model.run import SyncReport, TableReport
from floodmark.model.text import cells
from tests.unit.conftest import does, mark

GOOD = TableReport(
    "shop.orders", strategy="intra-table", rows_extracted=1250000, rows_reread=3, bytes_written=83_100_000,
    files_written=5, rows_loaded=1250003, files_loaded=5, commits=(41, 42,), watermark=mark(),
)  # fmt: skip
BAD = TableReport("shop.items", error=TransientError("MySQL is away", hint="try again", table="shop.items"))
INDEX = "No index starts with updated_at: every sync scans the whole table to find changes."


def lines_of(tables: Sequence[TableReport], how: ResultStyle) -> list[str]:
    return sync_lines("20250819_153000_ab12", tables, 2.0, how)


def test_several_tables_are_one_table_and_errors_follow_on_stderr(
    pipeline: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    does(pipeline, sync=lambda *given: SyncReport(given[5], 2.0, (GOOD, BAD)))
    assert main(["sync", "--all"]) == 4
    text = capsys.readouterr()
    assert [line.split("  ")[-1] for line in text.out.splitlines()[1:3]] == ["ok", "failed (4)"]
    assert text.err.splitlines() == ["floodmark: shop.items: MySQL is away", "  try again"]
    assert main(["sync", "--all", "--json"]) == 4
    assert [table["exit_code"] for table in json.loads(capsys.readouterr().out)["tables"]] == [0, 4]


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
@pytest.mark.parametrize("paint", [False, True])
def test_a_result_fits_the_terminal_and_conveys_nothing_by_colour_alone(width: int, paint: bool) -> None:
    tables = (GOOD, BAD, TableReport("settlement.settlement_normal_delivery_detail", rows_extracted=12))
    for reports in (tables, (*tables, TableReport("a.b", error=Interrupted("x", code=130)))):
        lines = lines_of(reports, ResultStyle(width=width, paint=paint, notes={"shop.orders": [INDEX]}))
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


def test_only_the_document_of_a_table_whose_newer_rows_wait_says_so() -> None:
    held = TableReport("shop.held", held_back_by=("transaction of connection 208",))
    assert "held_back_by" in held.as_json() and "held_back_by" not in GOOD.as_json()
