"""Loaders that die or stop at a statement: `python -m tests.loaders` reads what to load, a line of JSON each.

Every line is done by a forked child, so that a hundred of them cost a hundred loads and not a hundred starts of
Python. It prints the child's pid at once and, when it has ended or stopped, how.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from floodmark.config import Tls, WarehouseSpec
from floodmark.errors import FloodmarkError
from floodmark.model import Commit, Table, load
from floodmark.store import Store, StoreSpec
from floodmark.warehouse import LoadRequest
from floodmark.warehouse.redshift import Redshift
from floodmark.warehouse.redshift_socket import SocketSession, SocketTransport
from floodmark.warehouse.redshift_steps import Limits


def ending_at(number: int, when: str, how: int) -> None:
    """Let this process get a signal at a statement: before it is sent, while it is under way, after its answer."""
    asked = SocketSession._asked
    sent = 0

    @contextlib.contextmanager
    def counted(self: SocketSession, sql: str) -> Iterator[Any]:
        nonlocal sent
        sent += 1
        now = sent == number
        if now and when == "before":
            os.kill(os.getpid(), how)
        if now and when == "during":
            threading.Timer(random.random() * 0.01, os.kill, [os.getpid(), how]).start()
        with asked(self, sql) as cursor:
            if now and when == "after":
                os.kill(os.getpid(), how)
            yield cursor

    SocketSession._asked = counted  # type: ignore[method-assign]


def load_all(said: dict[str, Any]) -> int:
    """One load, as it was asked for; an exit code."""
    if said.get("at"):
        ending_at(said["at"], said["when"], signal.Signals[said["signal"]])
    limits = Limits(**said["limits"])
    spec = WarehouseSpec(**said["warehouse"], tls=Tls("disabled"))
    warehouse = Redshift(
        SocketTransport(spec, limits), spec.schema, iam_role=said["warehouse"]["iam_role"], limits=limits
    )
    table = load(Table, said["table"].encode())
    commits = tuple((load(Commit, commit.encode()), digest) for commit, digest in said["commits"])
    store = Store(StoreSpec(**said["store"]))
    try:
        warehouse.load(LoadRequest("pipe-1", "log-1", table, table.target, 0, commits, store, "run"))
    except FloodmarkError as error:
        return error.code
    return 0


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if not child:
            os._exit(load_all(json.loads(line)))
        print(child, flush=True)
        _, status = os.waitpid(child, os.WUNTRACED)
        if os.WIFSTOPPED(status):
            print("stopped", flush=True)
            _, status = os.waitpid(child, 0)
        print(-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status), flush=True)


if __name__ == "__main__":
    main()
