"""A table's log, ledger and store, whatever happens to them, in any order: nothing is read twice, loaded twice, or lost.

The machine syncs, commits, loads, resets, restores, cleans, crashes between any two durable steps and loses what
may be lost. After every step what Floodmark makes of the store is compared with a model that takes every commit
literally (`tests/support/log_machine.py`); at the end, a sync must bring every row to the target.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from floodmark.clean.choose import Selection, choose
from floodmark.clean.remove import Cleaning, gather, listed, loaded_at, remove
from floodmark.host.retry import Retries
from floodmark.load.pending import choose_pending, ledger_for, pending, requests
from floodmark.log.claim import Claimed, claim
from floodmark.log.copies import Publisher
from floodmark.log.document import commit_path, condense, daily_path, document, observe, primary_path
from floodmark.log.fold import State
from floodmark.log.lease import Lease, holder
from floodmark.log.log import Log, draft
from floodmark.model.commit import Batch, Clean, Commit, DataFile, Deletes, Owner, Reset, Restore, Set
from floodmark.model.errors import ConflictError
from floodmark.model.json import digest
from floodmark.model.ledger import Ledger, TargetFiller
from floodmark.model.position import Position
from floodmark.model.window import Window
from tests.support.log_machine import NAME, Crash, Fault, MemoryStore, MemoryWarehouse, Model, place
from tests.support.samples import TABLE, at

LONG = bool(os.environ.get("FLOODMARK_LONG"))
KEYS = st.integers(1, 5)
SHARE = st.integers(0, 3)
BY = st.sampled_from(["cursor", "key"])
STAGES = st.sampled_from([("extract",), ("load",), ("extract", "load")])
alive: dict[int, str] = {}  # processes of this machine: number and start time


class Run:
    """One process that works on the table, with all that it knows."""

    def __init__(self, store: MemoryStore, number: int) -> None:
        self.name, self.number = f"20250819_153000_{number:04x}", number
        alive[number] = "1"
        self.log = Log(store, NAME)
        self.publisher = Publisher(store, NAME, self.name, log=self.log)
        self.state = State(NAME)
        self.lease: Lease | None = None

    def die(self) -> None:
        alive.pop(self.number, None)
        if self.lease is not None:
            self.lease._stop.set()


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.number = 0  # of the newest process
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("floodmark.log.fold.RECENT_COMMITS", 3)
        self.patch.setattr("floodmark.log.fold.RECENT_FILES", 4)
        self.patch.setattr("floodmark.log.log.COMMITTING", Retries(3, 0.0))
        self.patch.setattr("floodmark.log.copies.WRITING", Retries(2, 0.0))
        self.patch.setattr("floodmark.log.lease._started", alive.get)
        self.patch.setattr(
            "floodmark.log.claim.this_process", lambda: Owner("here", "boot", self.number, "1")
        )
        self.patch.setattr("floodmark.log.lease.socket.gethostname", lambda: "here")
        self.patch.setattr("floodmark.log.lease._boot", lambda: "boot")
        self.patch.setattr(Lease, "_renew", lambda lease: None)
        self.fault = Fault()
        self.store = MemoryStore(self.fault)
        self.warehouse: Any = MemoryWarehouse(self.store, self.fault)
        self.model = Model()
        self.source: dict[int, int] = {}  # key -> the second of its last change
        self.now = self.made = 0
        self.run: Run | None = None  # that holds the table, as far as it knows
        self.paused: Run | None = None  # taken for dead meanwhile
        self.committed: dict[str, int] = {}  # commits that were confirmed to a run
        self.backups: list[tuple[dict[int, int], Any, Any]] = []  # of the warehouse
        self.read_upto: list[Position | None] = [None]
        self.copy: bytes | None = None  # an earlier primary copy
        self.refused = 0
        self.checked: object = None
        self._contents: dict[str, list[tuple[int, int]]] = {}  # of every file that was ever written

    def teardown(self) -> None:
        try:
            self.fault.arm(0, "before")
            self._everything_arrives()
        finally:
            for run in (self.run, self.paused):
                if run is not None:
                    run.die()
            alive.clear()
            self.patch.undo()

    # The source.

    @initialize(keys=st.sets(KEYS, min_size=1))
    def rows_are_there(self, keys: set[int]) -> None:
        for key in sorted(keys):
            self.a_row_changes(key)

    @rule(key=KEYS, gone=st.sampled_from([False, False, True]))
    def a_row_changes(self, key: int, gone: bool = False) -> None:
        self.now += 3
        self.source[key] = self.now
        if gone:
            del self.source[key]

    # Runs.

    @precondition(lambda self: self.run is None or self.refused < 2)
    @rule(cuts=SHARE, by=BY, again=st.booleans())
    def a_sync_claims_the_table(self, cuts: int, by: Any, again: bool) -> None:
        """A window that resumes the open one or begins at the position, unless nothing is new."""

        self.refused += self.run is not None

        def plan(state: State) -> dict[str, Any]:
            window = state.window
            if window is None and (state.position is None or place(state.position) < place(at(self.now))):
                low = 0 if state.position is None else _second(state.position)
                inner = sorted(
                    {low + (self.now - low) * i // (cuts + 1) for i in range(1, cuts + 1)} - {low, self.now}
                )
                edges = (
                    tuple(at(i, 3) for i in inner)
                    if by == "cursor"
                    else tuple((k,) for k in range(2, 2 + cuts))
                )
                window = Window(self._name("w"), state.position, at(self.now), by, edges, float(self.now))
            elif window is not None and again and not state.progress.done:
                window = None
            reread = Window(self._name("r"), None, state.position, "cursor", (at(1, 9),)) if again else None
            return {"window": window, "reread": reread if state.position else None}

        self._claims("sync", plan, strategy="sequential")

    @precondition(lambda self: self.run is not None and self.run.state.window is not None)
    @rule(first=SHARE, count=st.integers(1, 3))
    def slices_are_committed(self, first: int, count: int) -> None:
        assert self.run is not None
        with self._may_die():
            self._commit_slices(self.run, first, count)

    @rule(changes=st.lists(KEYS, max_size=3), cuts=SHARE, by=BY, loads=st.booleans(), ends=st.booleans())
    def a_sync_runs(self, changes: list[int], cuts: int, by: Any, loads: bool, ends: bool) -> None:
        """As far as a fault lets it: slice by slice, in any order."""
        for key in changes:
            self.a_row_changes(key)
        if self.run is None:
            self.a_sync_claims_the_table(cuts, by, False)
        while self.run is not None and self.run.state.window is not None:
            self.slices_are_committed(len(changes), 2)
        if loads and self.run is not None:
            self.it_loads(None)
        if ends and self.run is not None:
            self._ends()

    @precondition(lambda self: self.run is not None)
    @rule(seconds=st.integers(1, 4))
    def rows_are_read_again(self, seconds: int) -> None:
        """A slice of those that are owed since a column changed, else the overlap."""
        assert self.run is not None
        state, window = self.run.state, self.run.state.extraction.reread
        low = max(0, (_second(state.position) if state.position else 0) - seconds)
        with self._may_die():
            if window is not None:
                number = next(i for i in range(window.slices) if i not in window.done)
                self._commit_rows(
                    self.run, self._slice(window, number), reread_id=window.id, slices=(number,)
                )
            else:
                rows = [(k, t) for k, t in self.source.items() if low < t <= low + seconds]
                self._commit_rows(self.run, rows, overlap="seen")

    @precondition(lambda self: self.run is not None)
    @rule()
    def deletes_are_committed(self) -> None:
        assert self.run is not None
        with self._may_die():
            self._commit_deletes(self.run)

    @precondition(lambda self: self.run is not None)
    @rule(limit=st.sampled_from([None, None, 1]))
    def it_loads(self, limit: int | None) -> None:
        assert self.run is not None
        with self._may_die():
            self._load(self.run, limit)
            self._publishes()

    @precondition(lambda self: self.run is not None)
    @rule()
    def the_watermark_is_published(self) -> None:
        self._publishes()

    @precondition(lambda self: self.run is not None)
    @rule(how=st.sampled_from(["ends", "ends", "is killed", "is paused"]))
    def the_run(self, how: str) -> None:
        """Ends, dies, or is paused and taken for dead."""
        assert self.run is not None
        if how == "ends":
            self._ends()
        elif how == "is killed" or self.paused is not None:
            self._dies()
        else:
            alive.pop(self.run.number)
            self.paused, self.run = self.run, None

    @precondition(lambda self: self.paused is not None)
    @rule(kind=st.sampled_from(["slices", "deletes", "load"]))
    def the_paused_run_goes_on(self, kind: str) -> None:
        """If nobody has taken the table meanwhile it may commit, else it must find out."""
        paused, self.paused = self.paused, None
        assert paused is not None
        holds = self.model.holder == paused.name
        loaded = self.warehouse.entries
        try:
            if kind == "load":
                self._load(paused, None)
            elif kind == "slices" and paused.state.window is not None:
                self._commit_slices(paused, 0, 1)
            else:
                self._commit_rows(paused, [(9, 1)], Deletes)
            # A load needs no claim: what it loads is in the log, and the ledger keeps it from loading twice.
            assert holds or kind == "load"
        except Crash:
            pass
        except ConflictError:
            assert not holds or self.warehouse.entries == loaded
        paused.die()

    # Commands.

    @precondition(lambda self: self.run is None or self.refused < 2)
    @rule(
        kind=st.sampled_from(["reset", "reset", "clean", "clean", "restore", "set", "retire"]), data=st.data()
    )
    def a_command_runs(self, kind: str, data: st.DataObject) -> None:
        """While a run holds the table it is refused."""
        self.refused += self.run is not None
        match kind:
            case "set":
                self.a_position_is_set(data.draw(st.integers(0, 12)))
            case "restore":
                self.an_earlier_position_is_restored(data.draw(SHARE))
            case "reset":
                self.stages_are_reset(data.draw(STAGES), data.draw(st.booleans()))
            case "clean":
                self.files_are_cleaned(data.draw(st.booleans()))
            case _:
                self._command("retire", lambda state: None)

    def a_position_is_set(self, second: int) -> None:
        self._command("set", lambda state: draft(state, Set, "", position=at(second)))

    def an_earlier_position_is_restored(self, share: int) -> None:
        def earlier(state: State) -> Commit:
            back = [p for p in self.read_upto if place(p) <= place(state.position)]
            return draft(state, Restore, "", position=back[share % len(back)] if back else None)

        self._command("restore", earlier)

    def stages_are_reset(self, stages: Any, told: bool) -> None:
        """`told`: whether the warehouse hears of it at once; else the next load begins the epoch."""
        if (
            "load" in stages
            and "extract" not in stages
            and any(
                self.model.files[n] != {f["path"] for f in d["files"]} for n, d in self.model.data.items()
            )
        ):
            return  # refused: their files were cleaned

        def begin_epoch(state: State) -> None:
            if told and "load" in stages:
                self.warehouse.set_epoch(TargetFiller("p", state.log, NAME, state.load_epoch), TABLE.target)

        self._command("reset", lambda state: draft(state, Reset, "", stages=stages), begin_epoch)

    def files_are_cleaned(self, include_pending: bool) -> None:
        now = datetime.now(UTC) + timedelta(days=1)
        outcome, landed = Cleaning(NAME), False

        def cleaned(state: State) -> Commit | None:
            log = Log(self.store, NAME)
            ledger = self._whole_ledger()
            facts = replace(
                gather(log, state, listed(self.store, NAME), ledger),
                loaded=loaded_at(state, ledger),
                under_way=None,
            )
            outcome.removal = choose(facts, Selection(include_pending=include_pending), now)
            if outcome.removal.empty:
                return None
            return draft(state, Clean, "", clean=outcome.removal.clean, position=outcome.removal.position)

        def removed(state: State) -> None:
            nonlocal landed
            landed = True
            remove(self.store, outcome)

        self._command("clean", cleaned, removed)
        if landed:
            self.backups.clear()  # their commits could not load again

    # Losses.

    @rule(left=st.integers(1, 9), how=st.sampled_from(["before", "after", "lost before", "lost after"]))
    def a_fault_is_near(self, left: int, how: Any) -> None:
        self.fault.arm(left, how)

    @precondition(lambda self: self.backups)
    @rule(share=SHARE)
    def the_warehouse_is_set_back(self, share: int) -> None:
        backup = self.backups[share % len(self.backups)]
        self.warehouse.rows, self.warehouse.entries, self.warehouse.holder = (
            dict(backup[0]),
            backup[1],
            backup[2],
        )

    @precondition(lambda self: self.copy is not None)
    @rule(what=st.sampled_from(["copies", "old copy", "commit", "commit"]), data=st.data())
    def something_is_lost(self, what: str, data: st.DataObject) -> None:
        """Copies, or a commit that two copies carry, which comes back byte for byte; a copy may also be an old one."""
        with self._unharmed():
            if what == "old copy":
                self.store.put(primary_path(NAME), self.copy or b"")
            elif what == "copies" and self.run is None:
                lost = data.draw(
                    st.sets(st.sampled_from(["tables/", "backups/daily/", "backups/sess"]), min_size=1)
                )
                self.store.delete([o.path for kind in lost for o in self.store.list(f"watermark/{kind}")])
            elif what == "commit" and (newest := self._copied()) >= 0:
                n = max(0, newest - data.draw(st.integers(0, 12)))
                harm = data.draw(st.sampled_from([None, b"", b'{"n":']))
                path = commit_path(NAME, n)
                self.store.delete([path]) if harm is None else self.store.put(path, harm)
                Log(self.store, NAME).read()
                assert Log(self.store, NAME).commit(n)[1] == digest(self.model.documents[n])

    # After every step.

    @invariant()
    def everything_is_as_the_model_says(self) -> None:
        with self._unharmed():
            self._follow()
            there = len(self.model.documents), self.warehouse.entries, self.store.get(primary_path(NAME))
            if there == self.checked:
                return
            self.checked = there
            log = Log(self.store, NAME)
            state = log.read()
            self._the_state_is_what_the_log_says(log, state)
            if state.table is not None:
                self._pending_is_what_the_ledger_lacks(log, state)
            self._no_row_is_lost()
            self._no_pending_file_is_removed()

    def _the_state_is_what_the_log_says(self, log: Log, state: State) -> None:
        model = self.model
        assert state.n == len(model.documents) - 1
        if state.n < 0:
            return
        assert state.digest == digest(model.documents[-1])
        whole = log.fold_on(State(NAME))
        assert whole == state, "a checkpoint and the newer commits give the fold of the whole log"
        progress = state.progress
        assert (state.claim.run if state.claim else None) == model.holder
        assert (state.position, progress.manual, state.retired) == (
            model.position,
            model.manual,
            model.retired,
        )
        assert progress.started == model.started
        assert state.window is None if model.window is None else state.window is not None
        if state.window is not None and model.window is not None:
            assert state.window.id == model.window["id"] and set(progress.done) == model.done
        reread = state.extraction.reread
        assert (reread.id if reread else None) == (model.reread["id"] if model.reread else None)
        if reread is not None:
            assert set(reread.done) == model.reread_done
        assert (state.load_epoch, state.extraction.epoch) == (model.epoch, model.since)
        totals = state.totals
        assert (totals.batches, totals.rows, totals.files) == model.totals()
        assert len(state.data.commits) <= 3 and len(state.data.recent_files) <= 4

    def _pending_is_what_the_ledger_lacks(self, log: Log, state: State) -> None:
        model = self.model
        entries = [r for r in self.warehouse.entries if r.epoch == model.epoch]
        assert len({r.n for r in entries}) == len(entries), "a commit is loaded once"
        loaded = {r.n for r in entries} & model.data.keys()
        expected = sorted(model.data.keys() - loaded)
        for whole in (False, True):
            ledger = ledger_for(self.warehouse, state, TABLE.target, whole=whole)
            data = log.data(state, ledger.rows)
            assert [d.n for d in pending(data, ledger, state.load_epoch)] == expected
        every = log.data(state, (), superseded=True)
        assert [d.n for d in every] == sorted(model.written)
        assert {d.n for d in every if not d.superseded} == model.data.keys()
        assert {d.n for d in every if d.cleaned} == {
            n for n, d in model.written.items() if len(model.files[n]) < len(d["files"])
        }
        publisher = Publisher(self.store, NAME, "")
        seen = observe(state, self.warehouse.entries, lookup=publisher._lookup)
        shown = document(seen, str)
        assert condense(state, self.warehouse.entries).pending(state) == bool(expected)
        assert (shown["mysql_rows_extracted"], shown["mysql_rows_reread"]) == model.rows(model.since)
        assert (shown["redshift_rows_loaded"], shown["redshift_rows_reloaded"]) == model.rows(0, loaded)
        assert shown["pending_s3_files"] == [
            p for n, p in state.data.recent_files if n in expected
        ] and shown["processed_s3_files"] == [
            p for n, p in state.data.recent_files if n in {r.n for r in entries}
        ]

    def _no_row_is_lost(self) -> None:
        """Every row at or below a position that reading has reached is among the commits that load."""
        there = {(f["path"]) for d in self.model.data.values() if d["kind"] == "batch" for f in d["files"]}
        rows = {(k, t) for path in there for k, t in self._rows(path)}
        for key, second in self.source.items():
            assert (key, second) in rows or not self.model.promises(at(second, key))

    def _no_pending_file_is_removed(self) -> None:
        loaded = {r.n for r in self.warehouse.entries if r.epoch == self.model.epoch}
        for n, d in self.model.data.items():
            if n not in loaded and len(self.model.files[n]) == len(d["files"]):
                assert all(self.store.get(f["path"]) is not None for f in d["files"])

    # How it works.

    def _ends(self) -> None:
        self._publishes()
        if self.run is not None:
            with self._may_die():
                assert self.run.lease is not None
                self.run.lease.release()
                self.run.die()
                self.run = None

    def _everything_arrives(self) -> None:
        """A last sync, undisturbed: the target has every promised row as the source has it, and no other."""
        if self.run is not None:
            self._dies()
        if any(
            n not in {r.n for r in self.warehouse.entries if r.epoch == self.model.epoch}
            and len(self.model.files[n]) < len(d["files"])
            for n, d in self.model.data.items()
        ):
            return  # files were cleaned, then the ledger lost: the load refuses, and says what to do
        self.a_sync_claims_the_table(0, "cursor", False)
        assert self.run is not None
        while self.run.state.window is not None:
            self._commit_slices(self.run, 0, 9)
        self._load(self.run, None)
        self._commit_deletes(self.run)
        self._load(self.run, None)
        self._publishes()
        self._follow()
        rows = self.warehouse.rows
        promised = {k: t for k, t in self.source.items() if self.model.promises(at(t, k))}
        assert {k: rows.get(k) for k in promised} == promised
        assert rows.keys() <= self.source.keys()
        self.everything_is_as_the_model_says()

    def _name(self, stem: str) -> str:
        self.made += 1
        return f"{stem}{self.made}"

    @contextmanager
    def _unharmed(self) -> Iterator[None]:
        """No fault strikes here."""
        left, self.fault.left = self.fault.left, 0
        yield
        self.fault.left = left

    @contextmanager
    def _may_die(self) -> Iterator[None]:
        try:
            yield
        except Crash:
            self._dies()

    def _dies(self) -> None:
        assert self.run is not None
        self.run.die()
        self.run = None

    def _follow(self) -> None:
        """The model reads the new documents; the earlier ones must be there as they were."""
        objects = {o.path: self.store.get(o.path) or b"" for o in self.store.list(f"commits/{NAME}/")}
        assert list(objects) == [commit_path(NAME, n) for n in range(len(objects))], "a log has no gaps"
        found = list(objects.values())
        assert found[: len(self.model.documents)] == self.model.documents, "a commit never changes"
        for data in found[len(self.model.documents) :]:
            self.model.follow(data)
            self.read_upto.append(self.model.position)
        ids = [json.loads(data)["id"] for data in found]
        assert all(ids[n] == id for id, n in self.committed.items()), "what was confirmed is in the log"

    def _claims(self, purpose: str, plan: Callable[[State], dict[str, Any]], **more: Any) -> bool:
        """A new process claims the table, unless another one lives that holds it."""
        self._follow()
        self.number += 1
        run = Run(self.store, self.number)
        taken: Claimed | None = None
        try:
            run.state = run.log.read()
            held = self.run
            try:
                table = None if purpose in ("retire", "set") and run.state.table else TABLE
                taken = claim(
                    run.log, run.state, run=run.name, purpose=purpose, table=table, **plan(run.state), **more
                )
                assert held is None, "a table that a live run holds was claimed"
            except ConflictError:
                assert held is not None, "a free table was refused"
        except Crash:
            pass
        if taken is None:
            run.die()
            return False
        run.state, run.lease = taken.state, taken.lease
        assert holder(self.store, NAME, run.state.claim) is not None
        self.run = run
        return True

    def _append(self, run: Run, commit: Commit) -> None:
        commit = replace(commit, run=run.name)
        run.state = run.log.append(run.state, commit)
        self.committed[commit.id] = commit.n

    def _command(
        self,
        purpose: str,
        decide: Callable[[State], Commit | None],
        then: Callable[[State], None] = lambda state: None,
    ) -> None:
        """One commit under a claim of its own."""
        if not self._claims(purpose, lambda state: {}):
            return
        assert self.run is not None
        with self._may_die():
            commit = decide(self.run.state)
            if commit is not None:
                self._append(self.run, commit)
                then(self.run.state)
        if self.run is not None:
            self._ends()

    def _publishes(self) -> None:
        if self.run is None:
            return
        with self._may_die():
            self.copy = self.store.get(primary_path(NAME)) or self.copy
            self.run.publisher.publish(self.run.state, self._whole_ledger().rows)

    def _copied(self) -> int:
        """The newest commit that the primary and the daily copy both carry, while nobody works."""
        if self.run is not None or self.paused is not None:
            return -1
        data = self.store.get(primary_path(NAME))
        daily = self.store.get(daily_path(NAME, datetime.now(UTC).isoformat()))
        if data is None or data != daily:
            return -1
        return int(json.loads(data)["checkpoint"]["body"]["state"]["n"])

    def _whole_ledger(self) -> Ledger:
        ledger: Ledger = self.warehouse.ledger("", TABLE.target)
        return ledger

    def _load(self, run: Run, limit: int | None) -> None:
        self.backups.append((dict(self.warehouse.rows), self.warehouse.entries, self.warehouse.holder))
        lost = [
            n for n, d in self.model.data.items()
            if len(self.model.files[n]) < len(d["files"])
            and n not in {r.n for r in self.warehouse.entries if r.epoch == self.model.epoch}
        ]  # fmt: skip
        if not lost:
            choice = choose_pending(self.warehouse, run.log, run.state, "p", limit=limit)
            for request in requests(run.log, run.state, choice, "p", run.name):
                self.warehouse.load(request)

    def _commit_slices(self, run: Run, first: int, count: int) -> None:
        window = run.state.window
        assert window is not None
        free = [i for i in range(window.slices) if i not in run.state.progress.done]
        chosen = tuple(free[first % len(free) :][:count])
        rows = [row for number in chosen for row in self._slice(window, number)]
        self._commit_rows(run, rows, window_id=window.id, slices=chosen, seconds=0.5)

    def _commit_deletes(self, run: Run) -> None:
        gone = sorted(self.warehouse.rows.keys() - self.source.keys())
        if gone:
            self._commit_rows(run, [(key, 0) for key in gone], Deletes, load_as="delete")

    def _slice(self, window: Window, number: int) -> list[tuple[int, int]]:
        """The rows that a task reads for a slice: their keys and versions."""
        edges = (None, *window.edges, None)
        after, upto = edges[number], edges[number + 1]
        found = []
        for key, second in self.source.items():
            here = at(second, key)
            inside = place(window.low) < place(here) <= place(window.high)
            if window.by == "cursor":
                inside = inside and (after is None or place(after) < place(here))
                inside = inside and (upto is None or place(here) <= place(upto))
            else:
                inside = inside and (after is None or after[0] < key) and (upto is None or key <= upto[0])  # type: ignore[operator]
            if inside:
                found.append((key, second))
        return found

    def _commit_rows(self, run: Run, rows: list[tuple[int, int]], kind: Any = Batch, **more: Any) -> None:
        """Writes the rows to one or two files, and commits them."""
        files = []
        for half in (rows[::2], rows[1::2]):
            if half:
                path = f"{'keys' if kind is Deletes else 'data'}/{NAME}/{run.name}/{self._name('f')}.parquet"
                content = json.dumps(half).encode()
                self._contents[path] = half
                self.store.put(path, content)
                seconds = sorted((t, k) for k, t in half)
                files.append(
                    DataFile(
                        path, len(half), len(content), "00", 0,
                        first=at(*seconds[0]), last=at(*seconds[-1]),
                    )
                )  # fmt: skip
        load_as = {"load_as": "delete"} if kind is Deletes else {}
        fields = {"files": tuple(files), "schema": TABLE.fingerprint, **load_as, **more}
        self._append(run, draft(run.state, kind, run.name, **fields))

    def _rows(self, path: str) -> list[tuple[int, int]]:
        return self._contents[path]


def _second(position: Position) -> int:
    minutes, seconds = str(position[0])[14:19].split(":")
    return int(minutes) * 60 + int(seconds)


TestMachine = Machine.TestCase
TestMachine.settings = settings(
    max_examples=2000 if LONG else 60,
    stateful_step_count=60 if LONG else 40,
    suppress_health_check=list(HealthCheck),
    deadline=None,
    print_blob=True,
)
