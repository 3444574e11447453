"""How a table is cut, as seen by the statements that the server gets."""

from __future__ import annotations

from typing import cast

from floodmark.source.ranges import every_row, split_key
from floodmark.source.session import Session
from tests.support.described import changed
from tests.support.samples import TABLE as ORDERS


class Server:
    """A source without rows, which keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def once(self, sql: str) -> list[tuple[bytes | None, ...]]:
        return self.rows(sql)

    def rows(self, sql: str) -> list[tuple[bytes | None, ...]]:
        self.asked.append(sql)
        return []


def test_a_snapshot_is_cut_regardless_of_a_where_that_no_index_helps_with() -> None:
    key = tuple(column.name for column in ORDERS.columns[:2])
    table = changed(ORDERS, key=key, key_index="PRIMARY", where="SLEEP(9) = 0", needs_sort=())
    filtered, whole = Server(), Server()
    split_key(cast(Session, filtered), table, 4, 100)
    split_key(cast(Session, whole), every_row(table), 4, 100)
    assert all("SLEEP" in asked for asked in filtered.asked), "otherwise this shows nothing"
    assert whole.asked and not any("SLEEP" in asked for asked in whole.asked)
