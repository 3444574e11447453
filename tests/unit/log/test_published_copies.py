"""The three copies of the watermark: what is published, when, and how failures and unreachable stages show."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from floodmark.config.load import StoreSpec
from floodmark.host.retry import Retries
from floodmark.log.claim import claim
from floodmark.log.copies import Publisher, examine, parse, render
from floodmark.log.document import (
    Copy,
    Flaw,
    StageFailure,
    commit_path,
    daily_path,
    document,
    observe,
    primary_path,
    session_path,
)
from floodmark.log.fold import State
from floodmark.log.log import Log, draft
from floodmark.model.commit import Batch, Open, Reset
from floodmark.model.errors import TransientError
from floodmark.model.run import Stage
from floodmark.model.times import stamp
from floodmark.store.store import Store
from tests.support.samples import RUN, TABLE, History, at, files, window
from tests.support.watermark_copies import FIELDS, synced, uri

EXTRACT: tuple[Stage, ...] = ("extract",)
LOAD: tuple[Stage, ...] = ("load",)


class Recording(Store):
    """A store that remembers what was written, and refuses some of it."""

    def __init__(self, spec: StoreSpec) -> None:
        super().__init__(spec)
        self.writes: list[str] = []
        self.refuse: dict[str, int] = {}

    def put(self, path: str, data: bytes | bytearray | memoryview | Path) -> None:
        self.writes.append(path)
        for prefix, left in self.refuse.items():
            if path.startswith(prefix) and left:
                self.refuse[prefix] -= 1
                raise TransientError("the store is away")
        super().put(path, data)


@pytest.fixture
def store(tmp_path: Path) -> Recording:
    return Recording(StoreSpec(url=str(tmp_path)))


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("floodmark.log.copies.WRITING", Retries(3, 0.001))


@pytest.fixture
def watermark(store: Store) -> Publisher:
    return Publisher(store, TABLE.name, RUN)


def stored(store: Store, path: str) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(store.get(path) or b"")
    return body


def test_a_change_is_published_to_three_places(store: Recording, watermark: Publisher) -> None:
    history = synced()
    shown = watermark.publish(history.state, history.ledger())
    saved_at = shown["backup_metadata"]["saved_at"]
    paths = [primary_path(TABLE.name), daily_path(TABLE.name, saved_at), session_path(TABLE.name, RUN)]
    assert paths[0] == "watermark/tables/shop.orders.json"
    assert paths[1] == f"watermark/backups/daily/shop.orders_{saved_at[:10].replace('-', '')}.json"
    assert paths[2] == f"watermark/backups/sessions/{RUN}/shop.orders.json"
    for path in paths:
        body = stored(store, path)
        assert body.pop("checkpoint") and body == shown and list(body) == FIELDS
    assert shown["backup_metadata"] == {
        "saved_at": saved_at,
        "session_id": RUN,
        "backup_locations": ["primary", "daily", "session"],
    }


def test_nothing_is_written_when_nothing_changed(store: Recording, watermark: Publisher) -> None:
    history = synced()
    first = watermark.publish(history.state, history.ledger())
    store.writes.clear()
    assert watermark.publish(history.state, history.ledger()) == first
    assert Publisher(store, TABLE.name, "another").publish(history.state, history.ledger()) == first
    assert watermark.current(history.state, history.ledger()) == first
    assert not store.writes
    watermark.publish(history.add(Batch, files=files(1)), history.ledger())
    assert len(store.writes) == 3


@pytest.mark.parametrize(
    "where", ["watermark/tables/", "watermark/backups/daily/", "watermark/backups/sessions/"]
)
def test_a_copy_that_can_not_be_written_does_not_stop_the_others(
    where: str, store: Recording, watermark: Publisher, caplog: pytest.LogCaptureFixture
) -> None:
    history = synced()
    store.refuse[where] = 3
    watermark.publish(history.state, history.ledger())
    written = {item.path for item in store.list("watermark/")}
    assert len(written) == 2 and not any(path.startswith(where) for path in written)
    assert len(store.writes) == 5 and where in caplog.text
    # It is written the next time, although nothing else changed.
    watermark.publish(history.state, history.ledger())
    assert len(list(store.list("watermark/"))) == 3


def test_a_write_that_fails_twice_succeeds_the_third_time(
    store: Recording, watermark: Publisher, caplog: pytest.LogCaptureFixture
) -> None:
    store.refuse["watermark/tables/"] = 2
    watermark.publish(synced().state, [])
    assert store.get(primary_path(TABLE.name)) is not None and not caplog.text


def test_a_copy_that_reads_back_differently_is_written_again(tmp_path: Path) -> None:
    class Careless(Recording):
        def put(self, path: str, data: bytes | bytearray | memoryview | Path) -> None:
            assert isinstance(data, bytes)
            super().put(path, data if path in self.writes else data[: len(data) // 2])

    store = Careless(StoreSpec(url=str(tmp_path)))
    watermark = Publisher(store, TABLE.name, RUN)
    watermark.publish(synced().state, [])
    for item in store.list("watermark/"):
        assert parse(store.get(item.path), TABLE.name) is not None


@pytest.mark.parametrize(("told", "read"), [("md5", 0), ("another", 3)])
def test_a_copy_is_read_back_only_if_the_store_does_not_return_its_checksum(
    tmp_path: Path, told: str, read: int
) -> None:
    class Telling(Store):
        read = 0

        def put(self, path: str, data: bytes | bytearray | memoryview | Path) -> str:
            super().put(path, data)
            assert isinstance(data, bytes)
            return f'"{hashlib.md5(data).hexdigest() if told == "md5" else "1f3a-2"}"'

        def get(self, path: str, most: int | None = None) -> bytes | None:
            found = super().get(path, most)
            self.read += path.startswith("watermark/") and found is not None
            return found

    store = Telling(StoreSpec(url=str(tmp_path)))
    Publisher(store, TABLE.name, RUN).publish(synced().state, [])
    assert store.read == read and len(list(store.list("watermark/"))) == 3


def test_a_run_does_not_fetch_what_it_has_written_itself(tmp_path: Path) -> None:
    class Asked(Store):
        paths: ClassVar[list[str]] = []

        def get(self, path: str, most: int | None = None) -> bytes | None:
            self.paths.append(path)
            return super().get(path, most)

    store = Asked(StoreSpec(url=str(tmp_path)))
    log = Log(store, TABLE.name)
    taken = claim(log, log.read(), run=RUN, purpose="sync", table=TABLE)
    store.paths.clear()
    state = log.append(taken.state, draft(taken.state, Batch, RUN, files=files(1)))
    Publisher(store, TABLE.name, RUN, log=log).publish(state, [])
    made = [commit.n for commit, _ in log.made([0, 1, 2])]
    assert made == [0, 1, 2] and not [p for p in store.paths if p.startswith(("commits/", "leases/"))]
    taken.lease.release()
    published = parse(store.get(primary_path(TABLE.name)), TABLE.name)
    assert published is not None and len(published.tail) == 3
    store.delete([commit_path(TABLE.name, 2)])
    assert log.read() == state  # put back from the copy


def test_a_copy_survives_its_round_trip_and_no_other_table_accepts_it(store: Store) -> None:
    history = synced()
    seen = observe(history.state, history.ledger(), failure=StageFailure("load", "no", stamp()))
    data = render(document(seen, uri, {"saved_at": stamp()}), seen)
    copy = parse(data, TABLE.name)
    assert copy is not None and copy.checkpoint == seen
    assert parse(data, "shop.others") is None
    for cut in range(0, len(data) - 2, 97):
        assert parse(data[:cut], TABLE.name) is None
    assert parse(None, TABLE.name) is None


def test_a_copy_of_an_earlier_version_counts_and_one_of_a_later_version_does_not() -> None:
    """A field that was added since is missing in it; a field that is unknown here may change what the rest means."""
    history = synced()
    seen = observe(history.state, history.ledger())
    data = render(document(seen, uri, {"saved_at": stamp()}), seen)

    def altered(change: Callable[[dict[str, Any]], object]) -> bytes:
        body = json.loads(data)
        inner = body["checkpoint"]["body"]
        change(inner["state"])
        text = json.dumps(inner, ensure_ascii=False, separators=(",", ":")).encode()
        body["checkpoint"]["sum"] = hashlib.sha256(text).hexdigest()
        return json.dumps(body).encode()

    for change in (
        lambda inner: inner.pop("overlap"),
        lambda inner: inner["table"].update(notes=["update_at can be NULL."]),
        lambda inner: inner["table"].pop("notes"),
    ):
        earlier = examine(altered(change), TABLE.name)
        assert isinstance(earlier, Copy) and earlier.checkpoint == seen
    later = examine(altered(lambda inner: inner.update(new_field=1)), TABLE.name)
    assert later == Flaw("other_version", "of another version")


def test_without_a_ledger_the_load_stage_is_shown_as_it_was_last_known(
    store: Store, watermark: Publisher
) -> None:
    history = synced()
    known = watermark.publish(history.state, history.ledger())
    again = Publisher(store, TABLE.name, "later").current(history.state, None)
    assert again.pop("redshift_status_as_of") == known["backup_metadata"]["saved_at"]
    assert again == known
    history.add(Batch, files=files(5, prefix="new"))
    newer = Publisher(store, TABLE.name, "later").current(history.state, None)
    assert (newer["redshift_rows_loaded"], newer["redshift_status"]) == (100, "pending")
    assert len(newer["processed_s3_files"]) == 2 and len(newer["pending_s3_files"]) == 1
    assert (newer["mysql_rows_extracted"], newer["mysql_rows_reread"]) == (100, 5)


def test_without_a_ledger_a_reset_of_the_load_is_not_hidden_by_an_older_copy(watermark: Publisher) -> None:
    history = synced()
    watermark.publish(history.state, history.ledger())
    shown = watermark.current(history.add(Reset, stages=("load",)), None)
    assert (shown["redshift_rows_loaded"], shown["redshift_status"]) == (0, "pending")
    assert len(shown["pending_s3_files"]) == 2


def test_a_ledger_that_was_never_read_is_shown_as_unknown(watermark: Publisher) -> None:
    shown = watermark.current(synced().state, None)
    assert shown["redshift_status_as_of"] is None and shown["redshift_status"] == "pending"


def test_a_failure_is_shown_until_its_stage_succeeds(store: Store, watermark: Publisher) -> None:
    history = synced()
    failure = StageFailure("load", "the warehouse is locked", stamp())
    shown = watermark.publish(history.state, [], failure=failure)
    assert (shown["mysql_status"], shown["redshift_status"]) == ("success", "failed")
    assert shown["last_error"] == "the warehouse is locked" and shown["updated_at"] == failure.at
    later = Publisher(store, TABLE.name, "later")
    shown = later.publish(history.state, [], succeeded=EXTRACT)
    assert (shown["redshift_status"], shown["last_error"]) == ("failed", "the warehouse is locked")
    shown = later.publish(history.state, history.ledger(), succeeded=("extract", "load"))
    assert (shown["redshift_status"], shown["last_error"]) == ("success", None)
    assert stored(store, primary_path(TABLE.name))["last_error"] is None


def test_a_success_that_was_never_published_ends_a_failure_too(watermark: Publisher) -> None:
    history = synced()
    old = "2020-01-01T00:00:00.000000Z"
    watermark.publish(history.state, [], failure=StageFailure("load", "no warehouse", stamp()))
    assert watermark.current(history.state, history.ledger())["last_error"] is None
    watermark.publish(history.state, history.ledger(), failure=StageFailure("extract", "no source", old))
    assert watermark.current(history.state, history.ledger())["mysql_status"] == "success"


def test_a_failure_of_each_stage_is_kept_apart(watermark: Publisher) -> None:
    history = History()
    history.claim(window=window("w", None, (at(1, 1),), at(2, 2)))
    history.add(Batch, window_id="w", slices=(0,), files=files(1))
    watermark.publish(
        history.state, [], failure=StageFailure("extract", "no source", "2098-01-01T00:00:00.000000Z")
    )
    shown = watermark.publish(
        history.state, [], failure=StageFailure("load", "no warehouse", "2098-01-02T00:00:00.000000Z")
    )
    assert (shown["mysql_status"], shown["redshift_status"], shown["last_error"]) == (
        "failed", "failed", "no warehouse",
    )  # fmt: skip
    shown = watermark.publish(history.state, [], succeeded=LOAD)
    assert (shown["mysql_status"], shown["redshift_status"], shown["last_error"]) == (
        "failed", "pending", "no source",
    )  # fmt: skip


def test_a_slower_thread_does_not_revert_the_copies(store: Store, watermark: Publisher) -> None:
    history = synced()
    before, ledger = history.state, history.ledger()
    watermark.publish(history.add(Batch, files=files(1)), None)
    shown = watermark.publish(before, ledger)
    assert shown["commit"] == 3 and shown["redshift_rows_loaded"] == 100
    assert len(shown["pending_s3_files"]) == 1


def test_a_first_failure_before_any_commit_leaves_the_table_without_state(
    store: Store, watermark: Publisher
) -> None:
    shown = watermark.publish(
        State(TABLE.name), None, failure=StageFailure("extract", "access denied", stamp())
    )
    assert (shown["commit"], shown["mysql_status"], shown["last_error"]) == (None, "failed", "access denied")
    log = Log(store, TABLE.name)
    assert log.read() == State(TABLE.name)
    state = log.append(log.read(), draft(log.read(), Open, RUN))
    assert log.read() == state
