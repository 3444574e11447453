"""The source's log, whatever happens to it, in any order: no change of a table that follows it is ever missed.

The binary log is a list of events. Runs read it, die between any two durable steps, are taken for dead and wake up, or lose
what they have kept; tables join, copy, follow, leave. After every step, each table must have looked at every changed key
since the change became visible, up to the place that it has followed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from floodmark.clean.changes import clean_changes
from floodmark.host.retry import Retries
from floodmark.log import source_log
from floodmark.log.claim import HeldTable
from floodmark.log.copies import Publisher
from floodmark.log.document import commit_path, primary_path
from floodmark.log.fold import State
from floodmark.log.following import here, lowest
from floodmark.log.lease import Lease
from floodmark.log.log import Log
from floodmark.log.source_log import descriptions, waiting
from floodmark.model.changes import (
    SOURCE_LOG,
    FollowedChanges,
    FollowedTo,
    PreparedXa,
    Reconcile,
    TableChanges,
)
from floodmark.model.commit import DataFile, Owner
from floodmark.model.errors import ConflictError, DataError, NoAnswer
from floodmark.store.store import changed_keys
from tests.support.log_machine import Crash, Fault, MemoryStore
from tests.support.source_logs import SERVER, at, described, end

LONG = bool(os.environ.get("FLOODMARK_LONG"))
TABLES = ("shop.a", "shop.b", "shop.c")
TABLE = st.sampled_from(TABLES)
KEY = st.integers(1, 3)
XID = st.sampled_from(["x", "y"])
alive: dict[int, str] = {}


class Event(NamedTuple):
    """One transaction of the binary log, or what is said of one."""

    kind: str  # write, ddl, prepare, commit, rollback
    table: str = ""
    key: int = 0
    xid: str = ""


class Follower:
    """A table: how far it has followed, and when it last looked at each key."""

    def __init__(self) -> None:
        self.followed: FollowedTo | None = None
        self.joining: FollowedTo | None = None  # while it is copied
        self.looked: dict[int, int] = {}
        self.whole = -1  # when all of it was copied or compared

    def saw(self, key: int) -> int:
        return max(self.whole, self.looked.get(key, -1))


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.number = self.made = 0
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("floodmark.log.log.COMMITTING", Retries(3, 0.0))
        self.patch.setattr("floodmark.log.copies.WRITING", Retries(2, 0.0))
        self.patch.setattr("floodmark.log.lease._started", alive.get)
        self.patch.setattr(
            "floodmark.log.claim.this_process", lambda: Owner("here", "boot", self.number, "1")
        )
        self.patch.setattr("floodmark.log.lease.socket.gethostname", lambda: "here")
        self.patch.setattr("floodmark.log.lease._boot", lambda: "boot")
        self.patch.setattr(Lease, "_renew", lambda lease: None)
        self.patch.setattr(Publisher, "publish_soon", lambda self, state, rows: self.publish(state, rows))
        self.fault = Fault()
        self.store = MemoryStore(self.fault)
        self.events: list[Event] = []  # each at its own place
        self.open: dict[str, list[Event]] = {}  # prepared, by xid
        self.visible: list[tuple[int, Event]] = []  # changed rows, and since when they can be seen
        self.listed = set(TABLES[:2])
        self.tables = {name: Follower() for name in TABLES}
        self.paused: HeldTable | None = None

    def teardown(self) -> None:
        try:
            self.fault.arm(0, "before")
            self.listed = set(TABLES)
            self.a_run_reads(99)
            for name in TABLES:
                self.a_table_notes_where_it_begins(name)
                self.a_table_is_copied(name)
            self.a_run_reads(99)
            for name in TABLES:
                self.a_table_follows(name, False)
                assert self._followed(name) == len(self.events)
            self.no_change_is_missed()
        finally:
            alive.clear()
            self.patch.undo()

    # The source.

    @rule(table=TABLE, key=KEY)
    def a_row_changes(self, table: str, key: int) -> None:
        event = Event("write", table, key)
        self.visible.append((len(self.events), event))
        self.events.append(event)

    @rule(table=TABLE)
    def a_table_is_altered(self, table: str) -> None:
        self.visible.append((len(self.events), Event("ddl", table)))
        self.events.append(Event("ddl", table))

    @rule(xid=XID, table=TABLE, key=KEY)
    def a_transaction_is_prepared(self, xid: str, table: str, key: int) -> None:
        if xid not in self.open:
            self.open[xid] = [Event("write", table, key)]
            self.events.append(Event("prepare", table, key, xid))

    @rule(xid=XID, word=st.sampled_from(["commit", "commit", "rollback"]))
    def it_ends(self, xid: str, word: str) -> None:
        if xid in self.open:
            rows = self.open.pop(xid)
            if word == "commit":
                self.visible += [(len(self.events), event) for event in rows]
            self.events.append(Event(word, xid=xid))

    # Runs.

    @rule(left=st.integers(1, 12), how=st.sampled_from(["before", "after", "lost before", "lost after"]))
    def the_next_run_dies(self, left: int, how: Any) -> None:
        self.fault.arm(left, how)

    @rule(much=st.integers(1, 6))
    def a_run_reads(self, much: int) -> None:
        def work(held: HeldTable) -> None:
            self._listen(held)
            self._read(held, much)

        self._run(work)

    @rule()
    def a_run_is_taken_for_dead(self) -> None:
        def work(held: HeldTable) -> None:
            self._listen(held)
            self.paused = held
            raise Crash

        self._run(work)

    @precondition(lambda self: self.paused is not None)
    @rule(much=st.integers(1, 4))
    def it_wakes_up(self, much: int) -> None:
        held, self.paused = self.paused, None
        assert held is not None
        newest, before = self._log(), held.state.n
        with suppress(Crash, NoAnswer):
            try:
                self._read(held, much)
                if held.state.n > before and newest is not None and newest.log == held.state.log:
                    assert newest.claim is not None and newest.claim.run == held.run, "it had lost the log"
            except ConflictError:
                pass
            except DataError:
                assert newest is None or newest.log != held.state.log

    @rule()
    def a_run_cleans(self) -> None:
        followed = {name: table.followed for name, table in self.tables.items()}
        later = datetime.now(UTC) + timedelta(hours=2)
        self._run(lambda held: clean_changes(held, followed, later))

    @rule(table=TABLE)
    def a_table_is_put_on_the_list_or_taken_off(self, table: str) -> None:
        self.listed ^= {table}

    # Tables.

    @rule(table=TABLE)
    def a_table_notes_where_it_begins(self, table: str) -> None:
        state = self._log()
        if state is not None and state.source is not None and table in state.source.tables:
            self.tables[table].joining = here(state)

    @rule(table=TABLE)
    def a_table_is_copied(self, table: str) -> None:
        one = self.tables[table]
        if one.joining is not None:
            one.whole, one.followed, one.joining = len(self.events), one.joining, None

    @rule(table=TABLE, dies=st.booleans())
    def a_table_follows(self, table: str, dies: bool) -> None:
        one, state = self.tables[table], self._log()
        if one.followed is None or state is None or state.source is None:
            return
        found = waiting(Log(self.store, SOURCE_LOG), state, {table: one.followed}).get(table)
        if found is None:
            return
        if found.reconcile:
            one.whole = len(self.events)
        for file in () if found.reconcile else found.files:
            content = self.store.get(file.path)
            assert content is not None, f"{file.path} is gone, and was to be followed"
            one.looked |= dict.fromkeys(json.loads(content), len(self.events))
        if not dies:
            one.followed = found.upto

    # Losses.

    @rule()
    def the_copy_is_lost(self) -> None:
        with self._unharmed():
            self.store.delete([primary_path(SOURCE_LOG)])

    @rule()
    def the_newest_commit_is_damaged(self) -> None:
        state = self._log()
        if state is not None:
            with self._unharmed():
                path = commit_path(SOURCE_LOG, state.n)
                self.store.put(path, (self.store.get(path) or b"")[:-9])

    @rule(what=st.sampled_from(["changes/commits/", "changes/watermark/", "changes/"]))
    def a_part_is_lost(self, what: str) -> None:
        with self._unharmed():
            self.store.delete([o.path for o in self.store.list(what)])

    # What must hold.

    @invariant()
    def no_change_is_missed(self) -> None:
        for name, one in self.tables.items():
            upto = self._followed(name)
            for since, event in self.visible:
                if event.table == name and since < upto:
                    seen = one.whole if event.kind == "ddl" else one.saw(event.key)
                    assert seen > since, f"{name} missed {event} at {since}: it followed to {upto}"

    def _followed(self, name: str) -> int:
        """Up to which event the table must have looked at everything."""
        one, state = self.tables[name], self._log()
        if one.followed is None:
            return 0
        if state is None or state.source is None or name not in state.source.tables:
            return one.followed.place.position
        if waiting(Log(self.store, SOURCE_LOG, repairs=False), state, {name: one.followed}):
            return one.followed.place.position
        return max(one.followed.place.position, state.source.next_start.position)

    # How it works.

    def _log(self) -> State | None:
        with suppress(DataError), self._unharmed():
            return Log(self.store, SOURCE_LOG, repairs=False).read()
        return None

    @contextmanager
    def _unharmed(self) -> Iterator[None]:
        left, self.fault.left = self.fault.left, 0
        try:
            yield
        finally:
            self.fault.left = left

    def _run(self, work: Callable[[HeldTable], object]) -> None:
        """A process that holds the log, and dies at the end of it or before."""
        self.number += 1
        alive[self.number] = "1"
        held = source_log.source_log(self.store, f"20250819_153000_{self.number:04x}")
        with suppress(Crash, NoAnswer):  # an answer lost during a recovery ends the run, with exit code 4
            assert source_log.hold(held, lambda state: True, seconds=0.0), "nobody else lives"
            work(held)
            held.release()
        alive.clear()

    def _listen(self, held: HeldTable) -> None:
        """Begins the log where the tables are, and listens for those on the list."""
        begin = None
        if held.state.source is None:
            named = (t for one in self.tables.values() for t in (one.followed, one.joining) if t is not None)
            place = lowest(named, SERVER.server)
            begin = (end(place.place.position if place else len(self.events)), SERVER)
        known = set(held.state.source.tables) if held.state.source is not None else set()
        new, left = sorted(self.listed - known), sorted(known - self.listed)
        # A description that was lost is made anew.
        there = descriptions(held.log, held.state, sorted(known - {*left})) if known else {}
        lost = sorted(known - {*left} - there.keys())
        if new or left or begin or lost:
            source_log.listen(held, [described(name) for name in (*new, *lost)], left, begin)

    def _read(self, held: HeldTable, much: int) -> None:
        source = held.state.source
        assert source is not None
        begin = source.next_start.position
        upto = min(len(self.events), begin + much)
        prepared = {each.xa.xid: each.xa for each in source.prepared}
        tables: dict[str, TableChanges] = {}
        keys: dict[str, list[int]] = {}
        files: list[DataFile] = []
        every: set[Reconcile] = set()
        for place in range(begin, upto):
            event = self.events[place]
            listened = event.table in source.tables
            if event.kind == "write" and listened:
                keys.setdefault(event.table, []).append(event.key)
            elif event.kind == "ddl" and listened:
                tables[event.table] = _and(tables, event.table, TableChanges(reconcile=("ddl",)))
            elif event.kind == "prepare":
                rows = {}
                if listened:
                    files.append(self._file(held, event.table, [event.key]))
                    rows = {event.table: TableChanges(files=(files[-1].path,))}
                prepared[event.xid] = PreparedXa(event.xid, rows, at(place))
            elif event.kind in ("commit", "rollback"):
                xa = prepared.pop(event.xid, None)
                if event.kind == "commit" and xa is None:
                    every.add("unprepared")
                for name, changes in xa.tables.items() if event.kind == "commit" and xa else ():
                    tables[name] = _and(tables, name, changes)
        for name, found in keys.items():
            files.append(self._file(held, name, found))
            tables[name] = _and(tables, name, TableChanges(files=(files[-1].path,)))
        if upto > begin:
            read = FollowedChanges(
                at(begin), at(upto), tables, tuple(prepared.values()), reconcile=tuple(every)
            )
            source_log.append(held, read, end(upto), SERVER, files=files)

    def _file(self, held: HeldTable, name: str, keys: list[int]) -> DataFile:
        self.made += 1
        path, content = f"{changed_keys(name)}{held.run}/{self.made}.parquet", json.dumps(keys).encode()
        self.store.put(path, content)
        return DataFile(path, len(keys), len(content), "00", 0)


def _and(tables: dict[str, TableChanges], name: str, more: TableChanges) -> TableChanges:
    before = tables.get(name, TableChanges())
    return TableChanges(files=(*before.files, *more.files), reconcile=(*before.reconcile, *more.reconcile))


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=2000 if LONG else 40,
    stateful_step_count=60 if LONG else 40,
    suppress_health_check=list(HealthCheck),
    deadline=None,
    print_blob=True,
)
