"""Other projects' files in the dashboard: unchanged, with their licenses, and named with version and checksum."""

from __future__ import annotations

import re
from hashlib import sha256
from importlib.resources import files

from floodmark.web.app import STATIC

FOLDER = files("floodmark.web") / "static"
OURS = {"VENDORED.md", "icon.svg", "page.js", "style.css"}


def listed() -> dict[str, tuple[str, str]]:
    """The files of VENDORED.md: package and version, and checksum."""
    lines = re.findall(
        r"^\| (\S+) \| (\S+) \| (\S+) \| \S+ \| \S+ \| ([0-9a-f]{64}) \|$",
        (FOLDER / "VENDORED.md").read_text(),
        re.M,
    )
    return {file: (f"{package} {version}", checksum) for file, package, version, checksum in lines}


def test_each_vendored_file_is_listed_and_matches_its_checksum() -> None:
    found = {one.name: one.read_bytes() for one in FOLDER.iterdir() if one.name not in OURS}
    assert {name: sha256(data).hexdigest() for name, data in found.items()} == {
        name: checksum for name, (_, checksum) in listed().items()
    }


def test_each_package_comes_with_its_license() -> None:
    of = {name: package for name, (package, _) in listed().items()}
    scripts = {package for name, package in of.items() if name.endswith(".js")}
    assert scripts == {package for name, package in of.items() if name.endswith(".LICENSE")} != set()
    assert set(STATIC) - OURS == {name for name in of if name.endswith(".js")}
