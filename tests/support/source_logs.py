"""A source's log of changes for tests: places, descriptions, reads of the binary log, and key files."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from floodmark.log import source_log
from floodmark.log.claim import HeldTable
from floodmark.log.fold import State
from floodmark.model.changes import (
    FollowedChanges,
    KeyDescription,
    LogEnd,
    LogIdentity,
    LogPlace,
    PreparedXa,
    Reconcile,
    TableChanges,
)
from floodmark.model.commit import DataFile
from floodmark.store.store import Store, changed_keys
from tests.support.samples import ID

SERVER = LogIdentity("5b8b1c2e-0000-11f0-9bcb-0242ac120002", mariadb=False, created=1755600000)
ORDERS, ITEMS, USERS = "shop.orders", "shop.items", "shop.users"
_number = count(1)


def at(position: int, file: int = 1) -> LogPlace:
    return LogPlace(f"binlog.{file:06}", position)


def end(position: int) -> LogEnd:
    return LogEnd(at(position), "5b8b1c2e-0000-11f0-9bcb-0242ac120002:1-7")


def described(name: str) -> KeyDescription:
    return KeyDescription(name, (("id", "bigint(20)"), ("update_at", "datetime")), (ID,))


def run_name() -> str:
    return f"20250819_153000_{next(_number):04x}"


def opened(store: Store, *names: str, run: str | None = None) -> HeldTable:
    """A log that listens for these tables from place 100 on, held."""
    held = source_log.source_log(store, run or run_name())
    assert source_log.hold(held, lambda state: True)
    source_log.listen(held, [described(name) for name in names], begin=(end(100), SERVER))
    return held


def key_file(held: HeldTable, name: str, number: int = 0) -> DataFile:
    """A key file in the store."""
    content = f"keys of {name}, {held.state.n}, {number}".encode()
    path = f"{changed_keys(name)}{held.run}/{held.state.n}-{number}.parquet"
    held.log.store.put(path, content)
    return DataFile(path, 1, len(content), "00", number)


def changed(*files: DataFile, reconcile: Iterable[Reconcile] = ()) -> TableChanges:
    return TableChanges(updates=len(files), files=tuple(f.path for f in files), reconcile=tuple(reconcile))


def touch(
    held: HeldTable,
    *names: str,
    upto: int,
    reconcile: tuple[Reconcile, ...] = (),
    every: tuple[Reconcile, ...] = (),
    prepared: tuple[PreparedXa, ...] = (),
    begin: LogPlace | None = None,
) -> State:
    """One read up to a position, which found a changed key in each of these tables."""
    assert held.state.source is not None
    files = {name: key_file(held, name) for name in names}
    read = FollowedChanges(
        begin or held.state.source.next_start,
        at(upto),
        {name: changed(file, reconcile=reconcile) for name, file in files.items()},
        prepared,
        reconcile=every,
    )
    return source_log.append(held, read, end(upto), SERVER, files=tuple(files.values()))
