"""Tables that experiments start from: each is created and synced once per laboratory run, then copied.

A family is a source database that no longer changes, plus copies of the bench saved before its last changes. Many
rows share a timestamp, and slices end in the middle of such a group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.support.orders import create_orders, fill_orders

from .bench import Bench
from .truth import Source

EVENTS = "CREATE TABLE events (n INT NOT NULL, note VARCHAR(20), at DATETIME NOT NULL, KEY (at))"
ADD = """INSERT INTO events (n, note, at)
  SELECT seq, CONCAT('e', seq), '2025-03-01' + INTERVAL ((seq - 1) DIV 10) SECOND FROM seq_{a}_to_{b}"""
CODES = "CREATE TABLE codes (code VARCHAR(10), label VARCHAR(20))"
LABELS = "INSERT INTO codes SELECT CONCAT('c', seq), CONCAT('label ', seq) FROM seq_1_to_120"

ROWS, SLICE = 300, 100


def orders(rows: int, at: str = "DATETIME") -> tuple[str, str]:
    """The statements that create the table `orders`, with sixty rows per second."""
    return create_orders(at=at), fill_orders(rows, "(seq DIV 60) SECOND")


class Prepared:
    """The families of one bench, created on first use."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self._made: dict[str, Source] = {}
        self._families: dict[str, Callable[[], Source]] = {
            "orders": self._orders,
            "altered": self._altered,
            "deleted": self._deleted,
            "events": self._events,
            "codes": self._codes,
        }

    def lay(self, family: str, kept: str) -> Source:
        """Restore the bench to a saved copy; returns the family's source."""
        if family not in self._made:
            self._made[family] = self._families[family]()
        self.bench.lay(f"{family}-{kept}")
        return self._made[family]

    def _run(self, *args: str, plan: dict[str, Any] | None = None, code: int = 0) -> None:
        # With the intact product, even if the experiments are about a broken build.
        ended = self.bench.run(*args, plan={"broken": None, **(plan or {})})
        assert ended.code == code, f"{args}: {ended.code} {ended.stderr}"

    def _source(self, *statements: str) -> str:
        database = self.bench.services.database()
        self.bench.services.server.execute(*statements, database=database)
        return database

    def _change(self, database: str, *statements: str) -> None:
        self.bench.services.server.execute(*statements, database=database)

    def _orders(self) -> Source:
        bench = self.bench
        database = self._source(*orders(ROWS))
        source = Source(database, "orders")
        # Two copies of the initial rows: not synced yet, and with a window left open.
        bench.clear(database, defaults={"settle_seconds": 0.1, "slice_rows": SLICE})
        bench.config["tables"] = {source.name: {}}
        bench.write()
        bench.keep("orders-empty")
        killed = {"label": "commit batch", "when": "after"}
        self._run("sync", "-t", source.name, "-s", "sequential", plan=killed, code=-9)
        bench.keep("orders-interrupted")
        self._run("sync", "-t", source.name)
        self._change(database, "UPDATE orders SET note = 'once' WHERE id % 5 = 0")
        self._run("sync", "-t", source.name)
        bench.keep("orders-synced", loaded=ROWS + ROWS // 5)
        self._change(
            database,
            "UPDATE orders SET note = 'twice', amount = amount + 1 WHERE id % 3 = 0",
            f"INSERT INTO orders (id, amount, note) SELECT 5000 + seq, seq, 'new' FROM seq_1_to_{ROWS // 2}",
        )
        self._run("sync", "-t", source.name, "--backup-only", "--limit", str(SLICE))
        self._run("sync", "-t", source.name, "--backup-only")
        bench.keep("orders-pending", loaded=ROWS + ROWS // 5)
        return source

    def _altered(self) -> Source:
        database = self._source(*orders(ROWS))
        source = Source(database, "orders")
        self._fresh(database, source, "altered-empty")
        self._run("sync", "-t", source.name)
        self.bench.keep("altered-synced", loaded=ROWS)
        self._change(
            database,
            "ALTER TABLE orders ADD COLUMN place VARCHAR(20) NULL, ADD COLUMN size INT NOT NULL DEFAULT 7",
            "UPDATE orders SET place = CONCAT('p', id), size = id WHERE id % 3 = 0",
            "INSERT INTO orders (amount, note, place) SELECT seq, 'new', 'here' FROM seq_1_to_40",
        )
        return source

    def _deleted(self) -> Source:
        database = self._source(*orders(ROWS))
        source = Source(database, "orders")
        self._fresh(database, source, "deleted-empty", deletes="hard", deletes_every="1s")
        self._run("sync", "-t", source.name)
        self.bench.keep("deleted-synced", loaded=ROWS)
        self._change(
            database,
            "DELETE FROM orders WHERE id % 5 = 0",
            "UPDATE orders SET note = 'kept' WHERE id % 3 = 0",
        )
        return source

    def _events(self) -> Source:
        database = self._source(EVENTS, ADD.format(a=1, b=100))
        source = Source(database, "events", key=None, cursor="at")
        self._fresh(database, source, "events-empty", cursor="at", mode="append", overlap_seconds=0)
        self._run("sync", "-t", source.name)
        self.bench.keep("events-synced", loaded=100)
        self._change(database, ADD.format(a=101, b=300))
        self._run("sync", "-t", source.name, "--backup-only", "--limit", "80")
        self._run("sync", "-t", source.name, "--backup-only")
        self.bench.keep("events-pending", loaded=100)
        return source

    def _codes(self) -> Source:
        database = self._source(CODES, LABELS)
        source = Source(database, "codes", key=None, cursor=None)
        self._fresh(database, source, "codes-empty", mode="full")
        self._run("sync", "-t", source.name)
        self.bench.keep("codes-synced", loaded=120)
        self._change(
            database, "UPDATE codes SET label = 'x' WHERE code LIKE 'c1%'", "DELETE FROM codes LIMIT 9"
        )
        return source

    def _fresh(self, database: str, source: Source, name: str, **options: Any) -> None:
        self.bench.clear(database, defaults={"settle_seconds": 0.1, "slice_rows": SLICE})
        self.bench.config["tables"] = {source.name: options}
        self.bench.write()
        self.bench.keep(name)
