"""`watermark set`, `reset`, `retire`, `accept` and `move`: each is a commit under a claim, or a new warehouse in pipeline.json.

No commit is rewritten and no file removed, so each command says how to undo it. A reset of the load stage is written to
the log first and to the ledger second; if it dies in between, the next load finishes it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from secrets import token_hex
from typing import Any

from floodmark.config.load import Config, TableOptions
from floodmark.load.decide import check_holder
from floodmark.load.pending import created_after, ledger_for, pending
from floodmark.load.preview import ledger_of
from floodmark.load.protocol import LEDGER, Warehouse, open_warehouse
from floodmark.log import pipeline
from floodmark.log.claim import claim, decide_and_claim, refuse_if_held
from floodmark.log.fold import State, duplicates, restarted_by, would_duplicate
from floodmark.log.log import Log, draft, tables
from floodmark.model import times
from floodmark.model.commit import Commit, Reset, Set, files_of
from floodmark.model.errors import ConfigError, ConflictError, DataError, FloodmarkError, about
from floodmark.model.ledger import Ledger, TargetFiller
from floodmark.model.position import Position
from floodmark.model.results import MovedTable, MoveResult, Watermark
from floodmark.model.run import EXTRACT, Stage, SyncOptions
from floodmark.model.table import Table
from floodmark.model.text import counted, data_time
from floodmark.model.times import cursor_value, stamp, temporal
from floodmark.model.window import Window
from floodmark.plan import recipe
from floodmark.plan.lag import cursor_now
from floodmark.plan.reread import (
    Upkeep,
    asked_about,
    begins_whole,
    carrier,
    check_dropped,
    follow,
    question,
    vanished,
)
from floodmark.plan.tables import must_exist
from floodmark.source.describe import discover
from floodmark.source.errors import as_discovered
from floodmark.source.ranges import table_rows
from floodmark.source.session import Session
from floodmark.source.sql import NUMERIC
from floodmark.store.store import Store
from floodmark.watermark.follow_again import accept_log, follow_again
from floodmark.watermark.show import named_log, next_start, published

# What a command decides about a table: its description, if that changes, and the commit that follows.
Move = tuple[Table | None, type[Commit], dict[str, Any]]
# Seconds that a cursor may be ahead of the clock: clocks differ.
SLACK = 60.0
# Files that an error lists: it is one line.
NAMED = 10


def watermark_set(
    config: Config, name: str, timestamp: str | None, key: str | None, run: str, force: bool = False
) -> Watermark:
    """Sets a table's start by hand, as a commit; returns the new document and how to undo it."""
    try:
        text = None if timestamp is None else times.timestamp(timestamp, datetime.now(UTC))
    except ValueError as error:
        raise ConfigError(str(error), table=name) from None
    if text is None and key is None:
        raise ConfigError("give a timestamp, or an id for a table read by id", table=name)
    log = named_log(config, name)
    now = log.read()
    if text is not None and key is None and now.table is not None and now.table.follows:
        return follow_again(config, now, text, run)

    def decide(state: State) -> Move:
        table = known_table(config, log.table_name, state, text)
        position = _position(table, text, key)
        if would_duplicate(table, state) and back(state.position, position) and not force:
            raise duplicates(table)
        refused = recipe.unfit(state.table, table) if state.has_data else None
        if refused is not None:
            raise refused
        described = None if state.table is not None and state.table.order == table.order else table
        return described, Set, {"position": position}

    before, after = set_position(log, run, "set", decide, force=force)
    return published(config, log.store, after, run).but(undo=_restore(log.table_name, before.n))


def watermark_reset(
    config: Config,
    name: str,
    run: str,
    *,
    mysql_only: bool = False,
    redshift_only: bool = False,
    force: bool = False,
) -> Watermark:
    """Puts one stage of a table, or both, back to the start; returns the new document and how to undo it."""
    if mysql_only and redshift_only:
        raise ConfigError(
            "--mysql-only and --redshift-only can't be combined", hint="to reset both stages, give neither"
        )
    stages: tuple[Stage, ...] = (
        ("extract",) if mysql_only else ("load",) if redshift_only else ("extract", "load")
    )
    log = named_log(config, name)
    if "load" in stages:
        pipeline.check(log.store, config.warehouse.label)
    seen: Ledger | None = None

    def decide(state: State) -> Move:
        nonlocal seen
        if state.n < 0 and log.table_name not in config.tables:
            must_exist(config, log.table_name, doubt=False)
        if state.table is not None and would_duplicate(state.table, state) and not force:
            raise duplicates(state.table)
        if redshift_only:
            _refuse_cleaned(log, state)
        seen = ledger_of(config, state)
        return None, Reset, {"stages": stages}

    notes: list[str] = []

    def tell(state: State) -> None:
        if "load" in stages:
            notes.extend(_tell_warehouse(config, log.store, state, force, answered=seen is not None))

    before, after = set_position(log, run, "reset", decide, tell, force)
    mark = published(config, log.store, after, run)
    if after.position is None:
        mark = mark.but(**next_start(config, log.store, after))
        began = before.progress.began
        if began is not None and mark.next_start is None:
            left_out = f"rows at or before {data_time(str(began[0]))}, which were left out so far"
            notes.append(f"the next sync also reads {left_out}")
    if redshift_only:
        mark = mark.but(**_loads_again(log, after))
    return mark.but(notes=tuple(notes), undo=_undo_reset(log, before, seen, stages))


def watermark_move(config: Config, run: str) -> MoveResult:
    """Moves the pipeline to the configured warehouse; returns what waits to be loaded there, and how to undo it.

    Its ledger says what is already loaded (it may be a restored snapshot, or a file that was moved); the next sync loads
    the rest. Nothing in the old warehouse changes.
    """
    store, label = Store(config.store), config.warehouse.label
    found = pipeline.read(store)
    if found is None:
        raise ConfigError(
            f"{store.uri('')} has no pipeline yet", hint="the first sync creates it: floodmark sync"
        )
    with closing(open_warehouse(config.warehouse)) as warehouse:
        waiting = tuple(_waiting(warehouse, Log(store, name), found.id, run) for name in tables(store))
        if not waiting:
            warehouse.rows(LEDGER)  # it must answer, even so
    if found.warehouse != label:
        pipeline.move(store, found, label)
    undo = f"set warehouse.url back to {found.warehouse}, then: floodmark watermark move"
    return MoveResult(pipeline=found.id, from_=found.warehouse, to=label, tables=waiting, undo=undo)


def _waiting(warehouse: Warehouse, log: Log, identity: str, run: str) -> MovedTable:
    """What the warehouse still has to load of a table; raises ConflictError if a run holds the table."""
    state = log.read()
    refuse_if_held(log, state, run)
    if state.table is None:
        return MovedTable(table=log.table_name, files=0, rows=0, files_gone=0)
    ledger = ledger_for(warehouse, state, state.table.target)
    check_holder(ledger.holder, identity, state.log, log.table_name, state.table.target)
    left = pending(log.data(state, ledger.rows), ledger, state.load_epoch)
    last = max((i for i, d in enumerate(left) if d.load_as == "replace"), default=0)
    return MovedTable(
        table=log.table_name,
        files=sum(d.files for d in left[last:]),
        rows=sum(d.rows for d in left[last:]),
        files_gone=sum(d.files for d in left[last:] if d.cleaned),
    )


def watermark_retire(config: Config, name: str, run: str) -> Watermark:
    """Leaves the table out of `sync --all`; its log, files and rows stay. Returns the new document."""
    log = named_log(config, name)

    def retire(state: State) -> State:
        if state.n < 0:
            raise ConfigError(
                f"{log.table_name} was never synced, so there is nothing to retire",
                hint="floodmark watermark list shows the tables that were synced",
                table=log.table_name,
            )
        if state.retired:
            return state
        taken = claim(log, state, run=run, purpose="retire")
        taken.lease.release()
        return taken.state

    state = decide_and_claim(log, log.read(), retire)
    # The source no longer shows it: from now on that is not a failure.
    mark = published(config, log.store, state, run, succeeded=EXTRACT)
    return mark.but(undo=f"floodmark sync -t {log.table_name}")


def set_position(
    log: Log,
    run: str,
    purpose: str,
    decide: Callable[[State], Move],
    then: Callable[[State], None] = lambda state: None,
    force: bool = False,
) -> tuple[State, State]:
    """Appends the commit that `decide` makes, under a claim on the very state that it saw; the states before and after."""

    def move(state: State) -> tuple[State, State]:
        with about(log.table_name):
            table, kind, fields = decide(state)
        taken = claim(log, state, run=run, purpose=purpose, table=table)
        with taken.lease:
            after = log.append(taken.state, draft(taken.state, kind, run, **fields))
            then(after)
        return taken.state, after

    return decide_and_claim(log, log.begin(force), move)


def known_table(config: Config, name: str, state: State, timestamp: str | None) -> Table:
    """The table as it is now, or as last seen if the source is unreachable."""
    options = config.options(name)
    try:
        with Session(config.source, purpose="set") as session:
            table = discover(session, name, options, config.source.database)
            if state.table is not None and state.table.order != table.order:  # the set describes it again
                check_dropped(session, table, vanished(state.table, table, options))
            if timestamp is not None and temporal(table):
                now = cursor_now(session, table, options.cursor_timezone, SLACK)
                if cursor_value(table, timestamp) > now:
                    raise ConfigError(
                        f"{timestamp} is in the future: rows up to then would be skipped",
                        hint=f"the time is now {now[:19]} in terms of {table.cursor}",
                    )
            return table
    except FloodmarkError as error:
        if state.table is None or error.code == ConfigError.code:
            raise
        return state.table


def _position(table: Table, timestamp: str | None, key: str | None) -> Position:
    if table.follows:
        raise ConfigError(
            "the table follows the binary log, so it has no id to begin after",
            hint="give --timestamp alone, in UTC: it follows the log again from the first transaction after it",
            table=table.name,
        )
    if table.mode == "full":
        raise ConfigError("the table has no position: every sync reads all of it (mode full)")
    if timestamp is not None and not temporal(table):
        raise ConfigError(
            f"the cursor {table.cursor} is not a time", hint="use --id alone for a table read by id"
        )
    position: Position = (cursor_value(table, timestamp),) if timestamp is not None else ()
    if key is None:
        return position
    if timestamp is None and temporal(table):
        raise ConfigError(
            f"the table is read by {table.cursor}", hint="give --timestamp, with or without --id"
        )
    rest = table.order[len(position) :]
    if len(rest) != 1:
        raise ConfigError("--id takes one value, but the key has several columns")
    column = table.column(rest[0])
    if column.data_type in NUMERIC:
        try:
            return (*position, int(key))
        except ValueError:
            raise ConfigError(f"--id {key!r} is not a number, but {rest[0]} is numeric") from None
    return (*position, key)


def back(here: Position | None, there: Position) -> bool:
    """Whether a move goes back, or may go back."""
    if here is None or type(here[0]) is not type(there[0]):
        return True
    if there[0] != here[0]:
        return str(there[0]) < str(here[0]) if isinstance(here[0], str) else there[0] < here[0]  # type: ignore[operator]
    return len(there) > 1 and there != here


def _refuse_cleaned(log: Log, state: State) -> None:
    """Raises DataError unless every file that would load again is still there."""
    data = log.data(state, ())
    # A snapshot replaces all that was before it: older files are not read again.
    last = max((i for i, d in enumerate(data) if d.load_as == "replace"), default=0)
    files = {c.n: [f.path for f in files_of(c)] for c, _ in log.commits(d.n for d in data[last:])}
    wanted = [path for paths in files.values() for path in paths]
    there: set[str] = set()
    for folder in {path.rpartition("/")[0].rpartition("/")[0] for path in wanted}:
        there.update(o.path for o in log.store.list(f"{folder}/"))
    for n in (d.n for d in data[last:] if d.cleaned):
        if there.issuperset(files[n]):  # a clean has named them and died, or is about to remove them
            there.difference_update(files[n])
    gone = [path for path in wanted if path not in there]
    if gone:
        names = ", ".join(log.store.uri(path) for path in gone[:NAMED])
        more = f" and {len(gone) - NAMED} more" if len(gone) > NAMED else ""
        raise DataError(
            f"{len(gone)} of {len(wanted)} files can't load again, because they are no longer in the store: {names}{more}",
            hint=f"to read the table again from the source: floodmark watermark reset -t {log.table_name}",
        )


def _loads_again(log: Log, state: State) -> dict[str, int]:
    """How many files the next sync loads; under a manual watermark also how many `sync --redshift-only` would."""
    data = log.data(state, (), superseded=state.progress.manual)
    found = {"files_to_load": sum(d.files for d in data if not d.superseded)}
    if state.progress.manual_timestamp is not None:
        waiting = [d for d in data if not d.superseded or not d.cleaned]
        after = created_after(
            (c for c, _ in log.commits(d.n for d in waiting)), state.progress.manual_timestamp
        )
        found["files_to_load_by_hand"] = sum(d.files for d in waiting if d.n in after)
    return found


def _tell_warehouse(config: Config, store: Store, state: State, force: bool, *, answered: bool) -> list[str]:
    """Writes the load epoch to the ledger; if that fails, the next load does it first."""
    if state.table is None:
        return []  # nothing was ever extracted, so nothing can be loading
    if not answered and pipeline.read(store) is None:
        return []  # nothing was ever loaded, and no pipeline begins with a warehouse that has never answered
    identity = pipeline.establish(store, config.warehouse.label, stamp()).id
    target = (config.options(state.table_name).target or state.table.source.table).lower()
    holder = TargetFiller(identity, state.log, state.table_name, state.load_epoch)
    try:
        with closing(open_warehouse(config.warehouse)) as warehouse:
            warehouse.set_epoch(holder, target, adopt=force)
    except ConflictError as error:
        raise error.of(state.table_name) from None
    except FloodmarkError as error:
        return [
            f"the warehouse has not recorded the reset yet ({error.message}); the next load does that first"
        ]
    return []


def _undo_reset(log: Log, before: State, ledger: Ledger | None, stages: tuple[Stage, ...]) -> str:
    if "extract" not in stages:
        if before.table is not None and would_duplicate(before.table, before):
            return f"empty {before.table.target} before the next sync"
        return "no need, because rows that load again are merged by key"
    if "load" in stages and ledger is not None:
        waiting = pending(log.data(before, ledger.rows), ledger, before.load_epoch)
        if waiting:  # superseded now: their rows have to be read again
            return _restore(log.table_name, waiting[0].n - 1)  # restore refuses a later position
    return _restore(log.table_name, before.n)


def _restore(name: str, n: int) -> str:
    return f"floodmark watermark restore -t {name} --commit {n}"


def watermark_accept(config: Config, name: str, run: str, *, force: bool = False) -> Watermark:
    """Accepts the open question of `schema_changes: ask`; without one, a source that was replaced.

    The first is a claim that resets nothing. The second is a reset of both stages, so that no file of the old source
    loads any more, and the next sync reads the whole source again and merges it by key. Without a key rows would be
    duplicated, so it is refused unless forced. Returns the new document.
    """
    log = named_log(config, name)
    options = config.options(log.table_name)
    state = log.begin(force)
    if state.table is None:
        raise ConfigError("the table was never synced, so there is nothing to accept", table=log.table_name)
    with Session(config.source, purpose="accept") as session:
        table = discover(session, log.table_name, options, config.source.database)
        rows = table_rows(session, table)
        answered = decide_and_claim(
            log, state, lambda newest: _answered(session, table, newest, options, log, run)
        )
    if answered is not None:
        after, found = answered
        return published(config, log.store, after, run).but(**found)
    if table.mode == "full":
        raise ConfigError("nothing to accept: every sync reads the whole table (mode full)", table=table.name)
    if table.follows and (followed := accept_log(config, table, run)) is not None:
        return followed
    mark = watermark_reset(config, log.table_name, run, force=force)
    if options.deletes == "ignore":
        left = f"rows that only the old source had stay in {table.target}: floodmark verify -t {table.name} --repair removes them"
    else:
        done = "deletes" if options.deletes == "hard" else "marks as deleted"
        left = f"the next sync {done} the rows that only the old source had"
    notes = (*mark.notes, f"the next sync reads about {counted(rows, 'row')} again", left)
    return mark.but(rows_read_again=rows, notes=notes)


@as_discovered()
def _answered(
    session: Session, table: Table, state: State, options: TableOptions, log: Log, run: str
) -> tuple[State, dict[str, Any]] | None:
    """Claims the table as it is now, with the rows that are to be read again; None if there is no question.

    The claim is all that a sync would need to ask no more: it reads the rows that the claim says it owes.
    """
    now = restarted_by(state, table)
    if now.table is None or question(table, now, options) is None:
        return None
    with about(table.name):
        found = follow(session, table, now, options, SyncOptions(dry_run=True), log)
    if found.asks is None:
        return None
    reread = None if found.window is not None else _carried(session, found, now)
    taken = claim(log, state, run=run, purpose="accept", table=found.table, reread=reread)
    taken.lease.release()
    rows, notes = sum(piece.rows for piece in found.slices), list(found.notes)
    if begins_whole(now, table, SyncOptions()):
        rows = table_rows(session, table)
        notes.append(
            f"The next sync reads about {counted(rows, 'row')}, which replace all rows of {table.target}."
        )
    elif reread is not None:
        rows = reread.rows
    elif not found.table.key and found.table.mode != "full":
        notes.append(f"Without a key, no row is read again: {table.target} changes when new rows come.")
    accepted = asked_about(now.table, found.table, found.recipe)
    return taken.state, {"accepted": tuple(accepted), "rows_read_again": rows, "notes": tuple(notes)}


def _carried(session: Session, found: Upkeep, state: State) -> Window | None:
    """The last rows read, as a window to read again: they bring the change to the target without new rows."""
    if found.table.mode == "full":
        return None
    for piece in carrier(session, found.table, state.position):
        if piece.by == "key" and piece.upto is not None:
            return Window(token_hex(8), None, None, "key", (piece.upto,), rows=piece.rows, done=(1,))
        return Window(token_hex(8), piece.after, piece.upto, "cursor", (), None, piece.rows)
    return None
