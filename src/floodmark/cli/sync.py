"""The command that moves rows: `sync`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from floodmark.cli.options import (
    Command,
    Settings,
    duration_option,
    many_tables,
    one_choice,
    parsed,
    pass_settings,
    timestamp_option,
)
from floodmark.cli.output import emit
from floodmark.cli.output.sync import Shown, sync_lines
from floodmark.cli.resident import stay
from floodmark.cli.signals import KEPT, import_aside
from floodmark.model.errors import Interrupted
from floodmark.model.events import Noted, to_all
from floodmark.model.run import SyncOptions, TableReport

if TYPE_CHECKING:
    from floodmark.config.load import Config
    from floodmark.spark.context import WarmSpark

Strategy = Literal["auto", "sequential", "inter-table", "intra-table"]


def _address(value: str) -> tuple[str, int]:
    """`127.0.0.1:9908`, `[::1]:9908` or `:9908`, which is loopback."""
    host, separator, port = value.rpartition(":")
    if not separator or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ValueError("must be HOST:PORT, such as 127.0.0.1:9908")
    return host.strip("[]") or "127.0.0.1", int(port)


@click.command(cls=Command)
@many_tables("A table, as schema.table; repeatable.")
@click.option(
    "--all",
    "all_tables",
    is_flag=True,
    help="The tables of the configuration, or every table of the source if it names none; not retired ones.",
)
@click.option(
    "-s",
    "--strategy",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "sequential", "inter-table", "intra-table"]),
    help="sequential: slice after slice, in cursor order. inter-table: several tables in parallel. "
    "intra-table: slices of one table in parallel.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Read at most the first N rows of each table. With --redshift-only: load whole commits, up to N rows.",
)
@click.option(
    "--max-chunks",
    type=click.IntRange(min=1),
    metavar="M",
    help="Read M chunks of N rows each (of slice_rows without --limit).",
)
@click.option("--backup-only", is_flag=True, help="Extract only (MySQL → S3); a later run loads the files.")
@click.option(
    "--redshift-only",
    "--load-only",
    "load_only",
    is_flag=True,
    help="Load only (S3 → warehouse): the pending files.",
)
@click.option(
    "--verify-data",
    is_flag=True,
    help="Compare the loaded rows with the source; exit code 7 if they differ.",
)
@click.option(
    "--dry-run", is_flag=True, help="Show what would be read, loaded and run in the warehouse; write nothing."
)
@timestamp_option("--since", "Read rows with cursor > TS again, up to the watermark, which does not move.")
@timestamp_option("--until", "With --since: only rows with cursor <= TS.")
@click.option(
    "--max-workers",
    type=click.IntRange(min=1),
    metavar="N",
    help="Sync at most N tables in parallel (if not given, 16, and up to 64 while they wait for Spark).",
)
@duration_option(
    "--every", "Keep running and sync this often (30s, 5m), with Spark kept warm, until Ctrl-C or SIGTERM."
)
@click.option(
    "--listen",
    callback=parsed(_address),
    metavar="HOST:PORT",
    help="With --every: serve /metrics (Prometheus) and /healthz on this address, such as 127.0.0.1:9908.",
)
@click.option(
    "--metrics-file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the metrics of all tables to FILE after the run, for node_exporter (*.prom).",
)
@click.option(
    "--force",
    is_flag=True,
    help="Proceed even if rows may be duplicated or removed.",
)
@click.option("-v", "--verbose", is_flag=True, help="Print each table in full, with all its notes.")
@pass_settings
def sync(
    settings: Settings, tables: tuple[str, ...], all_tables: bool, strategy: Strategy, limit: int | None,
    max_chunks: int | None, backup_only: bool, load_only: bool, verify_data: bool, dry_run: bool,
    since: str | None, until: str | None, max_workers: int | None, every: float | None, listen: tuple[str, int] | None,
    metrics_file: Path | None, force: bool, verbose: bool,
) -> int:  # fmt: skip
    """Copy what is new: MySQL → S3 → warehouse.

    Continues where the last run stopped, even after a crash: every committed row arrives exactly once.
    A run copies what was committed when it began.

    Timestamps are YYYY-MM-DD[ HH:MM:SS[.ffffff]], as the cursor column has them.

    \b
    Examples:
      floodmark sync -t shop.orders
      floodmark sync --all --max-workers 4
      floodmark sync -t shop.orders --backup-only
      floodmark sync -t shop.orders --redshift-only
      floodmark sync -t shop.orders --verify-data
      floodmark sync -t shop.orders --limit 10000 --max-chunks 3
      floodmark sync -t shop.orders --since 2025-08-01 --until "2025-08-02 12:00:00"
      floodmark sync --all --every 30s --listen 127.0.0.1:9908
      floodmark sync --all --metrics-file /var/lib/node_exporter/floodmark.prom
    """
    one_choice(tables, all_tables)
    options = SyncOptions(
        strategy=strategy, limit=limit, max_chunks=max_chunks, backup_only=backup_only, load_only=load_only,
        dry_run=dry_run, since=since, until=until, max_workers=max_workers, verify_data=verify_data,
        force=force,
    )  # fmt: skip
    if mistake := options.mistake():
        raise click.UsageError(mistake)
    once = {"--dry-run": dry_run, "--since": since is not None, "--force": force}
    if every is not None and any(once.values()):
        raise click.UsageError(
            f"--every repeats a sync and can't be combined with {next(n for n in once if once[n])}"
        )
    if listen is not None and every is None:
        raise click.UsageError("--listen needs --every")
    if metrics_file is not None and not metrics_file.absolute().parent.is_dir():
        raise click.UsageError(f"--metrics-file: there is no folder {metrics_file.absolute().parent}")
    settings.left = lambda: "nothing was written" if dry_run else KEPT
    config = settings.load()
    if every is not None:
        _warn_of_exposed_secrets(settings, config)
        return stay(settings, config, tables, all_tables, options, every, listen, metrics_file)
    from floodmark.sync.early import early_spark

    with early_spark(config, tables, all_tables, options, settings.run) as spark:
        return _once(settings, config, tables, all_tables, options, metrics_file, verbose, spark)


def _once(
    settings: Settings,
    config: Config,
    tables: tuple[str, ...],
    all_tables: bool,
    options: SyncOptions,
    metrics_file: Path | None,
    verbose: bool,
    spark: WarmSpark,
) -> int:
    """One sync, from its imports to the printed result."""
    import_aside("floodmark.status.run", "floodmark.sync.run")
    from floodmark.status.run import Observer
    from floodmark.sync.run import sync as run_sync

    def lines(tables: Sequence[TableReport], seconds: float, unfinished: Sequence[str] = ()) -> list[str]:
        width, paint = emit.width(sys.stdout), emit.coloured(sys.stdout)
        how = Shown(options.dry_run, verbose, width, paint, progress.notes, unfinished)
        return sync_lines(settings.run, tables, seconds, how)

    # Alerts are sent while the result is printed.
    with Observer(config, metrics_file) as observer:
        with settings.progress().gathering() as progress:
            emit_all = to_all(progress, observer)
            try:
                report = run_sync(config, tables, all_tables, options, emit_all, settings.run, spark)
            except Interrupted:
                progress.stop()
                done = progress.in_order()
                # With `--json`, the error alone is the document.
                if not (settings.json or settings.quiet) and any(
                    not one.error or one.commits for one in done
                ):
                    settings.say(lines(done, progress.seconds, progress.unfinished()))
                raise
        settings.totals = report.log_fields
        if settings.json or not settings.quiet or options.dry_run:
            settings.result(report.as_json(), lambda: lines(report.tables, report.seconds), free_text=True)
        for error in emit.together([table.error for table in report.tables if table.error]):
            settings.complain(error)
    if report.ok:  # a failure stays one or two lines
        _warn_of_exposed_secrets(settings, config)
    return report.exit_code


def _warn_of_exposed_secrets(settings: Settings, config: Config) -> None:
    """A line each when others can read a secret of the configuration, or change it."""
    from floodmark.setup.doctor.configuration import exposed, secrets

    with settings.progress() as progress:
        for check in (*secrets(config.path), *exposed(config)):
            if check.status == "warning":
                progress(Noted("", f"warning: {check.detail}; {check.hint}"))
