"""Writers that begin before a sync and commit after it: statements that run or wait, transactions left open.

Their rows have cursors earlier than rows the sync can already see. None of them may be skipped, whether the sync is
killed or not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from . import slow_server
from .bench import Bench
from .lab import Lab, Outcome, settle, timed, watermark_known
from .prepared import orders
from .services import PASSWORD
from .truth import Source

INSERT = "INSERT INTO orders (amount, note) VALUES (1, 'slow')"
# These put rows into `orders` without a statement that names it.
LOG = (
    "CREATE TABLE lg (id INT PRIMARY KEY, note VARCHAR(40))",
    "INSERT INTO lg VALUES (1, 'a'), (7, 'b')",
    "CREATE FUNCTION write_an_order() RETURNS INT DETERMINISTIC MODIFIES SQL DATA"
    " BEGIN INSERT INTO orders (amount, note) VALUES (1, 'by function'); RETURN 1; END",
    "CREATE TABLE jobs (id INT PRIMARY KEY)",
    "CREATE TRIGGER onwards AFTER INSERT ON jobs FOR EACH ROW"
    " INSERT INTO orders (amount, note) VALUES (1, 'by trigger')",
)


@dataclass(frozen=True)
class Kind:
    """What a writer is doing when the sync starts, and how it ends. `{gate}` waits until the writer is let go."""

    name: str
    first: tuple[str, ...] = ()  # finished by then, with their transaction still open
    waits: str = ""  # still running
    lock: str = ""  # what it waits for, if not the gate
    last: tuple[str, ...] = ("COMMIT",)
    detached: bool = False  # its connection is gone
    blocks: bool = False  # nobody can read the table until it is let go
    quick: bool = True  # others can write to the table


KINDS = (
    Kind("a long statement", waits="INSERT INTO orders (amount, note) SELECT {gate}, 'slow'"),
    Kind("an open transaction", first=(INSERT,)),
    Kind("a statement that waits for a lock", waits=INSERT, lock="LOCK TABLES orders READ", quick=False),
    Kind("a transaction that wrote elsewhere", first=("UPDATE lg SET note = 'open'",), last=(INSERT, "COMMIT")),
    Kind("a transaction that fired a trigger", first=("INSERT INTO jobs VALUES (1), (2)",)),
    Kind("a transaction that called a function", first=("SELECT write_an_order()",)),
    Kind("a join that waits for another table", lock="LOCK TABLES lg WRITE",
         waits="UPDATE lg JOIN orders ON orders.id = lg.id SET orders.note = 'joined'"),
    Kind("a function that waits for another table", lock="LOCK TABLES lg WRITE",
         waits="INSERT INTO lg VALUES (2, write_an_order())"),
    Kind("rows under LOCK TABLES", first=("SET autocommit = 0", "LOCK TABLES orders WRITE", INSERT),
         last=("COMMIT", "UNLOCK TABLES"), blocks=True, quick=False),
    Kind("a prepared transaction (XA)", detached=True, last=("XA COMMIT {xa}",),
         first=("XA START {xa}", INSERT, "XA END {xa}", "XA PREPARE {xa}")),
)  # fmt: skip


class Slow:
    """A writer that has begun, and commits when it is let go."""

    def __init__(self, bench: Bench, database: str, kind: Kind) -> None:
        self._server = bench.services.server
        self._database = database
        self._kind = kind
        self._link = self._server.connect(database)
        self._gate = self._server.connect(database)
        self._gate.cursor().execute(f"SELECT GET_LOCK('gate_{database}', 5)")
        if kind.lock:
            self._gate.cursor().execute(kind.lock)
        self._thread: threading.Thread | None = None
        self._run(*kind.first)
        if kind.waits:
            self._thread = threading.Thread(target=self._run, args=(kind.waits, *kind.last), daemon=True)
            self._thread.start()
            self._await()
        if kind.detached:
            self._link.close()

    def _run(self, *statements: str) -> None:
        for statement in statements:
            gate, xa = f"GET_LOCK('gate_{self._database}', 60)", f"'{self._database}'"
            self._link.cursor().execute(statement.format(gate=gate, xa=xa))

    def _await(self) -> None:
        """Wait until the writer is blocked at its gate."""
        asked = (
            "SELECT COUNT(*) FROM information_schema.processlist WHERE DB = DATABASE() AND COMMAND = 'Query' "
            "AND ID <> CONNECTION_ID()"
        )
        deadline = time.monotonic() + 10
        while not self._server.execute(asked, database=self._database)[0][0]:
            if time.monotonic() > deadline:
                raise RuntimeError("the slow writer did not begin")
            time.sleep(0.02)

    def crash(self) -> None:
        """Kill and restart the server; a prepared transaction survives."""
        self._gate.close()
        self._server.kill()
        self._server.start()
        self._gate = self._server.connect(self._database)

    def let_go(self) -> None:
        """Release the writer; its rows are committed when this returns."""
        self._gate.close()
        if self._thread is not None:
            self._thread.join()
        else:
            if self._kind.detached:
                self._link = self._server.connect(self._database, autocommit=True)
            self._run(*self._kind.last)
        self._link.close()


def writers(lab: Lab) -> Iterator[Outcome]:
    """Each kind of writer, with and without a kill at a random step; and each kind of slow server."""
    for turn in range(2 if lab.quick else 40):
        stack = (
            "folder" if lab.quick else ("folder", "folder", "s3", "folder", "folder", "redshift")[turn % 6]
        )
        for kind in KINDS:
            own = f"writers:{stack}/{kind.name}/{turn}"
            if lab.wanted(own):
                yield _experiment(lab, stack, kind, turn, own)
        for name, experiment in slow_server.KINDS.items():
            own = f"writers:{stack}/{name}/{turn}"
            if lab.wanted(own):
                yield experiment(lab, stack, name, own)


def _experiment(lab: Lab, stack: str, kind: Kind, turn: int, own: str) -> Outcome:
    began, dice, chance = time.monotonic(), lab.dice(own), lab.dice(own, "around")
    bench = lab.bench(stack)
    database = bench.services.database()
    source = Source(database, "orders")
    server = bench.services.server
    server.execute(*orders(40), *LOG, database=database)
    narrow = turn > 1 and chance.random() < 0.3
    user = {"source": {"url": server.url(database, "narrow", PASSWORD)}} if narrow else {}
    bench.clear(database, **user)
    seen = ", locks not shown" if narrow else ""
    outcome = Outcome("writers", f"sync{seen} [{stack}]", kind.name, "no kill", own)
    if turn > 1 and chance.random() < 0.5:  # otherwise the experiment's sync is the table's first
        bench.run("sync", "-t", source.name)
    slow = Slow(bench, database, kind)
    try:
        if kind.detached and chance.random() < 0.5:
            slow.crash()
            outcome.fault += ", the server killed"
        time.sleep(1.1)
        if kind.quick:
            server.execute("INSERT INTO orders (amount, note) VALUES (2, 'quick')", database=database)
        plan: dict[str, Any] = {}
        if turn % 2:
            plan = {"at": dice.randint(1, 25), "when": dice.choice(["before", "after"])}
        running = bench.start("sync", "-t", source.name, plan=plan)
        if kind.blocks:
            time.sleep(chance.uniform(0.5, 3.0))
            slow.let_go()
        ended = bench.wait(running)
        outcome.code = ended.code
        if ended.code == -9:
            outcome.step = bench.steps()[plan["at"] - 1]
            watermark_known(bench, source, outcome)
    finally:
        if not kind.blocks:
            slow.let_go()
    settle(bench, source, outcome)
    server.execute(f"DROP DATABASE {database}")
    return timed(outcome, began)
