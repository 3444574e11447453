"""docs/examples/systemd: systemd accepts the units, they are well sandboxed, and every exit code leads to what the page says."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from floodmark.model.errors import FloodmarkError
from tests.support.pages import ROOT, parsed

UNITS = sorted((ROOT / "docs/examples/systemd").iterdir())
SERVICES = [unit for unit in UNITS if unit.suffix == ".service"]
COMMAND = "/opt/floodmark/bin/floodmark"


def setting(unit: str, name: str) -> list[str]:
    """The words of a setting; none if the unit doesn't have it."""
    text = (ROOT / "docs/examples/systemd" / unit).read_text()
    return " ".join(re.findall(rf"(?m)^{name}=(.*)$", text)).split()


def systemd_analyze(folder: Path, *arguments: str) -> str:
    """Runs it on copies of the units whose command exists; returns its output."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    for unit in UNITS:
        (folder / unit.name).write_text(unit.read_text().replace(COMMAND, "/bin/true"))
    done = subprocess.run(["systemd-analyze", *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    assert systemd_analyze(tmp_path, "verify", "--man=no", *(f"./{unit.name}" for unit in UNITS)) == ""


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_a_service_has_little_to_attack(unit: Path, tmp_path: Path) -> None:
    systemd_analyze(tmp_path, "security", "--offline=true", "--threshold=20", f"./{unit.name}")


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_each_service_runs_a_valid_command(unit: Path) -> None:
    program, *arguments = setting(unit.name, "ExecStart")
    assert program == COMMAND
    parsed(arguments)


@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_the_cache_is_where_the_service_may_write(unit: Path) -> None:
    assert setting(unit.name, "Environment") == ["XDG_CACHE_HOME=/var/cache"]
    assert setting(unit.name, "CacheDirectory") == ["floodmark"]
    assert setting(unit.name, "MemoryDenyWriteExecute") == []  # Java compiles while it runs


def test_only_what_can_succeed_is_tried_again() -> None:
    def codes(kind: type[FloodmarkError]) -> set[int]:
        return {kind.code, *(code for each in kind.__subclasses__() for code in codes(each))}

    every = codes(FloodmarkError) | {143}
    good = set(map(int, setting("floodmark-sync.service", "SuccessExitStatus")))
    hopeless = set(map(int, setting("floodmark-sync.service", "RestartPreventExitStatus")))
    assert setting("floodmark-sync.service", "Restart") == ["on-failure"]
    assert every - good - hopeless == {4, 5}
    for unit in ("floodmark-resident.service", "floodmark-serve.service"):
        assert setting(unit, "Restart") == ["on-failure"]
        assert setting(unit, "SuccessExitStatus") == ["130", "143"]
        assert setting(unit, "RestartPreventExitStatus") == ["2"]
