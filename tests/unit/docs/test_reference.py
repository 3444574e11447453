"""The reference: every command, option, key, exit code and metric that the code has is there, and no other."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import click

from floodmark.cli.main import app
from floodmark.log.document import document, observe
from floodmark.log.fold import State
from floodmark.model.errors import FloodmarkError, Interrupted
from floodmark.model.run import SyncReport, TableReport
from floodmark.status.facts import AllFacts
from floodmark.status.metrics import exposition
from tests.support.pages import ROOT, text_of

GROUPS = {name: each for name, each in app.commands.items() if isinstance(each, click.Group)}


def every(kind: type[FloodmarkError]) -> list[type[FloodmarkError]]:
    return [kind, *(each for below in kind.__subclasses__() for each in every(below))]


def test_commands_and_keys_are_those_of_the_code() -> None:
    script = [sys.executable, str(ROOT / "scripts/reference"), "--check"]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_exit_codes_are_those_of_the_code() -> None:
    rows = re.findall(r"(?m)^\| (\d+) \| (?:`(\w+)`)? *\|", text_of("docs/exit-codes.md"))
    kinds = {(str(each.code), each.kind) for each in every(FloodmarkError) if each is not Interrupted}
    assert set(rows) == {("0", ""), ("130", "interrupted"), ("143", "interrupted")} | kinds
    assert len(rows) == len(set(rows))


def test_metrics_are_those_of_the_code_and_each_is_explained() -> None:
    rows = re.findall(r"(?m)^\| (`floodmark_.+?) \|(.+?)\|(.+?)\|$", text_of("docs/monitoring.md"))
    told = [name for cell, _, _ in rows for name in re.findall(r"`(\w+)`", cell)]
    made = re.findall(r"(?m)^# HELP (\S+) ", exposition(AllFacts()).decode())
    assert sorted(told) == sorted(made)
    assert all(meaning.strip() for _, _, meaning in rows)


def test_the_watermark_document_has_the_fields_that_are_documented() -> None:
    rows = text_of("docs/formats.md").partition("## The watermark document")[2].partition("\n## ")[0]
    told = {name for row in re.findall(r"(?m)^\| (`.+?`) \|", rows) for name in re.findall(r"`(\w+)`", row)}
    assert set(document(observe(State("shop.orders"), []), str)) <= told


def test_a_sync_s_json_has_the_fields_that_are_documented() -> None:
    page = text_of("docs/formats.md").partition("## `sync --json`")[2]
    told = json.loads(page.partition("```json\n")[2].partition("```")[0])
    report = SyncReport("run", 0.0, (TableReport("s.t"),)).as_json()
    assert report.keys() == told.keys()
    assert report["tables"][0].keys() == told["tables"][0].keys()


def test_the_readme_s_table_has_every_command() -> None:
    table = text_of("README.md").partition("## Commands")[2].partition("\n## ")[0]
    named = set()
    for cell in re.findall(r"(?m)^\| (`.+?`) \|", table):
        first, *others = re.findall(r"`([a-z0-9 -]+)`", cell)
        group = f"{first.split()[0]} " if " " in first else ""
        named |= {first, *(group + other for other in others)}
    known = {f"{name} {below}" for name, each in GROUPS.items() for below in each.commands}
    assert named == known | (set(app.commands) - set(GROUPS))
