"""What people install: both wheels, by pip, pipx and uv, and the error if an extra is missing.

Everything here takes minutes and the package index. `make dist` runs the demo in both wheels.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.pages import ROOT
from tests.support.pythons import python
from tests.support.scripts import script

pytestmark = pytest.mark.long
dist: Any = script("dist")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The compiled wheel, the pure one and the source distribution."""
    built: tuple[Path, Path, Path] = dist.build(tmp_path_factory.mktemp("dist"))
    return built


@pytest.fixture(scope="module")
def plain(wheels: tuple[Path, Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment with the compiled wheel, without any extra but Spark."""
    place = tmp_path_factory.mktemp("plain") / "env"
    found: Path = dist.environment(place, wheels[0], ["spark"])
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with a configuration that sends alerts by email."""
    (tmp_path / "floodmark.yaml").write_text(
        "source: {url: 'mysql://reader:x@127.0.0.1:1/shop'}\nalerts: {to: ['mailto://a:b@localhost']}\n"
    )
    yield tmp_path


def said(command: Path, *arguments: str, cwd: Path) -> tuple[int, list[str]]:
    """The exit code and the output, for someone without a checkout."""
    done = subprocess.run(
        [command, *arguments], cwd=cwd, env=dist.surroundings(cwd), capture_output=True, text=True
    )
    return done.returncode, done.stderr.splitlines()


def test_the_compiled_reader_is_used_and_the_pages_are_installed(plain: Path) -> None:
    assert dist.is_compiled(plain)
    assert (plain.parent / "share/man/man1/floodmark-watermark.1").is_file()


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (["serve"], "web"),
        (["report", "-o", "x.html"], "web"),
        (["demo", "--serve"], "web"),
        (["alerts", "test"], "notify"),
        (["alerts", "check"], "notify"),
        (["sync", "--all"], "notify"),
        (["demo"], "demo"),
    ],
    ids=" ".join,
)
def test_a_missing_extra_is_named_in_two_lines(
    plain: Path, folder: Path, command: list[str], extra: str
) -> None:
    code, lines = said(plain / "floodmark", *command, cwd=folder)
    assert code == 2 and len(lines) <= 2, lines
    assert f"pip install 'floodmark[{extra}]'" in lines[-1]
    assert list(folder.iterdir()) == [folder / "floodmark.yaml"] or command[0] == "sync"


def test_the_stand_in_for_redshift_needs_a_checkout(plain: Path, folder: Path) -> None:
    code, lines = said(plain / "floodmark", "demo", "--warehouse", "redshift", cwd=folder)
    assert (code, len(lines)) == (2, 2) and "checkout" in lines[1]


def test_the_pure_wheel_works_without_compiled_code(
    wheels: tuple[Path, Path, Path], plain: Path, tmp_path: Path
) -> None:
    pip = (plain / "python", "-m", "pip", "--quiet", "install", "--no-deps", "--no-index")
    target = tmp_path / "pure"
    dist.run(*pip, "--target", target, wheels[1])
    code = "from floodmark.source.rows import decoder; print(decoder.compiled, decoder.__file__)"
    answer = dist.run(plain / "python", "-c", code, cwd=tmp_path, PYTHONPATH=str(target)).split()
    assert answer[0] == "None" and answer[1].startswith(str(target))


@pytest.mark.parametrize("version", ["3.12", "3.13", "3.14"])
def test_one_compiled_wheel_serves_newer_pythons(
    wheels: tuple[Path, Path, Path], tmp_path: Path, version: str
) -> None:
    other = python(version)
    if other is None:
        pytest.skip(f"there is no Python {version} here")
    dist.run(other, "-m", "venv", tmp_path / "env")
    bin = tmp_path / "env/bin"
    dist.run(bin / "python", "-m", "pip", "--quiet", "install", "--no-deps", wheels[0])
    dist.run(bin / "python", "-m", "pip", "--quiet", "install", "numpy")
    program = (ROOT / "bench/reader.py").read_text()
    (tmp_path / "reader.py").write_text(program)
    (library,) = (tmp_path / "env").rglob("decoder_fast.abi3.so")
    told = dist.run(bin / "python", tmp_path / "reader.py", library, library, "1", cwd=tmp_path)
    assert "CPU-s per million rows" in told


@pytest.fixture(scope="module")
def installers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment with pipx and uv."""
    place = tmp_path_factory.mktemp("installers")
    dist.run(sys.executable, "-m", "venv", place)
    dist.run(place / "bin/python", "-m", "pip", "--quiet", "install", "pipx>=1.8,<2", "uv>=0.9,<1")
    return place / "bin"


@pytest.mark.parametrize("tool", ["pipx", "uv"])
def test_it_installs_as_a_tool(
    wheels: tuple[Path, Path, Path], installers: Path, tmp_path: Path, tool: str
) -> None:
    where = {
        "PIPX_HOME": str(tmp_path / "pipx"), "PIPX_BIN_DIR": str(tmp_path / "bin"), "PIPX_MAN_DIR": str(tmp_path / "man"),
        "UV_TOOL_DIR": str(tmp_path / "uv"), "UV_TOOL_BIN_DIR": str(tmp_path / "bin"), "UV_CACHE_DIR": str(tmp_path / "cache"),
    }  # fmt: skip
    if tool == "pipx":
        dist.run(installers / "pipx", "install", "--python", sys.executable, wheels[0], cwd=tmp_path, **where)
        assert (tmp_path / "man/man1/floodmark.1").exists()
    else:
        dist.run(
            installers / "uv", "tool", "install", "--python", sys.executable, wheels[0], cwd=tmp_path, **where
        )
    done = subprocess.run(
        [tmp_path / "bin/floodmark", "--version"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": ""},
    )
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("floodmark, version")
