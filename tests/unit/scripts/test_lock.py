"""`scripts/lock`, with a private index on this machine; and that the lock works on the oldest Python, too."""

from __future__ import annotations

import hashlib
import io
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from html import escape
from http.server import BaseHTTPRequestHandler
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from tests.support.web_server import serving

ROOT = Path(__file__).resolve().parents[3]
PYPROJECT = """
[build-system]
requires = ["floodmark-built"]
[project]
requires-python = ">=3.11"
dependencies = ["floodmark-used>=1"]
optional-dependencies = {demo = [], ed25519 = []}
[dependency-groups]
dev = ["floodmark-checked"]
"""


def wheel(name: str, version: str, pythons: str, needs: str = "") -> bytes:
    """A package with nothing but metadata."""
    about = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\nRequires-Python: {pythons}\n{needs}"
    folder, to = f"{name.replace('-', '_')}-{version}.dist-info", io.BytesIO()
    with zipfile.ZipFile(to, "w") as made:
        made.writestr(f"{folder}/METADATA", about)
        made.writestr(f"{folder}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        made.writestr(f"{folder}/RECORD", "")
    return to.getvalue()


WHEELS = {
    (name, version): (pythons, wheel(name, version, pythons, needs))
    for name, version, pythons, needs in (
        ("floodmark-built", "1.0", ">=3.8", ""),
        ("floodmark-checked", "1.0", ">=3.8", ""),
        ("floodmark-used", "1.0", ">=3.8", "Requires-Dist: floodmark-deep\n"),
        ("floodmark-deep", "1.0", ">=3.8", ""),
        ("floodmark-deep", "1.1", ">=3.10", ""),
        ("floodmark-deep", "2.0", ">=3.11.1", ""),
        ("floodmark-deep", "2.1", ">=3.11.1", ""),
    )
}


FILES = {f"{n.replace('-', '_')}-{v}-py3-none-any.whl": data for (n, v), (_, data) in WHEELS.items()}


def link(file: str, pythons: str) -> str:
    digest = hashlib.sha256(FILES[file]).hexdigest()
    return f'<a href="/{file}#sha256={digest}" data-requires-python="{escape(pythons)}">{file}</a>'


class Index(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        name = self.path.strip("/").split("/")[-1]
        links = [
            link(file, pythons)
            for file, ((package, _), (pythons, _)) in zip(FILES, WHEELS.items(), strict=True)
            if package == name
        ]
        self.send_response(200)
        self.send_header("Content-Type", "application/octet-stream" if name in FILES else "text/html")
        self.end_headers()
        self.wfile.write(FILES.get(name) or "\n".join(links).encode())

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def index() -> Iterator[str]:
    with serving(Index) as url:
        yield f"{url}/simple"


def lock(root: Path, *arguments: str, index: str = "http://127.0.0.1:9") -> subprocess.CompletedProcess[str]:
    (root / "scripts").mkdir(exist_ok=True)
    shutil.copy(ROOT / "scripts" / "lock", root / "scripts")
    (root / "pyproject.toml").write_text(PYPROJECT)
    (root / "pip.conf").write_text(f"[global]\nindex-url = {index}\nextra-index-url =\nfind-links =\n")
    return subprocess.run(
        [sys.executable, str(root / "scripts" / "lock"), *arguments], capture_output=True, text=True, timeout=60,
        env={"PIP_CONFIG_FILE": str(root / "pip.conf"), "HOME": str(root), "no_proxy": "*"},
    )  # fmt: skip


def test_every_version_runs_on_the_oldest_python(tmp_path: Path, index: str) -> None:
    (tmp_path / "requirements.lock").write_text("floodmark-deep==2.1\n")
    done = lock(tmp_path, index=index)
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "requirements.lock").read_text()
    pins = ["floodmark-built==1.0", "floodmark-checked==1.0", "floodmark-deep==1.1", "floodmark-used==1.0"]
    assert re.findall(r"^\w\S+", text, re.MULTILINE) == pins
    assert text.count("--hash=sha256:") == 4
    assert lock(tmp_path, "--check").returncode == 0


def test_what_the_lock_lacks_is_reported_without_an_index(tmp_path: Path) -> None:
    (tmp_path / "requirements.lock").write_text(
        "Floodmark_Built==1.0 \\\n    --hash=x\nfloodmark-used==0.9\n"
    )
    done = lock(tmp_path, "--check")
    assert done.returncode == 1
    assert done.stderr == "lock: not in requirements.lock: floodmark-used>=1, floodmark-checked; make lock\n"


def test_what_is_locked_and_installed_here_runs_on_the_oldest_python() -> None:
    pins = re.findall(r"^([\w.-]+)==([^\s\\]+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    there = {one.metadata["Name"]: one for one in metadata.distributions()}
    same = [there[name] for name, version in pins if name in there and there[name].version == version]
    assert len(same) > 20
    pythons = {one.metadata["Name"]: one.metadata["Requires-Python"] or "" for one in same}
    assert not {name: said for name, said in pythons.items() if not SpecifierSet(said).contains("3.11.0")}
