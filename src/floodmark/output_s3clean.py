"""`s3clean` for people and for pipes, from the documents of `--json`."""

from __future__ import annotations

from datetime import UTC, datetime

from floodmark.output import Document
from floodmark.output_watermark import table
from floodmark.units import clock, count, counted, duration, size

# Removed files that a terminal shows; a pipe and a dry run get all of them.
SHOWN = 50


def files_lines(
    document: Document, terminal: bool, timestamps: bool, now: datetime | None = None
) -> list[str]:
    """The staged files: a table with a header and sums for people, bare lines with tabs for a pipe."""
    now = now or datetime.now(UTC)
    rows = [_row(file, terminal, timestamps, now) for file in document["files"]]
    if not terminal:
        return ["\t".join(row) for row in rows]
    if not rows:
        return ["No files are staged."]
    head = ("STATE", "COMMIT", "ROWS", "BYTES", "CREATED" if timestamps else "AGE", "FILE")
    return [*table([head, *rows], right=(1, 2, 3)), *_sums(document)]


def _row(file: Document, terminal: bool, timestamps: bool, now: datetime) -> tuple[str, ...]:
    made = file["created_at"]
    if timestamps:
        when = (clock(made) or "") if terminal else made
    else:
        when = duration((now - datetime.fromisoformat(made)).total_seconds())
    number = count if terminal else str
    return (
        file["state"],
        "" if file["commit"] is None else str(file["commit"]),
        "" if file["rows"] is None else number(file["rows"]),
        size(file["bytes"]) if terminal else str(file["bytes"]),
        when,
        file["uri"],
    )


def _sums(document: Document) -> list[str]:
    """How much there is of each state."""
    lines = []
    for state in ("loaded", "pending", "superseded", "orphan", "unknown"):
        files = [f for f in document["files"] if f["state"] == state]
        if files:
            total = sum(f["rows"] or 0 for f in files)
            rows = f", {counted(total, 'row')}" if total else ""
            said = f"{counted(len(files), 'file')}, {size(sum(f['bytes'] for f in files))}"
            lines.append(f"{state + ':':<12}{said}{rows}")
    return lines


def removed_lines(document: Document, terminal: bool) -> list[str]:
    """What a clean removed, or would: its files, then a line for each table."""
    dry_run = document["dry_run"]
    uris = [file["uri"] for file in document["files"]]
    most = SHOWN if terminal and not dry_run else len(uris)
    lines = uris[:most]
    if len(uris) > most:
        lines.append(f"… and {count(len(uris) - most)} more; --json lists all")
    for found in document["tables"]:
        if found["error"] is not None:
            continue  # said on stderr
        files = [f for f in document["files"] if f["table"] == found["table"]]
        number = len(files) if dry_run else found["deleted"]
        freed = sum(f["bytes"] for f in files) if dry_run else found["bytes"]
        verb = "would remove" if dry_run else "removed"
        said = f"{verb} {counted(number, 'file')}, {size(freed)}" if number else "nothing to remove"
        lines.append(f"{found['table']}: {said}")
        lines += [f"  {note}" for note in found["notes"]]
    return lines or ["No table has staged files."]
