"""docs/design.md: its rooms are those of src/floodmark, and the files that it names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "src" / "floodmark"
PAGES = ("docs/design.md", "docs/a-rows-way.md", "README.md", "CONTRIBUTING.md")


def rooms() -> set[str]:
    """The rooms that there are: folders of code, and the library beside them."""
    return {f"{path.parent.name}/" for path in SOURCE.glob("*/__init__.py")} | {"api.py"}


def test_every_room_has_a_line() -> None:
    text = (ROOT / "docs/design.md").read_text()
    assert set(re.findall(r"^\| `([a-z]+/|api\.py)` \|", text, re.MULTILINE)) == rooms()


@pytest.mark.parametrize("page", PAGES)
def test_files_named_on_a_page_exist(page: str) -> None:
    named = re.findall(r"`((?:[\w-]+/)+[\w-]+\.(?:py|md|txt|svg))`", (ROOT / page).read_text())
    missing = [name for name in named if not any((place / name).exists() for place in (ROOT, SOURCE))]
    assert not missing
