"""A configuration file as a tree of plain values: variables expanded, URLs split into their parts.

YAML is read as mappings, lists, strings and None, nothing else: only a plain `null` or `~` is None, and every other
scalar stays text until its field decides the type, so `on`, `010` and `2025-01-01` mean what is written. Duplicate keys
are mistakes. Errors name line and column and quote only single characters, because the line may contain a secret.

`${NAME}` is replaced after parsing and only within its own value: a secret can't change the structure of the YAML or of
a URL.
"""

from __future__ import annotations

import errno
import os
import re
import select
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from floodmark.config.values import VariableError, expand, source_url, warehouse_url
from floodmark.model.errors import ConfigError, Mistake
from floodmark.model.warehouse import WAREHOUSES

Tree = dict[str, "Tree"] | list["Tree"] | str | None
Keys = tuple[str, ...]

# Variables in these are expanded after the URL has been split, so that a password can't change its structure.
URLS = (("source", "url"), ("warehouse", "url"))
PIPE_SECONDS = 10  # for a configuration printed by another program, as in --config <(…)
# Far more than any configuration needs. Nested aliases multiply, and must not exhaust memory.
MOST_CHARACTERS = 4_000_000
MOST_VALUES = 200_000
MOST_BYTES = 4 * (MOST_CHARACTERS + 1)  # enough to tell that a file has too many characters
_MERGE = "tag:yaml.org,2002:merge"
_PLAIN_TAGS = {
    f"tag:yaml.org,2002:{kind}"
    for kind in ("str", "int", "float", "bool", "null", "timestamp", "seq", "map", "merge", "value")
}


@dataclass(frozen=True)
class Contents:
    """What a file says, and what is wrong with it so far."""

    tree: dict[str, Any]
    base: Path  # the folder that its paths are relative to
    mistakes: list[Mistake]
    failed: set[Keys]  # the keys whose values are among the mistakes


def read(path: Path) -> Contents:
    """The file's values; ConfigError if it can't be read or is no YAML."""
    try:
        tree, mistakes = parse(_content(path).decode("utf-8-sig"))
    except OSError as error:
        raise ConfigError(
            f"can't read {path}: {error.strerror}", hint="check --config and the file's permissions"
        ) from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text", hint="save it as UTF-8") from None
    except TooMuch as error:
        raise ConfigError(f"{path} {error}", hint="is it the right file? See --config") from None
    except ValueError as error:
        raise ConfigError(
            f"{path}, {error}",
            hint="indent with spaces, not tabs; quote values that contain : # { or }, and ${NAME} inside braces",
        ) from None
    if tree in (None, ""):
        tree = {}
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} has no keys", hint="it needs at least source: {url: mysql://…}")
    contents = Contents({}, _base(path), mistakes, set())
    sections: dict[str, Tree] = {"source": {}, "store": {}, "warehouse": {}, "spark": {}}
    contents.tree.update(_prepared(contents, sections | tree, ()))
    if isinstance(warehouse := contents.tree["warehouse"], dict):
        usual = next(iter(WAREHOUSES.values()))
        parts = warehouse.setdefault("url", warehouse_url(usual.example, contents.base))
        if warehouse.get("schema") is None:
            warehouse["schema"] = (WAREHOUSES[parts["kind"]] if isinstance(parts, dict) else usual).schema
    return contents


def _base(path: Path) -> Path:
    """The folder that the file's paths are relative to; for /dev/stdin and the like, the current one."""
    whole = path.absolute()
    piped = whole == Path("/dev/stdin") or whole.parent == Path("/dev/fd") or whole.parts[1:2] == ("proc",)
    return Path.cwd() if piped else whole.parent


def _content(path: Path) -> bytes:
    """The file's bytes, up to the limit; times out on a pipe that nothing is written to."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
        news = select.poll()
        news.register(file, select.POLLIN)
        found = bytearray()
        while len(found) < MOST_BYTES:
            if not news.poll(PIPE_SECONDS * 1000):
                raise TimeoutError(errno.ETIMEDOUT, f"it is a pipe that sent nothing for {PIPE_SECONDS} s")
            part = os.read(file.fileno(), 1 << 20)
            if not part:
                break
            found += part
    return bytes(found[:MOST_BYTES])


def _prepared(contents: Contents, node: Tree, path: Keys) -> Any:
    """The tree with variables expanded, URLs split and empty blocks as {}."""
    try:
        if path in URLS:
            return source_url(node) if path[0] == "source" else warehouse_url(node, contents.base)
        if isinstance(node, dict):
            return {key: _prepared(contents, value, (*path, key)) for key, value in node.items()}
        if isinstance(node, list):
            return [_prepared(contents, item, (*path, str(n))) for n, item in enumerate(node)]
        if node in (None, "") and _is_block(path):
            return {}
        return expand(node) if isinstance(node, str) else node
    except ValueError as error:
        variable = next(iter(error.missing), None) if isinstance(error, VariableError) else None
        contents.mistakes.append(Mistake(".".join(path), str(error), variable))
        contents.failed.add(path)
        return None if path in URLS else node


def _is_block(path: Keys) -> bool:
    return len(path) == 1 or path == ("spark", "conf") or (len(path) == 2 and path[0] == "tables")


# ---------------------------------------------------------------- YAML


class TooMuch(ValueError):
    """A document too large or too deeply nested for a configuration; the message follows the file's name."""


def parse(text: str) -> tuple[Tree, list[Mistake]]:
    """The document and its mistakes; ValueError if it can't be parsed at all."""
    if len(text) > MOST_CHARACTERS:
        raise TooMuch(f"is too large for a configuration: more than {MOST_CHARACTERS:,} characters")
    document = _Document()
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        return (None if node is None else document.tree(node, ())), document.mistakes
    except RecursionError:
        raise TooMuch("is nested too deeply") from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        # The parser's message may quote part of the file.
        problem = re.sub(r"'[^']*'", lambda m: m[0] if len(m[0]) <= 4 else "…", error.problem or "not YAML")
        raise ValueError(f"{_place(mark)}: {problem}" if mark else problem) from None
    except yaml.YAMLError as error:
        before = text[: getattr(error, "position", 0)]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        raise ValueError(f"line {line}, column {column}: a character that YAML does not allow") from None


class _Document:
    """A document whose nodes become values, and what is wrong with it so far."""

    def __init__(self) -> None:
        self.mistakes: list[Mistake] = []
        self._values = 0

    def tree(self, node: yaml.Node, path: Keys, above: tuple[yaml.Node, ...] = ()) -> Tree:
        """The values of a node; None for one that is a mistake."""
        self._values += 1
        if self._values > MOST_VALUES:
            raise TooMuch(f"has more than {MOST_VALUES:,} values with its aliases expanded")
        if node in above:
            return self._wrong(path, "contains itself")
        if node.tag not in _PLAIN_TAGS:
            return self._wrong(path, f"has a tag (line {node.start_mark.line + 1}); remove the tag")
        above = (*above, node)
        if isinstance(node, yaml.SequenceNode):
            return [self.tree(item, (*path, str(n)), above) for n, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path, above)
        plain = isinstance(node, yaml.ScalarNode) and node.style is None
        return None if plain and node.value in ("null", "Null", "NULL", "~") else str(node.value)

    def _mapping(self, node: yaml.MappingNode, path: Keys, above: tuple[yaml.Node, ...]) -> dict[str, Tree]:
        found: dict[str, Tree] = {}
        merged: dict[str, Tree] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                self._wrong((_place(key.start_mark),), "a key must be text")
            elif key.tag == _MERGE:
                for source in value.value if isinstance(value, yaml.SequenceNode) else [value]:
                    more = self.tree(source, path, above)
                    merged = more | merged if isinstance(more, dict) else merged
            elif key.value in found:
                self._wrong((*path, key.value), f"given twice (line {key.start_mark.line + 1})")
            else:
                found[key.value] = self.tree(value, (*path, key.value), above)
        return merged | found

    def _wrong(self, path: Keys, what: str) -> Tree:
        self.mistakes.append(Mistake(".".join(path), what))
        return None


def _place(mark: yaml.Mark) -> str:
    return f"line {mark.line + 1}, column {mark.column + 1}"
