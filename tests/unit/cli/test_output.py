"""What the command line prints and logs: results, errors, progress, and never a secret."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from floodmark.cli import printing
from floodmark.cli.main import main
from floodmark.model import events
from floodmark.model.errors import ConfigError, TransientError
from floodmark.model.results import Failure
from floodmark.model.run import SyncReport, TableReport
from tests.unit.conftest import PASSWORD, STORE_KEY, does, mark


def test_no_secret_appears_in_errors_logs_notes_or_documents(
    pipeline: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def step(
        config: Any, tables: Any, all_tables: bool, options: Any, progress: Any, run: str, spark: Any
    ) -> Any:
        import logging

        leak = f"{PASSWORD} {PASSWORD!r} s3cr%3Bt%2Fp%40ss {STORE_KEY} mysql://other:hidden@h/db"
        progress(events.Noted("a.b", leak))
        logging.getLogger("floodmark.x").warning("log %s", leak, extra={"table": "a.b", "step": leak})
        try:
            raise RuntimeError(leak)
        except RuntimeError:
            logging.getLogger("floodmark.x").exception("failed")
        if options.force:
            raise TransientError(leak, hint=leak) from RuntimeError(leak)
        error = TransientError(leak, hint=leak, table="a.b")
        watermark = mark(last_error=leak)
        return SyncReport(run, 1.0, (TableReport("a.b", error=error, watermark=watermark, notes=(leak,)),))

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
    pipeline: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def step(
        config: Any, tables: Any, all_tables: bool, options: Any, progress: Any, run: str, spark: Any
    ) -> Any:
        import logging

        extra = {"table": "a.b", "commit": 7, "step": "commit"}
        logging.getLogger("floodmark.log").info("committed", extra=extra)
        logging.getLogger("py4j").warning("noise")
        progress(events.Noted("a.b", "100% said"))
        progress(events.StageBegan("a.b", "extract", 10))
        progress(events.Advanced("a.b", "extract", 10, 1, 100))
        progress(events.StageEnded("a.b", "extract"))
        raise TransientError("gone", hint="again", table="a.b")

    does(pipeline, sync=step)
    assert main(["sync", "-t", "a.b", "--json-logs"]) == 4
    entries = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [entry["event"] for entry in entries] == ["log", "note", "step_end", "error", "run_end"]
    assert [entry["level"] for entry in entries] == ["info", "info", "info", "error", "info"]
    committed, note, extracted, error, end = entries
    assert {key: committed[key] for key in ("table", "commit", "step")} == {
        "table": "a.b", "commit": 7, "step": "commit",
    }  # fmt: skip
    assert committed["run"] == error["run"]
    assert note["message"] == "100% said"
    assert extracted["message"].startswith("extracted 10 rows, 1 file, 100 B")
    assert {key: extracted[key] for key in ("step", "rows", "files", "bytes")} == {
        "step": "extract", "rows": 10, "files": 1, "bytes": 100,
    }  # fmt: skip
    assert {key: error[key] for key in ("message", "table", "hint", "exit_code", "kind")} == {
        "message": "gone", "table": "a.b", "hint": "again", "exit_code": 4, "kind": "transient",
    }  # fmt: skip
    assert end["exit_code"] == 4 and end["seconds"] >= 0


def test_the_last_log_line_of_a_sync_has_its_totals(
    pipeline: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def step(
        config: Any, tables: Any, all_tables: bool, options: Any, progress: Any, run: str, spark: Any
    ) -> Any:
        done = TableReport("a.b", rows_extracted=10, rows_loaded=8, files_written=2, bytes_written=99)
        return SyncReport(run, 1.0, (done, TableReport("a.c", error=TransientError("gone"))))

    does(pipeline, sync=step)
    assert main(["sync", "-t", "a.b", "--json-logs"]) == 4
    end = json.loads(capsys.readouterr().err.splitlines()[-1])
    assert {key: end[key] for key in ("event", "exit_code", "tables", "failed", "rows", "rows_loaded", "files")} == {
        "event": "run_end", "exit_code": 4, "tables": 2, "failed": 1, "rows": 10, "rows_loaded": 8, "files": 2,
    }  # fmt: skip
    assert main(["sync", "-t", "a.b", "--no-such-option", "--json-logs"]) == 2
    events = [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()]
    assert events == ["error", "run_end"]


def test_the_log_file_is_appended_to_and_has_debug_lines_and_tracebacks(
    pipeline: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
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


def test_new_files_are_private_to_the_user_and_an_existing_log_keeps_its_mode(
    pipeline: pytest.MonkeyPatch, tmp_path: Path, open_umask: None
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


def test_a_quiet_sync_that_succeeds_prints_nothing_at_all_and_one_that_fails_its_errors(
    pipeline: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def step(
        config: Any, tables: Any, all_tables: bool, options: Any, progress: Any, run: str, spark: Any
    ) -> Any:
        import logging

        logging.getLogger("floodmark.x").warning("hm")
        progress(events.Noted("", "about the run"))
        progress(events.Noted("a.b", "something"))
        error = TransientError("away", table="a.b") if options.force else None
        return SyncReport(run, 1.0, (TableReport("a.b", error=error),))

    does(pipeline, sync=step)
    assert main(["sync", "-t", "a.b", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    assert main(["sync", "-t", "a.b", "--quiet", "--force"]) == 4
    assert capsys.readouterr() == ("", "floodmark: a.b: away\n")
    assert main(["sync", "-t", "a.b", "--quiet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"]
    assert main(["sync", "-t", "a.b"]) == 0
    usual = capsys.readouterr()
    assert "hm" in usual.err and "about the run" in usual.err and "something" not in usual.err
    assert usual.out.splitlines()[:2] == ["a.b: up to date", "  note          something"]


def test_plain_progress_says_a_line_at_the_end_of_each_stage_and_few_between(
    pipeline: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def step(
        config: Any, tables: Any, all_tables: bool, options: Any, progress: Any, run: str, spark: Any
    ) -> Any:
        progress(events.StageBegan("a.b", "extract", 1000))
        for _ in range(1000):
            progress(events.Advanced("a.b", "extract", 1, 0, 10))
        progress(events.StageEnded("a.b", "extract"))
        return SyncReport(run, 1.0, ())

    does(pipeline, sync=step)
    assert main(["sync", "-t", "a.b"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("a.b: extracted 1,000 rows, 0 files, 10.0 kB in ")


def test_an_error_common_to_several_tables_is_printed_once() -> None:
    def of(table: str | None, message: str = "no such folder") -> Failure:
        return Failure(code=2, kind="config", table=table, message=message, hint="make it")

    assert printing.together([of("s.a"), of("s.b", "else"), of("s.c")]) == [
        of("s.a and s.c"),
        of("s.b", "else"),
    ]
    (said,) = printing.together([of(f"s.{name}") for name in "abcdef"])
    assert printing.error_lines(said) == [
        "floodmark: s.a, s.b and 4 more tables: no such folder", "  make it",
    ]  # fmt: skip
    assert printing.together([of(None)]) == [of(None)]  # of a whole run


def test_only_the_mistakes_of_a_configuration_have_a_line_each(
    config: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    config.write_text(f"{config.read_text()}\nzzz: 1\nyyy: 2\n")
    assert main(["sync", "--all"]) == 2
    assert capfd.readouterr().err.splitlines() == [
        f"floodmark: {config} has 2 mistakes:",
        "  zzz: unknown key; known keys: source, store, warehouse, spark, defaults, tables, alerts",
        "  yyy: unknown key; known keys: source, store, warehouse, spark, defaults, tables, alerts",
    ]
    # A server's message that imitates ours is still one line.
    said = ConfigError("the server has 2 mistakes:\n  one\n  two")
    assert printing.error_lines(said) == ["floodmark: the server has 2 mistakes: one two"]
