"""Mistakes that people make, and what they are told."""

from __future__ import annotations

from pathlib import Path

import pytest

from floodmark.cli.main import main
from floodmark.cli.options import split_timestamp


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
