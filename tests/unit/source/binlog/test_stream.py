"""The stream of events: all of them, in their place, with the right checksum, or an error."""

from __future__ import annotations

import random
import struct
from itertools import pairwise
from typing import Any

import pytest

from floodmark.model.errors import DataError
from floodmark.source.binlog import events, stream
from floodmark.source.binlog.events import DamagedEvent, LogEvent
from floodmark.source.rows.packets import MySQLError, StatementRefused
from tests.support.binlog_bytes import event, following, packets, recorded, streamed

TABLE = b"\x07\0\0\0\0\0\1\0\1d\0\1t\0\1\x03\0\0"
OTHER = b"\x08" + TABLE[1:]
ROW = b"\x07\0\0\0\0\0\1\0\2\0\1\xff\0\1\0\0\0"
XID = bytes(8)

Taken = tuple[int, int, int, int, int, bytes, int, str]


@pytest.fixture(params=["compiled", "in Python"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "in Python":
        monkeypatch.setattr(stream, "compiled", None)
    return str(request.param)


def taken(data: bytes, skip: set[int] | None = None, **more: Any) -> list[Taken]:
    with streamed(data, **more) as source:
        source.skip = skip or set()
        return [(*one[:5], bytes(one.body), one.server, source.file) for one in source]


def kinds(found: list[Taken]) -> list[int]:
    return [one[0] for one in found]


def test_the_compiled_scanner_was_built() -> None:
    assert stream.compiled is not None, "run `make setup`: without it, the log is read slowly"


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_a_recorded_dump_is_taken_event_by_event(kind: str, way: str) -> None:
    sent = recorded(kind)
    found = taken(packets(sent))
    assert kinds(found) == [packet[5] for packet in sent[:-1]]
    real = [one for one in found if one[4]]
    for before, after in pairwise(real):
        gap = after[3] - before[3] - before[4]
        # MariaDB leaves out the texts of statements, before the tables that they change.
        assert gap == 0 or (kind == "mariadb" and after[0] == events.TABLE_MAP)
    assert [one[5] for one in found] == [packet[20:-4] for packet in sent[:-1]]


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
@pytest.mark.parametrize("buffer", [300, 317, 1000])
def test_any_buffer_gives_the_same_events(kind: str, buffer: int, way: str) -> None:
    data = packets(recorded(kind))
    assert taken(data, buffer=buffer) == taken(data)


def test_both_versions_take_the_same_events(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("mysql", "mariadb"):
        data = packets(recorded(kind))
        compiled = taken(data)
        with monkeypatch.context() as patch:
            patch.setattr(stream, "compiled", None)
            assert taken(data) == compiled


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_a_changed_bit_is_noticed_wherever_it_is(kind: str, way: str) -> None:
    data, rng = packets(recorded(kind)), random.Random(3)
    end = len(data) - 9  # the server's end
    for _ in range(400):
        changed = bytearray(data)
        changed[rng.randrange(end)] ^= 1 << rng.randrange(8)
        with pytest.raises((DataError, MySQLError)):
            taken(bytes(changed))


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_a_dump_that_ends_early_is_no_end(kind: str, way: str) -> None:
    data = packets(recorded(kind))
    for size in range(0, len(data) - 1, 37):
        with pytest.raises(MySQLError):
            taken(data[:size])


def test_a_missing_event_is_noticed(way: str) -> None:
    sent = recorded("mysql")
    for number in range(2, len(sent) - 2):
        with pytest.raises(DamagedEvent, match="missing before it"):
            taken(packets([*sent[:number], *sent[number + 1 :]]))


def test_in_mariadb_only_a_table_may_follow_what_was_not_sent(way: str) -> None:
    sent = recorded("mariadb")
    for number in range(2, len(sent) - 2):
        rest = packets([*sent[:number], *sent[number + 1 :]])
        if sent[number + 1][5] == events.TABLE_MAP:
            continue
        with pytest.raises(DamagedEvent, match="missing before it"):
            taken(rest)


def test_places_go_on_beyond_four_gigabytes(way: str) -> None:
    begin = (1 << 32) - 40
    found = taken(packets(following([(16, XID)] * 5, begin)), position=begin)
    assert [one[3] for one in found[2:]] == [begin + 31 * n for n in range(5)]


def test_row_events_of_skipped_tables_are_counted_and_all_others_taken(way: str) -> None:
    rows = [(19, TABLE), (19, OTHER), (30, ROW), (30, b"\x08" + ROW[1:]), (30, ROW), (16, XID)]
    with streamed(packets(following(rows))) as source:
        found = []
        for one in source:
            found.append(one.kind)
            if one.kind == 19:
                source.skip = {7}
        assert found == [4, 15, 19, 19, 30, 16]
        assert (source.skipped_events, source.skipped_bytes) == (2, 2 * (19 + len(ROW) + 4))
        assert source.ended


def test_a_number_that_is_given_to_another_table_is_no_longer_skipped(way: str) -> None:
    rows = [(19, TABLE), (30, ROW), (19, TABLE), (30, ROW)]
    with streamed(packets(following(rows))) as source:
        found, tables = [], 0
        for one in source:
            found.append(one.kind)
            if one.kind == 19:
                tables += 1
                source.skip = {7} if tables == 1 else set()
        assert found == [4, 15, 19, 19, 30]


@pytest.mark.parametrize("size", [0xFFFFFF - 24, 0xFFFFFF - 23])
@pytest.mark.parametrize("skipped", [False, True])
def test_an_event_of_many_packets_is_joined_or_skipped(size: int, skipped: bool, way: str) -> None:
    body = b"\x07\0\0\0\0\0" + random.Random(1).randbytes(size - 6)
    found = taken(packets(following([(16, XID), (30, body), (16, XID)])), {7} if skipped else set())
    assert kinds(found) == [4, 15, 16, 16] if skipped else [4, 15, 16, 30, 16]
    if not skipped:
        assert found[3][5] == body


@pytest.mark.parametrize("skipped", [False, True])
def test_a_changed_bit_in_a_large_event_is_noticed(skipped: bool, way: str) -> None:
    data = bytearray(packets(following([(30, b"\x07\0\0\0\0\0" + bytes(1 << 20))])))
    data[len(data) // 2] ^= 1
    with pytest.raises(DamagedEvent, match="checksum"):
        taken(bytes(data), {7} if skipped else set())


def test_the_servers_error_is_its_error(way: str) -> None:
    sent = [*recorded("mysql")[:6], b"\xff\xd4\x04#HY000Could not open log file"]
    with pytest.raises(StatementRefused, match="Could not open log file"):
        taken(packets(sent))


def test_a_heartbeat_has_no_place(way: str) -> None:
    sent = following([(16, XID), (16, XID)])
    sent.insert(3, event(27, b"bin.000001", 0, end=158))
    found = taken(packets(sent))
    assert kinds(found) == [4, 15, 16, 27, 16]
    assert [one[4] for one in found] == [0, 123, 31, 0, 31]


def test_an_unknown_event_is_handed_out(way: str) -> None:
    assert kinds(taken(packets(following([(99, b"?"), (16, XID)])))) == [4, 15, 99, 16]


def test_without_checksums_events_end_later(way: str) -> None:
    sent = following([])[:-1]
    format_ = bytearray(sent[1][1:-4])
    format_[-1] = 0
    at = 4 + len(format_) + 4
    plain = struct.pack("<IBIIIH", 1, 16, 1, 27, at + 27, 0) + XID
    sent[1] = event(15, bytes(format_[19:]), 4)
    found = taken(packets([*sent, b"\0" + plain, b"\xfe\0\0\0\0"]))
    assert found[2][:6] == (16, 1, 0, at, 27, XID)


def test_events_of_random_bytes_never_do_anything_but_raise(way: str) -> None:
    rng = random.Random(5)
    head = packets(recorded("mysql")[:3])
    for _ in range(300):
        with pytest.raises((DataError, MySQLError)):
            taken(head + rng.randbytes(rng.randrange(200)))


def test_an_event_is_a_tuple_with_names(way: str) -> None:
    with streamed(packets(following([(16, XID)]))) as source:
        assert all(type(one) is LogEvent for one in source)
