"""A loopback proxy before a MySQL that answers each prepared query once from the server, and from then on from memory.

python bench/replay.py HOST PORT. Prints its own port, and a line of JSON with its counts for each line on its standard input; ends with
that. A slice is a prepared query, so later passes over the same slices cost the server nothing. Everything else (log-in, plan, text
queries) goes through. Only for connections without TLS, to a source that does not change.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field

PREPARE, EXECUTE, CLOSE = 0x16, 0x17, 0x19
CHUNK = 1 << 18


@dataclass
class Answers:
    """What the server said to each query: when it was prepared, and when it was executed."""

    known: dict[bytes, tuple[bytes, bytes]] = field(default_factory=dict)
    replayed: int = 0
    asked: int = 0

    def counts(self) -> dict[str, int]:
        size = sum(len(prepared) + len(rows) for prepared, rows in self.known.values())
        return {"replayed": self.replayed, "asked": self.asked, "bytes": size}


class Connection:
    """One client and its connection to the server.

    The protocol takes turns: the server says nothing between an answer and the next command, so an answer is what it has said
    until then. It is kept once the client has closed the statement, which it does after a complete answer only.
    """

    def __init__(self, client: socket.socket, server: socket.socket, answers: Answers) -> None:
        self._client, self._server, self._answers = client, server, answers
        self._query = b""  # the last that was prepared
        self._replaying = False  # it was answered from memory
        self._prepared = b""
        self._heard: list[bytes] | None = None  # what the server says meanwhile, if it is kept

    def serve(self) -> None:
        """Until one of them hangs up."""
        threading.Thread(target=self._from_server, daemon=True).start()
        try:
            with suppress(OSError):
                self._from_client()
        finally:
            for end in (self._client, self._server):
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
                end.close()

    def _from_server(self) -> None:
        with suppress(OSError):
            while data := self._server.recv(CHUNK):
                if self._heard is not None:
                    self._heard.append(data)
                self._client.sendall(data)
            self._client.shutdown(socket.SHUT_RDWR)

    def _from_client(self) -> None:
        with self._client.makefile("rb") as stream:
            while len(head := stream.read(4)) == 4:
                body = stream.read(int.from_bytes(head[:3], "little"))
                # A command's first packet has the number 0; those of a log-in have others.
                if head[3] or not body or not self._taken(body):
                    self._server.sendall(head + body)

    def _taken(self, command: bytes) -> bool:
        """Answers a command from memory; False: the server has to."""
        kind = command[0]
        if kind == PREPARE:
            self._query, self._heard = command[1:], []
            found = self._answers.known.get(self._query)
            self._replaying = found is not None
            if found:
                self._client.sendall(found[0])
            return self._replaying
        if kind == EXECUTE and self._replaying:
            self._answers.replayed += 1
            self._client.sendall(self._answers.known[self._query][1])
            return True
        if kind == CLOSE and self._replaying:
            return True
        if kind == EXECUTE and self._heard is not None:
            self._prepared, self._heard = b"".join(self._heard), []
            self._answers.asked += 1
        elif kind == CLOSE and self._heard and self._prepared:
            self._answers.known[self._query] = (self._prepared, b"".join(self._heard))
        if kind != EXECUTE:
            self._heard, self._prepared = None, b""
        return False


def listen(host: str, port: int) -> tuple[socket.socket, Answers]:
    """Starts the proxy before a server, in threads of this process; gives its socket and what it knows."""
    door, answers = socket.create_server(("127.0.0.1", 0)), Answers()

    def accept() -> None:
        while True:
            try:
                client, _ = door.accept()
            except OSError:
                return
            server = socket.create_connection((host, port))
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=Connection(client, server, answers).serve, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return door, answers


def main() -> None:
    door, answers = listen(sys.argv[1], int(sys.argv[2]))
    print(door.getsockname()[1], flush=True)
    for _ in sys.stdin:
        print(json.dumps(answers.counts()), flush=True)


if __name__ == "__main__":
    main()
