"""`scripts/man`: a page for every command, with all that --help says, which groff sets without a complaint."""

from __future__ import annotations

import re
import shutil
import subprocess

import click
import pytest

from floodmark.cli.main import app
from tests.support.scripts import script

PAGES: dict[str, str] = script("man").pages()


def plain(page: str) -> str:
    """What a page says, without groff's marks."""
    return re.sub(r"\\f[BR]|\\&", "", page).replace("\\-", "-").replace("\\e", "\\")


def test_every_command_has_a_page() -> None:
    assert set(PAGES) == {"floodmark.1", *(f"floodmark-{name}.1" for name in app.commands)}


@pytest.mark.parametrize("name", app.commands)
def test_a_page_has_every_option_and_subcommand(name: str) -> None:
    command = app.commands[name]
    page = plain(PAGES[f"floodmark-{name}.1"])
    below = command.commands if isinstance(command, click.Group) else {}
    assert all(f"floodmark {name} {each}" in page for each in below)
    for each in (command, *below.values()):
        options = [option for option in each.params if isinstance(option, click.Option) and not option.hidden]
        assert [o.name for o in options if not all(word in page for word in o.opts)] == []


def test_groff_sets_the_pages_without_a_complaint() -> None:
    if shutil.which("groff") is None:
        pytest.skip("groff is not installed")
    for name, page in PAGES.items():
        done = subprocess.run(
            ["groff", "-man", "-Tutf8", "-Kutf8", "-ww", "-z"], input=page, capture_output=True, text=True
        )
        assert (name, done.returncode, done.stderr) == (name, 0, "")
