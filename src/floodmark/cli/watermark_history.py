"""The `watermark` commands for a table's history and its copies: history, restore, backups, drill, cleanup, validate."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from floodmark.cli.options import Command, Settings, confirm, many_tables, one_table, pass_settings, terminal
from floodmark.cli.output import emit
from floodmark.cli.output import history as output
from floodmark.model.errors import VerificationError
from floodmark.model.text import counted, size

if TYPE_CHECKING:
    from floodmark.clean.copies import Old


@click.command(cls=Command)
@one_table
@pass_settings
def history(settings: Settings, table: str) -> int:
    """Show a table's commits, newest first.

    Each commit is one change: a claim by a run, a batch of files, a set, a reset, a restore. The position is where the
    next sync would have continued; `restore --commit N` goes back to it.

    \b
    Examples:
      floodmark watermark history -t shop.orders
      floodmark watermark history -t shop.orders --json
    """
    config = settings.load()
    from floodmark.watermark.history import watermark_history

    document = watermark_history(config, table)
    return settings.result(document, lambda: output.history_lines(document, emit.width(sys.stdout)))


@click.command(cls=Command)
@one_table
@click.option(
    "--commit", type=click.IntRange(min=0), metavar="N", help="The position after commit N (see `history`)."
)
@click.option(
    "--file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="F",
    help="The position in a file that `watermark get -t TABLE --json` printed.",
)
@click.option("--force", is_flag=True, help="Move a table without a key back even if rows may be duplicated.")
@pass_settings
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
    config = settings.load()
    from floodmark.watermark.history import watermark_restore

    document = watermark_restore(config, table, settings.run, commit=commit, file=file, force=force)
    return settings.result(document, lambda: output.restore_lines(document))


@click.command(cls=Command)
@one_table
@pass_settings
def backups(settings: Settings, table: str) -> int:
    """Show where the copies of a table's watermark are, which of them are valid, and the latest recoveries.

    This changes nothing. The next command that needs a damaged watermark recovers it automatically.

    \b
    Examples:
      floodmark watermark backups -t shop.orders
      floodmark watermark backups -t shop.orders --json
    """
    config = settings.load()
    from floodmark.watermark.backups import watermark_backups

    document = watermark_backups(config, table)
    return settings.result(document, lambda: output.backups_lines(document))


@click.command(cls=Command)
@click.option(
    "--days", type=click.IntRange(min=0), default=7, show_default=True, help="Remove copies older than this."
)
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
@click.option("--force", is_flag=True, help="Don't ask for confirmation.")
@pass_settings
def cleanup(settings: Settings, days: int, dry_run: bool, force: bool) -> int:
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
        nothing = not old.all and terminal()
        confirm(f"Remove the watermark copies older than {counted(days, 'day')} ({what})?", force or nothing)

    document = watermark_cleanup(config, days, dry_run, ask)
    return settings.result(document, lambda: output.cleanup_lines(document))


@click.command(cls=Command)
@many_tables("Only this table; repeatable.")
@click.option("--repair", is_flag=True, help="Repair what can be repaired without losing anything.")
@pass_settings
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
    config = settings.load()
    from floodmark.watermark.validate import watermark_validate

    document = watermark_validate(config, tables, repair=repair, run=settings.run)
    code = 0 if document.ok else VerificationError.code
    return settings.result(document, lambda: output.validate_lines(document), code, free_text=True)


@click.command(cls=Command)
@pass_settings
def move(settings: Settings) -> int:
    """Move the store's pipeline to another warehouse: the one in the configuration.

    That warehouse must be reachable. Its ledger says what it already has (it may be a restored or moved copy); the next
    sync loads all other files of the store. The old warehouse is not touched.

    \b
    Examples:
      floodmark watermark move
    """
    config = settings.load()
    from floodmark.watermark.set_reset import watermark_move

    document = watermark_move(config, settings.run)
    return settings.result(document, lambda: output.move_lines(document))


@click.command(cls=Command)
@many_tables("The table; repeatable.")
@click.option("--all", "all_tables", is_flag=True, help="Every table that has a watermark.")
@pass_settings
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
    config = settings.load()
    from floodmark.watermark.backups import watermark_drill

    document = watermark_drill(config, tables, all_tables=all_tables)
    return settings.result(document, lambda: output.drill_lines(document), document.exit_code, free_text=True)


COMMANDS = (history, restore, backups, drill, cleanup, validate, move)
