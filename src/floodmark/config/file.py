"""The bytes of a configuration file as a tree of plain values: variables expanded, URLs split into their parts.

Scalars stay text until their field decides the type, so `on`, `010` and `2025-01-01` mean what is written.
`${NAME}` is replaced after parsing and only within its own value: a secret can't change the structure of the
YAML or of a URL.
"""

from __future__ import annotations

import errno
import os
import select
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from floodmark.config.values import VariableError, expand, source_url, warehouse_url
from floodmark.config.yaml import MOST_CHARACTERS, TooMuch, Tree, dotted, parse
from floodmark.model.errors import ConfigError, Mistake
from floodmark.model.warehouse import WAREHOUSES

# Variables in these are expanded after the URL has been split, so that a password can't change its structure.
URLS = (("source", "url"), ("warehouse", "url"))
PIPE_SECONDS = 10  # for a configuration printed by another program, as in --config <(…)
MOST_BYTES = 4 * (MOST_CHARACTERS + 1)  # enough to tell that a file has too many characters


@dataclass(frozen=True)
class Contents:
    """What a file says, and what is wrong with it so far."""

    tree: dict[str, Any]
    base: Path  # the folder that its paths are relative to
    mistakes: list[Mistake]
    failed: set[tuple[str, ...]]  # the keys whose values are among the mistakes


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


def _not_set(error: object) -> str | None:
    """The missing environment variable, if that is the cause."""
    return error.missing[0] if isinstance(error, VariableError) and error.missing else None


def _prepared(contents: Contents, node: Tree, path: tuple[str, ...]) -> Any:
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
        contents.mistakes.append(Mistake(dotted(path), str(error), _not_set(error)))
        contents.failed.add(path)
        return None if path in URLS else node


def _is_block(path: tuple[str, ...]) -> bool:
    return len(path) == 1 or path == ("spark", "conf") or (len(path) == 2 and path[0] == "tables")
