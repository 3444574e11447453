"""The command that compares: `verify`."""

from __future__ import annotations

import click

from floodmark import output
from floodmark.cli.options import Command, Settings, many_tables, pass_settings


@click.command(cls=Command)
@many_tables("A table, as schema.table; may be given several times.")
@click.option(
    "--show",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    metavar="N",
    help="Name at most N rows of each kind; all are counted.",
)
@click.option("--repair", is_flag=True, help="Read again what is missing or differs, delete what is extra.")
@click.option("--force", is_flag=True, help="With --repair: also follow an implausibly small source.")
@pass_settings
def verify(settings: Settings, tables: tuple[str, ...], show: int, repair: bool, force: bool) -> int:
    """Compare source and warehouse, down to the rows.

    By counts and checksums of key ranges, computed in MySQL and in the warehouse, and where they differ by
    ever smaller ranges: missing, extra and different rows, with their keys and columns. Exit code 7 when
    there are any. Nothing is changed without --repair.

    Rows that have changed since the watermark are left out, and so are rows at or before the start and
    outside the `where`. Files that wait to be loaded have to be loaded first; --repair does it.

    --repair takes the table, extracts those rows again by their keys and loads them in the normal way: the
    later read wins. Extra rows are asked for again and deleted, or marked where the table has `deletes: soft`;
    not when next to nothing would be left, unless --force. Then both sides are compared again.

    \b
    Examples:
      floodmark verify -t shop.orders
      floodmark verify -t shop.orders --json
      floodmark verify -t shop.orders --repair
    """
    if not tables:
        raise click.UsageError("which table? Give -t schema.table")
    if force and not repair:
        raise click.UsageError("--force goes with --repair")
    config = settings.load()
    from floodmark.repair import verified
    from floodmark.verify import verify as run_verify

    with settings.progress() as progress:
        document, code = run_verify(
            config, tables, progress, settings.run, named=show, one=verified if repair else None, force=force
        )
    settings.result(document, lambda: [settings.scrub(line) for line in output.verify_lines(document)])
    for table in document["tables"]:
        if table["error"]:
            settings.complain(table["error"])
    return code
