"""The command line: what it accepts, how it fails, what it prints, and what it never prints."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import floodmark
from floodmark.cli import main
from floodmark.errors import ConfigError, DataError, Interrupted, TransientError
from floodmark.report import SyncOptions, SyncReport, TableReport

PASSWORD = "s3cr;t/p@ss"
STORE_KEY = "wJalrXUtnFEMI/K7MDENG"
CONFIG = f"""
source:
  url: mysql://reader:{PASSWORD.replace("/", "%2F").replace("@", "%40")}@127.0.0.1:3306/shop
store:
  url: s3://bucket/prefix
  endpoint: http://127.0.0.1:1
  region: us-east-1
  access_key_id: AKIAEXAMPLE00
  secret_access_key: {STORE_KEY}
"""
DOCUMENT: dict[str, Any] = {
    "table_name": "shop.orders", "commit": 42,
    "last_mysql_extraction_time": "2025-08-14T16:45:33.123456Z",
    "last_mysql_data_timestamp": "2025-08-14T15:30:22.000000", "last_mysql_data_id": [1250000],
    "mysql_rows_extracted": 1250000, "mysql_status": "success",
    "last_redshift_load_time": "2025-08-14T17:12:45.654321Z", "redshift_rows_loaded": 1000000,
    "redshift_status": "pending", "s3_file_count": 250, "processed_s3_files": ["s3://b/1.parquet"],
    "pending_s3_files": ["s3://b/2.parquet", "s3://b/3.parquet"], "last_error": None, "metadata": {},
}  # fmt: skip

Step = Callable[..., Any]


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration with secrets, in the folder where the command runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLOODMARK_CONFIG", raising=False)
    path = tmp_path / "floodmark.yaml"
    path.write_text(CONFIG)
    path.chmod(0o600)
    return path


@pytest.fixture
def pipeline(config: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A pipeline whose steps the test writes: what lies below the command line, without services."""
    module = ModuleType("below")
    for name in ("sync", "planview", "watermarks", "moves"):
        monkeypatch.setitem(sys.modules, f"floodmark.{name}", module)
    return module


def does(pipeline: ModuleType, **steps: Step) -> None:
    for name, step in steps.items():
        setattr(pipeline, name, step)


def raising(error: BaseException) -> Step:
    def step(*args: Any, **kwargs: Any) -> Any:
        raise error

    return step


def reporting(*tables: TableReport) -> Step:
    def step(config: Any, names: Any, all_tables: bool, options: Any, progress: Any, run: str) -> SyncReport:
        return SyncReport(run, 2.0, tables)

    return step


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("sync", "-t schema.table, or --all"),
        ("sync -t a.b --all", "exclude each other"),
        ("sync -t a.b --backup-only --redshift-only", "exclude each other"),
        ("sync -t a.b --backup-only --load-only", "exclude each other"),
        ("sync -t a.b --until 2025-01-01", "--until needs --since"),
        ("sync -t a.b --since 2025-01-02 --until 2025-01-01T23:59:59.9", "is not after"),
        ("sync -t a.b --since 2025-01-02 --redshift-only", "reads none"),
        ("sync -t a.b --limit 0", "--limit"),
        ("sync -t a.b --limit -5", "--limit"),
        ("sync -t a.b --limit many", "--limit"),
        ("sync -t a.b --max-chunks 0", "--max-chunks"),
        ("sync -t a.b --max-workers 0", "--max-workers"),
        ("sync -t a.b --strategy fast", "--strategy"),
        ("sync -t a.b --since yesterday", "YYYY-MM-DD"),
        ("sync -t a.b extra", "unexpected extra argument"),
        ("plan", "-t"),
        ("plan -t a.b -t a.c", "one table at a time"),
        ("watermark get --show-files", "needs -t"),
        ("watermark set -t a.b", "--timestamp"),
        ("watermark set -t a.b yesterday", "system watermark"),
        ("watermark set", "a preset"),
        ("watermark set someday", "yesterday"),
        ("watermark set feb30", "no preset"),
        ("watermark set aug4 --timestamp 2025-01-01", "not both"),
        ("watermark set --timestamp 2099-01-01", "in the future"),
        ("watermark set --id 5", "--id needs -t"),
        ("watermark reset", "-t"),
        ("watermark reset nonsense", "yesterday"),
        ("watermark reset aug4 --mysql-only", "need -t"),
        ("watermark reset -t a.b aug4", "system watermark"),
        ("watermark reset -t a.b --mysql-only --redshift-only", "exclude each other"),
        ("watermark set -t a.b --timestamp 2099-01-01", "in the future"),
        ("watermark set -t a.b --timestamp 1969-12-31", "before 1970"),
        ("watermark set -t a.b --timestamp 2025-02-30", "not a date and time that exists"),
        ("watermark set -t a.b --timestamp 2025-01-01T00:00:00Z", "has a zone"),
        ("watermark set -t a.b --timestamp 2025-1-1", "YYYY-MM-DD"),
        ("watermark nonsense", "no such command"),
        ("snyc", "no such command"),
        ("sync --jso", "no such option"),
    ],
)
def test_a_wrong_command_line_is_code_2_with_at_most_two_lines_and_a_document(
    line: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == 2
    text = capsys.readouterr()
    assert text.out == ""
    assert said in text.err
    assert len(text.err.splitlines()) <= 2
    assert "Traceback" not in text.err

    assert main([*line.split(), "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["ok"] is False
    assert document["error"]["code"] == 2
    assert document["error"]["kind"] == "config"
    assert said in document["error"]["message"]


def test_without_a_command_the_help_is_shown_and_the_code_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    text = capsys.readouterr()
    assert text.out == ""
    assert "floodmark sync -t shop.orders" in text.err
    assert main(["--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == 2


@pytest.mark.parametrize("line", ["--help", "sync --help", "plan -h", "watermark -h", "watermark set --help"])
def test_help_goes_to_stdout_has_examples_and_imports_nothing_heavy(line: str) -> None:
    heavy = "{'pyarrow', 'pyspark', 'duckdb', 'pydantic', 'obstore', 'MySQLdb', 'rich', 'yaml'}"
    code = f"import sys; from floodmark.cli import main; c = main({line.split()!r}); "
    code += f"assert not {heavy} & set(sys.modules), sys.modules; sys.exit(c)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr) == (0, "")
    assert "floodmark" in done.stdout
    assert "--json" in done.stdout
    assert "-t shop.orders" in done.stdout


def test_global_options_are_the_same_before_between_and_after(
    pipeline: ModuleType, capsys: pytest.CaptureFixture[str], tmp_path: Path, config: Path
) -> None:
    elsewhere = tmp_path / "elsewhere.yaml"
    config.rename(elsewhere)
    does(pipeline, watermark_get=lambda config, table, show_files: DOCUMENT)
    for line in (
        ["--config", str(elsewhere), "--json", "watermark", "get", "-t", "shop.orders"],
        ["watermark", "--json", "--config", str(elsewhere), "get", "-t", "shop.orders"],
        ["watermark", "get", "--config", str(elsewhere), "-t", "shop.orders", "--json"],
    ):
        assert main(line) == 0
        assert json.loads(capsys.readouterr().out) == DOCUMENT


def test_options_of_sync_arrive_as_they_were_given(
    pipeline: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Any] = []

    def step(
        config: Any, tables: Any, all_tables: bool, options: SyncOptions, progress: Any, run: str
    ) -> Any:
        seen.append((tuple(tables), all_tables, options))
        return SyncReport(run, 0.1, ())

    does(pipeline, sync=step)
    line = (
        "sync -t a.b -t c -t a.b -s intra-table --limit 50 --max-chunks 3 --load-only --force --max-workers 2"
    )
    assert main(line.split()) == 0
    assert (
        main(["sync", "--all", "--since", "2025-08-01T10:00:00.5", "--until", "2025-08-02", "--dry-run"]) == 0
    )
    assert seen[0] == (
        ("a.b", "c"), False,
        SyncOptions(strategy="intra-table", limit=50, max_chunks=3, load_only=True, force=True, max_workers=2),
    )  # fmt: skip
    since, until = "2025-08-01 10:00:00.500000", "2025-08-02 00:00:00"
    assert seen[1] == ((), True, SyncOptions(since=since, until=until, dry_run=True))


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (ConfigError("no such table", hint="check the name", table="a.b"), 2, "config"),
        (TransientError("MySQL went away\nin two lines", hint="run it again"), 4, "transient"),
        (DataError("the log is damaged", table="a.b"), 6, "data"),
        (KeyError("boo"), 1, "bug"),
        (BrokenPipeError(32, "a service's socket"), 1, "bug"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (Interrupted("stopped", code=143), 143, "interrupted"),
    ],
)
def test_each_error_becomes_its_exit_code_two_lines_and_one_document(
    pipeline: ModuleType, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, kind: str
) -> None:
    does(pipeline, plan=raising(error))
    assert main(["plan", "-t", "a.b"]) == code
    text = capsys.readouterr()
    assert text.out == ""
    assert 1 <= len(text.err.splitlines()) <= 2
    assert "Traceback" not in text.err
    assert main(["plan", "-t", "a.b", "--json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert (document["error"]["code"], document["error"]["kind"]) == (code, kind)
    assert main(["plan", "-t", "a.b", "--debug"]) == code
    assert "Traceback" in capsys.readouterr().err


def test_a_bug_says_that_it_is_one_and_how_to_see_more(
    pipeline: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    does(pipeline, plan=raising(KeyError("boo")))
    assert main(["plan", "-t", "a.b"]) == 1
    assert capsys.readouterr().err.startswith(
        "floodmark: a bug in Floodmark: KeyError: 'boo'\n  run with --debug"
    )


def test_no_config_is_code_2_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLOODMARK_CONFIG", raising=False)
    assert main(["sync", "--all"]) == 2
    assert "floodmark.yaml" in capsys.readouterr().err


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
        "  extracted     1,250,000 rows (and 3 rows read again), 5 files, 83.1 MB, 625,002 rows/s",
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
        "REDSHIFT",
        "ROWS",
        "WAITING",
        "LAG",
    ]
    assert first.index("success") == second.index("pending") == head.index("MYSQL")
    assert second.endswith("2 h 5 min")


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


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_run_with_its_code_and_says_that_the_next_one_goes_on(
    pipeline: ModuleType, capsys: pytest.CaptureFixture[str], number: signal.Signals, code: int
) -> None:
    def step(*args: Any) -> Any:
        os.kill(os.getpid(), number)
        time.sleep(10)

    before = signal.getsignal(number)
    does(pipeline, sync=step)
    assert main(["sync", "-t", "a.b"]) == code
    assert signal.getsignal(number) is before
    (line,) = capsys.readouterr().err.splitlines()
    assert "the next run goes on" in line


def test_a_signal_that_a_library_wrapped_is_still_an_interruption(
    pipeline: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    def step(config: Any, tables: Any, all_tables: bool, options: Any, progress: Any, run: str) -> Any:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(10)
        except Exception as error:
            if options.force:
                raise RuntimeError("the gateway broke") from error
        return SyncReport(run, 1.0, (TableReport("a.b", error=DataError("broke")),))

    does(pipeline, sync=step)
    for more in ([], ["--force"]):
        assert main(["sync", "-t", "a.b", *more]) == 143
        assert "the next run goes on" in capsys.readouterr().err


STUBBORN = """
import sys, time, types
from floodmark.cli import main
stub = types.ModuleType("below")
def plan(*args):
    while True:
        try:
            print("ready", flush=True)
            time.sleep(60)
        except Exception:
            pass
stub.plan = plan
sys.modules["floodmark.planview"] = stub
sys.exit(main(["plan", "-t", "a.b"]))
"""


def test_a_second_ctrl_c_ends_the_process_at_once(config: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for _ in range(2):
            assert process.stdout.readline() == "ready\n"
            time.sleep(0.4)
            process.send_signal(signal.SIGINT)
        assert process.wait(timeout=5) == 130
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


PRINTING = """
import sys, types
from floodmark.cli import main
stub = types.ModuleType("below")
stub.watermark_list = lambda config, tables: {"tables": [{"table_name": "x" * 100}] * 5000}
sys.modules["floodmark.watermarks"] = stub
sys.exit(main(["watermark", "list"]))
"""


def test_a_reader_that_stops_reading_is_no_failure(config: Path) -> None:
    script = f"{sys.executable} -c '{PRINTING}' | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1


def test_a_result_that_cannot_be_written_is_code_4(config: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-c", PRINTING], stdout=full, stderr=subprocess.PIPE, text=True, timeout=20
        )
    assert done.returncode == 4
    assert "could not be written" in done.stderr


def test_the_module_runs_like_the_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "floodmark", "--version"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=20,
    )
    assert (done.returncode, done.stdout) == (0, f"floodmark, version {floodmark.__version__}\n")
