"""Loaders that die or stop at a statement: `python -m tests.support.dying_loaders` reads one load per line of JSON.

A forked child handles each line, so that a hundred loads don't cost a hundred starts of Python. The parent prints the
child's pid at once and, when the child has ended or stopped, how.
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

from floodmark.config.load import StoreSpec, Tls, WarehouseSpec
from floodmark.load.protocol import LoadRequest
from floodmark.load.redshift.socket import SocketSession, SocketTransport
from floodmark.load.redshift.steps import Limits
from floodmark.load.redshift.warehouse import Redshift
from floodmark.model.commit import WithFiles, read_commit
from floodmark.model.errors import FloodmarkError
from floodmark.model.json import load
from floodmark.model.table import Table
from floodmark.store.store import Store


def ending_at(number: int, when: str, how: int) -> None:
    """Send this process a signal at a statement: before it is sent, while it runs, or after its answer."""
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
    """Run the requested load; returns an exit code."""
    if said.get("at"):
        ending_at(said["at"], said["when"], signal.Signals[said["signal"]])
    limits = Limits(**said["limits"])
    spec = WarehouseSpec(**said["warehouse"], tls=Tls("disabled"))
    warehouse = Redshift(SocketTransport(spec, limits), spec.schema, iam_role=said["warehouse"]["iam_role"])
    table = load(Table, said["table"].encode())
    read = ((read_commit(commit.encode()), digest) for commit, digest in said["commits"])
    commits = tuple((commit, digest) for commit, digest in read if isinstance(commit, WithFiles))
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
