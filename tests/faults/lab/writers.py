"""Writers that began before a sync and commit after it: a long statement, a transaction left open, one that waits.

Their rows carry cursors that lie before rows the sync can already see. None of them may be passed over, whether the
sync is killed or not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

from .bench import Bench
from .lab import Lab, Outcome, settle, timed, watermark_known
from .prepared import FILL, ORDERS
from .truth import Source

KINDS = ("a long statement", "an open transaction", "a statement that waits for a lock")


class Slow:
    """A writer that has begun, and commits when it is let go."""

    def __init__(self, bench: Bench, database: str, kind: str) -> None:
        self._link = bench.services.mariadb.connect(database)
        self._gate = bench.services.mariadb.connect(database)
        self._name = f"gate_{database}"
        self._kind = kind
        self._gate.cursor().execute(f"SELECT GET_LOCK('{self._name}', 5)")
        if kind == KINDS[2]:
            self._gate.cursor().execute("LOCK TABLES orders READ")
        self._thread = threading.Thread(target=self._write, daemon=True)
        self._thread.start()
        self._await(bench, database)

    def _write(self) -> None:
        cursor = self._link.cursor()
        if self._kind == KINDS[0]:
            cursor.execute(f"INSERT INTO orders (amount, note) SELECT GET_LOCK('{self._name}', 60), 'slow'")
        elif self._kind == KINDS[1]:
            cursor.execute("INSERT INTO orders (amount, note) VALUES (1, 'slow')")
            cursor.execute(f"SELECT GET_LOCK('{self._name}', 60)")
        else:
            cursor.execute("INSERT INTO orders (amount, note) VALUES (1, 'slow')")
        self._link.commit()
        self._link.close()

    def _await(self, bench: Bench, database: str) -> None:
        """Until the writer stands at its gate."""
        asked = (
            "SELECT COUNT(*) FROM information_schema.processlist WHERE DB = DATABASE() AND COMMAND = 'Query' "
            "AND ID <> CONNECTION_ID()"
        )
        deadline = time.monotonic() + 10
        while not bench.services.mariadb.execute(asked, database=database)[0][0]:
            if time.monotonic() > deadline:
                raise RuntimeError("the slow writer did not begin")
            time.sleep(0.02)

    def let_go(self) -> None:
        """Its rows are committed when this returns."""
        self._gate.close()
        self._thread.join()


def writers(lab: Lab) -> Iterator[Outcome]:
    """Each kind of writer, with and without a kill, at steps by chance."""
    for turn in range(2 if lab.quick else 40):
        for kind in KINDS:
            stack = (
                "folder"
                if lab.quick
                else ("folder", "folder", "s3", "folder", "folder", "redshift")[turn % 6]
            )
            own = f"writers:{stack}/{kind}/{turn}"
            if lab.wanted(own):
                yield _experiment(lab, stack, kind, turn, own)


def _experiment(lab: Lab, stack: str, kind: str, turn: int, own: str) -> Outcome:
    began, dice = time.monotonic(), lab.dice(own)
    bench = lab.bench(stack)
    database = bench.services.database()
    source = Source(database, "orders")
    mariadb = bench.services.mariadb
    mariadb.execute(ORDERS, FILL.format(n=40), database=database)
    bench.clear(database)
    outcome = Outcome("writers", f"sync [{stack}]", kind, "no kill", own)
    slow = Slow(bench, database, kind)
    try:
        time.sleep(1.1)
        if kind != KINDS[2]:  # there the table is locked
            mariadb.execute("INSERT INTO orders (amount, note) VALUES (2, 'quick')", database=database)
        plan: dict[str, Any] = {}
        if turn % 2:
            plan = {"at": dice.randint(1, 25), "when": dice.choice(["before", "after"])}
        ended = bench.run("sync", "-t", source.name, plan=plan)
        outcome.code = ended.code
        if ended.code == -9:
            outcome.step = bench.steps()[plan["at"] - 1]
            watermark_known(bench, source, outcome)
    finally:
        slow.let_go()
    settle(bench, source, outcome)
    mariadb.execute(f"DROP DATABASE {database}")
    return timed(outcome, began)
