"""bench/replay.py: the server answers a prepared query once; later the proxy does, with the same bytes."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import pytest

LOADER = SourceFileLoader("replay", str(Path(__file__).resolve().parents[3] / "bench" / "replay.py"))
SPEC = spec_from_loader(LOADER.name, LOADER)
assert SPEC
replay: Any = module_from_spec(SPEC)
PREPARE, EXECUTE, CLOSE, QUERY = b"\x16", b"\x17", b"\x19", b"\x03"


@pytest.fixture(scope="module", autouse=True)
def loaded() -> Iterator[None]:
    sys.modules["replay"] = replay  # for its dataclasses
    LOADER.exec_module(replay)
    yield
    del sys.modules["replay"]


def packet(body: bytes, number: int = 0) -> bytes:
    return len(body).to_bytes(3, "little") + bytes([number]) + body


def read(stream: Any) -> bytes:
    head = stream.read(4)
    return bytes(stream.read(int.from_bytes(head[:3], "little"))) if head else b""


class Server:
    """Answers every command but CLOSE with a packet that names it, in two pieces, and records the commands."""

    def __init__(self) -> None:
        self.told: list[bytes] = []
        self.door = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self.door.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        with link, link.makefile("rb") as stream:
            while command := read(stream):
                self.told.append(command)
                if command[:1] != CLOSE:
                    answer = packet(b"answer %d to " % len(self.told) + command, 1)
                    link.sendall(answer[:7])
                    link.sendall(answer[7:])


def conversation(port: int, *commands: bytes) -> list[bytes]:
    """The answers to commands; none to CLOSE."""
    with socket.create_connection(("127.0.0.1", port)) as link, link.makefile("rb") as stream:
        found = []
        for command in commands:
            link.sendall(packet(command))
            if command[:1] != CLOSE:
                found.append(read(stream))
        return found


def test_a_prepared_query_goes_to_the_server_once_and_anything_else_each_time() -> None:
    server = Server()
    with closing(server.door):
        door, answers = replay.listen(*server.door.getsockname())
        port = door.getsockname()[1]
        slice = (PREPARE + b"SELECT 1", EXECUTE + b"\1\0\0\0", CLOSE + b"\1\0\0\0")
        with closing(door):
            first = conversation(port, *slice, QUERY + b"a")
            again = conversation(port, QUERY + b"b", *slice, QUERY + b"c", *slice)
    assert again[1:3] == first[:2] == again[4:6]
    assert [told[:1] for told in server.told] == [PREPARE, EXECUTE, CLOSE, QUERY, QUERY, QUERY]
    assert [again[0][-1:], again[3][-1:]] == [b"b", b"c"]
    assert (answers.asked, answers.replayed) == (1, 2)


def test_an_answer_that_the_client_did_not_close_is_not_kept() -> None:
    server = Server()
    with closing(server.door):
        door, answers = replay.listen(*server.door.getsockname())
        with closing(door):
            conversation(door.getsockname()[1], PREPARE + b"SELECT 1", EXECUTE + b"\1\0\0\0")  # and hangs up
            conversation(door.getsockname()[1], PREPARE + b"SELECT 2", CLOSE + b"\2\0\0\0")  # not executed
            conversation(door.getsockname()[1], PREPARE + b"SELECT 3", QUERY + b"SELECT 3")
    assert answers.known == {}
