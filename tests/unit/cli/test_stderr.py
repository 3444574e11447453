"""Errors and notes on stderr: words stay whole on a narrow terminal, and nothing is changed elsewhere."""

from __future__ import annotations

import os
import pty
import sys

import pytest

from floodmark.cli.printing import error_lines, to_stderr, wrap
from floodmark.model.errors import ConfigError
from floodmark.model.text import cells

ERROR = ConfigError(
    "the source has refused the user reader: the password is wrong, or the user may not connect from here",
    hint="check source.url and the environment variable it uses, then run floodmark doctor",
    table="settlement_archive.settlement_normal_delivery_detail",
)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_an_error_is_broken_between_words_and_its_hint_stays_recognizable(width: int) -> None:
    said, hint = error_lines(ERROR)
    lines = wrap(f"{said}\n{hint}", width)
    long = f"{ERROR.table}:"
    assert all(cells(line) <= width or line.strip() == long for line in lines)
    assert " ".join(" ".join(lines).split()) == " ".join(f"{said} {hint}".split())
    begins = [line for line in lines if not line.startswith("    ")]
    assert begins[0].startswith("floodmark:") and begins[1].startswith("  check") and len(begins) == 2


def test_a_command_to_paste_is_never_broken_by_a_newline() -> None:
    command = "floodmark watermark reset -t shop.orders --redshift-only"
    lines = wrap(f"  load its files again with {command}, or drop the table", 40)
    assert lines == ["  load its files again with", f"    {command},", "    or drop the table"]


def test_without_a_terminal_a_line_stays_one_line() -> None:
    line = "floodmark: " + "word " * 100
    assert wrap(line, None) == [line]


def test_a_narrow_terminal_gets_whole_words(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as screen:
        monkeypatch.setattr(sys, "stderr", screen)
        monkeypatch.setattr(os, "get_terminal_size", lambda fd: os.terminal_size((40, 24)))
        to_stderr("floodmark: committed rows are kept, and the next run continues from there")
        to_stderr("  File x.py, line 7, in a traceback that is copied into an issue", fit=False)
    shown = b""
    while shown.count(b"\n") < 3:  # a terminal hands out what it has, not all at once
        shown += os.read(ours, 4096)
    os.close(ours)
    assert shown.decode().splitlines() == [
        "floodmark: committed rows are kept, and",
        "    the next run continues from there",
        "  File x.py, line 7, in a traceback that is copied into an issue",
    ]
