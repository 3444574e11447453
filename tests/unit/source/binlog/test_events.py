"""What events say, from dumps of both servers."""

from __future__ import annotations

from contextlib import suppress

import pytest

from floodmark.model.errors import DataError
from floodmark.source.binlog import events
from floodmark.source.binlog.events import DamagedEvent, LogEvent
from tests.support.binlog_bytes import packets, recorded, streamed


def taken(kind: str) -> list[LogEvent]:
    with streamed(packets(recorded(kind))) as source:
        return [one._replace(body=memoryview(bytes(one.body))) for one in source]


def test_transactions_of_mysql_have_tags_and_times() -> None:
    found = [events.gtid(one) for one in taken("mysql") if one.kind in (events.GTID, events.GTID_TAGGED)]
    source = found[0].text.rpartition(":")[0]
    assert [one.text.removeprefix(source) for one in found if "tag" in one.text] == [":mytag:1"]
    assert [one.text.removeprefix(source) for one in found if ":t:" in one.text] == [":t:1"]
    times = [one.commit or 0.0 for one in found]
    assert all(1.79e9 < time < 1.8e9 for time in times) and times == sorted(times)


def test_transactions_of_mariadb_say_what_ends_them() -> None:
    found = [events.gtid(one) for one in taken("mariadb") if one.kind == events.MARIADB_GTID]
    assert [one.text for one in found] == [f"0-1-{n}" for n in range(1, len(found) + 1)]
    assert [one.prepared for one in found if one.prepared] == ["X'61',X'62',7"]
    assert [one.completed for one in found if one.completed] == ["X'61',X'62',7"]
    assert found[0].standalone and not found[2].standalone


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_an_xa_transaction_has_one_name(kind: str) -> None:
    found = taken(kind)
    [(name, one_phase)] = [events.xa_prepare(one.body) for one in found if one.kind == events.XA_PREPARE]
    assert (name, one_phase) == ("X'61',X'62',7", False)
    texts = [events.query(one).text for one in found if one.kind == events.QUERY]
    assert texts[-1] == f"XA COMMIT {name}".encode()


def test_a_compressed_transaction_holds_the_events_of_one() -> None:
    (payload,) = [one for one in taken("mysql") if one.kind == events.PAYLOAD]
    inner = list(events.payload(payload.body))
    assert [one.kind for one in inner] == [events.QUERY, events.TABLE_MAP, 30, events.XID]
    assert events.table_map(inner[1].body)[1].name == "x.gi"
    for size in range(len(payload.body)):
        with pytest.raises(DamagedEvent):
            list(events.payload(payload.body[:size]))
    for at in range(len(payload.body)):
        changed = bytearray(payload.body)
        changed[at] ^= 0xFF
        try:
            list(events.payload(memoryview(changed)))
        except Exception as error:
            assert isinstance(error, DataError), error


def test_tables_have_their_layout() -> None:
    shapes = [events.table_map(one.body)[1] for one in taken("mysql") if one.kind == events.TABLE_MAP]
    assert (shapes[0].name, shapes[0].types, shapes[0].metadata) == (
        "x.t",
        b"\x03\x0f\xfe\x03\x03",
        (0, 40, 0xF701, 0, 0),
    )
    assert shapes[0].unsigned == (False,) * 5 and shapes[0] is shapes[1]
    assert next(s.unsigned for s in shapes if s.table == "gi") == (True, False)


def test_cut_off_events_are_damaged() -> None:
    parsers = {
        events.GTID: events.gtid, events.GTID_TAGGED: events.gtid, events.MARIADB_GTID: events.gtid, events.QUERY: events.query,
        events.TABLE_MAP: lambda one: events.table_map(one.body), events.XA_PREPARE: lambda one: events.xa_prepare(one.body),
        events.FORMAT_DESCRIPTION: events.format_description,
    }  # fmt: skip
    for one in (*taken("mysql"), *taken("mariadb")):
        if one.kind in parsers:
            for size in range(len(one.body)):
                with suppress(DataError):  # a Query may end anywhere in its text
                    parsers[one.kind](one._replace(body=one.body[:size]))
