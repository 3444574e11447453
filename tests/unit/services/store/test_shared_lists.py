"""Tables that look for their folders at the same time share one list, and none of them gets an older one."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from floodmark.config.load import StoreSpec
from floodmark.services.store.folder import Folder
from floodmark.services.store.store import Store


class Slow(Folder):
    """A folder whose first list takes until it is let go."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.lists = 0
        self.begun, self.go = threading.Event(), threading.Event()

    def folders(self, prefix: str) -> Iterator[str]:
        self.lists += 1
        found = list(super().folders(prefix))
        if self.lists == 1:
            self.begun.set()
            assert self.go.wait(10)
        yield from found


def test_one_list_answers_all_that_asked_before_it_began(tmp_path: Path) -> None:
    store, slow = Store(StoreSpec(url=str(tmp_path))), Slow(tmp_path)
    store._use(slow)
    with ThreadPoolExecutor(6) as pool:
        first = pool.submit(store.folders, "commits/")
        assert slow.begun.wait(10)
        store.put("commits/s.new/0.json", b"{}")  # too late for the list under way
        others = [pool.submit(store.folders, "commits/") for _ in range(5)]
        while len(store._listed._waiting) < 5:
            time.sleep(0.001)
        slow.go.set()
        assert first.result() == ()
        assert [one.result() for one in others] == [("s.new",)] * 5
    assert slow.lists == 2


def test_several_requests_of_one_caller_run_side_by_side_and_keep_their_order(tmp_path: Path) -> None:
    store, together = Store(StoreSpec(url=str(tmp_path))), threading.Barrier(3, timeout=10)

    def act(path: str) -> str:
        together.wait()
        return path.upper()

    assert store.each(act, ("a", "b", "c")) == ("A", "B", "C")
    assert store.each(act, ()) == ()
