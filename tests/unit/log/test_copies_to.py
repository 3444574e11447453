"""Copies in further places: written in the background, read last, and never those of another pipeline or log."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from floodmark.config.load import CopiesTo, StoreSpec
from floodmark.log import pipeline
from floodmark.log.copies import Publisher, examine, introduce, send
from floodmark.log.document import Copy, commit_path, primary_path
from floodmark.log.fold import Damaged, State
from floodmark.log.log import Log, tables
from floodmark.log.recovery import recoveries
from floodmark.model.errors import ConfigError, TransientError
from floodmark.model.times import stamp
from floodmark.store.places import finish
from floodmark.store.store import Store
from tests.support.samples import RUN
from tests.support.watermark_copies import NAME, OTHER, batches, claimed, content, ledger, published

WAREHOUSE = "duckdb:///w"


def spec(folder: Path, *, log: bool = False, places: int = 1) -> StoreSpec:
    further = tuple(CopiesTo(str(folder / f"place{n}"), log=log) for n in range(places))
    return StoreSpec(url=str(folder / "lake"), copies_to=further)


def opened(folder: Path, **more: Any) -> Store:
    store = Store(spec(folder, **more))
    pipeline.establish(store, WAREHOUSE, stamp())
    return store


def wipe(store: Store) -> None:
    store.delete([item.path for item in store.list("")])


def test_a_place_gets_the_newest_copy_and_its_owner(tmp_path: Path) -> None:
    store = opened(tmp_path, places=2)
    _, state = published(store)
    finish(store.places)
    for place in store.places:
        there = place.store
        found = examine(there.get(primary_path(NAME)), NAME)
        assert isinstance(found, Copy) and found.checkpoint.state == state
        assert len(list(there.list("watermark/backups/daily/"))) == 1
        assert there.get("pipeline.json") == store.get("pipeline.json")
        assert not list(there.list("commits/"))


def test_with_the_log_a_place_has_every_commit_even_earlier_ones(tmp_path: Path) -> None:
    store = opened(tmp_path)
    log, state = published(store, count=30)
    finish(store.places)
    store = opened(tmp_path, log=True)
    log = Log(store, NAME)
    state = batches(log, claimed(log, "later"), 3)
    Publisher(store, NAME, RUN, log=log).publish(state, ledger(state))
    finish(store.places)
    assert content(store.places[0].store, f"commits/{NAME}/") == content(store, f"commits/{NAME}/")
    # From then on only what is new is sent.
    state = batches(log, state, 1)
    Publisher(store, NAME, RUN, log=log).publish(state, ledger(state))
    finish(store.places)
    assert store.places[0].store.get(commit_path(NAME, state.n)) == store.get(commit_path(NAME, state.n))


@pytest.mark.parametrize("log", [False, True])
def test_a_store_that_has_lost_everything_resumes_from_a_place_and_says_so(
    tmp_path: Path, log: bool, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path, log=log)
    known = pipeline.read(store)
    _, state = published(store, count=60)
    finish(store.places)
    before = content(store, f"commits/{NAME}/")
    wipe(store)
    anew = Store(spec(tmp_path, log=log))
    assert tables(anew) == [NAME]
    with caplog.at_level("INFO", "floodmark"):
        assert Log(anew, NAME).read() == state
    said = [r for r in caplog.records if "recovered from" in r.getMessage()]
    assert [r.levelname for r in said] == ["WARNING"] and str(tmp_path / "place0") in said[0].getMessage()
    (record,) = recoveries(anew, NAME)
    assert record["source"] == "copies_to"
    assert (
        pipeline.establish(anew, WAREHOUSE, stamp())
        == known
        == pipeline.read(Store(StoreSpec(anew.spec.url)))
    )
    after = content(anew, f"commits/{NAME}/")
    assert after == before if log else after.items() < before.items()
    assert Log(anew, NAME).read() == state and len(recoveries(anew, NAME)) == 1


@pytest.mark.parametrize("count", [2, 20])
def test_commits_that_a_place_has_beyond_its_copy_come_back_too(tmp_path: Path, count: int) -> None:
    store = opened(tmp_path, log=True)
    _, state = published(store)
    finish(store.places)
    alone = Log(Store(StoreSpec(url=store.spec.url)), NAME)
    later = batches(alone, claimed(alone, "later"), count)
    # A run that died between the commits and the copy that shows them. The last one is of no use: it follows none.
    for n in (*range(state.n + 1, later.n - 1), later.n):
        store.places[0].store.create(commit_path(NAME, n), store.get(commit_path(NAME, n)) or b"")
    wipe(store)
    looked = Log(Store(spec(tmp_path, log=True)), NAME, repairs=False).read()
    assert looked.n == later.n - 2 == Log(Store(spec(tmp_path, log=True)), NAME).read().n
    assert looked == Log(Store(StoreSpec(url=store.spec.url)), NAME).read()


def test_a_lost_commit_comes_back_from_the_log_of_a_place(tmp_path: Path) -> None:
    store = opened(tmp_path, log=True)
    published(store, count=60)
    finish(store.places)
    old = commit_path(NAME, 3)
    data = store.get(old)
    store.delete([old])
    assert Log(store, NAME).commit(3)[0].n == 3
    assert store.get(old) == data
    assert recoveries(store, NAME)[0]["source"] == "copies_to"


def test_a_commit_of_a_place_is_put_back_only_if_the_next_one_proves_it(tmp_path: Path) -> None:
    store = opened(tmp_path, log=True)
    log, state = published(store, count=60)
    finish(store.places)
    place, lost = store.places[0].store, commit_path(NAME, 3)
    whole = store.get(lost) or b""
    place.put(lost, whole.replace(b'"rows":1', b'"rows":2'))
    assert place.get(lost) != whole
    store.delete([lost])
    newest = commit_path(NAME, batches(log, state, 1).n)
    place.create(newest, store.get(newest) or b"")  # right, but nothing says so
    store.put(newest, b"\x00")
    for n in (3, state.n + 1):
        with pytest.raises(Damaged):
            Log(store, NAME).commit(n)
    assert store.get(lost) is None and store.get(newest) == b"\x00"


def test_copies_in_the_store_are_tried_first(tmp_path: Path) -> None:
    store = opened(tmp_path)
    published(store)
    finish(store.places)
    store.delete([primary_path(NAME)])
    Log(store, NAME).read()
    assert recoveries(store, NAME)[0]["source"] == "daily"


def test_a_failing_place_stops_nothing_and_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path)
    (tmp_path / "place0").write_text("a file")
    _, state = published(store)
    published(store, OTHER)
    finish(store.places)
    assert Log(store, NAME).read() == state
    assert len([r for r in caplog.records if r.levelname == "WARNING"]) == 1


def test_nobody_waits_for_a_place_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    freed = threading.Event()
    monkeypatch.setattr(store.places[0].store, "get", lambda path, most=None: freed.wait(60) and None)
    began = time.monotonic()
    _, state = published(store)
    finish(store.places, 0.1)
    assert Log(store, NAME).read() == state and time.monotonic() - began < 10
    freed.set()


def test_a_damaged_table_waits_for_an_unreachable_place(tmp_path: Path) -> None:
    store = opened(tmp_path)
    published(store)
    finish(store.places)
    store.delete([o.path for o in store.list("") if o.path.startswith(("commits/", "watermark/"))])
    (tmp_path / "place0").rename(tmp_path / "aside")
    (tmp_path / "place0").write_text("a file")
    with pytest.raises(TransientError, match="could not be read"):
        Log(Store(spec(tmp_path)), NAME).read()


def refuse(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def get(path: str, most: int | None = None) -> bytes | None:
        raise TransientError("connection refused")

    for place in store.places:
        monkeypatch.setattr(place.store, "get", get)


def test_a_lost_store_does_not_start_over_while_its_place_is_unreachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    published(store)
    finish(store.places)
    wipe(store)
    anew = Store(spec(tmp_path))
    refuse(anew, monkeypatch)
    with pytest.raises(TransientError, match=r"new or was lost.*connection refused"):
        Log(anew, NAME).read()
    with pytest.raises(TransientError, match="new or was lost"):
        tables(anew)
    with pytest.raises(TransientError, match="new or was lost"):
        pipeline.establish(anew, WAREHOUSE, stamp())
    assert not list(anew.list(""))


def test_a_lost_store_waits_for_a_slow_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = opened(tmp_path)
    known = pipeline.read(store)
    _, state = published(store)
    finish(store.places)
    wipe(store)
    anew = Store(spec(tmp_path))
    monkeypatch.setattr("floodmark.store.places.GRACE", 0.0)
    assert tables(anew) == [NAME] and Log(anew, NAME).read() == state
    assert pipeline.establish(anew, WAREHOUSE, stamp()) == known


def test_tables_are_still_searched_in_the_places_once_a_lost_store_has_its_pipeline_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    published(store)
    published(store, OTHER)
    finish(store.places)
    wipe(store)
    anew = Store(spec(tmp_path))
    assert Log(anew, NAME).read().n > 0
    pipeline.establish(anew, WAREHOUSE, stamp())
    refuse(anew, monkeypatch)
    with pytest.raises(TransientError, match="new or was lost"):
        Log(anew, OTHER).read()


def test_a_new_table_of_a_store_that_was_never_lost_waits_for_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    refuse(store, monkeypatch)
    assert Log(store, NAME).read().n == -1


def test_a_store_that_lacks_only_its_pipeline_waits_for_the_places_before_it_gets_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = opened(tmp_path)
    _, state = published(store)
    finish(store.places)
    store.delete(["pipeline.json"])
    anew = Store(spec(tmp_path))
    refuse(anew, monkeypatch)
    assert Log(anew, NAME).read() == state and pipeline.read(anew) is None
    with pytest.raises(TransientError, match="new or was lost"):
        pipeline.establish(anew, WAREHOUSE, stamp())


def test_another_pipeline_s_place_is_neither_written_nor_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = opened(tmp_path)
    published(store)
    finish(store.places)
    before = content(store.places[0].store, "")
    other = Store(StoreSpec(url=str(tmp_path / "other"), copies_to=spec(tmp_path).copies_to))
    for ask in (pipeline.read, tables, lambda other: Log(other, NAME).read()):
        with pytest.raises(ConfigError, match="holds copies of") as told:
            ask(other)
        assert "delete copied_from.json there" in (told.value.hint or "")
    pipeline.establish(Store(StoreSpec(url=other.spec.url)), WAREHOUSE, stamp())
    assert Log(other, NAME).read().n == -1
    published(other)
    finish(other.places)
    assert content(store.places[0].store, "") == before
    assert "holds copies of" in caplog.text
    with pytest.raises(ConfigError) as refused:
        introduce(other, other.places[0])
    assert other.uri("pipeline.json") in (refused.value.hint or "")


def test_objects_of_another_log_in_a_place_are_moved_aside_not_overwritten(tmp_path: Path) -> None:
    store = opened(tmp_path, log=True)
    _, state = published(store)
    finish(store.places)
    place = store.places[0].store
    kept = {p.rpartition("/")[2]: d for p, d in content(place, f"commits/{NAME}/").items()}
    daily = content(place, "watermark/backups/daily/")
    # A new log of the same table, begun while the place was not queried.
    store.delete([o.path for o in store.list("") if not o.path.startswith("pipeline")])
    alone = Store(StoreSpec(url=store.spec.url))
    log, anew = published(alone, count=1)
    store = Store(spec(tmp_path, log=True))
    Publisher(store, NAME, "again").publish(batches(log, claimed(log, "again"), 1), None)
    finish(store.places)
    assert (
        json.loads(place.get(primary_path(NAME)) or b"{}")["checkpoint"]["body"]["state"]["log"] == anew.log
    )
    aside = content(place, f"replaced/{NAME}/{state.log}/commits/")
    assert {p.rpartition("/")[2]: d for p, d in aside.items()} == kept
    aside = content(place, f"replaced/{NAME}/{state.log}/watermark/backups/daily/")
    assert {p.removeprefix(f"replaced/{NAME}/{state.log}/"): d for p, d in aside.items()} == daily
    assert content(place, f"commits/{NAME}/") == content(store, f"commits/{NAME}/")


@pytest.mark.parametrize("resident", [True, False])
@pytest.mark.parametrize(("log", "count"), [(True, 1), (True, 6), (True, 9), (False, 1)])
def test_commits_in_a_place_that_a_restored_store_has_lost_are_moved_aside(
    tmp_path: Path, log: bool, count: int, resident: bool
) -> None:
    store = opened(tmp_path, log=log)
    published(store)
    finish(store.places)
    older = content(store, "")

    def go_on(run: str, more: int) -> State:
        table = Log(store, NAME)
        state = batches(table, claimed(table, run), more)
        Publisher(store, NAME, run, log=table).publish(state, ledger(state))
        finish(store.places)
        return state

    lost = go_on("lost", 6)
    place = store.places[0].store
    before = content(place, f"commits/{NAME}/")
    wipe(store)
    for path, data in older.items():
        store.put(path, data or b"")
    if not resident:
        store = Store(spec(tmp_path, log=log))
    state = go_on("anew", count)
    found = examine(place.get(primary_path(NAME)), NAME)
    assert isinstance(found, Copy) and found.checkpoint.state == state
    if log:
        assert content(place, f"commits/{NAME}/") == content(store, f"commits/{NAME}/")
    aside = f"replaced/{NAME}/{lost.log}.{lost.digest[:12]}/"
    kept = content(place, f"{aside}commits/")
    assert {path.removeprefix(aside): data for path, data in kept.items()} == before
    assert place.get(aside + primary_path(NAME)) is not None


def test_a_run_that_is_behind_leaves_the_newer_copy_in_a_place(tmp_path: Path) -> None:
    store = opened(tmp_path, log=True)
    log, state = published(store)
    later = batches(log, claimed(log, "later"), 3)
    Publisher(store, NAME, "later", log=log).publish(later, ledger(later))
    finish(store.places)
    before = content(store.places[0].store, "")
    slow = Store(spec(tmp_path, log=True))
    send(slow, state, b"older", stamp(), {})
    finish(slow.places)
    assert content(store.places[0].store, "") == before
