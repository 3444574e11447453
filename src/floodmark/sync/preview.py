"""What the next sync of a table would do, and what would refuse it. Needs no Spark and writes nothing.

`plan`, `sync` before its claim, its dry run and `doctor` all work it out here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from floodmark.config.load import Config, TableOptions, WarehouseSpec
from floodmark.load.preview import LoadPreview, look_briefly
from floodmark.log.fold import State, restarted_by
from floodmark.log.log import Log
from floodmark.log.pipeline import Start, Starts, StorePipeline
from floodmark.model import results
from floodmark.model.errors import ConfigError, FloodmarkError, Interrupted, about, exit_code
from floodmark.model.notes import sentence
from floodmark.model.policies import tells_rows_apart, when_too_long
from floodmark.model.run import SyncOptions, Wait
from floodmark.model.table import Table
from floodmark.model.typed import NULL
from floodmark.model.types import GEOMETRIES, Field, fields, is_moment
from floodmark.model.warehouse import Capabilities
from floodmark.plan import decide as planning
from floodmark.plan import takeover as legacy
from floodmark.plan.bound import Reading
from floodmark.plan.decide import TablePlan
from floodmark.plan.followed import TableNews
from floodmark.plan.make import survey
from floodmark.plan.tables import StoredTables
from floodmark.plan.wait import Source
from floodmark.source.connections import SharedLooks
from floodmark.source.describe import Discovered, discover_with_notes, resolve
from floodmark.source.session import Session
from floodmark.store.store import Store
from floodmark.sync import deletes
from floodmark.sync.news import LogNews, stored_news


@dataclass(frozen=True)
class Preview:
    """What the next sync of a table would do, and what would refuse it."""

    plan: TablePlan
    state: State  # the one that the plan continues, with the older tool's position if that is taken over
    warehouse: WarehouseSpec
    request: SyncOptions
    excluded: tuple[str, ...] = ()
    start: Start | None = None  # where the table begins, if it has no position
    older: Sequence[str] = ()  # notes on the older tool's watermark, of which `state` has the position
    load: LoadPreview = field(default_factory=LoadPreview)

    @property
    def refused(self) -> FloodmarkError | None:
        """Why the sync would refuse to go on, or the load its rows; the plan is shown all the same."""
        return self.plan.asks or self.load.refused

    @property
    def result(self) -> results.PlanResult:
        """What `plan` prints."""
        plan, table = self.plan, self.plan.table
        window = None if plan.gives_way else plan.window
        return load_plan(
            replace(self.load, refused=self.refused),
            table=table.name,
            target=table.target,
            mode=table.mode,
            key=table.key,
            changes=table.recipe.changes or "cursor",
            cursor=table.cursor,
            commit=self.state.n if self.state.n >= 0 else None,
            strategy=plan.strategy,
            reason=planning.reason(self.request, plan),
            rows=plan.rows,
            slices=len(self.plan.pieces),
            files=sum(max(1, -(-s.rows // self.request.slice_rows)) for s in plan.pieces),  # about
            nothing_to_do=plan.empty,
            follows=plan.step.as_json()
            if plan.step is not None and plan.step.followed_to is not None
            else None,
            window=None
            if window is None
            else {
                "low": window.low or None,
                "high": window.high or None,
                "by": window.by,
                "slices": len(plan.slices),
                "rows": sum(s.rows for s in plan.slices),
                "resumed": plan.resumed,
            },
            recipe=tuple(change.as_json() for change in plan.recipe),
            read_again=tuple(results.RowsReadAgain(kind=kind, rows=rows) for kind, rows in plan.read_again),
            start=plan.start,
            rows_before_start=plan.before_start,
            held_back_by=plan.held,
            notes=(*self.older, *map(sentence, plan.about), *plan.notes),
            columns=columns(table, self.warehouse.can),
            excluded=self.excluded,
        )


def load_plan(seen: LoadPreview, **read: Any) -> results.PlanResult:
    """What would be read, the files that wait to be loaded, and what the load would first do to the target."""
    return results.PlanResult(
        **read,
        pending=None if seen.files is None else results.FilesToLoad(files=seen.files, rows=seen.rows or 0),
        ddl=NULL if seen.changes is None else tuple(s for c in seen.changes for s in c.statements),
        refused=results.Failure.by(seen.refused),
        warehouse_unknown=seen.unknown,
    )


def columns(table: Table, can: Capabilities) -> tuple[results.PlanColumn, ...]:
    """Every column's type at each stage, and its name in the target."""
    return tuple(
        results.PlanColumn(
            column=f.name,
            mysql=table.column(f.column).type if f.column else "",
            parquet=str(f.arrow),
            warehouse="(files only)" if f.file_only else can.type_of(f),
            target=None if f.file_only else f.target,
            mark=mark(f, table, can),
        )
        for f in fields(table)
    )


def mark(column: Field, table: Table, can: Capabilities) -> str | None:
    """What to know about a column: a policy that applies, or a change of form; None if it is copied as is."""
    if column.file_only:
        return "compares keys as MySQL does"
    if column.raw:
        return "the exact text of invalid dates"
    if is_moment(column):
        return f"zero dates: {'error' if tells_rows_apart(column, table) else table.recipe.zero_dates}"
    if (limit := can.exceeded(column)) is not None:
        return f"over {limit:,} bytes: {when_too_long(column, table)}"
    kind = table.column(column.column).data_type
    if kind == "decimal" and column.is_text:
        return "as text: more than 38 digits"
    if kind == "time":
        return "as text: up to 838 hours"
    if kind in GEOMETRIES and not column.name.endswith("__srid"):
        return "as well-known binary, with its SRID in a second column"
    return None


@dataclass(frozen=True)
class PlanReports:
    """The plans of several tables, and the errors of those that can't be planned."""

    plans: tuple[Preview, ...]
    failed: tuple[FloodmarkError, ...]

    @property
    def errors(self) -> list[FloodmarkError]:
        return [*self.failed, *(one.refused.of(one.plan.table.name) for one in self.plans if one.refused)]

    @property
    def exit_code(self) -> int:
        return exit_code([error.code for error in self.errors])

    def as_json(self) -> dict[str, Any]:
        return {
            "ok": not self.errors,
            "tables": [one.result for one in self.plans],
            "errors": [error.as_json() for error in self.failed],
        }


def plan_several(config: Config, names: Sequence[str], all_tables: bool, options: SyncOptions) -> PlanReports:
    """What the next sync of these tables would do; a table that can't be planned does not hide the others."""
    stored = StoredTables(config, Store(config.store))
    tables, unknown = stored.resolve(
        lambda purpose: Session(config.source, purpose=purpose), names, all_tables
    )
    plans: list[Preview] = []
    news = LogNews()
    if any(config.options(name).changes == "binlog" for name in tables):
        news = stored_news(Store(config.store), lambda: Session(config.source, purpose="plan"))
    failed = [one.error.of(one.table) for one in unknown if one.error is not None]
    for name in tables:
        if all_tables and stored.retired(name):
            continue
        try:
            plans.append(plan(config, name, replace(options, tables=len(tables)), news))
        except Interrupted:
            raise
        except FloodmarkError as error:
            failed.append(error.of(name))
    return PlanReports(tuple(plans), tuple(failed))


def plan(config: Config, name: str, options: SyncOptions, news: LogNews | None = None) -> Preview:
    """What the next sync of a table would do; `news`: what the source's log says of the tables that follow it."""
    store = Store(config.store)
    with Session(config.source, purpose="plan") as session:
        try:
            name = resolve(session, name, config.source.database)
        except ConfigError as error:
            raise StoredTables(config, store).explained(error, name) from None
        chosen, log = config.options(name), Log(store, name)
        request = replace(options, slice_rows=chosen.slice_rows)
        with about(name):
            found = discover_with_notes(session, name, chosen, config.source.database)
            state = log.read()
            heard, unread = None, None
            if chosen.changes == "binlog":
                news = news or stored_news(store, lambda: Session(config.source, purpose="plan"))
                heard, unread = news.of(state), news.unread(session)
            source = source_of(session, found, state, chosen, news=heard)
            made = preview(source, found, config, log, request, Starts(store, config))
    if unread is not None:
        made = replace(made, plan=replace(made.plan, notes=(*made.plan.notes, unread)))
    ours = StorePipeline(store, config.warehouse.label).known_id
    return replace(made, load=look_briefly(config.warehouse, log, made.state, made.plan.table, ours))


def preview(
    source: Source,
    found: Discovered,
    config: Config,
    log: Log,
    request: SyncOptions,
    starts: Starts,
    old: float = 0.0,
) -> Preview:
    """What the next sync of a table, as it is described now, would do; raises what would refuse it.

    Only `load`, the warehouse's part, is left to the caller. That the older tool left no watermark may be `old`
    seconds old.
    """
    table, options = found.table, source.reading.options
    deletes.check(table, options)
    state, start, older = source.reading.state, None, list[str]()
    if state.position is None:
        start = starts.of(table.name)
        if request.since is None and legacy.untouched(state):
            store = log.store.recently(old)
            state, older = legacy.taken_over(source.session, store, table, state, options, start)
    made = survey(source.of(state=state), found, request, log, start)
    return Preview(made, state, config.warehouse, request, options.exclude, start, older)


def source_of(
    session: Session,
    found: Discovered,
    state: State,
    options: TableOptions,
    looks: SharedLooks | None = None,
    waits: Callable[[Wait | None], None] | None = lambda on: None,
    doubted: bool = False,
    news: TableNews | None = None,
) -> Source:
    """The source of a table that was found in this session, for queries by its next sync; for the rest see `Source`."""
    looks = looks or SharedLooks()
    trust = replace(looks.trust(session), engine=found.engine)
    reading = Reading(found.table, restarted_by(state, found.table), options, trust)
    return Source(session, looks, reading, waits, doubted, news)
