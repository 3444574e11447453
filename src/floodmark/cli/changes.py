"""The command that shows what the binary log says, `changes`, and what it prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from floodmark.cli import options
from floodmark.cli.layout import fit, label
from floodmark.cli.options import Settings
from floodmark.cli.printing import width
from floodmark.model.text import clock, count, counted, size

if TYPE_CHECKING:
    from floodmark.model.results import ChangesResult

_BECAUSE = {
    "log": "where the last sync ended",
    "newest_file": "the beginning of the newest file: no sync has followed this log yet",
    "given": "--from",
    "since": "--since: the file of that time, or the oldest one that is left",
}


@options.command()
@options.many_tables("Only these tables, any number of times: schema.table, or table.")
@options.flag("--all-tables", "The tables of all schemas. Default: of those that the configuration names.")
@click.option(
    "--from", "begin", metavar="FILE[:POSITION]", help="Begin at this file, or at this place in it."
)
@click.option("--since", metavar="TS", help="Begin with transactions committed at this time, in UTC.")
@click.option(
    "--until",
    metavar="FILE[:POSITION]|TS",
    help="End there. Default: at the last transaction that can be seen.",
)
def changes(
    settings: Settings,
    tables: tuple[str, ...],
    all_tables: bool,
    begin: str | None,
    since: str | None,
    until: str | None,
) -> int:
    """Show what the source's binary log says: inserts, updates and deletes of each table.

    By default, this is what the next sync would follow: from where the last one ended to the last transaction that can
    be seen. Rows are counted, and DDL is named; no key or value is shown. An update that changes nothing is not logged.
    Nothing is written.

    The source's log must be on and complete, and its user needs REPLICATION SLAVE; otherwise exit code 2 says what to set.
    An event that this version does not know is exit code 6.

    \b
    Examples:
      floodmark changes
      floodmark changes -t shop.orders --since "2025-08-19 14:00"
      floodmark changes --all-tables --from binlog.000042 --json
    """
    if all_tables and tables:
        raise click.UsageError("--all-tables and -t exclude each other")
    if begin is not None and since is not None:
        raise click.UsageError("--from and --since exclude each other")
    config = settings.load()
    from floodmark.sync.log_preview import LogRequest, look, moment, place, place_or_moment

    try:
        wanted = LogRequest(
            tables,
            all_tables,
            place(begin) if begin is not None else None,
            moment(since) if since is not None else None,
            place_or_moment(until) if until is not None else None,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    settings.left = lambda: "the log was read in part; nothing was changed"
    with settings.progress() as progress:
        found = look(config, wanted, progress)
    return settings.result(found, lambda shown: changes_lines(shown, width()))


def changes_lines(shown: ChangesResult, width: int | None) -> list[str]:
    """What the log says, as a table."""
    begin, end = (f"{one.file}:{one.position}" for one in (shown.begin, shown.end))
    lines = [f"{begin} to {end}   {size(shown.bytes)} in {counted(shown.files, 'file')}"]
    texts = [("from", _BECAUSE[shown.begin_by])]
    if shown.transactions:
        first, last = clock(shown.first_commit), clock(shown.last_commit)
        texts.append(("transactions", f"{count(shown.transactions)}, from {first} to {last}"))
    texts += [("held back by", who) for who in shown.held_back_by]
    texts += [("note", note) for note in shown.notes]
    lines += label(texts, width)
    if not shown.tables:
        return [*lines, "No changes."]
    rows = [("TABLE", "INSERTS", "UPDATES", "DELETES", "SIZE", "STATEMENTS")]
    rows += [
        (
            t.table,
            count(t.inserts),
            count(t.updates),
            count(t.deletes),
            size(t.bytes),
            ", ".join(t.statements),
        )
        for t in shown.tables
    ]
    listed = fit(rows, width, right=(1, 2, 3, 4), drop=(4, 5))
    return [*lines, "", *(listed or fit(rows, None, right=(1, 2, 3, 4)) or [])]
