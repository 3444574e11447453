"""What is read on request: one table in detail, and what is in the store altogether.

A table's page has its log's newest commits, its columns, its files by state. Commits never change, so each is read once; a
log of any length costs the newest fifty. The store is counted at most every ten minutes, in the background: that lists all
of it, and reads tables' logs as far as needed to tell orphans from files in use; it gives up on those after a while and
says so. Reads only the store.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import Any
from urllib.parse import unquote

from floodmark.clean.choose import Staged, StoredObject, staged
from floodmark.clean.remove import gather
from floodmark.config.load import Config, WarehouseSpec
from floodmark.log.copies import Publisher
from floodmark.log.document import LoadStatus, last_known
from floodmark.log.fold import State
from floodmark.log.lease import activity_now
from floodmark.log.log import Log
from floodmark.log.status import read_status
from floodmark.model.commit import Claim, Clean, Commit, DataFile, Reset, Restore, Set, WithFiles, files_of
from floodmark.model.errors import FloodmarkError
from floodmark.model.notes import not_followed
from floodmark.model.position import Position
from floodmark.model.results import PlanColumn
from floodmark.model.table import Table
from floodmark.model.times import stamp
from floodmark.store.store import CHANGES, Object, Store
from floodmark.sync.preview import columns as typed_columns

logger = logging.getLogger("floodmark")

COMMITS = 50
REMEMBERED = 64  # tables whose commits are kept


@dataclass(frozen=True)
class CommitLine:
    """One commit as the page lists it."""

    commit: Commit
    what: str
    files: Sequence[DataFile]
    position: str
    loaded: bool | None  # None: there is nothing in it to load


@dataclass(frozen=True)
class Detail:
    """What the page of a table shows beyond its line of the overview."""

    document: Mapping[str, Any]
    commits: tuple[CommitLine, ...]
    more_commits: int
    columns: tuple[PlanColumn, ...]
    state: State
    load: LoadStatus  # as the published watermark knew it
    window: str | None = None  # the open window, how far it has got

    @property
    def files_pending(self) -> int:
        return max(0, self.state.live_files - self.load.live_files)

    @property
    def rows_pending(self) -> int:
        return sum(data.rows for data in self.state.live if not self.load.has(data.n))


class Details:
    """Reads tables, and remembers their newest commits."""

    def __init__(self, store: Store, config: Config) -> None:
        self._store = store
        self._config = config
        self._known: Callable[[str], dict[int, Commit]] = lru_cache(REMEMBERED)(lambda name: {})

    def of(self, name: str) -> Detail | None:
        """The table as it is now; None if the store has no log of it."""
        log = Log(self._store, name, repairs=False)
        state = log.read()
        if state.n < 0:
            return None
        copy = log.seen[0] if log.seen else None
        load = last_known(state, copy.checkpoint.load if copy else None, None)
        numbers = log.numbers()
        return Detail(
            document=self._document(log, state),
            commits=tuple(_line(commit, load) for commit in self._newest(log, numbers[-COMMITS:])),
            more_commits=max(0, len(numbers) - COMMITS),
            columns=columns(state.table, self._config.warehouse) if state.table else (),
            state=state,
            load=load,
            window=_window(state),
        )

    def _document(self, log: Log, state: State) -> dict[str, Any]:
        """What `watermark get --json` prints, except for what only MySQL and the warehouse know."""
        status = read_status(self._store, state.table_name)
        shown = Publisher(self._store, state.table_name, "", log=log).current(state, None)
        deletes = self._config.options(state.table_name).deletes
        shown["mode"] = state.table.mode if state.table else None
        shown["not_followed"] = list(not_followed(state.table, deletes)) if state.table else []
        shown["activity"] = activity_now(self._store, state)
        shown["last_check_time"] = status.last_check_time if status else None
        return shown

    def _newest(self, log: Log, numbers: list[int]) -> list[Commit]:
        remembered = self._known(log.table_name)
        known = dict(remembered)
        known |= {commit.n: commit for commit, _ in log.commits(n for n in numbers if n not in known)}
        newest = {n: known[n] for n in reversed(numbers) if n in known}
        remembered.clear()
        remembered.update(newest)
        return list(newest.values())


def _line(commit: Commit, load: LoadStatus) -> CommitLine:
    files, place = files_of(commit), _place(commit)
    loaded = load.has(commit.n) if files else None
    return CommitLine(commit, _what(commit), files, ", ".join(map(str, place or ())), loaded)


def _what(commit: Commit) -> str:
    """What a commit is for, beyond its kind."""
    if isinstance(commit, Claim):
        return commit.purpose or ""
    if isinstance(commit, Reset):
        return ", ".join(commit.stages)
    return commit.load_as if isinstance(commit, WithFiles) else ""


def _place(commit: Commit) -> Position | None:
    """The position that a commit is about: where it moves to, what it has read, how far a claim's window reaches."""
    if isinstance(commit, Claim):
        return commit.window.high if commit.window else None
    if isinstance(commit, Set | Restore | Clean):
        return commit.position
    lasts = [f.last for f in files_of(commit) if f.last is not None]
    try:
        return max(lasts, default=None)
    except TypeError:  # of a key that has changed its type
        return lasts[-1]


def columns(table: Table, warehouse: WarehouseSpec) -> tuple[PlanColumn, ...]:
    """Every column with its type along the way, including those that the source no longer has."""
    shown = [one for one in typed_columns(table, warehouse.can) if one.target is not None]
    gone = "no longer at the source; its values stay in the warehouse"
    return (
        *(one.but(mark=", ".join(_notes(table, one))) for one in shown),
        *(
            PlanColumn(column=c.name, mysql=c.type, parquet="", warehouse="", target=None, mark=gone)
            for c in table.lineage.dropped
        ),
    )


def _notes(table: Table, column: PlanColumn) -> Iterator[str]:
    name = column.column
    if name in table.key:
        yield "key"
    if name == table.cursor:
        yield "cursor"
    yield from (f"was {old}" for old, new in table.lineage.renamed if new == name)
    if name in table.lineage.owed:
        yield "earlier rows will be read again"
    if column.mark:
        yield column.mark


def _window(state: State) -> str | None:
    window = state.window or state.extraction.reread
    if window is None:
        return None
    return f"{len(state.progress.done):,} of {window.slices:,} slices committed"


# ---------------------------------------------------------------- the store altogether

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
    by_table: dict[str, list[Object]] = defaultdict(list)
    for one in chain(store.list("data/"), store.list("keys/")):
        by_table[one.path.split("/")[1]].append(one)
    sizes: dict[str, list[int]] = defaultdict(list)  # of files, by their state
    skipped = 0
    for folder, objects in by_table.items():
        if time.monotonic() > give_up:
            skipped += 1
            continue
        for file in _staged(store, unquote(folder), objects):
            sizes[file.state].append(file.bytes)
    copies = list(store.list("watermark/backups/"))
    every = [one for objects in by_table.values() for one in objects]
    lines = (
        _sum("Staged files", every),
        *(
            Line(f"of these {what}", len(sizes[state]), sum(sizes[state]), command, within=True)
            for state, what, command in UNUSED
        ),
        _sum("Copies of watermarks", copies, "floodmark watermark cleanup"),
        _sum("Commits", list(store.list("commits/"))),
        _sum("The source’s log of changes", list(store.list(CHANGES))),
        _sum("Runs’ reports", list(store.list("runs/"))),
        _sum("Status", list(store.list("status/"))),
    )
    tables = [_sum(unquote(folder), objects) for folder, objects in by_table.items()]
    largest = sorted(tables, key=lambda line: -line.bytes)
    said = f"{skipped:,} tables were not searched for orphans" if skipped else None
    return House(stamp(), lines, tuple(largest[:LARGEST]), said)


def _staged(store: Store, name: str, objects: Sequence[Object]) -> tuple[Staged, ...]:
    """A table's files with their states; none if its log can't be read."""
    try:
        table = Log(store, name, repairs=False)
        there = {one.path: StoredObject(one.bytes, stamp(one.modified)) for one in objects}
        return staged(gather(table, table.read(), there, None))
    except FloodmarkError as error:
        logger.info("%s: orphans could not be determined: %s", name, error.message)
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
            if time.monotonic() - self._begun >= EVERY:
                self._begun = time.monotonic()
                threading.Thread(target=self._count, name="house", daemon=True).start()
        return self._last

    def _count(self) -> None:
        try:
            self._last = count(self._store)
        except FloodmarkError as error:
            logger.info("the store could not be counted: %s", error.message)
            self._begun = time.monotonic() - EVERY + 10  # again soon
