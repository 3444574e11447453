"""Whatever happens to copies and commits: the state is recovered exactly, or the command stops. Never a guess."""

import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from floodmark.errors import ConfigError, DataError
from floodmark.state import Claimed, Log, State, Watermark, claim, commit_path, draft, examine, primary_path
from floodmark.state.fold import Damaged, NothingLeft
from floodmark.state.recover import recoveries
from floodmark.state.watermark import Copy, stamp
from floodmark.store import Object, Store, StoreSpec
from floodmark.testing.samples import RUN, TABLE, Row, at, files, window
from floodmark.watermarks import tables

NAME = TABLE.name
OTHER = "shop.others"


class Counting(Store):
    """A store that counts what is asked of it, and may refuse to be written to."""

    def __init__(self, spec: StoreSpec) -> None:
        super().__init__(spec)
        self.reads: list[str] = []
        self.writes: list[str] = []
        self.lists: list[str] = []
        self.read_only = False

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[Object]:
        self.lists.append(prefix)
        return super().list(prefix, start_after)

    def get(self, path: str, most: int | None = None) -> bytes | None:
        self.reads.append(path)
        return super().get(path, most)

    def put(self, path: str, data: Any) -> None:
        if self.read_only:
            raise ConfigError("access denied")
        self.writes.append(path)
        super().put(path, data)

    def create(self, path: str, data: bytes) -> bool:
        self.writes.append(path)
        return super().create(path, data)


@pytest.fixture
def store(tmp_path: Path) -> Counting:
    return Counting(StoreSpec(url=str(tmp_path)))


def claimed(log: Log, run: str = RUN, **more: Any) -> State:
    state = log.read()
    if state.n < 0:
        state = log.append(state, draft(state, "open", run))
    return log.append(state, draft(state, "claim", run, table=TABLE, purpose="sync", **more))


def batches(log: Log, state: State, count: int, rows: int = 1) -> State:
    for _ in range(count):
        named = files(rows, prefix=f"b{state.n}")
        state = log.append(state, draft(state, "batch", state.claim.run if state.claim else RUN, files=named))
    return state


def ledger(state: State) -> list[Row]:
    return [Row(d.n, d.digest, state.load_epoch, d.rows, d.files, stamp()) for d in state.data]


def published(store: Store, name: str = NAME, count: int = 5) -> tuple[Log, State]:
    """A table that was read up to second 42, key 7, with some more commits, published to its three places."""
    log = Log(store, name, pause=0.001)
    table = TABLE if name == NAME else None
    span = window("w", None, (), at(42, 7))
    taken = claim(log, log.read(), run=RUN, table=table, purpose="sync", window=span)
    assert isinstance(taken, Claimed)
    with taken.lease:
        first = draft(taken.state, "batch", RUN, window_id="w", slices=(0,), files=files(3, prefix="w"))
        state = batches(log, log.append(taken.state, first), count)
        Watermark(store, name, RUN).publish(state, ledger(state))
    return log, state


def copies(store: Store, name: str = NAME) -> dict[str, str]:
    """The paths of the three copies."""
    found = [o.path for o in store.list("watermark/") if name in o.path and "recoveries" not in o.path]
    return {"primary": found[2], "daily": found[0], "session": found[1]}


def content(store: Store, prefix: str) -> dict[str, bytes | None]:
    return {o.path: store.get(o.path) for o in store.list(prefix)}


Harm = Callable[[Store, str, bytes], None]
HARMS: dict[str, Harm] = {
    "deleted": lambda store, path, other: store.delete([path]),
    "truncated": lambda store, path, other: store.put(path, (store.get(path) or b"")[:-40]),
    "empty": lambda store, path, other: store.put(path, b""),
    "random bytes": lambda store, path, other: store.put(path, os.urandom(500)),
    "another table's": lambda store, path, other: store.put(path, other),
}
WHERE = ["primary", "daily", "session", "all three", "the newest commit", "the primary and the newest commit"]


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("where", WHERE)
def test_after_any_harm_the_state_is_exact_and_all_is_mended(
    where: str, harm: str, store: Counting, tmp_path: Path
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
    # Once is enough, and the table goes on.
    store.writes.clear()
    assert Log(store, NAME).read() == state and not store.writes
    assert claimed(log, "next").n == state.n + 1


def test_a_recovery_is_recorded_with_what_was_wrong_and_from_where(store: Store) -> None:
    _, state = published(store)
    store.put(primary_path(NAME), b"{}")
    Log(store, NAME).read()
    (record,) = recoveries(store, NAME)
    assert record["success"] is True and record["source"] == "daily" and record["commit"] == state.n
    assert record["copy"] == copies(store)["daily"] and 0 <= float(str(record["seconds"])) < 10
    assert record["wrong"] == (f"{primary_path(NAME)}: not a watermark",)
    assert record["done"] == ("primary copy restored",)


def test_a_recovery_is_logged_but_the_user_is_not_bothered(
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


def test_the_newest_sound_copy_is_taken(store: Store) -> None:
    _, state = published(store)
    daily = copies(store)["daily"]
    yesterday = daily[:-13] + "20250101.json"
    store.put(yesterday, store.get(daily) or b"")
    store.put(daily, b"\x00")
    store.delete([primary_path(NAME)])
    assert Log(store, NAME).read() == state
    assert recoveries(store, NAME)[0]["copy"] == yesterday


def test_a_table_whose_name_begins_alike_lends_no_copy(store: Store) -> None:
    published(store, "shop.t_20250101")
    log = Log(store, "shop.t")
    assert log.read() == State("shop.t")


def test_what_was_known_of_the_load_stage_survives_a_recovery(store: Store) -> None:
    _, state = published(store)
    store.delete([primary_path(NAME)])
    state = Log(store, NAME).read()
    shown = Watermark(store, NAME, "later").current(state, None)
    assert shown["redshift_rows_loaded"] == 8 and shown["redshift_status"] == "success"
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
def test_a_copy_that_can_not_be_true_is_not_believed(fields: dict[str, Any], why: str, store: Store) -> None:
    _, state = published(store)
    path = primary_path(NAME)
    body = json.loads(store.get(path) or b"")
    assert isinstance(examine(json.dumps(body).encode(), NAME), Copy)
    store.put(path, change(body, **fields))
    assert why in str(examine(store.get(path), NAME))
    assert Log(store, NAME).read() == state
    assert why in str(recoveries(store, NAME)[0]["wrong"])


def test_a_clock_that_is_a_little_ahead_does_no_harm(store: Store) -> None:
    published(store)
    body = json.loads(store.get(primary_path(NAME)) or b"")
    body["backup_metadata"]["saved_at"] = stamp(datetime.now(UTC) + timedelta(minutes=20))
    assert isinstance(examine(json.dumps(body).encode(), NAME), Copy)


def test_a_copy_of_another_log_of_the_same_table_is_not_believed(store: Store, tmp_path: Path) -> None:
    _, state = published(store)
    elsewhere = Store(StoreSpec(url=str(tmp_path / "elsewhere")))
    published(elsewhere, count=30)
    for path in copies(store).values():
        store.put(path, elsewhere.get(copies(elsewhere)["primary"]) or b"")
    assert Log(store, NAME).read() == state
    assert "another log" in str(recoveries(store, NAME)[0]["wrong"])


# the log


def test_a_log_that_is_gone_is_put_back_byte_for_byte(store: Store) -> None:
    _, state = published(store)
    before = content(store, f"commits/{NAME}/")
    store.delete(before)
    log = Log(store, NAME)
    assert log.read() == state
    assert content(store, f"commits/{NAME}/") == before
    (finding,) = log.findings
    assert finding.kind == "damaged_log" and finding.more["lost"] == []


def test_a_log_that_is_gone_goes_on_from_the_copy_though_older_commits_are_lost(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floodmark.state.publish.TAIL_COMMITS", 3)
    _, state = published(store)
    newest = store.get(commit_path(NAME, state.n))
    store.delete(content(store, f"commits/{NAME}/"))
    log = Log(store, NAME)
    assert log.read() == state and state.n == 7
    assert store.get(commit_path(NAME, state.n)) == newest
    assert log.findings[0].more["lost"] == [0, 1, 2, 3, 4]
    after = batches(log, claimed(log, "next"), 1)
    assert Log(store, NAME).read() == after


def test_older_sessions_put_back_what_the_newest_copy_no_longer_carries(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floodmark.state.publish.TAIL_COMMITS", 5)
    log = Log(store, NAME)
    for run in ("20250819_150000_aaaa", "20250819_160000_bbbb", "20250819_170000_cccc"):
        state = batches(log, claimed(log, run), 3)
        Watermark(store, NAME, run).publish(state, [])
    before = content(store, f"commits/{NAME}/")
    store.delete(before)
    assert Log(store, NAME).read() == state
    assert content(store, f"commits/{NAME}/") == before


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("n", [0, 1, 3])
def test_a_commit_in_the_middle_is_put_back_when_it_is_needed(n: int, harm: str, store: Store) -> None:
    _, state = published(store)
    published(store, OTHER)
    whole = store.get(commit_path(NAME, n))
    HARMS[harm](store, commit_path(NAME, n), store.get(commit_path(OTHER, n)) or b"")
    log = Log(store, NAME)
    assert log.read() == state
    log.commit(n)
    assert store.get(commit_path(NAME, n)) == whole and log.findings[0].kind == "damaged_log"
    store.delete(copies(store).values())
    assert Log(store, NAME).read() == state


def test_a_commit_that_was_changed_is_told_from_the_one_after_it(store: Store) -> None:
    """Valid JSON, one figure changed: the next commit's digest proves which of the two is wrong."""
    log, state = published(store)
    whole = store.get(commit_path(NAME, 4)) or b""
    store.put(commit_path(NAME, 4), whole.replace(b'"rows":1', b'"rows":2'))
    assert store.get(commit_path(NAME, 4)) != whole
    assert log.fold_on(State(NAME)) == state
    assert store.get(commit_path(NAME, 4)) == whole


def test_the_newest_commit_changed_by_one_figure_is_put_back(store: Store) -> None:
    _, state = published(store)
    path = commit_path(NAME, state.n)
    whole = store.get(path) or b""
    store.put(path, whole.replace(b'"rows":1', b'"rows":2'))
    assert Log(store, NAME).read() == state and store.get(path) == whole


def test_commits_that_were_never_published_can_not_be_recovered_and_nothing_is_guessed(store: Store) -> None:
    log, state = published(store)
    batches(log, state, 3)
    store.put(commit_path(NAME, state.n + 2), b"\x00")
    with pytest.raises(Damaged) as caught:
        Log(store, NAME).read()
    assert caught.value.code == 6 and f"reset -t {NAME} --force" in (caught.value.hint or "")


def test_a_copy_that_knows_more_than_the_log_is_never_passed_over(store: Store) -> None:
    """Neither it nor another copy carries the lost commit: going on from the log alone would forget it."""
    log, state = published(store)
    for path in copies(store).values():
        body = json.loads(store.get(path) or b"")
        body["checkpoint"]["commits"] = []
        store.put(path, json.dumps(body).encode())
    store.delete([commit_path(NAME, state.n)])
    for _ in range(2):
        with pytest.raises(Damaged, match="is gone"):
            Log(store, NAME).read()
    # One record a day for one cause, however often it is met.
    (record,) = recoveries(store, NAME)
    assert record["success"] is False and log.numbers()[-1] == state.n - 1


def test_a_damaged_log_is_begun_anew_only_when_forced_and_is_kept_aside(store: Store) -> None:
    log, state = published(store)
    state = batches(log, state, 2)
    store.put(commit_path(NAME, state.n - 1), b"?")  # newer than every copy
    with pytest.raises(Damaged):
        log.begin()
    assert log.begin(force=True) == State(NAME)
    # The copies are out of the way too: none of them brings a part of the old log back.
    assert not log.numbers() and not content(store, "watermark/tables/") and log.read() == State(NAME)
    assert len(list(store.list(f"damaged/{NAME}/"))) == state.n + 1 + 3


# nothing left


def test_a_table_that_never_had_state_is_new_and_costs_little(store: Counting) -> None:
    for hour in range(24):
        for minute in range(0, 60, 5):
            store.put(f"watermark/backups/sessions/20250819_{hour:02}{minute:02}00_ab12/{OTHER}.json", b"{}")
    store.writes.clear()
    assert Log(store, NAME).read() == State(NAME)
    assert not store.writes and len(store.reads) < 80


def test_tables_are_found_without_listing_their_commits(store: Counting) -> None:
    published(store, count=20)
    published(store, OTHER)
    store.delete(content(store, f"commits/{OTHER}/"))
    store.put("watermark/tables/shop_legacy.json", b"{}")  # the older tool's
    store.put("commits/a%20b.c/0.json", b"{}")
    store.lists.clear()
    assert tables(store) == ["a b.c", NAME, OTHER]
    assert store.lists == ["watermark/tables/"]


def test_data_files_without_a_log_or_a_copy_stop_with_the_commands_to_use(store: Store) -> None:
    log, _ = published(store)
    store.put(f"data/{NAME}/{RUN}/1-window0-aa-0.parquet", b"PAR1")
    store.delete([*content(store, "commits/"), *content(store, "watermark/")])
    with pytest.raises(NothingLeft) as caught:
        log.read()
    assert caught.value.code == 6
    for command in ("watermark set", "restore", "--file", "reset"):
        assert command in (caught.value.hint or "")
    assert log.begin() == State(NAME)
    claim(log, log.begin(), run="next", purpose="set")
    assert log.read().n == 1


def test_only_damaged_copies_stop_too(store: Store) -> None:
    published(store)
    store.delete(content(store, "commits/"))
    for path in copies(store).values():
        store.put(path, b"\x00")
    with pytest.raises(DataError, match="damaged watermark copies"):
        Log(store, NAME).read()


def test_a_first_run_that_has_not_published_yet_is_no_recovery(store: Counting) -> None:
    log = Log(store, NAME)
    taken = claim(log, log.read(), run=RUN, purpose="sync", table=TABLE)
    assert isinstance(taken, Claimed)
    with taken.lease:
        state = batches(log, taken.state, 1)
        store.writes.clear()
        assert Log(store, NAME).read() == state and not store.writes
    assert Log(store, NAME).read() == state
    assert [r["source"] for r in recoveries(store, NAME)] == ["log"]


# what it costs, and who may do it


def test_reading_a_log_of_thousands_asks_for_a_handful_of_objects(store: Counting) -> None:
    log, state = published(store, count=1500)
    state = batches(log, state, 1)
    store.reads.clear()
    assert Log(store, NAME).read() == state
    assert len(store.reads) <= 4
    watermark = Watermark(store, NAME, "later")
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
    state = log.append(state, draft(state, "batch", RUN, files=files(*[1] * 900, prefix="huge")))
    Watermark(store, NAME, RUN).publish(state, [])
    whole = store.get(commit_path(NAME, state.n)) or b""
    assert len(whole) > 100_000
    store.delete([commit_path(NAME, state.n)])
    assert Log(store, NAME).read() == state and store.get(commit_path(NAME, state.n)) == whole


def test_who_may_only_read_recovers_all_the_same(store: Counting) -> None:
    _, state = published(store)
    store.delete([primary_path(NAME)])
    store.read_only = True
    assert Log(store, NAME).read() == state


def test_a_look_that_mends_nothing_writes_nothing(store: Counting) -> None:
    _, state = published(store)
    store.delete([primary_path(NAME), commit_path(NAME, state.n)])
    store.writes.clear()
    assert Log(store, NAME, mend=False).read() == state
    assert not store.writes and not recoveries(store, NAME)


def test_two_readers_that_recover_at_once_agree(store: Store) -> None:
    _, state = published(store)
    store.delete([primary_path(NAME), commit_path(NAME, state.n)])
    assert [Log(store, NAME).read() for _ in range(2)] == [state, state]


def test_a_record_that_is_damaged_is_left_out(store: Store) -> None:
    published(store)
    store.put(f"watermark/recoveries/{NAME}/20250101_000000_000000_aaaa.json", b"?")
    assert recoveries(store, NAME) == []
