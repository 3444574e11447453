"""Whole answers to statements with a small result: rows, names, warnings, errors, and what may follow them."""

from __future__ import annotations

import socket
import struct
import threading

import pytest

from floodmark.source.rows import packets as protocol
from floodmark.source.rows.packets import FULL, MySQLError
from tests.support.mysql_log_ins import OK, refusal
from tests.support.mysql_packets import EOF, ROWS, answer, packets


def asked(sent: bytes, statement: bytes = b"SELECT 1") -> tuple[protocol.SmallResult, bytes]:
    """The result that comes of these bytes, and what the server was sent."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for end in (ours, theirs):
            end.settimeout(5)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        theirs.sendall(sent)
        found = protocol.ask(ours, statement)
        return found, theirs.recv(65_536)


def definition(name: bytes) -> bytes:
    return b"\3def\0\0\0" + bytes([len(name)]) + name + b"\0\x0c\x3f\0\0\0\0\0\xfc\0\0\0\0\0"


def test_rows_come_whole_and_names_only_on_request() -> None:
    rows = ROWS[:4]
    found, sent = asked(answer(rows, 3))
    assert found.rows == rows and found.names() == ["c", "c", "c"] and found.warnings == 0
    assert sent == b"\x09\0\0\0\3SELECT 1"
    named = packets([b"\2", definition("Größe".encode()), definition(b"b" * 200), EOF, EOF])
    assert asked(named)[0].names() == ["Größe", "b" * 200]


def test_long_cells_and_rows_in_several_packets() -> None:
    assert asked(answer(ROWS[4:], 3))[0].rows == ROWS[4:]


def test_a_row_of_more_than_one_packet_is_put_together() -> None:
    value = b"z" * (FULL + 5)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        sender = threading.Thread(target=theirs.sendall, args=(answer([(value,)], 1),))
        sender.start()
        assert protocol.ask(ours, b"SELECT 1").rows == [(value,)]
        sender.join()


def test_warnings_of_rows_and_of_statements_without_a_result() -> None:
    end = struct.pack("<BHH", 0xFE, 3, 2)
    assert asked(answer([(b"1",)], 1, end=end))[0].warnings == 3
    found, _ = asked(packets([b"\0\1\2" + struct.pack("<HH", 2, 4)]))
    assert (found.rows, found.names(), found.warnings) == ([], [], 4)
    assert asked(packets([OK]))[0].warnings == 0


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_the_servers_error_in_place_of_a_result_or_its_rest_leaves_the_connection_usable(rows: int) -> None:
    error = refusal(1146, b"no such table")
    sent = packets([error])
    if rows:
        sent = packets([b"\1", definition(b"c"), EOF, *[b"\0011"] * rows, error])
    with pytest.raises(protocol.StatementRefused) as found:
        asked(sent)
    assert found.value.args == (1146, "no such table")


@pytest.mark.parametrize(
    "sent",
    [
        packets([OK, OK]),  # something follows
        answer([(b"1",)], 1) + b"\0",
        packets([refusal(1146, b"no")]) + b"\0",
        packets([b"\0\0\0\x0a\0\0\0"]),  # more results follow
        answer([(b"1",)], 1, end=struct.pack("<BHH", 0xFE, 0, 0x000A)),
        answer([(b"1",)], 1, classic=False),  # no end after the descriptions: nobody has agreed to that
        packets([b"\1\0", definition(b"c"), EOF, EOF]),  # descriptions left out
        packets([b"\xfb/etc/passwd"]),  # a request for a file
        packets([b"\1", definition(b"c"), EOF, b"\0011x", EOF]),  # a cell too many
        packets([b"\1", definition(b"c"), EOF, b"\0051", EOF]),  # a cell too short
        packets([b"\2", definition(b"c"), definition(b"d"), EOF, b"\0011", EOF]),  # a cell too few
        packets([b"\1", definition(b"c"), EOF, b"", EOF]),  # an empty packet
        packets([b"\1", definition(b"c"), EOF, b"\0011", EOF], first=2),  # out of order
    ],
)
def test_anything_else_is_malformed(sent: bytes) -> None:
    with pytest.raises(MySQLError) as found:
        asked(sent)
    assert found.value.args[0] == 2027 and not isinstance(found.value, protocol.StatementRefused)


def test_a_servers_farewell_is_told_but_the_connection_is_over() -> None:
    with pytest.raises(MySQLError) as found:
        asked(packets([refusal(1053, b"Server shutdown in progress")], first=0))
    assert found.value.args[0] == 1053 and not isinstance(found.value, protocol.StatementRefused)


def test_an_answer_that_is_cut_off_or_too_late_is_a_lost_connection() -> None:
    whole = answer(ROWS[:4], 3)
    for cut in range(1, len(whole)):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(whole[:-cut])
            theirs.shutdown(socket.SHUT_WR)
            with pytest.raises(MySQLError) as found:
                protocol.ask(ours, b"SELECT 1")
            assert found.value.args[0] == 2013
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(0.05)
        with pytest.raises(MySQLError) as found:
            protocol.ask(ours, b"SELECT 1")
        assert found.value.args[0] == 2013


def test_a_description_that_has_no_name_is_malformed() -> None:
    found, _ = asked(packets([b"\1", b"\3def\0\0", EOF, EOF]))
    with pytest.raises(MySQLError):
        found.names()
