"""`watermark get`, `list`, `set`, `reset` and `clear` for people, from the documents of `--json`."""

from __future__ import annotations

from collections.abc import Sequence

from floodmark.cli.output.document import UNKNOWN, card, fitted, indented, lag, position
from floodmark.cli.output.emit import Document, printable
from floodmark.model.text import clock, count, counted, data_time

_COLOURS = {"success": "32", "pending": "33", "failed": "31"}
WAREHOUSES = {"duckdb": "DuckDB", "redshift": "Redshift"}


def watermark_lines(
    document: Document, show_files: bool, paint: bool = False, warehouse: str = "redshift"
) -> list[str]:
    """`watermark get -t T` for people; `warehouse` is the configured kind."""
    pending, processed = document.get("pending_s3_files"), document.get("processed_s3_files")
    lines = [f"Current watermark for {document['table_name']}"]
    lines += [f"  {line}" for line in activity_lines(document)]
    lines += ["  MySQL → S3"]
    lines += _entry("Status", _status(document.get("mysql_status"), paint))
    lines += _entry(
        "Rows extracted", _rows(document.get("mysql_rows_extracted"), document.get("mysql_rows_reread"))
    )
    lines += _entry("S3 files created", _number(document.get("s3_file_count")))
    lines += _data_entries(document)
    lines += _entry("Last extraction time", clock(document.get("last_mysql_extraction_time")) or "never")
    if "last_check_time" in document:
        lines += _entry("Last check", clock(document["last_check_time"]) or "never")
    if "lag_seconds" in document and not _whole(document) and not _no_rows(document):
        lines += _entry("Lag behind the source", lag(document))
    lines += _entry("Strategy", _strategy(document))
    lines += [line for said in _not_followed(document) for line in _entry("Not followed", said)]
    lines += _load_lines(document, paint, warehouse)
    lines += ["  Next sync" if _whole(document) else "  Next incremental sync"]
    lines += _entry("Will start from", _next(document))
    lines += _entry("Manual watermark", "yes, set by hand" if _manual(document) else "no")
    if document.get("last_error"):
        when = clock(document.get("last_error_time"))
        lines += [
            f"  Last error{f' ({when})' if when else ''}",
            f"    {printable(str(document['last_error']))}",
        ]
    if show_files:
        for title, files in (("Files waiting to be loaded", pending), ("Files loaded", processed)):
            lines += [f"  {title}", *(f"    {file}" for file in files or ["none"])]
    return lines


def _data_entries(document: Document) -> list[str]:
    """How far the data goes: the cursor's time, the key, or what the table has instead."""
    if _whole(document):
        return _entry("Mode", "full: every sync reads the whole table")
    at, ids = data_time(document.get("last_mysql_data_timestamp")), document.get("last_mysql_data_id")
    lines = []
    if at or not ids:
        nothing = "none: the table had no rows" if _no_rows(document) else "none yet"
        lines += _entry("Last data timestamp", at or nothing)
    if ids:
        lines += _entry("Last data id", ", ".join(map(str, ids)))
    return lines


def _not_followed(document: Document) -> list[str]:
    """The changes at the source that never reach the target."""
    from floodmark.model.note_words import clause  # imports too much for `--help`
    from floodmark.model.notes import Note

    return [clause(Note(kind)) for kind in document.get("not_followed") or ()]


def _load_lines(document: Document, paint: bool, warehouse: str) -> list[str]:
    asked = "redshift_status_as_of" not in document  # else the load stage is as it was last known
    as_of = clock(document.get("redshift_status_as_of"))
    known = asked or as_of is not None
    loaded = document.get("redshift_rows_loaded") if known else None
    status = _status(document.get("redshift_status") if known else None, paint)
    if known and _nothing_to_load(document):
        status = "nothing to load"
    status += "" if asked else f" (the warehouse did not answer{f'; as of {as_of}' if as_of else ''})"
    never = UNKNOWN if loaded is None else "never"
    waiting = _listed(document, "pending_s3_files") if known and "pending_s3_files" in document else UNKNOWN
    return [
        f"  S3 → {WAREHOUSES[warehouse]}",
        *_entry("Status", status),
        *_entry("Rows loaded", _rows(loaded, document.get("redshift_rows_reloaded") if known else None)),
        *_entry("Last load time", clock(document.get("last_redshift_load_time")) or never),
        *_entry("Files waiting", waiting),
    ]


def activity_lines(document: Document) -> list[str]:
    """What is happening to the table, if anything is."""
    found: Document = document.get("activity") or {}
    who = f"run {found.get('run')} on host {found.get('host')} (pid {found.get('pid')})"
    since = clock(found.get("since"))
    lines = ["Retired: `sync --all` skips it; `sync -t` brings it back"] if document.get("retired") else []
    if found.get("state") == "running":
        rows = f", {counted(found['rows'], 'row')} committed" if found.get("rows") else ""
        lines.append(f"Running: {who}{f' since {since}' if since else ''}, {found.get('stage')}{rows}")
    elif found.get("state") == "interrupted":
        began = f" at {since}" if since else ""
        lines.append(f"Interrupted: {who} did not finish what it began{began}; run sync again")
    return lines


def next_start(document: Document) -> str:
    """Where a table without a position begins, and which setting decides that."""
    at, by = data_time(document.get("next_start")), document.get("next_start_by")
    return f"{at} ({by})" if at and by else at or "the first row"


def _next(document: Document) -> str:
    if _whole(document):
        return "the first row: every sync reads the whole table"
    return (position(document) or next_start(document)) + (" (set by hand)" if _manual(document) else "")


def reset_lines(document: Document, stages: str, load_only: bool = False) -> list[str]:
    """What a reset did, for people."""
    then = f"the next sync starts from {position(document) or next_start(document)}"
    if load_only:
        then = f"the next sync loads {counted(document['files_to_load'], 'file')} again"
        if "files_to_load_by_hand" in document:
            by_hand = counted(document["files_to_load_by_hand"], "file")
            then += f"; `sync --redshift-only` loads {by_hand}, because of the manual watermark"
    lines = [f"{document['table_name']}: {stages} reset; {then}"]
    lines += [f"  {note}" for note in document.get("notes") or []]
    return [*lines, f"To undo: {document['undo']}"]


def accept_lines(document: Document) -> list[str]:
    """What `accept` did, for people."""
    if "accepted" not in document:
        return reset_lines(document, "the source is accepted; both stages are")
    said = f"{document['table_name']}: accepted, and followed by the next sync: {'; '.join(document['accepted'])}"
    return [said, *(f"  {note}" for note in document["notes"])]


def system_lines(document: Document, start: str | None) -> list[str]:
    """The system watermark for people."""
    at = document.get("timestamp")
    if at:
        return [f"System watermark: {at}", "  Tables without a position start after it."]
    return ["There is no system watermark.", f"  Tables without a position start {_begin(start)}."]


def cleared_lines(document: Document, start: str | None) -> list[str]:
    """What clearing the system watermark did."""
    if not document.get("undo"):
        return system_lines(document, start)
    return [
        f"System watermark: removed; tables without a position start {_begin(start)}",
        f"To undo: {document['undo']}",
    ]


def _begin(start: str | None) -> str:
    return f"after {start} (`start` in the configuration)" if start else "at their first row"


def list_lines(
    documents: Sequence[Document],
    paint: bool = False,
    warehouse: str = "redshift",
    older: Sequence[Document] = (),
    width: int | None = None,
) -> list[str]:
    """`watermark list` for people: one table for all, then watermarks that wait to be taken over.

    On a narrow terminal positions lose their ids, then columns go, and at last each table has lines of its own.
    """
    waiting = _older_lines(older, width)
    if not documents:
        none = "No table has a watermark yet; `floodmark sync -t schema.table` creates the first."
        return [none, *waiting]
    loads = WAREHOUSES[warehouse].upper()
    head = ("TABLE", "MYSQL", "ROWS", "DATA UP TO", "STRATEGY", loads, "ROWS", "WAITING", "LAG", "NOW")
    idle = all(_now(document) == "idle" for document in documents)
    whole, brief = (
        [row[:-1] if idle else row for row in (head, *(_list_row(document, ids) for document in documents))]
        for ids in (True, False)
    )
    stages = {1: "mysql_status", 5: "redshift_status"}

    def colour(row: int, column: int, cell: str) -> str:
        if not paint or not row or column not in stages or cell.startswith("-"):
            return cell
        return _painted(cell, documents[row - 1].get(stages[column]))

    numbers = (2, 6, 7, 8)
    lines = (
        fitted(whole, width, numbers, drop=(4,), paint=colour)
        or fitted(brief, width, numbers, drop=(4, 6, 2, 7), paint=colour)
        or [line for document in documents for line in _list_card(document, warehouse, width or 80)]
    )
    if any((document.get("activity") or {}).get("state") == "interrupted" for document in documents):
        lines += indented("", "interrupted: a run did not finish what it began; run sync again", width)
    if any(map(_manual, documents)):
        lines += indented("", "* set by hand: the next sync starts there", width)
    if any("redshift_status_as_of" in document for document in documents):
        lines += indented("", "? the warehouse did not answer; shown as last known", width)
    return [*lines, *waiting]


def _older_lines(older: Sequence[Document], width: int | None) -> list[str]:
    """Watermarks of the older tool whose tables have none of ours."""
    if not older:
        return []
    head = ("TABLE", "DATA UP TO", "WATERMARK")
    rows = [head, *((o["table_name"], data_time(o["timestamp"]) or "none", o["uri"]) for o in older)]
    title = "Watermarks of the older tool; the first sync of each table takes over:"
    lines = fitted(rows, None if width is None else width - 2)
    if lines is None:
        lines = [line for row in rows[1:] for line in card(row[0], row[1:], (width or 80) - 2)]
    return [*indented("", title, width), *(f"  {line}" for line in lines)]


def _list_card(document: Document, warehouse: str, width: int) -> list[str]:
    """A table on a narrow terminal."""
    _, mysql, rows, upto, _, load, loaded, waiting, behind, now = _list_row(document)
    loads, late = WAREHOUSES[warehouse], "" if waiting == "0" else f", {waiting} waiting"
    timed = position(document) is not None and not _whole(document)
    said = [
        f"MySQL: {mysql}, {rows} rows",
        f"{loads}: nothing to load" if load == "-" else f"{loads}: {load}, {loaded} rows{late}",
        f"up to {upto}" if timed else upto,
        *([] if behind == "-" else [f"lag {behind}"]),
    ]
    return card(document["table_name"], [*said, *([now] if now != "idle" else [])], width)


def _list_row(document: Document, ids: bool = True) -> tuple[str, ...]:
    load = (document.get("redshift_status") or UNKNOWN) + ("?" if "redshift_status_as_of" in document else "")
    if _nothing_to_load(document):
        load = "-"
    pending = document.get("pending_s3_files")
    waiting = UNKNOWN if pending is None else _listed(document, "pending_s3_files")
    behind = "-"
    if "lag_seconds" in document and not _whole(document) and not _no_rows(document):
        behind = lag(document)
    return (
        str(document["table_name"]), document.get("mysql_status") or UNKNOWN,
        _number(document.get("mysql_rows_extracted")), _up_to(document, ids) + "*" * _manual(document), _strategy(document, "-"),
        load, _number(document.get("redshift_rows_loaded")), waiting, behind, _now(document),
    )  # fmt: skip


def _up_to(document: Document, ids: bool = True) -> str:
    """How far the data goes; without `ids`, only the time where there is one."""
    if _whole(document):
        read = clock(document.get("last_mysql_extraction_time"))
        return f"snapshot of {read}" if read and ids else read or "no snapshot yet"
    at = data_time(document.get("last_mysql_data_timestamp"))
    if at and not ids:
        return at.partition(".")[0]
    return position(document) or ("no rows" if _no_rows(document) else "none yet")


def _whole(document: Document) -> bool:
    """Whether every sync reads the whole table."""
    return document.get("mode") == "full"


def _no_rows(document: Document) -> bool:
    """Whether a sync has looked at the table and found no row."""
    return (
        document.get("mysql_status") == "success"
        and position(document) is None
        and not document.get("mysql_rows_extracted")
    )


def _nothing_to_load(document: Document) -> bool:
    """Whether the load only waits for the first row: people don't call that pending."""
    return (
        document.get("redshift_status") == "pending"
        and _no_rows(document)
        and not document.get("pending_s3_files")
        and not _manual(document)
    )


def _manual(document: Document) -> bool:
    return bool((document.get("metadata") or {}).get("manual_watermark"))


def _strategy(document: Document, none: str = "none yet") -> str:
    return str(document.get("backup_strategy") or none)


def _now(document: Document) -> str:
    state = str((document.get("activity") or {}).get("state") or "idle")
    return "retired" if document.get("retired") and state == "idle" else state


def _entry(label: str, value: str) -> list[str]:
    return [f"    {label:<24}{value}"]


def _listed(document: Document, key: str) -> str:
    more = " or more" if document.get(f"{key}_truncated") else ""
    return count(len(document[key])) + more


def _number(value: int | None) -> str:
    return UNKNOWN if value is None else count(value)


def _rows(rows: int | None, again: int | None) -> str:
    """`1,003`, or `1,003 rows, and 70 read again`."""
    if rows is None or not again:
        return _number(rows)
    return f"{counted(rows, 'row')}, and {count(again)} read again"


def _status(status: str | None, paint: bool) -> str:
    text = status or UNKNOWN
    return _painted(text, status) if paint else text


def _painted(text: str, status: str | None) -> str:
    """A text in the colour of a status."""
    colour = _COLOURS.get(status or "")
    return f"\x1b[{colour}m{text}\x1b[0m" if colour else text
