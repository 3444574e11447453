"""The result of `verify` for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from floodmark.cli.output.document import indented
from floodmark.model.text import count, counted, duration

if TYPE_CHECKING:
    from floodmark.model.results import VerifiedTable


def verify_lines(
    tables: Sequence[VerifiedTable], repair: bool = False, width: int | None = None
) -> list[str]:
    """The result of each table, and the next step where there are differences; `repair`: that was it."""
    return [line for table in tables for line in _table(table, repair, width)]


def _table(table: VerifiedTable, repair: bool, width: int | None) -> list[str]:
    if table.error:
        return [f"{table.table}: not compared"]
    seconds = duration(table.seconds)
    counts = {"missing": table.missing, "extra": table.extra, "different": table.different}
    kinds = [f"{count(rows)} {kind}" for kind, rows in counts.items() if rows]
    if table.ok:
        snapshot = table.compared_with == "snapshot"
        rows = (table.rows_warehouse if snapshot else table.rows_source) or 0
        agree = f"agree{'s' * (rows == 1)}{' with the snapshot' * snapshot}"
        first = f"{table.table}: {counted(rows, 'row')} {agree}, {seconds}"
    else:
        source, warehouse = count(table.rows_source or 0), count(table.rows_warehouse or 0)
        where = f"{source} at the source, {warehouse} in the warehouse"
        first = f"{table.table}: {', '.join(kinds) or 'different'}; rows: {where}, {seconds}"
    labelled = [("repaired", counted(table.repaired, "row"))] if table.repaired else []
    if table.rows_left_out:
        later = f"{counted(table.rows_left_out, 'row')} after the watermark: the next sync reads them"
        labelled.append(("left out", later))
    labelled += [("note", note) for note in table.notes]
    labelled += [(f.kind, f.detail) for f in table.findings]
    lines = indented("", first, width)
    lines += [line for label, text in labelled for line in indented(f"  {label:<14}", text, width)]
    more = sum(counts.values()) - len(table.findings)
    if more > 0:
        lines.append(f"  and {count(more)} more (--show N lists more)")
    return lines if table.ok else lines + _next(table, repair, width)


def _next(table: VerifiedTable, repair: bool, width: int | None) -> list[str]:
    """What to do about differences, and what that does to rows of each kind."""
    if repair:
        return indented(
            "  ",
            "Rows still differ after the repair: was the target written to meanwhile? Run it again.",
            width,
        )
    does = []
    if table.missing or table.different:
        kinds = " and ".join(["missing"] * bool(table.missing) + ["different"] * bool(table.different))
        does.append(f"reads the {kinds} rows again and loads them")
    if table.extra:
        does.append(
            "deletes the extra rows (`deletes: soft`: marks them) once MySQL confirms that they are gone or don't match `where`"
        )
    name = table.table
    if not does:
        return [
            *indented("  ", "Without a key, rows can't be repaired one by one; copy the table again.", width),
            *indented("  ", f"Next: floodmark sync -t {name}", width),
            *indented("        ", f"or, unless it is in mode full, first: floodmark watermark reset -t {name} --force", width),
        ]  # fmt: skip
    maybe = f"{counted(table.loose, 'row')} may only have changed since the last sync; first: floodmark sync -t {name}"
    return [
        *(indented("  ", maybe, width) if table.loose else ()),
        f"  Next: floodmark verify -t {name} --repair",
        *indented("        ", "; ".join(does), width),
    ]
