"""The `watermark` commands: how far each table has got, and where it goes on."""

from __future__ import annotations

import sys

import click

from floodmark import output
from floodmark.cli.options import (
    Command,
    Group,
    Settings,
    many_tables,
    one_table,
    pass_settings,
    timestamp_option,
)


@click.group(cls=Group)
def watermark() -> None:
    """See and set how far each table has got.

    \b
    Examples:
      floodmark watermark list
      floodmark watermark get -t shop.orders
      floodmark watermark set -t shop.orders --timestamp "2025-08-01 00:00:00"
    """


@watermark.command(cls=Command)
@one_table
@click.option("--show-files", is_flag=True, help="List every file, waiting and loaded, not the newest 1,000.")
@pass_settings
def get(settings: Settings, table: str, show_files: bool) -> int:
    """Show one table's watermark, both stages.

    Works while a sync runs, and when MySQL or the warehouse is away: what is unknown then says so.

    \b
    Examples:
      floodmark watermark get -t shop.orders
      floodmark watermark get -t shop.orders --show-files
      floodmark watermark get -t shop.orders --json > backup.json
    """
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
@one_table
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
@click.option("--force", is_flag=True, help="Also where rows would be doubled: a keyless table moved back.")
@pass_settings
def set_(settings: Settings, table: str, timestamp: str | None, key: str | None, force: bool) -> int:
    """Set where the next sync of a table starts.

    The next sync reads rows with cursor > TS; with --id those after (TS, ID). It holds until a sync extracts.
    With `sync --redshift-only` it means: load only files created after TS (UTC).

    \b
    Examples:
      floodmark watermark set -t shop.orders --timestamp 2025-08-01
      floodmark watermark set -t shop.orders --timestamp "2025-08-01 12:00:00" --id 1250000
      floodmark watermark set -t shop.events --id 1250000
    """
    if timestamp is None and key is None:
        raise click.UsageError("give --timestamp, or --id for a table that is read by id")
    if key is not None and not key.strip():
        raise click.UsageError("--id is empty")
    config = settings.load()
    from floodmark.watermarks import watermark_set

    document = watermark_set(config, table, timestamp, key, settings.run, force)

    def lines() -> list[str]:
        start = output.position(document) or "the start"
        said = [f"{document.get('table_name', table)}: the next sync starts after {start}, set by hand"]
        return said + ([f"To undo: {document['undo']}"] if document.get("undo") else [])

    settings.result(document, lines)
    return 0
