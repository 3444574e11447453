"""`watermark get` and `list` for people: the warehouse that is there, and tables that have no cursor or no rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from floodmark.cli.main import main
from floodmark.cli.options import split_timestamp
from floodmark.cli.watermark import cleared_lines, list_lines, watermark_lines
from floodmark.model.results import OlderWatermark, SystemWatermark, Watermark
from tests.unit.conftest import mark

NO_POSITION = {"last_mysql_data_timestamp": None, "last_mysql_data_id": None, "lag_seconds": None}
WHOLE = mark(**NO_POSITION, mode="full", mysql_rows_extracted=2)
EMPTY = mark(
    **NO_POSITION, mode="upsert", mysql_rows_extracted=0, pending_s3_files=[],
    next_start="2025-01-01 00:00:00", next_start_by="`start` in the configuration",
)  # fmt: skip


def shown(document: Watermark, warehouse: str = "DuckDB") -> str:
    return "\n".join(watermark_lines(document, False, warehouse=warehouse))


def test_the_load_stage_names_redshift_where_that_is_the_warehouse() -> None:
    assert "S3 → Redshift" in shown(mark(), "Redshift")
    assert "REDSHIFT" in list_lines([mark()], warehouse="Redshift")[0]


def test_a_table_that_is_read_whole_may_have_no_snapshot_yet() -> None:
    assert "no snapshot yet" in list_lines([WHOLE.but(last_mysql_extraction_time=None)])[1]


@pytest.mark.parametrize("status", ["success", "pending"])
def test_an_empty_table_that_is_up_to_date_does_not_look_pending(status: str) -> None:
    document = EMPTY.but(redshift_status=status)
    said = shown(document)
    assert "Last data timestamp     none: the table had no rows" in said
    for word in ("none yet", "unknown", "pending"):
        assert word not in said
    row = list_lines([document])[1]
    assert "no rows" in row and "pending" not in row and "unknown" not in row


def test_a_table_before_its_first_sync_looks_pending() -> None:
    document = EMPTY.but(mysql_status="pending")
    assert "Last data timestamp     none yet" in shown(document) and "pending" in shown(document)


def test_changes_that_are_not_followed_are_shown() -> None:
    said = shown(mark(not_followed=["deletes", "updates"]))
    assert "Not followed            deleted rows stay in the target\n" in said
    assert "Not followed            changes to old rows are not seen (no update column)\n" in said
    assert "Not followed" not in shown(mark())


def test_a_table_read_by_id_shows_its_last_id() -> None:
    said = shown(mark(last_mysql_data_timestamp=None))
    assert "Last data id            1250000" in said and "Last data timestamp" not in said


def test_tables_whose_health_is_not_ok_are_named_below_the_worst_first() -> None:
    words = {"a.late": "behind", "a.fine": "ok", "a.broken": "failed", "a.later": "behind"}
    marks = [mark(table_name=name, health=word) for name, word in words.items()]
    assert list_lines(marks)[-2:] == ["failed: a.broken", "behind: a.late, a.later"]
    many = [mark(table_name=f"a.t{n}", health="differs") for n in range(20)]
    assert list_lines(many)[-1].endswith(", a.t8 and 11 more tables")
    assert all(len(line) <= 80 for line in list_lines(many, width=80))


def test_watermarks_of_the_older_tool_are_listed_below() -> None:
    older = [
        OlderWatermark(table_name="shop.old", timestamp="2025-08-14T15:30:22", uri="s3://b/shop_old.json")
    ]
    for documents in ([], [mark()]):
        *_, title, head, row = list_lines(documents, older=older)
        assert "older tool" in title and head.split()[0] == "TABLE"
        assert row.split() == ["shop.old", "2025-08-14", "15:30:22", "s3://b/shop_old.json"]


def test_clearing_the_system_watermark_says_how_to_undo_it() -> None:
    lines = cleared_lines(
        SystemWatermark(timestamp=None, undo="floodmark watermark set …"), "2025-01-01 00:00:00"
    )
    assert lines[0].endswith("start after 2025-01-01 00:00:00 (`start` in the configuration)")
    assert lines[1] == "To undo: floodmark watermark set …"
    assert cleared_lines(SystemWatermark(timestamp=None), None)[0] == "There is no system watermark."


@pytest.mark.parametrize(
    "line",
    [
        ["watermark", "set", "-t", "a.b", "--timestamp", "2025-08-01", "12:00:00"],
        ["watermark", "set", "--timestamp", "2025-08-01", "12:00:00"],
        ["sync", "-t", "a.b", "--since=2025-08-01", "12:00:00"],
    ],
)
def test_a_timestamp_that_the_shell_has_split_gets_the_hint_to_quote_it(
    line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line) == 2
    said, hint = capsys.readouterr().err.splitlines()
    assert said == "floodmark: the shell has split the timestamp 2025-08-01 12:00:00 in two"
    assert hint == '  quote it: "2025-08-01 12:00:00"'
    assert split_timestamp(["--timestamp", "2025-08-01 12:00:00"]) is None


def test_clean_all_of_one_table_says_what_to_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["s3clean", "clean-all", "-t", "a.b"]) == 2
    assert "floodmark s3clean clean -t a.b" in capsys.readouterr().err


def test_a_script_without_force_fails_also_while_there_is_nothing_to_remove(
    config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Otherwise it would begin to fail on the day when there is something."""
    config.write_text("source: {url: 'mysql://me@db/shop'}\nstore: {url: ./lake}\n")
    assert main(["s3clean", "clean-all"]) == 2
    said = capsys.readouterr().err
    assert "there are none to remove" in said and "--force" in said and "?" not in said
    assert main(["s3clean", "clean-all", "--force"]) == 0
    assert capsys.readouterr().out == "No table has staged files.\n"
