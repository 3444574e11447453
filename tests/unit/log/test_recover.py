"""Whatever happens to copies, the state is recovered exactly and cheaply, even by a read-only user."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from floodmark.config.load import StoreSpec
from floodmark.log.copies import Publisher, examine
from floodmark.log.document import Copy, commit_path, primary_path
from floodmark.log.fold import State
from floodmark.log.log import Log, draft
from floodmark.log.recovery import recoveries
from floodmark.model.commit import Batch
from floodmark.model.times import stamp
from floodmark.store.store import Store
from tests.support.samples import RUN, files
from tests.support.watermark_copies import (
    HARMS,
    NAME,
    OTHER,
    Counting,
    batches,
    claimed,
    content,
    copies,
    ledger,
    published,
)


@pytest.fixture
def store(tmp_path: Path) -> Counting:
    return Counting(StoreSpec(url=str(tmp_path)))


WHERE = ["primary", "daily", "session", "all three", "the newest commit", "the primary and the newest commit"]


def test_a_new_table_is_looked_for_once_in_each_place(tmp_path: Path) -> None:
    store = Counting(StoreSpec(url=str(tmp_path)))
    assert Log(store, NAME).read().n == -1
    assert store.lists == [f"watermark/backups/daily/{NAME}_"]
    assert store.listed_folders == [("commits/", "data/", "keys/", "watermark/backups/sessions/")]
    assert len(store.reads) == len(set(store.reads)) == 2


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("where", WHERE)
def test_after_any_damage_the_state_is_exact_and_everything_is_repaired(
    where: str, harm: str, store: Counting
) -> None:
    log, state = published(store)
    published(store, OTHER, 7)
    before = content(store, f"commits/{NAME}/")
    commit = commit_path(NAME, state.n)
    places = copies(store)
    hit = {
        "all three": list(places),
        "the newest commit": ["commit"],
        "the primary and the newest commit": ["primary", "commit"],
    }.get(where, [where])
    for place in hit:
        others = copies(store, OTHER) | {"commit": commit_path(OTHER, state.n)}
        HARMS[harm](store, places.get(place, commit), store.get(others[place]) or b"")
    found = Log(store, NAME)
    assert found.read() == state
    assert content(store, f"commits/{NAME}/") == before
    primary = examine(store.get(primary_path(NAME)), NAME)
    assert isinstance(primary, Copy) and primary.checkpoint.state == state
    noticed = where not in ("daily", "session")
    assert len(recoveries(store, NAME)) == (1 if noticed else 0)
    assert bool(found.findings) == ("commit" in where)
    # Once is enough, and the table continues.
    store.writes.clear()
    assert Log(store, NAME).read() == state and not store.writes
    assert claimed(log, "next").n == state.n + 1


def test_a_recovery_is_recorded_with_what_was_wrong_and_from_where(store: Store) -> None:
    _, state = published(store)
    store.put(primary_path(NAME), b"{}")
    Log(store, NAME).read()
    (record,) = recoveries(store, NAME)
    assert record.success is True and record.source == "daily" and record.commit == state.n
    assert record.copy == copies(store)["daily"] and 0 <= record.seconds < 10
    assert record.wrong == (f"{primary_path(NAME)}: not a watermark",)
    assert record.done == ("primary copy restored",)


def test_a_recovery_is_logged_but_not_shown_to_the_user(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    published(store)
    store.delete([primary_path(NAME)])
    with caplog.at_level("INFO", "floodmark"):
        Log(store, NAME).read()
    (line,) = [r for r in caplog.records if "recovered from" in r.getMessage()]
    assert line.levelname == "INFO" and "missing" in line.getMessage()


def test_a_daily_copy_from_before_a_hundred_commits_recovers_to_the_last_one(store: Counting) -> None:
    log, state = published(store)
    state = batches(log, state, 100)
    store.delete([copies(store)[place] for place in ("primary", "session")])
    assert Log(store, NAME).read() == state
    (record,) = recoveries(store, NAME)
    assert record["source"] == "daily" and record["commit"] == state.n
    restored = examine(store.get(primary_path(NAME)), NAME)
    assert isinstance(restored, Copy) and restored.checkpoint.state == state


def test_the_newest_sound_copy_is_used(store: Store) -> None:
    _, state = published(store)
    daily = copies(store)["daily"]
    yesterday = daily[:-13] + "20250101.json"
    store.put(yesterday, store.get(daily) or b"")
    store.put(daily, b"\x00")
    store.delete([primary_path(NAME)])
    assert Log(store, NAME).read() == state
    assert recoveries(store, NAME)[0]["copy"] == yesterday


def test_a_copy_of_a_table_with_the_same_prefix_is_not_used(store: Store) -> None:
    published(store, "shop.t_20250101")
    log = Log(store, "shop.t")
    assert log.read() == State("shop.t")


def test_what_was_known_of_the_load_stage_survives_a_recovery(store: Store) -> None:
    _, state = published(store)
    store.delete([primary_path(NAME)])
    state = Log(store, NAME).read()
    shown = Publisher(store, NAME, "later").current(state, None)
    assert (shown["redshift_rows_loaded"], shown["redshift_rows_reloaded"]) == (3, 5)
    assert shown["redshift_status"] == "success"
    assert shown["redshift_status_as_of"]


def change(body: dict[str, Any], **fields: Any) -> bytes:
    return json.dumps(body | fields).encode()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"mysql_rows_extracted": -5}, "changed by hand: mysql_rows_extracted"),
        ({"last_mysql_data_timestamp": "2099-01-01T00:00:00.000000"}, "changed by hand"),
        ({"updated_at": "2099-01-01T00:00:00.000000Z"}, "changed by hand"),
        ({"commit": 99}, "changed by hand: commit"),
        ({"table_name": OTHER}, f"the watermark of {OTHER}"),
        ({"backup_metadata": {"saved_at": "yesterday"}}, "unreadable"),
        ({"backup_metadata": {"saved_at": stamp(datetime.now(UTC) + timedelta(hours=1))}}, "in the future"),
        ({"checkpoint": None}, "unreadable"),
    ],
)
def test_an_implausible_copy_is_not_used(fields: dict[str, Any], why: str, store: Store) -> None:
    _, state = published(store)
    path = primary_path(NAME)
    body = json.loads(store.get(path) or b"")
    assert isinstance(examine(json.dumps(body).encode(), NAME), Copy)
    store.put(path, change(body, **fields))
    assert why in str(examine(store.get(path), NAME))
    assert Log(store, NAME).read() == state
    assert why in str(recoveries(store, NAME)[0]["wrong"])


def test_a_clock_slightly_ahead_does_no_harm(store: Store) -> None:
    published(store)
    body = json.loads(store.get(primary_path(NAME)) or b"")
    body["backup_metadata"]["saved_at"] = stamp(datetime.now(UTC) + timedelta(minutes=20))
    assert isinstance(examine(json.dumps(body).encode(), NAME), Copy)


def test_a_copy_of_another_log_of_the_same_table_is_not_used(store: Store, tmp_path: Path) -> None:
    _, state = published(store)
    elsewhere = Store(StoreSpec(url=str(tmp_path / "elsewhere")))
    published(elsewhere, count=30)
    for path in copies(store).values():
        store.put(path, elsewhere.get(copies(elsewhere)["primary"]) or b"")
    assert Log(store, NAME).read() == state
    assert "another log" in str(recoveries(store, NAME)[0]["wrong"])


# what it costs, and who may do it


def test_reading_a_log_of_thousands_fetches_a_handful_of_objects(store: Counting) -> None:
    log, state = published(store, count=1500)
    state = batches(log, state, 1)
    store.reads.clear()
    assert Log(store, NAME).read() == state
    assert len(store.reads) <= 4
    watermark = Publisher(store, NAME, "later")
    watermark.publish(state, ledger(state))
    state = batches(log, state, 1)
    store.reads.clear()
    watermark.publish(state, ledger(state))
    assert len([p for p in store.reads if p.startswith("commits/")]) == 1


def test_a_copy_carries_few_commits_however_long_the_log_is(store: Store) -> None:
    _, state = published(store, count=300)
    copy = examine(store.get(primary_path(NAME)), NAME)
    assert isinstance(copy, Copy)
    assert 10 < len(copy.tail) <= 40 and sum(map(len, copy.tail[:-1])) <= 64_000
    assert json.loads(copy.tail[-1])["n"] == state.n


def test_a_huge_commit_is_carried_all_the_same(store: Store) -> None:
    log, state = published(store)
    state = log.append(state, draft(state, Batch, RUN, files=files(*[1] * 900, prefix="huge")))
    Publisher(store, NAME, RUN).publish(state, [])
    whole = store.get(commit_path(NAME, state.n)) or b""
    assert len(whole) > 100_000
    store.delete([commit_path(NAME, state.n)])
    assert Log(store, NAME).read() == state and store.get(commit_path(NAME, state.n)) == whole


def test_a_read_only_user_can_recover_too(store: Counting) -> None:
    _, state = published(store)
    store.delete([primary_path(NAME)])
    store.read_only = True
    assert Log(store, NAME).read() == state


def test_a_read_without_repairs_writes_nothing(store: Counting) -> None:
    _, state = published(store)
    store.delete([primary_path(NAME), commit_path(NAME, state.n)])
    store.writes.clear()
    assert Log(store, NAME, repairs=False).read() == state
    assert not store.writes and not recoveries(store, NAME)


def test_two_readers_that_recover_at_once_agree(store: Store) -> None:
    _, state = published(store)
    store.delete([primary_path(NAME), commit_path(NAME, state.n)])
    assert [Log(store, NAME).read() for _ in range(2)] == [state, state]


def test_a_damaged_record_is_left_out(store: Store) -> None:
    published(store)
    store.put(f"watermark/recoveries/{NAME}/20250101_000000_000000_aaaa.json", b"?")
    assert recoveries(store, NAME) == []


@pytest.mark.parametrize("later", ["0001", "ffff"])
def test_of_two_runs_that_began_in_one_second_the_later_copy_counts(store: Counting, later: str) -> None:
    log, state = published(store)
    state = batches(log, claimed(log, run := f"{RUN[:16]}{later}"), 2)
    Publisher(store, NAME, run).publish(state, ledger(state))
    lost = [o.path for o in store.list("") if "/sessions/" not in o.path]
    store.delete(lost)
    assert Log(store, NAME).read() == state
