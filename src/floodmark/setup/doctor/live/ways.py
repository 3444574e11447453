"""Exercises every path that builds statements, in one list: loads, table changes and queries in a new schema.

`tests/contract/test_redshift_live.py` compares the statements sent with the SQL in the warehouse's modules.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from floodmark.model.canonical import Scope, Span, forms
from floodmark.model.ledger import Part
from floodmark.model.table import Column
from floodmark.services.warehouse.canonical import digests, entries, grouped, rows
from floodmark.services.warehouse.freshness import Freshness
from floodmark.services.warehouse.protocol import KEYS
from floodmark.services.warehouse.redshift.ledger import LOCKS
from floodmark.services.warehouse.redshift.steps import Transport
from floodmark.setup.doctor.live.loads import (
    CODE,
    CODES,
    EVENTS,
    ID,
    NAME,
    NUMBER,
    ORDERS,
    SEEN,
    Log,
    live_table,
    named,
    with_columns,
)
from floodmark.setup.doctor.live.place import Live

_T = 1_735_689_600_000_000  # 2025-01-01, in microseconds
_DOC = Column("doc", "json", "json")
_RAW = Column("raw", "binary(2)", "binary", nullable=False, octets=2)
BINARIES = live_table("binaries", (_RAW, NUMBER, SEEN), ("raw",))
PAIRS = live_table("pairs", (ID, replace(CODE, collation="utf8mb4_0900_bin"), SEEN), ("id", "code"))
_LETTER_A, _LETTER_B, _LETTER_C = b"A\x00", b"B\xff", b"C\x00"


def orders(*ids: int, name: str = "a", at: int = 0) -> dict[str, list[Any]]:
    """Rows of ORDERS."""
    return {"id": list(ids), "name": [name] * len(ids), "update_at": [_T + at] * len(ids)}


def _codes(*codes: str) -> dict[str, list[Any]]:
    keys = [code.upper().encode() for code in codes]
    return {**_many(len(codes)), "code": list(codes), "_floodmark_key": keys}


def _binaries(*keys: bytes) -> dict[str, list[Any]]:
    return {**_many(len(keys)), "raw": list(keys)}


def _pairs(*codes: str) -> dict[str, list[Any]]:
    return {"id": [1] * len(codes), "code": list(codes), "update_at": [_T] * len(codes)}


def _many(count: int) -> dict[str, list[Any]]:
    return {"n": [1] * count, "update_at": [_T] * count}


def _merged(live: Live, transport: Transport) -> None:
    """Loads in turn: into a new table, over existing rows, several commits at once, a retake, a delete, a mark."""
    log = Log(live, ORDERS, transport)
    log.load(log.commit(orders(1, 2, 3)))
    log.load(log.commit(orders(2, 4, name="b", at=1)))
    log.load(log.commit(orders(5)), log.commit(orders(5, name="later", at=2)))
    log.load(*(log.commit(orders(6, name=name), read=99) for name in ("one", "two")))
    early, late = log.commit(orders(1, name="early")), log.commit(orders(1, name="late"))
    log.load(late)
    log.load(early, late, retake=frozenset({(late[0].n, late[1])}))
    log.load(log.commit({"id": [4]}, "delete"))
    log.load(log.commit({"id": [3]}, "mark"))
    _wider(log)


def _wider(log: Log) -> None:
    """Columns that were added (one with a value for old rows), widened and renamed."""
    name = replace(NAME, characters=99, octets=396, type="varchar(99)")
    wide = with_columns(log.table, ID, name, SEEN, replace(NUMBER, fill="7"), _DOC)
    later = Log(log.live, wide, log.transport, log.n)
    later.load(later.commit({**orders(7), "n": [1], "doc": ["{}"]}))
    big = replace(NUMBER, name="number", type="bigint(20)", data_type="bigint", fill="7")
    last = with_columns(wide, *wide.columns[:3], big, _DOC)
    last = replace(last, lineage=replace(wide.lineage, renamed=(("n", "number"),)))
    later = Log(log.live, last, log.transport, later.n)
    later.load(later.commit({**orders(7, at=3), "number": [2**40], "doc": ["[]"]}), loaded=wide)


def _wider_key(live: Live, transport: Transport) -> None:
    """A key that we chose as the DISTKEY, and that is then widened."""
    small = replace(ID, type="int(11)", data_type="int")
    log = Log(live, named(with_columns(ORDERS, small, NAME, SEEN), "orders_wider"), transport)
    log.load(log.commit(orders(1)))
    later = Log(live, named(ORDERS, "orders_wider"), transport, log.n)
    later.load(later.commit(orders(2**40)))


def _first_doubles(live: Live, transport: Transport) -> None:
    """First loads with duplicate keys: in one commit, across ordered commits, and with no order in the files."""
    for table, doubled in (
        (ORDERS, orders(1, 1, 2)),
        (CODES, _codes("a", "A", "b")),
        (BINARIES, _binaries(_LETTER_A, _LETTER_A, _LETTER_B)),
        (PAIRS, _pairs("a", "a", "b")),
    ):
        once = Log(live, named(table, f"{table.target}_twice"), transport)
        once.load(once.commit(doubled))
        untold = Log(live, named(table, f"{table.target}_untold"), transport)
        untold.load(*(untold.commit(doubled, read=99) for _ in range(2)))
    ordered = Log(live, named(ORDERS, "orders_in_order"), transport)
    ordered.load(ordered.commit(orders(1, 2)), ordered.commit(orders(1)))
    older = Log(live, named(ORDERS, "orders_older"), transport)
    older.load(older.commit(orders(1, 2), read=None), older.commit(orders(1)))


def _keys(live: Live, transport: Transport) -> None:
    """Weighted, binary and composite keys: merged over existing rows, with duplicates, deleted and marked."""
    codes = Log(live, CODES, transport)
    codes.load(codes.commit(_codes("a", "b")))
    codes.load(codes.commit(_codes("A", "c", "C")))
    codes.load(codes.commit({"code": ["B"], "_floodmark_key": [b"B"]}, "delete"))
    codes.load(codes.commit({"code": ["c"], "_floodmark_key": [b"C"]}, "mark"))
    binaries = Log(live, BINARIES, transport)
    binaries.load(binaries.commit(_binaries(_LETTER_A, _LETTER_B)))
    binaries.load(binaries.commit(_binaries(_LETTER_A, _LETTER_C, _LETTER_C)))
    binaries.load(binaries.commit({"raw": [_LETTER_B]}, "delete"))
    binaries.load(binaries.commit({"raw": [_LETTER_C]}, "mark"))
    recipe = replace(PAIRS.recipe, dist_key="id", sort_key=("update_at",))
    pairs = Log(live, replace(PAIRS, recipe=recipe), transport)
    pairs.load(pairs.commit(_pairs("a", "b")))
    pairs.load(pairs.commit(_pairs("b", "c", "c")))
    pairs.load(pairs.commit({"id": [1], "code": ["b"]}, "delete"))


def _copies(live: Live, transport: Transport) -> None:
    """Tables without a key, full-table copies, and a keyed table whose rows are all replaced."""
    events = Log(live, EVENTS, transport)
    for n in (1, 2):
        events.load(events.commit({"n": [n], "name": ["a"]}, "insert"))
    whole = Log(live, live_table("copies", EVENTS.columns, mode="full", cursor=None), transport)
    for n in (1, 2):
        whole.load(whole.commit({"n": [n], "name": ["a"]}, "replace"))
    again = Log(live, named(CODES, "codes_again"), transport)
    again.load(again.commit(_codes("a", "b")))
    again.load(again.commit(_codes("a"), "replace"))


def _further_columns(live: Live, transport: Transport) -> None:
    """A column of the target that the files lack: merged rows and copies of all rows keep its values."""
    log = Log(live, named(CODES, "codes_further"), transport)
    log.load(log.commit(_codes("a", "b")))
    with live.session() as session:
        session.execute(
            f'ALTER TABLE {live.path("codes_further")} ADD COLUMN "mine" INTEGER NOT NULL DEFAULT 7'
        )
    log.load(log.commit(_codes("A", "c")))
    log.load(log.commit(_codes("a", "d"), "replace"))


def _old_tables(live: Live, transport: Transport) -> None:
    """Tables from an earlier release: weights instead of their hashes, a lock table without a version."""
    log = Log(live, named(CODES, "codes_old"), transport)
    log.load(log.commit(_codes("a", "b")))
    side, lock = live.path(f"{KEYS}codes_old"), live.path(f"{LOCKS}codes_old")
    with live.session() as session:
        for sql in (
            f"DROP TABLE {side}",
            f'CREATE TABLE {side} ("_floodmark_key" VARBYTE(65535), "code" VARCHAR(80))',
            f"INSERT INTO {side} VALUES (to_varbyte('A', 'utf8'), 'a'), (to_varbyte('B', 'utf8'), 'b')",
            f"DROP TABLE {lock}",
            f'CREATE TABLE {lock} ("nothing" SMALLINT)',
        ):
            session.execute(sql)
    log.load(log.commit(_codes("A")))


def _unweighed(live: Live, transport: Transport) -> None:
    """A key once compared by weights and now by bytes: the table of weights is dropped."""
    log = Log(live, named(CODES, "codes_bytes"), transport)
    log.load(log.commit(_codes("a", "b")))
    by_bytes = with_columns(log.table, replace(CODE, collation="utf8mb4_0900_bin"), NUMBER, SEEN)
    later = Log(live, by_bytes, transport, log.n)
    later.load(later.commit({**_many(1), "code": ["a"]}, "replace"))


def _documents(live: Live, transport: Transport) -> None:
    """JSON via SUPER, if the cluster accepts long strings."""
    table = named(with_columns(ORDERS, ID, SEEN, _DOC), "documents_staged")
    log = Log(live, table, transport, large_strings=live.large_strings)
    log.load(log.commit({"id": [1, 2], "update_at": [_T] * 2, "doc": ['{"a": 1}', None]}))
    log.load(log.commit({"id": [2, 2], "update_at": [_T] * 2, "doc": ["[]", "[]"]}))


def _questions(live: Live, transport: Transport) -> None:
    """The queries of `verify`, `plan`, `serve` and a reset, and what `freshness` writes."""
    warehouse = live.warehouse(transport)
    for table in (ORDERS, CODES):
        scope = Scope(table, forms(table, redshift=True))
        key = [["1" if table is ORDERS else "a"]]
        for words in (
            partial(digests, scope=scope, spans=[Span()]),
            partial(grouped, scope=scope, digits=2),
            partial(entries, scope=scope, spans=[Span()]),
            partial(rows, scope=scope, keys=key),
        ):
            warehouse.ask(table.target, words)
    warehouse.changes(ORDERS)
    warehouse.rows("orders")
    log = "log-orders"
    warehouse.ledger(log, "orders")
    warehouse.ledger(log, "orders", Part(0, 3, superseded=1, cleaned=((0, 1),)))
    warehouse.ledger(log, "orders", Part(0, 3, proven=False))
    warehouse.ledger_sums(lambda: True)
    warehouse.set_epoch("live", log, ORDERS.name, "orders", 99)
    now = datetime.now(UTC)
    for _ in range(2):  # the first one creates the table
        warehouse.note_freshness([Freshness("orders", ORDERS.name, now, now, None, 1, "live")])


WAYS: tuple[Callable[[Live, Transport], None], ...] = (
    _merged,
    _wider_key,
    _first_doubles,
    _keys,
    _copies,
    _further_columns,
    _old_tables,
    _unweighed,
    _documents,
    _questions,
)
# How many rows each target ends up with.
ROWS = {
    "orders": 6,  # 1, 2, 3 (marked), 5, 6, 7
    **{f"{table.target}_{how}": 2 for table in (ORDERS, CODES, BINARIES, PAIRS) for how in ("twice", "untold")},
    "orders_wider": 2,
    "orders_in_order": 2,
    "orders_older": 2,
    "codes": 2,  # A, C (marked)
    "binaries": 2,
    "pairs": 2,
    "events": 2,
    "copies": 1,
    "codes_again": 1,
    "codes_further": 2,
    "codes_old": 2,
    "codes_bytes": 1,
    "documents_staged": 2,
}  # fmt: skip
