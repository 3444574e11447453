"""A table that was altered is the same, one that was replaced is not, whatever their columns. Needs no service."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import replace

import pytest

from floodmark.model.origin import Origin, Witness
from floodmark.model.table import Column, Table
from floodmark.model.witnesses import CurrentRow, Deep, Verdict, fates, judge, mark, told_by
from tests.support.described import changed, described

ID = Column("id", "int", "int", False, extra="auto_increment")
# Set by the application: only its value can show that a row is the same.
AT = Column("update_at", "datetime", "datetime", False)
NOTE = Column("note", "varchar(20)", "varchar", charset="ascii")
PRICE = Column("price", "decimal(8,2)", "decimal")
WORD = Column("word", "varchar(20)", "varchar", charset="latin1")
BYTES = Column("b", "binary(4)", "binary")
STATUS = Column("status", "int", "int")
COMPUTED = Column("g", "varchar(20)", "varchar", charset="ascii", generated="concat('p', price)")

Cell = str | None
Rows = dict[int, dict[str, Cell]]
# By name: the columns, how many rows there are, and the cells of row i.
SHAPES: dict[str, tuple[tuple[Column, ...], int, Callable[[int], tuple[Cell, ...]]]] = {
    "one column": ((NOTE,), 32, lambda i: (f"n{i}",)),
    "a few NULLs": ((PRICE, NOTE), 32, lambda i: (f"{i}.50", None if i in (3, 30) else f"n{i}")),
    "a NULL at the end": ((PRICE, NOTE), 32, lambda i: (f"{i}.50", None if i == 32 else f"n{i}")),
    "mostly NULLs": ((PRICE, NOTE), 32, lambda i: (f"{i}.50", f"n{i}" if i % 4 == 0 else None)),
    "computed": ((PRICE, COMPUTED), 32, lambda i: (f"{i}.50", f"p{i}.50")),
    "only computed": ((COMPUTED,), 32, lambda i: (f"p{i}.50",)),
    "texts and bytes": ((WORD, BYTES), 32, lambda i: (f"ä{i}", f"{i:04}")),
    "bytes and NULLs": ((BYTES, NOTE), 32, lambda i: (f"{i:04}", None if i == 7 else f"n{i}")),
    "status": ((STATUS,), 32, lambda i: (str(i % 3),)),
    "three rows": ((NOTE, PRICE), 3, lambda i: (None if i == 2 else f"n{i}", "1.00")),
    "two rows": ((NOTE,), 2, lambda i: (f"n{i}",)),
    "one row": ((NOTE,), 1, lambda i: (f"n{i}",)),
}
NOTHING_TO_COMPARE: dict[str, tuple[tuple[Column, ...], int, Callable[[int], tuple[Cell, ...]]]] = {
    "only keys": ((), 32, lambda _: ()),
    "NULLs": ((NOTE,), 32, lambda _: (None,)),
    "one NULL": ((NOTE,), 1, lambda _: (None,)),
}
BEFORE = Origin("uuid-1", None, 7, "2026-01-01 00:00:00")
REBUILT = replace(BEFORE, table_id=8, created="2026-02-01 00:00:00")
ELSEWHERE = replace(BEFORE, server="uuid-2")
UNSEEN = replace(BEFORE, table_id=None, created="2026-02-01 00:00:00")


def made(shape: str, cursor: str) -> tuple[Table, Rows]:
    columns, count, cells = {**SHAPES, **NOTHING_TO_COMPARE}[shape]
    timed = cursor != "id"
    names = [c.name for c in columns]
    table = described(
        "shop", "t", (*([AT] if timed else []), ID, *columns), ("id",), cursor,
        "upsert" if timed else "append", "t",
    )  # fmt: skip
    return table, {i: dict(zip(names, cells(i), strict=True)) for i in range(1, count + 1)}


def cells_of(table: Table, row: dict[str, Cell]) -> dict[str, int | None]:
    found = {}
    for column in told_by(table):
        cell = row.get(column.name)
        found[mark(column)] = None if cell is None else zlib.crc32(cell.encode())
    return found


def verdict(before: tuple[Table, Rows], after: tuple[Table, Rows], now: Origin) -> Verdict:
    """What is concluded if the rows were read, and are now found so. All rows share one time."""
    (old, rows), (table, there) = before, after
    moment = () if old.cursor == "id" else ("2026-01-01 00:00:00.000000",)
    asked = [Witness((*moment, i), tuple(cells_of(old, row).items())) for i, row in rows.items()]
    answers = [[CurrentRow(0, cells_of(table, there[i]))] if i in there else [] for i in rows]
    found = fates(table, asked, answers, steady=True)
    deep = Deep(below=True, lowest=min(there, default=None), counter=max(there, default=0) + 1)
    return judge(table, replace(BEFORE, witnesses=tuple(asked)), now, asked, found, deep=deep)


def wider(column: Column, cell: Cell) -> tuple[Column, Cell]:
    """The column with another type, and what that makes of a cell."""
    if column.data_type == "decimal":
        return replace(column, type="decimal(10,4)"), cell and f"{cell}00"
    if column.data_type == "binary":
        return replace(column, type="binary(8)"), cell and cell + "\0" * 4
    if column.charset == "latin1":
        return replace(column, charset="utf8mb4"), cell
    return replace(column, type="bigint" if column is STATUS else "varchar(40)"), cell


def altered(table: Table, rows: Rows, *names: str) -> tuple[Table, Rows]:
    """Some columns with another type; what is computed from them follows."""
    there = {i: dict(row) for i, row in rows.items()}
    columns = []
    for column in table.columns:
        if column.name in names and not column.generated:
            for row in there.values():
                row[column.name] = wider(column, row[column.name])[1]
            column = wider(column, None)[0]
        columns.append(column)
    if "price" in names:
        for row in there.values():
            if "g" in row:
                row["g"] = f"p{row['price']}"
    return changed(table, columns=tuple(columns)), there


def named(table: Table) -> list[str]:
    """The columns beside the key and the cursor."""
    return [c.name for c in table.columns if c.name not in table.order]


def recomputed(table: Table, rows: Rows) -> tuple[Table, Rows]:
    """Another expression behind the generated column."""
    columns = tuple(replace(c, generated="concat('q', price)") if c.generated else c for c in table.columns)
    there = {i: {n: "q" + (v or "") if n == "g" else v for n, v in row.items()} for i, row in rows.items()}
    return changed(table, columns=columns), there


ALTERS: dict[str, Callable[[Table, Rows], tuple[Table, Rows]]] = {
    "rebuilt": lambda table, rows: (table, rows),
    "first column": lambda table, rows: altered(table, rows, *named(table)[:1]),
    "last column": lambda table, rows: altered(table, rows, *named(table)[-1:]),
    "all columns": lambda table, rows: altered(table, rows, *named(table)),
    "another expression": recomputed,
    "another column": lambda table, rows: (changed(table, columns=(*table.columns, STATUS)), rows),
    "a column less": lambda table, rows: (
        changed(table, columns=tuple(c for c in table.columns if c.name != "note")), rows,
    ),
    "a purge": lambda table, rows: (table, {i: row for i, row in rows.items() if 2 * i > len(rows)}),
}  # fmt: skip


@pytest.mark.parametrize("now", [REBUILT, UNSEEN, ELSEWHERE], ids=["rebuilt", "without PROCESS", "moved"])
@pytest.mark.parametrize("cursor", ["id", "update_at"])
@pytest.mark.parametrize("alter", ALTERS)
@pytest.mark.parametrize("shape", [*SHAPES, *NOTHING_TO_COMPARE])
def test_a_table_lives_through_any_alter(shape: str, alter: str, cursor: str, now: Origin) -> None:
    before = made(shape, cursor)
    found = verdict(before, ALTERS[alter](*before), now)
    assert found.kind == "lives", found.why


def others(rows: Rows, since: int = 1, upto: int | None = None) -> Rows:
    """The same ids with other values from one on; what was NULL still is."""
    there = {i: row for i, row in rows.items() if i < since}
    for i, row in rows.items():
        if i >= since:
            there[i] = {n: None if v is None else v.translate(OTHER) for n, v in row.items()}
    return {i: row for i, row in there.items() if upto is None or i <= upto}


OTHER = str.maketrans("0123456789", "7894561230")
REPLACEMENTS: dict[str, Callable[[Table, Rows], tuple[Table, Rows]]] = {
    "refilled": lambda table, rows: (table, others(rows)),
    "refilled with fewer": lambda table, rows: (table, others(rows, upto=max(1, len(rows) - 3))),
    "refilled and rearranged": lambda table, rows: (
        changed(table, columns=(*reversed(table.columns), replace(STATUS, name="more"))), others(rows),
    ),
    "emptied": lambda table, _: (table, {}),
}  # fmt: skip


@pytest.mark.parametrize("now", [REBUILT, ELSEWHERE], ids=["recreated", "another server"])
@pytest.mark.parametrize("change", REPLACEMENTS)
@pytest.mark.parametrize(
    # The only row at its very moment would be the same row.
    ("shape", "cursor"),
    [(s, c) for s in SHAPES for c in ("id", "update_at") if (s, c) != ("one row", "update_at")],
)
def test_a_table_that_was_replaced_is_refused(shape: str, change: str, cursor: str, now: Origin) -> None:
    before = made(shape, cursor)
    found = verdict(before, REPLACEMENTS[change](*before), now)
    assert found.kind == "replaced" and "none of the" in found.why
    seen = "the table was rebuilt or recreated" if now is REBUILT else "the server is a different one"
    assert found.why.endswith(f", and {seen}")


@pytest.mark.parametrize("shape", SHAPES)
def test_a_backup_that_was_restored_and_written_to_is_refused(shape: str) -> None:
    """Read by id: the newest ids stand for other rows, also if one of those has nothing to compare."""
    table, rows = made(shape, "id")
    found = verdict((table, rows), (table, others(rows, since=len(rows) // 2 + 1)), REBUILT)
    assert found.kind == "replaced"


def test_only_what_was_seen_is_told() -> None:
    before = made("one column", "id")
    refilled = (before[0], others(before[1]))
    assert verdict(before, refilled, UNSEEN).why.endswith("and the table's time of creation has changed")
    unknown = replace(BEFORE, table_id=None)
    assert verdict(before, refilled, unknown).why == (
        "none of the 32 sampled rows is unchanged (32 with other values)"
    )
