"""The command that shows what would be copied: `plan`."""

from __future__ import annotations

import sys

import click

from floodmark.cli.options import Command, Settings, many_tables, one_choice, pass_settings
from floodmark.cli.output import emit
from floodmark.model.run import SyncOptions


@click.command(cls=Command)
@many_tables("A table, as schema.table; repeatable.")
@click.option("--all", "all_tables", is_flag=True, help="The tables that `sync --all` copies.")
@pass_settings
def plan(settings: Settings, tables: tuple[str, ...], all_tables: bool) -> int:
    """Show what the next sync would do.

    The window and its slices; rows that need attention (before the start, without a cursor value, in the future); the
    statements that the warehouse would run first; and the type of every column from MySQL to the warehouse, marked
    where a policy decides. Needs no Spark and writes nothing.

    \b
    Examples:
      floodmark plan -t shop.orders
      floodmark plan -t shop.orders --json
      floodmark plan --all
    """
    one_choice(tables, all_tables)
    config = settings.load()
    from floodmark.cli.output.document import folded
    from floodmark.cli.output.plan import plan_lines
    from floodmark.sync.preview import plan as plan_one
    from floodmark.sync.preview import plan_several

    options, wide = SyncOptions(dry_run=True), emit.width(sys.stdout)
    if len(tables) == 1:
        report = plan_one(config, tables[0], options)
        settings.result(report.result, lambda: folded(plan_lines(report), wide))
        if report.refused is None:
            return 0
        settings.complain(report.refused)
        return report.refused.code
    done = plan_several(config, tables, all_tables, options)

    def lines() -> list[str]:
        return folded([line for one in done.plans for line in ("", *plan_lines(one))][1:], wide)

    settings.result(done.as_json(), lines)
    for error in emit.together(done.errors):
        settings.complain(error)
    return done.exit_code
