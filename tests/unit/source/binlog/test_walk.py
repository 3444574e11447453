"""What a walk over the events of the binary log finds, and where the next read begins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
import pytest

from floodmark.model.changes import LogEnd, LogPlace, PreparedXa, TableChanges, UnknownEvent
from floodmark.source.binlog.events import LogEvent
from floodmark.source.binlog.walk import Stretch, Walk, joined
from tests.support.log_events import (
    SERVER,
    anonymous,
    delete,
    described,
    event,
    gtid,
    insert,
    mariadb_gtid,
    payload,
    place_after,
    placed,
    query,
    rotate,
    rows,
    table_map,
    transaction,
    update,
    xa_prepare,
    xid,
)

FILE = "binlog.000001"
START = LogPlace(FILE, 4)
TABLES = {"shop.a": described("shop.a"), "shop.b": described("shop.b")}
Events = LogEvent | Iterable[LogEvent]


class Read:
    """A walk over events, and the keys that it gave for each file that it names."""

    def __init__(
        self,
        *events: Events,
        visible: str | None = None,
        before: str | None = None,
        end: LogPlace | None = None,
        most: int = 1 << 20,
    ) -> None:
        self.files: dict[str, list[Any]] = {}
        self.skip: set[int] = set()
        end = end or place_after(*events)
        self.walk = Walk(START, LogEnd(end, visible), TABLES, self.write, before=before, most=most)
        self.walk.follow(placed(*events), self.skip)
        self.stretch: Stretch = self.walk.stretch()
        self.found = self.stretch.followed

    def write(self, name: str, batches: Sequence[pa.RecordBatch]) -> str:
        path = f"{name}/{len(self.files)}"
        self.files[path] = pa.Table.from_batches(batches).column("id").to_pylist()
        return path

    def keys(self, name: str) -> list[int]:
        """The keys of a table that belong to the read itself."""
        changes = self.found.tables.get(name, TableChanges())
        return sorted({key for path in changes.files for key in self.files[path]})

    def counts(self, name: str) -> tuple[int, int, int]:
        one = self.found.tables.get(name, TableChanges())
        return one.inserts, one.updates, one.deletes

    def why(self, name: str) -> tuple[str, ...]:
        return self.found.tables.get(name, TableChanges()).reconcile


def is_over(read: Read) -> bool:
    return read.walk.over


def a(number: int = 1) -> LogEvent:
    return table_map(number, "shop.a")


def test_inserts_updates_and_deletes_are_keys_alike() -> None:
    read = Read(transaction(1, a(), insert(1, 1, 2), update(1, (2, 2)), delete(1, 1)))
    assert read.keys("shop.a") == [1, 2]
    assert read.counts("shop.a") == (2, 1, 1)
    assert (read.found.transactions, read.found.gtids) == (1, f"{SERVER}:1")


def test_a_key_that_changed_is_two_keys() -> None:
    assert Read(transaction(1, a(), update(1, (1, 7)))).keys("shop.a") == [1, 7]


def test_the_read_ends_at_its_end() -> None:
    first, second = transaction(1, a(), insert(1, 1)), transaction(2, a(), insert(1, 2))
    read = Read(first, second, end=place_after(first))
    assert read.keys("shop.a") == [1]
    assert read.walk.over
    assert read.found.next_start == place_after(first)


def test_a_walk_that_has_not_reached_its_end_goes_on_behind_the_last_transaction() -> None:
    first, second = transaction(1, a(), insert(1, 1)), transaction(2, a(), insert(1, 2))
    read = Read(first, second[:3], end=place_after(first, second))
    assert not is_over(read)
    assert read.walk.place == place_after(first)
    assert read.counts("shop.a") == (1, 0, 0)
    read.walk.follow(placed(second, start=read.walk.place.position))
    assert is_over(read)
    again = read.walk.stretch().followed
    assert again.tables["shop.a"].inserts == 2


def test_a_transaction_that_is_not_visible_is_left_out_and_the_next_read_begins_there() -> None:
    parts = [transaction(n, a(), insert(1, n)) for n in (1, 2, 3)]
    read = Read(*parts, visible=f"{SERVER}:1:3")
    assert read.keys("shop.a") == [1, 3]
    assert read.found.next_start == place_after(parts[0])
    assert read.found.transactions == 2


def test_what_an_earlier_read_has_taken_is_not_taken_again() -> None:
    parts = [transaction(n, a(), insert(1, n)) for n in (2, 3)]
    read = Read(*parts, visible=f"{SERVER}:1-3", before=f"{SERVER}:1:3")
    assert read.keys("shop.a") == [2]
    assert read.counts("shop.a") == (1, 0, 0)


def test_a_compressed_transaction_is_walked_like_any_other() -> None:
    inner = [query("BEGIN"), a(), insert(1, 5), xid()]
    read = Read(gtid(1), payload(inner), transaction(2, a(), insert(1, 6)))
    assert read.keys("shop.a") == [5, 6]
    assert read.found.transactions == 2
    assert Read(gtid(1), payload(inner), visible="").keys("shop.a") == []


def test_a_compressed_transaction_that_is_left_out_ends_there() -> None:
    parts = [gtid(1), payload([query("BEGIN"), a(), insert(1, 5), xid()])]
    read = Read(parts, visible=f"{SERVER}:9")
    assert (read.keys("shop.a"), read.found.next_start, read.walk.over) == ([], START, True)


def test_transactions_without_gtids_are_all_taken() -> None:
    parts = [anonymous(), query("BEGIN"), a(), insert(1, 1), query("COMMIT")]
    assert Read(parts).keys("shop.a") == [1]
    assert Read(parts[1:]).found.transactions == 1  # as servers before 5.7 write them


def test_rows_of_other_tables_are_skipped_early() -> None:
    read = Read(transaction(1, table_map(9, "shop.other"), insert(9, 1), a(), insert(1, 2)))
    assert read.skip == {9}
    assert list(read.found.tables) == ["shop.a"]


def test_a_rollback_leaves_rows_of_tables_without_transactions() -> None:
    assert Read(gtid(1), query("BEGIN"), a(), insert(1, 1), query("ROLLBACK")).keys("shop.a") == [1]


def test_savepoints_end_nothing() -> None:
    parts = (a(), insert(1, 1), query("SAVEPOINT `x`"), insert(1, 2), query("ROLLBACK TO `x`"), insert(1, 3))
    read = Read(transaction(1, *parts))
    assert read.keys("shop.a") == [1, 2, 3]
    assert read.found.transactions == 1


def test_a_mariadb_ddl_stands_alone() -> None:
    ddl = [mariadb_gtid(1, flags=0x21), query("ALTER TABLE a ADD c INT")]
    read = Read(ddl, mariadb_gtid(2), a(), insert(1, 1), query("COMMIT"), mariadb_gtid(3), a(), insert(1, 2))
    assert read.found.transactions == 2
    assert read.found.tables["shop.a"].inserts == 1
    assert read.walk.place == place_after(ddl, mariadb_gtid(2), a(), insert(1, 1), query("COMMIT"))


# ---------------------------------------------------------------- memory


def test_keys_are_handed_out_in_portions_whatever_the_size_of_a_transaction() -> None:
    many = [insert(1, *range(n, n + 100)) for n in range(0, 10_000, 100)]
    read = Read(transaction(1, a(), *many), most=4_000)
    assert read.keys("shop.a") == list(range(10_000))
    assert len(read.files) > 5
    assert max(map(len, read.files.values())) <= 2_000


# ---------------------------------------------------------------- statements


def ddl(number: int, text: str) -> list[LogEvent]:
    return [gtid(number), query(text)]


def test_a_ddl_makes_rows_before_and_behind_it_doubtful() -> None:
    parts = transaction(1, a(), insert(1, 1))
    read = Read(parts, ddl(2, "ALTER TABLE a ADD c INT"))
    assert joined([read.stretch], LogEnd(read.found.next_start)).tables["shop.a"].reconcile == ("ddl",)
    read = Read(ddl(1, "ALTER TABLE a ADD c INT"), transaction(2, a(), insert(1, 1)))
    assert joined([read.stretch], LogEnd(read.found.next_start)).tables["shop.a"].reconcile == ("ddl",)


def test_full_metadata_proves_keys_across_a_ddl() -> None:
    full = table_map(1, "shop.a", "c", "id")
    parts = transaction(1, table_map(2, "shop.a", "id"), insert(2, 1))
    read = Read(parts, ddl(2, "ALTER TABLE a ADD c INT FIRST"), transaction(3, full, rows(30, 1, (9, 2))))
    found = joined([read.stretch], LogEnd(read.found.next_start)).tables["shop.a"]
    assert (found.reconcile, found.statements) == ((), ("ALTER TABLE",))
    assert read.keys("shop.a") == [1, 2]


def test_a_ddl_of_a_table_without_changed_rows_is_only_named() -> None:
    read = Read(ddl(1, "CREATE INDEX i ON a (x)"))
    found = joined([read.stretch], LogEnd(read.found.next_start)).tables["shop.a"]
    assert found == TableChanges(statements=("CREATE INDEX",))


def test_a_table_map_that_does_not_fit_is_reconciled() -> None:
    read = Read(transaction(1, table_map(1, "shop.a", columns=2), rows(30, 1, (1, 2))))
    assert read.why("shop.a") == ("ddl",)
    assert read.counts("shop.a") == (1, 0, 0)


@pytest.mark.parametrize(
    ("text", "why"),
    [("TRUNCATE a", "truncate"), ("DROP TABLE a", "ddl"), ("RENAME TABLE a TO x, y TO a", "ddl")],
)
def test_statements_that_replace_rows_are_reconciled(text: str, why: str) -> None:
    assert Read(ddl(1, text)).why("shop.a") == (why,)


def test_dml_as_a_statement_reconciles_all() -> None:
    read = Read(gtid(1), query("BEGIN"), event(5, bytes(9)), query("UPDATE other SET x = 1"), xid())
    assert read.found.reconcile == ("statement",)
    assert read.stretch.anything == ("UPDATE",)
    assert Read(gtid(1), query("BEGIN"), event(17), event(18), xid()).found.reconcile == ("statement",)


def test_a_statement_that_is_not_visible_does_not_count() -> None:
    assert Read(ddl(1, "TRUNCATE a"), visible="").found.tables == {}


# ---------------------------------------------------------------- XA


def prepared(number: int, name: str, *events: LogEvent) -> list[LogEvent]:
    quoted = f"X'{name.encode().hex()}',X'',1"
    return [
        gtid(number),
        query(f"XA START {quoted}"),
        *events,
        query(f"XA END {quoted}"),
        xa_prepare(name.encode()),
    ]


def ends(number: int, name: str, how: str = "COMMIT") -> list[LogEvent]:
    return [gtid(number), query(f"XA {how} X'{name.encode().hex()}',X'',1")]


def test_rows_of_a_prepared_transaction_wait_for_its_commit() -> None:
    parts = prepared(1, "x", a(), insert(1, 1)), transaction(2, a(), insert(1, 2))
    read = Read(*parts)
    assert read.keys("shop.a") == [2]
    [one] = read.found.prepared
    assert [read.files[path] for path in one.tables["shop.a"].files] == [[1]]
    assert (one.begin, one.tables["shop.a"].inserts) == (START, 1)
    read = Read(*parts, ends(3, "x"))
    assert read.keys("shop.a") == [1, 2]
    assert read.counts("shop.a") == (2, 0, 0)
    assert read.found.prepared == ()


def test_a_prepared_transaction_that_is_rolled_back_changed_nothing() -> None:
    read = Read(prepared(1, "x", a(), insert(1, 1)), ends(2, "x", "ROLLBACK"))
    assert (read.found.tables, read.found.prepared, read.stretch.ended) == ({}, (), ())


def test_a_transaction_in_one_phase_is_committed_at_once() -> None:
    parts = prepared(1, "x", a(), insert(1, 1))
    read = Read(*parts[:-1], xa_prepare(b"x", one_phase=True))
    assert (read.keys("shop.a"), read.counts("shop.a"), read.found.prepared) == ([1], (1, 0, 0), ())


def test_a_mariadb_transaction_is_prepared_from_its_gtid_on() -> None:
    name = (1).to_bytes(4, "little") + b"\1\0x"
    parts = [mariadb_gtid(1, 0x40, name), a(), insert(1, 1), query("XA END X'78',X'',1"), xa_prepare(b"x")]
    read = Read(parts)
    assert (read.found.tables, len(read.found.prepared)) == ({}, 1)
    read = Read(parts, mariadb_gtid(2, 0x80, name), query("XA COMMIT X'78',X'',1"))
    assert (read.keys("shop.a"), read.found.prepared) == ([1], ())


def both(
    first: Read, second: Read, **more: object
) -> tuple[TableChanges, tuple[PreparedXa, ...], tuple[str, ...]]:
    found = joined([first.stretch, second.stretch], LogEnd(second.found.next_start), **more)  # type: ignore[arg-type]
    return found.tables.get("shop.a", TableChanges()), found.prepared, found.reconcile


def test_a_transaction_may_be_prepared_in_one_file_and_committed_in_the_next() -> None:
    first, second = Read(prepared(1, "x", a(), insert(1, 1))), Read(ends(2, "x"))
    found, open_xa, why = both(first, second)
    assert (found.inserts, found.files, open_xa, why) == (1, tuple(first.files), (), ())
    found, open_xa, why = both(first, Read(ends(2, "x", "ROLLBACK")))
    assert (found, open_xa, why) == (TableChanges(), (), ())


def test_a_commit_whose_rows_were_not_read_reconciles_all() -> None:
    _, _, why = both(Read(transaction(1)), Read(ends(2, "x")))
    assert why == ("unprepared",)
    _, _, why = both(Read(transaction(1)), Read(ends(2, "x", "ROLLBACK")))
    assert why == ()


def test_a_transaction_of_tables_that_nobody_follows_reconciles_none() -> None:
    first = Read(prepared(1, "x", table_map(1, "shop.other"), insert(1, 1)))
    second = Read(ends(2, "x"))
    assert both(first, second) == (TableChanges(), (), ())
    assert both(second, second, prepared=first.found.prepared)[2] == ("unprepared",)
    found = joined([second.stretch], LogEnd(second.found.next_start), prepared=first.found.prepared)
    assert (found.reconcile, found.prepared) == ((), ())


def test_a_transaction_that_was_prepared_in_an_earlier_read_brings_its_files() -> None:
    earlier = PreparedXa("X'78',X'',1", {"shop.a": TableChanges(inserts=3, files=("old",))}, START)
    found, open_xa, _ = both(Read(transaction(1)), Read(ends(2, "x")), prepared=[earlier])
    assert (found.inserts, found.files, open_xa) == (3, ("old",), ())
    _, open_xa, _ = both(Read(transaction(1)), Read(transaction(2)), prepared=[earlier])
    assert open_xa == (earlier,)


# ---------------------------------------------------------------- several files


def test_a_walk_crosses_into_the_next_file() -> None:
    following = "binlog.000002"
    last = transaction(2, a(2), insert(2, 2))
    parts = (
        transaction(1, a(), insert(1, 1)), rotate(following), rotate(following, artificial=True), last,
    )  # fmt: skip
    read = Read(*parts, end=place_after(last, file=following))
    assert read.keys("shop.a") == [1, 2]
    assert read.found.next_start == place_after(last, file=following)
    assert read.stretch.torn == ()


def test_a_walk_of_one_file_ends_with_it() -> None:
    walk = Walk(START, LogEnd(LogPlace("binlog.000002", 4)), TABLES, lambda *_: "")
    walk.follow(
        placed(transaction(1), rotate("binlog.000002"), rotate("binlog.000002", True), transaction(2))
    )
    assert walk.over
    assert walk.stretch().followed.next_start == LogPlace("binlog.000002", 4)
    assert walk.stretch().followed.transactions == 1


def test_a_file_without_an_end_may_have_lost_transactions_unless_each_was_synced() -> None:
    following = "binlog.000002"
    read = Read(transaction(1), gtid(2), query("BEGIN"), rotate(following, True), end=LogPlace(following, 4))
    assert read.stretch.torn == (FILE,)
    end = LogEnd(LogPlace(following, 4))
    assert joined([read.stretch], end, sync_binlog=0).reconcile == ("lost",)
    assert joined([read.stretch], end, sync_binlog=1).reconcile == ()


def test_a_ddl_in_one_file_makes_rows_of_another_doubtful() -> None:
    found, _, _ = both(Read(ddl(1, "ALTER TABLE a ADD c INT")), Read(transaction(2, a(), insert(1, 1))))
    assert found.reconcile == ("ddl",)
    assert found.inserts == 1


def test_transactions_that_the_log_does_not_have_reconcile_all() -> None:
    read = Read(transaction(3, a(), insert(1, 1)))
    place, upto = read.found.next_start, f"{SERVER}:1-3"

    def why(before: str) -> tuple[str, ...]:
        ends = LogEnd(place, upto, upto), LogEnd(START, before, before)
        return joined([read.stretch], ends[0], before=ends[1]).reconcile

    assert why(f"{SERVER}:1-2") == ()
    assert why(f"{SERVER}:1") == ("lost",)


# ---------------------------------------------------------------- what is unknown


def test_an_unknown_event_stops_the_read() -> None:
    with pytest.raises(UnknownEvent, match="type 99"):
        Read(transaction(1), event(99))
    assert Read(transaction(1), event(99, flags=0x80)).found.transactions == 1


def test_a_column_of_an_unknown_type_stops_the_read_only_in_a_table_that_is_followed() -> None:
    read = Read(transaction(1, table_map(9, "shop.other", kind=200), insert(9, 1), a(), insert(1, 2)))
    assert read.keys("shop.a") == [2] and read.skip == {9}
    with pytest.raises(UnknownEvent, match=r"shop\.a with a column of type 200"):
        Read(transaction(1, table_map(1, "shop.a", kind=200), insert(1, 1)))


def test_an_incident_reconciles_all() -> None:
    assert Read(event(26), transaction(1)).found.reconcile == ("lost",)


def test_a_dump_may_end_between_two_files() -> None:
    following, last = "binlog.000002", transaction(2, a(2), insert(2, 2))
    first = [*transaction(1, a(), insert(1, 1)), rotate(following)]
    read = Read(first, end=place_after(last, file=following))
    assert read.walk.place == LogPlace(following, 4)
    read.walk.follow(placed(last))  # of the next dump, without what it begins with
    assert read.walk.over
    assert read.walk.stretch().followed.next_start == place_after(last, file=following)
    assert read.walk.stretch().torn == ()
