"""What a sync did or would do, and each cycle of a resident one, for people.

Several tables get one line each, and below them what is worth knowing: each note once, with the tables that it concerns.
A single table, or `-v`, is printed in full. If lines are too wide for the terminal, each table gets a few short ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from floodmark.cli.output.document import behind, fitted, indented, named, position
from floodmark.model.text import (
    clock,
    count,
    counted,
    data_time,
    duration,
    rate,
    shortened,
    size,
)

if TYPE_CHECKING:
    from floodmark.model.run import TableReport
    from floodmark.sync.resident import Cycle

_INTERRUPTED = (130, 143)
_VALUES = re.compile(r"[0-9][0-9,.:+-]*")
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
    unfinished: Sequence[str] = ()  # tables that an interrupted run has not begun


def sync_lines(run: str, tables: Sequence[TableReport], seconds: float, how: Shown) -> list[str]:
    """What a sync did, for people; the errors themselves go to stderr."""
    if how.verbose or len(tables) == 1:
        lines = [line for one in tables for line in _in_full(one, seconds, how)]
    else:
        lines = [*_listed(tables, how), *_statements(tables, how), *_worth_knowing(tables, how)]
        lines += [""] if lines and len(lines) > len(tables) + 1 else []
    if how.unfinished:
        lines += indented("", f"Not started: {named(how.unfinished)}", how.width)
    return [*lines, *indented("", _last_line(run, tables, seconds, how), how.width)]


def moved(tables: Sequence[TableReport]) -> list[TableReport]:
    """The tables for which a cycle did something."""
    return [table for table in tables if not table.idle and table.error is None]


def cycle_line(cycle: Cycle) -> str:
    """One cycle of a resident sync: `2025-08-14 16:45:33 UTC  shop.orders: 100 rows extracted, 100 loaded, 1.2 s`."""
    tables = cycle.report.tables if cycle.report else ()
    done = moved(tables)
    said = f"up to date, {counted(sum(table.idle for table in tables), 'table')}"
    if done:
        names = done[0].table if len(done) == 1 else counted(len(done), "table")
        extracted = sum(table.rows_extracted + table.rows_reread for table in done)
        loaded = sum(table.rows_loaded for table in done)
        said = f"{names}: {counted(extracted, 'row')} extracted, {count(loaded)} loaded"
    return f"{clock(cycle.at)}  {said}, {duration(cycle.seconds)}"


# ---------------------------------------------------------------- how it ended


def _last_line(run: str, tables: Sequence[TableReport], seconds: float, how: Shown) -> str:
    interrupted = sum(one.exit_code in _INTERRUPTED for one in tables)
    failed, stopped = sum(not one.ok for one in tables) - interrupted, interrupted + len(how.unfinished)
    outcome = [f"{counted(failed, 'table')} failed"] if failed else []
    outcome += [f"{counted(stopped, 'table')} not finished"] if stopped else []
    if not outcome:
        outcome = ["dry run, nothing written" if how.dry_run else "done"]
    number = counted(len(tables) + len(how.unfinished), "table")
    return f"Run {run}: {number}, {', '.join(outcome)}, {duration(seconds)}"


def _state(one: TableReport, how: Shown) -> tuple[str, str]:
    """In a word or two, and its symbol."""
    if one.exit_code in _INTERRUPTED:
        return "interrupted", "stopped"
    if not one.ok:
        return ("differs" if one.exit_code == 7 else "failed") + f" ({one.exit_code})", "bad"
    if how.dry_run:
        return ("nothing to do", "idle") if _nothing_planned(one) else ("to do", "todo")
    if one.rows_extracted or one.rows_reread or one.rows_loaded or one.rows_deleted:
        return "ok", "ok"
    return ("held back", "stopped") if one.held_back_by else ("up to date", "idle")


def _signed(text: str, sign: str, how: Shown) -> str:
    """The text with its symbol, coloured; or plain, if that is wanted."""
    if not how.paint:
        return text
    symbol, colour = _SIGNS[sign]
    return f"\x1b[{colour}m{symbol} {text}\x1b[0m" if colour else f"{symbol} {text}"


def _nothing_planned(one: TableReport) -> bool:
    plan = one.plan
    return plan is None or not (plan.rows or (plan.pending and plan.pending.files) or plan.ddl)


# ---------------------------------------------------------------- one line for each table


def _listed(tables: Sequence[TableReport], how: Shown) -> list[str]:
    head = ("Table", "Rows", "Slices", "Files", "Waiting", "State") if how.dry_run else (
        "Table", "Rows", "Files", "Time", "Watermark", "Lag", "State")  # fmt: skip
    states = [_state(one, how) for one in tables]
    body = [
        (
            *(_planned_cells(one) if how.dry_run else _cells(one)),
            f"{_SIGNS[sign][0]} {state}" if how.paint else state,
        )
        for one, (state, sign) in zip(tables, states, strict=True)
    ]

    def colour(row: int, column: int, cell: str) -> str:
        return _signed(*states[row - 1], how) if how.paint and row and column == len(head) - 1 else cell

    lines = fitted([head, *body], how.width, {1, 2, 3, 4} if how.dry_run else {1, 2, 3}, paint=colour)
    return lines or [line for one in tables for line in _card(one, how)]


def _cells(one: TableReport) -> tuple[str, ...]:
    mark = one.watermark
    return (
        one.table,
        _rows(one) or "–",
        count(one.files_written or one.files_loaded) if _rows(one) else "–",
        duration(one.seconds),
        (data_time(mark.last_mysql_data_timestamp) or position(mark) or "–") if mark else "–",
        behind(one.lag_after) if one.lag_after else "–",
    )


def _rows(one: TableReport) -> str:
    extracted, again = one.rows_extracted, one.rows_reread
    if extracted or again:
        return count(extracted) + (f" +{count(again)} again" if again else "")
    return count(one.rows_loaded) if one.rows_loaded else ""


def _rows_in_words(one: TableReport) -> str:
    extracted, again = one.rows_extracted, one.rows_reread
    if not again:
        return counted(extracted or one.rows_loaded, "row")
    return (
        f"{counted(extracted, 'row')}, {count(again)} again"
        if extracted
        else f"{counted(again, 'row')} again"
    )


def _planned_cells(one: TableReport) -> tuple[str, ...]:
    if (plan := one.plan) is None:
        return (one.table, "0", "0", "0", counted(0, "file"))
    waiting = counted(plan.pending.files if plan.pending else 0, "file")
    files = plan.files or 0 if plan.rows else 0
    counts = (count(number or 0) for number in (plan.rows, plan.slices, files))
    return (one.table, *counts, "?" if plan.warehouse_unknown else waiting)


def _card(one: TableReport, how: Shown) -> list[str]:
    """A table on a narrow terminal."""
    width = how.width or 80
    state, sign = _state(one, how)
    coloured = _signed(state, sign, how)
    state = f"{_SIGNS[sign][0]} {state}" if how.paint else state
    lines = [shortened(one.table, width) or one.table]
    if how.dry_run:
        told = [state, *_planned(one)]
    else:
        lag, where = one.lag_after, position(one.watermark) if one.watermark else None
        parts = [state]
        if _rows(one):
            parts.append(_rows_in_words(one))
            parts.append(counted(one.files_written or one.files_loaded, "file"))
        parts.append(duration(one.seconds))
        told = [", ".join(parts)]
        told += [f"up to {where}" + (f", {behind(lag)} behind" if lag else "")] if where else []
    body = [line for text in told for line in indented("  ", text, how.width)]
    body[0] = body[0].replace(state, coloured, 1)
    return [*lines, *body]


# ---------------------------------------------------------------- what is worth knowing


def _worth_knowing(tables: Sequence[TableReport], how: Shown) -> list[str]:
    """Notes, files that wait and findings, each once, with the tables that they concern."""
    notes = [(text, one.table) for one in tables for text in how.notes.get(one.table, ())]
    waiting = [] if how.dry_run else [one for one in tables if _waiting(one)]
    for one in waiting:
        notes.append((f"{counted(_waiting(one), 'file')} waiting to be loaded", one.table))
    findings = [(f"{found.kind}: {found.detail}", one.table) for one in tables for found in one.findings]
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
            lines += indented("      ", named(names), how.width)
        elif len(names) <= 2:
            for text, name in group:
                lines += indented("  ", text, how.width) + indented("      ", name, how.width)
        else:
            lines += indented("  ", texts[0], how.width)
            others = [name for name in names if name != group[0][1]]
            lines += indented(
                "      ", f"{group[0][1]}; the same, with other numbers: {named(others)}", how.width
            )
    return lines


def _waiting(one: TableReport) -> int:
    return len(one.watermark.pending_s3_files) if one.watermark else 0


def _statements(tables: Sequence[TableReport], how: Shown) -> list[str]:
    """What a load would run first, table by table."""
    ddl = [statement for one in tables if one.plan for statement in one.plan.ddl]
    if not how.dry_run or not ddl:
        return []
    lines = [line for statement in ddl for line in indented("  ", statement, how.width)]
    return ["", "Statements for the target", *lines]


# ---------------------------------------------------------------- one table in full


def _in_full(one: TableReport, seconds: float, how: Shown) -> list[str]:
    state, sign = _state(one, how)
    strategy = f", {one.strategy}" if one.strategy else ""
    state = state.replace("(", "(exit code ")
    lines = [f"{one.table}: {_signed(state, sign, how)}{strategy}"]
    if how.dry_run:
        lines += [line for text in _planned(one) for line in indented("  ", text, how.width)]
        labelled = [("would run", statement) for statement in (one.plan.ddl if one.plan else ())]
    else:
        labelled = _done(one, seconds)
    labelled += [("note", note) for note in how.notes.get(one.table, ())]
    labelled += [("finding", f"{finding.kind}: {finding.detail}") for finding in one.findings]
    return lines + [line for label, text in labelled for line in indented(f"  {label:<14}", text, how.width)]


def _planned(one: TableReport) -> list[str]:
    """What a dry run found to do."""
    if (plan := one.plan) is None:
        return []
    told = []
    if plan.rows:
        slices = f" in {counted(plan.slices, 'slice')}" if plan.slices else ""
        files = f", into {counted(plan.files, 'file')}" if plan.files else ""
        told.append(f"would read about {counted(plan.rows, 'row')}{slices}{files}")
    told += [f"of these, {counted(again.rows, 'row')} again ({again.kind})" for again in plan.read_again]
    if plan.pending and plan.pending.files:
        rows = counted(plan.pending.rows, "row")
        told.append(f"would load {counted(plan.pending.files, 'file')} ({rows}) written earlier")
    if plan.warehouse_unknown:
        told.append(f"the warehouse could not be reached: {' '.join(plan.warehouse_unknown.split())}")
    return told


def _done(one: TableReport, total: float) -> list[tuple[str, str]]:
    """What was done, with a label for each step."""
    extracted, reread, mark = one.rows_extracted, one.rows_reread, one.watermark
    done = []
    if extracted or reread:
        again = f", and {count(reread)} read again" if reread else ""
        amount = f"{counted(one.files_written, 'file')}, {size(one.bytes_written)}"
        speed = rate(extracted + reread, one.seconds or total)
        amount += f", {speed}" if speed else ""
        done.append(("extracted", f"{counted(extracted, 'row')}{again}, {amount}"))
    if one.rows_deleted:
        done.append(("deleted", f"{counted(one.rows_deleted, 'row')} of the target"))
    if one.rows_loaded or one.files_loaded:
        done.append(("loaded", f"{counted(one.rows_loaded, 'row')}, {counted(one.files_loaded, 'file')}"))
    if mark and mark.commit is not None:
        waiting = f", {counted(_waiting(one), 'file')} waiting" if _waiting(one) else ""
        done.append(("watermark", f"{position(mark) or 'at the start'}, commit {mark.commit}{waiting}"))
    if extracted and one.lag_after:
        was = f"{behind(one.lag_before)} → " if one.lag_before else ""
        done.append(("lag", was + behind(one.lag_after)))
    return done
