"""One address that leads to several servers, as a load balancer or a DNS name does."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import pymysql

from floodmark.setup.services.databases import DatabaseServer


class Balancer:
    """Forwards each connection to the server that `choose` names by the connection's number."""

    def __init__(self, servers: Sequence[DatabaseServer], choose: Callable[[int], int]) -> None:
        self.lead(choose)
        self.silent: bytes | None = (
            None  # a statement with these bytes gets no answer; needs a session without TLS
        )
        self.cuts: bytes | None = None  # a statement with these bytes is the last of its connection
        self.unanswered = 0  # how many such statements there were
        self._ports = [server.port for server in servers]
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def lead(self, choose: Callable[[int], int]) -> None:
        """Chooses by this from now on, and counts connections anew."""
        self._choose, self._number = choose, 0

    def __enter__(self) -> Balancer:
        return self

    def __exit__(self, *error: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._ports[self._choose(self._number)]))
                self._number += 1
                threading.Thread(target=self._forward, args=(client, server, True), daemon=True).start()
                threading.Thread(target=self._forward, args=(server, client, False), daemon=True).start()

    def _forward(self, source: socket.socket, target: socket.socket, statements: bool) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                if statements and self.cuts is not None and self.cuts in data:
                    break
                if statements and self.silent is not None and self.silent in data:
                    self.unanswered += 1
                    continue
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)


class Splitter(Balancer):
    """Sends transactions to the second server, everything else to the first; needs a session without TLS."""

    def __init__(self, servers: Sequence[DatabaseServer], database: str) -> None:
        self._writer = partial(
            pymysql.connect, host="127.0.0.1", port=servers[1].port, user=servers[1].user,
            password=servers[1].password, database=database, init_command="SET time_zone = '+00:00'",
        )  # fmt: skip
        super().__init__(servers, lambda n: 0)

    def _forward(self, source: socket.socket, target: socket.socket, statements: bool) -> None:
        if not statements:
            return  # the other thread forwards both ways
        writer = self._writer(ssl_disabled=True)
        other: socket.socket = writer._sock
        chosen = target
        with suppress(OSError):
            while True:
                for ready in select.select([source, target, other], [], [])[0]:
                    if not (data := ready.recv(65536)):
                        return
                    if data.endswith(b"*/ START TRANSACTION"):
                        chosen = other
                    (chosen if ready is source else source).sendall(data)
                    if data.endswith(b"*/ COMMIT"):
                        chosen = target
