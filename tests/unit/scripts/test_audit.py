"""requirements.lock, and `scripts/audit`: what it reports, with a private registry on this machine."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.web_server import serving

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "audit"
KNOWN: dict[str, Any] = {
    "good/1.0": {"vulnerabilities": []},
    "old/1.0": {
        "vulnerabilities": [
            {"id": "GHSA-1", "aliases": ["CVE-1"], "fixed_in": ["1.1"], "summary": "reads\x1b[2J too far"},
            {"id": "GHSA-2", "withdrawn": "2025-01-01T00:00:00Z"},
        ]
    },
    "odd/1.0": {"info": {}},
    "old": {"releases": {"0.9": [{}], "1.1": [{}], "1.0": [{}], "1.0rc1": [{}], "0.9.9": [{"yanked": True}]}},
    "good": {"releases": {"1.0": [{}], "1.0.5": [{}]}},
}


class Registry(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        found = KNOWN.get(self.path.removeprefix("/pypi/").removesuffix("/json"))
        self.send_response(200 if found else 404)
        self.end_headers()
        self.wfile.write(json.dumps(found).encode())

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def registry() -> Iterator[str]:
    with serving(Registry) as url:
        yield url


def audit(lock: Path, registry: str, *pins: str) -> tuple[int, str, str]:
    lock.write_text("# a lock or a project\n" + "".join(f"{pin}\n" for pin in pins))
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(lock)], capture_output=True, text=True, timeout=60,
        env={"AUDIT_REGISTRY": registry, "no_proxy": "*"},
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


def test_a_lock_without_known_vulnerabilities_passes(tmp_path: Path, registry: str) -> None:
    code, out, err = audit(tmp_path / "l", registry, "good==1.0")
    assert (code, err) == (0, "") and "1 of 1 packages" in out and "0 vulnerabilities known" in out


def test_a_vulnerability_is_named_with_the_version_that_fixes_it(tmp_path: Path, registry: str) -> None:
    code, out, err = audit(tmp_path / "l", registry, "good==1.0", "old[x]==1.0 ; python_version > '3'")
    assert (code, err) == (1, "")
    assert "old 1.0: GHSA-1, CVE-1; fixed in 1.1; reads?[2J too far" in out
    assert "GHSA-2" not in out and "1 vulnerability known" in out


def test_a_package_without_an_answer_is_reported_and_is_not_a_success(tmp_path: Path, registry: str) -> None:
    code, out, err = audit(tmp_path / "l", registry, "good==1.0", "none==1.0", "odd==1.0")
    assert code == 2 and "1 of 3 packages" in out
    assert "not checked, the registry answered 404: none 1.0" in err
    assert "holds no list of vulnerabilities: odd 1.0" in err


def test_of_a_project_the_lowest_release_that_each_bound_allows_is_checked(
    tmp_path: Path, registry: str
) -> None:
    project = (
        "[project]",
        'dependencies = ["good<2"]',
        "[project.optional-dependencies]",
        'x = ["old[y]>0.9,<2"]',
    )
    code, out, err = audit(tmp_path / "p.toml", registry, *project)
    assert (code, err) == (1, "") and "old 1.0: GHSA-1" in out and "2 of 2 packages of p.toml" in out
    code, out, err = audit(tmp_path / "p.toml", registry, *project[:2])
    assert (code, err) == (0, "") and "1 of 1 packages" in out
    code, out, err = audit(tmp_path / "p.toml", registry, "[project]", 'dependencies = ["good>=2", "none"]')
    assert code == 2 and "the registry has no release >=2: good" in err and "answered 404: none" in err


def test_an_unreachable_registry_is_reported_in_one_line(tmp_path: Path) -> None:
    code, out, err = audit(tmp_path / "l", "http://127.0.0.1:9", "good==1.0", "old==1.0")
    assert code == 2 and err.count("\n") == 1 and "can't be reached" in err and "0 of 2 packages" in out


def test_the_lock_has_hashes_for_every_package_and_every_package_that_is_wanted() -> None:
    root = SCRIPT.parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    wanted = [
        *project["build-system"]["requires"],
        *project["project"]["dependencies"],
        *(one for name, extra in extras.items() if name not in ("airflow", "dagster") for one in extra),
        *project["dependency-groups"]["dev"],
    ]
    text = (root / "requirements.lock").read_text()
    entries = re.findall(r"^([\w.-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", text, re.MULTILINE)
    assert len(entries) == len(re.findall(r"^[^\s#]", text, re.MULTILINE))
    locked = {canonicalize_name(name): version for name, version, _ in entries}
    for one in map(Requirement, wanted):
        assert one.specifier.contains(locked[canonicalize_name(one.name)]), one
