"""Servers whose binary log is followed, and reads of it in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from floodmark.log.changes import SourceState
from floodmark.model.changes import TableChanges
from floodmark.model.commit import Changes
from floodmark.model.run import new_run
from floodmark.services import Services
from floodmark.source.binlog.walk import plus
from floodmark.store.store import Store
from floodmark.sync.changes import follow_log
from tests.conftest import Silent, Workspace


@dataclass
class Following:
    """A workspace, and the tables whose changes are followed there."""

    workspace: Workspace
    names: Sequence[str]

    def read(self) -> SourceState:
        """Reads the log up to now."""
        with Services(self.workspace.settings, Silent(), new_run(), self.workspace.spark()) as services:
            state = follow_log(services, self.names)
        self.state = state
        assert state.source is not None
        return state.source

    @property
    def commits(self) -> list[Changes]:
        from floodmark.log.log import Log
        from floodmark.model.changes import SOURCE_LOG

        log = Log(Store(self.workspace.settings.store), SOURCE_LOG)
        state = log.read()
        return [commit for commit, _ in log.made(range(state.n + 1)) if isinstance(commit, Changes)]

    def changes(self, name: str) -> TableChanges:
        """What the last commit says of a table."""
        return self.commits[-1].followed.tables.get(name, TableChanges())

    def all_changes(self, name: str) -> TableChanges:
        """What all commits say of a table together."""
        found = TableChanges()
        for commit in self.commits:
            found = plus(found, commit.followed.tables.get(name, TableChanges()))
        return found

    def keys(self, changes: TableChanges) -> list[tuple[object, ...]]:
        """The keys in the files that changes name."""
        store = Store(self.workspace.settings.store)
        found: set[tuple[object, ...]] = set()
        for path in changes.files:
            content = store.get(path)
            assert content is not None
            table = pq.read_table(pa.BufferReader(content))
            found |= set(zip(*(column.to_pylist() for column in table.columns), strict=True))
        return sorted(found, key=str)
