"""What the command line prints and logs: results, errors, progress, and never a secret."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from floodmark import output
from floodmark.cli import main
from floodmark.errors import TransientError
from floodmark.report import SyncReport, TableReport
from tests.unit.conftest import DOCUMENT, PASSWORD, STORE_KEY, Step, does


def reporting(*tables: TableReport) -> Step:
    def step(config: Any, names: Any, all_tables: bool, options: Any, progress: Any, run: str) -> SyncReport:
        return SyncReport(run, 2.0, tables)

    return step


def test_no_secret_appears_in_errors_logs_notes_or_documents(
    pipeline: ModuleType, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def step(config: Any, tables: Any, all_tables: bool, options: Any, progress: Any, run: str) -> Any:
        import logging

        leak = f"{PASSWORD} {PASSWORD!r} s3cr%3Bt%2Fp%40ss {STORE_KEY} mysql://other:hidden@h/db"
        progress.note("a.b", leak)
        logging.getLogger("floodmark.x").warning("log %s", leak, extra={"table": "a.b", "step": leak})
        try:
            raise RuntimeError(leak)
        except RuntimeError:
            logging.getLogger("floodmark.x").exception("failed")
        if options.force:
            raise TransientError(leak, hint=leak) from RuntimeError(leak)
        error = TransientError(leak, hint=leak, table="a.b")
        watermark = {**DOCUMENT, "last_error": leak}
        return SyncReport(run, 1.0, (TableReport("a.b", error=error, watermark=watermark, notes=[leak]),))

    does(pipeline, sync=step)
    everything = ""
    for more in ([], ["--json"], ["--json-logs"], ["--debug"], ["--debug", "--json-logs", "--json"]):
        for force in ([], ["--force"]):
            line = ["sync", "-t", "a.b", "--log-file", str(tmp_path / "all.log"), *more, *force]
            assert main(line) == 4
            text = capfd.readouterr()
            everything += text.out + text.err
    everything += (tmp_path / "all.log").read_text()
    assert "***" in everything
    for secret in (PASSWORD, "s3cr%3Bt", STORE_KEY, "hidden"):
        assert secret not in everything


def test_logs_are_json_lines_with_fixed_keys_and_so_are_errors_and_progress(
    pipeline: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    def step(config: Any, tables: Any, all_tables: bool, options: Any, progress: Any, run: str) -> Any:
        import logging

        extra = {"table": "a.b", "commit": 7, "step": "commit"}
        logging.getLogger("floodmark.state").info("committed", extra=extra)
        logging.getLogger("py4j").warning("noise")
        progress.note("a.b", "100% said")
        progress.begin("a.b", "extract", 10)
        progress.advance("a.b", "extract", 10, 1, 100)
        progress.end("a.b", "extract")
        raise TransientError("gone", hint="again", table="a.b")

    does(pipeline, sync=step)
    assert main(["sync", "-t", "a.b", "--json-logs"]) == 4
    entries = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [entry["level"] for entry in entries] == ["info", "info", "info", "error"]
    committed, note, extracted, error = entries
    assert {key: committed[key] for key in ("table", "commit", "step")} == {
        "table": "a.b", "commit": 7, "step": "commit",
    }  # fmt: skip
    assert committed["run"] == error["run"]
    assert note["message"] == "100% said"
    assert extracted["message"].startswith("extracted 10 rows, 1 file, 100 B")
    assert (error["message"], error["table"]) == ("gone; again", "a.b")


def test_the_log_file_is_appended_to_and_has_debug_lines_and_tracebacks(
    pipeline: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def step(*args: Any) -> Any:
        import logging

        logging.getLogger("floodmark.x").debug("a detail", extra={"table": "a.b"})
        raise KeyError("boo")

    does(pipeline, plan=step)
    file = tmp_path / "run.log"
    for _ in range(2):
        assert main(["plan", "-t", "a.b", "--log-file", str(file), "--quiet"]) == 1
    text = file.read_text()
    assert text.count("a detail (run=") == 2
    assert text.count("Traceback") == 2
    assert "a detail" not in capsys.readouterr().err


def test_what_a_command_makes_is_this_users_alone_and_a_log_that_was_there_keeps_its_mode(
    pipeline: ModuleType, tmp_path: Path, open_umask: None
) -> None:
    def step(*args: Any) -> Any:
        (tmp_path / "spill").mkdir()  # as DuckDB and Spark make what they need
        raise TransientError("away")

    does(pipeline, plan=step)
    (tmp_path / "old.log").touch(0o640)
    for name in ("new.log", "old.log"):
        main(["plan", "-t", "a.b", "--log-file", str(tmp_path / name)])
    modes = {p.name: p.stat().st_mode & 0o777 for p in tmp_path.iterdir()}
    assert modes["new.log"] == 0o600 and modes["spill"] == 0o700 and modes["old.log"] == 0o640
    (tmp_path / "after").mkdir()
    assert (tmp_path / "after").stat().st_mode & 0o777 == 0o755


def test_a_log_file_that_cannot_be_written_is_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-t", "a.b", "--log-file", "/nonexistent/x.log"]) == 2
    assert "--log-file /nonexistent/x.log" in capsys.readouterr().err


def test_quiet_leaves_results_and_errors_only(
    pipeline: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    def step(config: Any, tables: Any, all_tables: bool, options: Any, progress: Any, run: str) -> Any:
        import logging

        logging.getLogger("floodmark.x").warning("hm")
        progress.note("a.b", "something")
        return SyncReport(run, 1.0, (TableReport("a.b"),))

    does(pipeline, sync=step)
    assert main(["sync", "-t", "a.b", "--quiet"]) == 0
    quiet = capsys.readouterr()
    assert quiet.err == ""
    assert "a.b: up to date" in quiet.out
    assert main(["sync", "-t", "a.b"]) == 0
    usual = capsys.readouterr()
    assert "hm" in usual.err
    assert "a.b: something" in usual.err
    assert usual.out.splitlines()[0] == quiet.out.splitlines()[0]


def test_plain_progress_says_a_line_at_the_end_of_each_stage_and_few_between(
    pipeline: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    def step(config: Any, tables: Any, all_tables: bool, options: Any, progress: Any, run: str) -> Any:
        progress.begin("a.b", "extract", 1000)
        for _ in range(1000):
            progress.advance("a.b", "extract", 1, 0, 10)
        progress.end("a.b", "extract")
        return SyncReport(run, 1.0, ())

    does(pipeline, sync=step)
    assert main(["sync", "-t", "a.b"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("a.b: extracted 1,000 rows, 0 files, 10.0 kB in ")


def test_the_summary_of_a_sync_is_readable_and_errors_follow_on_stderr(
    pipeline: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    good = TableReport(
        "shop.orders", strategy="intra-table", rows_extracted=1250000, rows_reread=3, bytes_written=83_100_000,
        files_written=5, rows_loaded=1250003, files_loaded=5, commits=[41, 42], watermark=DOCUMENT,
    )  # fmt: skip
    bad = TableReport(
        "shop.items", error=TransientError("MySQL is away", hint="try again", table="shop.items")
    )
    does(pipeline, sync=reporting(good, bad))
    assert main(["sync", "--all"]) == 4
    text = capsys.readouterr()
    assert text.out.splitlines()[:-1] == [
        "shop.orders: ok, intra-table",
        "  extracted     1,250,000 rows, and 3 read again, 5 files, 83.1 MB, 625,002 rows/s",
        "  loaded        1,250,003 rows, 5 files",
        "  watermark     2025-08-14 15:30:22 (id 1250000), commit 42, 2 files waiting",
        "shop.items: failed (exit code 4)",
    ]
    assert text.out.splitlines()[-1].endswith("2 tables, 1 table failed, 2.0 s")
    assert text.err.splitlines() == ["floodmark: shop.items: MySQL is away", "  try again"]
    assert main(["sync", "--all", "--json"]) == 4
    document = json.loads(capsys.readouterr().out)
    assert [table["exit_code"] for table in document["tables"]] == [0, 4]


def test_watermark_get_prints_the_layout_that_people_know(
    pipeline: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    does(pipeline, watermark_get=lambda config, table, show_files: DOCUMENT)
    assert main(["watermark", "get", "-t", "shop.orders"]) == 0
    expected = """\
        Current watermark for shop.orders
          MySQL → S3
            Status                  success
            Rows extracted          1,250,000
            S3 files created        250
            Last data timestamp     2025-08-14 15:30:22
            Last extraction time    2025-08-14 16:45:33 UTC
          S3 → Redshift
            Status                  pending
            Rows loaded             1,000,000
            Last load time          2025-08-14 17:12:45 UTC
            Files waiting           2
          Next incremental sync
            Will start from         2025-08-14 15:30:22 (id 1250000)
        """
    assert capsys.readouterr().out == textwrap.dedent(expected)


def test_a_warehouse_that_is_away_shows_as_unknown_and_files_are_listed_when_asked_for(
    pipeline: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    away = {
        **DOCUMENT,
        "redshift_rows_loaded": None,
        "redshift_status": None,
        "last_redshift_load_time": None,
    }
    does(pipeline, watermark_get=lambda config, table, show_files: away)
    assert main(["watermark", "get", "-t", "shop.orders", "--show-files"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "    Rows loaded             unknown" in lines
    assert "    Last load time          unknown" in lines
    assert lines[-5:] == [
        "  Files waiting for the load", "    s3://b/2.parquet", "    s3://b/3.parquet",
        "  Files loaded", "    s3://b/1.parquet",
    ]  # fmt: skip


def test_a_load_stage_as_it_was_last_known_says_so(
    pipeline: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    stale = {**DOCUMENT, "redshift_status_as_of": "2025-08-14T17:00:00.000000Z"}
    never = {**DOCUMENT, "redshift_status_as_of": None}
    does(pipeline, watermark_get=lambda config, table, show_files: stale if table == "stale" else never)
    does(pipeline, watermark_list=lambda config, tables: {"tables": [stale]})
    assert main(["watermark", "get", "-t", "stale"]) == 0
    said = capsys.readouterr().out
    assert "pending (the warehouse could not be asked; as of 2025-08-14 17:00:00 UTC)" in said
    assert "Rows loaded             1,000,000" in said
    assert main(["watermark", "get", "-t", "never"]) == 0
    said = capsys.readouterr().out
    assert "unknown (the warehouse could not be asked)" in said
    assert "Rows loaded             unknown" in said
    assert main(["watermark", "list"]) == 0
    said = capsys.readouterr().out
    assert "pending?" in said
    assert said.splitlines()[-1] == "? the warehouse could not be asked: as last known"


def test_watermark_list_is_one_table(pipeline: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    new = {"table_name": "shop.a_long_table_name", "mysql_rows_extracted": 0, "redshift_rows_loaded": 0}
    new |= {
        "mysql_status": "pending",
        "redshift_status": "pending",
        "pending_s3_files": [],
        "lag_seconds": 7500,
    }
    does(pipeline, watermark_list=lambda config, tables: {"tables": [DOCUMENT, new]})
    assert main(["watermark", "list"]) == 0
    head, first, second = capsys.readouterr().out.splitlines()
    assert head.split() == [
        "TABLE",
        "MYSQL",
        "ROWS",
        "DATA",
        "UP",
        "TO",
        "WAREHOUSE",
        "ROWS",
        "WAITING",
        "LAG",
    ]
    assert first.index("success") == second.index("pending") == head.index("MYSQL")
    assert second.endswith("2 h 5 min")


def test_what_is_wrong_for_several_tables_alike_is_said_once() -> None:
    def of(table: str, message: str = "no such folder") -> dict[str, Any]:
        return {"code": 2, "kind": "config", "table": table, "message": message, "hint": "make it"}

    assert output.together([of("s.a"), of("s.b", "else"), of("s.c")]) == [
        of("s.a and s.c"),
        of("s.b", "else"),
    ]
    (said,) = output.together([of(f"s.{name}") for name in "abcdef"])
    assert output.error_lines(said) == [
        "floodmark: s.a, s.b and 4 more tables: no such folder", "  make it",
    ]  # fmt: skip


RUNNING = {"state": "running", "run": "20250819_153000_ab12", "host": "db1", "pid": 12,
           "since": "2025-08-14T17:12:45.654321Z", "stage": "extract", "rows": 5000}  # fmt: skip


def test_what_goes_on_at_a_table_is_said_where_something_does(
    pipeline: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    running = {**DOCUMENT, "activity": RUNNING, "mysql_rows_reread": 70}
    left = {**DOCUMENT, "activity": {**RUNNING, "state": "interrupted"}, "last_check_time": None}
    left |= {"last_error": "MySQL is away", "last_error_time": "2025-08-14T17:12:45.654321Z"}
    retired = {**DOCUMENT, "activity": {"state": "idle"}, "retired": True}
    shown = {"running": running, "left": left, "retired": retired}
    does(pipeline, watermark_get=lambda config, table, show_files: shown[table])
    does(pipeline, watermark_list=lambda config, tables: {"tables": list(shown.values())})
    assert main(["watermark", "get", "-t", "running"]) == 0
    said = capsys.readouterr().out
    who = "run 20250819_153000_ab12 on host db1 (pid 12)"
    assert f"  Running: {who} since 2025-08-14 17:12:45 UTC, extract, 5,000 rows committed\n" in said
    assert "Rows extracted          1,250,000 rows, and 70 read again\n" in said
    assert main(["watermark", "get", "-t", "left"]) == 0
    said = capsys.readouterr().out
    assert f"Interrupted: {who} did not finish" in said and "run sync again" in said
    assert "Last look               never" in said and "Last error (2025-08-14 17:12:45 UTC)" in said
    assert main(["watermark", "get", "-t", "retired"]) == 0
    assert "Retired: `sync --all` leaves it out" in capsys.readouterr().out
    assert main(["watermark", "list"]) == 0
    head, *rows, note = capsys.readouterr().out.splitlines()
    assert head.endswith("NOW") and [row.split()[-1] for row in rows] == ["running", "interrupted", "retired"]
    assert "run sync again" in note


def test_watermark_set_says_where_the_next_sync_starts_and_how_to_undo_it(
    pipeline: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Any] = []

    def step(config: Any, table: str, timestamp: str, key: str, run: str, force: bool) -> dict[str, Any]:
        seen.append((table, timestamp, key, force))
        return {**DOCUMENT, "undo": "floodmark watermark set …"}

    does(pipeline, watermark_set=step)
    assert (
        main(["watermark", "set", "-t", "shop.orders", "--timestamp", "2025-08-14T15:30:22", "--id", "7"])
        == 0
    )
    assert seen == [("shop.orders", "2025-08-14 15:30:22", "7", False)]
    assert capsys.readouterr().out.splitlines() == [
        "shop.orders: the next sync starts after 2025-08-14 15:30:22 (id 1250000), set by hand",
        "To undo: floodmark watermark set …",
    ]
