"""The picture of a run on a terminal, from values: running tables, a bar for each stage, and a line for all. Pure.

Colour never carries meaning alone. Every number is shown from 40 columns on; more room gives longer numbers, not more.
Names are shortened from the left; the table's own name, after the schema, stays whole, on lines of its own if need be.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from floodmark.model.run import Step, Wait
from floodmark.model.tally import TELLING, said_step
from floodmark.model.text import cells, count, counted, shortened, span
from floodmark.model.warehouse import WAREHOUSES

# Below the first width, a name gets a line of its own; from the second on, numbers are written out.
_BESIDE = 76
_WRITTEN_OUT = 120
_PATIENCE = 1.0  # seconds after which a wait is worth a line
_ALIKE = 3  # tables that wait for the same thing share one line
_STAGE = 7  # `extract`
_LONGEST_BAR = 30
_DOING = {"check": "files", "copy": "copy", "merge": "merge", "insert": "insert", "commit": "commit"}

Piece = tuple[str, str]  # text and its style: "", "name", "bar", "rest", "dim", "bad"
Line = tuple[Piece, ...]


@dataclass(frozen=True)
class Stage:
    """How far one stage of a table has got."""

    name: str
    rows: int
    expected: int | None
    seconds: float
    over: bool = False
    unit: str = "row"
    step: Step | None = None  # what a load is doing
    stepped: float = 0.0  # for so many seconds


@dataclass(frozen=True)
class Running:
    """A running table."""

    name: str
    stages: tuple[Stage, ...] = ()
    waits: Wait | None = None
    waited: float = 0.0


@dataclass(frozen=True)
class Picture:
    """The whole run at one moment."""

    running: tuple[Running, ...]
    tables: int = 1  # of the run
    done: int = 0
    failed: int = 0  # of those that are done
    seconds: float = 0.0
    whole: tuple[Stage, ...] = ()  # the stages of all tables together
    waits: Wait | None = None  # of the run itself
    waited: float = 0.0
    stopping: bool = False


def frame(picture: Picture, width: int, height: int) -> list[Line]:
    """The lines that are shown at one moment, none of them wider than the terminal, and no more than fit."""
    names = _name_room(picture.running, width)
    last = _last(picture, width, names)
    room = max(1, height - len(last) - 2)  # one for `more`, one for the cursor
    lines: list[Line] = []
    running, alike = _apart(picture.running)
    for wait, waiting in alike:
        told = f"{counted(len(waiting), 'table')} {said_wait(wait, max(one.waited for one in waiting))}"
        lines += [((piece, "dim"),) for piece in _wrapped(told, width)]
    for number, table in enumerate(running):
        block = _table(table, width, names)
        if len(lines) + len(block) > room:
            more = len(running) - number
            lines.append(((f"… and {counted(more, 'more table')} running"[:width], "dim"),))
            break
        lines += block
    return [*lines, *last]


def _apart(running: Sequence[Running]) -> tuple[list[Running], list[tuple[Wait, list[Running]]]]:
    """The tables that get lines of their own, and those of which several only wait for the same thing."""
    waiting: dict[Wait, list[Running]] = {}
    for table in running:
        begun = any(stage.name != "plan" for stage in table.stages)
        if table.waits is not None and table.waited >= _PATIENCE and not begun:
            waiting.setdefault(table.waits, []).append(table)
    alike = [(wait, tables) for wait, tables in waiting.items() if len(tables) >= _ALIKE]
    grouped = [table for _, tables in alike for table in tables]
    return [table for table in running if table not in grouped], alike


def _answer(kind: str | None) -> str:
    found = WAREHOUSES.get(kind or "")
    return f"{found.can.label} to answer{found.slow}" if found else "the warehouse to answer"


def said_wait(on: Wait, seconds: float) -> str:
    """`waiting 12 s for the transaction of connection 12 (app@web1), open for 40 s`."""
    return (
        f"waiting {span(seconds)} for "
        + {
            "settling": "fresh rows to settle",
            "spark": "Spark to start",
            "open_work": f"the {on.who}" if on.who else "an open transaction",
            "turn": "its turn to load",
            "warehouse": _answer(on.who),
            "lock": f"a lock in the warehouse{f', held by {on.who}' if on.who else ''}",
        }[on.kind]
    )


def compact(number: int, digits: int = 3) -> str:
    """1250000 as `1.25M`, or `1.2M` with two digits."""
    value = float(number)
    for unit in ("", "k", "M", "G", "T"):
        if value < 999.5 or unit == "T":
            whole = len(str(int(value)))
            return f"{value:.{max(0, digits - whole)}f}{unit}" if unit else str(number)
        value /= 1000
    raise AssertionError


def _name_room(running: Sequence[Running], width: int) -> int:
    """The width of the names next to the numbers; 0: they have lines of their own."""
    if width < _BESIDE:
        return 0
    most = max(12, width - (90 if width >= _WRITTEN_OUT else 57))
    return min(most, max(len("all tables"), *(cells(table.name) for table in running), 0))


def _table(table: Running, width: int, names: int) -> list[Line]:
    beside = shortened(table.name, names) if names else None
    lines: list[Line] = []
    if beside is None:
        whole = shortened(table.name, width)
        own = table.name.partition(".")[2] or table.name
        pieces = [whole] if whole is not None else _folded(own, width)
        lines = [((piece, "name"),) for piece in pieces]
    indent = f"{beside or ''}{' ' * (names - cells(beside or ''))}  " if names else " "
    waits = table.waits if table.waited >= _PATIENCE else None
    stages = [stage for stage in table.stages if stage.name != "plan"]
    bodies: list[Line] = [_stage(stage, width - cells(indent), width) for stage in stages]
    if waits is not None:
        told = said_wait(waits, table.waited)
        bodies += [((piece, "dim"),) for piece in _wrapped(told, width - cells(indent))]
    elif not stages:
        bodies.append((("planning" if any(not stage.over for stage in table.stages) else "starting", "dim"),))
    for number, body in enumerate(bodies):
        first = number == 0 and beside is not None
        lines.append(((indent if first else " " * cells(indent), "name" if first else ""), *body))
    return lines


def _stage(stage: Stage, room: int, width: int) -> Line:
    """One stage: its name, a bar, percent, rows of how many, rows a second, time left."""
    total = stage.expected if stage.expected and stage.rows <= stage.expected else None
    share = 1.0 if stage.over else stage.rows / total if total else None
    speed = stage.rows / stage.seconds if stage.seconds > 0 else 0.0
    left = stage.seconds * (1 / share - 1) if share and share >= TELLING and not stage.over else None
    # Before the first row a percentage would not move: show what is being done, and for how long.
    percent = "    " if share is None or not (stage.rows or stage.over) else f"{int(share * 100):>3}%"
    if width >= _WRITTEN_OUT:
        of = f" of {count(total)}" if total and not stage.over else ""
        rows = f"{count(stage.rows)}{of} {stage.unit}s"
        rate = f"{speed:,.0f} {stage.unit}s/s" if stage.rows else ""
        most = 70
        end = _end(stage, "" if left is None else f"{span(left)} left", written_out=True)
        numbers = f"{percent}  {rows:<32}  {'' if stage.step else f'{rate:>14}  '}{end}"
    else:
        digits, wide, fast, word, most = (3, 11, 7, " left", 36) if width >= _BESIDE else (2, 9, 6, "", 26)
        of = f"/{compact(total, digits)}" if total and not stage.over else ""
        rows = compact(stage.rows, digits) + of
        rate = f"{compact(int(speed), digits)}/s" if stage.rows else ""
        end = _end(stage, "" if left is None else _brief(left) + word)
        numbers = f"{percent} {rows:<{wide}} {'' if stage.step else f'{rate:>{fast}} '}{end}"
    free = room - _STAGE - 2 - max(len(numbers), most)  # so that bars don't change their length
    bar = _bar(share, min(_LONGEST_BAR, free))
    return ((f"{stage.name:<{_STAGE}} ", ""), *bar, (f" {numbers}".rstrip() if bar else numbers.rstrip(), ""))


def _end(stage: Stage, left: str, written_out: bool = False) -> str:
    """The end of a stage's line: that it is over, what a load is doing, the time left, or else the time so far."""
    if stage.over:
        return "done"
    if stage.step is None:
        return left if stage.rows else span(stage.seconds)
    if written_out:
        return f"{said_step(stage.step)}, {span(stage.stepped)}"
    moving = f"{stage.step.done}/{stage.step.total}" if stage.step.done else _brief(stage.stepped)
    return f"{_DOING[stage.step.kind]} {moving}"


def _bar(share: float | None, length: int) -> list[Piece]:
    if length < 3:
        return []
    full = int((share or 0.0) * length)
    return [("━" * full, "bar"), ("─" * (length - full), "rest")]


def _last(picture: Picture, width: int, names: int) -> list[Line]:
    """For several tables, their total; how many are done, and the time."""
    lines: list[Line] = []
    if picture.waits is not None and picture.waited >= _PATIENCE:
        told = said_wait(picture.waits, picture.waited)
        lines += [((piece, "dim"),) for piece in _wrapped(told, width)]
    if picture.tables > 1 and picture.whole:
        lines += _table(Running("all tables", picture.whole), width, names)
    going = picture.tables - picture.done - len(picture.running)
    parts = [f"{picture.done} of {picture.tables} tables done"] if picture.tables > 1 else []
    if picture.failed:
        parts.append(f"{picture.failed} failed")
    if picture.tables > 1 and picture.running:
        parts.append(f"{len(picture.running)} running")
    if going > 0 and picture.tables > 1:
        parts.append(f"{going} to go")
    parts.append(span(picture.seconds))
    if picture.stopping:
        moves = any(stage.name in ("extract", "load") for table in picture.running for stage in table.stages)
        parts = ["stopping; committed rows are kept" if moves else "stopping", *parts]
    told = ", ".join(parts)
    lines += [
        ((piece, "bad" if picture.failed or picture.stopping else "dim"),) for piece in _wrapped(told, width)
    ]
    return lines


def _brief(seconds: float) -> str:
    """Time left in three columns: `12s`, `4m`, `2h`, `3d`."""
    for size, unit in ((1, "s"), (60, "m"), (3600, "h"), (86400, "d")):
        if seconds / size < 99.5 or unit == "d":
            return f"{min(99, round(seconds / size))}{unit}"
    raise AssertionError


def _folded(text: str, width: int) -> list[str]:
    """A name that is wider than the terminal, on as many lines as it takes."""
    lines = [""]
    for letter in text:
        if cells(lines[-1] + letter) > width:
            lines.append("")
        lines[-1] += letter
    return lines


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False)
