"""Whether a source is still the one that was read: what we remember of it, and how to judge it. Pure.

Each claim keeps the server, its GTIDs, the table's id and creation time, and some rows as they were: the
witnesses. A changed id by itself refuses nothing; it only prompts a closer look at the witnesses. Rows
decide, and in doubt the answer is no. docs/decisions/0012-the-source-we-knew.md has the reasons.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import takewhile
from typing import Literal, NamedTuple

from floodmark.model.origin import Origin, Witness
from floodmark.model.position import Position, Value
from floodmark.model.table import Column, Table
from floodmark.model.times import parse_time, wall_clock

# Witnesses taken from the end of the rows just read, and kept from earlier reads.
NEWEST, EARLIER = 16, 16
# Cell checksums kept per row.
CELLS = 4
_TIMES = {"datetime", "timestamp"}
_PLAIN = _TIMES | {
    "tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "date", "time", "year",
    "char", "varchar", "enum", "set", "binary", "varbinary",
}  # fmt: skip

Cells = Mapping[str, int | None]
# In place; newer, same creation time; rewritten, identity unclear; lower cursor; nothing in common; in place, but
# without a cell that proves it; gone.
Fate = Literal["kept", "changed", "rewritten", "older", "other", "silent", "gone"]


class CurrentRow(NamedTuple):
    """A row that now has a witness's key."""

    cursor: int  # 0: the same, 1: a higher one, -1: a lower one
    cells: Cells


@dataclass(frozen=True)
class Deep:
    """Further evidence, queried only if the witnesses leave a doubt."""

    below: bool  # whether there are rows at or below the watermark
    lowest: Value | None = None  # the lowest key, if keys are auto-increment
    counter: int | None = None  # the next auto-increment value


@dataclass(frozen=True)
class Verdict:
    """What happened to the source, and the evidence."""

    kind: Literal["lives", "deeper", "set back", "replaced"]
    why: str = ""


LIVES, DEEPER = Verdict("lives"), Verdict("deeper")


# ---------------------------------------------------------------- what we keep


def mark(column: Column) -> str:
    """Labels a column's checksums: only those of the same name, type, character set and expression are compared."""
    # Integer display widths and names of character sets vary between versions.
    kind = re.sub(r"\b((?:\w*int|year))\(\d+\)", r"\1", column.type.lower())
    charset = (column.charset or "").replace("utf8mb3", "utf8")
    computed = f"|{column.generated}" if column.generated else ""
    return hashlib.sha256(f"{column.name.lower()}|{kind}|{charset}{computed}".encode()).hexdigest()[:6]


def told_by(table: Table) -> list[Column]:
    """The columns to keep checksums of: times first, because a row keeps its creation time."""
    fit = [c for c in table.columns if c.data_type in _PLAIN and c.name not in table.order]
    return sorted(fit, key=lambda c: (c.data_type not in _TIMES or c.maintained, c.maintained))[:CELLS]


def merged(before: Sequence[Witness], fates: Sequence[Fate], new: Sequence[Witness]) -> tuple[Witness, ...]:
    """The witnesses to keep: the new ones, and an even selection of the earlier ones still in place."""
    fresh = {w.position for w in new}
    still = [w for w, fate in zip(before, fates, strict=True) if fate == "kept" and w.position not in fresh]
    return (*spread(still, EARLIER), *new)


def spread(rows: Sequence[Witness], most: int) -> list[Witness]:
    """At most `most` of them, evenly spaced, including the first and the last."""
    if len(rows) <= most:
        return list(rows)
    return [rows[round(i * (len(rows) - 1) / (most - 1))] for i in range(most)]


# ---------------------------------------------------------------- how we judge


def fates(
    table: Table, witnesses: Sequence[Witness], answers: Sequence[Sequence[CurrentRow]], *, steady: bool
) -> list[Fate]:
    """The fate of each witness; `steady`: no clock went back that could explain a lower cursor."""
    times, telling = _telling(table, witnesses)
    computed = {mark(c) for c in told_by(table) if c.generated}
    by_place = table.cursor in table.key  # a row's cursor can't change without its key
    exact = not by_place and (_maintained(table) or _apart([w.position[0] for w in witnesses]))
    found: list[Fate] = []
    alike = 0  # rows whose cells agree, but without a cell that would identify the row
    for witness, rows in zip(witnesses, answers, strict=True):
        fate: Fate = "gone"
        for row in rows:
            both = {name: value for name, value in witness.cells if name in row.cells}
            same = {name for name, value in both.items() if row.cells[name] == value and value is not None}
            if len(both) < len(witness.cells):
                # The table was altered, and other columns are computed from the altered one.
                both = {name: value for name, value in both.items() if name in same or name not in computed}
            known, equal = bool(same & telling), all(row.cells[n] == v for n, v in both.items())
            if row.cursor < 0:
                one: Fate = "older" if steady else "rewritten"
            elif row.cursor > 0:
                unlike = both.keys() & telling and not known
                one = "changed" if same & times else "other" if unlike else "rewritten"
            else:
                one = "kept" if known or exact else "silent" if equal else "other"
                alike += one == "silent" and bool(same)
            fate = one if fate == "gone" or one == "kept" else fate
        found.append(fate)
    # Rows that are there speak for the source if nothing speaks against it; a few may agree by chance.
    believed = alike >= found.count("other")
    return ["kept" if fate == "silent" and believed else fate for fate in found]


def compared(column: Column, was: Value, now: Value) -> int:
    """A cursor compared with the one that was read: 0 the same, 1 higher, -1 lower."""
    if type(now) is not type(was):
        return 1
    low, high = coarsened(column, was)
    return int(now > high) - int(now < low)  # type: ignore[operator]


def coarsened(column: Column, was: Value) -> tuple[Value, Value]:
    """The range a time may fall in after ALTER reduces its digits: MariaDB truncates, MySQL rounds."""
    if not isinstance(was, str) or column.data_type not in _TIMES or column.fraction is None:
        return was, was
    tick = 10 ** (6 - column.fraction)
    try:
        moment = parse_time(was)
        over = timedelta(microseconds=moment.microsecond % tick)
        if not over:
            return was, was
        cut = moment - over
        up = cut + timedelta(microseconds=tick) if 2 * over.microseconds >= tick else cut
    except (ValueError, OverflowError):  # 0000-00-00, or the last representable time
        return was, was
    return wall_clock(cut), wall_clock(up)


def _telling(table: Table, witnesses: Sequence[Witness]) -> tuple[set[str], set[str]]:
    """The cells that identify a row: fixed times alone, and together with cells that differ in nearly every row."""
    times = {mark(c) for c in told_by(table) if c.data_type in _TIMES and not c.maintained}
    values: dict[str, list[int]] = {}
    for witness in witnesses:
        for name, value in witness.cells:
            if value is not None:
                values.setdefault(name, []).append(value)
    return times, times | {name for name, seen in values.items() if _apart(seen)}


def _apart(values: Sequence[object]) -> bool:
    return bool(values) and len(set(values)) >= 0.75 * len(values)


def judge(
    table: Table,
    before: Origin,
    now: Origin,
    witnesses: Sequence[Witness],
    fates: Sequence[Fate],
    *,
    deep: Deep | None = None,
) -> Verdict:
    """Whether the source is the same, was set back, or was replaced; `deeper`: undecided without `deep`."""
    if not witnesses:
        return LIVES
    moved, remade, sure = compare_signs(before, now)
    last = max((i for i, fate in enumerate(fates) if fate == "kept"), default=-1)
    above = fates[last + 1 :]
    # A source that is set back loses its newest changes. A lower cursor below a row still in place was
    # written on purpose.
    older = sum(1 for fate in (fates if moved else above) if fate == "older")
    if older and (_maintained(table) or moved or remade):
        return Verdict("set back", f"{older} of {len(fates)} sampled rows have gone back to an older version")
    if not before.witnesses or (sure and not moved and not remade):
        return LIVES
    if last < 0:
        verdict = _none_in_place(table, witnesses, fates, remade or moved, deep)
        return replace(verdict, why=f"{verdict.why}{_changed(before, now)}") if verdict.why else verdict
    lost = list(takewhile(lambda fate: fate in ("gone", "other", "silent"), reversed(fates)))
    said = f"the newest sampled rows are missing ({_listed(lost)}){_changed(before, now)}"
    if (moved or remade) and table.cursor in table.key and "other" in lost:
        return Verdict("replaced", said)  # other rows have taken their places and would never be read
    covered = moved and gtid_relation(before.gtids, now.gtids) == "covers"
    if covered or not (moved or remade) or lost.count("gone") < _many(table):
        return LIVES
    if deep is None:
        return DEEPER
    return LIVES if _counted_on(table, witnesses, deep.counter) else Verdict("set back", said)


def compare_signs(before: Origin, now: Origin) -> tuple[bool, bool, bool]:
    """Whether the server is a different one, whether the table has a new id, and whether that is certain."""
    moved = None not in (before.server, now.server) and before.server != now.server
    if moved:
        return True, False, False
    if None not in (before.server, before.table_id, now.server, now.table_id):
        return False, before.table_id != now.table_id, True
    # The creation time is weaker evidence: TRUNCATE does not change it.
    return False, None not in (before.created, now.created) and before.created != now.created, False


def _none_in_place(
    table: Table, witnesses: Sequence[Witness], fates: Sequence[Fate], signs: bool, deep: Deep | None
) -> Verdict:
    """The verdict if no witness is in place: either every row has changed, or it is another table."""
    gone = "gone" in fates
    if "changed" in fates or ("rewritten" in fates and not (signs and gone)):
        return LIVES
    if not signs and "other" not in fates:
        return LIVES
    if deep is None:
        return DEEPER
    # A queue: the rows that were read are gone, those present came later. Or those that are left were changed.
    number = deep.counter if "rewritten" in fates else deep.lowest
    if "other" not in fates and _counted_on(table, witnesses, number):
        return LIVES
    if deep.below or (signs and gone):
        return Verdict("replaced", f"none of the {len(fates)} sampled rows is unchanged ({_listed(fates)})")
    return LIVES  # every row present will be read


def _maintained(table: Table) -> bool:
    return table.cursor is not None and table.column(table.cursor).maintained


def _many(table: Table) -> int:
    """How many of the newest rows must be gone to rule out coincidence, when something else has changed."""
    return 2 if _counts(table) else 8 if table.key else 4


def _counts(table: Table) -> bool:
    return len(table.key) == 1 and table.column(table.key[0]).auto_increment


def _counted_on(table: Table, witnesses: Sequence[Witness], number: Value | None) -> bool:
    """Whether auto-increment keys have continued from where they were."""
    if not _counts(table) or not isinstance(number, int):
        return False
    at = table.order.index(table.key[0])
    return all(isinstance(key := w.position[at], int) and key < number for w in witnesses)


def _listed(fates: Sequence[Fate]) -> str:
    words: dict[Fate, str] = {
        "gone": "gone", "other": "with other values", "rewritten": "rewritten", "silent": "not comparable",
    }  # fmt: skip
    return ", ".join(f"{fates.count(fate)} {word}" for fate, word in words.items() if fate in fates)


def _changed(before: Origin, now: Origin) -> str:
    moved, remade, sure = compare_signs(before, now)
    if moved:
        return ", and the server is a different one"
    if not remade:
        return ""
    return (
        ", and the table was rebuilt or recreated"
        if sure
        else ", and the table's time of creation has changed"
    )


# ---------------------------------------------------------------- GTIDs

Relation = Literal["covers", "lacks", "unrelated"]


def gtid_relation(before: str | None, now: str | None) -> Relation:
    """Whether a server has executed everything that `before` lists, as far as the two are comparable."""
    if not before or not now:
        return "unrelated"
    if re.search(r"[0-9a-f]{8}-[0-9a-f]{4}-", before.lower()):
        return _sets(_parsed(before), _parsed(now))
    return _numbers(_last(before), _last(now))


def without(gtids: str, source: str) -> str:
    """GTIDs without those of one source: a UUID, or MariaDB's server id."""
    parts = "".join(gtids.split()).split(",")
    named = re.compile(rf"{re.escape(source)}:|\d+-{re.escape(source)}-\d+\Z", re.IGNORECASE)
    return ",".join(part for part in parts if not named.match(part))


def _sets(before: dict[str, list[tuple[int, int]]], now: dict[str, list[tuple[int, int]]]) -> Relation:
    if not before.keys() & now.keys():
        return "unrelated"  # binary logs were restarted, or rows were copied without them
    for source, ranges in before.items():
        there = now.get(source, [])
        if not all(any(low <= first and last <= high for low, high in there) for first, last in ranges):
            return "lacks"
    return "covers"


def _parsed(gtids: str) -> dict[str, list[tuple[int, int]]]:
    """The ranges of a GTID set by source and, if present, tag."""
    found: dict[str, list[tuple[int, int]]] = {}
    for part in "".join(gtids.lower().split()).split(","):
        source, *rest = part.split(":")
        name = source
        for piece in rest:
            first, _, last = piece.partition("-")
            if first.isdigit():
                found.setdefault(name, []).append((int(first), int(last or first)))
            else:
                name = f"{source}:{piece}"
    return found


def _numbers(before: dict[tuple[int, int], int], now: dict[tuple[int, int], int]) -> Relation:
    """The same for MariaDB: after a failover a domain's numbers continue, so only a server's own show gaps."""
    highest: dict[int, int] = {}
    for (domain, _), number in now.items():
        highest[domain] = max(number, highest.get(domain, 0))
    if not any(domain in highest for domain, _ in before):
        return "unrelated"
    # A server that is no longer listed can only be checked by its domain.
    there = all(now.get(one, highest.get(one[0], -1)) >= number for one, number in before.items())
    return "covers" if there else "lacks"


def _last(position: str) -> dict[tuple[int, int], int]:
    """MariaDB's last sequence number for each domain and server."""
    found: dict[tuple[int, int], int] = {}
    for part in position.split(","):
        numbers = part.strip().split("-")
        if len(numbers) == 3 and all(n.isdigit() for n in numbers):
            domain, server, number = map(int, numbers)
            found[domain, server] = max(number, found.get((domain, server), 0))
    return found


def in_order(table: Table, rows: Sequence[tuple[Position, Cells]]) -> tuple[Witness, ...]:
    """Rows as witnesses, highest cursors last; rows without a complete position are left out."""
    whole = [Witness(place, tuple(cells.items())) for place, cells in rows if len(place) == len(table.order)]
    if table.cursor is None or table.column(table.cursor).data_type == "decimal":
        return tuple(whole)
    unique = {w.position: w for w in whole}
    return tuple(sorted(unique.values(), key=lambda w: w.position[0]))
