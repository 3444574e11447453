"""Private names of libraries that Floodmark uses for lack of a public API: each still exists.

What is not in `TOUCHED` must not be touched. A library's new version that lacks one fails here, not at somebody's sync.
"""

from __future__ import annotations

import ast
import atexit
import inspect
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pymysql
import pymysql.connections
import pytest
import redshift_connector.core
from py4j.java_gateway import JavaGateway  # type: ignore[import-untyped]
from pymysql import _auth
from pyspark import SparkContext, daemon
from pyspark.core import context

SOURCE = Path(__file__).resolve().parents[3] / "src" / "floodmark"
MySQL = pymysql.connections.Connection
Redshift = redshift_connector.core.Connection


def sets(kind: type, name: str) -> bool:
    """Whether objects of the class get the attribute."""
    return re.search(rf"self\.{name}\b(: [^=\n]+)? = ", inspect.getsource(kind)) is not None


def takes(method: Callable[..., object], *names: str) -> bool:
    return tuple(inspect.signature(method).parameters) == ("self", *names)


# By the module that touches it and its name.
TOUCHED: dict[tuple[str, str], Callable[[], bool]] = {
    ("cli/main.py", "_shutdown"): lambda: callable(getattr(threading, "_shutdown", None)),
    ("cli/main.py", "_run_exitfuncs"): lambda: callable(getattr(atexit, "_run_exitfuncs", None)),
    ("source/log_in.py", "_auth"): lambda: callable(_auth.sha2_rsa_encrypt),
    ("source/log_in.py", "_have_cryptography"): lambda: isinstance(_auth._have_cryptography, bool),
    ("source/log_in.py", "_sock"): lambda: sets(MySQL, "_sock"),
    ("source/log_in.py", "_rfile"): lambda: sets(MySQL, "_rfile"),
    ("source/log_in.py", "_read_bytes"): lambda: takes(MySQL._read_bytes, "num_bytes"),
    ("source/log_in.py", "_write_bytes"): lambda: takes(MySQL._write_bytes, "data"),
    ("source/log_in.py", "_get_server_information"): lambda: takes(MySQL._get_server_information),
    ("source/log_in.py", "_process_auth"): lambda: takes(
        MySQL._process_auth, "plugin_name", "auth_packet", "handler"
    ),
    ("spark/pyspark_internals.py", "_active_spark_context"): lambda: "_active_spark_context" in vars(SparkContext),
    ("spark/pyspark_internals.py", "_gateway_client"): lambda: sets(JavaGateway, "_gateway_client"),
    ("spark/pyspark_internals.py", "_gateway"): lambda: "_gateway" in vars(SparkContext),
    ("spark/pyspark_internals.py", "_jvm"): lambda: "_jvm" in vars(SparkContext),
    ("spark/pyspark_internals.py", "_jsc"): lambda: sets(SparkContext, "_jsc"),
    ("spark/pyspark_internals.py", "_accumulatorServer"): lambda: sets(SparkContext, "_accumulatorServer"),
    ("spark/pyspark_internals.py", "_ensure_initialized"): lambda: callable(SparkContext._ensure_initialized),
    ("load/redshift/socket.py", "_usock"): lambda: (
        sets(Redshift, "_usock") and "self._usock.connect(" in inspect.getsource(Redshift)
    ),
}  # fmt: skip
# Public, although they begin with an underscore.
PUBLIC = {"_exit", "_replace", "_make", "_asdict", "_fields"}


def touched() -> set[tuple[str, str]]:
    """Every private name of an object that is not of a class of ours."""
    trees = {path: ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}
    ours = {name for tree in trees.values() for name in own_names(tree)}
    found = set()
    for path, tree in trees.items():
        module = str(path.relative_to(SOURCE))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and not (node.module or "").startswith("floodmark"):
                found |= {(module, alias.name) for alias in node.names if _private(alias.name)}
            if isinstance(node, ast.Attribute) and _private(node.attr):
                theirs = ast.unparse(node.value) in ("super()", "SparkContext")
                if theirs or node.attr == "_usock" or node.attr not in ours:
                    found.add((module, node.attr))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
                asked = node.args[1]
                if isinstance(asked, ast.Constant) and _private(str(asked.value)):
                    found.add((module, str(asked.value)))
            if isinstance(node, ast.FunctionDef) and node.name == "_usock":
                found.add((module, node.name))
    return found


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in PUBLIC


def own_names(tree: ast.Module) -> set[str]:
    """What the classes of a module name themselves: methods, fields, and attributes that they set on `self`."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign):
            found |= {leaf for target in node.targets for leaf in _leaves(target)}
        elif isinstance(node, ast.AnnAssign):
            found |= _leaves(node.target)
    return found


def _leaves(target: ast.expr) -> set[str]:
    if isinstance(target, ast.Tuple):
        return {leaf for part in target.elts for leaf in _leaves(part)}
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name) and target.value.id == "self":
        return {target.attr}
    return {target.id} if isinstance(target, ast.Name) else set()


def test_only_known_private_names_of_libraries_are_touched() -> None:
    assert touched() == set(TOUCHED)


@pytest.mark.parametrize("name", [pytest.param(name, id="/".join(name)) for name in TOUCHED])
def test_a_private_name_is_still_there(name: tuple[str, str]) -> None:
    assert TOUCHED[name]()


def test_pyspark_still_writes_into_the_environment_by_its_own_os() -> None:
    """Else `own_environment` is no longer needed, or no longer enough."""
    assert 'os.environ["SPARK_BUFFER_SIZE"] =' in inspect.getsource(SparkContext)
    assert vars(context)["os"] is os


def test_pyspark_s_daemon_is_still_a_function_without_arguments() -> None:
    assert not inspect.signature(daemon.manager).parameters
