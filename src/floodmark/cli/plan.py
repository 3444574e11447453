"""The command that shows what would be copied, `plan`, and the words for a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from floodmark.cli import options
from floodmark.cli.layout import fold
from floodmark.cli.options import Settings
from floodmark.cli.printing import width
from floodmark.model.run import SyncOptions
from floodmark.model.text import counted, place

if TYPE_CHECKING:
    from floodmark.sync.preview import Preview


@options.command()
@options.tables_or_all()
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
    options.one_choice(tables, all_tables)
    config = settings.load()
    from floodmark.sync.preview import plan as plan_one
    from floodmark.sync.preview import plan_several

    request, wide = SyncOptions(dry_run=True), width()
    if len(tables) == 1:
        report = plan_one(config, tables[0], request)
        settings.result(report.result, lambda _: fold(plan_lines(report), wide))
        if report.refused is not None:
            settings.complain(report.refused)
        return report.refused.code if report.refused else 0
    done = plan_several(config, tables, all_tables, request)
    lines = [line for one in done.plans for line in ("", *plan_lines(one))][1:]
    settings.result(done.as_json(), lambda _: fold(lines, wide))
    settings.complain_of(done.errors)
    return done.exit_code


def plan_lines(report: Preview) -> list[str]:
    """What the next sync of a table would do."""
    shown, plan, table = report.result, report.plan, report.plan.table
    order = f"read by ({', '.join(table.order)})" if table.order else "read in full"
    if table.recipe.changes:
        order = "follows the binary log" if table.follows else "read in full after a change in the binary log"
    lines = [f"{table.name} → {table.target}   {table.mode}, {order}, key ({', '.join(table.key) or 'none'})"]
    if plan.empty:
        lines.append("  Nothing to read yet: all rows wait" if plan.waits else "  Nothing to do")
    if (window := shown.window) is not None:
        apart = table.cursor not in table.key
        low = f"after {place(window['low'], apart)}" if window["low"] else "from the first row"
        high = place(window["high"], apart) if window["high"] else "the last row"
        lines.append(f"  Window    {low}, up to {high}{' (resumed)' if window['resumed'] else ''}")
        lines.append(f"  Slices    {window['slices']} by {window['by']}, {shown.strategy}")
        lines.append(f"  Because   {shown.reason}")
    elif plan.step is not None:
        lines.append(f"  Step      {shown.reason}")
    lines += [f"  Changed   {change}" for change in plan.recipe]
    lines += [f"  Rereads   {counted(again.rows, 'row')} ({again.kind})" for again in shown.read_again]
    if not plan.empty:
        lines.append(f"  Writes    about {counted(plan.rows, 'row')} in {counted(shown.files or 0, 'file')}")
    if (waiting := shown.pending) and waiting.files:
        lines.append(f"  Waiting   {counted(waiting.files, 'file')} to load, {counted(waiting.rows, 'row')}")
    lines += [f"  Runs      {statement}" for statement in shown.ddl]
    if shown.warehouse_unknown:
        lines.append(f"  Warehouse not reachable: {' '.join(shown.warehouse_unknown.split())}")
    lines += [f"  Note      {note}" for note in shown.notes]
    steps = [(c.column, c.mysql, c.parquet, c.warehouse) for c in shown.columns]
    wide = [max(map(len, types)) for types in zip(*steps, strict=True)]
    lines.append("  Columns")
    for c in shown.columns:
        path = f"{c.column:<{wide[0]}}  {c.mysql:<{wide[1]}}  → {c.parquet:<{wide[2]}}"
        path += f"  → {c.warehouse:<{wide[3]}}"
        # Said where it is not simply the name in lower case.
        path += f"  as {c.target}" if c.target not in (None, c.column.lower()) else ""
        path += f"  ! {c.mark}" if c.mark else ""
        lines.append(f"    {path.rstrip()}")
    return lines + [f"    {name}  left out by `exclude`" for name in shown.excluded]
