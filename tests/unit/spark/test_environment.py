"""The environment of a process is changed before there are threads, or not at all.

libc's getenv takes no lock: in another thread it may read what setenv has just freed, and the process ends with SIGSEGV.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import floodmark
from floodmark.spark import worker_daemon as daemon

SOURCES = Path(floodmark.__file__).parent
# Where a process begins: the command, and the parent of the workers, which has one thread.
_DAEMON = "spark/worker_daemon.py"
AT_START = {"cli/main.py main", f"{_DAEMON} main", f"{_DAEMON} _prepare", f"{_DAEMON} _take"}
CHANGES = {"update", "setdefault", "pop", "popitem", "clear", "__setitem__", "__delitem__", "__ior__"}
CALLS = {"putenv", "unsetenv"}


def named(node: ast.AST) -> str:
    return ast.unparse(node) if isinstance(node, ast.Attribute | ast.Name) else ""


def changes(node: ast.AST) -> bool:
    """Whether this changes the environment, or hands out what can."""
    match node:
        case ast.Subscript(value=value, ctx=ast.Store() | ast.Del()):
            return named(value) in ("os.environ", "os.environb")
        case ast.AugAssign(target=target):
            return named(target) in ("os.environ", "os.environb")
        case ast.Attribute(value=value, attr=name):
            return (name in CHANGES and named(value) in ("os.environ", "os.environb")) or (
                name in CALLS and named(value) == "os"
            )
        case ast.ImportFrom(module="os", names=names):
            return any(one.name in CALLS | {"environ", "environb"} for one in names)
    return False


def writers(tree: ast.AST, where: str = "") -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if changes(node):
            yield where
        inside = (
            node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else where
        )
        yield from writers(node, inside)


@pytest.mark.parametrize(
    "text",
    [
        "os.environ['A'] = 'b'",
        "del os.environ['A'], x",
        "os.environ |= {}",
        "os.environ.setdefault('A', 'b')",
        "change = os.environ.pop",
        "os.putenv('A', 'b')",
        "from os import environ",
        "os.environ['A'], b = 1, 2",
    ],
)
def test_the_check_finds_every_way_to_change_the_environment(text: str) -> None:
    assert list(writers(ast.parse(f"def f():\n  {text}"))) == ["f"]


def test_no_module_changes_the_environment_after_its_process_has_begun() -> None:
    found = {
        f"{path.relative_to(SOURCES)} {where}"
        for path in SOURCES.rglob("*.py")
        for where in writers(ast.parse(path.read_text()))
    }
    assert found == AT_START


def test_the_parent_of_the_workers_has_one_thread_when_it_takes_over_an_environment() -> None:
    program = "import os; from floodmark.spark.worker_daemon import _prepare; _prepare(); print(*os.listdir('/proc/self/task'))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=daemon.single_threaded(os.environ),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert len(done.stdout.split()) == 1
