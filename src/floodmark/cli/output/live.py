"""What `doctor --redshift-live` found, for people: a line per probe, and both sides where they differ."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from floodmark.model.text import clock, duration, size

_COLOURS = {"as assumed": "32", "differs": "31", "unknown": "2", "failed": "31"}
_LONGEST = 240


def live_lines(document: Mapping[str, Any], width: int | None, paint: bool = False) -> list[str]:
    """The whole report."""
    ways = ", ".join(f"{way} ({said})" for way, said in document["ways"].items())
    lines = [
        f"Floodmark {document['floodmark']} on a live Redshift, {clock(document['at'])}",
        f"Connections: {ways}",
    ]
    for group, listed in groupby(document["probes"], lambda probe: str(probe["group"])):
        lines += ["", group[:1].upper() + group[1:]]
        for probe in listed:
            lines += _probe(probe, width, paint)
    return [*lines, "", *_summary(document)]


def _probe(probe: Mapping[str, Any], width: int | None, paint: bool) -> list[str]:
    state = str(probe["state"])
    mark = f"{state:<10}"
    if paint:
        mark = f"\x1b[{_COLOURS[state]}m{mark}\x1b[0m"
    head = f"  {mark} {probe['name']:<24} "
    indent = 2 + 10 + 1 + 25
    if state != "differs":
        return _wrapped(head, str(probe["found"]), indent, width)
    return [
        *_wrapped(head, str(probe["question"]), indent, width),
        *_wrapped(" " * indent, f"assumed: {probe['assumed']}", indent, width),
        *_wrapped(" " * indent, f"found:   {probe['found']}", indent, width),
    ]


def _wrapped(head: str, text: str, indent: int, width: int | None) -> list[str]:
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    if width is None:
        return [head + text]
    broken = textwrap.wrap(text, max(30, width - indent), break_on_hyphens=False) or [""]
    return [head + broken[0], *(" " * indent + line for line in broken[1:])]


def _summary(document: Mapping[str, Any]) -> list[str]:
    counts = ", ".join(f"{number} {state}" for state, number in document["counts"].items())
    lines = [
        f"{counts}; {duration(document['seconds'])}, {document['files']} files of {size(document['bytes'])}"
    ]
    if document["stopped"]:
        lines.append(f"stopped early: {document['stopped']}")
    if document["left"]:
        lines += ["could not be removed:", *(f"  {one}" for one in document["left"])]
    else:
        lines.append("the schema and the files were removed")
    return lines
