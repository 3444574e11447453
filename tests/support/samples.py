"""A small table, its files and its commits, for tests of what is derived from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from floodmark.log.fold import DataCommit, State, fold
from floodmark.log.log import draft
from floodmark.model.commit import Claim, Commit, DataFile, Open, WithFiles
from floodmark.model.json import digest, dump
from floodmark.model.ledger import LedgerRow
from floodmark.model.position import Position
from floodmark.model.table import Column
from floodmark.model.window import Window
from tests.support.described import described

ID = Column("id", "bigint(20)", "bigint", nullable=False, extra="auto_increment")
AT = Column("update_at", "datetime", "datetime", nullable=False, fraction=0)
TABLE = described(
    "shop",
    "orders",
    (ID, AT),
    ("id",),
    "update_at",
    "upsert",
    "orders",
    key_index="PRIMARY",
    cursor_index="at",
)
RUN = "20250819_153000_ab12"


def at(second: int, key: int | None = None) -> Position:
    """A position in the sample table; without a key, the position after every row of that second."""
    cursor = f"2025-08-14 15:{second // 60:02}:{second % 60:02}.000000"
    return (cursor,) if key is None else (cursor, key)


def files(*rows: int, prefix: str = "f") -> tuple[DataFile, ...]:
    """Files with these numbers of rows."""
    return tuple(
        DataFile(f"data/shop.orders/{RUN}/{prefix}-{i}.parquet", count, count * 10, "00", i)
        for i, count in enumerate(rows)
    )


def window(
    name: str, low: Position | None, edges: Iterable[Position], high: Position | None, **more: Any
) -> Window:
    """A window, cut along the cursor by default."""
    return replace(Window(name, low, high, "cursor", tuple(edges), 1000.0), **more)


def numbers(commits: Iterable[DataCommit]) -> list[int]:
    """The numbers of these commits."""
    return [commit.n for commit in commits]


class History:
    """A log in memory: every commit is folded as it is added."""

    def __init__(self, table_name: str = TABLE.name, run: str = RUN) -> None:
        self.run = run
        self.state = State(table_name)
        self.commits: list[tuple[Commit, str]] = []
        self.add(Open)

    def add(self, kind: type[Commit], run: str | None = None, **fields: Any) -> State:
        """Add a commit; returns the state after it."""
        commit = draft(self.state, kind, run or self.run, **fields)
        found = digest(dump(commit))
        self.state = fold(self.state, commit, found)
        self.commits.append((commit, found))
        return self.state

    def claim(self, run: str | None = None, **fields: Any) -> State:
        """Claims the table."""
        return self.add(Claim, run, **{"purpose": "sync", "table": TABLE, "strategy": "sequential", **fields})

    @property
    def data(self) -> list[tuple[WithFiles, str]]:
        """The commits that may have something to load."""
        return [(c, found) for c, found in self.commits if isinstance(c, WithFiles)]

    def ledger(self, *numbers: int, loaded_at: str = "2099-01-01T00:00:00.000000Z") -> list[LedgerRow]:
        """Ledger rows for these commits in the current epoch; by default for all data commits."""
        return [
            LedgerRow(c.n, found, self.state.load_epoch, c.rows, len(c.files), loaded_at)
            for c, found in self.data
            if c.n in numbers or not numbers
        ]
