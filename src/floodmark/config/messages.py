"""Wording of configuration mistakes: what to write instead, never the value that was written."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from typing import Any, get_args, get_type_hints

from pydantic import AliasPath, ValidationError
from pydantic.fields import FieldInfo

from floodmark.config.file import URLS, Contents
from floodmark.config.yaml import dotted
from floodmark.model.errors import Mistake

_SAID: dict[str, Callable[[dict[str, Any]], str]] = {
    "missing": lambda _: "is required",
    "string_type": lambda _: "must be text",
    "int_parsing": lambda _: "must be a whole number",
    "int_from_float": lambda _: "must be a whole number",
    "float_parsing": lambda _: "must be a number",
    "finite_number": lambda _: "must be a number",
    "greater_than_equal": lambda context: f"must be at least {context['ge']}",
    "less_than_equal": lambda context: f"must be at most {context['le']}",
    "too_short": lambda _: "must not be empty",
    "tuple_type": lambda _: "must be a list",
    "literal_error": lambda context: f"must be {context['expected']}".replace("'", ""),
    "value_error": lambda context: str(context["error"]),
    "dataclass_type": lambda _: "must be a block of keys and values",
    "dict_type": lambda _: "must be a block of keys and values",
}


def mistakes_in(error: ValidationError, contents: Contents, root: type) -> Iterator[Mistake]:
    """Pydantic's errors in our own words, without those of values that are mistakes already."""
    failed = set(contents.failed)
    for item in error.errors(include_url=False):
        loc = tuple(map(str, item["loc"]))
        if loc[:2] in URLS:  # its parts are missing as one
            loc = loc[:2]
        if loc not in failed:
            yield Mistake(dotted(loc) or "the file", _said(item["type"], item.get("ctx", {}), loc, root))
        failed |= {loc} & set(URLS)


def _said(kind: str, context: dict[str, Any], loc: tuple[str, ...], root: type) -> str:
    if kind == "unexpected_keyword_argument":
        known = _known(loc[:-1], root)
        close = difflib.get_close_matches(loc[-1], known, 1, 0.6)
        return "unknown key; " + (f"did you mean {close[0]}?" if close else f"known keys: {', '.join(known)}")
    if kind in _SAID:
        return _SAID[kind](context)
    return "must be a number" if kind.startswith(("int_", "float_")) else "is not valid"


def _known(path: tuple[str, ...], section: type) -> list[str]:
    """The known keys of the section at a path."""
    for key in ("defaults",) if path[:1] == ("tables",) else path:
        if not key.isdigit():  # an index into a list, whose sections are all alike
            section = next(sections_in(keys(section)[key]))
    return list(keys(section))


def keys(section: type) -> dict[str, Any]:
    """The keys of a section with their types; `url` stands for the fields that are its parts."""
    known: dict[str, Any] = {}
    for name, hint in get_type_hints(section, include_extras=True).items():
        marks = (m.validation_alias for m in getattr(hint, "__metadata__", ()) if isinstance(m, FieldInfo))
        alias = next((mark for mark in marks if isinstance(mark, AliasPath)), None)
        known.setdefault(str(alias.path[0]) if alias else name, hint)
    return known


def sections_in(hint: Any) -> Iterator[type]:
    """The sections that a type has inside."""
    if isinstance(hint, type) and is_dataclass(hint):
        yield hint
    for inner in get_args(hint):
        yield from sections_in(inner)
