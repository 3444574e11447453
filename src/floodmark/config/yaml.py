"""YAML as a tree of text: mappings, lists, strings and None, nothing else.

Only a plain `null` or `~` is None; every other scalar stays as written, so that no value changes its meaning
because of how it looks (`on`, `010`, `1e3`, `2025-01-01`). Duplicate keys are errors. Errors name line and
column and quote only single characters, because the line may contain a secret.
"""

from __future__ import annotations

import re

import yaml

from floodmark.model.errors import Mistake

Tree = dict[str, "Tree"] | list["Tree"] | str | None
Path = tuple[str, ...]

_MERGE = "tag:yaml.org,2002:merge"
_PLAIN_TAGS = {
    f"tag:yaml.org,2002:{kind}"
    for kind in ("str", "int", "float", "bool", "null", "timestamp", "seq", "map", "merge", "value")
}
# Far more than any configuration needs. Nested aliases multiply, and must not exhaust memory.
MOST_CHARACTERS = 4_000_000
MOST_VALUES = 200_000


class TooMuch(ValueError):
    """A document too large or too deeply nested for a configuration; the message follows the file's name."""


def parse(text: str) -> tuple[Tree, list[Mistake]]:
    """The document and its mistakes; ValueError if it can't be parsed at all."""
    if len(text) > MOST_CHARACTERS:
        raise TooMuch(f"is too large for a configuration: more than {MOST_CHARACTERS:,} characters")
    mistakes: list[Mistake] = []
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is not None and _values(node, {}, set()) > MOST_VALUES:
            raise TooMuch(f"has more than {MOST_VALUES:,} values with its aliases expanded")
        return (None if node is None else _tree(node, (), (), mistakes)), mistakes
    except RecursionError:
        raise TooMuch("is nested too deeply") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        # The parser's message may quote part of the file.
        problem = re.sub(r"'[^']*'", lambda m: m[0] if len(m[0]) <= 4 else "…", error.problem or "not YAML")
        raise ValueError(place + problem) from None
    except yaml.YAMLError as error:
        position = getattr(error, "position", 0)
        before = text[:position]
        line, column = before.count("\n") + 1, position - (before.rfind("\n") + 1) + 1
        raise ValueError(f"line {line}, column {column}: a character that YAML does not allow") from None


def _values(node: yaml.Node, known: dict[int, int], above: set[int]) -> int:
    """How many values a node has with its aliases expanded, counted without expanding them."""
    if id(node) in above or isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) not in known:
        parts = (
            node.value if isinstance(node, yaml.SequenceNode) else [n for pair in node.value for n in pair]
        )
        known[id(node)] = 1 + sum(_values(part, known, above | {id(node)}) for part in parts)
    return known[id(node)]


def _tree(node: yaml.Node, path: Path, above: tuple[yaml.Node, ...], mistakes: list[Mistake]) -> Tree:
    if node in above:
        mistakes.append(Mistake(dotted(path), "contains itself"))
        return None
    if node.tag not in _PLAIN_TAGS:
        said = f"has a tag (line {node.start_mark.line + 1}); remove the tag"
        mistakes.append(Mistake(dotted(path), said))
        return None
    above = (*above, node)
    if isinstance(node, yaml.SequenceNode):
        return [_tree(item, (*path, str(n)), above, mistakes) for n, item in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, path, above, mistakes)
    plain = isinstance(node, yaml.ScalarNode) and node.style is None
    return None if plain and node.value in ("null", "Null", "NULL", "~") else str(node.value)


def _mapping(
    node: yaml.MappingNode, path: Path, above: tuple[yaml.Node, ...], mistakes: list[Mistake]
) -> dict[str, Tree]:
    found: dict[str, Tree] = {}
    merged: dict[str, Tree] = {}
    for key, value in node.value:
        if not isinstance(key, yaml.ScalarNode):
            mark = key.start_mark
            place = f"line {mark.line + 1}, column {mark.column + 1}"
            mistakes.append(Mistake(place, "a key must be text"))
        elif key.tag == _MERGE:
            for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                more = _tree(source, path, above, mistakes)
                if isinstance(more, dict):
                    merged = more | merged
        elif key.value in found:
            said = f"given twice (line {key.start_mark.line + 1})"
            mistakes.append(Mistake(dotted((*path, key.value)), said))
        else:
            found[key.value] = _tree(value, (*path, key.value), above, mistakes)
    return merged | found


def dotted(path: Path) -> str:
    return ".".join(path)
