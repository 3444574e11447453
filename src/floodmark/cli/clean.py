"""The `s3clean` commands: list the staged files in the store, and remove those that are no longer needed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from floodmark.cli import options
from floodmark.cli.layout import indent, table
from floodmark.cli.options import Settings
from floodmark.cli.printing import width
from floodmark.model.errors import ConfigError
from floodmark.model.events import Noted
from floodmark.model.text import cells, clock, count, counted, duration, size
from floodmark.model.times import parse_moment

if TYPE_CHECKING:
    from floodmark.clean.remove import Cleaning
    from floodmark.model.results import CleanResult, StagedFile, StagedFiles

F = TypeVar("F", bound=Callable[..., Any])
# Removed files that are listed on a terminal; pipes and dry runs get all.
SHOWN = 50


@click.group(cls=options.Group)
def s3clean() -> None:
    """List and remove staged files.

    A file is removed only when its rows are in the warehouse or will never be needed. Nothing else in the store is
    touched: not the log, not the watermarks, not another table's files.

    \b
    Examples:
      floodmark s3clean list -t shop.orders
      floodmark s3clean clean -t shop.orders --older-than 7d --dry-run
      floodmark s3clean clean-all --older-than 7d --force
      floodmark s3clean orphans -t shop.orders
    """


_older_than = options.duration_option(
    "--older-than", "Only files written at least this long ago: 7d, 24h, 30m.", metavar="AGE", least=0
)
_pattern = click.option(
    "--pattern", metavar="GLOB", help="Only files whose name (or path, as `list` prints it) matches."
)
_include_pending = options.flag(
    "--include-pending", "Also files that are not loaded yet; the position moves back to before them."
)
_force = options.flag("--force", "Don't ask; move a table without a key back even if rows may be duplicated.")
_required = options.many_tables("The table, as schema.table; repeatable.")


def _filters(function: F) -> F:
    """The options of everything that removes files."""
    return _older_than(_pattern(options.dry_run(function)))


@options.command("list", of=s3clean)
@options.many_tables("Only this table; repeatable.")
@_older_than
@_pattern
@options.flag("--show-timestamps", "Show when each file was written, not its age.")
def list_(
    settings: Settings,
    tables: tuple[str, ...],
    older_than: float | None,
    pattern: str | None,
    show_timestamps: bool,
) -> int:
    """Show the staged files: state, commit, rows, bytes, age.

    loaded: its rows are in the warehouse. pending: it waits to be loaded, or a running sync is writing it.
    superseded: from before a reset of both stages, or given up; ordinary syncs don't load it. orphan: no commit names
    it. unknown: the warehouse does not answer. When piped: one line per file, separated by tabs, without a header.

    \b
    Examples:
      floodmark s3clean list -t shop.orders
      floodmark s3clean list -t shop.orders --older-than 7d
      floodmark s3clean list -t shop.orders --show-timestamps | grep ^loaded
      floodmark s3clean list --json
    """
    config = settings.load()
    from floodmark.clean.choose import Selection
    from floodmark.clean.command import s3clean_list

    document = s3clean_list(config, tables, Selection(older_than, pattern))
    with settings.progress() as progress:
        for note in document.notes:
            progress(Noted("", note))
    lines = files_lines(document, _terminal(), show_timestamps, width=width())
    if lines or settings.json:
        settings.result(document, lambda _: lines)
    return 0


@options.command(of=s3clean)
@_required
@_filters
@options.yes
@_force
@_include_pending
def clean(settings: Settings, /, tables: tuple[str, ...], **given: Any) -> int:
    """Remove files whose rows are in the warehouse, and superseded files.

    Floodmark claims the table and checks in the warehouse's ledger what is loaded. Files that are not loaded stay, and so do
    loaded files after them, which would have to load again. The log names the files before they are removed, so
    `watermark validate` does not report them as missing. Removed files can't load again: `watermark reset --redshift-only` is then
    refused.

    --include-pending also gives up files that are not loaded: the next sync reads their rows again. Also use it if
    the warehouse was restored to an earlier state and the files that it lacks have been removed.

    \b
    Examples:
      floodmark s3clean clean -t shop.orders --older-than 7d --dry-run
      floodmark s3clean clean -t shop.orders --older-than 7d
      floodmark s3clean clean -t shop.orders --pattern "20250819_*" --force
    """
    if not tables:
        raise click.UsageError("name a table with -t, or use `floodmark s3clean clean-all`")
    return _remove(settings, "staged files", tables, **given)


@options.command("clean-all", of=s3clean)
@click.option("-t", "--table", "tables", multiple=True, hidden=True)
@_filters
@options.yes
@_force
@_include_pending
def clean_all(settings: Settings, /, tables: tuple[str, ...], **given: Any) -> int:
    """Remove files of every table in the store, as `clean` does for one.

    Tables that fail, or that a running sync holds, are reported at the end; the others are cleaned.

    \b
    Examples:
      floodmark s3clean clean-all --older-than 7d --dry-run
      floodmark s3clean clean-all --older-than 7d --force
    """
    if tables:
        named = " ".join(f"-t {table}" for table in tables)
        raise click.UsageError(
            f"clean-all cleans every table; to clean only some: floodmark s3clean clean {named}"
        )
    return _remove(settings, "staged files", (), all_tables=True, **given)


@options.command(of=s3clean)
@_required
@_filters
@options.yes_or_force
def orphans(settings: Settings, /, tables: tuple[str, ...], **given: Any) -> int:
    """Remove the files that no commit names.

    Crashed runs and repeated tasks leave them behind; their rows are in other files. The table is claimed first, so that
    no run can still commit one of them. Exit code 3 while a sync runs.

    \b
    Examples:
      floodmark s3clean orphans -t shop.orders --dry-run
      floodmark s3clean orphans -t shop.orders --force
    """
    if not tables:
        raise click.UsageError("name a table with -t")
    return _remove(settings, "orphans", tables, **given)


def _remove(
    settings: Settings, what: str, tables: tuple[str, ...], older_than: float | None, pattern: str | None,
    dry_run: bool, yes: bool, force: bool = False, include_pending: bool = False, all_tables: bool = False,
) -> int:  # fmt: skip
    config = settings.load()
    from floodmark.clean.choose import Selection
    from floodmark.clean.command import s3clean_clean, s3clean_orphans

    wanted, ask = Selection(older_than, pattern, include_pending), _ask(what, yes or force)
    staged = partial(s3clean_clean, all_tables=all_tables, force=force)
    work = s3clean_orphans if what == "orphans" else staged
    with settings.progress() as progress:
        document = work(config, tables, settings.run, wanted, dry_run=dry_run, confirm=ask, emit=progress)
    for one in document.tables:
        if one.error is not None:
            settings.complain(one.error)
    return settings.result(document, lambda d: removed_lines(d, _terminal()), document.exit_code)


def _ask(what: str, yes: bool) -> Callable[[Sequence[Cleaning]], None]:
    """Asks for confirmation, with the amount to be removed; does not ask if there is nothing to remove."""

    def ask(outcomes: Sequence[Cleaning]) -> None:
        files = [f for o in outcomes for f in o.removal.files]
        found = [o for o in outcomes if not o.removal.empty]
        if not found and not yes and not options.terminal():
            raise ConfigError(
                f"to remove {what}, confirm on a terminal or use --yes or --force; at the moment there are none to remove",
                hint="scripts need --yes or --force from the start: without it, they would fail as soon as there are some",
            )
        where = found[0].table if len(found) == 1 else counted(len(found), "table")
        again = [note for o in found if o.removal.clean.given_up for note in o.notes]
        much = f"{counted(len(files), 'file')}, {size(sum(f.bytes for f in files))}"
        more = f" {'; '.join(again)}." if again else ""
        options.confirm(f"Remove the {what} of {where} ({much})?{more}", yes or not found)

    return ask


def _terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()


# ---------------------------------------------------------------- for people and for pipes


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
    return [*_listed(head, rows, width), *indent("", _sums(document), width)]


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
        lines += [_tail(uri, width), *indent("  ", told, width)]
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
    commit = "" if file.commit is None else str(file.commit)
    rows = "" if file.rows is None else number(file.rows)
    return (file.state, commit, rows, size(file.bytes) if terminal else str(file.bytes), when, file.uri)


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
