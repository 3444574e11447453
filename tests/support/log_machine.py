"""What the state machine over the log needs: a model of the log, a store and a warehouse in memory, and faults.

The model reads the documents in the store one by one, in the simplest terms: no checkpoint, no totals, no claim
checked before a write. It is what the product's fold, with all of these, must amount to.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from floodmark.config.load import StoreSpec
from floodmark.load.decide import check_new_epoch, decide
from floodmark.load.protocol import LoadOutcome, LoadRequest
from floodmark.model.errors import NoAnswer
from floodmark.model.json import digest
from floodmark.model.ledger import SUMMED_DIGITS, Ledger, LedgerRow, Part, TargetFiller
from floodmark.model.position import Position
from floodmark.store.folder import Folder
from floodmark.store.store import Overlay, Store
from tests.support.samples import TABLE

A = TypeVar("A")
R = TypeVar("R")
Strike = Literal["before", "after", "lost before", "lost after"]


class Crash(BaseException):
    """The process dies here."""


class Fault:
    """Strikes at one of the next durable steps: the process dies, or the answer to a create is lost."""

    def __init__(self) -> None:
        self.left, self.how = 0, "before"

    def arm(self, left: int, how: Strike) -> None:
        self.left, self.how = left, how

    def step(self, act: Callable[[], R], creates: bool = False) -> R:
        self.left -= 1
        if self.left != 0 or (self.how.startswith("lost") and not creates):
            return act()
        if self.how.endswith("after"):
            act()
        raise NoAnswer("the connection broke") if self.how.startswith("lost") else Crash


class Objects(Overlay):
    """A store in memory."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(Folder(Path("/nowhere/at/all")), lambda path: False)
        self.fault = fault

    def create(self, path: str, data: bytes) -> bool:
        return self.fault.step(lambda: Overlay.create(self, path, data), creates=True)

    def put(self, path: str, data: bytes | bytearray | memoryview | Path) -> None:
        self.fault.step(lambda: Overlay.put(self, path, data))

    def delete(self, paths: Sequence[str]) -> None:
        self.fault.step(lambda: Overlay.delete(self, paths))


class MemoryStore(Store):
    """The same, with requests one after the other, so that a run can be repeated."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(StoreSpec(url="/nowhere/at/all"))
        self._at = Objects(fault)

    def each(self, act: Callable[[A], R], items: Sequence[A]) -> tuple[R, ...]:
        return tuple(map(act, items))


class MemoryWarehouse:
    """A target and its ledger; a load is one transaction, and `decide` says what it does."""

    schema = "main"
    wide_bytes = None

    def __init__(self, store: Store, fault: Fault) -> None:
        self.store, self.fault = store, fault
        self.rows: dict[int, int] = {}  # key -> version
        self.entries: tuple[LedgerRow, ...] = ()
        self.holder: TargetFiller | None = None

    def ledger(self, log: str, target: str, part: Part | None = None) -> Ledger:
        epoch = self.holder.epoch if self.holder else None
        if part is None:
            return Ledger(epoch, self.entries, self.holder)
        kept = tuple(r for r in self.entries if r.epoch == part.epoch and r.n > part.after)
        rest: dict[tuple[bool, bool], list[LedgerRow]] = {}
        for row in self.entries:
            if row not in kept:
                other = row.epoch != part.epoch
                rest.setdefault((other, not other and row.n <= part.superseded), []).append(row)
        return Ledger(
            epoch, (*(_summed(rows, other) for (other, _), rows in rest.items()), *kept), self.holder, part
        )

    def load(self, request: LoadRequest) -> LoadOutcome:
        found = decide(request, self.ledger(request.log, request.target), len(self.rows))
        rows = dict(self.rows)
        for commit, _ in found.staged:
            for file in commit.files:
                content = self.store.get(file.path)
                assert content is not None, f"{file.path} of commit {commit.n} is gone, and was to load"
                for key, version in json.loads(content):
                    if found.way == "delete":
                        rows.pop(key, None)
                    else:
                        rows[key] = version
        written = request.ledger_rows(found.new)
        kept = [r for r in self.entries if r.epoch != request.epoch or r.identity not in request.retake]

        def commit_transaction() -> None:
            self.rows, self.entries, self.holder = rows, (*kept, *written), request.holder

        self.fault.step(commit_transaction)
        return LoadOutcome(written, found.already, request.retake)

    def shares(self, request: LoadRequest) -> bool:
        return False

    def set_epoch(self, holder: TargetFiller, target: str, *, adopt: bool = False) -> None:
        check_new_epoch(self.ledger(holder.log, target), holder, target, adopt)
        self.fault.step(lambda: setattr(self, "holder", holder))


def _summed(rows: Sequence[LedgerRow], other: bool) -> LedgerRow:
    total = sum(int(r.digest[-SUMMED_DIGITS:], 16) for r in rows) % 16**SUMMED_DIGITS
    last = max(rows, key=lambda r: r.n)
    return last._replace(
        digest=f"{total:0{SUMMED_DIGITS}x}", rows=sum(r.rows for r in rows), files=sum(r.files for r in rows),
        loaded_at=max(r.loaded_at for r in rows), commits=len(rows), summed=True, epoch=-1 if other else last.epoch,
    )  # fmt: skip


def place(position: Position | None) -> tuple[Any, ...]:
    """Sort key: a position without a key comes after every row of its second."""
    if position is None:
        return ("",)
    return (position[0], position[1] if len(position) > 1 else float("inf"))


class Model:
    """What the documents of a log say, taken literally."""

    def __init__(self) -> None:
        self.documents: list[bytes] = []
        self.holder: str | None = None
        self.position: Position | None = None
        self.started = self.manual = self.retired = False
        self.window: dict[str, Any] | None = None
        self.done: set[int] = set()
        self.reread: dict[str, Any] | None = None
        self.reread_done: set[int] = set()
        self.epoch = self.since = 0  # the last reset of the load, and of the extraction
        self.data: dict[int, dict[str, Any]] = {}  # what loads: neither superseded nor given up
        self.written: dict[int, dict[str, Any]] = {}  # everything that had something to load
        self.files: dict[int, set[str]] = {}  # those that are still meant to be there
        self.covered: list[tuple[Position | None, Position]] = []  # what is promised to be in `data`

    def follow(self, data: bytes) -> None:
        """The next document."""
        document = json.loads(data)
        n, kind = document["n"], document["kind"]
        assert n == len(self.documents) and (kind == "open") == (n == 0)
        assert document["prev"] == (digest(self.documents[-1]) if n else "")
        if kind not in ("open", "claim"):
            assert document["run"] == self.holder, (
                f"{document['run']} committed, {self.holder} holds the table"
            )
        self.documents.append(data)
        getattr(self, f"_{kind}")(document)

    def _open(self, document: dict[str, Any]) -> None:
        pass

    def _claim(self, document: dict[str, Any]) -> None:
        self.holder = document["run"]
        self.retired = document["purpose"] == "retire" or (self.retired and document["purpose"] != "sync")
        window, reread = document["window"], document["reread"]
        if window is not None and (self.window is None or window["id"] != self.window["id"]):
            self.window, self.done = window, set(window["done"])
        elif window is None and document["purpose"] == "sync" and not self.done:
            self.window = None  # nothing of it was read
        if reread is not None and (self.reread is None or reread["id"] != self.reread["id"]):
            self.reread, self.reread_done = reread, set()

    def _batch(self, document: dict[str, Any]) -> None:
        slices = set(document["slices"])
        if document["window_id"] is not None:
            assert self.window is not None and not slices & self.done
            self.done |= slices
            self.started, self.manual = True, False
            edges, reached = self.window["edges"], 0
            while reached in self.done:
                reached += 1
            if reached > len(edges):
                self._read(tuple(self.window["high"]))
                self.window, self.done = None, set()
            elif self.window["by"] == "cursor" and reached:
                self._read(tuple(edges[reached - 1]))
        elif self.reread is not None and document["reread_id"] == self.reread["id"]:
            self.reread_done |= slices
            if len(self.reread_done) > len(self.reread["edges"]):
                self.reread = None
        self._loads(document)

    def _read(self, upto: Position) -> None:
        self.covered.append((self.position, upto))
        self.position = upto

    def _deletes(self, document: dict[str, Any]) -> None:
        self._loads(document)

    def _loads(self, document: dict[str, Any]) -> None:
        if document["files"]:
            self.data[document["n"]] = self.written[document["n"]] = document
            self.files[document["n"]] = {f["path"] for f in document["files"]}

    def _moved(self, position: list[Any] | None) -> None:
        self.position = tuple(position) if position is not None else None
        self.window, self.done = None, set()
        self.started, self.manual = position is not None, False

    def _set(self, document: dict[str, Any]) -> None:
        self._moved(document["position"])
        self.manual = True

    def _restore(self, document: dict[str, Any]) -> None:
        self._moved(document["position"])

    def _reset(self, document: dict[str, Any]) -> None:
        if "load" in document["stages"]:
            self.epoch = document["n"]
        if "extract" in document["stages"]:
            self._moved(None)
            self.since, self.reread = document["n"], None
            if "load" in document["stages"]:
                self.data, self.covered = {}, []

    def _clean(self, document: dict[str, Any]) -> None:
        clean = document["clean"]
        for n, commit in self.written.items():
            if any(first <= n <= last for first, last in clean["whole"]):
                self.files[n] = set()
            for _, places in (each for each in clean["some"] if each[0] == n):
                self.files[n] -= {commit["files"][i]["path"] for i in places}
        for gone in clean["given_up"]:
            del self.data[gone[0]]
        if clean["moved"]:
            self._moved(document["position"])
        if clean["given_up"]:
            reached = place(self.position)
            self.covered = [(low, high) for low, high in self.covered if place(high) <= reached] + [
                (low, self.position)
                for low, high in self.covered
                if self.position is not None and place(low) < reached < place(high)
            ]

    # What people are shown.

    def rows(self, since: int, numbers: set[int] | None = None) -> tuple[int, int]:
        """Rows of windows, and rows read again, of these commits since a reset."""
        found: Counter[bool] = Counter()
        for n, document in self.data.items():
            if n > since and document["kind"] == "batch" and (numbers is None or n in numbers):
                found[document["window_id"] is None] += sum(f["rows"] for f in document["files"])
        return found[False], found[True]

    def totals(self) -> tuple[int, int, int]:
        """Commits, rows and files since the last reset of the extraction."""
        files = [d["files"] for n, d in self.written.items() if n > self.since]
        return len(files), sum(f["rows"] for each in files for f in each), sum(map(len, files))

    def promises(self, position: Position) -> bool:
        """Whether a row at this position must be among what loads."""
        return any(place(low) < place(position) <= place(high) for low, high in self.covered)


NAME = TABLE.name
