"""What is in the store altogether: counted on request, at most every ten minutes, in the background.

The count lists the whole store, and reads tables' logs as far as needed to tell orphans from files in use;
it gives up on those after a while and says so.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from urllib.parse import unquote

from floodmark.clean.choose import Staged, StoredObject, staged
from floodmark.clean.remove import gather
from floodmark.log.log import Log
from floodmark.model.errors import FloodmarkError
from floodmark.model.times import stamp
from floodmark.store.store import Object, Store

log = logging.getLogger("floodmark")
EVERY = 600.0
PATIENCE = 60.0  # seconds for reading logs
LARGEST = 10
# Files that are no longer in use, and what to do about them.
UNUSED = (
    ("orphan", "orphans", "floodmark s3clean orphans -t TABLE"),
    ("superseded", "superseded", "floodmark s3clean clean -t TABLE"),
)


@dataclass(frozen=True)
class Line:
    """Objects of one kind."""

    what: str
    objects: int
    bytes: int
    command: str = ""  # what to do about them
    within: bool = False  # they are a part of the line before


@dataclass(frozen=True)
class House:
    """The count of the whole store."""

    at: str
    lines: tuple[Line, ...]
    tables: tuple[Line, ...]  # the largest
    trouble: str | None = None


def _sum(what: str, objects: Sequence[Object], command: str = "") -> Line:
    return Line(what, len(objects), sum(one.bytes for one in objects), command)


def count(store: Store, patience: float = PATIENCE) -> House:
    """Lists the store and sums it up."""
    give_up = time.monotonic() + patience
    by_table: dict[str, list[Object]] = {}
    for one in chain(store.list("data/"), store.list("keys/")):
        by_table.setdefault(one.path.split("/")[1], []).append(one)
    sizes: dict[str, list[int]] = {}  # of files, by their state
    skipped = 0
    for folder, objects in by_table.items():
        if time.monotonic() > give_up:
            skipped += 1
            continue
        for file in _staged(store, unquote(folder), objects):
            sizes.setdefault(file.state, []).append(file.bytes)
    copies = list(store.list("watermark/backups/"))
    every = [one for objects in by_table.values() for one in objects]
    lines = (
        _sum("Staged files", every),
        *(
            Line(
                f"of these {what}", len(sizes.get(state, ())), sum(sizes.get(state, ())), command, within=True
            )
            for state, what, command in UNUSED
        ),
        _sum("Copies of watermarks", copies, "floodmark watermark cleanup"),
        _sum("Commits", list(store.list("commits/"))),
        _sum("Runs’ reports", list(store.list("runs/"))),
        _sum("Status", list(store.list("status/"))),
    )
    largest = sorted(
        (_sum(unquote(f), objects) for f, objects in by_table.items()), key=lambda line: -line.bytes
    )
    said = f"{skipped:,} tables were not searched for orphans" if skipped else None
    return House(stamp(), lines, tuple(largest[:LARGEST]), said)


def _staged(store: Store, name: str, objects: Sequence[Object]) -> tuple[Staged, ...]:
    """A table's files with their states; none if its log can't be read."""
    try:
        table = Log(store, name, repairs=False)
        there = {one.path: StoredObject(one.bytes, stamp(one.modified)) for one in objects}
        return staged(gather(table, table.read(), there, None))
    except FloodmarkError as error:
        log.info("%s: orphans could not be determined: %s", name, error.message)
        return ()


class StoreCounts:
    """The last count, and a thread that makes the next one."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._last: House | None = None
        self._begun = -EVERY

    def now(self) -> House | None:
        """The last count; None before the first. Starts another one if it is old."""
        with self._lock:
            due = time.monotonic() - self._begun >= EVERY
            if due:
                self._begun = time.monotonic()
                threading.Thread(target=self._count, name="house", daemon=True).start()
            return self._last

    def _count(self) -> None:
        try:
            made = count(self._store)
        except FloodmarkError as error:
            log.info("the store could not be counted: %s", error.message)
            with self._lock:
                self._begun = time.monotonic() - EVERY + 10  # again soon
            return
        with self._lock:
            self._last = made
