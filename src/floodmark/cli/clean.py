"""The `s3clean` commands: list the staged files in the store, and remove those that are no longer needed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import click

from floodmark.cli.options import (
    Command,
    Group,
    Settings,
    confirm,
    many_tables,
    parsed,
    pass_settings,
    terminal,
)
from floodmark.cli.output import clean as output
from floodmark.cli.output import emit
from floodmark.config.values import duration
from floodmark.model.errors import ConfigError
from floodmark.model.events import Noted
from floodmark.model.text import counted, size

if TYPE_CHECKING:
    from floodmark.clean.remove import Cleaning

F = TypeVar("F", bound=Callable[..., Any])


@click.group(cls=Group)
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


def _age(value: str) -> float:
    try:
        return duration(value)
    except ValueError as error:
        raise ValueError(f"{value} {error}") from None


_older_than = click.option(
    "--older-than",
    metavar="AGE",
    callback=parsed(_age),
    help="Only files written at least this long ago: 7d, 24h, 30m.",
)
_pattern = click.option(
    "--pattern",
    metavar="GLOB",
    help="Only files whose name (or path, as `list` prints it) matches.",
)


def _filters(function: F) -> F:
    """The options of everything that removes files."""
    options = (
        _older_than,
        _pattern,
        click.option("--dry-run", is_flag=True, help="Only print what would be removed."),
        click.option("--force", is_flag=True, help="Don't ask for confirmation."),
    )
    for option in reversed(options):
        function = option(function)
    return function


_include_pending = click.option(
    "--include-pending",
    is_flag=True,
    help="Also files that are not loaded yet; the position moves back to before them.",
)
_required = many_tables("The table, as schema.table; repeatable.")


@s3clean.command("list", cls=Command)
@many_tables("Only this table; repeatable.")
@_older_than
@_pattern
@click.option("--show-timestamps", is_flag=True, help="Show when each file was written, not its age.")
@pass_settings
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
    lines = output.files_lines(document, _terminal(), show_timestamps, width=emit.width(sys.stdout))
    if lines or settings.json:
        settings.result(document, lambda: lines)
    return 0


@s3clean.command(cls=Command)
@_required
@_filters
@_include_pending
@pass_settings
def clean(settings: Settings, /, tables: tuple[str, ...], **options: Any) -> int:
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
    return _remove(settings, "staged files", tables, **options)


@s3clean.command("clean-all", cls=Command)
@click.option("-t", "--table", "tables", multiple=True, hidden=True)
@_filters
@_include_pending
@pass_settings
def clean_all(settings: Settings, /, tables: tuple[str, ...], **options: Any) -> int:
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
    return _remove(settings, "staged files", (), all_tables=True, **options)


@s3clean.command(cls=Command)
@_required
@_filters
@pass_settings
def orphans(settings: Settings, /, tables: tuple[str, ...], **options: Any) -> int:
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
    return _remove(settings, "orphans", tables, **options)


def _remove(
    settings: Settings,
    what: str,
    tables: tuple[str, ...],
    older_than: float | None,
    pattern: str | None,
    dry_run: bool,
    force: bool,
    include_pending: bool = False,
    all_tables: bool = False,
) -> int:
    config = settings.load()
    from floodmark.clean.choose import Selection
    from floodmark.clean.command import s3clean_clean, s3clean_orphans

    remove = s3clean_orphans
    if what != "orphans":
        remove = partial(s3clean_clean, all_tables=all_tables, force=force)
    wanted = Selection(older_than, pattern, include_pending)
    with settings.progress() as progress:
        document = remove(
            config, tables, settings.run, wanted, dry_run=dry_run, confirm=_ask(what, force), emit=progress
        )
    for table in document.tables:
        if table.error is not None:
            settings.complain(table.error)
    return settings.result(document, lambda: output.removed_lines(document, _terminal()), document.exit_code)


def _ask(what: str, force: bool) -> Callable[[Sequence[Cleaning]], None]:
    """Asks for confirmation, with the amount to be removed; does not ask if there is nothing to remove."""

    def ask(outcomes: Sequence[Cleaning]) -> None:
        files = [f for o in outcomes for f in o.removal.files]
        found = [o for o in outcomes if not o.removal.empty]
        if not found and not force and not terminal():
            raise ConfigError(
                f"to remove {what}, confirm on a terminal or use --force; at the moment there are none to remove",
                hint="scripts need --force from the start: without it, they would fail as soon as there are some",
            )
        where = found[0].table if len(found) == 1 else counted(len(found), "table")
        again = [note for o in found if o.removal.clean.given_up for note in o.notes]
        much = f"{counted(len(files), 'file')}, {size(sum(f.bytes for f in files))}"
        more = f" {'; '.join(again)}." if again else ""
        confirm(f"Remove the {what} of {where} ({much})?{more}", force or not found)

    return ask


def _terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()
