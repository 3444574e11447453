"""The command line: what it accepts, and how it fails."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from floodmark.cli.main import app, main
from floodmark.model.errors import ConfigError, DataError, Interrupted, TransientError
from floodmark.model.results import WatermarkList
from floodmark.model.run import SyncOptions, SyncReport
from tests.unit.conftest import DOCUMENT, Step, does, mark


def raising(error: BaseException) -> Step:
    def step(*args: Any, **kwargs: Any) -> Any:
        raise error

    return step


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("sync", "-t schema.table, or --all"),
        ("sync -t a.b --all", "can't be combined"),
        ("sync -t a.b --backup-only --redshift-only", "can't be combined"),
        ("sync -t a.b --backup-only --load-only", "can't be combined"),
        ("sync -t a.b --until 2025-01-01", "--until needs --since"),
        ("sync -t a.b --since 2025-01-02 --until 2025-01-01T23:59:59.9", "is not after"),
        ("sync -t a.b --since 2025-01-02 --redshift-only", "which --redshift-only never does"),
        ("sync -t a.b --limit 0", "--limit"),
        ("sync -t a.b --limit -5", "--limit"),
        ("sync -t a.b --limit many", "--limit"),
        ("sync -t a.b --max-chunks 0", "--max-chunks"),
        ("sync -t a.b --max-workers 0", "--max-workers"),
        ("sync -t a.b --strategy fast", "--strategy"),
        ("sync -t a.b --since yesterday", "YYYY-MM-DD"),
        ("sync -t a.b extra", "unexpected extra argument"),
        ("plan", "-t"),
        ("watermark history -t a.b -t a.c", "one table at a time"),
        ("watermark get --show-files", "needs -t"),
        ("watermark set -t a.b", "--timestamp"),
        ("watermark set -t a.b yesterday", "system watermark"),
        ("watermark set", "a preset"),
        ("watermark set someday", "yesterday"),
        ("watermark set feb30", "not a preset"),
        ("watermark set aug4 --timestamp 2025-01-01", "not both"),
        ("watermark set --timestamp 2099-01-01", "in the future"),
        ("watermark set --id 5", "--id needs -t"),
        ("watermark reset", "-t"),
        ("watermark reset nonsense", "yesterday"),
        ("watermark reset aug4 --mysql-only", "need -t"),
        ("watermark reset -t a.b aug4", "system watermark"),
        ("watermark reset -t a.b --mysql-only --redshift-only", "be combined"),
        ("watermark set -t a.b --timestamp 2099-01-01", "in the future"),
        ("watermark set -t a.b --timestamp 1969-12-31", "before 1970"),
        ("watermark set -t a.b --timestamp 2025-02-30", "not a date and time that exists"),
        ("watermark set -t a.b --timestamp 2025-01-01T00:00:00Z", "has a time zone"),
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
    heavy = (
        "{'pyarrow', 'pyspark', 'duckdb', 'pydantic', 'obstore', 'pymysql', 'cryptography', 'rich', 'yaml'}"
    )
    code = f"import sys; from floodmark.cli.main import main; c = main({line.split()!r}); "
    code += f"assert not {heavy} & set(sys.modules), sys.modules; sys.exit(c)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "floodmark" in done.stdout
    assert "--json" in done.stdout
    assert "-t shop.orders" in done.stdout


def test_the_system_watermark_is_shown_without_importing_what_moves_data(tmp_path: Path) -> None:
    (tmp_path / "floodmark.yaml").write_text("source: {url: 'mysql://u@127.0.0.1/shop'}\n")
    code = "import sys; from floodmark.cli.main import main; c = main(['watermark', 'get']); "
    code += "assert not {'pyarrow', 'pyspark', 'duckdb', 'numpy', 'pymysql'} & set(sys.modules); sys.exit(c)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "no system watermark" in done.stdout


def test_status_and_table_are_other_names_for_commands_of_watermark(
    pipeline: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    does(pipeline, watermark_list=lambda config, tables: WatermarkList(tables=(mark(),)))
    printed = []
    for line in (["watermark", "list"], ["status"], ["status", "-t", "shop.orders"]):
        assert main(line) == 0
        printed.append(capsys.readouterr().out)
    assert "shop.orders" in printed[0] and len(set(printed)) == 1
    watermark, table = app.commands["watermark"], app.commands["table"]
    assert isinstance(watermark, click.Group) and isinstance(table, click.Group)
    assert table.commands == {name: watermark.commands[name] for name in ("accept", "retire", "move")}


def test_global_options_are_the_same_before_between_and_after(
    pipeline: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, config: Path
) -> None:
    elsewhere = tmp_path / "elsewhere.yaml"
    config.rename(elsewhere)
    does(pipeline, watermark_get=lambda config, table, show_files: mark())
    for line in (
        ["--config", str(elsewhere), "--json", "watermark", "get", "-t", "shop.orders"],
        ["watermark", "--json", "--config", str(elsewhere), "get", "-t", "shop.orders"],
        ["watermark", "get", "-c", str(elsewhere), "-t", "shop.orders", "--json"],
    ):
        assert main(line) == 0
        assert json.loads(capsys.readouterr().out) == DOCUMENT


def test_options_of_sync_arrive_as_they_were_given(
    pipeline: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Any] = []

    def step(
        config: Any, tables: Any, all_tables: bool, options: SyncOptions, progress: Any, run: str, spark: Any
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
    pipeline: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
    kind: str,
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
    pipeline: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    does(pipeline, plan=raising(KeyError("boo")))
    assert main(["plan", "-t", "a.b"]) == 1
    assert capsys.readouterr().err.startswith(
        "floodmark: a bug in Floodmark: KeyError: 'boo'\n  run again with --debug"
    )


def test_no_config_is_code_2_and_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FLOODMARK_CONFIG", raising=False)
    assert main(["sync", "--all"]) == 2
    assert "floodmark.yaml" in capsys.readouterr().err
