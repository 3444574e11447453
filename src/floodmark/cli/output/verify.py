"""The result of `verify` for people, from the document of `--json`."""

from __future__ import annotations

from floodmark.cli.output.document import said
from floodmark.cli.output.emit import Document
from floodmark.model.text import count, counted, duration


def verify_lines(document: Document) -> list[str]:
    """The result of each table."""
    lines: list[str] = []
    for table in document["tables"]:
        if table["error"]:
            lines.append(f"{table['table']}: not compared")
            continue
        seconds = duration(float(table["seconds"]))
        kinds = [f"{count(table[k])} {k}" for k in ("missing", "extra", "different") if table[k]]
        if table["ok"]:
            rows = counted(table["rows_source"], "row")
            lines.append(f"{table['table']}: {rows} agree{'s' * (table['rows_source'] == 1)}, {seconds}")
        else:
            where = f"{count(table['rows_source'])} at the source, {count(table['rows_warehouse'])} in the warehouse"
            lines.append(f"{table['table']}: {', '.join(kinds) or 'different'}; rows: {where}, {seconds}")
        if table.get("repaired"):
            lines += said("repaired", counted(table["repaired"], "row"))
        if table["rows_left_out"]:
            lines += said("left out", f"{counted(table['rows_left_out'], 'row')} changed since the watermark")
        lines += [line for note in table["notes"] for line in said("note", note)]
        lines += [f"  {f['kind']:<14}{f['detail']}" for f in table["findings"]]
        more = table["missing"] + table["extra"] + table["different"] - len(table["findings"])
        if more > 0:
            lines.append(f"  and {count(more)} more (--show N lists more)")
    return lines
