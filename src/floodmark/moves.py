"""Moving a table by hand: `watermark set` and `watermark reset`, each a commit under a claim; and a whole pipeline.

Nothing is rewritten and no file is removed, so each says which command takes it back. A reset of the load stage
is in the log first and in the ledger second: whatever dies in between, the next load finishes it.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal

from floodmark import moments, recipe
from floodmark.config import Config
from floodmark.errors import ConfigError, ConflictError, DataError, FloodmarkError
from floodmark.lag import cursor_now
from floodmark.load import created_after, ledger_for, pending
from floodmark.model import Commit, Position, Table
from floodmark.mysql.connect import Session
from floodmark.mysql.discover import discover
from floodmark.mysql.sql import NUMERIC
from floodmark.plan import cursor_value, temporal
from floodmark.report import EXTRACT
from floodmark.state import Changed, Log, State, Watermark, claim, draft, pipeline, refuse_if_held, stamp
from floodmark.state.log import tables
from floodmark.store import Store
from floodmark.warehouse import LEDGER, Ledger, Warehouse
from floodmark.warehouse.decide import check_holder
from floodmark.warehouse.open import open_warehouse
from floodmark.watermarks import full_name, ledger_of, must_exist, next_start

Stage = Literal["extract", "load"]

# A cursor that is ahead of the clock by less is a clock that runs ahead a little.
SLACK = 60.0
# Files that an error names; it is one line.
NAMED = 10


def watermark_set(
    config: Config, name: str, timestamp: str | None, key: str | None, run: str, force: bool = False
) -> dict[str, Any]:
    """A manual start, as a commit of its own; returns the new document and how to undo it."""
    try:
        text = None if timestamp is None else moments.timestamp(timestamp, datetime.now(UTC))
    except ValueError as error:
        raise ConfigError(str(error), table=name) from None
    if text is None and key is None:
        raise ConfigError("give a timestamp, or an id for a table that is read by id", table=name)
    store = Store(config.store)
    log = Log(store, full_name(config, store, name))

    def decide(state: State) -> tuple[Table | None, Callable[[State], Commit]]:
        table = described(config, log.table_name, state, text)
        position = _position(table, text, key)
        if doubles(table, state) and back(state.position, position) and not force:
            raise doubled(table)
        refused = recipe.unfit(state.table, table) if state.data or state.older.upto else None
        if refused is not None:
            raise refused
        anew = None if state.table is not None and state.table.order == table.order else table
        return anew, lambda claimed: draft(claimed, "set", run, position=position)

    before, after = moved(log, run, "set", decide, force=force)
    ledger = ledger_of(config, after)
    document = Watermark(store, log.table_name, run).publish(after, ledger.rows if ledger else None)
    return {**document, "undo": _restore(log.table_name, before.n)}


def watermark_reset(
    config: Config,
    name: str,
    run: str,
    *,
    mysql_only: bool = False,
    redshift_only: bool = False,
    force: bool = False,
) -> dict[str, Any]:
    """One stage of a table, or both, back to the start; returns the new document and how to undo it."""
    if mysql_only and redshift_only:
        raise ConfigError("--mysql-only and --redshift-only exclude each other", hint="give neither for both")
    stages: tuple[Stage, ...] = (
        ("extract",) if mysql_only else ("load",) if redshift_only else ("extract", "load")
    )
    store = Store(config.store)
    log = Log(store, full_name(config, store, name))
    if "load" in stages:
        pipeline.check(store, config.warehouse.label)
    seen: Ledger | None = None

    def decide(state: State) -> tuple[Table | None, Callable[[State], Commit]]:
        nonlocal seen
        if state.n < 0 and log.table_name not in config.tables:
            must_exist(config, log.table_name, doubt=False)
        if state.table is not None and doubles(state.table, state) and not force:
            raise doubled(state.table)
        if redshift_only:
            _refuse_cleaned(log, state)
        seen = ledger_of(config, state)
        return None, lambda claimed: draft(claimed, "reset", run, stages=stages)

    notes: list[str] = []

    def tell(state: State) -> None:
        if "load" in stages:
            notes.extend(_tell_warehouse(config, store, state, force, answered=seen is not None))

    before, after = moved(log, run, "reset", decide, tell, force)
    ledger = ledger_of(config, after)
    document = Watermark(store, log.table_name, run).publish(after, ledger.rows if ledger else None)
    if after.position is None:
        document |= next_start(config, store, after)
    if redshift_only:
        document |= _loads_again(log, after)
    return {**document, "notes": notes, "undo": _undo_reset(log, before, seen, stages)}


def watermark_move(config: Config, run: str) -> dict[str, Any]:
    """Lets the pipeline go on into the configured warehouse; returns what waits to be loaded there, and the undo.

    What is loaded there already (a restored snapshot, a file that was moved) its ledger tells; the rest loads with the
    next sync. Nothing in the old warehouse changes.
    """
    store, label = Store(config.store), config.warehouse.label
    found = pipeline.read(store)
    if found is None:
        raise ConfigError(f"{store.uri('')} holds no pipeline yet", hint="floodmark sync begins it")
    warehouse = open_warehouse(config.warehouse)
    try:
        waiting = [_waiting(warehouse, Log(store, name), found.id, run) for name in tables(store)]
        if not waiting:
            warehouse.rows(LEDGER)  # it has to answer all the same
    finally:
        warehouse.close()
    if found.warehouse != label:
        pipeline.move(store, found, label)
    undo = f"set warehouse.url back to {found.warehouse}, then: floodmark watermark move"
    return {"pipeline": found.id, "from": found.warehouse, "to": label, "tables": waiting, "undo": undo}


def _waiting(warehouse: Warehouse, log: Log, identity: str, run: str) -> dict[str, Any]:
    """What a warehouse would have to load of a table that no run holds."""
    state = log.read()
    refuse_if_held(log, state, run)
    if state.table is None:
        return {"table": log.table_name, "files": 0, "rows": 0, "files_gone": 0}
    ledger = ledger_for(warehouse, state, state.table.target)
    check_holder(ledger.holder, identity, state.log, log.table_name, state.table.target)
    left = pending(log.data(state, ledger.rows), ledger, state.load_epoch)
    last = max((i for i, d in enumerate(left) if d.load_as == "replace"), default=0)
    return {
        "table": log.table_name,
        "files": sum(d.files for d in left[last:]),
        "rows": sum(d.rows for d in left[last:]),
        "files_gone": sum(d.files for d in left[last:] if d.cleaned),
    }


def watermark_retire(config: Config, name: str, run: str) -> dict[str, Any]:
    """The table is no longer meant by `sync --all`; its log, files and rows stay. Returns the new document."""
    store = Store(config.store)
    log = Log(store, full_name(config, store, name))
    for _ in range(3):
        state = log.read()
        if state.n < 0:
            raise ConfigError(
                f"{log.table_name} was never synced: there is nothing to retire",
                hint="floodmark watermark list shows the tables that were",
                table=log.table_name,
            )
        if not state.retired:
            taken = claim(log, state, run=run, purpose="retire")
            state = taken.state
            if isinstance(taken, Changed):
                continue
            taken.lease.release()
        ledger = ledger_of(config, state)
        rows = ledger.rows if ledger else None
        # That the source no longer shows it is no failure now.
        document = Watermark(store, log.table_name, run).publish(state, rows, succeeded=EXTRACT)
        return {**document, "undo": f"floodmark sync -t {log.table_name}"}
    raise ConflictError(
        "other runs keep changing the table", hint="try again when they are done", table=log.table_name
    )


def moved(
    log: Log,
    run: str,
    purpose: str,
    decide: Callable[[State], tuple[Table | None, Callable[[State], Commit]]],
    then: Callable[[State], None] = lambda state: None,
    force: bool = False,
) -> tuple[State, State]:
    """The commit that `decide` makes, under a claim on exactly the state that it saw; the states around it."""
    for _ in range(3):
        state = log.begin(force)
        table, commit = decide(state)
        taken = claim(log, state, run=run, purpose=purpose, table=table)
        if isinstance(taken, Changed):
            continue
        with taken.lease:
            after = log.append(taken.state, commit(taken.state))
            then(after)
        return taken.state, after
    raise ConflictError(
        "other runs keep changing the table", hint="try again when they are done", table=log.table_name
    )


def described(config: Config, name: str, state: State, timestamp: str | None) -> Table:
    """The table as it is, or as it was last seen when the source is away."""
    options = config.options(name)
    try:
        with Session(config.source, purpose="set") as session:
            table = discover(session, name, options, config.source.database)
            if timestamp is not None and temporal(table):
                now = cursor_now(session, table, options.cursor_timezone, SLACK)
                if str(cursor_value(table, timestamp)) > now:
                    raise ConfigError(
                        f"{timestamp} is in the future; rows up to then would be left out",
                        hint=f"the clock of {table.cursor} stands at {now[:19]}",
                        table=name,
                    )
            return table
    except FloodmarkError as error:
        if state.table is None or error.code == ConfigError.code:
            raise
        return state.table


def _position(table: Table, timestamp: str | None, key: str | None) -> Position:
    if table.mode == "full":
        raise ConfigError("the table is read whole (mode full): it has no position", table=table.name)
    if timestamp is not None and not temporal(table):
        raise ConfigError(
            f"the cursor {table.cursor} is no time",
            hint="use --id alone for a table read by id",
            table=table.name,
        )
    position: Position = (cursor_value(table, timestamp),) if timestamp is not None else ()
    if key is None:
        return position
    if timestamp is None and temporal(table):
        raise ConfigError(
            f"the table is read by {table.cursor}",
            hint="give --timestamp, with --id or without",
            table=table.name,
        )
    rest = table.order[len(position) :]
    if len(rest) != 1:
        raise ConfigError("--id takes one value, and the key has several columns", table=table.name)
    column = table.column(rest[0])
    if column.data_type in NUMERIC:
        try:
            return (*position, int(key))
        except ValueError:
            raise ConfigError(f"--id {key!r} is not a number, which {rest[0]} is", table=table.name) from None
    return (*position, key)


def doubles(table: Table, state: State) -> bool:
    """Whether rows that are read or loaded a second time would be in the target twice."""
    has_data = bool(state.data or state.older.upto)
    return has_data and table.mode == "append" and not table.key


def back(here: Position | None, there: Position) -> bool:
    """Whether a move goes back, or may go back."""
    if here is None or type(here[0]) is not type(there[0]):
        return True
    if there[0] != here[0]:
        return str(there[0]) < str(here[0]) if isinstance(here[0], str) else there[0] < here[0]  # type: ignore[operator]
    return len(there) > 1 and there != here


def doubled(table: Table) -> ConfigError:
    return ConfigError(
        f"{table.name} has no key: rows that are read or loaded again would be doubled",
        hint=f"empty {table.target} first, then --force does it",
        table=table.name,
    )


def _refuse_cleaned(log: Log, state: State) -> None:
    """Every file that would have to load again must still be there."""
    data = log.data(state, ())
    # A snapshot replaces all that was before it: older files are not read again.
    last = max((i for i, d in enumerate(data) if d.load_as == "replace"), default=0)
    files = {c.n: [f.path for f in c.files] for c, _ in log.commits(d.n for d in data[last:])}
    wanted = [path for paths in files.values() for path in paths]
    there: set[str] = set()
    for folder in {path.rpartition("/")[0].rpartition("/")[0] for path in wanted}:
        there.update(o.path for o in log.store.list(f"{folder}/"))
    for n in (d.n for d in data[last:] if d.cleaned):
        if there.issuperset(files[n]):  # named by a clean that died before it removed them, or is about to
            there.difference_update(files[n])
    gone = [path for path in wanted if path not in there]
    if gone:
        names = ", ".join(log.store.uri(path) for path in gone[:NAMED])
        more = f" and {len(gone) - NAMED} more" if len(gone) > NAMED else ""
        raise DataError(
            f"{len(gone)} of {len(wanted)} files can't load again, they are no longer in the store: {names}{more}",
            hint=f"to read the table again from the source: floodmark watermark reset -t {log.table_name}",
            table=log.table_name,
        )


def _loads_again(log: Log, state: State) -> dict[str, int]:
    """How many files the next sync loads; under a manual watermark also how many `sync --redshift-only` would."""
    data = log.data(state, (), superseded=state.manual)
    found = {"files_to_load": sum(d.files for d in data if not d.superseded)}
    if state.manual_timestamp is not None:
        waiting = [d for d in data if not d.superseded or not d.cleaned]
        after = created_after((c for c, _ in log.commits(d.n for d in waiting)), state.manual_timestamp)
        found["files_to_load_by_hand"] = sum(d.files for d in waiting if d.n in after)
    return found


def _tell_warehouse(config: Config, store: Store, state: State, force: bool, *, answered: bool) -> list[str]:
    """The load epoch into the ledger; where that fails, the next load does it before anything else."""
    if state.table is None:
        return []  # nothing was ever extracted: nothing is loading either
    if not answered and pipeline.read(store) is None:
        return []  # nothing was ever loaded; no pipeline begins with a warehouse that has never answered
    identity = pipeline.establish(store, config.warehouse.label, stamp()).id
    target = (config.options(state.table_name).target or state.table.table).lower()
    try:
        warehouse = open_warehouse(config.warehouse)
        try:
            warehouse.set_epoch(identity, state.log, state.table_name, target, state.load_epoch, adopt=force)
        finally:
            warehouse.close()
    except ConflictError as error:
        raise error.of(state.table_name) from None
    except FloodmarkError as error:
        return [f"the warehouse was not told yet ({error.message}); the next load does it first"]
    return []


def _undo_reset(log: Log, before: State, ledger: Ledger | None, stages: tuple[Stage, ...]) -> str:
    if "extract" not in stages:
        keyless = before.table is not None and doubles(before.table, before)
        if keyless:
            return f"empty {before.table.target if before.table else 'the target'} before the next sync"
        return "nothing: rows that load again replace themselves by key"
    if "load" in stages and ledger is not None:
        waiting = pending(log.data(before, ledger.rows), ledger, before.load_epoch)
        if waiting:  # superseded now: to go back behind them reads their rows again
            return f"{_restore(log.table_name, waiting[0].n - 1)} (before the files that had not been loaded)"
    return _restore(log.table_name, before.n)


def _restore(name: str, n: int) -> str:
    return f"floodmark watermark restore -t {name} --commit {n}"
