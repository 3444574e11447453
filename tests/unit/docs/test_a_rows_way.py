"""docs/a-rows-way.md: every function that it names exists and is reached from the ones before it."""

from __future__ import annotations

import ast
import inspect
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

PAGE = Path(__file__).resolve().parents[3] / "docs" / "a-rows-way.md"
MOST_HOPS = 12


def ways() -> dict[str, list[str]]:
    """The hops of each command, by the command."""
    found: dict[str, list[str]] = {}
    for line in PAGE.read_text().splitlines():
        if heading := re.match(r"## `([a-z ]+)`", line):
            found[heading[1]] = []
        elif hop := re.match(r"\d+\. `([\w.]+)`", line):
            list(found.values())[-1].append(hop[1])
    return found


def resolved(hop: str) -> tuple[ModuleType, object]:
    """The module and the function of a hop; raises if it does not exist."""
    parts = hop.split(".")
    names = [part for part in parts if part[0].isupper()]
    module_parts = parts[: parts.index(names[0])] if names else parts[:-1]
    module = import_module(".".join(("floodmark", *module_parts)))
    found: object = module
    for name in parts[len(module_parts) :]:
        found = getattr(found, name)
    return module, found


def imported_by(module: ModuleType) -> set[str]:
    """The modules that a module imports, at its top or inside a function."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            package = import_module(node.module) if node.module.startswith("floodmark") else None
            names |= {getattr(getattr(package, a.name, None), "__module__", "") or "" for a in node.names}
    return names


def test_the_page_has_the_three_ways_with_twelve_hops_at_most() -> None:
    assert list(ways()) == ["sync", "verify", "watermark get"]
    assert all(3 < len(hops) <= MOST_HOPS for hops in ways().values())


@pytest.mark.parametrize("hop", [pytest.param(hop, id=hop) for hops in ways().values() for hop in hops])
def test_every_hop_exists(hop: str) -> None:
    _, function = resolved(hop)
    assert callable(function)


@pytest.mark.parametrize("way", list(ways()))
def test_every_hop_is_in_a_module_that_an_earlier_one_imports(way: str) -> None:
    seen: set[str] = set()
    reached: set[str] = set()
    for number, hop in enumerate(ways()[way]):
        module, _ = resolved(hop)
        assert number == 0 or module.__name__ in seen | reached, f"nothing before {hop} leads there"
        seen.add(module.__name__)
        reached |= imported_by(module)
