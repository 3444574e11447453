"""The watermark commands: get, list and set, over the commit log and the ledger.

Reading needs the store alone: MySQL and the warehouse may be away, and what is unknown then says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import unquote

from floodmark.config import Config
from floodmark.errors import ConfigError, ConflictError, FloodmarkError
from floodmark.model import Position, Table
from floodmark.mysql.connect import Session
from floodmark.mysql.discover import discover, resolve
from floodmark.mysql.sql import NUMERIC
from floodmark.plan import cursor_value, temporal
from floodmark.state import Changed, Log, State, Watermark, claim, draft
from floodmark.store import Store
from floodmark.warehouse import Ledger
from floodmark.warehouse.open import open_warehouse

# The whole of a file list, where only the newest are kept in the state.
ALL_FILES = ("processed_s3_files_truncated", "pending_s3_files_truncated")


def tables(store: Store) -> list[str]:
    """Every table that has a log."""
    found = {o.path.split("/")[1] for o in store.list("commits/")}
    return sorted(unquote(name) for name in found)


def full_name(config: Config, store: Store, name: str) -> str:
    """schema.table; the schema may be left out when the URL names a database or only one schema has the table."""
    if "." in name:
        return name
    if config.source.database:
        return f"{config.source.database}.{name}"
    known = [t for t in tables(store) if t.partition(".")[2] == name]
    if len(known) == 1:
        return known[0]
    with Session(config.source, purpose="names") as session:
        return resolve(session, name, None)


def watermark_get(config: Config, name: str, show_files: bool = False) -> dict[str, Any]:
    """One table's watermark, as the contract's document."""
    store = Store(config.store)
    return _document(config, store, full_name(config, store, name), show_files)


def watermark_list(config: Config, names: Sequence[str] = ()) -> dict[str, Any]:
    """The watermarks of all tables that have a log, or of the given ones."""
    store = Store(config.store)
    chosen = [full_name(config, store, n) for n in names] if names else tables(store)
    return {"tables": [_document(config, store, name, False) for name in chosen]}


def _document(config: Config, store: Store, name: str, show_files: bool) -> dict[str, Any]:
    log = Log(store, name)
    state = log.read()
    if state.n < 0 and name not in _configured(config):
        _must_exist(config, name)
    ledger = _ledger(config, state)
    document = Watermark(store, name, "").current(state, ledger.rows if ledger else None)
    if state.position is None:
        document["next_start"] = config.options(name).start
    if show_files:
        _all_files(store, log, state, ledger, document)
    return document


def _configured(config: Config) -> Sequence[str]:
    return config.tables


def _must_exist(config: Config, name: str) -> None:
    """A table without state must at least be there; when the source is away, it gets the benefit of the doubt."""
    try:
        with Session(config.source, purpose="names") as session:
            resolve(session, name, config.source.database)
    except FloodmarkError as error:
        if error.code == ConfigError.code:
            raise error.of(name) from None


def _ledger(config: Config, state: State) -> Ledger | None:
    """What the warehouse says, or None when it can't be asked now."""
    if state.table is None:
        return Ledger()
    try:
        warehouse = open_warehouse(config.warehouse)
    except ConfigError:
        return None
    try:
        return warehouse.ledger(state.log, state.table.target)
    except FloodmarkError:
        return None
    finally:
        warehouse.close()


def _all_files(store: Store, log: Log, state: State, ledger: Ledger | None, document: dict[str, Any]) -> None:
    loaded = ledger.loaded(state.load_epoch) if ledger else frozenset()
    processed: list[str] = []
    waiting: list[str] = []
    for data in log.data(state, superseded=True):
        commit, digest = log.commit(data.n)
        uris = [store.uri(f.path) for f in commit.files]
        if (data.n, digest) in loaded:
            processed += uris
        elif not data.superseded:
            waiting += uris
    document["processed_s3_files"], document["pending_s3_files"] = processed, waiting
    for mark in ALL_FILES:
        document.pop(mark, None)


def watermark_set(
    config: Config, name: str, timestamp: str | None, key: str | None, run: str, force: bool = False
) -> dict[str, Any]:
    """A manual start, as a commit of its own; returns the new document and how to undo it."""
    store = Store(config.store)
    name = full_name(config, store, name)
    log = Log(store, name)
    for _ in range(3):
        state = log.read()
        table = _described(config, name, state)
        position = _position(table, timestamp, key)
        if table.mode == "append" and not table.key and not force:
            raise ConfigError(
                f"{name} has no key: rows that are read again would be doubled",
                hint="--force does it anyway",
                table=name,
            )
        taken = claim(log, state, run=run, purpose="set", table=table if state.table is None else None)
        if isinstance(taken, Changed):
            continue
        with taken.lease:
            before = taken.state.position
            after = log.append(taken.state, draft(taken.state, "set", run, position=position))
            ledger = _ledger(config, after)
            document = Watermark(store, name, run).publish(after, ledger.rows if ledger else None)
        document["undo"] = _undo(name, table, before, after.n)
        return document
    raise ConflictError("other runs keep changing the table", hint="try again when they are done", table=name)


def _described(config: Config, name: str, state: State) -> Table:
    """The table as it is, or as it was last seen when the source is away."""
    try:
        with Session(config.source, purpose="set") as session:
            return discover(session, name, config.options(name), config.source.database)
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


def _undo(name: str, table: Table, before: Position | None, n: int) -> str:
    """The command that takes the set back."""
    if before is None:
        return f"the table had no position before commit {n}"
    words = ["floodmark watermark set", "-t", name]
    rest = before
    if temporal(table):
        words += ["--timestamp", f'"{before[0]}"']
        rest = before[1:]
    if len(rest) == 1:
        words += ["--id", str(rest[0])]
    return " ".join(words)
