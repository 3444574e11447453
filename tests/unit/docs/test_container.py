"""container/: hadolint finds nothing in the Dockerfile, and what compose.yaml starts is what Floodmark understands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from floodmark.web.serve import read_token
from tests.support.pages import ROOT, parsed
from tests.unit.conftest import Load

CONTAINER = ROOT / "container"
DOCKERFILE = (CONTAINER / "Dockerfile").read_text()
SERVICES = yaml.safe_load((CONTAINER / "compose.yaml").read_text())["services"]
OURS = [name for name, service in SERVICES.items() if "build" in service]


def test_hadolint_finds_nothing() -> None:
    hadolint = Path(sys.executable).parents[1] / "hadolint/bin/hadolint"
    if not hadolint.exists():
        pytest.skip("make setup could not fetch hadolint")
    done = subprocess.run([hadolint, "--no-color", CONTAINER / "Dockerfile"], capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("", 0)


def test_the_image_runs_as_a_named_user_and_has_a_health_check() -> None:
    user = re.findall(r"(?m)^USER (.+)$", DOCKERFILE)[-1]
    assert user == "1000:1000" and "useradd --uid 1000 --user-group" in DOCKERFILE
    assert "\nHEALTHCHECK " in DOCKERFILE and "floodmark.spark.class_archive" in DOCKERFILE


def test_both_stages_have_the_same_base_and_the_python_that_a_path_names() -> None:
    bases = re.findall(r"(?m)^FROM (\S+)", DOCKERFILE)
    assert len(bases) == 2 and len(set(bases)) == 1
    version = re.match(r"python:(\d+\.\d+)-slim", bases[0])
    assert version and set(re.findall(r"lib/python([\d.]+)/", DOCKERFILE)) == {version[1]}


def test_what_the_image_copies_is_not_ignored() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = re.findall(r"(?m)^COPY ((?!--)\S+) (\S+) ", DOCKERFILE)
    assert {name for pair in copied for name in pair} == kept


@pytest.mark.parametrize("name", OURS)
def test_each_command_in_the_compose_file_is_valid(name: str) -> None:
    parsed(SERVICES[name]["command"].split())


def test_each_health_check_uses_the_service_s_own_address() -> None:
    assert "--listen 127.0.0.1:9908" in SERVICES["sync"]["command"]
    assert SERVICES["sync"]["environment"]["HEALTH_URL"] == "http://127.0.0.1:9908/healthz"
    assert SERVICES["dashboard"]["environment"]["HEALTH_URL"] == "http://127.0.0.1:8808/healthz"


def test_mounted_files_exist_and_are_valid(read: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    mounted = [v.split(":")[0] for s in SERVICES.values() for v in s.get("volumes", []) if v.startswith("./")]
    assert [name for name in mounted if not (CONTAINER / name).is_file()] == []
    for name, value in SERVICES["sync"]["environment"].items():
        monkeypatch.setenv(name, value)
    assert read((CONTAINER / "floodmark.yaml").read_text()).source.database == "shop"
    read_token(CONTAINER / "token")


def test_every_port_is_for_this_machine_alone() -> None:
    assert all(port.startswith("127.0.0.1:") for s in SERVICES.values() for port in s.get("ports", []))
