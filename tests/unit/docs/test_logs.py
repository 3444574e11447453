"""docs/logs.md is the contract of `--json-logs`: its events and fields are those of the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from floodmark.cli.logs import KEYS
from floodmark.model.log_lines import EVENTS
from floodmark.model.tally import Tally

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/logs.md").read_text()
# Parameters of `tell` besides the fields of an event.
OF_EVERY_LINE = {*KEYS, "said", "cause"}


def table(heading: str) -> list[list[str]]:
    """The cells of the tables below a heading, without their headers."""
    part = PAGE.split(f"## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in part.splitlines() if line.startswith("| `")]
    return [[cell.strip(" |") for cell in row] for row in rows]


def test_the_page_lists_every_event_with_its_fields_and_no_other() -> None:
    listed = {row[0].strip("`"): tuple(re.findall(r"`(\w+)`", row[-1])) for row in table("Events")}
    assert listed == dict(EVENTS)


def test_the_page_explains_every_field_and_no_other() -> None:
    explained = {name for row in table("Fields") for name in re.findall(r"`(\w+)`", row[0])}
    used = {name for fields in EVENTS.values() for name in fields}
    every_line = {"at", "level", "event", "message", "logger", "traceback", *KEYS}
    assert explained == used | every_line


@cache
def calls() -> tuple[tuple[Path, ast.Call], ...]:
    return tuple(_calls())


def _calls() -> Iterator[tuple[Path, ast.Call]]:
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text()
        if "log_lines" not in text and path.name != "log_lines.py":
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("log_lines.tell", "tell", "_log"):
                yield path, node


@pytest.mark.parametrize("event", [e for e in EVENTS if e != "log"])
def test_every_event_is_logged_somewhere(event: str) -> None:
    told = [ast.literal_eval(a) for _, call in calls() for a in call.args if isinstance(a, ast.Constant)]
    assert event in told


def test_every_logged_event_is_known_and_has_known_fields() -> None:
    for path, call in calls():
        names = [str(a.value) for a in call.args if isinstance(a, ast.Constant) and a.value in EVENTS]
        if not names:
            # Only where the event itself is handed on.
            assert "event" in ast.unparse(call), f"{path.name}: {ast.unparse(call)[:80]}"
            continue
        given = {keyword.arg for keyword in call.keywords if keyword.arg} - OF_EVERY_LINE
        assert given <= set(EVENTS[names[0]]), (
            f"{path.name}: {names[0]} has no {given - set(EVENTS[names[0]])}"
        )


def test_a_step_counts_in_the_fields_of_the_contract() -> None:
    assert set(Tally(None).fields) <= set(EVENTS["step_end"])
