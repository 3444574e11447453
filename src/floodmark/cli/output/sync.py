"""What a sync did or would do, and each cycle of a resident one, for people, from the documents of `--json`.

Several tables get one line each, and below them what is worth knowing: each note once, with the tables that it concerns.
A single table, or `-v`, is printed in full. If lines are too wide for the terminal, each table gets a few short ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from floodmark.cli.output.document import LEAST_NAME, behind, indented, position, table
from floodmark.cli.output.emit import Document, error_said
from floodmark.model.text import (
    cells,
    clock,
    count,
    counted,
    data_time,
    duration,
    rate,
    shortened,
    shortened_alike,
    size,
)

_INTERRUPTED = (130, 143)
_VALUES = re.compile(r"[0-9][0-9,.:+-]*")
_NAMED = 4  # tables that are named with a note, without -v
# How a table ended: its symbol and its colour, where they are shown.
_SIGNS = {"ok": ("✓", "32"), "idle": ("·", ""), "bad": ("✗", "31"), "stopped": ("!", "33"), "todo": ("→", "")}


@dataclass(frozen=True)
class Shown:
    """How a result is shown."""

    dry_run: bool = False
    verbose: bool = False
    width: int | None = None  # of the terminal; None: as wide as it takes
    paint: bool = False  # with colours, and the symbols that say the same
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by table


def sync_lines(document: Document, how: Shown) -> list[str]:
    """What a sync did, for people; the errors themselves go to stderr."""
    tables = [one for one in document["tables"] if not one.get("not_started")]
    waiting = [one["table"] for one in document["tables"] if one.get("not_started")]
    if how.verbose or len(tables) == 1:
        lines = [line for one in tables for line in _in_full(one, document, how)]
    else:
        lines = [*_listed(tables, how), *_statements(tables, how), *_worth_knowing(tables, how)]
        lines += [""] if lines and len(lines) > len(tables) + 1 else []
    if waiting:
        lines += indented("", f"Not started: {_named(waiting)}", how.width)
    return [*lines, *indented("", _last_line(document, how), how.width)]


def cycle_line(document: Document) -> str:
    """One cycle of a resident sync: `2025-08-14 16:45:33 UTC  shop.orders: 100 rows extracted, 100 loaded, 1.2 s`."""
    tables = document["tables"]
    failed = [table["error"] for table in tables if table["error"]]
    failed += [document["error"]] if document["error"] else []
    parts = []
    if failed:
        first = next((e for e in failed if e["code"] == document["exit_code"]), failed[0])
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        reason = "; ".join(line.strip() for line in error_said(first))
        parts.append(f"failed, exit code {document['exit_code']}: {reason}{more}")
    moved = [table for table in tables if not table["error"]]
    if moved:
        names = moved[0]["table"] if len(moved) == 1 else counted(len(moved), "table")
        extracted = sum(table["rows_extracted"] + table["rows_reread"] for table in moved)
        loaded = sum(table["rows_loaded"] for table in moved)
        parts.append(f"{names}: {counted(extracted, 'row')} extracted, {count(loaded)} loaded")
    if not parts:
        parts.append(f"up to date, {counted(document['tables_idle'], 'table')}")
    return f"{clock(document['at'])}  {'; '.join(parts)}, {duration(float(document['seconds']))}"


# ---------------------------------------------------------------- how it ended


def _last_line(document: Document, how: Shown) -> str:
    tables, seconds = document["tables"], duration(float(document.get("seconds") or 0))
    stopped = sum(one["exit_code"] in _INTERRUPTED or one.get("not_started") is True for one in tables)
    failed = sum(not one["ok"] for one in tables) - sum(one["exit_code"] in _INTERRUPTED for one in tables)
    outcome = [f"{counted(failed, 'table')} failed"] if failed else []
    outcome += [f"{counted(stopped, 'table')} not finished"] if stopped else []
    if not outcome:
        outcome = ["dry run, nothing written" if how.dry_run else "done"]
    return f"Run {document['run']}: {counted(len(tables), 'table')}, {', '.join(outcome)}, {seconds}"


def _state(one: Document, how: Shown) -> tuple[str, str]:
    """In a word or two, and its symbol."""
    if one["exit_code"] in _INTERRUPTED:
        return "interrupted", "stopped"
    if not one["ok"]:
        return ("differs" if one["exit_code"] == 7 else "failed") + f" ({one['exit_code']})", "bad"
    if how.dry_run:
        return ("nothing to do", "idle") if _nothing_planned(one) else ("to do", "todo")
    moved = one["rows_extracted"] or one["rows_reread"] or one["rows_loaded"] or one["rows_deleted"]
    if moved:
        return "ok", "ok"
    return ("held back", "stopped") if one.get("held_back_by") else ("up to date", "idle")


def _signed(text: str, sign: str, how: Shown) -> str:
    """The text with its symbol, coloured; or plain, if that is wanted."""
    if not how.paint:
        return text
    symbol, colour = _SIGNS[sign]
    return f"\x1b[{colour}m{symbol} {text}\x1b[0m" if colour else f"{symbol} {text}"


def _nothing_planned(one: Document) -> bool:
    plan = one.get("plan") or {}
    return not (plan.get("rows") or (plan.get("pending") or {}).get("files") or plan.get("ddl"))


# ---------------------------------------------------------------- one line for each table


def _listed(tables: Sequence[Document], how: Shown) -> list[str]:
    head = ("Table", "Rows", "Slices", "Files", "Waiting", "State") if how.dry_run else (
        "Table", "Rows", "Files", "Time", "Watermark", "Lag", "State")  # fmt: skip
    states = [_state(one, how) for one in tables]
    body = [
        (*(_planned_cells(one) if how.dry_run else _cells(one)), state)
        for one, (state, _) in zip(tables, states, strict=True)
    ]
    rest = sum(max(cells(row[i]) for row in (head, *body)) + 2 for i in range(1, len(head)))
    rest += 2 if how.paint else 0
    above: dict[int, str] = {}  # names that are too long for their column, by the number of their line
    if how.width is not None:
        room = how.width - rest
        if room < min(LEAST_NAME, max(cells(one["table"]) for one in tables)):
            return [line for one in tables for line in _card(one, how)]
        names = shortened_alike([row[0] for row in body], room)
        above = {n: body[n - 1][0] for n, name in enumerate(names, 1) if name is None}
        body = [(name or "", *row[1:]) for name, row in zip(names, body, strict=True)]
    lines: list[str] = []
    for number, line in enumerate(table([head, *body], {1, 2, 3, 4} if how.dry_run else {1, 2, 3})):
        if number in above:
            lines.append(shortened(above[number], how.width or 80) or above[number])
        if number and how.paint:  # colours come last, after everything has been measured
            state, sign = states[number - 1]
            line = line[: -len(state)] + _signed(state, sign, how)
        lines.append(line)
    return lines


def _cells(one: Document) -> tuple[str, ...]:
    lag, watermark = one.get("lag_after"), one.get("watermark") or {}
    return (
        one["table"],
        _rows(one) or "–",
        count(one["files_written"] or one["files_loaded"]) if _rows(one) else "–",
        duration(float(one.get("seconds") or 0)),
        data_time(watermark.get("last_mysql_data_timestamp")) or position(watermark) or "–",
        behind(lag["seconds"], lag["ids"]) if lag else "–",
    )


def _rows(one: Document) -> str:
    extracted, again = one["rows_extracted"], one["rows_reread"]
    if extracted or again:
        return count(extracted) + (f" +{count(again)} again" if again else "")
    return count(one["rows_loaded"]) if one["rows_loaded"] else ""


def _rows_in_words(one: Document) -> str:
    extracted, again = one["rows_extracted"], one["rows_reread"]
    if not again:
        return counted(extracted or one["rows_loaded"], "row")
    return (
        f"{counted(extracted, 'row')}, {count(again)} again"
        if extracted
        else f"{counted(again, 'row')} again"
    )


def _planned_cells(one: Document) -> tuple[str, ...]:
    plan = one.get("plan") or {}
    waiting = plan.get("pending") or {}
    return (
        one["table"],
        count(plan.get("rows") or 0),
        count(plan.get("slices") or 0),
        count(plan.get("files") or 0 if plan.get("rows") else 0),
        "?" if plan.get("warehouse_unknown") else counted(waiting.get("files") or 0, "file"),
    )


def _card(one: Document, how: Shown) -> list[str]:
    """A table on a narrow terminal."""
    width = how.width or 80
    state, sign = _state(one, how)
    coloured = _signed(state, sign, how)
    state = f"{_SIGNS[sign][0]} {state}" if how.paint else state
    lines = [shortened(one["table"], width) or one["table"]]
    if how.dry_run:
        told = [state, *_planned(one)]
    else:
        lag, where = one.get("lag_after"), position(one.get("watermark") or {})
        parts = [state]
        if _rows(one):
            parts.append(_rows_in_words(one))
            parts.append(counted(one["files_written"] or one["files_loaded"], "file"))
        parts.append(duration(float(one.get("seconds") or 0)))
        told = [", ".join(parts)]
        told += (
            [f"up to {where}" + (f", {behind(lag['seconds'], lag['ids'])} behind" if lag else "")]
            if where
            else []
        )
    body = [line for text in told for line in indented("  ", text, how.width)]
    body[0] = body[0].replace(state, coloured, 1)
    return [*lines, *body]


# ---------------------------------------------------------------- what is worth knowing


def _worth_knowing(tables: Sequence[Document], how: Shown) -> list[str]:
    """Notes, files that wait and findings, each once, with the tables that they concern."""
    notes = [(text, one["table"]) for one in tables for text in how.notes.get(one["table"], ())]
    waiting = [] if how.dry_run else [one for one in tables if _waiting(one)]
    for one in waiting:
        notes.append((f"{counted(_waiting(one), 'file')} waiting to be loaded", one["table"]))
    findings = [
        (f"{found['kind']}: {found['detail']}", one["table"])
        for one in tables
        for found in one.get("findings") or ()
    ]
    return [*_grouped("Notes", notes, how), *_grouped("Findings", findings, how)]


def _grouped(title: str, said: Sequence[tuple[str, str]], how: Shown) -> list[str]:
    """Prints a text about several tables once, even if its numbers and times differ."""
    if not said:
        return []
    alike: dict[str, list[tuple[str, str]]] = {}
    for text, name in said:
        alike.setdefault(_VALUES.sub("#", text), []).append((text, name))
    lines = ["", title]
    for group in alike.values():
        texts = list(dict.fromkeys(text for text, _ in group))
        names = list(dict.fromkeys(name for _, name in group))
        if len(texts) == 1:
            lines += indented("  ", texts[0], how.width)
            lines += indented("      ", _named(names), how.width)
        elif len(names) <= 2:
            for text, name in group:
                lines += indented("  ", text, how.width) + indented("      ", name, how.width)
        else:
            lines += indented("  ", texts[0], how.width)
            others = [name for name in names if name != group[0][1]]
            lines += indented(
                "      ", f"{group[0][1]}; the same, with other numbers: {_named(others)}", how.width
            )
    return lines


def _named(names: Sequence[str]) -> str:
    if len(names) <= _NAMED:
        return ", ".join(names)
    return f"{', '.join(names[: _NAMED - 1])} and {len(names) - _NAMED + 1} more tables"


def _waiting(one: Document) -> int:
    return len((one.get("watermark") or {}).get("pending_s3_files") or ())


def _statements(tables: Sequence[Document], how: Shown) -> list[str]:
    """What a load would run first, table by table."""
    ddl = {one["table"]: (one.get("plan") or {}).get("ddl") or [] for one in tables}
    if not how.dry_run or not any(ddl.values()):
        return []
    lines = ["", "Statements for the target"]
    for statements in ddl.values():
        for statement in statements:
            lines += indented("  ", statement, how.width)
    return lines


# ---------------------------------------------------------------- one table in full


def _in_full(one: Document, document: Document, how: Shown) -> list[str]:
    state, sign = _state(one, how)
    strategy = f", {one['strategy']}" if one.get("strategy") else ""
    state = state.replace("(", "(exit code ")
    lines = [f"{one['table']}: {_signed(state, sign, how)}{strategy}"]
    if how.dry_run:
        lines += [line for text in _planned(one) for line in indented("  ", text, how.width)]
        lines += [
            line
            for statement in (one.get("plan") or {}).get("ddl") or ()
            for line in _labelled("would run", statement, how)
        ]
    else:
        lines += _done(one, float(document.get("seconds") or 0), how)
    for note in how.notes.get(one["table"], ()):
        lines += _labelled("note", note, how)
    for finding in one.get("findings") or []:
        lines += _labelled("finding", f"{finding['kind']}: {finding['detail']}", how)
    return lines


def _planned(one: Document) -> list[str]:
    """What a dry run found to do."""
    plan = one.get("plan") or {}
    told = []
    if plan.get("rows"):
        slices = f" in {counted(plan['slices'], 'slice')}" if plan.get("slices") else ""
        files = f", into {counted(plan['files'], 'file')}" if plan.get("files") else ""
        told.append(f"would read about {counted(plan['rows'], 'row')}{slices}{files}")
    told += [
        f"of these, {counted(a['rows'], 'row')} again ({a['kind']})" for a in plan.get("read_again") or ()
    ]
    waiting = plan.get("pending") or {}
    if waiting.get("files"):
        told.append(
            f"would load {counted(waiting['files'], 'file')} ({counted(waiting['rows'], 'row')}) written earlier"
        )
    if plan.get("warehouse_unknown"):
        told.append(f"the warehouse could not be reached: {' '.join(str(plan['warehouse_unknown']).split())}")
    return told


def _done(one: Document, total: float, how: Shown) -> list[str]:
    extracted, reread, loaded = one["rows_extracted"], one["rows_reread"], one["rows_loaded"]
    lines: list[str] = []
    if extracted or reread:
        again = f", and {count(reread)} read again" if reread else ""
        amount = f"{counted(one['files_written'], 'file')}, {size(one['bytes_written'])}"
        speed = rate(extracted + reread, float(one.get("seconds") or total))
        amount += f", {speed}" if speed else ""
        lines += _labelled("extracted", f"{counted(extracted, 'row')}{again}, {amount}", how)
    if one.get("rows_deleted"):
        lines += _labelled("deleted", f"{counted(one['rows_deleted'], 'row')} of the target", how)
    if loaded or one["files_loaded"]:
        lines += _labelled("loaded", f"{counted(loaded, 'row')}, {counted(one['files_loaded'], 'file')}", how)
    watermark = one.get("watermark") or {}
    if watermark.get("commit") is not None:
        where = f"{position(watermark) or 'at the start'}, commit {watermark.get('commit')}"
        waiting = _waiting(one)
        where += f", {counted(waiting, 'file')} waiting" if waiting else ""
        lines += _labelled("watermark", where, how)
    before, after = one.get("lag_before"), one.get("lag_after")
    if extracted and after:
        was = f"{behind(before['seconds'], before['ids'])} → " if before else ""
        lines += _labelled("lag", was + behind(after["seconds"], after["ids"]), how)
    return lines


def _labelled(label: str, text: str, how: Shown) -> list[str]:
    return indented(f"  {label:<14}", text, how.width)
