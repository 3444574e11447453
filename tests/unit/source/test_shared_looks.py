"""Looks at the source's open work that the tables of a run share."""

from __future__ import annotations

import socket
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import cast

import pytest

from floodmark.config.load import SourceSpec
from floodmark.model.errors import TransientError
from floodmark.model.open_work import OpenWork, Sight
from floodmark.model.table import Table
from floodmark.source.connections import SharedLooks
from floodmark.source.session import Session

SESSION = cast(Session, None)


class Server:
    """Answers looks one after the other, each when the test says so; an answer carries the look's number."""

    def __init__(self) -> None:
        self.count = 0
        self.fails: set[int] = set()
        self.began = threading.Semaphore(0)
        self.go = threading.Semaphore(0)

    def look(self, session: Session, sight: Sight) -> list[OpenWork]:
        self.count += 1
        number = self.count
        self.began.release()
        assert self.go.acquire(timeout=20)
        if number in self.fails:
            raise TransientError("the connection was cut")
        return [OpenWork(float(number), number, "", "somebody")]


def asked(pool: ThreadPoolExecutor, looks: SharedLooks, count: int) -> list[Future[list[OpenWork]]]:
    ready = threading.Barrier(count + 1)

    def ask() -> list[OpenWork]:
        ready.wait(20)
        return looks.holders(SESSION, Sight(False))

    futures = [pool.submit(ask) for _ in range(count)]
    ready.wait(20)
    return futures


def test_a_look_serves_every_caller_from_before_it_began_and_none_from_later() -> None:
    server = Server()
    looks = SharedLooks(server.look)
    with ThreadPoolExecutor(9) as pool:
        [first] = asked(pool, looks, 1)
        assert server.began.acquire(timeout=20)
        later = asked(pool, looks, 8)  # the first look began before their requests
        time.sleep(0.2)
        server.go.release()
        assert first.result(20)[0].thread == 1
        assert server.began.acquire(timeout=20)
        server.go.release()
        assert {found.result(20)[0].thread for found in later} == {2}
    assert server.count == 2


def test_a_look_that_fails_fails_only_its_own_table() -> None:
    server = Server()
    server.fails = {2}
    looks = SharedLooks(server.look)
    with ThreadPoolExecutor(3) as pool:
        [first] = asked(pool, looks, 1)
        assert server.began.acquire(timeout=20)
        later = asked(pool, looks, 2)
        time.sleep(0.2)
        for _ in range(3):
            server.go.release()
        assert first.result(20)[0].thread == 1
        failed = [future for future in later if future.exception(20) is not None]
        assert len(failed) == 1
        with pytest.raises(TransientError):
            failed[0].result()
        [served] = [future for future in later if future not in failed]
        assert served.result()[0].thread == 3


def test_a_server_without_room_for_a_session_may_tell_tables_ids_later() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        listener.settimeout(5)
        looks, spec = SharedLooks(), SourceSpec("127.0.0.1", listener.getsockname()[1], "reader", "")
        for _ in range(2):
            refused = pool.submit(lambda: listener.accept()[0].shutdown(socket.SHUT_RDWR))
            assert not looks.ids(cast(Session, SimpleNamespace(spec=spec)), cast(Table, None))
            refused.result(20)  # a session was tried
