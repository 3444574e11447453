"""What the next sync would do, for people and programs. Needs no Spark and writes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from floodmark import legacy, system
from floodmark import plan as planning
from floodmark.config import Config
from floodmark.lineage import carried
from floodmark.model import Table, replace
from floodmark.mysql.connect import Session
from floodmark.mysql.discover import discover, resolve
from floodmark.outlook import Asking, Outlook
from floodmark.plan import Plan, Request
from floodmark.report import SyncOptions
from floodmark.state import Log, begun_anew
from floodmark.store import Store
from floodmark.survey import survey
from floodmark.types import (
    GEOMETRIES,
    MAX_LARGE_STRING,
    MAX_VARBYTE,
    MAX_VARCHAR,
    SUPER,
    Field,
    fields,
    is_moment,
)
from floodmark.units import counted


@dataclass(frozen=True)
class PlanReport:
    """A plan, as it is shown."""

    plan: Plan
    commit: int
    warehouse: str
    large_strings: bool
    request: Request
    excluded: tuple[str, ...] = ()
    outlook: Outlook = field(default_factory=Outlook)

    @property
    def exit_code(self) -> int:
        """A plan whose rows the warehouse would refuse is shown, and not well."""
        return self.outlook.refused.code if self.outlook.refused else 0

    @property
    def files(self) -> int:
        """About how many files the sync would write."""
        most = self.request.slice_rows
        return sum(
            max(1, -(-s.rows // most))
            for s in (*self.plan.slices, *self.plan.again, *self.plan.reread_slices)
        )

    def as_json(self) -> dict[str, Any]:
        plan, table = self.plan, self.plan.table
        window = None if plan.gives_way else plan.window
        return {
            "table": table.name,
            "target": table.target,
            "mode": table.mode,
            "key": list(table.key),
            "cursor": table.cursor,
            "commit": self.commit if self.commit >= 0 else None,
            "strategy": plan.strategy,
            "reason": planning.reason(self.request, plan),
            "rows": plan.rows,
            "files": self.files,
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
            "recipe": [change.as_json() for change in plan.recipe],
            "read_again": [{"kind": kind, "rows": rows} for kind, rows in plan.read_again],
            "start": plan.start,
            "rows_before_start": plan.before_start,
            "held_back_by": list(plan.held),
            "notes": list(plan.notes),
            "columns": columns(table, self.warehouse, self.large_strings),
            "excluded": list(self.excluded),
            **self._load_json(),
        }

    def _load_json(self) -> dict[str, Any]:
        seen = self.outlook
        return {
            "pending": None if seen.files is None else {"files": seen.files, "rows": seen.rows},
            "ddl": None if seen.changes is None else [s for c in seen.changes for s in c.statements],
            "refused": seen.refused.as_json() if seen.refused else None,
            "warehouse_unknown": seen.unknown,
        }

    def _load_lines(self) -> list[str]:
        """What waits for the load, and what it would run first."""
        seen, lines = self.outlook, []
        if seen.files:
            lines.append(
                f"  Waiting   {counted(seen.files, 'file')}, {counted(seen.rows or 0, 'row')} for the load"
            )
        for statement in (s for c in seen.changes or () for s in c.statements):
            lines.append(f"  Runs      {statement}")
        if seen.unknown:
            lines.append(f"  Warehouse could not be asked: {' '.join(seen.unknown.split())}")
        return lines

    def lines(self) -> list[str]:
        plan, table = self.plan, self.plan.table
        order = f"by ({', '.join(table.order)})" if table.order else "whole"
        lines = [
            f"{table.name} → {table.target}   {table.mode}, read {order}, key ({', '.join(table.key) or 'none'})"
        ]
        if plan.empty:
            lines.append("  Nothing to do")
        if plan.window is not None and not plan.gives_way:
            low = " ".join(map(str, plan.window.low)) if plan.window.low else "the first row"
            high = " ".join(map(str, plan.window.high)) if plan.window.high else "the last row"
            lines.append(f"  Window    after {low}, up to {high}{' (resumed)' if plan.resumed else ''}")
            lines.append(f"  Slices    {len(plan.slices)} by {plan.window.by}, {plan.strategy}")
            lines.append(f"  Because   {planning.reason(self.request, plan)}")
        lines += [f"  Changed   {change}" for change in plan.recipe]
        for kind, rows in plan.read_again:
            lines.append(f"  Again     {rows:,} rows ({kind})")
        if not plan.empty:
            lines.append(f"  Writes    about {counted(plan.rows, 'row')} in {counted(self.files, 'file')}")
        lines += self._load_lines()
        lines += [f"  Note      {note}" for note in plan.notes]
        listed = columns(table, self.warehouse, self.large_strings)
        wide = [max(len(str(c[k])) for c in listed) for k in ("column", "mysql", "parquet", "warehouse")]
        lines.append("  Columns")
        for c in listed:
            path = f"{c['column']:<{wide[0]}}  {c['mysql']:<{wide[1]}}  → {c['parquet']:<{wide[2]}}"
            path += f"  → {c['warehouse']:<{wide[3]}}"
            # Said where it is not simply the name in lower case.
            renamed = c["target"] not in (None, str(c["column"]).lower())
            path += f"  as {c['target']}" if renamed else ""
            path += f"  ! {c['mark']}" if c["mark"] else ""
            lines.append(f"    {path.rstrip()}")
        lines += [f"    {name}  left out by `exclude`" for name in self.excluded]
        return lines


def columns(table: Table, warehouse: str, large_strings: bool = False) -> list[dict[str, Any]]:
    """The type of every column along the way, and its name in the target."""
    return [
        {
            "column": f.name,
            "mysql": table.column(f.column).type if f.column else "",
            "parquet": str(f.arrow),
            "warehouse": "(files only)"
            if f.file_only
            else (f.duckdb if warehouse == "duckdb" else f.redshift),
            "target": None if f.file_only else f.target,
            "mark": mark(f, table, warehouse, large_strings),
        }
        for f in fields(table)
    ]


def mark(column: Field, table: Table, warehouse: str, large_strings: bool = False) -> str | None:
    """What the user should know of a column's way: a policy that decides, or another form; None: as it is."""
    if column.file_only:
        return "tells keys apart as MySQL does"
    if column.raw:
        return "the exact text of dates that are none"
    # Rows are merged by the key: no policy may make two keys one.
    zero_dates, overflow = table.zero_dates, table.overflow
    if column.column in table.key and table.mode != "full":
        zero_dates = overflow = "error"
    if is_moment(column):
        return f"zero dates: {zero_dates}"
    kind = table.column(column.column).data_type
    limit = {"VARCHAR": MAX_VARCHAR, "VARBYTE": MAX_VARBYTE}.get(column.redshift.partition("(")[0])
    if column.redshift == SUPER:
        limit = MAX_LARGE_STRING if large_strings else MAX_VARCHAR
    if warehouse == "redshift" and limit is not None and column.max_bytes > limit:
        return f"over {limit:,} bytes: {overflow}"
    if kind == "decimal" and column.redshift.startswith("VARCHAR"):
        return "as text: more than 38 digits"
    if kind == "time":
        return "as text: up to 838 hours"
    if kind in GEOMETRIES and not column.name.endswith("__srid"):
        return "as well-known binary, its SRID beside it"
    return None


def plan(config: Config, name: str, options: SyncOptions) -> PlanReport:
    """What the next sync of a table would do."""
    with Session(config.source, purpose="plan") as session:
        name = resolve(session, name, config.source.database)
        chosen = config.options(name)
        table = discover(session, name, chosen, config.source.database)
        store = Store(config.store)
        log = Log(store, name)
        state = begun_anew(log.read(), table)
        known = carried(state.table, table, anew=state.read_upto is None)
        asking = Asking(config.warehouse, log, state, known)
        start = None
        if state.position is None:
            start = system.start(system.read(store), config, name)
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
        made = survey(session, table, state, chosen, request, log, start)
        if taken is not None:
            made = replace(made, notes=(*taken.notes, *made.notes))
        if made.table.columns != known.columns:  # with what rows that are there get in new ones
            asking = Asking(config.warehouse, log, state, made.table)
        spec = config.warehouse
        return PlanReport(
            made, state.n, spec.kind, spec.large_strings, request, chosen.exclude, asking.answer()
        )
