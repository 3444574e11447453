"""`s3clean` for people and for pipes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from floodmark.cli.output.document import indented, table
from floodmark.model.text import cells, clock, count, counted, duration, size
from floodmark.model.times import parse_moment

if TYPE_CHECKING:
    from floodmark.model.results import CleanResult, StagedFile, StagedFiles

# Removed files that are listed on a terminal; pipes and dry runs get all.
SHOWN = 50


def files_lines(
    document: StagedFiles,
    terminal: bool,
    timestamps: bool,
    now: datetime | None = None,
    width: int | None = None,
) -> list[str]:
    """The staged files: a table with header and totals on a terminal, lines with tabs in a pipe."""
    now = now or datetime.now(UTC)
    rows = [_row(file, terminal, timestamps, now) for file in document.files]
    if not terminal:
        return ["\t".join(row) for row in rows]
    if not rows:
        return ["No staged files."]
    head = ("STATE", "COMMIT", "ROWS", "BYTES", "CREATED" if timestamps else "AGE", "FILE")
    return [
        *_listed(head, rows, width),
        *(line for sum in _sums(document) for line in indented("", sum, width)),
    ]


def _listed(head: tuple[str, ...], rows: list[tuple[str, ...]], width: int | None) -> list[str]:
    """The files in a table; their addresses are cut from the left, or have lines of their own."""
    right = (1, 2, 3)
    if width is None:
        return table([head, *rows], right)
    numbers = [max(cells(row[i]) for row in (head, *rows)) for i in range(5)]
    room = width - sum(numbers) - 2 * 5
    if room >= max(cells(row[5].rpartition("/")[2]) for row in rows) + 2:
        return table([head, *((*row[:5], _tail(row[5], room)) for row in rows)], right)
    lines = []
    for state, commit, many, size_, when, uri in rows:
        what = [state, *([f"commit {commit}"] if commit else []), *([f"{many} rows"] if many else [])]
        which = [size_, when if head[4] == "CREATED" else f"{when} old"]
        whole = ", ".join((*what, *which))
        told = [whole] if cells(whole) <= width - 2 else [", ".join(what), ", ".join(which)]
        lines += [_tail(uri, width), *(line for text in told for line in indented("  ", text, width))]
    return lines


def _tail(uri: str, room: int) -> str:
    """The end of an address: the file's name whole, and as much before it as there is room for."""
    return uri if cells(uri) <= room else f"…{uri[-(max(room - 1, len(uri.rpartition('/')[2]))) :]}"


def _row(file: StagedFile, terminal: bool, timestamps: bool, now: datetime) -> tuple[str, ...]:
    made = file.created_at
    if timestamps:
        when = (clock(made) or "") if terminal else made
    else:
        when = duration((now - parse_moment(made)).total_seconds())
    number = count if terminal else str
    return (
        file.state,
        "" if file.commit is None else str(file.commit),
        "" if file.rows is None else number(file.rows),
        size(file.bytes) if terminal else str(file.bytes),
        when,
        file.uri,
    )


def _sums(document: StagedFiles) -> list[str]:
    """The total of each state."""
    lines = []
    for state in ("loaded", "pending", "superseded", "orphan", "unknown"):
        files = [f for f in document.files if f.state == state]
        if files:
            total = sum(f.rows or 0 for f in files)
            rows = f", {counted(total, 'row')}" if total else ""
            said = f"{counted(len(files), 'file')}, {size(sum(f.bytes for f in files))}"
            lines.append(f"{state + ':':<12}{said}{rows}")
    return lines


def removed_lines(document: CleanResult, terminal: bool) -> list[str]:
    """What a clean removed, or would remove: the files, then a line for each table."""
    dry_run = document.dry_run
    uris = [file.uri for file in document.files]
    most = SHOWN if terminal and not dry_run else len(uris)
    lines = uris[:most]
    if len(uris) > most:
        lines.append(f"… and {count(len(uris) - most)} more; --json lists all")
    for found in document.tables:
        if found.error is not None:
            continue  # printed on stderr
        files = [f for f in document.files if f.table == found.table]
        number = len(files) if dry_run else found.deleted
        freed = sum(f.bytes for f in files) if dry_run else found.bytes
        verb = "would remove" if dry_run else "removed"
        said = f"{verb} {counted(number, 'file')}, {size(freed)}" if number else "nothing to remove"
        lines.append(f"{found.table}: {said}")
        lines += [f"  {note}" for note in found.notes]
    return lines or ["No table has staged files."]
