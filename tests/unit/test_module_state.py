"""No module has mutable state: whatever outlives a call is in an object that is passed in.

The exceptions belong to the process and have no object to be in; each says why where it is.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src" / "floodmark"
# Kept by the process: one Spark task, or one run of a library's user, hands the next nothing else.
OF_THE_PROCESS = {
    ("log/lease.py", "_over"), ("host/ssh.py", "_tunnels"), ("host/ssh.py", "_lock"),
    ("model/json.py", "_adapters"), ("model/json.py", "_building"),
}  # fmt: skip
# Functions that remember: pure ones, or what a Spark worker keeps from one task to the next.
REMEMBERED = {
    ("log/lease.py", "_boot"): "pure: of a machine that runs",
    ("model/canonical.py", "keys"): "pure: of one object, which it ends with",
    ("model/typed.py", "_columns"): "pure: of a class",
    ("model/typed.py", "_hints"): "pure: of a class",
    ("model/typed.py", "_bare"): "pure: of a type",
    ("model/typed.py", "_unlike"): "pure: of a class",
    ("setup/doctor/source.py", "_news"): "of an examination",
    ("config/load.py", "_patterns"): "pure: of a configuration",
    ("log/status.py", "_names"): "pure",
    ("source/binlog/events.py", "_layout"): "pure: of an event",
    ("source/binlog/events.py", "_uuid"): "pure",
    ("source/rows/decoder.py", "_months"): "pure",
    ("extract/changes.py", "_store"): "of a worker: its connections to the store",
    ("extract/task.py", "_store"): "of a worker: its connections to the store",
    ("model/changes.py", "_file_number"): "pure",
    ("spark/job.py", "freeze_imports"): "of a worker: once",
    ("host/temp.py", "_sweep"): "of a process: which folders it has swept, for two minutes",
    ("spark/job.py", "_left"): "of a process: secrets lie in its memory until it ends",
    ("spark/job.py", "_in_memory"): "of a process: files that are open until it ends",
    ("spark/job.py", "_fetched"): "of a worker: secrets that it has read",
}
CHANGING = {
    "add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "remove", "setdefault",
    "update", "acquire", "register",
}  # fmt: skip
LOCKS = {"Lock", "RLock", "Condition", "Event", "Semaphore", "local", "WeakSet", "WeakValueDictionary"}


@cache
def trees() -> dict[str, ast.Module]:
    return {str(p.relative_to(SOURCE)): ast.parse(p.read_text()) for p in sorted(SOURCE.rglob("*.py"))}


def module_names(tree: ast.Module) -> dict[str, ast.expr]:
    """The names that a module gives to values, and the values."""
    found: dict[str, ast.expr] = {}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            targets = [node.target]
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            found |= {target.id: node.value for target in targets if isinstance(target, ast.Name)}
    return found


def changed(tree: ast.Module) -> set[str]:
    """The module's names that a function of it changes, or that are there to be changed: locks."""
    names = module_names(tree)
    found = {
        name
        for name, value in names.items()
        if isinstance(value, ast.Call) and ast.unparse(value.func).rpartition(".")[2] in LOCKS
    }
    for function in (f for f in ast.walk(tree) if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)):
        inside = list(ast.walk(function))
        local = {a.arg for a in inside if isinstance(a, ast.arg)}
        local |= {n.id for n in inside if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        for node in inside:
            if isinstance(node, ast.Global):
                found |= set(node.names)
            thing: ast.expr | None = None
            if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
                thing = node.value
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                thing = node.func.value if node.func.attr in CHANGING else None
            if isinstance(thing, ast.Name) and thing.id in names.keys() - local:
                found.add(thing.id)
    return found


def test_no_module_has_mutable_state() -> None:
    assert {(path, name) for path, tree in trees().items() for name in changed(tree)} == OF_THE_PROCESS


def test_only_known_functions_cache() -> None:
    found = {
        (path, function.name)
        for path, tree in trees().items()
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        and any(
            ast.unparse(d).startswith(("cache", "lru_cache", "functools.")) for d in function.decorator_list
        )
    }
    assert found == set(REMEMBERED)
