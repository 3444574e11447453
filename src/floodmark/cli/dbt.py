"""The command `dbt sources`."""

from __future__ import annotations

from pathlib import Path

import click

from floodmark.cli.options import Command, Group, Settings, duration_option, many_tables, pass_settings
from floodmark.model.events import Noted
from floodmark.model.text import counted


@click.group(cls=Group)
def dbt() -> None:
    """Tell dbt about the copied tables."""


@dbt.command(cls=Command)
@many_tables("A table, as schema.table; repeatable. Without it, all that were synced and are not retired.")
@click.option(
    "-o", "--output", "file", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Write it to FILE (such as models/staging/floodmark.yml) instead of printing it.",
)  # fmt: skip
@click.option(
    "--name", default="floodmark", show_default=True, metavar="NAME", help="The source's name in dbt."
)
@duration_option(
    "--warn-after", "When dbt warns about a stale table. Default: the table's `behind`, or that of `alerts`."
)
@duration_option("--error-after", "When dbt fails. Default: four times the warning.")
@click.option("--force", is_flag=True, help="Replace FILE even if this command did not write it.")
@pass_settings
def sources(
    settings: Settings, tables: tuple[str, ...], file: Path | None, name: str, warn_after: float | None,
    error_after: float | None, force: bool,
) -> int:  # fmt: skip
    """Print or write a `sources.yml` with the copied tables, their columns and their freshness.

    Freshness needs `warehouse.freshness: true`: every sync, even one that finds nothing new, then records in the
    table floodmark_freshness up to when each target is complete. Without it, the file has no freshness.

    \b
    Examples:
      floodmark dbt sources -o models/staging/floodmark.yml
      floodmark dbt sources -t shop.orders --warn-after 30m --error-after 2h
    """
    if warn_after and error_after and error_after < warn_after:
        raise click.UsageError("--error-after is sooner than --warn-after")
    config = settings.load()
    from floodmark.integrations import dbt as made

    content = made.sources(config, tables, made.Wanted(name, warn_after, error_after))
    if file is not None:
        made.write(file.absolute(), content, force)
    if not config.warehouse.freshness:
        with settings.progress() as progress:
            progress(Noted("", "without freshness: set warehouse.freshness: true, and sync"))
    found = content["sources"][0]["tables"]

    def lines() -> list[str]:
        return [f"{file}: {counted(len(found), 'table')}"] if file else made.text(content).splitlines()

    written = {"ok": True, "file": str(file) if file else None, "freshness": config.warehouse.freshness}
    return settings.result({**written, **content}, lines)
