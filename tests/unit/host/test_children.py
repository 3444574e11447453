"""Programs that we start take no code from the working folder."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

import floodmark
from floodmark.host.process import child_environment
from floodmark.integrations.command import CommandProcess
from floodmark.load.duckdb.ledger import ledger_sums
from floodmark.spark import worker_daemon
from floodmark.spark.jvm import settings
from tests.support.hostile_folder import HostileFolder

SOURCES = Path(floodmark.__file__).parent
# `-I` shuts the working folder out too; a reaper's server inherits the environment of the reaper, and is no Python.
OTHERWISE = {"host/ssh.py _live": '"-I"', "setup/services/reaper.py keep": "cwd=folder"}


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HostileFolder:
    found = HostileFolder(tmp_path / "shared")
    monkeypatch.chdir(found.folder)
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    return found


def spawns() -> Iterator[tuple[str, str, str]]:
    """The functions that start a program: where, their text, and the call's `env`."""
    for path in sorted(SOURCES.rglob("*.py")):
        for function in ast.walk(tree := ast.parse(text := path.read_text())):
            if not isinstance(function, ast.FunctionDef):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                    "subprocess.Popen",
                    "subprocess.run",
                ):
                    env = "".join(ast.unparse(one.value) for one in node.keywords if one.arg == "env")
                    where = f"{path.relative_to(SOURCES).as_posix()} {function.name}"
                    yield where, ast.get_source_segment(text, function) or "", env
        assert "import Popen" not in text and "os.system" not in text and tree


def test_every_program_that_we_start_gets_the_environment_that_shuts_the_working_folder_out() -> None:
    found = list(spawns())
    assert len(found) >= 10
    for where, text, env in found:
        if where in OTHERWISE:
            assert OTHERWISE[where] in text
        else:
            assert env and "child_environment(" in (env if env != "env" else text), where


def test_a_child_keeps_the_python_path_but_for_the_elements_that_mean_the_working_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTHONPATH", ":/opt/a::/opt/b:")
    found = child_environment({"MORE": "1"})
    assert (found["PYTHONPATH"], found["PYTHONSAFEPATH"], found["MORE"]) == ("/opt/a:/opt/b", "1", "1")
    monkeypatch.delenv("PYTHONPATH")
    assert "PYTHONPATH" not in child_environment()


def test_workers_on_a_cluster_and_of_a_foreign_jvm_are_told_too() -> None:
    for master in ("local[2]", "yarn"):
        assert settings(master, {}, "x")["spark.executorEnv.PYTHONSAFEPATH"] == "1"


def test_the_command_of_the_user_and_of_an_orchestrator_imports_nothing_from_the_working_folder(
    hostile: HostileFolder,
) -> None:
    done = hostile.run("doctor", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    ended = CommandProcess(("--json", "watermark", "list")).run()
    assert (ended.code, hostile.marks) == (2, []) and "floodmark.yaml" in ended.why


def test_a_glance_at_the_ledger_imports_nothing_from_the_working_folder(
    hostile: HostileFolder, tmp_path: Path
) -> None:
    with duckdb.connect(str(file := tmp_path / "w.duckdb")) as made:
        made.execute("CREATE TABLE t (x INT)")
    assert ledger_sums(file, "main") == [] and hostile.marks == []


def test_the_parent_of_the_workers_imports_nothing_from_the_working_folder(
    hostile: HostileFolder, tmp_path: Path
) -> None:
    process = worker_daemon.start_early(str(tmp_path / "daemon"))
    assert process is not None and process.stdin is not None
    process.stdin.close()  # so it ends once it is prepared
    assert process.wait(60) == 0 and hostile.marks == []
