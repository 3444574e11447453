"""The `watermark` commands for a table's history and its copies: history, restore, backups, drill, cleanup, validate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from floodmark.cli import options
from floodmark.cli.layout import card, fit, indent, position, table
from floodmark.cli.options import Settings
from floodmark.cli.printing import width
from floodmark.model.errors import VerificationError
from floodmark.model.text import clock, count, counted, size
from floodmark.model.text import place as spelled

if TYPE_CHECKING:
    from floodmark.clean.copies import Old
    from floodmark.model import results

# Commits that are shown of a long log; `--json` has all.
SHOWN = 50


@options.command()
@options.one_table
def history(settings: Settings, table: str) -> int:
    """Show a table's commits, newest first.

    Each commit is one change: a claim by a run, a batch of files, a set, a reset, a restore. The position is where the
    next sync would have continued; `restore --commit N` goes back to it.

    \b
    Examples:
      floodmark watermark history -t shop.orders
      floodmark watermark history -t shop.orders --json
    """
    document = settings.pipeline().watermark_history(table)
    return settings.result(document, lambda d: history_lines(d, width()))


@options.command()
@options.one_table
@options.number("--commit", "The position after commit N (see `history`).", least=0)
@options.path_option(
    "--file", help="The position in a file that `watermark get -t TABLE --json` printed.", metavar="F"
)
@options.flag("--force", "Move a table without a key back even if rows may be duplicated.")
def restore(settings: Settings, table: str, commit: int | None, file: Path | None, force: bool) -> int:
    """Go back to an earlier position of a table.

    Moves only the position of MySQL → S3, with a new commit: no commit is rewritten and no file is forgotten. Rows that
    the next sync reads again are merged by key.

    \b
    Examples:
      floodmark watermark restore -t shop.orders --commit 41
      floodmark watermark get -t shop.orders --json > backup.json
      floodmark watermark restore -t shop.orders --file backup.json
    """
    if (commit is None) == (file is None):
        raise click.UsageError("give either --commit N or --file F")
    document = settings.pipeline().watermark_restore(table, commit=commit, file=file, force=force)
    return settings.result(document, restore_lines)


@options.command()
@options.one_table
def backups(settings: Settings, table: str) -> int:
    """Show where the copies of a table's watermark are, which of them are valid, and the latest recoveries.

    This changes nothing. The next command that needs a damaged watermark recovers it automatically.

    \b
    Examples:
      floodmark watermark backups -t shop.orders
      floodmark watermark backups -t shop.orders --json
    """
    return settings.result(settings.pipeline().watermark_backups(table), backups_lines)


@options.command()
@options.number("--days", "Remove copies older than this.", least=0, default=7)
@options.dry_run
@options.yes_or_force
def cleanup(settings: Settings, days: int, dry_run: bool, yes: bool) -> int:
    """Remove old daily and session copies of watermarks.

    Sync does this automatically once a day, as `keep_copies` says. The primary copy and each table's newest daily copy
    always stay.

    \b
    Examples:
      floodmark watermark cleanup --dry-run
      floodmark watermark cleanup --days 3 --force
    """
    config = settings.load()
    from floodmark.watermark.backups import watermark_cleanup

    def ask(old: Old) -> None:
        what = f"{counted(len(old.all), 'object')}, {size(old.bytes)}"
        nothing = not old.all and options.terminal()
        options.confirm(
            f"Remove the watermark copies older than {counted(days, 'day')} ({what})?", yes or nothing
        )

    return settings.result(watermark_cleanup(config, days, dry_run, ask), cleanup_lines)


@options.command()
@options.many_tables("Only this table; repeatable.")
@options.flag("--repair", "Repair what can be repaired without losing anything.")
def validate(settings: Settings, tables: tuple[str, ...], repair: bool) -> int:
    """Check that tracked files, rows and positions match what is really there.

    Compares the log, the published copies, the files in the store, and the warehouse's ledger and rows with each other.
    Exit code 7 if there are findings. --repair publishes copies again and restores lost commits; it never removes data
    files. The source is not read; use `verify` for that.

    \b
    Examples:
      floodmark watermark validate
      floodmark watermark validate -t shop.orders
      floodmark watermark validate -t shop.orders --repair
    """
    document = settings.pipeline().watermark_validate(*tables, repair=repair)
    code = 0 if document.ok else VerificationError.code
    return settings.result(document, validate_lines, code, free_text=True)


@options.command()
@options.many_tables("The table; repeatable.")
@options.flag("--all", "Every table that has a watermark.", "all_tables")
def drill(settings: Settings, tables: tuple[str, ...], all_tables: bool) -> int:
    """Rehearse the recovery of a table's state, without losing anything.

    Runs the real recovery on a view of the store in which something is missing: each kind of copy in turn, all of
    them, the log, the log and a kind of copy; with `store.copies_to` also the log with all copies, and the whole store.
    Nothing is written. Exit code 7 if something can't be recovered.

    \b
    Examples:
      floodmark watermark drill -t shop.orders
      floodmark watermark drill --all --json
    """
    if bool(tables) == all_tables:
        raise click.UsageError("give -t TABLE, or --all")
    document = settings.pipeline().watermark_drill(*tables, all_tables=all_tables)
    return settings.result(document, drill_lines, document.exit_code, free_text=True)


COMMANDS = (history, restore, backups, drill, cleanup, validate)


# ---------------------------------------------------------------- for people


def history_lines(document: results.History, width: int | None = None) -> list[str]:
    """The commits, newest first."""
    commits = document.commits
    if not commits:
        return [f"{document.table_name} has no commits yet."]
    head = ("COMMIT", "KIND", "AT", "RUN", "ROWS", "FILES", "POSITION")
    rows = [_commit(c, bool(document.cursor)) for c in commits[:SHOWN]]
    brief = [(*row[:6], row[6].partition(" (id ")[0].partition(".")[0]) for row in rows]
    lines = (
        fit([head, *rows], width, right=(0, 4, 5), drop=(3, 5))
        or fit([head, *brief], width, right=(0, 4, 5), drop=(3, 5))
        or [line for row in rows for line in _commit_card(row, width or 80)]
    )
    if len(commits) > SHOWN:
        lines += indent("", f"… and {count(len(commits) - SHOWN)} earlier ones; --json lists all", width)
    return lines


def _commit(commit: results.CommitRow, apart: bool) -> tuple[str, ...]:
    what = commit.purpose or ", ".join(commit.stages)
    what = what if commit.removed is None else counted(commit.removed, "file")
    data = commit.kind in ("batch", "deletes")
    return (
        str(commit.n), commit.kind + (f" ({what})" if what else ""), clock(commit.at) or "", commit.run or "",
        count(commit.rows or 0) if data else "", count(commit.files or 0) if data else "",
        spelled(commit.position, apart) if commit.position else commit.binlog or "",
    )  # fmt: skip


def _commit_card(row: tuple[str, ...], width: int) -> list[str]:
    """A commit on a narrow terminal."""
    n, kind, at, _, rows, files, where = row
    counts = [f"{rows} rows in {files} {'file' if files == '1' else 'files'}"] if rows else []
    return card(f"{n}  {kind}", [*counts, at, *([f"up to {where}"] if where else [])], width)


def restore_lines(document: results.Watermark) -> list[str]:
    """What a restore did."""
    start = position(document) or document.next_start or "the start"
    return [f"{document.table_name}: the next sync starts after {start}", f"To undo: {document.undo}"]


def backups_lines(document: results.Backups) -> list[str]:
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


def drill_lines(document: results.DrillResult) -> list[str]:
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


def _drilled(drill: results.Drill) -> tuple[str, ...]:
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


def cleanup_lines(document: results.CleanupResult) -> list[str]:
    """What a cleanup removed."""
    verb = "Would remove" if document.dry_run else "Removed"
    daily, sessions = document.cleaned_daily_backups, document.cleaned_session_backups
    records = document.cleaned_recoveries
    said = f"{verb} {_copies(daily, 'daily')} and {_copies(sessions, 'session')}"
    said += f" and {counted(records, 'record')} of recoveries" if records else ""
    return [f"{said}, {size(document.bytes)}"]


def _copies(number: int, place: str) -> str:
    return f"{count(number)} {place} {'copy' if number == 1 else 'copies'}"


def validate_lines(document: results.ValidateResult) -> list[str]:
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
