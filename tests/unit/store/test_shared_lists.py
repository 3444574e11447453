"""Tables that look for their own in the same folders share a list of each, no older than they allow."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from floodmark.config.load import StoreSpec
from floodmark.log.document import primary_path
from floodmark.log.log import Log, Taken, draft
from floodmark.model.commit import Open
from floodmark.model.errors import TransientError
from floodmark.store import store as stores
from floodmark.store.folder import Folder, Object
from floodmark.store.store import Store
from tests.support.watermark_copies import NAME, published

LONG = 600.0


class Counted(Folder):
    """A folder that counts its lists."""

    lists = 0

    def folders(self, prefix: str) -> Iterator[str]:
        self.lists += 1
        return super().folders(prefix)

    def list(self, parent: str, after: str = "", prefix: str = "") -> Iterator[Object]:
        self.lists += 1
        return super().list(parent, after, prefix)


@pytest.fixture
def counted(tmp_path: Path) -> tuple[Store, Counted]:
    store, objects = Store(StoreSpec(url=str(tmp_path))), Counted(tmp_path)
    store._at = objects
    return store, objects


def lacks(store: Store, path: str, seconds: float = LONG) -> bool:
    return store.recently(seconds).get(path) is None


def test_threads_that_ask_for_different_objects_of_a_folder_share_one_list(
    counted: tuple[Store, Counted],
) -> None:
    store, objects = counted
    store.put("leases/s.t7.json", b"{}")
    paths = [f"leases/s.t{n}.json" for n in range(50)]
    with ThreadPoolExecutor(8) as pool:
        lacked = list(pool.map(lambda path: lacks(store, path), paths))
    assert [path for path, none in zip(paths, lacked, strict=True) if not none] == ["leases/s.t7.json"]
    assert objects.lists == 1


def test_nothing_is_listed_again_if_a_recent_list_has_nothing_that_begins_so(
    counted: tuple[Store, Counted],
) -> None:
    store, objects = counted
    store.put("daily/s.t_20250101.json", b"{}")
    recent = store.recently(LONG)
    assert [o.path for o in recent.list("daily/s.t_")] == ["daily/s.t_20250101.json"]
    assert not list(recent.list("daily/s.u_")) and not list(recent.list("daily/s.a_"))
    assert objects.lists == 2, "one for all, and the one that was asked for"


def test_an_answer_that_is_too_old_is_asked_for_again(counted: tuple[Store, Counted]) -> None:
    store, objects = counted
    for _ in range(2):
        assert lacks(store, "leases/s.t.json") and store.recently(LONG).folders("commits/") == ()
        store.put("leases/s.t.json", b"{}")
        store.put("commits/s.t/0.json", b"{}")
    assert not lacks(store, "leases/s.t.json", 1e-9) and store.folders("commits/") == ("s.t",)
    assert objects.lists == 4


def test_who_needs_the_newest_answer_makes_no_list(counted: tuple[Store, Counted]) -> None:
    store, objects = counted
    assert lacks(store, "leases/s.t.json", 0.0) and objects.lists == 0


def test_a_folder_with_too_many_objects_for_one_list_is_not_relied_on(
    counted: tuple[Store, Counted], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = counted
    monkeypatch.setattr(stores, "_ONE_LIST", 2)
    for n in range(3):
        store.put(f"leases/s.t{n}.json", b"{}")
    assert lacks(store, "leases/s.u.json")
    store.put("leases/s.u.json", b"{}")
    assert not lacks(store, "leases/s.u.json")


def test_a_log_that_another_run_opens_after_the_list_is_noticed_by_the_first_commit(
    counted: tuple[Store, Counted],
) -> None:
    store, _ = counted
    log = Log(store, "s.t")
    log.read(LONG)  # the lists are made
    theirs = Log(store, "s.t")
    opened = theirs.append(theirs.read(), draft(theirs.read(), Open, "run1"))
    before = log.read(LONG)
    assert before.n == -1
    with pytest.raises(Taken):
        log.append(before, draft(before, Open, "run2"))
    assert log.read() == opened, "a later look relies on no list"


def test_a_table_that_another_run_has_published_since_the_list_is_no_recovery(
    counted: tuple[Store, Counted],
) -> None:
    store, _ = counted
    assert lacks(store, primary_path(NAME))
    _, state = published(store)
    assert Log(store, NAME).read(LONG) == state
    assert not list(store.list("watermark/recoveries/"))


def test_several_requests_of_one_caller_run_side_by_side_and_keep_their_order(tmp_path: Path) -> None:
    store, together = Store(StoreSpec(url=str(tmp_path))), threading.Barrier(3, timeout=10)

    def act(path: str) -> str:
        together.wait()
        return path.upper()

    assert store.each(act, ("a", "b", "c")) == ("A", "B", "C")
    assert store.each(act, ()) == ()


def test_after_an_error_no_further_request_is_begun(tmp_path: Path) -> None:
    begun: list[int] = []

    def act(number: int) -> None:
        begun.append(number)
        time.sleep(0.01)
        raise TransientError("the store is away")

    with pytest.raises(TransientError):
        Store(StoreSpec(url=str(tmp_path))).each(act, range(512))
    assert len(begun) < 64
