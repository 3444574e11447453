"""Changes that no cursor reveals: rows deleted at the source, and columns changed by foreign keys; and repairs.

One comparison, run now and then, finds both. A key counts as deleted only if the source, queried again under
the claim, has no row with it that matches `where`; and never if that would leave next to nothing, unless the
user insists. Rows that came back unchanged, and rows that differ in a column of a cascade, are read again by
key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import pyarrow as pa

from floodmark.config.load import TableOptions
from floodmark.load import canonical
from floodmark.load.protocol import KEYS
from floodmark.log.fold import State
from floodmark.model.canonical import Scope, forms, printed
from floodmark.model.errors import ConfigError, DataError
from floodmark.model.position import Key
from floodmark.model.run import implausible
from floodmark.model.table import Table
from floodmark.model.times import parse_moment, temporal
from floodmark.model.types import fields
from floodmark.plan.bound import Reading, Settled
from floodmark.plan.origin import check_origin
from floodmark.plan.wait import Source, settle
from floodmark.services import Services
from floodmark.source import ranges as edges
from floodmark.source.describe import cascades, touched
from floodmark.source.identity import source_id
from floodmark.source.sql import unsteady
from floodmark.verify.compare import compare, described

# Most missing rows to read again by key, which the driver holds in memory. More than that didn't just come back.
HELD = 1_000_000
# Keys per question to the warehouse; fewer if a key has several columns, each compared by itself.
ASKED = 20_000
ASKED_TOGETHER = 2_000
FORCE = "check the source; if the rows really are gone, run again with --force"


def check(table: Table, options: TableOptions) -> None:
    """Refuses `deletes` and `cascades` if rows can't be told apart or can't be marked."""
    full, cascades, where = table.mode == "full", options.cascades == "follow", f"tables.{table.name}"
    untold = "needs a key: without one, rows can't be told apart"
    if cascades and not full and not table.key:
        said, hint = f"cascades: follow {untold}", f"set {where}.cascades: ignore, or mode: full"
    elif options.deletes == "ignore" or (full and options.deletes == "hard"):
        return  # a full copy has exactly the source's rows, without a search for deletes
    elif full:
        said = (
            "deletes: soft can't be combined with mode: full, which replaces all rows and leaves none to mark"
        )
        hint = f"set {where}.deletes: ignore"
    elif not table.key:
        said, hint = f"deletes: {options.deletes} {untold}", f"set {where}.deletes: ignore, or mode: full"
    else:
        return
    raise ConfigError(said, hint=hint)


def due(state: State, options: TableOptions, now: datetime) -> bool:
    """Whether it is time to look for deletes and cascades: at most once per `deletes_every`."""
    table, last = state.table, state.extraction.deletes_at
    if table is None or table.mode == "full" or (options.deletes, options.cascades) == ("ignore", "ignore"):
        return False
    if not state.data.commits and not state.data.older.commits:
        return False  # nothing was ever replicated
    if table.follows and state.followed_to is None:
        return False  # its copy is not complete yet
    if last is None or (table.recipe.where or "").strip() != (options.where or "").strip():
        return True  # never so far, or only with another `where`
    if (
        table.follows
        and not (table.recipe.where and unsteady(table.recipe.where))
        and options.cascades == "ignore"
    ):
        return False  # the binary log names the keys of deleted rows
    elapsed = (now - parse_moment(last)).total_seconds()
    return not 0 <= elapsed < options.deletes_every  # a time in the future: another host's clock is wrong


@dataclass(frozen=True)
class Swept:
    """What a search for deletes and cascades has found."""

    table: Table
    back: tuple[Key, ...] = ()  # rows of the source that the target does not have
    changed: tuple[Key, ...] = ()  # rows that differ in a column of a cascade
    gone: tuple[Key, ...] = ()  # rows of the target that the source may no longer have
    rows: int = 0  # in the warehouse


def look(services: Services, state: State, options: TableOptions, force: bool) -> Swept | None:
    """Looks for deletes and cascades if due, else returns None. All commits must have been loaded."""
    if not due(state, options, datetime.now(UTC)):
        return None
    with services.session("deletes") as session:
        table = described(services, session, state.table_name)
        changing = touched(table, cascades(session, table)) if options.cascades == "follow" else ()
    check(table, options)
    if options.deletes == "ignore" and not changing:
        return None

    def totals(source: int, warehouse: int) -> None:
        if options.deletes != "ignore" and implausible(warehouse, source) and not force:
            raise _implausible(table.target, warehouse - source, warehouse)

    found = compare(services, table, state, only_keys=True, also=changing, totals=totals, most=HELD)
    return Swept(
        table,
        # These rows came back with their old cursor, or match `where` again without a change: no window
        # contains them. If a cascade changed a key, the row is missing under its new key.
        back=found.missing,
        changed=tuple(key for key, _ in found.different),
        gone=_deletable(table, found.extra) if options.deletes != "ignore" else (),
        rows=found.rows_warehouse,
    )


def _deletable(table: Table, keys: Sequence[Key]) -> tuple[Key, ...]:
    """The keys that a load can delete: not NULL in a column that the source declares NOT NULL."""
    needed = [i for i, name in enumerate(table.key) if not table.column(name).nullable]
    return tuple(key for key in keys if all(key[i] is not None for i in needed))


def check_plausible(services: Services, table: Table, absent: int, rows: int) -> None:
    """Refuses to delete nearly all of the warehouse's `rows`, or all if the source is empty."""
    gone = implausible(rows, rows - absent)
    if not gone and absent >= rows:
        with services.reading("deletes", table) as session:
            gone = edges.empty(session, table)
    if gone:
        raise _implausible(table.target, absent, rows)


def in_target(services: Services, table: Table, keys: pa.Table) -> pa.Table:
    """Those of the keys that the target has, as a load would find them: by their bytes, or by MySQL's weights."""
    can, warehouse = services.config.warehouse.can, services.warehouse()
    scope = Scope(table, tuple(f for f in forms(table, can) if f.field.name in table.key))
    weighed = next((f.name for f in fields(table) if f.file_only), None)

    def those_there(some: pa.Table) -> pa.Table:
        among = list(zip(*(printed(f, some.column(f.field.name)) for f in scope.keys), strict=True))
        rows = warehouse.ask(table.target, partial(canonical.keys, scope=scope, among=among))
        found = {tuple(None if v is None else str(v) for v in row) for row in rows or ()}
        there = [key in found for key in among]
        if weighed is not None:
            weights = [weight or b"" for weight in some.column(weighed).to_pylist()]
            words = partial(canonical.weights, among=weights)
            known = {str(row[0]) for row in warehouse.ask(KEYS + table.target, words) or ()}
            there = [
                by_bytes or not known.isdisjoint(canonical.named_weight(weight))
                for by_bytes, weight in zip(there, weights, strict=True)
            ]
        return some.filter(pa.array(there, pa.bool_()))

    # In portions: as Python's values, all keys could take gigabytes.
    at_once = ASKED if len(scope.keys) == 1 else ASKED_TOGETHER
    starts = range(0, keys.num_rows, at_once)
    return pa.concat_tables([those_there(keys.slice(i, at_once)) for i in starts])


def _implausible(target: str, deleted: int, rows: int) -> DataError:
    return DataError(
        f"{deleted:,} of the {rows:,} rows in {target} are gone from the source: nothing was deleted",
        hint=FORCE,
    )


# ---------------------------------------------------------------- repairs


def check_repairable(services: Services, table: Table, state: State, options: TableOptions) -> None:
    """Refuses a table without a key, and a source other than the one read."""
    if not table.key:
        raise ConfigError(
            "a table without a key can't be repaired row by row",
            hint=f"read it again into an empty target: floodmark watermark reset -t {table.name} --force",
        )
    # Rows of a source that is behind would replace newer ones.
    with services.session("verify") as session:
        services.sources.check(table.name, source_id(session, table, with_id=False))
        if table.follows:
            return  # the binary log's identity tells another source
        looks = services.looks(session)
        reading = Reading(table, state, options, looks.trust(session), low=state.position)
        source = Source(session, looks, reading)
        newest = source.last()
        back_to = settle(source).back_to if temporal(table) else None
        check_origin(source, Settled(None, newest, back_to=back_to))
