"""The `watermark` commands: how far each table has got, and where it continues."""

from __future__ import annotations

import sys

import click

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
from floodmark.cli.output import emit
from floodmark.cli.output import watermark as output
from floodmark.cli.output.document import folded, position
from floodmark.model.presets import PRESETS


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
@click.option(
    "--show-files", is_flag=True, help="List every file, waiting and loaded, not only the newest 1,000."
)
@pass_settings
def get(settings: Settings, table: str | None, show_files: bool) -> int:
    """Show a table's watermark, both stages; without -t, the system watermark.

    Works while a sync runs and when MySQL or the warehouse is unreachable; what is then unknown is shown as unknown. Rows
    that were read again (overlap, --since, new columns) are counted separately.

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
        from floodmark.log.pipeline import system_get

        found = system_get(config)
        return settings.result(found, lambda: output.system_lines(found, config.options("").start))
    config = settings.load()
    from floodmark.watermark.show import watermark_get

    document = watermark_get(config, table, show_files)
    shown = document.of(emit.scrubbed(document, settings.scrub))
    paint, kind = emit.coloured(sys.stdout), config.warehouse.kind
    wide = emit.width(sys.stdout)
    return settings.result(
        document, lambda: folded(output.watermark_lines(shown, show_files, paint, kind), wide)
    )


@watermark.command("list", cls=Command)
@many_tables("Only this table; repeatable.")
@pass_settings
def list_(settings: Settings, tables: tuple[str, ...]) -> int:
    """Show every table that has a watermark, both stages.

    Below them: watermarks of the older tool (s3-redshift-backup-tool) that the first sync of their table takes over.

    \b
    Examples:
      floodmark watermark list
      floodmark watermark list -t shop.orders -t shop.customers
    """
    config = settings.load()
    from floodmark.watermark.show import watermark_list

    document = watermark_list(config, tables)
    paint, kind = emit.coloured(sys.stdout), config.warehouse.kind
    wide = emit.width(sys.stdout)
    return settings.result(
        document, lambda: output.list_lines(document.tables, paint, kind, document.older_watermarks, wide)
    )


@watermark.command("set", cls=Command)
@click.argument("preset", required=False)
@maybe_table
@timestamp_option(
    "--timestamp",
    "Start after this value of the cursor: YYYY-MM-DD[ HH:MM:SS[.ffffff]], as the column has it.",
    future=False,
)
@click.option(
    "--id",
    "key",
    metavar="ID",
    help="Among the rows with that timestamp, start after this key; alone for tables read by id.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Don't ask for confirmation (system watermark); move a table without a key back even if rows may be duplicated.",
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
    """Set where the next sync of a table starts; without -t, the system watermark.

    The next sync of the table reads rows with cursor > TS; with --id, those after (TS, ID). It holds until a sync
    extracts. `sync --redshift-only` then loads only files created after TS (UTC).

    Tables without a position begin at the system watermark. PRESET is a month and a day (aug4: the latest one that is
    not in the future), Nhours, Ndays, Nweeks or Nmonths ago, today, or yesterday.

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
            f"presets such as {preset!r} are for the system watermark; with -t, give --timestamp"
        )
    if timestamp is None and key is None:
        raise click.UsageError("give --timestamp, or --id for a table read by id")
    if key is not None and not key.strip():
        raise click.UsageError("--id is empty")
    config = settings.load()
    from floodmark.watermark.set_reset import watermark_set

    document = watermark_set(config, table, timestamp, key, settings.run, force)

    said = f"{document.table_name}: the next sync starts after {position(document)}, set by hand"
    return settings.result(document, lambda: [said, f"To undo: {document.undo}"])


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
    help="Don't ask for confirmation (system watermark); reset a table without a key even if rows may be duplicated.",
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
    """Put a table back to the start; without -t, set the system watermark to a preset.

    The next sync begins at the system watermark if there is one, else at `start`; rows that are read again are merged
    by key. Ordinary syncs no longer load files from before the reset. A reset holds: recovering a lost watermark never
    brings the old position back. To go back, run the command that the reset prints.

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
        raise click.UsageError(
            f"presets such as {preset!r} are for the system watermark; leave it out with -t"
        )
    if mysql_only and redshift_only:
        raise click.UsageError(
            "--mysql-only and --redshift-only can't be combined; to reset both stages, give neither"
        )
    config = settings.load()
    from floodmark.watermark.set_reset import watermark_reset

    document = watermark_reset(
        config, table, settings.run, mysql_only=mysql_only, redshift_only=redshift_only, force=force
    )
    load = f"S3 → {config.warehouse.can.label} is"
    stages = "MySQL → S3 is" if mysql_only else load if redshift_only else "both stages are"
    return settings.result(document, lambda: output.reset_lines(document, stages, redshift_only))


@watermark.command(cls=Command)
@one_table
@click.option(
    "--force", is_flag=True, help="Accept a table without a key too, even if rows may be duplicated."
)
@pass_settings
def accept(settings: Settings, table: str, force: bool) -> int:
    """Continue with a source that has changed or was replaced on purpose.

    With `schema_changes: ask`, a sync stops with exit code 6 when columns or options have changed. This accepts that
    change and nothing else, and says what the next sync reads again because of it.

    After a restore, a migration, a failover that lost rows, or a table that was dropped and created again, a sync stops
    with exit code 6, too. This accepts the source as it is now: the next sync reads all of it again, from the table's
    start, and merges it by key. Files from the old source no longer load.

    \b
    Examples:
      floodmark watermark accept -t shop.orders
      floodmark watermark accept -t shop.orders --json
    """
    config = settings.load()
    from floodmark.watermark.set_reset import watermark_accept

    document = watermark_accept(config, table, settings.run, force=force)
    return settings.result(document, lambda: output.accept_lines(document))


@watermark.command(cls=Command)
@one_table
@pass_settings
def retire(settings: Settings, table: str) -> int:
    """Leave a table out of `sync --all` from now on.

    When a table that was synced before disappears from the source, `sync --all` ends with exit code 2: it may have been
    dropped, or a privilege was lost. Retire it if it was dropped. Its log, files and rows stay; a later `sync -t TABLE`
    brings it back.

    \b
    Examples:
      floodmark watermark retire -t shop.old_orders
    """
    config = settings.load()
    from floodmark.watermark.set_reset import watermark_retire

    document = watermark_retire(config, table, settings.run)

    said = f"{document.table_name}: retired; `sync --all` skips it, and its log, files and rows stay"
    return settings.result(document, lambda: [said, f"To undo: {document.undo}"])


@watermark.command(cls=Command)
@click.option("--force", is_flag=True, help="Don't ask for confirmation.")
@pass_settings
def clear(settings: Settings, force: bool) -> int:
    """Remove the system watermark.

    Tables without a position then begin at `start`. Tables that have one are not affected.

    \b
    Examples:
      floodmark watermark clear
      floodmark watermark clear --force
    """
    config = settings.load()
    from floodmark.log.pipeline import system_clear

    document = system_clear(config, lambda before: confirm(f"Remove the system watermark ({before})?", force))
    return settings.result(document, lambda: output.cleared_lines(document, config.options("").start))


def _system(settings: Settings, preset: str | None, timestamp: str | None, force: bool) -> int:
    if preset is None and timestamp is None:
        raise click.UsageError(f"give -t TABLE, or a preset for the system watermark: {PRESETS}")
    if preset is not None and timestamp is not None:
        raise click.UsageError("give a preset or --timestamp, not both")
    from floodmark.log.pipeline import moment, system_set

    chosen = moment(preset, timestamp)
    config = settings.load()
    confirm(f"Set the system watermark to {chosen}?", force)
    document = system_set(config, timestamp=chosen)

    said = f"System watermark: tables without a position start after {chosen}"
    return settings.result(document, lambda: [said, f"To undo: {document.undo}"])
