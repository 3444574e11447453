"""The pictures of docs/: drawings match their texts and figures, and none loads anything from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ROOMS = ROOT / "docs" / "rooms.svg"
PICTURES = (ROOMS, *sorted((ROOT / "docs/pictures").glob("*.svg")))
SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("script", ["picture", "chart"])
def test_pictures_match_their_texts_and_figures(script: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / script), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_picture_of_rooms_shows_every_room() -> None:
    shown = {text.text for text in xml.parse(ROOMS).iter(f"{SVG}text")}
    rooms = {f"{path.parent.name}/" for path in (ROOT / "src/floodmark").glob("*/__init__.py")}
    assert rooms and {*rooms, "api.py"} <= shown


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.name)
def test_a_picture_loads_nothing_from_elsewhere(picture: Path) -> None:
    text = picture.read_text()
    assert "href" not in text and "@import" not in text and "<script" not in text
    assert "://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert xml.fromstring(text).tag == f"{SVG}svg"


@pytest.mark.parametrize(
    "picture", [path for path in PICTURES if path.with_suffix(".txt").exists()], ids=lambda path: path.name
)
def test_a_drawn_picture_fits_light_and_dark_pages(picture: Path) -> None:
    assert "prefers-color-scheme: dark" in picture.read_text()


def test_pages_show_every_picture() -> None:
    pages = "".join(page.read_text() for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")))
    shown = set(re.findall(r"\]\((?:docs/)?((?:pictures/)?[\w-]+\.svg)\)", pages))
    assert {str(path.relative_to(ROOT / "docs")) for path in PICTURES} <= shown
