"""Prepared statements and the rows of the binary protocol, against a hand-made server and plain Python."""

from __future__ import annotations

import datetime
import socket
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark.source.rows.decoder import SLACK, Kind, Moment, Number, binary_columns
from floodmark.source.rows.packets import MySQLError
from floodmark.source.rows.stream import RowStream
from tests.support.mysql_packets import EOF, cell, moment, packets, row

MICROS = pa.timestamp("us")

pytestmark = pytest.mark.usefixtures("each_way")


def definition(kind: int, flags: int = 0, digits: int = 0) -> bytes:
    return b"\3def\0\0\0\1c\0\x0c" + struct.pack("<HIBHB", 63, 20, kind, flags, digits) + b"\0\0"


def decoded(rows: Sequence[bytes], kinds: Sequence[Kind]) -> list[list[Any]]:
    data: Any = np.frombuffer(packets(rows) + bytes(SLACK), np.uint8)
    found = binary_columns(data, np.cumsum([0, *(4 + len(r) for r in rows)]), kinds)
    for column in found:
        column.validate(full=True)
    return [column.to_pylist() for column in found]


# ---------------------------------------------------------------- rows

INTEGERS = {"<i1": "b", "<u1": "B", "<i2": "h", "<u2": "H", "<i4": "i", "<u4": "I", "<i8": "q", "<u8": "Q"}


@given(st.data())
@settings(deadline=None)
def test_any_numbers_texts_and_nulls_are_read_as_they_were_sent(data: st.DataObject) -> None:
    columns = data.draw(st.lists(st.sampled_from([*INTEGERS, "<f8", "text"]), min_size=1, max_size=20))
    kinds: list[Kind] = [pa.binary() if c == "text" else Number(c) for c in columns]
    values: list[list[Any]] = []
    sent = []
    for _ in range(data.draw(st.integers(1, 8))):
        cells: list[bytes | None] = []
        drawn: list[Any] = []
        for column in columns:
            value: Any
            if column == "text":
                value = data.draw(
                    st.none() | st.binary(max_size=5) | st.sampled_from([b"x" * 251, b"y" * 70_000])
                )
                cells.append(None if value is None else cell(value))
            elif column == "<f8":
                value = data.draw(st.none() | st.floats(allow_nan=False))
                cells.append(None if value is None else struct.pack("<d", value))
            else:
                code = INTEGERS[column]
                bits = 8 * struct.calcsize(code)
                low, high = (0, 2**bits - 1) if code.isupper() else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
                value = data.draw(st.none() | st.sampled_from([low, high]) | st.integers(low, high))
                cells.append(None if value is None else struct.pack("<" + code, value))
            drawn.append(value)
        values.append(drawn)
        sent.append(row(*cells))
    assert decoded(sent, kinds) == [list(column) for column in zip(*values, strict=True)]


@given(st.lists(st.none() | st.datetimes(datetime.datetime(1, 1, 1)), min_size=1, max_size=20))
@settings(deadline=None)
def test_any_moment_and_date_is_read_as_it_was_sent(values: list[datetime.datetime | None]) -> None:
    texts = [None if v is None else v.strftime("%Y-%m-%d %H:%M:%S.%f").zfill(26) for v in values]
    sent = [
        row(*([None, None] if t is None else [moment(t), moment(t[:10])]), struct.pack("<b", 7))
        for t in texts
    ]
    times, dates, last = decoded(sent, [Moment(6), Moment(0, date=True), Number("<i1")])
    assert times == values and last == [7] * len(values)
    assert dates == [v and v.date() for v in values]


@pytest.mark.parametrize(
    ("value", "digits", "printed"),
    [
        ("0000-00-00 00:00:00", 0, b"0000-00-00 00:00:00"),
        ("0000-00-00 00:00:00", 3, b"0000-00-00 00:00:00.000"),
        ("2024-00-10 00:00:00", 0, b"2024-00-10 00:00:00"),
        ("2024-11-00 10:00:00.123400", 4, b"2024-11-00 10:00:00.1234"),
        ("2023-02-29 23:59:59.000001", 6, b"2023-02-29 23:59:59.000001"),
    ],
)
def test_an_invalid_moment_turns_all_into_text_as_the_server_prints_them(
    value: str, digits: int, printed: bytes
) -> None:
    good = "2024-02-29 01:02:03"
    (texts,) = decoded([row(moment(good)), row(None), row(moment(value))], [Moment(digits)])
    assert texts == [good.encode() + (b"." + b"0" * digits if digits else b""), None, printed]
    if digits == 0:
        (days,) = decoded([row(moment(value[:10]))], [Moment(0, date=True)])
        assert days == [value[:10].encode()]


def test_the_first_and_the_last_possible_days_are_read() -> None:
    for text, day in (("0000-01-01", -719_528), ("1970-01-01", 0), ("9999-12-31", 2_932_896)):
        data: Any = np.frombuffer(packets([row(moment(text))]) + bytes(SLACK), np.uint8)
        (found,) = binary_columns(data, np.array([0, len(data) - SLACK]), [Moment(0, date=True)])
        assert found.view(pa.int32()).to_pylist() == [day]


GARBLED = {
    "a moment of three bytes": row(b"\3\1\1\1"),
    "a month 13": row(b"\4" + struct.pack("<HBB", 2024, 13, 1)),
    "a year 10000": row(b"\4" + struct.pack("<HBB", 10_000, 1, 1)),
    "an hour 24": row(b"\7" + struct.pack("<HBBBBB", 2024, 1, 1, 24, 0, 0)),
    "a minute 60": row(b"\7" + struct.pack("<HBBBBB", 2024, 1, 1, 0, 60, 0)),
    "a million microseconds": row(b"\x0b" + struct.pack("<HBBBBBI", 2024, 1, 1, 0, 0, 0, 1_000_000)),
    "too little": row(b"\7\1\1"),
    "too much": row(moment("2024-01-01")) + b"\0",
    "a NULL that has bytes": row(None) + b"\4",
}


@pytest.mark.parametrize("what", list(GARBLED))
def test_what_no_server_sends_is_an_error_and_never_a_value(what: str) -> None:
    good = row(moment("2024-01-01 10:00:00"))
    for rows in ([GARBLED[what]], [good, GARBLED[what]], [GARBLED[what], good]):
        with pytest.raises(MySQLError, match="Malformed packet"):
            decoded(rows, [Moment(6)])


@given(st.lists(st.binary(min_size=2, max_size=30), min_size=1, max_size=5), st.data())
@settings(deadline=None, max_examples=300)
def test_any_bytes_are_values_or_an_error(rows: list[bytes], data: st.DataObject) -> None:
    kinds: list[Kind] = data.draw(
        st.lists(
            st.sampled_from(
                [
                    Number("<i8"),
                    Number("<i1"),
                    Moment(6),
                    Moment(0, date=True),
                    pa.binary(),
                    pa.large_binary(),
                ]
            ),
            min_size=1,
            max_size=5,
        )
    )
    try:
        decoded([b"\0\0" + r for r in rows], kinds)
    except MySQLError as error:
        assert error.args[0] == 2027


# ---------------------------------------------------------------- the conversation


@dataclass
class Server:
    """One that answers from a list, and records the queries."""

    answers: dict[int, bytes]
    heard: list[bytes]

    def serve(self, link: socket.socket) -> None:
        data = b""
        with link:
            while got := link.recv(65_536):
                data += got
                while len(data) >= 4 and len(data) >= 4 + int.from_bytes(data[:3], "little"):
                    size = 4 + int.from_bytes(data[:3], "little")
                    command, data = data[4:size], data[size:]
                    self.heard.append(command)
                    if answer := self.answers.get(command[0]):
                        link.sendall(answer)


def asked(
    answers: dict[int, bytes], wanted: Sequence[pa.DataType], query: bytes = b"SELECT 1"
) -> tuple[list[tuple[Any, ...]], list[bytes]]:
    ours, theirs = socket.socketpair()
    server = Server(answers, [])
    thread = threading.Thread(target=server.serve, args=(theirs,), daemon=True)
    thread.start()
    with ours:
        found = RowStream(ours, wanted, 5, 4096)
        found.ask(query)
        rows: list[tuple[Any, ...]] = []
        while block := found.fetch_row(3):
            rows += zip(*(c.to_pylist() for c in block), strict=True)
    thread.join(5)
    return rows, server.heard


NUMBER, TEXT = definition(3), definition(253)
READY = b"\0" + struct.pack("<IHHBH", 9, 2, 0, 0, 0)
STATEMENT = struct.pack("<I", 9)
PREPARED = packets([READY, NUMBER, TEXT, EOF])
VALUES = [(i, b"x" * i) for i in range(10)]
ROWS = [row(struct.pack("<i", i), cell(text)) for i, text in VALUES]
EXECUTED = packets([b"\2", NUMBER, TEXT, EOF, *ROWS, EOF])
AS_TEXT = packets([b"\2", NUMBER, TEXT, EOF, *(cell(b"%d" % i) + cell(text) for i, text in VALUES), EOF])
WANTED: list[pa.DataType] = [pa.int64(), pa.string()]


def test_a_query_is_prepared_run_and_closed_whatever_both_sides_omit() -> None:
    bare = packets([READY, NUMBER, TEXT])
    modern = packets([b"\2", NUMBER, TEXT, *ROWS, b"\xfe\0\0\2\0\0\0"])
    cached = packets([b"\2\0", EOF, *ROWS, EOF])
    for prepared, executed in ((PREPARED, EXECUTED), (bare, modern), (PREPARED, cached)):
        rows, heard = asked({0x16: prepared, 0x17: executed}, WANTED)
        assert rows == VALUES
        assert heard == [b"\x16SELECT 1", b"\x17" + STATEMENT + b"\0\1\0\0\0", b"\x19" + STATEMENT]


def test_warnings_survive_the_closing_of_the_statement() -> None:
    warned = packets([b"\2", NUMBER, TEXT, EOF, *ROWS, struct.pack("<BHH", 0xFE, 3, 2)])
    rows, heard = asked({0x16: PREPARED, 0x17: warned}, WANTED)
    assert rows == VALUES and heard[-1][0] == 0x17


def test_a_query_that_can_not_be_prepared_uses_the_text_protocol() -> None:
    expected = [(b"%d" % i, text) for i, text in VALUES]
    refused = packets(
        [b"\xff" + struct.pack("<H", 1461) + b"#42000Can't create more than max_prepared_stmt_count"]
    )
    rows, heard = asked({0x16: refused, 0x03: AS_TEXT}, WANTED)
    assert rows == expected and [h[0] for h in heard] == [0x16, 0x03]
    rows, heard = asked({0x03: AS_TEXT}, WANTED, b"SELECT '?'")
    assert rows == expected and [h[0] for h in heard] == [0x03]


@pytest.mark.parametrize("kind", [definition(11), definition(4), definition(12, digits=31)])
@pytest.mark.parametrize("end", [[EOF], []])
def test_columns_that_are_inexact_in_binary_use_the_text_protocol(kind: bytes, end: list[bytes]) -> None:
    expected = [(b"%d" % i, text) for i, text in VALUES]
    prepared = packets([READY, kind, TEXT, *end])
    for wanted in (pa.string(), pa.float32(), MICROS):
        rows, heard = asked({0x16: prepared, 0x03: AS_TEXT}, [wanted, pa.string()])
        assert rows == expected and [h[0] for h in heard] == [0x16, 0x19, 0x03]


def test_a_table_changed_in_between_is_read_as_it_is_now_or_not_at_all() -> None:
    wider = [row(struct.pack("<q", i), cell(text)) for i, text in VALUES]
    rows, _ = asked({0x16: PREPARED, 0x17: packets([b"\2", definition(8), TEXT, EOF, *wider, EOF])}, WANTED)
    assert rows == VALUES
    with pytest.raises(MySQLError, match="Malformed packet"):
        asked({0x16: PREPARED, 0x17: packets([b"\2", definition(11), TEXT, EOF, EOF])}, WANTED)


def test_a_prepared_answer_that_stops_anywhere_is_an_error() -> None:
    whole = PREPARED + EXECUTED
    for size in range(len(whole)):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            theirs.sendall(whole[:size])
            theirs.shutdown(socket.SHUT_WR)
            with pytest.raises(MySQLError, match="Lost connection"):
                found = RowStream(ours, WANTED, 5, 4096)
                found.ask(b"SELECT 1")
                while found.fetch_row(3):
                    pass
