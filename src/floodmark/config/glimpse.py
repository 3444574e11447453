"""What a configuration file says about its tables and its store, as far as that can be told: for completing names.

Commands use `load`. Here a file with mistakes will do, and so will one whose passwords are not in the environment.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from floodmark.config.load import StoreSpec, place
from floodmark.config.yaml import MOST_CHARACTERS, Tree, parse
from floodmark.model.json import adapter


def glimpse(path: Path | None = None) -> tuple[list[str], StoreSpec | None]:
    """The tables and patterns of the file, with their schema, and its store; nothing and None if there is no such file."""
    file = place(path)
    tree: Tree = None
    with suppress(OSError, ValueError):
        if file.is_file() and file.stat().st_size <= MOST_CHARACTERS:  # nothing that could block
            tree, _ = parse(file.read_text("utf-8-sig"))
    if not isinstance(tree, dict):
        return [], None
    named = tree.get("tables")
    database = _database(tree.get("source"))
    full = (
        (n if "." in n or not database else f"{database}.{n}" for n in named or ())
        if isinstance(named, dict)
        else ()
    )
    return list(full), _store(tree.get("store"), file.parent)


def _database(source: Tree) -> str | None:
    url = source.get("url") if isinstance(source, dict) else None
    with suppress(ValueError):
        found = unquote(urlsplit(url).path.strip("/")) if isinstance(url, str) else ""
        return found if found and "$" not in found else None
    return None


def _store(given: Tree, base: Path) -> StoreSpec | None:
    plain = (
        {key: value for key, value in given.items() if key != "copies_to"} if isinstance(given, dict) else {}
    )
    with suppress(ValueError):  # pydantic's is one
        store: StoreSpec = adapter(StoreSpec).validate_python(plain, context=base)
        return store
    return None
