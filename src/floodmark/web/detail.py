"""One table in detail, read on request: its log's newest commits, its columns, its files by state.

Reads only the store. Commits never change, so each is read once; a log of any length costs the newest fifty.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from floodmark.commit.activity import activity_now
from floodmark.commit.document import Copy
from floodmark.commit.fold import State
from floodmark.commit.load_status import last_known
from floodmark.commit.log import Log
from floodmark.commit.publish import Watermark
from floodmark.commit.status import read_status
from floodmark.config.load import Config, WarehouseSpec
from floodmark.model.commit import Claim, Clean, Commit, Reset, Restore, Set, WithFiles, files_of
from floodmark.model.notes import not_followed
from floodmark.model.position import Position
from floodmark.model.table import Table
from floodmark.services.store.store import Store
from floodmark.sync.preview import columns as typed_columns

COMMITS = 50
REMEMBERED = 64  # tables whose commits are kept


@dataclass(frozen=True)
class CommitLine:
    """One commit as the page lists it."""

    n: int
    kind: str
    what: str
    at: str
    run: str
    rows: int
    files: int
    bytes: int
    position: str
    loaded: bool | None  # None: there is nothing in it to load


@dataclass(frozen=True)
class ColumnLine:
    """One column along the way."""

    name: str
    source: str
    parquet: str
    warehouse: str
    notes: str


@dataclass(frozen=True)
class FileCounts:
    """Staged files by state, as the log and the published watermark know them."""

    files: int
    loaded: int
    pending: int
    rows_pending: int
    bytes: int


@dataclass(frozen=True)
class Detail:
    """What the page of a table shows beyond its line of the overview."""

    document: Mapping[str, Any]
    commits: tuple[CommitLine, ...]
    more_commits: int
    columns: tuple[ColumnLine, ...]
    files: FileCounts
    window: str | None = None  # the open window, how far it has got


class Details:
    """Reads tables, and remembers their newest commits."""

    def __init__(self, store: Store, config: Config) -> None:
        self._store = store
        self._config = config
        self._lock = threading.Lock()
        self._commits: OrderedDict[str, dict[int, Commit]] = OrderedDict()

    def of(self, name: str) -> Detail | None:
        """The table as it is now; None if the store has no log of it."""
        log = Log(self._store, name, repairs=False)
        state = log.read()
        if state.n < 0:
            return None
        copy = log.seen[0] if log.seen else None
        numbers = log.numbers()
        return Detail(
            document=self._document(log, state),
            commits=tuple(_line(commit, state, copy) for commit in self._newest(log, numbers[-COMMITS:])),
            more_commits=max(0, len(numbers) - COMMITS),
            columns=columns(state.table, self._config.warehouse) if state.table else (),
            files=file_counts(state, copy),
            window=_window(state),
        )

    def _document(self, log: Log, state: State) -> dict[str, Any]:
        """What `watermark get --json` prints, except for what only MySQL and the warehouse know."""
        status = read_status(self._store, state.table_name)
        shown = Watermark(self._store, state.table_name, "", log=log).current(state, None)
        deletes = self._config.options(state.table_name).deletes
        shown["mode"] = state.table.mode if state.table else None
        shown["not_followed"] = list(not_followed(state.table, deletes)) if state.table else []
        shown["activity"] = activity_now(self._store, state)
        shown["last_check_time"] = status.last_check_time if status else None
        return shown

    def _newest(self, log: Log, numbers: list[int]) -> list[Commit]:
        with self._lock:
            known = dict(self._commits.get(log.table_name, {}))
        wanted = [n for n in numbers if n not in known]
        known |= {commit.n: commit for commit, _ in log.commits(wanted)}
        kept = {n: known[n] for n in numbers if n in known}
        with self._lock:
            self._commits[log.table_name] = kept
            self._commits.move_to_end(log.table_name)
            while len(self._commits) > REMEMBERED:
                self._commits.popitem(last=False)
        return [kept[n] for n in reversed(numbers) if n in kept]


def _line(commit: Commit, state: State, copy: Copy | None) -> CommitLine:
    files, loaded = files_of(commit), None
    if isinstance(commit, WithFiles):
        loaded = last_known(state, copy.checkpoint.load if copy else None, None).has(commit.n)
    place = _place(commit)
    return CommitLine(
        commit.n,
        commit.kind,
        _what(commit),
        commit.at,
        commit.run,
        sum(f.rows for f in files),
        len(files),
        sum(f.bytes for f in files),
        ", ".join(map(str, place)) if place else "",
        loaded if files else None,
    )


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


def file_counts(state: State, copy: Copy | None) -> FileCounts:
    """Files by state; what the warehouse has is as the published watermark knew it."""
    known = last_known(state, copy.checkpoint.load if copy else None, None)
    waiting = [data for data in state.live if not known.has(data.n)]
    return FileCounts(
        files=state.totals.files,
        loaded=known.files,
        pending=max(0, state.live_files - known.live_files),
        rows_pending=sum(data.rows for data in waiting),
        bytes=state.totals.bytes,
    )


def columns(table: Table, warehouse: WarehouseSpec) -> tuple[ColumnLine, ...]:
    """Every column with its type along the way, including those that the source no longer has."""
    shown = [
        ColumnLine(
            one["column"],
            one["mysql"],
            one["parquet"],
            one["warehouse"],
            ", ".join(said for said in (_notes(table, one["column"]), one["mark"]) if said),
        )
        for one in typed_columns(table, warehouse.can)
        if one["target"] is not None
    ]
    gone = [
        ColumnLine(c.name, c.type, "", "", "no longer at the source; its values stay in the warehouse")
        for c in table.lineage.dropped
    ]
    return (*shown, *gone)


def _notes(table: Table, name: str) -> str:
    said = []
    if name in table.key:
        said.append("key")
    if name == table.cursor:
        said.append("cursor")
    said += [f"was {old}" for old, new in table.lineage.renamed if new == name]
    if name in table.lineage.owed:
        said.append("earlier rows will be read again")
    return ", ".join(said)


def _window(state: State) -> str | None:
    window = state.window or state.extraction.reread
    if window is None:
        return None
    return f"{len(state.progress.done):,} of {window.slices:,} slices committed"
