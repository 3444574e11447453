"""What the next sync would do, for people and programs. Needs no Spark and writes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from floodmark import legacy, system
from floodmark.config import Config
from floodmark.model import Table, replace
from floodmark.mysql.connect import Session
from floodmark.mysql.discover import discover, resolve
from floodmark.plan import Plan, Request
from floodmark.report import SyncOptions
from floodmark.state import Log
from floodmark.store import Store
from floodmark.survey import survey
from floodmark.types import fields
from floodmark.warehouse.redshift_names import column_names


@dataclass(frozen=True)
class PlanReport:
    """A plan, as it is shown."""

    plan: Plan
    commit: int
    warehouse: str

    def as_json(self) -> dict[str, Any]:
        plan, table = self.plan, self.plan.table
        window = plan.window
        return {
            "table": table.name,
            "target": table.target,
            "mode": table.mode,
            "key": list(table.key),
            "cursor": table.cursor,
            "commit": self.commit if self.commit >= 0 else None,
            "strategy": plan.strategy,
            "nothing_to_do": plan.empty,
            "window": None
            if window is None
            else {
                "low": list(window.low) if window.low else None,
                "high": list(window.high) if window.high else None,
                "by": window.by,
                "slices": len(plan.slices),
                "rows": sum(s.rows for s in plan.slices),
                "resumed": plan.resumed,
            },
            "read_again": [{"kind": s.kind, "rows": s.rows} for s in plan.again],
            "start": plan.start,
            "rows_before_start": plan.before_start,
            "held_back_by": list(plan.held),
            "notes": list(plan.notes),
            "columns": columns(table, self.warehouse),
        }

    def lines(self) -> list[str]:
        plan, table = self.plan, self.plan.table
        order = f"by ({', '.join(table.order)})" if table.order else "whole"
        lines = [
            f"{table.name} → {table.target}   {table.mode}, read {order}, key ({', '.join(table.key) or 'none'})"
        ]
        if plan.empty:
            lines.append("  Nothing to do")
        if plan.window is not None:
            low = " ".join(map(str, plan.window.low)) if plan.window.low else "the first row"
            high = " ".join(map(str, plan.window.high)) if plan.window.high else "the last row"
            rows = sum(s.rows for s in plan.slices)
            lines.append(f"  Window    after {low}, up to {high}{' (resumed)' if plan.resumed else ''}")
            lines.append(
                f"  Slices    {len(plan.slices)} by {plan.window.by}, about {rows:,} rows, {plan.strategy}"
            )
        for piece in plan.again:
            lines.append(f"  Again     {piece.rows:,} rows ({piece.kind})")
        lines += [f"  Note      {note}" for note in plan.notes]
        listed = columns(table, self.warehouse)
        wide = [max(len(str(c[k])) for c in listed) for k in ("column", "mysql", "parquet")]
        lines.append("  Columns")
        for c in listed:
            path = f"{c['column']:<{wide[0]}}  {c['mysql']:<{wide[1]}}  → {c['parquet']:<{wide[2]}}  → {c['warehouse']}"
            # Said where it is not simply the name in lower case.
            renamed = c["target"] not in (None, str(c["column"]).lower())
            lines.append(f"    {path}" + (f"  as {c['target']}" if renamed else ""))
        return lines


def columns(table: Table, warehouse: str) -> list[dict[str, Any]]:
    """The type of every column along the way, and its name in the target."""
    names = column_names(fields(table)) if warehouse == "redshift" else {}
    return [
        {
            "column": f.name,
            "mysql": table.column(f.column).type if f.column else "",
            "parquet": str(f.arrow),
            "warehouse": "(files only)"
            if f.file_only
            else (f.duckdb if warehouse == "duckdb" else f.redshift),
            "target": None if f.file_only else names.get(f.name, f.name.lower()),
        }
        for f in fields(table)
    ]


def plan(config: Config, name: str, options: SyncOptions) -> PlanReport:
    """What the next sync of a table would do."""
    with Session(config.source, purpose="plan") as session:
        name = resolve(session, name, config.source.database)
        chosen = config.options(name)
        table = discover(session, name, chosen, config.source.database)
        store = Store(config.store)
        state = Log(store, name).read()
        start = None
        if state.position is None:
            start = system.start(store, config, name)
        taken = (
            legacy.takeover(session, store, table, chosen, start)
            if start and legacy.untouched(state)
            else None
        )
        if taken is not None and taken.position is not None:
            state = replace(state, position=taken.position, started=True)
        request = Request(
            strategy=options.strategy,
            limit=options.limit,
            max_chunks=options.max_chunks,
            since=options.since,
            until=options.until,
            slice_rows=chosen.slice_rows,
        )
        made = survey(session, table, state, chosen, request, start)
        if taken is not None:
            made = replace(made, notes=(*taken.notes, *made.notes))
        return PlanReport(made, state.n, config.warehouse.kind)
