"""Helpers for tests of the watermark's copies and their recovery: published tables, damage, a store that counts."""

import os
from collections.abc import Callable, Iterator
from typing import Any

from floodmark.config.load import StoreSpec
from floodmark.log.claim import claim
from floodmark.log.copies import Publisher
from floodmark.log.fold import State
from floodmark.log.log import Log, draft
from floodmark.log.status import TableStatus, status_path
from floodmark.model.commit import Batch, Claim, Open
from floodmark.model.errors import ConfigError
from floodmark.model.json import dump
from floodmark.model.ledger import LedgerRow
from floodmark.model.times import stamp
from floodmark.store.store import Object, Store
from tests.support.samples import RUN, TABLE, History, at, files, window

NAME = TABLE.name
OTHER = "shop.others"
FIELDS = [
    "table_name", "commit", "last_mysql_extraction_time", "last_mysql_data_timestamp", "last_mysql_data_id",
    "mysql_rows_extracted", "mysql_rows_reread", "mysql_status", "last_redshift_load_time", "redshift_rows_loaded",
    "redshift_rows_reloaded", "redshift_status",
    "backup_strategy", "s3_file_count", "processed_s3_files", "pending_s3_files", "last_error", "created_at",
    "updated_at", "metadata", "backup_metadata",
]  # fmt: skip


def uri(path: str) -> str:
    return f"s3://bucket/{path}"


def synced(rows: int = 100) -> History:
    """A table read up to second 42, key 7, in two files."""
    history = History()
    history.claim(window=window("w", None, (), at(42, 7)))
    history.add(Batch, window_id="w", slices=(0,), files=files(rows - 1, 1), seconds=1.5)
    return history


class Counting(Store):
    """A store that counts its requests and can refuse writes."""

    def __init__(self, spec: StoreSpec) -> None:
        super().__init__(spec)
        self.reads: list[str] = []
        self.writes: list[str] = []
        self.lists: list[str] = []
        self.listed_folders: list[tuple[str, ...]] = []
        self.read_only = False

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[Object]:
        self.lists.append(prefix)
        return super().list(prefix, start_after)

    def folders_of(self, *prefixes: str) -> tuple[tuple[str, ...], ...]:
        self.listed_folders.append(prefixes)
        return super().folders_of(*prefixes)

    def get(self, path: str, most: int | None = None) -> bytes | None:
        self.reads.append(path)
        return super().get(path, most)

    def tagged(self, path: str) -> tuple[bytes | None, str | None]:
        self.reads.append(path)
        return super().tagged(path)

    def swap(self, path: str, data: bytes, tag: str | None) -> bool:
        if self.read_only:
            raise ConfigError("access denied")
        if tag is not None:
            self.writes.append(path)
        return super().swap(path, data, tag)

    def put(self, path: str, data: Any) -> None:
        if self.read_only:
            raise ConfigError("access denied")
        self.writes.append(path)
        super().put(path, data)

    def create(self, path: str, data: bytes) -> bool:
        self.writes.append(path)
        return super().create(path, data)


def put_status(store: Store, status: TableStatus) -> None:
    store.put(status_path(status.table_name), dump(status))


def claimed(log: Log, run: str = RUN, **more: Any) -> State:
    state = log.read()
    if state.n < 0:
        state = log.append(state, draft(state, Open, run))
    return log.append(state, draft(state, Claim, run, table=TABLE, purpose="sync", **more))


def batches(log: Log, state: State, count: int, rows: int = 1) -> State:
    for _ in range(count):
        named = files(rows, prefix=f"b{state.n}")
        state = log.append(state, draft(state, Batch, state.claim.run if state.claim else RUN, files=named))
    return state


def ledger(state: State) -> list[LedgerRow]:
    return [LedgerRow(d.n, d.digest, state.load_epoch, d.rows, d.files, stamp()) for d in state.data.commits]


def published(store: Store, name: str = NAME, count: int = 5) -> tuple[Log, State]:
    """A table read up to second 42, key 7, plus some more commits, published to its three places."""
    log = Log(store, name)
    table = TABLE if name == NAME else None
    span = window("w", None, (), at(42, 7))
    taken = claim(log, log.read(), run=RUN, table=table, purpose="sync", window=span)
    with taken.lease:
        first = draft(taken.state, Batch, RUN, window_id="w", slices=(0,), files=files(3, prefix="w"))
        state = batches(log, log.append(taken.state, first), count)
        Publisher(store, name, RUN).publish(state, ledger(state))
    return log, state


def copies(store: Store, name: str = NAME) -> dict[str, str]:
    """The paths of the three copies."""
    found = [o.path for o in store.list("watermark/") if name in o.path and "recoveries" not in o.path]
    return {"primary": found[2], "daily": found[0], "session": found[1]}


def content(store: Store, prefix: str) -> dict[str, bytes | None]:
    return {o.path: store.get(o.path) for o in store.list(prefix)}


Harm = Callable[[Store, str, bytes], object]
HARMS: dict[str, Harm] = {
    "deleted": lambda store, path, other: store.delete([path]),
    "truncated": lambda store, path, other: store.put(path, (store.get(path) or b"")[:-40]),
    "empty": lambda store, path, other: store.put(path, b""),
    "random bytes": lambda store, path, other: store.put(path, os.urandom(500)),
    "another table's": lambda store, path, other: store.put(path, other),
}
