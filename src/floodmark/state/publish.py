"""The three copies of a watermark: how they are written, read and judged.

Copies may be stale or lost without harm. Each carries a checkpoint, the fold itself with a checksum, from which a
reader goes on with the log's newer commits; and the log's newest commits byte for byte, so that one that is lost
from the log can be put back as it was. Nothing is written when nothing changed.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from hashlib import md5
from typing import TYPE_CHECKING, Any

from floodmark.errors import FloodmarkError
from floodmark.model import Commit, digest, dump, load
from floodmark.state.fold import DataCommit, State, data_commit
from floodmark.state.loaded import LedgerRow, Loaded
from floodmark.state.watermark import (
    CHECKPOINT_VERSION,
    Checkpoint,
    Copy,
    Failure,
    Stage,
    commit_path,
    daily_path,
    document,
    log,
    observe,
    primary_path,
    session_path,
    stamp,
)
from floodmark.store import NO_DOCUMENT, Store

if TYPE_CHECKING:
    from floodmark.state.log import Log

# What is said of a copy that an earlier or later Floodmark has written: sound, but not to be read by this one.
OTHER_VERSION = "of another version"

ATTEMPTS = 3
READERS = 16
LOCATIONS = ("primary", "daily", "session")
# Commits that a copy carries byte for byte: at most so many, and beyond the newest at most so much.
TAIL_COMMITS = 40
TAIL_BYTES = 64_000
# S3 refuses requests of clocks that are a quarter of an hour off: two of them differ by twice that at most.
CLOCK_SKEW = timedelta(minutes=30)


def render(body: dict[str, Any], seen: Checkpoint, tail: Iterable[bytes] = ()) -> bytes:
    """A copy's bytes: the document, laid out for people, then the checkpoint and the commits in a line each."""
    text = json.dumps(body, indent=2, ensure_ascii=False)
    commits = json.dumps([c.decode() for c in tail], ensure_ascii=False, separators=(",", ":"))
    inner = dump(seen)
    return b'%s,\n  "checkpoint": {"sum": "%s", "body": %s,\n    "commits": %s}\n}\n' % (
        text.removesuffix("\n}").encode(),
        digest(inner).encode(),
        inner,
        commits.encode(),
    )


def parse(data: bytes | None, table_name: str) -> Copy | None:
    """The copy in these bytes, or None when they are anything but a sound copy of this table's watermark."""
    found = examine(data, table_name)
    return found if isinstance(found, Copy) else None


def examine(data: bytes | None, table_name: str, now: datetime | None = None) -> Copy | str:
    """The copy in these bytes, or what is wrong with them. Whether the log knows it is not asked here."""
    if data is None:
        return "missing"
    if data == NO_DOCUMENT:
        return "too large to be a watermark"
    try:
        body = json.loads(data)
        if not isinstance(body, dict) or "table_name" not in body:
            return "not a watermark"
        if body["table_name"] != table_name:
            return f"the watermark of {body['table_name']}"
        inner = body["checkpoint"]["body"]
        text = json.dumps(inner, ensure_ascii=False, separators=(",", ":")).encode()
        if digest(text) != body["checkpoint"]["sum"]:
            return "damaged: its checksum is wrong"
        if inner["version"] != CHECKPOINT_VERSION:
            return f"{OTHER_VERSION} ({inner['version']})"
        found = load(Checkpoint, text)
        # Nothing in it is unknown here. What it lacks has come since, and its absence says what it was before.
        if not _holds(json.loads(dump(found)), inner):
            return OTHER_VERSION
        if found.state.table_name != table_name:
            return f"the watermark of {found.state.table_name}"
        saved = dict(body["backup_metadata"])
        tail = tuple(str(c).encode() for c in body["checkpoint"].get("commits", ()))
        return _implausible(body, found, saved, now or datetime.now(UTC)) or Copy(found, saved, tail)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return "unreadable"


def _holds(read: object, written: object) -> bool:
    """Whether everything that was written has been read, and as it was."""
    if isinstance(read, dict) and isinstance(written, dict):
        return all(name in read and _holds(read[name], value) for name, value in written.items())
    if isinstance(read, list) and isinstance(written, list):
        return len(read) >= len(written) and all(map(_holds, read, written))  # named tuples may have grown
    return type(read) is type(written) and read == written


def _implausible(body: dict[str, Any], seen: Checkpoint, saved: dict[str, Any], now: datetime) -> str | None:
    """What can't be true of a copy whose checkpoint is whole; raises ValueError for a time that is none."""
    state, loaded = seen.state, seen.load
    if datetime.fromisoformat(saved["saved_at"]) > now + CLOCK_SKEW:
        return f"saved in the future ({saved['saved_at']})"
    times = [state.created_at, state.updated_at, state.last_extraction_time, state.moved_at, loaded.last]
    for moment in (*times, *(f.at for f in seen.failures)):
        if moment is not None:
            datetime.fromisoformat(moment)
    if (
        min(state.rows, state.files, state.bytes, state.batches, loaded.rows, loaded.files, loaded.commits)
        < 0
    ):
        return "counts below zero"
    # What people read in it is what its checkpoint says; files are left out, because a store may move.
    for key, value in document(seen, str, saved).items():
        # Earlier versions called a table pending whose sync had found no row.
        looked = key.endswith("_status") and (body.get(key), value) == ("pending", "success")
        if key in body and not key.endswith("_s3_files") and not looked and body[key] != value:
            return f"changed by hand: {key}"
    return None


def chained(state: State, tail: Iterable[bytes]) -> tuple[bytes, ...]:
    """The commits of a tail that are proven by the digest of the next one, up to the state's own; in order."""
    found: list[bytes] = []
    expected = state.digest
    for data in reversed(tuple(tail)):
        try:
            commit = load(Commit, data)
        except ValueError:
            break
        if digest(data) != expected or commit.n != state.n - len(found):
            break
        found.append(data)
        expected = commit.prev
    return tuple(reversed(found))


def newest(
    store: Store, state: State, last: Copy | None, own: Mapping[int, bytes] | None = None
) -> tuple[bytes, ...]:
    """The log's newest commits up to the state's, as a copy carries them; what can't be had is left out.

    `own` are commits that need not be asked for; the digests prove them like the others.
    """
    made = own or {}
    first = max(0, state.n - TAIL_COMMITS + 1)
    known: tuple[bytes, ...] = ()
    if last is not None and last.tail and last.checkpoint.state.log == state.log:
        known = last.tail
        first = max(first, last.checkpoint.state.n + 1)
    try:
        fetched = [
            made.get(n) or store.get(commit_path(state.table_name, n)) or b""
            for n in range(first, state.n + 1)
        ]
    except FloodmarkError:
        return ()
    kept: list[bytes] = []
    for data in reversed(chained(state, (*known, *fetched))):
        if kept and (len(kept) == TAIL_COMMITS or sum(map(len, kept[1:])) + len(data) > TAIL_BYTES):
            break
        kept.append(data)
    return tuple(reversed(kept))


def data_commits(store: Store, table_name: str, numbers: Sequence[int]) -> list[DataCommit]:
    """The data commits of these numbers that can be read as they lie there."""
    found: list[DataCommit] = []
    with ThreadPoolExecutor(READERS, thread_name_prefix="counts") as pool:
        for data in pool.map(store.get, (commit_path(table_name, n) for n in numbers)):
            try:
                commit = load(Commit, data or b"")
            except ValueError:
                continue
            one = data_commit(commit, commit.stands_for or digest(data or b""), -1)
            found += [one] if one is not None else []
    return found


class Watermark:
    """One table's published watermark, as one run sees and publishes it. May be used from several threads."""

    def __init__(
        self, store: Store, table_name: str, run: str, *, pause: float = 0.2, log: Log | None = None
    ) -> None:
        """`log` is the run's own, for what it knows already: the primary copy, and the commits that it has made."""
        self.store = store
        self.table_name = table_name
        self.run = run
        self._log = log
        self._pause = pause
        self._lock = threading.Lock()
        self._last: Copy | None = None
        self._asked = False
        self._failed: frozenset[str] = frozenset()
        self._warned = False
        self._looked_up: dict[int, DataCommit | None] = {}

    @property
    def failures(self) -> tuple[Failure, ...]:
        """What the published watermark says has failed and not succeeded since."""
        with self._lock:
            last = self._published()
            return last.checkpoint.failures if last else ()

    def loaded_before(self, state: State) -> Loaded | None:
        """What the published copy knows to be loaded of the state's commits; None: it does not say."""
        with self._lock:
            last = self._published()
        if last is None or last.checkpoint.state.log != state.log:
            return None
        loaded = last.checkpoint.load
        return loaded if loaded.commits and loaded.epoch == state.load_epoch else None

    def counts_as_before(self, state: State) -> bool:
        """Whether the published copy still counts as an earlier version did, and the state, counted anew, does not."""
        with self._lock:
            last = self._published()
            return last is not None and state.apart and not last.checkpoint.state.apart

    def current(
        self, state: State, ledger: Iterable[LedgerRow] | None, failure: Failure | None = None
    ) -> dict[str, Any]:
        """The document as of now; writes nothing."""
        with self._lock:
            last = self._published()
            seen = observe(state, ledger, last, failure=failure, lookup=self._lookup)
            return document(seen, self.store.uri, last.saved if last else None)

    def publish(
        self,
        state: State,
        ledger: Iterable[LedgerRow] | None,
        *,
        failure: Failure | None = None,
        succeeded: Collection[Stage] = (),
    ) -> dict[str, Any]:
        """Publishes the document to its three places where it changed, and returns it.

        A copy that can't be written is logged and tried again with the next change; it stops nothing.
        """
        with self._lock:
            last = self._published()
            if (
                last is not None
                and last.checkpoint.state.log == state.log
                and last.checkpoint.state.n > state.n
            ):
                state = last.checkpoint.state  # a slower thread of this run: the copies never go back
            seen = observe(state, ledger, last, failure=failure, succeeded=succeeded, lookup=self._lookup)
            if last is not None and seen == last.checkpoint and not self._failed:
                return document(seen, self.store.uri, last.saved)
            saved = {"saved_at": stamp(), "session_id": self.run, "backup_locations": list(LOCATIONS)}
            body = document(seen, self.store.uri, saved)
            tail = newest(self.store, seen.state, last, self._log.own if self._log else None)
            self._failed = self._write(render(body, seen, tail), str(saved["saved_at"]))
            self._last = Copy(seen, saved, tail)
            return body

    def _lookup(self, numbers: Sequence[int]) -> list[DataCommit]:
        """Old commits that were loaded while others of their time were not; each is fetched once."""
        wanted = [n for n in numbers if n not in self._looked_up]
        if wanted:
            found = {d.n: d for d in data_commits(self.store, self.table_name, wanted)}
            self._looked_up |= {n: found.get(n) for n in wanted}
        return [d for n in numbers if (d := self._looked_up[n]) is not None]

    def _published(self) -> Copy | None:
        if not self._asked:
            known = self._log.seen if self._log else None
            if known is not None:
                self._last = known.copy
            else:
                self._last = parse(self.store.get(primary_path(self.table_name)), self.table_name)
            self._asked = True
        return self._last

    def _write(self, data: bytes, saved_at: str) -> frozenset[str]:
        paths = (
            primary_path(self.table_name),
            daily_path(self.table_name, saved_at),
            session_path(self.table_name, self.run),
        )
        tag = md5(data, usedforsecurity=False).hexdigest()
        with ThreadPoolExecutor(len(paths)) as pool:
            failures = list(pool.map(lambda path: self._write_one(path, data, tag), paths))
        failed = {where: why for where, why in zip(LOCATIONS, failures, strict=True) if why}
        if failed:
            # Aloud once per run: what breaks the copies mostly breaks the next commit too, which then says so.
            level = logging.INFO if self._warned else logging.WARNING
            self._warned = True
            log.log(
                level, "%s: watermark copies could not be written (%s): %s",
                self.table_name, ", ".join(failed), next(iter(failed.values())),
                extra={"run": self.run, "table": self.table_name, "step": "publish"},
            )  # fmt: skip
        return frozenset(failed)

    def _write_one(self, path: str, data: bytes, tag: str) -> str | None:
        """Writes one copy and makes sure of it; why it could not be done, or None.

        Most servers answer with the MD5 of what they have taken; where it is not that, the copy is read back.
        """
        why = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                time.sleep(self._pause * 2 ** (attempt - 1))
            try:
                if (self.store.put(path, data) or "").strip('"') == tag or self.store.get(path) == data:
                    return None
                why = "it reads back differently"
            except FloodmarkError as error:
                why = error.message
        return f"{path}: {why}"
