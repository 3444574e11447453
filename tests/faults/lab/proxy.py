"""The laboratory's TCP proxy: passes bytes through, counts them, and makes trouble at one of them.

It sits between the command and one service. Bytes are counted over all connections since `arm`, in both directions;
a first run without trouble shows how many there are to strike.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

HOST = "127.0.0.1"
# What can happen at a byte. The first three can also hit every connection from then on, until `heal`.
KINDS = ("reset", "stall", "cut", "delay", "trickle")
SAID = {
    "reset": "connection reset",
    "stall": "half-open: no more bytes, no end",
    "cut": "connection closed",
    "delay": "an answer late",
    "trickle": "a few bytes at a time",
}


@dataclass(frozen=True)
class Trouble:
    """What happens, at which byte, and whether it lasts for all connections from then on."""

    kind: str
    at: int
    lasting: bool = False


class Proxy:
    """Listens on its own port for as long as the laboratory runs."""

    def __init__(self, behind: int) -> None:
        self.behind = behind
        self._door = socket.create_server((HOST, 0), backlog=128)
        self.port: int = self._door.getsockname()[1]
        self._lock = threading.Lock()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self.arm(None)
        threading.Thread(target=self._listen, daemon=True).start()

    def arm(self, trouble: Trouble | None) -> None:
        """Restart the count at 0, and strike once when the byte comes through."""
        self.trouble, self.passed, self.struck = trouble, 0, False

    def heal(self) -> None:
        """Stop the trouble; stalled connections are closed, as a network timeout would do."""
        self.trouble = None
        for pair in list(self._pairs):
            _reset(*pair)

    def close(self) -> None:
        self._door.close()
        self.heal()

    def _listen(self) -> None:
        while True:
            try:
                near, _ = self._door.accept()
            except OSError:
                return
            try:
                far = socket.create_connection((HOST, self.behind), timeout=10)
            except OSError:
                _reset(near)
                continue
            far.settimeout(None)
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            pair = (near, far)
            self._pairs.add(pair)
            if self._out and self.trouble is not None and self.trouble.kind != "stall":
                _reset(*pair)
            for a, b in (pair, pair[::-1]):
                threading.Thread(target=self._pump, args=(a, b, pair), daemon=True).start()

    @property
    def _out(self) -> bool:
        """Whether nothing gets through at the moment."""
        return self.struck and self.trouble is not None and self.trouble.lasting

    def _pump(self, a: socket.socket, b: socket.socket, pair: tuple[socket.socket, socket.socket]) -> None:
        slow = False
        try:
            while data := a.recv(16384):
                if self._out:
                    if self.trouble is not None and self.trouble.kind == "stall":
                        continue
                    break
                head, hit = self._through(len(data))
                if hit is None:
                    _send(b, data, slow)
                    continue
                b.sendall(data[:head])
                if hit.kind == "stall":
                    while a.recv(16384):  # until one side gives up
                        pass
                    break
                if hit.kind == "reset":
                    _reset(*pair)
                    break
                if hit.kind == "cut":
                    break
                if hit.kind == "delay":
                    time.sleep(1.0)
                slow = hit.kind == "trickle"
                _send(b, data[head:], slow)
        except OSError:
            pass
        finally:
            self._pairs.discard(pair)
            for end in pair:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def _through(self, size: int) -> tuple[int, Trouble | None]:
        """Count bytes; returns how many get through before the trouble, and the trouble if it strikes here."""
        with self._lock:
            before, self.passed = self.passed, self.passed + size
            trouble = self.trouble
            if trouble is None or self.struck or self.passed <= trouble.at:
                return size, None
            self.struck = True
            return max(0, trouble.at - before), trouble


def _send(to: socket.socket, data: bytes, slow: bool) -> None:
    if not slow:
        to.sendall(data)
        return
    step = max(1, len(data) // 40)
    for i in range(0, len(data), step):
        to.sendall(data[i : i + step])
        time.sleep(0.02)


def _reset(*ends: socket.socket) -> None:
    """Close connections abruptly: RST instead of FIN."""
    for end in ends:
        with suppress(OSError):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.shutdown(socket.SHUT_RDWR)  # wakes any thread that reads from it
        end.close()
