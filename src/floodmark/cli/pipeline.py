"""The commands that move rows, or say what would move: `sync`, `plan` and `demo`."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

import click

from floodmark import output
from floodmark.cli.options import (
    Command,
    Settings,
    duration_option,
    many_tables,
    one_table,
    pass_settings,
    timestamp_option,
)
from floodmark.cli.resident import stay
from floodmark.report import SyncOptions

if TYPE_CHECKING:
    from floodmark.config import Config

Strategy = Literal["auto", "sequential", "inter-table", "intra-table"]


@click.command(cls=Command)
@many_tables("A table, as schema.table; may be given several times.")
@click.option(
    "--all",
    "all_tables",
    is_flag=True,
    help="The tables of the configuration, or every table of the source if it names none, but for retired ones.",
)
@click.option(
    "-s",
    "--strategy",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "sequential", "inter-table", "intra-table"]),
    help="sequential: in cursor order, slice by slice. inter-table: several tables at once. "
    "intra-table: parallel slices of one table.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="At most the first N rows of each table. With --redshift-only: whole commits, up to N.",
)
@click.option(
    "--max-chunks",
    type=click.IntRange(min=1),
    metavar="M",
    help="M chunks of N rows (of slice_rows without --limit): N × M rows in all.",
)
@click.option("--backup-only", is_flag=True, help="Only MySQL → S3; the files wait for a later load.")
@click.option(
    "--redshift-only",
    "--load-only",
    "load_only",
    is_flag=True,
    help="Only S3 → warehouse: load the files that wait.",
)
@click.option(
    "--verify-data",
    is_flag=True,
    help="Compare what was loaded with the source; exit code 7 when they differ.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be done; write nothing.")
@timestamp_option("--since", "Read rows with cursor > TS again, up to the watermark, which does not move.")
@timestamp_option("--until", "With --since: only rows with cursor <= TS.")
@click.option("--max-workers", type=click.IntRange(min=1), metavar="N", help="Tables at once.")
@duration_option(
    "--every", "Stay and sync that often, as 30s or 5m, on a Spark that stays warm, until Ctrl-C or SIGTERM."
)
@click.option(
    "--force", is_flag=True, help="Let through what is refused because it would double or remove rows."
)
@pass_settings
def sync(
    settings: Settings, tables: tuple[str, ...], all_tables: bool, strategy: Strategy, limit: int | None,
    max_chunks: int | None, backup_only: bool, load_only: bool, verify_data: bool, dry_run: bool,
    since: str | None, until: str | None, max_workers: int | None, every: float | None, force: bool,
) -> int:  # fmt: skip
    """Copy what is new: MySQL → S3 → warehouse.

    Goes on where the last run stopped, also after a crash: every committed row arrives exactly once.
    The run ends at the rows that were there when it began.

    Timestamps are YYYY-MM-DD[ HH:MM:SS[.ffffff]], in the cursor column's own terms.

    \b
    Examples:
      floodmark sync -t shop.orders
      floodmark sync --all --max-workers 4
      floodmark sync -t shop.orders --backup-only
      floodmark sync -t shop.orders --redshift-only
      floodmark sync -t shop.orders --verify-data
      floodmark sync -t shop.orders --limit 10000 --max-chunks 3
      floodmark sync -t shop.orders --since 2025-08-01 --until "2025-08-02 12:00:00"
      floodmark sync --all --every 30s
    """
    if tables and all_tables:
        raise click.UsageError("-t and --all exclude each other")
    if not tables and not all_tables:
        raise click.UsageError("which tables? Give -t schema.table, or --all")
    options = SyncOptions(
        strategy=strategy, limit=limit, max_chunks=max_chunks, backup_only=backup_only, load_only=load_only,
        dry_run=dry_run, since=since, until=until, max_workers=max_workers, verify_data=verify_data,
        force=force,
    )  # fmt: skip
    if mistake := options.mistake():
        raise click.UsageError(mistake)
    once = {"--dry-run": dry_run, "--since": since is not None, "--force": force}
    if every is not None and any(once.values()):
        raise click.UsageError(f"--every repeats a sync; {next(n for n in once if once[n])} is for once")
    config = settings.load()
    if every is not None:
        _warn_of_exposed_secrets(settings, config)
        return stay(settings, config, tables, all_tables, options, every)
    from floodmark.sync import sync as run_sync

    with settings.progress() as progress:
        report = run_sync(config, tables, all_tables, options, progress, settings.run)
    document = report.as_json()
    settings.result(document, lambda: [settings.scrub(line) for line in output.sync_lines(document, dry_run)])
    for error in output.together([table["error"] for table in document["tables"] if table.get("error")]):
        settings.complain(error)
    if report.ok:  # a failure stays one or two lines
        _warn_of_exposed_secrets(settings, config)
    return int(report.exit_code)


def _warn_of_exposed_secrets(settings: Settings, config: Config) -> None:
    """A line each when others can read a secret of the configuration, or change it."""
    from floodmark.doctor.configuration import exposed, secrets

    with settings.progress() as progress:
        for check in (*secrets(config.path), *exposed(config)):
            if check.status == "warning":
                progress.note("", f"warning: {check.detail}; {check.hint}")


@click.command(cls=Command)
@one_table
@pass_settings
def plan(settings: Settings, table: str) -> int:
    """Show what the next sync would do.

    The window and its slices, rows that need attention (before the start, without a cursor value, in the
    future), the statements that the warehouse would be given first, and the type of every column from MySQL to
    the warehouse, with a mark where a policy decides. Needs no Spark; nothing is written.

    \b
    Examples:
      floodmark plan -t shop.orders
      floodmark plan -t shop.orders --json
    """
    config = settings.load()
    from floodmark.planview import plan as next_plan

    report = next_plan(config, table, SyncOptions(dry_run=True))
    settings.result(report.as_json(), report.lines)
    if report.outlook.refused is not None:
        settings.complain(report.outlook.refused.as_json())
    return report.exit_code


@click.command(cls=Command)
@click.option(
    "--rows", type=click.IntRange(min=1), default=1_000_000, show_default=True, help="Rows to begin with."
)
@click.option("--keep", is_flag=True, help="Keep the files afterwards, and say where they are.")
@click.option(
    "--warehouse",
    type=click.Choice(["duckdb", "redshift"]),
    default="duckdb",
    show_default=True,
    help="Where the rows go; redshift is a stand-in that needs PostgreSQL 15.",
)
@click.option(
    "--source",
    type=click.Choice(["mysql", "mariadb"]),
    help="Where they come from; default: mysql where `make setup` has fetched it, else mariadb.",
)
@pass_settings
def demo(settings: Settings, rows: int, keep: bool, warehouse: str, source: str | None) -> int:
    """See it work: a throw-away MySQL, S3 and warehouse.

    A first sync, changes, an incremental sync, a crash in mid-sync, the run that finishes it, and a
    comparison of source and warehouse that would fail if one row differed. Takes about a minute and
    cleans up after itself.

    \b
    Examples:
      floodmark demo
      floodmark demo --rows 100000 --keep
    """
    from floodmark.demo import run_demo

    began = time.monotonic()
    with _stdout_elsewhere() if settings.json else contextlib.nullcontext():
        code = run_demo(rows, keep, warehouse, source)
    if settings.json:
        seconds = round(time.monotonic() - began, 3)
        output.emit_json({"ok": code == 0, "rows": rows, "seconds": seconds}, settings.scrub)
    return code


@contextlib.contextmanager
def _stdout_elsewhere() -> Iterator[None]:
    """What the demo and its processes tell goes to stderr, so that stdout has the document alone."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
