"""A table's current activity, and when a sync last looked at it."""

from pathlib import Path

import pytest

from floodmark.config.load import StoreSpec
from floodmark.log.claim import claim
from floodmark.log.copies import Publisher
from floodmark.log.document import StageFailure
from floodmark.log.lease import Holder, activity, holder
from floodmark.log.log import Log, draft
from floodmark.model.commit import Batch, Owner
from floodmark.store.store import Store
from tests.support.samples import RUN, TABLE, History, at, files, window
from tests.support.watermark_copies import synced

OWNER = Owner("db1", "boot", 12, "7")
ALIVE = Holder(RUN, OWNER, "sync", "2099", True)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(StoreSpec(url=str(tmp_path)))


def test_a_table_that_nobody_holds_is_idle() -> None:
    assert set(activity(synced().state, None).values()) == {"idle", None}
    dead = Holder(RUN, OWNER, "sync", "2020", False)
    assert activity(synced().state, dead)["state"] == "idle"


def test_a_live_lease_is_a_run_with_its_host_and_the_rows_that_it_has_committed() -> None:
    history = History()
    history.claim(window=window("w", None, (at(10, 1),), at(42, 7)))
    assert activity(history.state, ALIVE)["rows"] == 0
    history.add(Batch, window_id="w", slices=(0,), files=files(5))
    since = history.commits[1][0].at
    shown = {
        "state": "running",
        "run": RUN,
        "host": "db1",
        "pid": 12,
        "since": since,
        "stage": "extract",
        "rows": 5,
    }
    assert activity(history.state, ALIVE) == shown
    history.add(Batch, window_id="w", slices=(1,), files=files(7))
    assert activity(history.state, ALIVE) == {**shown, "stage": "load", "rows": 12}


def test_an_open_window_that_nobody_holds_was_interrupted() -> None:
    history = History()
    history.claim(window=window("w", None, (at(10, 1),), at(42, 7)), owner=OWNER)
    history.add(Batch, window_id="w", slices=(0,), files=files(5))
    for held in (None, Holder(RUN, OWNER, "sync", "2020", False)):
        shown = activity(history.state, held)
        assert (shown["state"], shown["run"], shown["host"], shown["rows"]) == ("interrupted", RUN, "db1", 5)


@pytest.mark.parametrize("purpose", ["load", "set", "clean", "repair"])
def test_a_command_that_holds_the_table_says_what_it_does(purpose: str) -> None:
    history = synced()
    history.claim(purpose=purpose, table=None)
    held = Holder(RUN, OWNER, purpose, "2099", True)
    assert activity(history.state, held)["stage"] == purpose


def test_a_run_is_seen_through_its_lease(store: Store) -> None:
    log = Log(store, TABLE.name)
    taken = claim(
        log, log.read(), run=RUN, purpose="sync", table=TABLE, window=window("w", None, (), at(42, 7))
    )
    with taken.lease:
        assert activity(log.read(), holder(store, TABLE.name, taken.state.claim))["state"] == "running"
    state = log.read()
    assert activity(state, holder(store, TABLE.name, state.claim))["state"] == "interrupted"
    state = log.append(state, draft(state, Batch, RUN, window_id="w", slices=(0,), files=files(1)))
    assert activity(state, holder(store, TABLE.name, state.claim))["state"] == "idle"


def test_the_document_shows_a_failure_from_before_there_was_a_log(store: Store) -> None:
    state = Log(store, TABLE.name).read()
    failure = StageFailure("extract", "MySQL is away", "2025-08-14T17:12:45.654321Z")
    shown = Publisher(store, TABLE.name, "").current(state, (), failure)
    assert (shown["mysql_status"], shown["last_error"]) == ("failed", "MySQL is away")
    assert shown["last_error_time"] == failure.at and shown["commit"] is None
