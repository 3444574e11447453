"""The archive for a cluster's machines: what is in it, and the script that runs their Python with it."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import floodmark
from floodmark.model.errors import ConfigError
from floodmark.setup import pack as packing
from floodmark.setup.pack import JOB, JOB_TEXT, Platform, check_name, needed, pack

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / JOB


def packages(**required: list[str]) -> Any:
    """Installed packages by name, each with its requirements."""
    known = {name.replace("_", "-"): lines for name, lines in required.items()}

    def find(name: str) -> Distribution:
        if name not in known:
            raise PackageNotFoundError(name)
        found: Any = SimpleNamespace(name=name, requires=known[name])
        return found  # type: ignore[no-any-return]

    return find


def test_all_required_packages_are_found_but_spark_s() -> None:
    find = packages(
        floodmark=["a>=1", "pyspark>=4.0,<5; extra == 'spark'", "n; extra == \"notify\"", "w; extra == 'web'"],
        a=["b[fast]<2; python_version >= '3'", "old; python_version < '3'", "py4j"], b=["c ; extra == 'fast'"], c=[], n=[], w=[],
    )  # fmt: skip
    assert [one.name for one in needed("floodmark", frozenset({"notify"}), find)] == ["a", "b", "c", "n"]


def test_a_required_package_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match="the package a is not installed"):
        needed("floodmark", frozenset(), packages(floodmark=["a"]))


def test_the_archive_s_name_says_its_kind() -> None:
    assert check_name(Path("a.zip"), False) and check_name(Path("a.zip"), True)
    assert not check_name(Path("a.tar.gz"), False) and not check_name(Path("a.tgz"), False)
    for name, code_only in (("a.tar", False), ("a", False), ("a.tar.gz", True)):
        with pytest.raises(ConfigError) as caught:
            check_name(Path(name), code_only)
        assert "-o floodmark." in str(caught.value.hint)


def test_the_code_alone_can_be_imported_from_its_zip(tmp_path: Path) -> None:
    made = pack(tmp_path / "floodmark.zip", code_only=True)
    assert (made.target, made.compiled) == (None, False)
    assert not [name for name in zipfile.ZipFile(made.archive).namelist() if name.endswith((".so", ".pyc"))]
    found = subprocess.run(
        [sys.executable, "-S", "-c", "import floodmark.model.errors; print(floodmark.__file__, floodmark.__version__)"],
        capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(made.archive)}, cwd=tmp_path,
    )  # fmt: skip
    assert found.stdout.split() == [f"{made.archive}/floodmark/__init__.py", floodmark.__version__], (
        found.stderr
    )


def test_the_job_for_spark_submit_is_the_documented_one_and_replaces_no_other(tmp_path: Path) -> None:
    assert EXAMPLE.read_text() == JOB_TEXT
    first = pack(tmp_path / "one.zip", code_only=True)
    assert first.job.read_text() == JOB_TEXT
    first.job.write_text("mine")
    assert pack(tmp_path / "two.zip", code_only=True).job.read_text() == "mine"


def test_an_archive_has_packages_and_a_program_and_equal_contents_make_equal_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        packing, "needed", lambda *_: []
    )  # the packages themselves: tests/e2e/extract/test_pack.py
    made = [pack(tmp_path / name) for name in ("a.tar.gz", "b.tar.gz", "a.zip", "b.zip")]
    assert made[0].archive.read_bytes() == made[1].archive.read_bytes()
    assert made[2].archive.read_bytes() == made[3].archive.read_bytes()
    with tarfile.open(made[0].archive) as tar:
        assert all(member.isfile() for member in tar)  # Spark refuses links that lead outside
        names = set(tar.getnames())
        assert tar.getmember("bin/python").mode & 0o111
    with zipfile.ZipFile(made[2].archive) as zipped:
        assert set(zipped.namelist()) == names
        assert stat.S_IMODE(zipped.getinfo("bin/python").external_attr >> 16) & 0o111
    assert {"bin/python", "packages/floodmark/extract/task.py"} <= names
    assert made[0].compiled == any("decoder_fast." in name and name.endswith(".so") for name in names)


def test_an_archive_is_replaced_and_nothing_that_pack_did_not_write_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "needed", lambda *_: [])
    for name, code_only in (("a.tar.gz", False), ("a.zip", False), ("code.zip", True)):
        made = pack(tmp_path / name, code_only).archive
        before = made.stat().st_ino
        assert pack(made, code_only).archive.stat().st_ino != before
        assert made.stat().st_mode & 0o777 == 0o644
        made.chmod(0o666)  # so others may have written it
        refused(made, code_only)
        kept = made.with_name("kept")
        made.rename(kept)
        made.symlink_to(kept)
        refused(made, code_only)
        made.unlink()
        for content in (b"precious", b"", kept.read_bytes()[:100]):
            made.write_bytes(content)
            refused(made, code_only)
            assert made.read_bytes() == content
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as other:
        other.writestr("floodmark/setup/pack.py", "")
        other.writestr("precious", "")
    refused(tmp_path / "other.zip", False)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def refused(archive: Path, code_only: bool) -> None:
    with pytest.raises(ConfigError, match="did not write it") as caught:
        pack(archive, code_only)
    assert "-o" in (caught.value.hint or "")


def test_a_file_that_appears_while_pack_writes_is_not_overwritten(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError, match="did not write it"), packing._written(tmp_path / "a.zip") as part:
        part.write_text("ours")
        (tmp_path / "a.zip").write_text("precious")
    assert (tmp_path / "a.zip").read_text() == "precious"


def launched(folder: Path, target: Platform, **environment: str) -> subprocess.CompletedProcess[str]:
    program = folder / "bin" / "python"
    program.parent.mkdir()
    program.write_text(target.launcher())
    program.chmod(0o755)
    return subprocess.run(
        [os.path.relpath(program, folder), "-c", "import sys; print(sys.version_info[:2], sys.path[:2])"],
        cwd=folder, capture_output=True, text=True, env={**os.environ, **environment},
    )  # fmt: skip


def test_its_program_runs_the_machine_s_python_with_its_packages_before_all_others(tmp_path: Path) -> None:
    here = Platform.here()
    done = launched(tmp_path, here, FLOODMARK_PYTHON=sys.executable, PYTHONPATH="/spark/python")
    assert done.stdout.strip() == f"{sys.version_info[:2]} {[f'{tmp_path}/packages', '/spark/python']}", (
        done.stderr
    )


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            Platform("3.11", "Linux", "sparc64"),
            "is for Python 3.11 on Linux sparc64, but this machine is Linux",
        ),
        (Platform("3.99", "Linux", os.uname().machine), "is for Python 3.99 on Linux"),
    ],
    ids=["machine", "Python"],
)
def test_an_archive_for_another_machine_or_python_refuses_in_a_line(
    tmp_path: Path, other: Platform, said: str
) -> None:
    done = launched(tmp_path, other)
    assert done.returncode == 2 and done.stdout == ""
    assert said in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
