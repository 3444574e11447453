"""The result of `verify` for people, from the document of `--json`."""

from __future__ import annotations

from floodmark.cli.output.document import indented
from floodmark.cli.output.emit import Document
from floodmark.model.text import count, counted, duration


def verify_lines(document: Document, repair: bool = False, width: int | None = None) -> list[str]:
    """The result of each table, and the next step where there are differences; `repair`: that was it."""
    return [line for table in document["tables"] for line in _table(table, repair, width)]


def _table(table: Document, repair: bool, width: int | None) -> list[str]:
    if table["error"]:
        return [f"{table['table']}: not compared"]
    seconds = duration(float(table["seconds"]))
    kinds = [f"{count(table[k])} {k}" for k in ("missing", "extra", "different") if table[k]]
    if table["ok"]:
        snapshot = table["compared_with"] == "snapshot"
        rows = table["rows_warehouse" if snapshot else "rows_source"]
        agree = f"agree{'s' * (rows == 1)}{' with the snapshot' * snapshot}"
        first = f"{table['table']}: {counted(rows, 'row')} {agree}, {seconds}"
    else:
        where = (
            f"{count(table['rows_source'])} at the source, {count(table['rows_warehouse'])} in the warehouse"
        )
        first = f"{table['table']}: {', '.join(kinds) or 'different'}; rows: {where}, {seconds}"
    labelled = [("repaired", counted(table["repaired"], "row"))] if table.get("repaired") else []
    if table["rows_left_out"]:
        labelled.append(
            (
                "left out",
                f"{counted(table['rows_left_out'], 'row')} after the watermark: the next sync reads them",
            )
        )
    labelled += [("note", note) for note in table["notes"]]
    labelled += [(f["kind"], f["detail"]) for f in table["findings"]]
    lines = indented("", first, width)
    lines += [line for label, text in labelled for line in indented(f"  {label:<14}", text, width)]
    more = table["missing"] + table["extra"] + table["different"] - len(table["findings"])
    if more > 0:
        lines.append(f"  and {count(more)} more (--show N lists more)")
    return lines if table["ok"] else lines + _next(table, repair, width)


def _next(table: Document, repair: bool, width: int | None) -> list[str]:
    """What to do about differences, and what that does to rows of each kind."""
    if repair:
        return indented(
            "  ",
            "Rows still differ after the repair: was the target written to meanwhile? Run it again.",
            width,
        )
    does = []
    if table["missing"] or table["different"]:
        kinds = " and ".join(kind for kind in ("missing", "different") if table[kind])
        does.append(f"reads the {kinds} rows again and loads them")
    if table["extra"]:
        does.append(
            "deletes the extra rows (`deletes: soft`: marks them) once MySQL confirms that they are gone or don't match `where`"
        )
    name = table["table"]
    if not does:
        return [
            *indented("  ", "Without a key, rows can't be repaired one by one; copy the table again.", width),
            *indented("  ", f"Next: floodmark sync -t {name}", width),
            *indented("        ", f"or, unless it is in mode full, first: floodmark watermark reset -t {name} --force", width),
        ]  # fmt: skip
    maybe = f"{counted(table['loose'], 'row')} may only have changed since the last sync; first: floodmark sync -t {name}"
    return [
        *(indented("  ", maybe, width) if table["loose"] else ()),
        f"  Next: floodmark verify -t {name} --repair",
        *indented("        ", "; ".join(does), width),
    ]
