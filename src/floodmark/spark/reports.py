"""Progress of running tasks: datagrams from workers to the driver.

Spark tells the driver nothing about a Python task until it has ended. A datagram costs a worker microseconds,
twice a second. A lost, late or forged one changes a number on a screen and nothing else: only what a task
returns counts. On this machine they use the loopback interface; on a cluster they go by UDP to
`spark.driver.host`, at the number of `spark.driver.port`. If the network drops them, numbers move only when a
task ends.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from struct import Struct, error
from typing import Any

# Seconds between two reports from one task.
EVERY = 0.5
_TOKEN = 8
_FORM = Struct(f"!{_TOKEN}sQQ")  # the token, the task's number, its rows


@dataclass(frozen=True)
class Address:
    """Where one task's reports go."""

    host: str
    port: int
    token: bytes
    number: int


class Teller:
    """The task's side: `tell` may be called at any rate."""

    def __init__(self, to: Address | None, every: float = EVERY) -> None:
        self._every = every
        self._next = time.monotonic() + every
        self._to = to
        self._socket: socket.socket | None = None

    def tell(self, rows: int) -> None:
        """Reports the number of rows read so far."""
        if self._to is None or time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._every
        try:
            if self._socket is None:
                self._socket, place = _datagrams(self._to.host, self._to.port)
                self._socket.setblocking(False)
                self._socket.connect(place)
            self._socket.send(_FORM.pack(self._to.token, self._to.number, rows))
        except OSError:
            self._to = None  # the driver can't be reached from here

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()


class Reports:
    """The driver's side: a socket, and a thread that passes reports on. All methods are thread-safe."""

    def __init__(self, bind: str, host: str, port: int = 0) -> None:
        """Listens on `bind`, known to others as `host`; on another port if taken. Raises OSError."""
        self._socket = _listening(bind, port)
        self._host, self._port = host, int(self._socket.getsockname()[1])
        self._token = secrets.token_bytes(_TOKEN)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._last = 0
        self._wanted: dict[int, Callable[[int, int], None]] = {}
        threading.Thread(target=self._listen, name="reports", daemon=True).start()

    def expect(self, told: Callable[[int, int], None]) -> Address:
        """The address for one task's reports; `told` receives its number and its rows until `forget`."""
        with self._lock:
            self._last += 1
            self._wanted[self._last] = told
            return Address(self._host, self._port, self._token, self._last)

    def forget(self, number: int) -> None:
        """Ignores this task's reports from now on."""
        with self._lock:
            self._wanted.pop(number, None)

    def close(self) -> None:
        """Safe to call twice."""
        self._closed.set()
        with suppress(OSError):  # wakes the thread, which close alone would leave waiting
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _listen(self) -> None:
        while not self._closed.is_set():
            try:
                token, number, rows = _FORM.unpack(self._socket.recv(_FORM.size + 1))
            except OSError:
                return
            except error:  # not one of ours
                continue
            with self._lock:
                told = self._wanted.get(number) if secrets.compare_digest(token, self._token) else None
            if told is not None:
                with suppress(Exception):  # a failing display must not stop anything
                    told(number, rows)


def driver_address(settings: Mapping[str, str], local: bool) -> tuple[str, str]:
    """Where to listen for tasks, and where they find it: the address by which Spark's driver itself is reached."""
    if local:
        return "127.0.0.1", "127.0.0.1"
    host = settings.get("spark.driver.host", "127.0.0.1")
    return settings.get("spark.driver.bindAddress", host), host


def _datagrams(host: str, port: int, flags: int = 0) -> tuple[socket.socket, Any]:
    """A socket of the host's kind, and the host's place for it."""
    family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=flags)[0]
    return socket.socket(family, kind, protocol), place


def _listening(bind: str, port: int) -> socket.socket:
    made, place = _datagrams(bind, port, socket.AI_PASSIVE)
    try:
        made.bind(place)
        return made
    except OSError:
        made.close()
        if not port:
            raise
        return _listening(bind, 0)


class RowsUnderway:
    """The total rows of those tasks of a group that have not ended."""

    def __init__(self, reports: Reports | None, told: Callable[[int], None] | None) -> None:
        self._reports, self._told = reports if told else None, told or (lambda rows: None)
        self._lock = threading.Lock()
        self._rows: dict[int, int] = {}

    def begin(self) -> Address | None:
        """Registers a task; returns the address for its reports, if they are wanted and possible."""
        if self._reports is None:
            return None
        address = self._reports.expect(self._put)
        with self._lock:
            self._rows[address.number] = 0
        return address

    def end(self, address: Address | None) -> None:
        """Unregisters a task; its rows are counted elsewhere from now on."""
        if self._reports is not None and address is not None:
            self._reports.forget(address.number)
            with self._lock:
                if self._rows.pop(address.number, 0):
                    self._told(sum(self._rows.values()))

    def close(self) -> None:
        """Unregisters all tasks."""
        with self._lock:
            left, self._rows = list(self._rows), {}
        for number in left:
            if self._reports is not None:
                self._reports.forget(number)

    def _put(self, number: int, rows: int) -> None:
        with self._lock:
            if number in self._rows:  # otherwise it has ended meanwhile
                self._rows[number] = rows
                self._told(sum(self._rows.values()))
