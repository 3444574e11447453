"""The command `demo`: everything at work, on private services."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator

import click

from floodmark.cli.options import Command, Settings, pass_settings
from floodmark.cli.output import emit
from floodmark.cli.web import needs_extra


@click.command(cls=Command)
@click.option(
    "--rows", type=click.IntRange(min=1), default=1_000_000, show_default=True, help="Rows to start with."
)
@click.option("--keep", is_flag=True, help="Keep the files and print where they are.")
@click.option(
    "--warehouse",
    type=click.Choice(["duckdb", "redshift"]),
    default="duckdb",
    show_default=True,
    help="The warehouse; redshift is a stand-in that needs PostgreSQL 15.",
)
@click.option(
    "--source",
    type=click.Choice(["mysql", "mariadb"]),
    help="The source. Default: mysql if `make setup` has fetched it, else mariadb.",
)
@click.option("--serve", is_flag=True, help="Then serve a dashboard of the demo's data until Ctrl-C.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=8808,
    show_default=True,
    metavar="P",
    help="With --serve: its port.",
)
@pass_settings
def demo(
    settings: Settings, rows: int, keep: bool, warehouse: str, source: str | None, serve: bool, port: int
) -> int:
    """See it work: a throw-away MySQL, S3 and warehouse.

    A first sync, changes, an incremental sync, a crash mid-sync, the run that completes it, and a comparison
    of source and warehouse that fails if a single row differs. Takes about a minute and cleans up after itself.

    \b
    Examples:
      floodmark demo
      floodmark demo --rows 100000 --keep
      floodmark demo --serve
    """
    if serve:
        needs_extra()
    from floodmark.setup.demo import run_demo
    from floodmark.spark.pyspark_internals import check_installed

    check_installed()
    began = time.monotonic()
    with _stdout_elsewhere() if settings.json else contextlib.nullcontext():
        code = run_demo(rows, keep, warehouse, source, port if serve else None)
    if settings.json:
        seconds = round(time.monotonic() - began, 3)
        emit.emit_json({"ok": code == 0, "rows": rows, "seconds": seconds}, settings.scrub)
    return code


@contextlib.contextmanager
def _stdout_elsewhere() -> Iterator[None]:
    """Sends the output of the demo and its processes to stderr, so that stdout has only the document."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
