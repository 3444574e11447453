"""The `watermark` commands about a table's past and its copies: history, restore, backups, cleanup, validate."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from floodmark import output_watermark as output
from floodmark.cli.options import Command, Settings, confirm, many_tables, one_table, pass_settings, terminal
from floodmark.errors import VerificationError
from floodmark.units import counted, size

if TYPE_CHECKING:
    from floodmark.copies import Old


@click.command(cls=Command)
@one_table
@pass_settings
def history(settings: Settings, table: str) -> int:
    """Show a table's commits, newest first.

    Each is one change: a claim by a run, a batch of files, a set, a reset, a restore. The position is where
    the next sync would have gone on after it; `restore --commit N` goes back there.

    \b
    Examples:
      floodmark watermark history -t shop.orders
      floodmark watermark history -t shop.orders --json
    """
    config = settings.load()
    from floodmark.history import watermark_history

    document = watermark_history(config, table)
    settings.result(document, lambda: output.history_lines(document))
    return 0


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
@click.option("--force", is_flag=True, help="Also where rows would be doubled: a keyless table moved back.")
@pass_settings
def restore(settings: Settings, table: str, commit: int | None, file: Path | None, force: bool) -> int:
    """Go back to where a table was read up to at an earlier time.

    Moves only the position of MySQL → S3, by a new commit on top: nothing is rewritten, no file is forgotten.
    Rows that the next sync reads again replace themselves by key.

    \b
    Examples:
      floodmark watermark restore -t shop.orders --commit 41
      floodmark watermark get -t shop.orders --json > backup.json
      floodmark watermark restore -t shop.orders --file backup.json
    """
    if (commit is None) == (file is None):
        raise click.UsageError("give --commit N, or --file F; one of the two")
    config = settings.load()
    from floodmark.history import watermark_restore

    document = watermark_restore(config, table, settings.run, commit=commit, file=file, force=force)
    settings.result(document, lambda: output.restore_lines(document))
    return 0


@click.command(cls=Command)
@one_table
@pass_settings
def backups(settings: Settings, table: str) -> int:
    """Show where the copies of a table's watermark are, which are valid, and the latest recoveries.

    Nothing is mended by looking: the next command that needs the watermark recovers it by itself.

    \b
    Examples:
      floodmark watermark backups -t shop.orders
      floodmark watermark backups -t shop.orders --json
    """
    config = settings.load()
    from floodmark.copies import watermark_backups

    document = watermark_backups(config, table)
    settings.result(document, lambda: output.backups_lines(document))
    return 0


@click.command(cls=Command)
@click.option(
    "--days", type=click.IntRange(min=0), default=7, show_default=True, help="Remove copies older than this."
)
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option("--force", is_flag=True, help="Don't ask.")
@pass_settings
def cleanup(settings: Settings, days: int, dry_run: bool, force: bool) -> int:
    """Remove old daily and session copies of watermarks.

    Sync does it by itself once a day, as `keep_copies` says. The primary copy and each table's newest daily
    copy stay.

    \b
    Examples:
      floodmark watermark cleanup --dry-run
      floodmark watermark cleanup --days 3 --force
    """
    config = settings.load()
    from floodmark.copies import watermark_cleanup

    def ask(old: Old) -> None:
        what = f"{counted(len(old.all), 'object')}, {size(old.bytes)}"
        nothing = not old.all and terminal()
        confirm(f"Remove the watermark copies older than {counted(days, 'day')} ({what})?", force or nothing)

    document = watermark_cleanup(config, days, dry_run, ask)
    settings.result(document, lambda: output.cleanup_lines(document))
    return 0


@click.command(cls=Command)
@many_tables("Only this table; may be given several times.")
@click.option("--repair", is_flag=True, help="Mend what can be mended without losing anything.")
@pass_settings
def validate(settings: Settings, tables: tuple[str, ...], repair: bool) -> int:
    """Compare what is tracked with what is really there.

    The log, the published copies, the files in the store, the warehouse's ledger and rows, each against the
    others. Exit code 7 when there are findings. --repair publishes copies again and puts lost commits back;
    files are never removed here. The source is not read: that is what `verify` is for.

    \b
    Examples:
      floodmark watermark validate
      floodmark watermark validate -t shop.orders
      floodmark watermark validate -t shop.orders --repair
    """
    config = settings.load()
    from floodmark.validate import watermark_validate

    document = watermark_validate(config, tables, repair=repair, run=settings.run)
    settings.result(document, lambda: [settings.scrub(line) for line in output.validate_lines(document)])
    return 0 if document["ok"] else VerificationError.code


@click.command(cls=Command)
@pass_settings
def move(settings: Settings) -> int:
    """Let the pipeline of the store go on into another warehouse, the one that the configuration names.

    The warehouse has to answer. What it has already (it was moved, or restored elsewhere) its ledger tells; all
    other files of the store load with the next sync. Nothing is removed from the old warehouse.

    \b
    Examples:
      floodmark watermark move
    """
    config = settings.load()
    from floodmark.moves import watermark_move

    document = watermark_move(config, settings.run)
    settings.result(document, lambda: output.move_lines(document))
    return 0


COMMANDS = (history, restore, backups, cleanup, validate, move)
