"""The command that compares, `verify`, and what it prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from floodmark.cli import options
from floodmark.cli.layout import indent, label
from floodmark.cli.options import Settings
from floodmark.cli.printing import width
from floodmark.model.errors import Interrupted
from floodmark.model.events import to_all
from floodmark.model.text import count, counted, duration

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


@options.command()
@options.tables_or_all()
@options.number("--show", "List at most N rows of each kind; all are counted.", least=0, default=20)
@options.flag("--repair", "Copy missing and different rows again; delete extra ones.")
@options.flag("--force", "With --repair: proceed even if the source is implausibly small.")
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
    options.one_choice(tables, all_tables)
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
                    settings.say(verify_lines(done, repair, width()))
                raise
        if settings.json or code or not settings.quiet:
            settings.result(document, lambda d: verify_lines(d.tables, repair, width()), free_text=True)
        settings.complain_of([table.error for table in document.tables])
    return code


def verify_lines(
    tables: Sequence[VerifiedTable], repair: bool = False, width: int | None = None
) -> list[str]:
    """The result of each table, and the next step where there are differences; `repair`: that was it."""
    return [line for table in tables for line in _table(table, repair, width)]


def _table(table: VerifiedTable, repair: bool, width: int | None) -> list[str]:
    if table.error:
        return [f"{table.table}: not compared"]
    seconds = duration(table.seconds)
    counts = {"missing": table.missing, "extra": table.extra, "different": table.different}
    kinds = [f"{count(rows)} {kind}" for kind, rows in counts.items() if rows]
    if table.ok:
        snapshot = table.compared_with == "snapshot"
        rows = (table.rows_warehouse if snapshot else table.rows_source) or 0
        agree = f"agree{'s' * (rows == 1)}{' with the snapshot' * snapshot}"
        first = f"{table.table}: {counted(rows, 'row')} {agree}, {seconds}"
    else:
        source, warehouse = count(table.rows_source or 0), count(table.rows_warehouse or 0)
        where = f"{source} at the source, {warehouse} in the warehouse"
        first = f"{table.table}: {', '.join(kinds) or 'different'}; rows: {where}, {seconds}"
    texts = [("repaired", counted(table.repaired, "row"))] if table.repaired else []
    if table.rows_left_out:
        later = f"{counted(table.rows_left_out, 'row')} after the watermark: the next sync reads them"
        texts.append(("left out", later))
    texts += [("note", note) for note in table.notes]
    texts += [(f.kind, f.detail) for f in table.findings]
    lines = indent("", first, width) + label(texts, width)
    more = sum(counts.values()) - len(table.findings)
    if more > 0:
        lines.append(f"  and {count(more)} more (--show N lists more)")
    return lines if table.ok else lines + _next(table, repair, width)


def _next(table: VerifiedTable, repair: bool, width: int | None) -> list[str]:
    """What to do about differences, and what that does to rows of each kind."""
    if repair:
        return indent(
            "  ",
            "Rows still differ after the repair: was the target written to meanwhile? Run it again.",
            width,
        )
    does = []
    if table.missing or table.different:
        kinds = " and ".join(["missing"] * bool(table.missing) + ["different"] * bool(table.different))
        does.append(f"reads the {kinds} rows again and loads them")
    if table.extra:
        does.append(
            "deletes the extra rows (`deletes: soft`: marks them) once MySQL confirms that they are gone or don't match `where`"
        )
    name = table.table
    if not does:
        return [
            *indent("  ", "Without a key, rows can't be repaired one by one; copy the table again.", width),
            *indent("  ", f"Next: floodmark sync -t {name}", width),
            *indent("        ", f"or, unless it is in mode full, first: floodmark watermark reset -t {name} --force", width),
        ]  # fmt: skip
    maybe = f"{counted(table.loose, 'row')} may only have changed since the last sync; first: floodmark sync -t {name}"
    return [
        *(indent("  ", maybe, width) if table.loose else ()),
        f"  Next: floodmark verify -t {name} --repair",
        *indent("        ", "; ".join(does), width),
    ]
