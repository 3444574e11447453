"""A small table, its files and its commits, for the tests of what is made of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from floodmark.model import Column, Commit, CommitKind, DataFile, Position, Table, Window, digest, dump
from floodmark.state import State, draft
from floodmark.state.fold import fold

ID = Column("id", "bigint(20)", "bigint", nullable=False, extra="auto_increment")
AT = Column("update_at", "datetime", "datetime", nullable=False, fraction=0)
TABLE = Table("shop", "orders", (ID, AT), ("id",), "update_at", "upsert", "orders", "PRIMARY", "at")
RUN = "20250819_153000_ab12"


@dataclass(frozen=True)
class Row:
    """A row of a ledger."""

    n: int
    digest: str
    epoch: int
    rows: int
    files: int
    loaded_at: str
    commits: int = 1
    summed: bool = False


def at(second: int, key: int | None = None) -> Position:
    """A position of the sample table; without a key, the place after every row of that second."""
    cursor = f"2025-08-14 15:{second // 60:02}:{second % 60:02}.000000"
    return (cursor,) if key is None else (cursor, key)


def files(*rows: int, prefix: str = "f") -> tuple[DataFile, ...]:
    """Files with so many rows each."""
    return tuple(
        DataFile(f"data/shop.orders/{RUN}/{prefix}-{i}.parquet", count, count * 10, "00", i)
        for i, count in enumerate(rows)
    )


def window(name: str, low: Position | None, edges: Iterable[Position], high: Position, **more: Any) -> Window:
    """A window cut along the cursor unless told otherwise."""
    return replace(Window(name, low, high, "cursor", tuple(edges), 1000.0), **more)


class History:
    """A log in memory: every commit is folded as it is added."""

    def __init__(self, table_name: str = TABLE.name, run: str = RUN) -> None:
        self.run = run
        self.state = State(table_name)
        self.commits: list[tuple[Commit, str]] = []
        self.add("open")

    def add(self, kind: CommitKind, run: str | None = None, **fields: Any) -> State:
        """The state after one more commit."""
        commit = draft(self.state, kind, run or self.run, **fields)
        found = digest(dump(commit))
        self.state = fold(self.state, commit, found)
        self.commits.append((commit, found))
        return self.state

    def claim(self, run: str | None = None, **fields: Any) -> State:
        """Claims the table."""
        return self.add(
            "claim", run, **{"purpose": "sync", "table": TABLE, "strategy": "sequential", **fields}
        )

    def ledger(self, *numbers: int, loaded_at: str = "2099-01-01T00:00:00.000000Z") -> list[Row]:
        """Ledger rows for these commits in the present epoch; for all data commits when none is named."""
        return [
            Row(c.n, found, self.state.load_epoch, c.rows, len(c.files), loaded_at)
            for c, found in self.commits
            if c.is_data and (c.n in numbers or not numbers)
        ]
