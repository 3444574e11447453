"""A table that follows the binary log, synced with what a log is made up to say of it; also as a process that can be killed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from floodmark.config.load import Config, load
from floodmark.log.fold import State
from floodmark.log.following import Unfollowed
from floodmark.model.changes import FollowedTo, LogIdentity, LogPlace, Reconcile
from floodmark.model.commit import DataFile
from floodmark.model.errors import FloodmarkError
from floodmark.model.events import Emit
from floodmark.model.run import SyncOptions, TableReport, new_run
from floodmark.plan.followed import TableNews
from floodmark.services import Services
from floodmark.source.binlog.end import log_identity
from floodmark.source.session import Session
from floodmark.spark.context import Spark
from floodmark.sync.news import LogNews
from floodmark.sync.table import sync_table
from floodmark.sync.work import Work
from tests.conftest import Silent, Workspace

# Whose log it is made up to be: rows are read on no other server.
_server = [LogIdentity("server", False)]


@contextmanager
def at_home(config: Config) -> Iterator[None]:
    """The log is made up to be the source's own."""
    with Session(config.source) as session:
        _server.append(log_identity(session))
    try:
        yield
    finally:
        _server.pop()


@dataclass(frozen=True)
class Told(LogNews):
    """What a log is made up to say of every table."""

    heard: TableNews | None = None

    def of(self, table: State, most: int | None = None) -> TableNews | None:
        return self.heard


def key_file(path: str) -> DataFile:
    """A key file of the source's log."""
    return DataFile(path, 1, 100, "", 0)


def stands(n: int, log: str = "source") -> FollowedTo:
    """Where a table stands after a commit of the source's log."""
    place = LogPlace("binlog.000001", n * 1000)
    return FollowedTo(log, n, f"digest {n}", place, _server[-1], f"2025-08-14T16:{n:02}:00.000000Z")


def news(n: int, *reconcile: Reconcile, files: tuple[str, ...] | None = None) -> TableNews:
    """A log that ends with a commit: it names these key files of the table, or can't tell, or has nothing to say of it."""
    named = tuple(map(key_file, files or ()))
    pending = Unfollowed(stands(n), named, reconcile) if reconcile or files is not None else None
    return TableNews(stands(n), pending)


def follow(
    config: Config, name: str, heard: TableNews | None, spark: Spark | None, emit: Emit, **options: Any
) -> TableReport:
    """A sync of one table, told what the source's log says of it."""
    with Services(config, emit, new_run(), spark) as services:
        work = Work(services, SyncOptions(**options))
        if heard is not None:
            work.news = Told(heard=heard)
        work.resolve([name], False)
        return sync_table(work.table(name))


def followed(
    workspace: Workspace,
    heard: TableNews | None,
    table: str = "orders",
    emit: Emit | None = None,
    **options: Any,
) -> dict[str, Any]:
    """The same for a test's table, which must succeed; returns its part of the report."""
    name = workspace.full_name(table)
    report = follow(workspace.settings, name, heard, workspace.spark(), emit or Silent(), **options)
    if report.error is not None:
        raise report.error
    return report.as_json()


def refused(call: Callable[[], object]) -> FloodmarkError:
    """The error that a call ends with."""
    try:
        call()
    except FloodmarkError as error:
        return error
    raise AssertionError("no error")


if __name__ == "__main__":
    file, table, n = sys.argv[1:]
    config = load(Path(file))
    with at_home(config):
        found = follow(config, table, news(int(n)), None, Silent())
    sys.exit(found.exit_code)
