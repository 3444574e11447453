"""`watermark history`, `restore`, `backups`, `cleanup` and `validate` for people, from the documents of `--json`."""

from __future__ import annotations

from collections.abc import Sequence

from floodmark.output import Document, position
from floodmark.units import clock, count, counted, size

# Commits of a long log that are shown; `--json` has all of them.
SHOWN = 50


def history_lines(document: Document) -> list[str]:
    """The commits, newest first."""
    commits = document["commits"]
    if not commits:
        return [f"{document['table_name']} has no commits yet."]
    head = ("COMMIT", "KIND", "AT", "RUN", "ROWS", "FILES", "POSITION")
    lines = table([head, *(_commit(c) for c in commits[:SHOWN])], right=(0, 4, 5))
    if len(commits) > SHOWN:
        lines.append(f"… and {count(len(commits) - SHOWN)} before them; --json lists all")
    return lines


def _commit(commit: Document) -> tuple[str, ...]:
    kind = commit["kind"] + (f" ({commit['purpose']})" if commit.get("purpose") else "")
    kind += f" ({', '.join(commit['stages'])})" if commit.get("stages") else ""
    kind += f" ({counted(commit['removed'], 'file')})" if "removed" in commit else ""
    data = commit["kind"] in ("batch", "deletes")
    place = commit["position"]
    return (
        str(commit["n"]), kind, clock(commit["at"]) or "", commit["run"],
        count(commit["rows"]) if data else "", count(commit["files"]) if data else "",
        " / ".join(map(str, place)) if place else "",
    )  # fmt: skip


def restore_lines(document: Document) -> list[str]:
    """What a restore did."""
    start = position(document) or document.get("next_start") or "the start"
    return [f"{document['table_name']}: the next sync starts after {start}", f"To undo: {document['undo']}"]


def move_lines(document: Document) -> list[str]:
    """Where the pipeline goes on, and what the next sync has to load there."""
    if document["from"] == document["to"]:
        return [f"The pipeline fills {document['to']} already."]
    files, rows = (sum(t[what] for t in document["tables"]) for what in ("files", "rows"))
    lines = [f"The pipeline goes on into {document['to']}; until now it was {document['from']}."]
    lines.append(f"To be loaded there by the next sync: {counted(files, 'file')}, {counted(rows, 'row')}")
    for found in document["tables"]:
        if found["files_gone"]:
            gone = (
                f"{counted(found['files_gone'], 'file')} of {found['table']} were cleaned and can't be loaded"
            )
            lines.append(f"  {gone}; to read it again: floodmark watermark reset -t {found['table']}")
    return [*lines, f"To undo: {document['undo']}"]


def backups_lines(document: Document) -> list[str]:
    """Where the copies are, and the latest recoveries."""
    lines = [f"Copies of the watermark of {document['table_name']}"]
    head = ("", "STATUS", "COPIES", "VALID", "BYTES", "COMMIT", "NEWEST")
    rows = [head]
    for name, place in document["backup_locations"].items():
        listed = place["copies"]
        valid = sum(1 for c in listed if c["status"] == "valid")
        there = sum(1 for c in listed if c["status"] != "missing")
        saved = clock(next((c["saved_at"] for c in listed if c["saved_at"]), None)) or ""
        commit = "" if place["commit"] is None else str(place["commit"])
        rows.append((name, place["status"], count(there), count(valid), size(place["bytes"]), commit, saved))
    lines += ["  " + line for line in table(rows, right=(2, 3, 4, 5))]
    for place in document["backup_locations"].values():
        lines += [f"  {c['uri']}: {c['detail']}" for c in place["copies"] if c.get("detail")]
    recoveries = document["recoveries"]
    if not recoveries:
        return [*lines, "No recoveries."]
    well = sum(1 for r in recoveries if r["success"])
    lines.append(f"Latest recoveries: {len(recoveries)}, {well} of them successful")
    for r in recoveries:
        outcome = f"from {r['copy'] or 'the ' + str(r['source'])}" if r["success"] else "failed"
        lines.append(f"  {clock(r['at'])}  {outcome}, {r['seconds']:.1f} s: {'; '.join(r['wrong'])}")
    return lines


def cleanup_lines(document: Document) -> list[str]:
    """What a cleanup removed."""
    verb = "Would remove" if document["dry_run"] else "Removed"
    daily, sessions = document["cleaned_daily_backups"], document["cleaned_session_backups"]
    records = document["cleaned_recoveries"]
    said = f"{verb} {_copies(daily, 'daily')} and {_copies(sessions, 'session')}"
    said += f" and {counted(records, 'record')} of recoveries" if records else ""
    return [f"{said}, {size(document['bytes'])}"]


def _copies(number: int, place: str) -> str:
    return f"{count(number)} {place} {'copy' if number == 1 else 'copies'}"


def validate_lines(document: Document) -> list[str]:
    """What validate found, table by table, and what was mended."""
    lines = []
    for found in document["tables"]:
        findings = found["findings"]
        state = counted(len(findings), "finding") if findings else "ok"
        lines.append(f"{found['table']}: {state}")
        lines += [f"  repaired      {text}" for text in found["repaired"]]
        lines += [f"  {f['kind']:<14}{f['detail']}" for f in findings]
        if any(f["kind"] == "orphan" for f in findings):
            lines.append(f"  Orphans hold no committed row: floodmark s3clean orphans -t {found['table']}")
        if any(f["kind"] == "stale_copy" or "commit" in f for f in findings) and not found["repaired"]:
            lines.append(f"  To mend what can be: floodmark watermark validate -t {found['table']} --repair")
    return lines or ["No table has a watermark yet."]


def table(rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    """Rows as aligned columns; those of numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join(
            cell.rjust(width) if i in right else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
