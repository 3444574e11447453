"""Wording of configuration mistakes: what to write instead, never the value that was written."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel

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
}


def said(item: Any, loc: tuple[str, ...], root: type[BaseModel]) -> str:
    """A pydantic error in our own words."""
    kind, context = item["type"], item.get("ctx", {})
    if kind == "extra_forbidden":
        known = _known(loc[:-1], root)
        close = difflib.get_close_matches(loc[-1], known, 1, 0.6)
        return "unknown key; " + (f"did you mean {close[0]}?" if close else f"known keys: {', '.join(known)}")
    if kind in _SAID:
        return _SAID[kind](context)
    if kind.startswith(("int_", "float_")):
        return "must be a number"
    return (
        "must be a block of keys and values"
        if kind in ("model_type", "dict_type", "model_attributes_type")
        else "is not valid"
    )


def _known(path: tuple[str, ...], root: type[BaseModel]) -> list[str]:
    """The known keys of the block at a path."""
    if path[:1] == ("tables",):
        path = ("defaults",)
    block: Any = root
    for key in path:
        if key.isdigit():  # an index into a list, whose blocks are all alike
            continue
        kind = block.model_fields[key].annotation
        block = next(
            (k for k in (kind, *getattr(kind, "__args__", ())) if hasattr(k, "model_fields")), BaseModel
        )
    return [info.alias or name for name, info in block.model_fields.items()]
