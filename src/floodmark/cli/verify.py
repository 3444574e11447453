"""The command that compares: `verify`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from floodmark.cli.options import Command, Settings, many_tables, one_choice, pass_settings
from floodmark.cli.output import emit
from floodmark.cli.output.verify import verify_lines
from floodmark.model.errors import Interrupted
from floodmark.model.events import to_all
from floodmark.model.text import counted

if TYPE_CHECKING:
    from floodmark.model.results import VerifiedTable


def left_behind(at_work: Sequence[str], done: Sequence[VerifiedTable], repair: bool) -> str:
    """What a verify that is stopped now leaves behind."""
    if not repair:
        where = f" while it compared {', '.join(at_work)}" if at_work else ""
        return f"verify was stopped{where}; nothing was changed"
    where = f" at {', '.join(at_work)}" if at_work else ""
    rows = sum(result.repaired or 0 for result in done)
    before = f"{counted(rows, 'row')} of {counted(len(done), 'table')} before it repaired; " if done else ""
    return f"the repair was stopped{where}; {before}what it has committed is kept: run it again"


@click.command(cls=Command)
@many_tables("A table, as schema.table; repeatable.")
@click.option("--all", "all_tables", is_flag=True, help="The tables that `sync --all` copies.")
@click.option(
    "--show",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    metavar="N",
    help="List at most N rows of each kind; all are counted.",
)
@click.option("--repair", is_flag=True, help="Copy missing and different rows again; delete extra ones.")
@click.option("--force", is_flag=True, help="With --repair: proceed even if the source is implausibly small.")
@pass_settings
def verify(
    settings: Settings, tables: tuple[str, ...], all_tables: bool, show: int, repair: bool, force: bool
) -> int:
    """Compare source and warehouse, down to the rows.

    MySQL and the warehouse compute counts and checksums of key ranges; where they differ, the ranges are
    narrowed down to missing, extra and different rows, listed with their keys and columns. Exit code 7 if
    there are any. Nothing is changed without --repair.

    Rows after the watermark, at or before the start, or outside the `where` are not compared.
    Pending files must be loaded first; --repair does that.

    --repair claims the table, reads those rows again by key and loads them as usual: the later read wins.
    Extra rows are looked up in the source once more, then deleted, or marked if the table has `deletes: soft`;
    if hardly any row would be left, only with --force. Then both sides are compared again.

    \b
    Examples:
      floodmark verify -t shop.orders
      floodmark verify --all --json
      floodmark verify -t shop.orders --repair
    """
    one_choice(tables, all_tables)
    if force and not repair:
        raise click.UsageError("--force needs --repair")
    config = settings.load()
    from floodmark.status.run import Observer
    from floodmark.sync.run import repairing
    from floodmark.verify.run import verify as run_verify

    done: list[VerifiedTable] = []
    with Observer(config) as observer:
        with settings.progress() as progress:
            settings.left = lambda: left_behind(progress.at_work(), done, repair)
            one = repairing(force) if repair else None
            try:
                document, code = run_verify(
                    config, tables, to_all(progress, observer), settings.run,
                    named=show, one=one, all_tables=all_tables, ended=done.append,
                )  # fmt: skip
            except Interrupted:
                progress.stop()
                if done and not (settings.json or settings.quiet):
                    settings.say(verify_lines(done, repair, emit.width(sys.stdout)))
                raise
        if settings.json or code or not settings.quiet:
            settings.result(
                document,
                lambda: verify_lines(document.tables, repair, emit.width(sys.stdout)),
                free_text=True,
            )
        for error in emit.together([table.error for table in document.tables if table.error]):
            settings.complain(error)
    return code
