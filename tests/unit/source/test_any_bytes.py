"""Answers and log-ins of servers that send anything: bytes changed, left out or duplicated, with TLS and without.

What comes of them are rows of the right columns, a connection, or an error of ours: never a value that was not sent whole.
"""

from __future__ import annotations

import random
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import pyarrow as pa

from floodmark.model.errors import ConfigError
from floodmark.source.rows import packets as protocol
from floodmark.source.rows.packets import MySQLError
from floodmark.source.rows.stream import RowStream
from tests.support.mysql_log_ins import OK, PASSWORD, PLAIN, greeting, login, refusal, server, switch
from tests.support.mysql_packets import DEFINITION, EOF, ROWS, answer, packets


def test_an_answer_over_tls_is_the_same_in_records_of_any_size(context: ssl.SSLContext) -> None:
    for piece, rows in ((1, ROWS[:4]), (97, ROWS), (4096, ROWS), (1 << 20, ROWS)):
        sent = answer(rows, 3)
        for cut in (0, 1):
            with tls_link(context, sent[: len(sent) - cut], piece) as link:
                try:
                    assert read(link, 3) == rows and not cut
                except MySQLError as error:
                    assert cut and error.args[0] == 2013


@contextmanager
def tls_link(
    context: ssl.SSLContext, sent: bytes, piece: int = 1 << 30, damage: int | None = None
) -> Iterator[Any]:
    """The near end of a connection over which these bytes come, in records of a size; one byte of them damaged on the way."""
    ours, theirs = socket.socketpair()
    relay, far = socket.socketpair() if damage is not None else (theirs, theirs)

    def serve() -> None:
        with suppress(OSError), context.wrap_socket(far, server_side=True) as wrapped:
            for at in range(0, len(sent), piece):
                wrapped.sendall(sent[at : at + piece])

    def carry(one: socket.socket, other: socket.socket, left: int | None) -> None:
        with suppress(OSError):
            while data := bytearray(one.recv(65_536)):
                if left is not None:
                    if left < len(data):
                        data[left] ^= 1 << left % 8
                    left = left - len(data) if left >= len(data) else None
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)

    jobs: list[tuple[Callable[..., None], tuple[Any, ...]]] = [(serve, ())]
    if damage is not None:
        jobs += [(carry, (relay, theirs, damage)), (carry, (theirs, relay, None))]
    threads = [threading.Thread(target=job, args=args, daemon=True) for job, args in jobs]
    for thread in threads:
        thread.start()
    anyone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
    try:
        with ours, anyone.wrap_socket(ours) as link:
            yield link
    finally:
        ours.close()
        for thread in threads:
            thread.join(10)
        for end in (theirs, relay, far):
            end.close()


def read(link: Any, columns: int) -> list[Any]:
    found = RowStream(link, [pa.binary()] * columns, 5, 4096)
    rows: list[Any] = []
    found.begin()
    while block := found.fetch_row(2):
        rows += zip(*(column.to_pylist() for column in block), strict=True)
    return rows


def test_one_flipped_bit_anywhere_in_tls_is_an_error_and_never_a_value(context: ssl.SSLContext) -> None:
    rng, sent = random.Random(17), answer(ROWS[:4], 3)
    for place in (*range(0, 1200, 37), *(rng.randrange(1000) for _ in range(25))):
        with suppress(MySQLError, ssl.SSLError), tls_link(context, sent, 100, damage=place) as link:
            assert read(link, 3) == ROWS[:4]


# ---------------------------------------------------------------- any bytes


def mutated(rng: random.Random, whole: bytes) -> bytes:
    """The bytes with a few of them changed, taken out, doubled or cut off."""
    data = bytearray(whole)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(data))
        match rng.randrange(5):
            case 0:
                data[at] = rng.choice([0, 1, 0xFA, 0xFB, 0xFC, 0xFD, 0xFE, 0xFF, rng.randrange(256)])
            case 1:
                del data[at : at + rng.randrange(1, 8)]
            case 2:
                data[at:at] = data[at : at + rng.randrange(1, 40)]
            case 3:
                data[at] ^= 1 << rng.randrange(8)
            case _:
                del data[max(1, at) :]
        if not data:
            return b"\0"
    return bytes(data)


def test_any_answer_in_text_is_rows_of_its_columns_or_an_error() -> None:
    rng, good = random.Random(23), answer([(b"1", None, b"x" * 300), (b"", b"22", b"\xfe")] * 3, 3)
    outcomes: set[int] = set()
    for _ in range(1000):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(mutated(rng, good))
            theirs.shutdown(socket.SHUT_WR)
            try:
                assert all(len(row) == 3 for row in read(ours, 3))
                outcomes.add(0)
            except MySQLError as error:
                outcomes.add(error.args[0] if 2000 <= error.args[0] < 3000 else 1)
    assert outcomes >= {0, 2013, 2027}


def ask(link: socket.socket) -> tuple[list[str], list[Any]]:
    """A query over a logged-in connection."""
    found = protocol.ask(link, b"SELECT 1")
    return found.names(), found.rows


def test_any_answer_to_a_query_is_rows_of_its_columns_or_an_error() -> None:
    rng = random.Random(29)
    good = answer([(b"1", None, b"x" * 300), (b"", b"22", b"\xfe")] * 3, 3)
    requests = [
        packets([b"\xfb/etc/passwd"]),
        packets([OK]),
        packets([refusal(1146, b"no")]),
        packets([b"\3", DEFINITION]),
    ]
    outcomes: set[int] = set()
    for number in range(1000):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(mutated(rng, good) if number % 3 else mutated(rng, rng.choice(requests)) + EOF)
            theirs.shutdown(socket.SHUT_WR)
            try:
                names, rows = ask(ours)
                assert all(len(row) == len(names) for row in rows)
                outcomes.add(0)
            except MySQLError as error:
                outcomes.add(error.args[0] if 2000 <= error.args[0] < 3000 else 1)
            theirs.settimeout(1)
            with suppress(OSError):
                assert b"root:" not in theirs.recv(65_536)
    assert outcomes >= {0, 2013, 2027}


def test_any_log_in_ends_in_an_error_of_ours_or_a_connection() -> None:
    rng = random.Random(31)
    scripts = [
        [greeting(PLAIN), packets([OK], 2)],
        [greeting(PLAIN, b"caching_sha2_password"), packets([b"\1\4"], 2), packets([b"\1-----BEGIN"], 4)],
        [greeting(PLAIN), packets([switch(b"sha256_password")], 2), packets([b"\1key"], 4)],
        [greeting(PLAIN), packets([switch(b"mysql_clear_password", b"")], 2), packets([OK], 4)],
    ]
    heard: list[bytes] = []
    outcomes: set[str] = set()
    for _ in range(60):
        script = list(rng.choice(scripts))
        which = rng.randrange(len(script))
        script[which] = mutated(rng, script[which])

        def behave(link: socket.socket, script: list[bytes] = script) -> None:
            link.settimeout(2)
            for piece in script:
                link.sendall(piece)
                heard.append(link.recv(65_536))

        with server(behave) as spec:
            try:
                login(replace(spec, tls=None), 0.1).close()
                outcomes.add("in")
            except (MySQLError, ConfigError) as error:
                outcomes.add(type(error).__name__)
    assert outcomes == {"in", "MySQLError", "ConfigError"}
    assert not any(PASSWORD.encode() in piece for piece in heard)
