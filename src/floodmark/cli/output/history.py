"""`watermark history`, `restore`, `backups`, `cleanup` and `validate` for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from floodmark.cli.output.document import card, fitted, indented, position, table
from floodmark.model.text import clock, count, counted, size
from floodmark.model.text import place as spelled

if TYPE_CHECKING:
    from floodmark.model.results import (
        Backups,
        CleanupResult,
        CommitRow,
        Drill,
        DrillResult,
        History,
        MoveResult,
        ValidateResult,
        Watermark,
    )

# Commits that are shown of a long log; `--json` has all.
SHOWN = 50


def history_lines(document: History, width: int | None = None) -> list[str]:
    """The commits, newest first."""
    commits = document.commits
    if not commits:
        return [f"{document.table_name} has no commits yet."]
    head = ("COMMIT", "KIND", "AT", "RUN", "ROWS", "FILES", "POSITION")
    rows = [_commit(c, bool(document.cursor)) for c in commits[:SHOWN]]
    brief = [(*row[:6], row[6].partition(" (id ")[0].partition(".")[0]) for row in rows]
    lines = (
        fitted([head, *rows], width, right=(0, 4, 5), drop=(3, 5))
        or fitted([head, *brief], width, right=(0, 4, 5), drop=(3, 5))
        or [line for row in rows for line in _commit_card(row, width or 80)]
    )
    if len(commits) > SHOWN:
        lines += indented("", f"… and {count(len(commits) - SHOWN)} earlier ones; --json lists all", width)
    return lines


def _commit(commit: CommitRow, apart: bool) -> tuple[str, ...]:
    what = commit.purpose or ", ".join(commit.stages)
    what = what if commit.removed is None else counted(commit.removed, "file")
    data = commit.kind in ("batch", "deletes")
    return (
        str(commit.n), commit.kind + (f" ({what})" if what else ""), clock(commit.at) or "", commit.run or "",
        count(commit.rows or 0) if data else "", count(commit.files or 0) if data else "",
        spelled(commit.position, apart) if commit.position else "",
    )  # fmt: skip


def _commit_card(row: tuple[str, ...], width: int) -> list[str]:
    """A commit on a narrow terminal."""
    n, kind, at, _, rows, files, where = row
    counts = [f"{rows} rows in {files} {'file' if files == '1' else 'files'}"] if rows else []
    return card(f"{n}  {kind}", [*counts, at, *([f"up to {where}"] if where else [])], width)


def restore_lines(document: Watermark) -> list[str]:
    """What a restore did."""
    start = position(document) or document.next_start or "the start"
    return [f"{document.table_name}: the next sync starts after {start}", f"To undo: {document.undo}"]


def move_lines(document: MoveResult) -> list[str]:
    """Where the pipeline continues, and what the next sync loads there."""
    if document.from_ == document.to:
        return [f"The pipeline already loads into {document.to}."]
    files, rows = sum(t.files for t in document.tables), sum(t.rows for t in document.tables)
    lines = [f"The pipeline now loads into {document.to} (previously {document.from_})."]
    lines.append(f"The next sync loads {counted(files, 'file')}, {counted(rows, 'row')}")
    for found in document.tables:
        if found.files_gone:
            gone = f"{counted(found.files_gone, 'file')} of {found.table} can't be loaded: removed by a clean"
            lines.append(f"  {gone}; to read the table again: floodmark watermark reset -t {found.table}")
    return [*lines, f"To undo: {document.undo}"]


def backups_lines(document: Backups) -> list[str]:
    """Where the copies are, and the latest recoveries."""
    lines = [f"Copies of the watermark of {document.table_name}"]
    head = ("", "STATUS", "COPIES", "VALID", "BYTES", "COMMIT", "NEWEST")
    rows = [head]
    for name, place in document.backup_locations.items():
        listed = place.copies
        valid = sum(1 for c in listed if c.status == "valid")
        there = sum(1 for c in listed if c.status != "missing")
        saved = clock(next((c.saved_at for c in listed if c.saved_at), None)) or ""
        commit = "" if place.commit is None else str(place.commit)
        rows.append((name, place.status, count(there), count(valid), size(place.bytes), commit, saved))
    lines += ["  " + line for line in table(rows, right=(2, 3, 4, 5))]
    for place in document.backup_locations.values():
        lines += [f"  {c.uri}: {c.detail}" for c in place.copies if c.detail]
    recoveries = document.recoveries
    if not recoveries:
        return [*lines, "No recoveries."]
    well = sum(1 for r in recoveries if r.success)
    lines.append(f"Latest recoveries: {len(recoveries)}, {well} successful")
    for r in recoveries:
        outcome = f"from {r.copy or 'the ' + r.source}" if r.success else "failed"
        lines.append(f"  {clock(r.at)}  {outcome}, {r.seconds:.1f} s: {'; '.join(r.wrong)}")
    return lines


_FROM = {
    "primary": "the primary copy", "daily": "the daily copy", "session": "a session's copy",
    "copies_to": "copies_to", "log": "the log alone", "files": "the files",
}  # fmt: skip


def drill_lines(document: DrillResult) -> list[str]:
    """From what each table would be recovered, and how long that took."""
    lines = []
    for found in document.tables:
        drills = found.drills
        if found.error:
            lines.append(f"{found.table}: {found.error.message}")
            continue
        gone = sum(1 for d in drills if not d.recovered)
        outcome = f"{gone} can't be recovered" if gone else "all can be recovered"
        tried = f"losses tried: {len(drills)}; {outcome}" if drills else "has no state yet"
        lines.append(f"{found.table}: {tried}")
        rows: list[tuple[str, ...]] = [("LOST", "RECOVERED FROM", "COMMIT", "SECONDS", "")]
        rows += [_drilled(d) for d in drills]
        lines += ["  " + line for line in table(rows, right=(2, 3))] if drills else []
    if not any("store" in d.lost for t in document.tables for d in t.drills):
        lines.append(
            "Losing the log together with all copies was not tried: only store.copies_to would help."
        )
    return lines if document.tables else ["No table has a watermark yet."]


def _drilled(drill: Drill) -> tuple[str, ...]:
    source = _FROM[drill.from_] if drill.from_ else "nowhere"
    where = f"{source} {drill.copy}" if drill.copy else source
    commit = "" if drill.commit is None else str(drill.commit)
    told = [] if drill.recovered else [f"NOT RECOVERED: {drill.detail}"]
    if drill.commits_put_back:
        told.append(f"{counted(drill.commits_put_back, 'commit')} put back")
    if drill.commits_lost:
        told.append(f"{counted(drill.commits_lost, 'older commit')} only as sums")
    lost = " + ".join(drill.lost) + (f" (left: {drill.left})" if drill.left else "")
    return (lost, where, commit, f"{drill.seconds:.3f}", "; ".join(told))


def cleanup_lines(document: CleanupResult) -> list[str]:
    """What a cleanup removed."""
    verb = "Would remove" if document.dry_run else "Removed"
    daily, sessions = document.cleaned_daily_backups, document.cleaned_session_backups
    records = document.cleaned_recoveries
    said = f"{verb} {_copies(daily, 'daily')} and {_copies(sessions, 'session')}"
    said += f" and {counted(records, 'record')} of recoveries" if records else ""
    return [f"{said}, {size(document.bytes)}"]


def _copies(number: int, place: str) -> str:
    return f"{count(number)} {place} {'copy' if number == 1 else 'copies'}"


def validate_lines(document: ValidateResult) -> list[str]:
    """What validate found and repaired, table by table."""
    lines = []
    for found in document.tables:
        findings = found.findings
        state = counted(len(findings), "finding") if findings else "ok"
        lines.append(f"{found.table}: {state}")
        lines += [f"  repaired        {text}" for text in found.repaired]
        lines += [f"  {f.kind:<16}{f.detail}" for f in findings]
        if any(f.kind == "orphan" for f in findings):
            lines.append(
                f"  To remove orphans, which hold no committed row: floodmark s3clean orphans -t {found.table}"
            )
        if any(f.kind == "stale_copy" or "commit" in f.more for f in findings) and not found.repaired:
            lines.append(
                f"  To repair what can be repaired: floodmark watermark validate -t {found.table} --repair"
            )
    return lines or ["No table has a watermark yet."]
