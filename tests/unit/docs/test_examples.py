"""README.md and docs/: every command parses, and every configuration is valid."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from floodmark.config.file import parse
from floodmark.config.load import Sections, keys
from tests.support.pages import PAGES, Example, commands, examples, parsed
from tests.unit.conftest import Load


def test_a_mistake_in_a_command_is_seen() -> None:
    for wrong in (["snyc"], ["sync", "--al"], ["watermark", "gt"], ["sync", "--since", "soon"]):
        with pytest.raises(click.UsageError):
            parsed(wrong)


@pytest.mark.parametrize("page", PAGES)
def test_commands_on_a_page_parse(page: str) -> None:
    wrong = []
    for place, arguments in commands(page):
        try:
            parsed(arguments)
        except click.exceptions.Exit:  # --help, --version
            pass
        except click.ClickException as error:
            wrong.append(f"{place}: {error.format_message()}")
    assert not wrong


def configurations() -> list[Example]:
    """The YAML blocks that have a key of ours at the top; others are of other programs."""
    found = []
    for example in (each for page in PAGES for each in examples(page) if each.kind in ("yaml", "yml")):
        tree, _ = parse(example.body)
        if isinstance(tree, dict) and set(tree) & set(keys(Sections)):
            found.append(example)
    return found


@pytest.mark.parametrize("example", configurations(), ids=str)
def test_a_configuration_on_a_page_is_valid(
    example: Example, read: Load, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in re.findall(r"\$\{(\w+)\}", example.body):
        monkeypatch.setenv(name, "https://example.org/value" if name.endswith("_URL") else "value")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in re.findall(r"(?:~/)?([\w./-]*(?:\.pem|id_ed25519|known_hosts))\b(?!:)", example.body):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    tree, _ = parse(example.body)
    assert isinstance(tree, dict)
    text = example.body if "source" in tree else f"source: {{url: 'mysql://me@db/shop'}}\n{example.body}"
    # A block on its own may be about a warehouse that needs a bucket.
    read(text if "store" in tree else f"{text}\nstore: {{url: 's3://bucket/prefix'}}\n")
