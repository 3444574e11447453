"""Results: documents as JSON for programs, as text for people; errors as one or two lines.

The text is made from the same documents that `--json` prints, by pure functions, so the two can't disagree.
Only results go to stdout; whoever reads it may stop reading at any time.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from floodmark.errors import FloodmarkError, TransientError
from floodmark.units import clock, count, counted, data_time, duration, rate, shown, shown_json, size

Document = dict[str, Any]
Scrub = Callable[[str], str]

# Where free text of other systems can stand in a document; names and numbers are left as they are.
_FREE_TEXT = frozenset({"message", "hint", "detail", "last_error", "notes"})
_COLOURS = {"success": "32", "pending": "33", "failed": "31"}
_UNKNOWN = "unknown"
_LONGEST = 1600  # characters of an error's line


def coloured(stream: Any) -> bool:
    """Whether colours are welcome there."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain and bool(getattr(stream, "isatty", lambda: False)())


def emit(text: str) -> None:
    """A result to stdout. A reader that went away is no failure; a full disk is one."""
    try:
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # Python would try once more at exit, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        why = error.strerror or str(error)
        hint = "the command's work is done; only its printed result is lost"
        raise TransientError(f"the result could not be written to stdout: {why}", hint=hint) from error


def emit_json(document: Document, scrub: Scrub, indent: int | None = 2) -> None:
    """A document as `--json` prints it; on one line without an indent."""
    utf8 = (sys.stdout.encoding or "utf-8").lower().replace("-", "") == "utf8"
    text = json.dumps(scrubbed(document, scrub), indent=indent, ensure_ascii=not utf8, default=str)
    emit(shown_json(text))


def emit_lines(lines: Sequence[str]) -> None:
    """A result for people to stdout."""
    painted = coloured(sys.stdout)
    emit("\n".join(shown(line, painted) for line in lines))


def scrubbed(value: Any, scrub: Scrub) -> Any:
    """The document with secrets masked in its free text."""
    return _scrubbed(value, scrub, free=False)


def _scrubbed(value: Any, scrub: Scrub, free: bool) -> Any:
    if isinstance(value, dict):
        return {key: _scrubbed(inner, scrub, key in _FREE_TEXT) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_scrubbed(inner, scrub, free) for inner in value]
    return scrub(value) if free and isinstance(value, str) else value


def error_lines(error: Document) -> list[str]:
    """An error as people see it: what failed and for which table, then what to do."""
    message = str(error.get("message") or "failed").strip()
    listed = error.get("kind") == "config" and " mistakes:\n" in message
    # A config's mistakes are a list; all else is one line, whatever a server or a document put into it.
    message = "\n".join(_printable(line) for line in (message.split("\n") if listed else [message]))
    table = error.get("table")
    said = f"{table}: {message}" if table and not message.startswith(str(table)) else message
    hint = _printable(str(error.get("hint") or ""))
    if not listed:
        said = _printable(said)
    return [f"floodmark: {said}", *([f"  {hint}"] if hint else [])]


def _printable(line: str) -> str:
    """The text on one line, without the control characters that would steer a terminal."""
    indent = line[: len(line) - len(line.lstrip(" "))]
    text = indent + " ".join(line.split())
    if len(text) > _LONGEST:  # only a document or a server that means harm says so much
        text = f"{text[: _LONGEST // 2]} … {text[-_LONGEST // 4 :]}"
    return shown(text)


def together(errors: Sequence[Document]) -> list[Document]:
    """The errors of several tables, those that say the same as one: what all share is wrong once."""
    alike: dict[tuple[str, str, str], list[Document]] = {}
    for error in errors:
        same = (str(error.get("kind")), str(error.get("message")), str(error.get("hint")))
        alike.setdefault(same, []).append(error)
    return [{**same[0], "table": _named([str(e.get("table")) for e in same])} if len(same) > 1 else same[0]
            for same in alike.values()]  # fmt: skip


def _named(tables: Sequence[str]) -> str:
    if len(tables) <= 3:
        return f"{', '.join(tables[:-1])} and {tables[-1]}"
    return f"{', '.join(tables[:2])} and {len(tables) - 2} more tables"


def failure(error: FloodmarkError) -> Document:
    """The document of a command that failed as a whole."""
    return {"ok": False, "error": error.as_json()}


def position(document: Document) -> str | None:
    """`2025-08-14 15:30:22 (id 1250000)`, or None before the first row."""
    at, ids = data_time(document.get("last_mysql_data_timestamp")), document.get("last_mysql_data_id")
    key = "id " + ", ".join(str(part) for part in ids) if ids else None
    return f"{at} ({key})" if at and key else at or key


def watermark_lines(document: Document, show_files: bool, paint: bool = False) -> list[str]:
    """`watermark get -t T` for people."""
    pending, processed = document.get("pending_s3_files"), document.get("processed_s3_files")
    manual = bool((document.get("metadata") or {}).get("manual_watermark"))
    start = position(document) or next_start(document)
    note = " (set by hand)" if manual else ""
    lines = [f"Current watermark for {document['table_name']}"]
    lines += [f"  {line}" for line in activity_lines(document)]
    lines += ["  MySQL → S3"]
    lines += _entry("Status", _status(document.get("mysql_status"), paint))
    lines += _entry(
        "Rows extracted", _rows(document.get("mysql_rows_extracted"), document.get("mysql_rows_reread"))
    )
    lines += _entry("S3 files created", _number(document.get("s3_file_count")))
    lines += _entry("Last data timestamp", data_time(document.get("last_mysql_data_timestamp")) or "none yet")
    lines += _entry("Last extraction time", clock(document.get("last_mysql_extraction_time")) or "never")
    if "last_check_time" in document:
        lines += _entry("Last look", clock(document["last_check_time"]) or "never")
    if "lag_seconds" in document:
        lines += _entry("Lag behind the source", lag(document))
    asked = "redshift_status_as_of" not in document  # else the load stage is as it was last known
    as_of = clock(document.get("redshift_status_as_of"))
    known = asked or as_of is not None
    loaded = document.get("redshift_rows_loaded") if known else None
    status = _status(document.get("redshift_status") if known else None, paint)
    status += "" if asked else f" (the warehouse could not be asked{f'; as of {as_of}' if as_of else ''})"
    never = _UNKNOWN if loaded is None else "never"
    lines += ["  S3 → Redshift", *_entry("Status", status)]
    lines += _entry("Rows loaded", _rows(loaded, document.get("redshift_rows_reloaded") if known else None))
    lines += _entry("Last load time", clock(document.get("last_redshift_load_time")) or never)
    waiting = _listed(document, "pending_s3_files") if known and pending is not None else _UNKNOWN
    lines += _entry("Files waiting", waiting)
    lines += ["  Next incremental sync"]
    lines += _entry("Will start from", start + note)
    if document.get("last_error"):
        when = clock(document.get("last_error_time"))
        lines += [
            f"  Last error{f' ({when})' if when else ''}",
            f"    {_printable(str(document['last_error']))}",
        ]
    if show_files:
        for title, files in (("Files waiting for the load", pending), ("Files loaded", processed)):
            lines += [f"  {title}", *(f"    {file}" for file in files or ["none"])]
    return lines


def activity_lines(document: Document) -> list[str]:
    """What goes on at the table, unless nothing does."""
    found: Document = document.get("activity") or {}
    who = f"run {found.get('run')} on host {found.get('host')} (pid {found.get('pid')})"
    since = clock(found.get("since"))
    lines = (
        ["Retired: `sync --all` leaves it out; `sync -t` brings it back"] if document.get("retired") else []
    )
    if found.get("state") == "running":
        rows = f", {counted(found['rows'], 'row')} committed" if found.get("rows") else ""
        lines.append(f"Running: {who}{f' since {since}' if since else ''}, {found.get('stage')}{rows}")
    elif found.get("state") == "interrupted":
        lines.append(
            f"Interrupted: {who} did not finish what it began{f' at {since}' if since else ''}; run sync again"
        )
    return lines


def next_start(document: Document) -> str:
    """Where a table without a position begins, and who says so."""
    at, by = data_time(document.get("next_start")), document.get("next_start_by")
    return f"{at} ({by})" if at and by else at or "the first row"


def reset_lines(document: Document, stages: str, load_only: bool = False) -> list[str]:
    """What a reset did, for people."""
    then = f"the next sync starts from {position(document) or next_start(document)}"
    if load_only:
        then = f"files that load again with the next sync: {count(document['files_to_load'])}"
        if "files_to_load_by_hand" in document:
            by_hand = count(document["files_to_load_by_hand"])
            then += f"; with `sync --redshift-only`, by the manual watermark: {by_hand}"
    lines = [f"{document['table_name']}: {stages} reset; {then}"]
    lines += [f"  {note}" for note in document.get("notes") or []]
    return [*lines, f"To undo: {document['undo']}"]


def system_lines(document: Document, start: str | None) -> list[str]:
    """The system watermark for people."""
    at = document.get("timestamp")
    if at:
        return [f"System watermark: {at}", "  Tables without a position of their own start after it."]
    return ["There is no system watermark.", f"  Tables without a position start after {start or 'nothing'}."]


def _entry(label: str, value: str) -> list[str]:
    return [f"    {label:<24}{value}"]


def _listed(document: Document, key: str) -> str:
    more = " or more" if document.get(f"{key}_truncated") else ""
    return count(len(document[key])) + more


def _number(value: int | None) -> str:
    return _UNKNOWN if value is None else count(value)


def _rows(rows: int | None, again: int | None) -> str:
    """`1,003`, or `1,003 rows, and 70 read again`."""
    if rows is None or not again:
        return _number(rows)
    return f"{counted(rows, 'row')}, and {count(again)} read again"


def _status(status: str | None, paint: bool, width: int = 0) -> str:
    text = (status or _UNKNOWN).ljust(width)
    colour = _COLOURS.get((status or "").removesuffix("?"))
    return f"\x1b[{colour}m{text}\x1b[0m" if paint and colour else text


def lag(document: Document) -> str:
    """How far the extraction is behind the source, when that is known."""
    return _behind(document.get("lag_seconds"), document.get("lag_ids"))


def _behind(seconds: float | None, ids: int | None) -> str:
    if seconds is None and ids is not None:
        return f"{count(int(ids))} ids"
    return _UNKNOWN if seconds is None else duration(float(seconds))


def list_lines(documents: Sequence[Document], paint: bool = False) -> list[str]:
    """`watermark list` for people: one table for all."""
    if not documents:
        return ["No table has a watermark yet; `floodmark sync -t schema.table` makes the first."]
    head = ("TABLE", "MYSQL", "ROWS", "DATA UP TO", "WAREHOUSE", "ROWS", "WAITING", "LAG", "NOW")
    rows = [head, *(_list_row(document) for document in documents)]
    if all(row[-1] == "idle" for row in rows[1:]):
        rows = [row[:-1] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for number, row in enumerate(rows):
        cells = [
            cell.rjust(width) if i in (2, 5, 6, 7) else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        if paint and number:
            for i in (1, 4):
                cells[i] = _status(row[i], paint, widths[i])
        lines.append("  ".join(cells).rstrip())
    if any((document.get("activity") or {}).get("state") == "interrupted" for document in documents):
        lines.append("interrupted: a run did not finish what it began; run sync again")
    if any("redshift_status_as_of" in document for document in documents):
        lines.append("? the warehouse could not be asked: as last known")
    return lines


def _list_row(document: Document) -> tuple[str, ...]:
    load = (document.get("redshift_status") or _UNKNOWN) + (
        "?" if "redshift_status_as_of" in document else ""
    )
    pending = document.get("pending_s3_files")
    waiting = _UNKNOWN if pending is None else _listed(document, "pending_s3_files")
    return (
        str(document["table_name"]), document.get("mysql_status") or _UNKNOWN,
        _number(document.get("mysql_rows_extracted")), position(document) or "none yet",
        load, _number(document.get("redshift_rows_loaded")),
        waiting, lag(document) if "lag_seconds" in document else "-", _now(document),
    )  # fmt: skip


def _now(document: Document) -> str:
    state = str((document.get("activity") or {}).get("state") or "idle")
    return "retired" if document.get("retired") and state == "idle" else state


def sync_lines(document: Document, dry_run: bool) -> list[str]:
    """What a sync did, for people; the errors themselves go to stderr."""
    lines: list[str] = []
    for table in document["tables"]:
        lines += _table_lines(table, float(document.get("seconds") or 0), dry_run)
    failed = sum(1 for table in document["tables"] if not table["ok"])
    outcome = "dry run, nothing written" if dry_run else "done"
    if failed:
        outcome = f"{counted(failed, 'table')} failed"
    ran = counted(len(document["tables"]), "table")
    lines.append(f"Run {document['run']}: {ran}, {outcome}, {duration(float(document.get('seconds') or 0))}")
    return lines


def cycle_line(document: Document) -> str:
    """One cycle of a resident sync: `2025-08-14 16:45:33 UTC  shop.orders: 100 rows extracted, 100 loaded, 1.2 s`."""
    tables = document["tables"]
    failed = [table["error"] for table in tables if table["error"]]
    failed += [document["error"]] if document["error"] else []
    parts = []
    if failed:
        first = next((e for e in failed if e["code"] == document["exit_code"]), failed[0])
        more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
        said = "; ".join(line.strip().removeprefix("floodmark: ") for line in error_lines(first))
        parts.append(f"failed, exit code {document['exit_code']}: {said}{more}")
    moved = [table for table in tables if not table["error"]]
    if moved:
        names = moved[0]["table"] if len(moved) == 1 else counted(len(moved), "table")
        extracted = sum(table["rows_extracted"] + table["rows_reread"] for table in moved)
        loaded = sum(table["rows_loaded"] for table in moved)
        parts.append(f"{names}: {counted(extracted, 'row')} extracted, {count(loaded)} loaded")
    if not parts:
        parts.append(f"up to date, {counted(document['tables_idle'], 'table')}")
    return f"{clock(document['at'])}  {'; '.join(parts)}, {duration(float(document['seconds']))}"


def _table_lines(table: Document, total: float, dry_run: bool) -> list[str]:
    extracted, reread, loaded = table["rows_extracted"], table["rows_reread"], table["rows_loaded"]
    state = "ok" if table["ok"] else f"failed (exit code {table['exit_code']})"
    if table["ok"] and not dry_run and not (extracted or reread or loaded):
        state = "up to date"
    strategy = f", {table['strategy']}" if table.get("strategy") else ""
    lines = [f"{table['table']}: {state}{strategy}"]
    speed = rate(extracted + reread, float(table.get("seconds") or total))
    if extracted or reread:
        again = f", and {count(reread)} read again" if reread else ""
        amount = f"{counted(table['files_written'], 'file')}, {size(table['bytes_written'])}"
        amount += f", {speed}" if speed and not dry_run else ""
        verb = "would extract" if dry_run else "extracted"
        lines += _said(verb, f"{counted(extracted, 'row')}{again}, {amount}")
    if table.get("rows_deleted"):
        lines += _said("deleted", f"{counted(table['rows_deleted'], 'row')} that the source no longer has")
    if loaded or table["files_loaded"]:
        amount = f"{counted(loaded, 'row')}, {counted(table['files_loaded'], 'file')}"
        lines += _said("would load" if dry_run else "loaded", amount)
    watermark = table.get("watermark") or {}
    if watermark.get("commit") is not None:
        waiting = len(watermark.get("pending_s3_files") or [])
        where = f"{position(watermark) or 'at the start'}, commit {watermark.get('commit')}"
        lines += _said("watermark", where + (f", {counted(waiting, 'file')} waiting" if waiting else ""))
    before, after = table.get("lag_before"), table.get("lag_after")
    if extracted and after:
        was = f"{_behind(before['seconds'], before['ids'])} → " if before else ""
        lines += _said("lag", was + _behind(after["seconds"], after["ids"]))
    for finding in table.get("findings") or []:
        lines += _said("finding", f"{finding['kind']}: {finding['detail']}")
    return lines


def _said(label: str, value: str) -> list[str]:
    return [f"  {label:<14}{value}"]


def verify_lines(document: Document) -> list[str]:
    """What `verify` says of each table."""
    lines: list[str] = []
    for table in document["tables"]:
        if table["error"]:
            lines.append(f"{table['table']}: not compared")
            continue
        seconds = duration(float(table["seconds"]))
        kinds = [f"{count(table[k])} {k}" for k in ("missing", "extra", "different") if table[k]]
        if table["ok"]:
            lines.append(f"{table['table']}: {counted(table['rows_source'], 'row')} agree, {seconds}")
        else:
            where = f"{count(table['rows_source'])} at the source, {count(table['rows_warehouse'])} in the warehouse"
            lines.append(f"{table['table']}: {', '.join(kinds) or 'not the same'}; rows: {where}, {seconds}")
        if table.get("repaired"):
            lines += _said("repair", f"repaired {counted(table['repaired'], 'row')}")
        if table["rows_left_out"]:
            lines += _said(
                "left out", f"{counted(table['rows_left_out'], 'row')} changed since the watermark"
            )
        lines += [line for note in table["notes"] for line in _said("note", note)]
        lines += [f"  {f['kind']:<14}{f['detail']}" for f in table["findings"]]
        more = table["missing"] + table["extra"] + table["different"] - len(table["findings"])
        if more > 0:
            lines.append(f"  and {count(more)} more (--show N names more)")
    return lines
