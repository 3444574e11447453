"""How far tables have got: `watermark get` and `list`, over the commit log and the ledger.

Reading needs the store alone: MySQL and the warehouse may be away, and what is unknown then says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from floodmark import legacy, system
from floodmark.config import Config
from floodmark.errors import ConfigError, FloodmarkError, TransientError
from floodmark.lag import lags
from floodmark.load import ledger_for
from floodmark.mysql.connect import Session
from floodmark.mysql.discover import resolve
from floodmark.plan import temporal
from floodmark.state import Log, State, Watermark, holder, pipeline
from floodmark.state.activity import activity
from floodmark.state.checks import read_check
from floodmark.state.log import tables
from floodmark.store import Store
from floodmark.warehouse import Ledger, Warehouse
from floodmark.warehouse.open import open_warehouse

# A warehouse that is slower than this is unknown: how far the extraction got must be seen within ten seconds.
LOOK_SECONDS = 3.5
# The whole of a file list, where only the newest are kept in the state.
ALL_FILES = ("processed_s3_files_truncated", "pending_s3_files_truncated")


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
    """One table's watermark, as the contract's document, with its lag and where the next sync starts."""
    store = Store(config.store)
    return _documents(config, store, [full_name(config, store, name)], show_files)[0]


def watermark_list(config: Config, names: Sequence[str] = ()) -> dict[str, Any]:
    """The watermarks of all tables that have a log, or of the given ones."""
    store = Store(config.store)
    chosen = [full_name(config, store, n) for n in names] if names else tables(store)
    return {"tables": _documents(config, store, chosen, False, named=bool(names))}


def _documents(
    config: Config, store: Store, names: Sequence[str], show_files: bool, named: bool = True
) -> list[dict[str, Any]]:
    """The documents of tables; those that someone has `named`, and that have no log, must at least be there."""
    logs = {name: Log(store, name) for name in names}
    states: dict[str, State] = {}
    for name, log in logs.items():
        states[name] = log.read()
        if named and states[name].n < 0 and name not in config.tables:
            must_exist(config, name)
    behind = lags(config, states)
    documents = []
    with Ledgers(config, LOOK_SECONDS) as ledgers:
        for name, state in states.items():
            ledger = ledgers.of(state, whole=show_files)
            check = read_check(store, name)
            # A table without a log has no copy that could tell of a failure.
            failure = check.failure if check and state.n < 0 else None
            mark = Watermark(store, name, "", log=logs[name])
            document = mark.current(state, ledger.rows if ledger else None, failure)
            document["activity"] = activity(state, holder(store, name, state.claim))
            document["last_check_time"] = check.last_check_time if check else None
            lag = behind.get(name)
            document["lag_seconds"] = lag.seconds if lag else None
            if lag is not None and lag.ids is not None:
                document["lag_ids"] = lag.ids
            if state.position is None:
                document |= next_start(config, store, state)
            if show_files:
                _all_files(store, Log(store, name), state, ledger, document)
            documents.append(document)
    return documents


def next_start(config: Config, store: Store, state: State) -> dict[str, Any]:
    """Where the next sync of a table without a position starts, and who says so."""
    older = legacy.timestamp(store, state.table_name) if legacy.untouched(state) else None
    if older is not None:
        return {"next_start": older, "next_start_by": "the older tool's watermark"}
    if state.table is not None and not temporal(state.table):  # read whole, or by an id
        return {"next_start": None, "next_start_by": None}
    start = system.start(system.read(store), config, state.table_name)
    return {"next_start": start.timestamp, "next_start_by": start.by}


def must_exist(config: Config, name: str, doubt: bool = True) -> None:
    """A table without state must at least be there; when the source is away, it may get the benefit of the doubt."""
    try:
        with Session(config.source, purpose="names") as session:
            resolve(session, name, config.source.database)
    except FloodmarkError as error:
        if error.code == ConfigError.code or not doubt:
            raise error.of(name) from None


class Ledgers:
    """What the warehouse says of tables; one that can't be asked is asked only once, and for so many `seconds`."""

    def __init__(self, config: Config, seconds: float | None = None) -> None:
        self._config = config
        self._seconds = seconds
        self._warehouse: Warehouse | None = None
        self._away = False

    def of(self, state: State, *, whole: bool = True) -> Ledger | None:
        """A table's ledger, or what of it a watermark needs; None when it can't be asked now."""
        if state.table is None:
            return Ledger()
        if self._away:
            return None
        try:
            if self._warehouse is None:
                # Another warehouse than the pipeline's would call everything pending.
                pipeline.check(Store(self._config.store), self._config.warehouse.label)
                self._warehouse = open_warehouse(self._config.warehouse, seconds=self._seconds)
            return ledger_for(self._warehouse, state, state.table.target, whole=whole)
        except FloodmarkError as error:
            self._away = isinstance(error, TransientError) or self._warehouse is None
            return None

    def __enter__(self) -> Ledgers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._warehouse is not None:
            self._warehouse.close()


def ledger_of(config: Config, state: State) -> Ledger | None:
    """What the warehouse says of a table, as far as a watermark needs it; None when it can't be asked now."""
    with Ledgers(config) as ledgers:
        return ledgers.of(state, whole=False)


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
