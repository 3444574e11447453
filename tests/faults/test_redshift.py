"""Whatever happens between a load and Redshift: every commit is in the target exactly when it is in the ledger."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from redshift_connector.core import Connection

from floodmark.load.protocol import Numbered
from floodmark.model.errors import ConfigError, DataError, TransientError
from tests.conftest import PATIENT
from tests.support.interrupted_loaders import after_copy, before_transaction
from tests.support.redshift import Faults
from tests.support.warehouse_loads import EVENTS, Fill, RedshiftPlace, row


@pytest.fixture
def faults(place: RedshiftPlace) -> Faults:
    return place.server.faults


def loaded(fill: Fill) -> tuple[list[int], list[int]]:
    """The ids in the target and the numbers in the ledger."""
    return [found[0] for found in fill.rows("id")], fill.ledger()


def manifests(fill: Fill) -> list[str]:
    return [item.path for item in fill.store.list("manifests/shop.orders/")]


def statements(faults: Faults, load: Callable[[], object]) -> list[str]:
    """What a load sends."""
    faults.statements.clear()
    load()
    return list(faults.statements)


# connections that break


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_socket_that_drops_at_any_statement_costs_one_retry(
    fill: Fill, place: RedshiftPlace, faults: Faults, after: bool
) -> None:
    fill.load(fill.commit([row(0)]))
    sent = statements(faults, lambda: fill.load(fill.commit([row(1)])))
    begin = sent.index("BEGIN")
    fill.warehouse = place.faulty()
    # Every statement of the transaction, and some of those before it.
    for k in (*range(1, begin, 3), *range(begin, len(sent) + 1)):
        faults.drop_at(k, after=after)
        fill.load(fill.commit([row(fill.n)]))
        assert faults.armed == 0
    assert loaded(fill) == (list(range(fill.n)), list(range(1, fill.n + 1)))
    assert manifests(fill) == []


def test_a_commit_that_happened_without_an_answer_is_not_repeated(
    fill: Fill, place: RedshiftPlace, faults: Faults
) -> None:
    fill.table = EVENTS  # without a key a second load would duplicate its rows
    fill.warehouse = place.faulty()
    faults.drop_after_commit()
    sent = statements(faults, lambda: fill.load(fill.commit([{"n": 1}], load_as="insert")))
    assert fill.rows("n") == [(1,)] and fill.ledger() == [1]
    assert sum(sql.startswith("COPY") for sql in sent) == 1
    asked = sent[sent.index("COMMIT") + 1 :]
    lock = next(i for i, sql in enumerate(asked) if sql.startswith("LOCK"))
    assert asked[lock - 1] == "BEGIN" and "floodmark_ledger" in asked[lock + 2]


def test_a_commit_that_was_lost_on_the_way_is_loaded_by_the_next_try(
    fill: Fill, place: RedshiftPlace, faults: Faults
) -> None:
    fill.table = EVENTS
    fill.warehouse = place.faulty()
    faults.drop_before_commit()
    assert fill.load(fill.commit([{"n": 1}], load_as="insert")).rows == 1
    assert fill.rows("n") == [(1,)] and fill.ledger() == [1]


def test_a_backend_that_outlives_its_socket_is_ended_by_the_loader_that_lost_it(
    fill: Fill, place: RedshiftPlace, faults: Faults
) -> None:
    fill.warehouse = place.faulty(replace(place.limits, lock=0.5, idle=600))
    faults.drop_at(match=r"\s*insert into \S*orders", linger=30)
    began = time.monotonic()
    assert fill.load(fill.commit([row(1)])).rows == 1
    assert time.monotonic() - began < 30
    assert loaded(fill) == ([1], [1])


def test_a_loader_waits_for_a_backend_lost_in_commit_and_never_ends_it(
    fill: Fill, place: RedshiftPlace, faults: Faults
) -> None:
    fill.warehouse = place.faulty(replace(place.limits, lock=0.5, idle=0, attempts=10))
    faults.drop_before_commit(linger=2)
    sent = statements(faults, lambda: fill.load(fill.commit([row(1)])))
    assert not any("pg_terminate_backend" in sql for sql in sent)
    assert loaded(fill) == ([1], [1])


def test_drops_at_random_leave_every_row_once(fill: Fill, place: RedshiftPlace, faults: Faults) -> None:
    chance = random.Random(4)
    fill.table = EVENTS
    fill.warehouse = place.faulty(replace(place.limits, attempts=2, pause=0.01))
    pending: list[Numbered] = []
    drops = 0
    while drops < (100 if PATIENT else 30):
        pending.append(fill.commit([{"n": fill.n}] * 3, load_as="insert"))
        for _ in range(3):
            faults.drop_at(chance.randint(1, 30), after=chance.random() < 0.5)
        try:
            fill.load(*pending)
            pending = []
        except TransientError:
            pass  # the next load has it
        drops += 3 - faults.armed
        faults.clear()
    if pending:
        fill.load(*pending)
    assert fill.rows("n, count(*)", "events GROUP BY n") == [(n, 3) for n in range(fill.n)]
    assert fill.ledger() == list(range(1, fill.n + 1))


# others


@pytest.mark.parametrize(
    "error", [("XX000", "1023"), ("40P01", "deadlock detected"), ("53300", "too many connections")]
)
def test_conflicts_and_throttling_retry_the_whole_transaction(
    fill: Fill, place: RedshiftPlace, faults: Faults, error: tuple[str, str]
) -> None:
    fill.warehouse = place.faulty()
    faults.fail(r"\s*insert into \S*ledger", *error, times=2)
    sent = statements(faults, lambda: fill.load(fill.commit([row(1)])))
    assert [sql for sql in sent if sql in ("BEGIN", "ROLLBACK", "COMMIT")] == [
        *("BEGIN", "ROLLBACK") * 2,
        "BEGIN",
        "COMMIT",
    ]
    assert loaded(fill) == ([1], [1])


def test_a_conflict_that_does_not_end_is_a_transient_error(
    fill: Fill, place: RedshiftPlace, faults: Faults
) -> None:
    fill.warehouse = place.faulty()
    faults.conflicts(times=100)
    with pytest.raises(TransientError, match="1023"):
        fill.load(fill.commit([row(1)]))
    faults.clear()
    assert fill.place.open().ledger("log-1", "orders").rows == ()


def test_two_loaders_of_one_commit_load_it_once(fill: Fill, place: RedshiftPlace, faults: Faults) -> None:
    fill.table = EVENTS
    for n in range(5):
        commit = fill.commit([{"n": n}], load_as="insert")
        # Both have looked before either locks: only the check under the lock decides.
        meet = threading.Barrier(2)
        outcomes: list[int] = []

        def load(
            commit: Numbered = commit, meet: threading.Barrier = meet, found: list[int] = outcomes
        ) -> None:
            warehouse = before_transaction(place, lambda: meet.wait(30))
            found.append(warehouse.load(fill.request(commit)).rows)

        threads = [threading.Thread(target=load) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes) == [0, 1]
    assert fill.rows("n") == [(n,) for n in range(5)] and fill.ledger() == [1, 2, 3, 4, 5]


def half_open(place: RedshiftPlace, label: str, last: str = "SELECT count(*) FROM orders") -> Connection:
    """A session that has the target's lock and does nothing more."""
    connection = place.connect()
    cursor = connection.cursor()
    cursor.execute(f"SET query_group TO '{label}'")
    cursor.execute("BEGIN")
    cursor.execute("LOCK TABLE floodmark_lock_orders")
    cursor.execute(last)
    return connection


def test_a_dead_loader_of_ours_is_ended_and_its_lock_taken(fill: Fill, place: RedshiftPlace) -> None:
    fill.load(fill.commit([row(1)]))
    dead = half_open(place, "floodmark:pipe-1:orders")
    fill.warehouse = place.faulty(replace(place.limits, lock=1.5, idle=0.2))
    began = time.monotonic()
    fill.load(fill.commit([row(2)]))
    assert time.monotonic() - began < 30
    assert loaded(fill) == ([1, 2], [1, 2])
    with pytest.raises(Exception, match=r"closed|Broken|terminat"):
        dead.cursor().execute("COMMIT")
    # The same if rows are only recounted.
    place.run("INSERT INTO orders (id) VALUES (9)")
    half_open(place, "floodmark:pipe-1:orders")
    fill.warehouse.recount(fill.pipeline, fill.log, "orders")


@pytest.mark.parametrize(
    "last",
    [
        "INSERT INTO floodmark_ledger (log_id, n) VALUES ('log-3', 1)",
        "INSERT INTO floodmark_targets (target) VALUES ('else')",  # a reset writes nothing else
    ],
    ids=["a load", "a reset"],
)
def test_a_loader_that_has_written_to_the_ledger_may_be_committing_and_is_not_ended(
    fill: Fill, place: RedshiftPlace, last: str
) -> None:
    fill.load(fill.commit([row(1)]))
    committing = half_open(place, "floodmark:pipe-1:orders", last)
    commit = fill.commit([row(2)])
    fill.warehouse = place.faulty(replace(place.limits, lock=0.5, idle=0))
    with pytest.raises(TransientError, match="may be committing") as locked:
        fill.load(commit)
    assert "pg_terminate_backend" in str(locked.value.hint)
    committing.cursor().execute("COMMIT")
    fill.load(commit)
    assert loaded(fill) == ([1, 2], [1, 2])


@pytest.mark.parametrize("label", ["floodmark:pipe-2:orders", "somebody"])
def test_a_load_waits_for_someone_elses_lock_and_then_names_the_holder(
    fill: Fill, place: RedshiftPlace, label: str
) -> None:
    fill.load(fill.commit([row(1)]))
    other = half_open(place, label)
    fill.warehouse = place.faulty(replace(place.limits, lock=1, idle=0))
    commit = fill.commit([row(2)])
    began = time.monotonic()
    with pytest.raises(TransientError, match="another load holds the lock on orders") as locked:
        fill.load(commit)
    assert time.monotonic() - began < 30
    assert "pg_terminate_backend" in str(locked.value.hint)
    other.rollback()
    other.close()
    fill.load(commit)
    assert loaded(fill) == ([1, 2], [1, 2])


def test_a_loader_of_ours_that_is_still_busy_is_left_alone(
    fill: Fill, place: RedshiftPlace, faults: Faults
) -> None:
    fill.load(fill.commit([row(1)]))
    slow, other = fill.commit([row(2)]), fill.commit([row(3)])
    faults.delay(4, r"\s*copy\b")
    busy = threading.Thread(target=lambda: place.faulty().load(fill.request(slow)))
    busy.start()
    while not any(sql.startswith("COPY") for sql in list(faults.statements)[-3:]):
        time.sleep(0.01)
    with pytest.raises(TransientError, match="holds the lock on orders"):
        place.faulty(replace(place.limits, lock=1, idle=0)).load(fill.request(other))
    busy.join()
    assert loaded(fill)[1] == [1, 2]


# silence


def test_a_server_that_accepts_and_stays_silent_is_given_up(fill: Fill, place: RedshiftPlace) -> None:
    warehouse = place.faulty(replace(place.limits, connect=1, attempts=2))
    place.server.pause()
    began = time.monotonic()
    with pytest.raises(TransientError, match=r"did not answer|lost"):
        warehouse.ledger("log-1", "orders")
    assert time.monotonic() - began < 30
    place.server.resume()
    assert warehouse.ledger("log-1", "orders").rows == ()


def test_a_statement_that_is_never_answered_ends_the_socket(
    fill: Fill, place: RedshiftPlace, faults: Faults
) -> None:
    fill.warehouse = place.faulty(replace(place.limits, statement=0.5, grace=0.5))
    faults.stall(r"\s*insert into \S*orders")
    began = time.monotonic()
    assert fill.load(fill.commit([row(1)])).rows == 1
    assert time.monotonic() - began < 20
    assert loaded(fill) == ([1], [1])


def test_an_unreachable_server_is_a_transient_error(place: RedshiftPlace) -> None:
    warehouse = place.through(port=1)
    with pytest.raises(TransientError, match="can't be reached"):
        warehouse.ledger("log-1", "orders")


def test_a_wrong_password_is_a_config_error_without_the_password(place: RedshiftPlace) -> None:
    warehouse = place.through(password="not-the-secret")
    with pytest.raises(ConfigError) as refused:
        warehouse.ledger("log-1", "orders")
    assert "not-the-secret" not in f"{refused.value}{refused.value.hint}"


# files


def test_a_copy_that_fails_names_file_column_and_row(
    fill: Fill, place: RedshiftPlace, faults: Faults
) -> None:
    fill.warehouse = place.faulty()
    faults.fail_copy(
        "The length of the data column name is longer than the length defined in the table",
        load_error={"filename": "s3://lake/x.parquet", "line_number": 7, "colname": "name", "err_code": 1204,
                    "err_reason": "String length exceeds DDL length", "type": "varchar"},
    )  # fmt: skip
    with pytest.raises(DataError, match=r"s3://lake/x\.parquet, row 7, column name") as refused:
        fill.load(fill.commit([row(1)]))
    assert refused.value.table == "shop.orders"
    assert fill.place.run("SELECT tablename FROM pg_table_def WHERE tablename = 'orders'") == []
    assert manifests(fill) == []


def test_a_copy_throttled_by_s3_is_retried(fill: Fill, place: RedshiftPlace, faults: Faults) -> None:
    fill.warehouse = place.faulty()
    faults.fail_copy("S3ServiceException: SlowDown, Status 503")
    assert fill.load(fill.commit([row(1)])).rows == 1


def test_rows_that_did_not_arrive_are_noticed_before_anything_is_merged(
    fill: Fill, place: RedshiftPlace
) -> None:
    fill.load(fill.commit([row(3)]))
    fill.warehouse = after_copy(place, 'DELETE FROM "floodmark_stage" WHERE id = 1')
    with pytest.raises(DataError, match="floodmark_stage has 1 rows, but the commits have 2"):
        fill.load(fill.commit([row(1), row(2)]))
    far = "161065-10-07 00:00:00"
    fill.warehouse = after_copy(place, f"UPDATE \"floodmark_stage\" SET update_at = '{far}'")
    with pytest.raises(DataError, match="column update_at has a different range"):
        fill.load(fill.commit([row(1), row(2)]))
    assert fill.rows("id") == [(3,)]
