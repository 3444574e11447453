"""Which checksum stands for the last snapshot: decided by the log alone."""

from __future__ import annotations

from dataclasses import replace

from floodmark.snapshots import known, mark
from floodmark.testing.samples import TABLE, History, files

FULL = replace(TABLE, key=(), cursor=None, mode="full")


def snapshot(history: History, found: str | None) -> None:
    history.claim(table=FULL)
    history.add("batch", files=files(5), load_as="replace", overlap=mark(history.state, found))


def test_a_checksum_is_that_of_the_snapshot_that_it_was_read_with_and_of_no_other() -> None:
    history = History()
    assert known(history.state) is None
    snapshot(history, "abc 5 17")
    assert known(history.state) == "abc 5 17"
    history.claim(table=FULL)
    assert known(history.state) == "abc 5 17", "a claim changes no rows"
    snapshot(history, None)
    assert known(history.state) is None, "a later snapshot, by a sync that asked for no checksum"
    snapshot(history, "abc 5 18")
    assert known(history.state) == "abc 5 18"


def test_after_a_reset_the_table_is_read_again() -> None:
    for stages in (("extract", "load"), ("extract",)):
        history = History()
        snapshot(history, "abc 5 17")
        history.claim()
        history.add("reset", stages=stages)
        assert known(history.state) is None
