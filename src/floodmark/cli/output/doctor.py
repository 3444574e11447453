"""What `doctor` found, for people: one line per check, and below it what to do."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from floodmark.model.text import counted

if TYPE_CHECKING:
    from floodmark.setup.doctor import Check, Examination

_COLOURS = {"ok": "32", "warning": "33", "failure": "31", "skipped": "2"}
_NAME = 12


def check_lines(checks: Sequence[Check], width: int | None, paint: bool = False) -> list[str]:
    """The checks of one or more sections, each under its heading; lines are wrapped only for a terminal."""
    lines: list[str] = []
    for section, listed in groupby(checks, lambda check: check.section):
        group = list(listed)
        lines += ["", section.capitalize()]
        if section == "tables":
            for table, about in groupby(group, lambda check: check.table):
                lines += _table(table, list(about), width, paint)
            continue
        for reason, same in groupby(group, lambda check: check.detail if check.status == "skipped" else None):
            if reason is None:
                for check in same:
                    lines += _line(check.status, check.name, check.detail, check.hint, width, paint)
            else:
                # One line for all checks that were skipped for the same reason.
                names = ", ".join(check.name for check in same)
                said = reason if names == section else f"{names}: {reason}"
                lines += _line("skipped", "", said, None, width, paint)
    return lines


def _table(table: str | None, checks: list[Check], width: int | None, paint: bool) -> list[str]:
    if table is None:
        return [
            line
            for check in checks
            for line in _line(check.status, "", check.detail, check.hint, width, paint)
        ]
    worst = next((s for s in ("failure", "warning") if any(c.status == s for c in checks)), "ok")
    first, *others = checks
    lines = _line(worst, "", f"{table}: {first.detail}", first.hint, width, paint)
    for check in others:
        lines += _line("", "", check.detail, check.hint, width, paint)
    return lines


def _line(status: str, name: str, detail: str, hint: str | None, width: int | None, paint: bool) -> list[str]:
    mark = f"{status:<8}"
    if paint and status:
        mark = f"\x1b[{_COLOURS[status]}m{mark}\x1b[0m"
    column = f"{name:<{_NAME}}  " if name else ""
    indent = 2 + 8 + 1 + len(column)
    lines = [
        f"  {mark} {column}{text}" if not n else " " * indent + text
        for n, text in enumerate(_broken(detail, width, indent))
    ]
    if hint:
        lines += [
            " " * indent + ("→ " if not n else "  ") + text
            for n, text in enumerate(_broken(hint, width, indent + 2))
        ]
    return lines


def _broken(text: str, width: int | None, indent: int) -> list[str]:
    if width is None:
        return [text]
    return textwrap.wrap(text, max(30, width - indent), break_long_words=False, break_on_hyphens=False) or [
        ""
    ]


def summary_lines(document: Examination) -> list[str]:
    """The result, and what to do next."""
    number = document.counts
    said = [f"{number['ok']} ok", *(counted(number[kind], kind) for kind in ("warning", "failure"))]
    said += [f"{number['skipped']} skipped"] if number["skipped"] else []
    then = "ready: floodmark sync --all" if document.ok else "fix the failures, then run doctor again"
    return ["", f"{', '.join(said)}; {then}"]
