"""The `s3clean` commands: what lies staged in the store, and removing what may go."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from floodmark import output_s3clean as output
from floodmark.cli.options import Command, Group, Settings, confirm, many_tables, pass_settings, terminal
from floodmark.units import counted, size
from floodmark.values import duration

if TYPE_CHECKING:
    from floodmark.staging import Outcome

F = TypeVar("F", bound=Callable[..., Any])


@click.group(cls=Group)
def s3clean() -> None:
    """See and remove staged files.

    A file goes only when the warehouse has its rows, or when they will never be asked for. Nothing else in the
    store is touched: not the log, not the watermarks, not another table's files.

    \b
    Examples:
      floodmark s3clean list -t shop.orders
      floodmark s3clean clean -t shop.orders --older-than 7d --dry-run
      floodmark s3clean clean-all --older-than 7d --force
      floodmark s3clean orphans -t shop.orders
    """


def _duration(ctx: click.Context, parameter: click.Parameter, value: str | None) -> float | None:
    if value is None:
        return None
    try:
        return duration(value)
    except ValueError as error:
        raise click.BadParameter(f"{value} {error}", ctx, parameter) from None


def _filters(function: F) -> F:
    """The options of everything that removes files."""
    options = (
        click.option(
            "--older-than",
            metavar="AGE",
            callback=_duration,
            help="Only files that were written that long ago: 7d, 24h, 30m.",
        ),
        click.option(
            "--pattern",
            metavar="GLOB",
            help="Only files whose name, or path below the store's prefix, fits; as `list` prints it.",
        ),
        click.option("--dry-run", is_flag=True, help="Only print what would be removed."),
        click.option("--force", is_flag=True, help="Don't ask."),
    )
    for option in reversed(options):
        function = option(function)
    return function


_include_pending = click.option(
    "--include-pending",
    is_flag=True,
    help="Also files that are not loaded yet; the position goes back to before them.",
)
_required = many_tables("The table, as schema.table; may be given several times.")


@s3clean.command("list", cls=Command)
@many_tables("Only this table; may be given several times.")
@click.option("--show-timestamps", is_flag=True, help="When each file was written, not how long ago.")
@pass_settings
def list_(settings: Settings, tables: tuple[str, ...], show_timestamps: bool) -> int:
    """Show the staged files: state, commit, rows, bytes, age.

    loaded: the warehouse has its rows. pending: it waits to be loaded, or a running sync is writing it.
    superseded: from before a reset of both stages, or given up; does not load by itself. orphan: no commit
    names it. unknown: the warehouse can't be asked now. When piped: one line per file, tabs between, no header.

    \b
    Examples:
      floodmark s3clean list -t shop.orders
      floodmark s3clean list -t shop.orders --show-timestamps | grep ^loaded
      floodmark s3clean list --json
    """
    config = settings.load()
    from floodmark.s3clean import s3clean_list

    document = s3clean_list(config, tables)
    with settings.progress() as progress:
        for note in document["notes"]:
            progress.note("", note)
    lines = output.files_lines(document, _terminal(), show_timestamps)
    if lines or settings.json:
        settings.result(document, lambda: lines)
    return 0


@s3clean.command(cls=Command)
@_required
@_filters
@_include_pending
@pass_settings
def clean(settings: Settings, /, tables: tuple[str, ...], **options: Any) -> int:
    """Remove the files whose rows are in the warehouse, and superseded ones.

    The warehouse's ledger is asked under a claim. Files that are not loaded stay, and so do loaded ones behind
    them, which would have to load again. What is removed is named in the log first: `watermark validate` misses
    nothing afterwards. The files can't load again: `watermark reset --redshift-only` is then refused.

    --include-pending gives up what is not loaded: those rows are read again by the next sync. It is also the way
    on when a warehouse was set back and the files that it lacks have been removed.

    \b
    Examples:
      floodmark s3clean clean -t shop.orders --older-than 7d --dry-run
      floodmark s3clean clean -t shop.orders --older-than 7d
      floodmark s3clean clean -t shop.orders --pattern "20250819_*" --force
    """
    if not tables:
        raise click.UsageError("name a table with -t, or use `s3clean clean-all`")
    return _clean(settings, tables, **options)


@s3clean.command("clean-all", cls=Command)
@_filters
@_include_pending
@pass_settings
def clean_all(settings: Settings, /, **options: Any) -> int:
    """The same for every table of the store.

    A table that fails, or that a running sync holds, is said at the end; the others are cleaned.

    \b
    Examples:
      floodmark s3clean clean-all --older-than 7d --dry-run
      floodmark s3clean clean-all --older-than 7d --force
    """
    return _clean(settings, (), all_tables=True, **options)


@s3clean.command(cls=Command)
@_required
@_filters
@pass_settings
def orphans(
    settings: Settings,
    tables: tuple[str, ...],
    older_than: float | None,
    pattern: str | None,
    dry_run: bool,
    force: bool,
) -> int:
    """Remove the files that no commit names.

    They are what crashed runs and repeated tasks leave behind; their rows are in other files. The table is
    claimed first, so that no run can still commit one of them; while a sync runs it is exit code 3.

    \b
    Examples:
      floodmark s3clean orphans -t shop.orders --dry-run
      floodmark s3clean orphans -t shop.orders --force
    """
    if not tables:
        raise click.UsageError("name a table with -t")
    config = settings.load()
    from floodmark.clean import Wanted
    from floodmark.s3clean import s3clean_orphans

    with settings.progress() as progress:
        document = s3clean_orphans(
            config, tables, settings.run, Wanted(older_than, pattern),
            dry_run=dry_run, confirm=_ask("orphans", force), progress=progress,
        )  # fmt: skip
    return _told(settings, document)


def _clean(
    settings: Settings,
    tables: tuple[str, ...],
    older_than: float | None,
    pattern: str | None,
    dry_run: bool,
    force: bool,
    include_pending: bool,
    all_tables: bool = False,
) -> int:
    config = settings.load()
    from floodmark.clean import Wanted
    from floodmark.s3clean import s3clean_clean

    with settings.progress() as progress:
        document = s3clean_clean(
            config, tables, settings.run, Wanted(older_than, pattern, include_pending), all_tables=all_tables,
            dry_run=dry_run, force=force, confirm=_ask("staged files", force), progress=progress,
        )  # fmt: skip
    return _told(settings, document)


def _ask(what: str, force: bool) -> Callable[[Sequence[Outcome]], None]:
    """The question before anything is removed, with how much that is."""

    def ask(outcomes: Sequence[Outcome]) -> None:
        files = [f for o in outcomes for f in o.removal.files]
        found = [o for o in outcomes if not o.removal.empty]
        where = found[0].table if len(found) == 1 else counted(len(found), "table")
        again = [note for o in found if o.removal.clean.given_up for note in o.notes]
        much = f"{counted(len(files), 'file')}, {size(sum(f.bytes for f in files))}"
        more = f" {'; '.join(again)}." if again else ""
        confirm(f"Remove the {what} of {where} ({much})?{more}", force or (not found and terminal()))

    return ask


def _told(settings: Settings, document: dict[str, Any]) -> int:
    for found in document["tables"]:
        if found["error"] is not None:
            settings.complain(found["error"])
    settings.result(document, lambda: output.removed_lines(document, _terminal()))
    return int(document["exit_code"])


def _terminal() -> bool:
    return sys.stdout is not None and sys.stdout.isatty()
