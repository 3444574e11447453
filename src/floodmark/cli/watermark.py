"""The `watermark` commands: how far each table has got, and where it goes on."""

from __future__ import annotations

import sys

import click

from floodmark import output
from floodmark.cli.options import (
    Command,
    Group,
    Settings,
    confirm,
    many_tables,
    maybe_table,
    one_table,
    pass_settings,
    timestamp_option,
)
from floodmark.moments import PRESETS


@click.group(cls=Group)
def watermark() -> None:
    """See and set how far each table has got.

    \b
    Examples:
      floodmark watermark list
      floodmark watermark get -t shop.orders
      floodmark watermark set -t shop.orders --timestamp "2025-08-01 00:00:00"
      floodmark watermark reset -t shop.orders
      floodmark watermark retire -t shop.old_orders
    """


@watermark.command(cls=Command)
@maybe_table
@click.option("--show-files", is_flag=True, help="List every file, waiting and loaded, not the newest 1,000.")
@pass_settings
def get(settings: Settings, table: str | None, show_files: bool) -> int:
    """Show one table's watermark, both stages, or without -t the system watermark.

    Works while a sync runs, and when MySQL or the warehouse is away: what is unknown then says so. Rows that
    were read again (overlap, --since, new columns) are counted apart.

    \b
    Examples:
      floodmark watermark get -t shop.orders
      floodmark watermark get -t shop.orders --show-files
      floodmark watermark get -t shop.orders --json > backup.json
      floodmark watermark get
    """
    if table is None:
        if show_files:
            raise click.UsageError("--show-files needs -t")
        config = settings.load()
        from floodmark.system import system_get

        found = system_get(config)
        settings.result(found, lambda: output.system_lines(found, config.options("").start))
        return 0
    config = settings.load()
    from floodmark.watermarks import watermark_get

    document = watermark_get(config, table, show_files)
    shown = output.scrubbed(document, settings.scrub)
    settings.result(document, lambda: output.watermark_lines(shown, show_files, output.coloured(sys.stdout)))
    return 0


@watermark.command("list", cls=Command)
@many_tables("Only this table; may be given several times.")
@pass_settings
def list_(settings: Settings, tables: tuple[str, ...]) -> int:
    """Show every table that has a watermark, both stages.

    \b
    Examples:
      floodmark watermark list
      floodmark watermark list -t shop.orders -t shop.customers
    """
    config = settings.load()
    from floodmark.watermarks import watermark_list

    document = watermark_list(config, tables)
    settings.result(document, lambda: output.list_lines(document["tables"], output.coloured(sys.stdout)))
    return 0


@watermark.command("set", cls=Command)
@click.argument("preset", required=False)
@maybe_table
@timestamp_option(
    "--timestamp",
    "Start after this value of the cursor: YYYY-MM-DD[ HH:MM:SS[.ffffff]], in the column's own terms.",
    future=False,
)
@click.option(
    "--id",
    "key",
    metavar="ID",
    help="Start after this key among the rows of that very timestamp; alone for tables read by id.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Don't ask (system watermark); move a keyless table back although rows would be doubled.",
)
@pass_settings
def set_(
    settings: Settings,
    preset: str | None,
    table: str | None,
    timestamp: str | None,
    key: str | None,
    force: bool,
) -> int:
    """Set where the next sync of a table starts, or without -t the system watermark.

    The next sync of the table reads rows with cursor > TS; with --id those after (TS, ID). It holds until a
    sync extracts. With `sync --redshift-only` it means: load only files created after TS (UTC).

    The system watermark is where tables begin that have no position of their own. PRESET is a month and a
    day (aug4: the latest that is not in the future), Nhours, Ndays, Nweeks or Nmonths ago, today, yesterday.

    \b
    Examples:
      floodmark watermark set -t shop.orders --timestamp 2025-08-01
      floodmark watermark set -t shop.orders --timestamp "2025-08-01 12:00:00" --id 1250000
      floodmark watermark set -t shop.events --id 1250000
      floodmark watermark set 1week
      floodmark watermark set --timestamp 2025-08-01 --force
    """
    if table is None:
        if key is not None:
            raise click.UsageError("--id needs -t")
        return _system(settings, preset, timestamp, force)
    if preset is not None:
        raise click.UsageError(
            f"{preset!r} is for the system watermark, without -t; with it, give --timestamp"
        )
    if timestamp is None and key is None:
        raise click.UsageError("give --timestamp, or --id for a table that is read by id")
    if key is not None and not key.strip():
        raise click.UsageError("--id is empty")
    config = settings.load()
    from floodmark.moves import watermark_set

    document = watermark_set(config, table, timestamp, key, settings.run, force)

    def lines() -> list[str]:
        start = output.position(document) or "the start"
        said = [f"{document.get('table_name', table)}: the next sync starts after {start}, set by hand"]
        return said + ([f"To undo: {document['undo']}"] if document.get("undo") else [])

    settings.result(document, lines)
    return 0


@watermark.command(cls=Command)
@click.argument("preset", required=False)
@maybe_table
@click.option(
    "--mysql-only", is_flag=True, help="Only MySQL → S3: read from the start; what was loaded stays."
)
@click.option("--redshift-only", is_flag=True, help="Only S3 → warehouse: all files load again, once.")
@click.option(
    "--force",
    is_flag=True,
    help="Don't ask (system watermark); reset a keyless table although rows would be doubled.",
)
@pass_settings
def reset(
    settings: Settings,
    preset: str | None,
    table: str | None,
    mysql_only: bool,
    redshift_only: bool,
    force: bool,
) -> int:
    """Put a table back to the start, or without -t the system watermark to a preset.

    The next sync begins at the system watermark if there is one, else at `start`; rows that are read again
    replace themselves by key. Files from before no longer load by themselves. A reset stays: no backup
    revives what was before it.

    \b
    Examples:
      floodmark watermark reset -t shop.orders
      floodmark watermark reset -t shop.orders --mysql-only
      floodmark watermark reset -t shop.orders --redshift-only
      floodmark watermark reset yesterday
    """
    if table is None:
        if mysql_only or redshift_only:
            raise click.UsageError("--mysql-only and --redshift-only need -t")
        return _system(settings, preset, None, force)
    if preset is not None:
        raise click.UsageError(f"{preset!r} is for the system watermark, without -t")
    if mysql_only and redshift_only:
        raise click.UsageError("--mysql-only and --redshift-only exclude each other; give neither for both")
    config = settings.load()
    from floodmark.moves import watermark_reset

    document = watermark_reset(
        config, table, settings.run, mysql_only=mysql_only, redshift_only=redshift_only, force=force
    )
    stages = "MySQL → S3 is" if mysql_only else "S3 → Redshift is" if redshift_only else "both stages are"
    settings.result(document, lambda: output.reset_lines(document, stages, redshift_only))
    return 0


@watermark.command(cls=Command)
@one_table
@click.option("--force", is_flag=True, help="Also a keyless table, although rows would be doubled.")
@pass_settings
def accept(settings: Settings, table: str, force: bool) -> int:
    """Go on with a source that was replaced on purpose.

    After a restore, a migration, a failover that lost rows or a table that was made anew, a sync stops with exit
    code 6. This takes the source as it is now: the next sync reads all of it again, from where the table began, and
    merges it by key. Files of the former source no longer load.

    \b
    Examples:
      floodmark watermark accept -t shop.orders
      floodmark watermark accept -t shop.orders --json
    """
    config = settings.load()
    from floodmark.accept import watermark_accept

    document = watermark_accept(config, table, settings.run, force=force)
    settings.result(document, lambda: output.reset_lines(document, "the source is accepted; both stages are"))
    return 0


@watermark.command(cls=Command)
@one_table
@pass_settings
def retire(settings: Settings, table: str) -> int:
    """Leave a table out of `sync --all` from now on: it is meant to be gone.

    A table that was synced before and that the source no longer shows ends `sync --all` with exit code 2, because
    a lost privilege looks the same. This says that it is meant. The table's log, files and rows stay; a later
    `sync -t TABLE` brings it back.

    \b
    Examples:
      floodmark watermark retire -t shop.old_orders
    """
    config = settings.load()
    from floodmark.moves import watermark_retire

    document = watermark_retire(config, table, settings.run)

    def lines() -> list[str]:
        said = f"{document['table_name']}: retired; `sync --all` leaves it out, its log, files and rows stay"
        return [said, f"To undo: {document['undo']}"]

    settings.result(document, lines)
    return 0


def _system(settings: Settings, preset: str | None, timestamp: str | None, force: bool) -> int:
    if preset is None and timestamp is None:
        raise click.UsageError(f"give -t and a table, or for the system watermark a preset: {PRESETS}")
    if preset is not None and timestamp is not None:
        raise click.UsageError("give a preset or --timestamp, not both")
    from floodmark.system import moment, system_set

    chosen = moment(preset, timestamp)
    config = settings.load()
    confirm(f"Set the system watermark to {chosen}?", force)
    document = system_set(config, timestamp=chosen)

    def lines() -> list[str]:
        said = f"System watermark: tables without a position of their own start after {chosen}"
        return [said, f"To undo: {document['undo']}"]

    settings.result(document, lines)
    return 0
