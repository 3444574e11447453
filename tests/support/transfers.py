"""Writers that move money between two halves of a table, so that a mixture of two moments shows.

Every transaction takes from a row of the lower half what it gives to one of the upper half, and counts itself in both
rows. At any one moment, the balances add up to zero and both halves have counted the same number of transactions.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from floodmark.setup.services.databases import DatabaseServer

ROWS = 1000
# Servers that log every change; by their kind.
LOGGED = {
    "mysql": ("--log-bin=bin", "--gtid-mode=ON", "--enforce-gtid-consistency=ON"),
    "mariadb": ("--log-bin=bin",),
}
Way = Literal["statement", "transaction", "xa"]

CREATE = (
    "CREATE TABLE accounts (id INT PRIMARY KEY, balance BIGINT NOT NULL DEFAULT 0, moves BIGINT NOT NULL DEFAULT 0,"
    " padding VARCHAR(60) NOT NULL DEFAULT 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx')"
    " ENGINE=InnoDB"
)


def create(server: DatabaseServer, database: str, rows: int = ROWS) -> None:
    """The table, with `rows` rows in each half."""
    server.execute(
        CREATE, f"INSERT INTO accounts (id) SELECT seq FROM seq_1_to_{2 * rows}", database=database
    )


def halves(rows: int = ROWS) -> str:
    """What a SELECT of these says of a moment: see `one_moment`."""
    return (
        f"SUM(balance), SUM(CASE WHEN id <= {rows} THEN moves ELSE 0 END),"
        f" SUM(CASE WHEN id > {rows} THEN moves ELSE 0 END)"
    )


def one_moment(seen: Sequence[Any]) -> bool:
    """Whether the sums are those of one moment."""
    balance, lower, upper = (int(each or 0) for each in seen)
    return balance == 0 and lower == upper


@dataclass
class Writers:
    """What the writers have done so far."""

    commits: list[int] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)
    failed: list[Exception] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(self.commits)


@contextmanager
def writing(
    server: DatabaseServer,
    database: str,
    *,
    rate: float | None,
    threads: int = 2,
    rows: int = ROWS,
    ways: Sequence[Way] = ("statement", "transaction"),
) -> Iterator[Writers]:
    """Transfers while the block runs: about `rate` a second in all, or as many as possible."""
    writers = Writers(commits=[0] * threads)

    def write(me: int) -> None:
        link = server.connect(database, autocommit=True)
        cursor = link.cursor()
        dice = random.Random(me)
        try:
            while not writers.stopped.is_set():
                for statement in transfer(dice, me, writers.commits[me], rows, dice.choice(ways)):
                    cursor.execute(statement)
                    while cursor.nextset():
                        pass
                writers.commits[me] += 1
                if rate is not None:
                    writers.stopped.wait(dice.expovariate(rate / threads))
        except Exception as error:
            writers.failed.append(error)
        finally:
            link.close()

    running = [threading.Thread(target=write, args=(me,)) for me in range(threads)]
    for thread in running:
        thread.start()
    try:
        time.sleep(0.05)
        yield writers
    finally:
        writers.stopped.set()
        for thread in running:
            thread.join()
    assert not writers.failed, writers.failed


def transfer(dice: random.Random, me: int, number: int, rows: int, way: Way) -> list[str]:
    """The statements of one transfer."""
    # Each writer has rows of its own, so that none waits for another, and commits come in groups.
    lower = dice.randrange(rows // 8) * 8 + me % 8 + 1
    upper, amount = lower + rows, dice.randrange(1, 100)
    if way == "statement":
        return [
            f"UPDATE accounts SET balance = balance + IF(id = {lower}, -{amount}, {amount}), moves = moves + 1"
            f" WHERE id IN ({lower}, {upper})"
        ]
    both = (
        f"UPDATE accounts SET balance = balance - {amount}, moves = moves + 1 WHERE id = {lower};"
        f" UPDATE accounts SET balance = balance + {amount}, moves = moves + 1 WHERE id = {upper}"
    )
    if way == "transaction":
        return [f"BEGIN; {both}; COMMIT"]
    xid = f"'w{me}-{number}'"
    return [f"XA START {xid}; {both}; XA END {xid}; XA PREPARE {xid}", f"XA COMMIT {xid}"]
