"""Reading answers off a socket, checked with hand-made packets and a plain, slow parser."""

from __future__ import annotations

import socket
import struct
import threading
import time
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.source.rows.decoder import places, text_columns
from floodmark.source.rows.packets import FULL, MySQLError
from floodmark.source.rows.stream import RowStream
from tests.support.mysql_packets import DEFINITION, EOF, ROWS, Row, answer, cell, packets

pytestmark = pytest.mark.usefixtures("each_way")


def received(
    sent: bytes,
    columns: int,
    *,
    pieces: int = 1 << 30,
    most: int = 8192,
    buffer: int = 4096,
    hang_up: bool = True,
    seconds: int = 5,
) -> tuple[list[Row], RowStream]:
    """What is read of these bytes, sent in pieces of a size."""
    ours, theirs = socket.socketpair()

    def send() -> None:
        for at in range(0, len(sent), pieces):
            theirs.sendall(sent[at : at + pieces])
            if pieces < len(sent):
                time.sleep(0)
        if hang_up:
            theirs.close()

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    try:
        found = RowStream(ours, [pa.binary()] * columns, seconds, buffer)
        found.begin()
        rows: list[Row] = []
        while block := found.fetch_row(most):
            for column in block:
                column.validate(full=True)
            assert len(block[0]) <= most
            rows += zip(*(c.to_pylist() for c in block), strict=True)
        assert found.fetch_row(most) == []  # and stays there
        return rows, found
    finally:
        ours.close()
        sender.join()
        theirs.close()


def test_cells_of_every_length_and_nulls_arrive() -> None:
    for buffer in (64, 1000, 100_000, 1 << 20):
        for most in (1, 2, 100):
            rows, found = received(answer(ROWS, 3), 3, buffer=buffer, most=most)
            assert rows == ROWS and found.warnings == 0


def test_an_answer_split_anywhere_is_the_same() -> None:
    rows: list[Row] = [(str(i).encode(), None if i % 3 else b"abc" * i) for i in range(20)]
    sent = answer(rows, 2)
    for size in range(1, 60):
        assert received(sent, 2, pieces=size, most=7, buffer=128)[0] == rows


def test_an_answer_that_stops_before_its_end_is_an_error() -> None:
    sent = answer([(str(i).encode(), b"some text", None) for i in range(5)], 3)
    for size in range(len(sent)):
        with pytest.raises(MySQLError, match="Lost connection to server during query") as error:
            received(sent[:size], 3)
        assert error.value.args[0] == 2013


def test_a_server_that_falls_silent_is_an_error() -> None:
    sent = answer([(b"1",)], 1)
    for size in (0, 3, 20, len(sent) - 1):
        began = time.monotonic()
        with pytest.raises(MySQLError, match="Lost connection"):
            received(sent[:size], 1, hang_up=False, seconds=1)
        assert time.monotonic() - began < 20


def test_a_row_that_ends_where_a_packet_does_is_whole() -> None:
    # The cell's length takes nine bytes from 16 MiB on, four below.
    for size in (FULL - 5, FULL - 4, FULL + 1, 2 * FULL - 9):
        big = bytes(size)
        rows, _ = received(answer([(b"a",), (big,), (b"b",)], 1), 1, buffer=1 << 16, pieces=1 << 20)
        assert [len(c or b"") for (c,) in rows] == [1, size, 1] and rows[1][0] == big


def test_a_row_longer_than_any_server_may_send_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("floodmark.source.rows.stream.LONGEST", FULL + 10)
    with pytest.raises(MySQLError, match="max_allowed_packet") as error:
        received(answer([(bytes(FULL + 100),)], 1), 1)
    assert error.value.args[0] == 2020


def test_an_error_is_raised_as_the_driver_does() -> None:
    error = b"\xff" + struct.pack("<H", 1317) + b"#70100Query execution was interrupted"
    for rows in ([], [(b"1",)], [(b"1",)] * 300):
        with pytest.raises(MySQLError) as raised:
            received(answer(rows, 1, end=error), 1, most=100)
        assert raised.value.args == (1317, "Query execution was interrupted")
    refused = packets([b"\xff" + struct.pack("<H", 1146) + b"#42S02Table 'x' doesn't exist"])
    with pytest.raises(MySQLError) as raised:
        received(refused, 1)
    assert raised.value.args == (1146, "Table 'x' doesn't exist")
    farewell = packets([b"\xff" + struct.pack("<H", 4031) + b"#HY000disconnected"], first=0)
    with pytest.raises(MySQLError) as raised:
        received(farewell, 1)
    assert raised.value.args == (4031, "disconnected")


def test_both_kinds_of_end_packet_report_the_warnings() -> None:
    for rows in ([], [(b"1",)]):
        end = struct.pack("<BHH", 0xFE, 7, 2)
        assert received(answer(rows, 1, end=end), 1)[1].warnings == 7
        # With as many rows affected as need a longer number, and a message behind.
        for start in (b"\xfe\0\0", b"\xfe\xfc\1\1\xfd\1\1\1"):
            modern = start + struct.pack("<HH", 2, 9) + b"\0"
            found, it = received(answer(rows, 1, end=modern, classic=False), 1)
            assert (found, it.warnings) == (rows, 9)


def test_mariadb_s_flag_that_descriptions_follow_is_understood() -> None:
    assert received(answer([(b"1", b"2")], 2, count=b"\2\1"), 2)[0] == [(b"1", b"2")]
    assert received(answer([(b"1",) * 300], 300, count=b"\xfc\x2c\1"), 300)[0] == [(b"1",) * 300]


def garbled() -> dict[str, tuple[bytes, int]]:
    row = cell(b"1") + cell(b"22")
    head = [b"\2", DEFINITION, DEFINITION, EOF]

    def sent(*body: bytes) -> tuple[bytes, int]:
        return packets([*head, *body, EOF]), 2

    good = packets([*head, row, row, EOF])
    number = len(packets([*head, row])) + 3
    return {
        "fewer cells than columns": sent(row, cell(b"1"), row),
        "more cells than columns": sent(row, row + cell(None), row),
        "a cell that is longer than its row": sent(row, b"\1" + b"1" + b"\5" + b"22", row),
        "a cell that ends in the next row": sent(b"\1" + b"1" + b"\x07" + b"22", row),
        "a cell that ends behind everything": sent(row, b"\1" + b"1" + b"\xfa" + b"22"),
        "a length of a length that is not there": sent(row, b"\1" + b"1" + b"\xfd"),
        "a cell of 2^63 bytes": sent(row, b"\1" + b"1" + b"\xfe" + b"\xff" * 8),
        "a cell that begins with 0xff": sent(row, b"\1" + b"1" + b"\xff" + b"22"),
        "an empty row": sent(row, b"", row),
        "an end and more rows": sent(row, EOF, row),
        "an error and more rows": sent(row, b"\xff\1\1gone", row),
        "more results": (packets([*head, row, struct.pack("<BHH", 0xFE, 0, 8)]), 2),
        "an end that is too long": (packets([*head, row, EOF + b"\0\0"]), 2),
        "a packet out of order": (good[:number] + b"\x63" + good[number + 1 :], 2),
        "a definition out of order": (packets(head[:2]) + packets([DEFINITION, EOF, row, EOF], 7), 2),
        "another number of columns": (answer([(b"1",)], 1), 2),
        "no result": (packets([b"\0\0\0\2\0\0\0"]), 2),
        "a request for a file": (packets([b"\xfb/etc/passwd"]), 2),
        "nothing in a packet": (packets([b""]), 2),
        "descriptions left out": (packets([b"\2\0", EOF, row, EOF]), 2),
    }


@pytest.mark.parametrize("what", list(garbled()))
def test_what_the_protocol_does_not_allow_is_an_error_and_never_a_value(what: str) -> None:
    sent, columns = garbled()[what]
    for most in (1, 2, 100):
        with pytest.raises(MySQLError, match="Malformed packet") as error:
            received(sent, columns, most=most)
        assert error.value.args[0] == 2027


# ---------------------------------------------------------------- against a slow parser


def slowly(row: bytes, columns: int) -> Row | None:
    """One row's cells, one after the other; None where they don't fill it."""
    cells: list[bytes | None] = []
    at = 0
    while at < len(row) and len(cells) < columns:
        mark, at = row[at], at + 1
        if mark == 0xFB:
            cells.append(None)
            continue
        width = {0xFC: 2, 0xFD: 3, 0xFE: 8}.get(mark, 0)
        if mark == 0xFF or at + width > len(row):
            return None
        size = int.from_bytes(row[at : at + width], "little") if width else mark
        at += width + size
        if at > len(row):
            return None
        cells.append(row[at - size : at])
    return tuple(cells) if at == len(row) and len(cells) == columns else None


def quickly(rows: list[bytes], columns: int) -> list[Row] | None:
    data = np.frombuffer(packets(rows), np.uint8)
    heads = np.cumsum([0, *(4 + len(row) for row in rows)])
    try:
        block = text_columns(
            data, heads, [pa.binary(), pa.large_binary()] * (columns // 2) + [pa.binary()] * (columns % 2)
        )
    except MySQLError:
        return None
    for column in block:
        column.validate(full=True)
    return list(zip(*(c.to_pylist() for c in block), strict=True))


VALUES = st.one_of(
    st.none(),
    st.binary(max_size=20),
    st.integers(0, 400).map(lambda n: b"x" * n),
    st.sampled_from([b"", b"y" * 65_535, b"z" * 65_536]),
)


@given(st.integers(1, 5).flatmap(lambda n: st.lists(st.tuples(*[VALUES] * n), min_size=1, max_size=30)))
@settings(deadline=None)
def test_any_rows_are_parsed_as_the_slow_parser_does(rows: list[Row]) -> None:
    encoded = [b"".join(map(cell, row)) for row in rows]
    columns = len(rows[0])
    assert [slowly(row, columns) for row in encoded] == rows == quickly(encoded, columns)


@given(
    st.lists(
        st.lists(st.sampled_from([0, 1, 2, 3, 0xFA, 0xFB, 0xFC, 0xFD, 0xFE, 0xFF]), min_size=1, max_size=12).map(bytes),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 4),
)  # fmt: skip
@settings(deadline=None, max_examples=200)
def test_any_bytes_are_what_the_slow_parser_says_or_an_error(rows: list[bytes], columns: int) -> None:
    expected = [slowly(row, columns) for row in rows]
    assert quickly(rows, columns) == (None if None in expected else expected)


def test_places_are_inside_their_rows() -> None:
    rows = [b"\1a\2bb", b"\xfb\0", b"\0\xfb"]
    data: Any = np.frombuffer(packets(rows), np.uint8)
    found, nulls = places(data, np.array([0, 9, 15, 21]), 2)
    assert found.tolist() == [[5, 6, 14, 14, 20, 20], [7, 9, 15, 15, 21, 21]]
    assert [None if n is None else n.tolist() for n in nulls] == [[False, True, False], [False, False, True]]
