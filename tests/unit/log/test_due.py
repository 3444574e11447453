"""Publications that wait: a later one overtakes them, none stays away for long, and none survives a lost table."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from floodmark.config.load import StoreSpec
from floodmark.log import copies
from floodmark.log.claim import HeldTable
from floodmark.log.copies import Publisher
from floodmark.log.document import StageFailure, primary_path
from floodmark.log.log import draft
from floodmark.model.commit import Batch
from floodmark.model.errors import ConflictError
from floodmark.model.run import EXTRACT, LOAD
from floodmark.model.times import stamp
from floodmark.model.window import Intent
from floodmark.store.store import Store
from tests.support.samples import RUN, TABLE, files
from tests.support.watermark_copies import synced


class Counting(Store):
    """A store that counts writes of copies."""

    copies = 0

    def put(self, path: str, data: bytes | bytearray | memoryview | Path) -> None:
        self.copies += path.startswith("watermark/")
        super().put(path, data)


@pytest.fixture
def store(tmp_path: Path) -> Counting:
    return Counting(StoreSpec(url=str(tmp_path)))


@pytest.fixture
def watermark(store: Store) -> Publisher:
    return Publisher(store, TABLE.name, RUN)


def published(store: Store) -> int | None:
    """The commit that the primary copy shows."""
    data = store.get(primary_path(TABLE.name))
    return None if data is None else json.loads(data)["commit"]


def eventually(true: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + 10
    while not true() and time.monotonic() < deadline:
        time.sleep(0.01)
    return true()


def test_a_publication_that_follows_saves_the_one_that_waits(store: Counting, watermark: Publisher) -> None:
    history = synced()
    watermark.publish_soon(history.state, None, succeeded=EXTRACT)
    assert published(store) is None
    watermark.publish(history.state, history.ledger(), succeeded=LOAD)
    assert published(store) == 2 and store.copies == 3
    watermark.publish_due()
    assert store.copies == 3


def test_a_publication_waits_for_two_seconds_at_most(
    store: Counting, watermark: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert copies.SOON <= 2
    monkeypatch.setattr(copies, "SOON", 0.05)
    history = synced()
    watermark.publish_soon(history.state, None)
    later = history.add(Batch, files=files(1))
    watermark.publish_soon(later, None)
    assert eventually(lambda: published(store) == 3 and store.copies == 3)


def test_a_load_of_earlier_commits_publishes_the_newer_one_that_waits(
    store: Counting, watermark: Publisher
) -> None:
    history = synced()
    loading, ledger = history.state, history.ledger()
    watermark.publish_soon(history.add(Batch, files=files(1)), None)
    shown = watermark.publish(loading, ledger)
    assert shown["commit"] == 3 and len(shown["pending_s3_files"]) == 1


def test_a_success_that_waits_is_not_forgotten_by_a_failure_of_the_other_stage(watermark: Publisher) -> None:
    history = synced()
    later = "2099-01-01T00:00:00.000000Z"  # so that no commit overcomes it
    watermark.publish(history.state, None, failure=StageFailure("extract", "no source", later))
    watermark.publish_soon(history.state, None, succeeded=EXTRACT)
    shown = watermark.publish(history.state, None, failure=StageFailure("load", "no warehouse", stamp()))
    assert (shown["mysql_status"], shown["redshift_status"]) == ("success", "failed")
    assert [f.message for f in watermark.failures] == ["no warehouse"]


def due_in(store: Store) -> HeldTable:
    """A table that a run holds, with a commit that is to be published."""
    held = HeldTable(store, TABLE.name, RUN)
    held.read()
    held.claim(Intent("sync", TABLE))
    held.append(draft(held.state, Batch, RUN, files=files(1)))
    held.watermark.publish_soon(held.state, None)
    return held


def taken_over(held: HeldTable, store: Store) -> HeldTable:
    """The same table, held and published by another run, of which the first one knows nothing."""
    other = HeldTable(store, TABLE.name, "20260101_000000_next")
    other.read()
    assert held.lease is not None
    held.lease.release()
    other.claim(Intent("sync", TABLE))
    other.watermark.publish(other.state, None)
    return other


def test_a_table_is_released_only_with_everything_published(store: Counting) -> None:
    held = due_in(store)
    assert published(store) is None
    held.release()
    assert published(store) == 2


def test_a_run_that_lost_its_table_leaves_the_copies_to_its_successor(store: Counting) -> None:
    held = due_in(store)
    other = taken_over(held, store)
    with pytest.raises(ConflictError):
        held.append(draft(held.state, Batch, RUN, files=files(1)))
    held.release()
    assert published(store) == 3
    other.release()


def test_a_run_that_was_paused_for_long_leaves_the_copies_to_its_successor(
    store: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = due_in(store)
    other = taken_over(held, store)
    monkeypatch.setattr(copies, "LATE", -1.0)  # as if the process had slept
    held.release()
    assert published(store) == 3
    other.release()
