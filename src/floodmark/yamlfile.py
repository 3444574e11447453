"""YAML as a tree of text: mappings, lists, strings and None, nothing else.

Only a plain `null` or `~` is None; every other scalar stays as written, so that no value changes its meaning
because of how it looks (`on`, `010`, `1e3`, `2025-01-01`). A key given twice is an error. Errors name line
and column and quote nothing but single characters, because the line may hold a secret.
"""

from __future__ import annotations

import re

import yaml

Tree = dict[str, "Tree"] | list["Tree"] | str | None
Path = tuple[str, ...]

_MERGE = "tag:yaml.org,2002:merge"


def parse(text: str) -> tuple[Tree, list[str]]:
    """The document and its mistakes; a document that can't be read at all raises ValueError."""
    mistakes: list[str] = []
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        return (None if node is None else _tree(node, (), (), mistakes)), mistakes
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        # Quoted in the parser's words may stand a piece of the file.
        problem = re.sub(r"'[^']*'", lambda m: m[0] if len(m[0]) <= 4 else "…", error.problem or "not YAML")
        raise ValueError(place + problem) from None
    except yaml.YAMLError as error:
        position = getattr(error, "position", 0)
        before = text[:position]
        line, column = before.count("\n") + 1, position - (before.rfind("\n") + 1) + 1
        raise ValueError(f"line {line}, column {column}: a character that YAML does not allow") from None


def _tree(node: yaml.Node, path: Path, above: tuple[yaml.Node, ...], mistakes: list[str]) -> Tree:
    if node in above:
        mistakes.append(f"{dotted(path)}: contains itself")
        return None
    above = (*above, node)
    if isinstance(node, yaml.SequenceNode):
        return [_tree(item, (*path, str(n)), above, mistakes) for n, item in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, path, above, mistakes)
    plain = isinstance(node, yaml.ScalarNode) and node.style is None
    return None if plain and node.value in ("null", "Null", "NULL", "~") else str(node.value)


def _mapping(
    node: yaml.MappingNode, path: Path, above: tuple[yaml.Node, ...], mistakes: list[str]
) -> dict[str, Tree]:
    found: dict[str, Tree] = {}
    merged: dict[str, Tree] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            mark = key.start_mark
            mistakes.append(f"line {mark.line + 1}, column {mark.column + 1}: a key must be text")
        elif key.tag == _MERGE:
            for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                more = _tree(source, path, above, mistakes)
                if isinstance(more, dict):
                    merged = more | merged
        elif key.value in found:
            mistakes.append(f"{dotted((*path, key.value))}: given twice (line {key.start_mark.line + 1})")
        else:
            found[key.value] = _tree(value, (*path, key.value), above, mistakes)
    return merged | found


def dotted(path: Path) -> str:
    return ".".join(path)
