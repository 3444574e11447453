"""How far tables have got: `watermark get` and `list`, from the commit log and the ledger.

Only the store is needed. MySQL and the warehouse may be unreachable; whatever is unknown then says so.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any

from floodmark.config.load import Config
from floodmark.load.preview import Ledgers, ledger_of
from floodmark.log import copies
from floodmark.log.fold import State
from floodmark.log.lease import activity_now
from floodmark.log.log import Log, tables
from floodmark.log.pipeline import Starts
from floodmark.log.status import read_checked, read_status
from floodmark.model.commit import files_of
from floodmark.model.ledger import Ledger
from floodmark.model.notes import not_followed
from floodmark.model.results import Activity, OlderWatermark, Watermark, WatermarkList
from floodmark.model.run import Stage
from floodmark.model.times import temporal
from floodmark.plan import takeover as legacy
from floodmark.plan.lag import lags
from floodmark.plan.tables import full_name, must_exist
from floodmark.status.health import health_of, limit_of
from floodmark.store.places import finish
from floodmark.store.store import Store

# Seconds that the warehouse has to answer: how far the extraction got must be shown within ten.
LOOK_SECONDS = 3.5
# Marks of file lists that have only the newest files.
ALL_FILES = ("processed_s3_files_truncated", "pending_s3_files_truncated")


def named_log(config: Config, name: str) -> Log:
    """The log of a table that the user has named."""
    store = Store(config.store)
    return Log(store, full_name(config, store, name))


def watermark_get(config: Config, name: str, show_files: bool = False) -> Watermark:
    """One table's watermark as the contract's document, with its mode, its lag and where the next sync starts."""
    store = Store(config.store)
    return _marks(config, store, [full_name(config, store, name)], show_files)[0]


def watermark_list(config: Config, names: Sequence[str] = ()) -> WatermarkList:
    """The watermarks of all tables that have a log, or of the given ones.

    Without names also the older tool's watermarks that the first sync of their table will take over.
    """
    store = Store(config.store)
    chosen = [full_name(config, store, n) for n in names] if names else tables(store)
    marks = tuple(_marks(config, store, chosen, False, named=bool(names)))
    if names:
        return WatermarkList(tables=marks)
    older = tuple(
        OlderWatermark(table_name=name, timestamp=one.timestamp, uri=store.uri(one.path))
        for name, one in legacy.waiting(store, {m.table_name for m in marks if m.commit is not None})
    )
    return WatermarkList(tables=marks, older_watermarks=older)


def _marks(
    config: Config, store: Store, names: Sequence[str], show_files: bool, named: bool = True
) -> list[Watermark]:
    """The watermarks of tables; a table without a log that the user has `named` must at least exist."""
    logs = {name: Log(store, name) for name in names}
    states: dict[str, State] = {}
    for name, log in logs.items():
        states[name] = log.read()
        if named and states[name].n < 0 and name not in config.tables:
            must_exist(config, name)
    behind, checked = lags(config, states), read_checked(store)
    marks = []
    with Ledgers(config, LOOK_SECONDS) as ledgers:
        for name, state in states.items():
            ledger = ledgers.of(state, whole=show_files)
            status = read_status(store, name, checked)
            # Without a log there is no copy that could hold a failure.
            failure = status.failure if status and state.n < 0 else None
            published = copies.Publisher(store, name, "", log=logs[name])
            document = published.current(state, ledger.rows if ledger else None, failure)
            if show_files:
                document = {**document, **_all_files(store, Log(store, name), state, ledger)}
                for truncated in ALL_FILES:
                    document.pop(truncated, None)
            options, lag = config.options(name), behind.get(name)
            mark = Watermark.of(document).but(
                mode=state.table.mode if state.table else options.mode,
                not_followed=tuple(not_followed(state.table, options.deletes)) if state.table else (),
                activity=Activity.of(activity_now(store, state)),
                last_check_time=status.last_check_time if status else None,
            )
            mark = mark.but(
                health=health_of(mark, status, limit_of(config, name), datetime.now(UTC)).word,
                lag_seconds=lag.seconds if lag else None,
                **({"lag_ids": lag.ids} if lag is not None and lag.ids is not None else {}),
                **(next_start(config, store, state) if state.position is None else {}),
            )
            marks.append(mark)
    return marks


def next_start(config: Config, store: Store, state: State) -> dict[str, Any]:
    """Where the next sync of a table without a position starts, and which setting decides that."""
    older = legacy.timestamp(store, state.table_name) if legacy.untouched(state) else None
    if older is not None:
        return {"next_start": older, "next_start_by": "the older tool's watermark"}
    if state.table is not None and not temporal(state.table):  # read whole, or by an id
        return {"next_start": None, "next_start_by": None}
    start = Starts(store, config).of(state.table_name)
    return {"next_start": start.timestamp, "next_start_by": start.by}


def published(
    config: Config, store: Store, state: State, run: str, succeeded: Collection[Stage] = ()
) -> Watermark:
    """Publishes the watermark of a table that a command has moved."""
    ledger = ledger_of(config, state)
    rows = ledger.rows if ledger else None
    document = copies.Publisher(store, state.table_name, run).publish(state, rows, succeeded=succeeded)
    finish(store.places)
    return Watermark.of(document)


def _all_files(store: Store, log: Log, state: State, ledger: Ledger | None) -> dict[str, list[str]]:
    loaded = ledger.loaded(state.load_epoch) if ledger else frozenset()
    processed: list[str] = []
    waiting: list[str] = []
    for data in log.data(state, superseded=True):
        commit, digest = log.commit(data.n)
        uris = [store.uri(f.path) for f in files_of(commit)]
        if (data.n, digest) in loaded:
            processed += uris
        elif not data.superseded:
            waiting += uris
    return {"processed_s3_files": processed, "pending_s3_files": waiting}
