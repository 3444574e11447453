"""The copies of a watermark: how they are written, read and validated, in the store and in further places.

A stale or lost copy does no harm. Each copy carries a checkpoint (the fold itself, with a checksum) from
which a reader resumes with the log's newer commits, and the newest commits byte for byte, so that a commit
lost from the log can be restored exactly. Nothing is written if nothing has changed. In order of trust: the
primary, the daily copies, the session copies (newest first in both cases), then those of each further place
(`store.copies_to`), which mirrors the store's layout and belongs to one pipeline.
"""

from __future__ import annotations

import json
import logging
import math
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import md5
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from floodmark.host.retry import Retries
from floodmark.log.document import (
    CHECKPOINT_VERSION,
    Checkpoint,
    Copy,
    Flaw,
    LoadStatus,
    StageFailure,
    commit_numbers,
    commit_path,
    daily_path,
    document,
    log,
    observe,
    primary_path,
    session_path,
    sessions,
)
from floodmark.log.fold import DataCommit, State, data_commit
from floodmark.model.commit import read_commit
from floodmark.model.errors import ConfigError, FloodmarkError, TransientError
from floodmark.model.json import digest, dump, dump_quickly, load
from floodmark.model.ledger import LedgerRow
from floodmark.model.run import Stage
from floodmark.model.times import parse_time, stamp
from floodmark.store.places import Place
from floodmark.store.store import NO_DOCUMENT, Store, encode

if TYPE_CHECKING:
    from floodmark.log.log import Log

A = TypeVar("A")

WRITING = Retries(3)
LOCATIONS = ("primary", "daily", "session")
# Commits that a copy carries byte for byte: at most this many, and this many bytes besides the newest.
TAIL_COMMITS = 40
TAIL_BYTES = 64_000
# S3 rejects requests whose clock is more than 15 minutes off, so two clients differ by at most twice that.
CLOCK_SKEW = timedelta(minutes=30)
# Seconds that a publication may wait for one that overtakes it, and saves its requests.
SOON = 2.0
# Seconds after which its process must have been paused: another run may have taken the table meanwhile.
LATE = 10.0


def render(body: dict[str, Any], seen: Checkpoint, tail: Iterable[bytes] = ()) -> bytes:
    """A copy's bytes: the document, formatted for people, then checkpoint and commits on one line each."""
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
    """The copy in these bytes, or None unless they are a sound copy of this table's watermark."""
    found = examine(data, table_name)
    return found if isinstance(found, Copy) else None


@dataclass(frozen=True)
class _Body:
    body: Checkpoint


@dataclass(frozen=True)
class _Published:
    table_name: str
    backup_metadata: dict[str, Any]
    checkpoint: _Body


def glance(data: bytes | None, table_name: str) -> Copy | None:
    """The copy in these bytes, to be shown only: not proven to be sound, which takes twice as long."""
    try:
        found = load(_Published, data or b"")
    except ValueError:
        return None
    seen = found.checkpoint.body
    ours = found.table_name == seen.state.table_name == table_name and seen.version == CHECKPOINT_VERSION
    return Copy(seen, found.backup_metadata) if ours else None


def examine(data: bytes | None, table_name: str, now: datetime | None = None) -> Copy | Flaw:
    """The copy in these bytes, or what is wrong with them. Does not check it against the log."""
    if data is None:
        return Flaw("missing", "missing")
    if data == NO_DOCUMENT:
        return Flaw("damaged", "too large to be a watermark")
    try:
        body = json.loads(data)
        if not isinstance(body, dict) or "table_name" not in body:
            return Flaw("damaged", "not a watermark")
        if body["table_name"] != table_name:
            return Flaw("damaged", f"the watermark of {body['table_name']}")
        inner = body["checkpoint"]["body"]
        text = json.dumps(inner, ensure_ascii=False, separators=(",", ":")).encode()
        if digest(text) != body["checkpoint"]["sum"]:
            return Flaw("damaged", "damaged: its checksum is wrong")
        # Sound, but written by an earlier or later Floodmark: this version must not read it.
        if inner["version"] != CHECKPOINT_VERSION:
            return Flaw("other_version", f"of another version ({inner['version']})")
        found = load(Checkpoint, text)
        # An unknown field means another version. A missing one was added since, and its default is right. This
        # version's own copies come out as they went in, which shows without taking them apart.
        if dump_quickly(found) != text and not _holds(json.loads(dump(found)), inner):
            return Flaw("other_version", "of another version")
        if found.state.table_name != table_name:
            return Flaw("damaged", f"the watermark of {found.state.table_name}")
        saved = dict(body["backup_metadata"])
        tail = tuple(str(c).encode() for c in body["checkpoint"].get("commits", ()))
        why = _implausible(body, found, saved, now or datetime.now(UTC))
        return Flaw("damaged", why) if why else Copy(found, saved, tail)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Flaw("damaged", "unreadable")


def _holds(read: object, written: object) -> bool:
    """Whether everything written was read back unchanged, except a table's notes, which are never read."""
    if isinstance(read, dict) and isinstance(written, dict):
        return all(
            name == "notes" or (name in read and _holds(read[name], value)) for name, value in written.items()
        )
    if isinstance(read, list) and isinstance(written, list):
        # Named tuples may have gained fields.
        return len(read) >= len(written) and all(map(_holds, read, written))
    return type(read) is type(written) and read == written


def _implausible(body: dict[str, Any], seen: Checkpoint, saved: dict[str, Any], now: datetime) -> str | None:
    """Why a copy with an intact checkpoint can't be right, or None; raises ValueError for an invalid time."""
    state, loaded = seen.state, seen.load
    if parse_time(saved["saved_at"]) > now + CLOCK_SKEW:
        return f"saved in the future ({saved['saved_at']})"
    times = [
        state.created_at,
        state.updated_at,
        state.extraction.last_extraction_time,
        state.progress.moved_at,
        loaded.last,
    ]
    for moment in (*times, *(f.at for f in seen.failures)):
        if moment is not None:
            parse_time(moment)
    if min(*astuple(state.totals), loaded.rows, loaded.files, loaded.commits) < 0:
        return "counts below zero"
    # The document must match its checkpoint, except for the file URIs, because a store may have moved, and the rows of
    # version 0.1.0, which counted otherwise.
    others = ("_s3_files",) if state.data.apart else ("_s3_files", "_extracted", "_loaded")
    for key, value in document(seen, str, saved).items():
        if key in body and not key.endswith(others) and body[key] != value:
            return f"changed by hand: {key}"
    return None


def chained(state: State, tail: Iterable[bytes]) -> tuple[bytes, ...]:
    """The commits of a tail, in order, that the digest chain from the state's own commit back proves."""
    found: list[bytes] = []
    expected = state.digest
    for data in reversed(tuple(tail)):
        try:
            commit = read_commit(data)
        except ValueError:
            break
        if digest(data) != expected or commit.n != state.n - len(found):
            break
        found.append(data)
        expected = commit.prev
    return tuple(reversed(found))


def newest(store: Store, state: State, last: Copy | None, own: Mapping[int, bytes]) -> tuple[bytes, ...]:
    """The newest commits up to the state's, as a copy carries them, without those that can't be fetched.

    `own` holds commits already in memory; the digests prove them like the others.
    """
    first = max(0, state.n - TAIL_COMMITS + 1)
    known: tuple[bytes, ...] = ()
    if last is not None and last.tail and last.checkpoint.state.log == state.log:
        known = last.tail
        first = max(first, last.checkpoint.state.n + 1)
    try:
        fetched = [
            own.get(n) or store.get(commit_path(state.table_name, n)) or b""
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
    """The data commits with these numbers, without the unreadable ones."""
    found: list[DataCommit] = []
    for data in store.each(store.get, [commit_path(table_name, n) for n in numbers]):
        try:
            commit = read_commit(data or b"")
        except ValueError:
            continue
        one = data_commit(commit, commit.stands_for or digest(data or b""), -1)
        found += [one] if one is not None else []
    return found


@dataclass(frozen=True)
class Publication:
    """What is to be published soon."""

    state: State
    ledger: Iterable[LedgerRow] | None
    succeeded: frozenset[Stage]
    at: float  # by the wall clock, which goes on while a machine sleeps
    timer: threading.Timer


class Publisher:
    """One table's published watermark, as one run sees and publishes it. Thread-safe."""

    def __init__(self, store: Store, table_name: str, run: str, *, log: Log | None = None) -> None:
        """`log` is the run's own log, which already has the primary copy and the run's commits in memory."""
        self.store = store
        self.table_name = table_name
        self.run = run
        self._log = log
        self._lock = threading.RLock()
        self._first: Copy | None = None  # as published before this run
        self._last: Copy | None = None
        self._asked = False
        self._failed: frozenset[str] = frozenset()
        self._warned = False
        self._looked_up: dict[int, DataCommit | None] = {}
        self._due: Publication | None = None

    @property
    def failures(self) -> tuple[StageFailure, ...]:
        """The failures in the published watermark that no success has cleared yet."""
        with self._lock:
            last = self._published()
            return last.checkpoint.failures if last else ()

    def loaded_before(self, state: State) -> LoadStatus | None:
        """The load status of the state's commits as published before this run; None: it does not say."""
        with self._lock:
            self._published()
        if self._first is None or self._first.checkpoint.state.log != state.log:
            return None
        loaded = self._first.checkpoint.load
        return loaded if loaded.commits and loaded.epoch == state.load_epoch else None

    def current(
        self, state: State, ledger: Iterable[LedgerRow] | None, failure: StageFailure | None = None
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
        failure: StageFailure | None = None,
        succeeded: Collection[Stage] = (),
    ) -> dict[str, Any]:
        """Publishes the document to its three places if it has changed, and returns it.

        A copy that can't be written is logged and retried with the next change; it stops nothing.
        """
        with self._lock:
            last, due = self._published(), self._due
            self.drop_due()
            # We may be the slower thread of this run: the copies never go back.
            for known in (due.state if due else None, last.checkpoint.state if last else None):
                if known is not None and known.log == state.log and known.n > state.n:
                    state = known
            done = due.succeeded.union(succeeded) if due else succeeded
            seen = observe(state, ledger, last, failure=failure, succeeded=done, lookup=self._lookup)
            if last is not None and seen == last.checkpoint and not self._failed:
                return document(seen, self.store.uri, last.saved)
            saved = {"saved_at": stamp(), "session_id": self.run, "backup_locations": list(LOCATIONS)}
            body = document(seen, self.store.uri, saved)
            own = self._log.own if self._log else {}
            tail = newest(self.store, seen.state, last, own)
            data = render(body, seen, tail)
            self._failed = self._write(data, str(saved["saved_at"]))
            send(self.store, seen.state, data, str(saved["saved_at"]), own)
            self._last = Copy(seen, saved, tail)
            return body

    def publish_soon(
        self, state: State, ledger: Iterable[LedgerRow] | None, *, succeeded: Collection[Stage] = ()
    ) -> None:
        """Publishes the document within two seconds, unless a later publication overtakes it.

        A crash before that leaves copies that are a commit older: whoever reads one folds the log's newer commits.
        The run must end with a publication or with `publish_due`.
        """
        with self._lock:
            before = self._due
            timer = before.timer if before else threading.Timer(SOON, self.publish_due)
            done = before.succeeded.union(succeeded) if before else frozenset(succeeded)
            self._due = Publication(state, ledger, done, time.time(), timer)
            if before is None:
                timer.daemon = True
                timer.start()

    def publish_due(self) -> None:
        """Publishes what `publish_soon` has left to be published, if anything, unless another run has taken the table.

        An error is only logged: a stale copy does no harm, and the next publication has its news, too.
        """
        try:
            with self._lock:
                due = self._due
                late = due is not None and abs(time.time() - due.at) > LATE
                if due is not None and late and self._log and self._log.numbers(after=due.state.n):
                    self.drop_due()
                elif due is not None:
                    self.publish(due.state, due.ledger)
        except FloodmarkError as error:
            log.info("%s: the watermark could not be published: %s", self.table_name, error.message)

    def drop_due(self) -> None:
        """Leaves it to others: a later publication, or that of the run that has taken the table."""
        with self._lock:
            if self._due is not None:
                self._due.timer.cancel()
            self._due = None

    def _lookup(self, numbers: Sequence[int]) -> list[DataCommit]:
        """Old data commits, each fetched once; needed if the ledger has only some of the older commits."""
        wanted = [n for n in numbers if n not in self._looked_up]
        if wanted:
            found = {d.n: d for d in data_commits(self.store, self.table_name, wanted)}
            self._looked_up |= {n: found.get(n) for n in wanted}
        return [d for n in numbers if (d := self._looked_up[n]) is not None]

    def _published(self) -> Copy | None:
        if not self._asked:
            if self._log and self._log.seen is not None:
                self._first = self._log.seen[0]
            else:
                self._first = parse(self.store.get(primary_path(self.table_name)), self.table_name)
            self._last, self._asked = self._first, True
        return self._last

    def _write(self, data: bytes, saved_at: str) -> frozenset[str]:
        paths = (
            primary_path(self.table_name),
            daily_path(self.table_name, saved_at),
            session_path(self.table_name, self.run),
        )
        tag = md5(data, usedforsecurity=False).hexdigest()
        failures = self.store.each(lambda path: self._write_one(path, data, tag), paths)
        failed = {where: why for where, why in zip(LOCATIONS, failures, strict=True) if why}
        if failed:
            # Warn once per run: whatever breaks the copies usually breaks the next commit too, which raises.
            level = logging.INFO if self._warned else logging.WARNING
            self._warned = True
            log.log(
                level, "%s: watermark copies could not be written (%s): %s",
                self.table_name, ", ".join(failed), next(iter(failed.values())),
                extra={"run": self.run, "table": self.table_name, "step": "publish"},
            )  # fmt: skip
        return frozenset(failed)

    def _write_one(self, path: str, data: bytes, tag: str) -> str | None:
        """Writes and verifies one copy; returns why it failed, or None.

        Most servers return the MD5 of the stored bytes as the ETag; if it does not match, the copy is read
        back.
        """
        why = ""
        for _ in WRITING:
            try:
                if (self.store.put(path, data) or "").strip('"') == tag or self.store.get(path) == data:
                    return None
                why = "what was read back differs from what was written"
            except FloodmarkError as error:
                why = error.message
        return f"{path}: {why}"


READERS = 16
_SECOND = len("YYYYMMDD_HHMMSS")  # of a run's name; the rest is random

PlaceKind = Literal["primary", "daily", "session", "copies_to"]


@dataclass(frozen=True)
class Stored:
    """One copy as found."""

    place: PlaceKind
    path: str  # in a further place: the full URI
    data: bytes | None
    found: Copy | Flaw

    @property
    def damaged(self) -> bool:
        """Whether it exists but is useless to every version; a copy of another version is not damaged."""
        return isinstance(self.found, Flaw) and self.found.kind == "damaged"


def session_paths(store: Store, table_name: str, among: Sequence[str] | None = None) -> list[str]:
    """The path of the table's copy in each session, or each of these, newest first; not every session has one."""
    runs = store.folders(sessions(table_name)) if among is None else among
    return [session_path(table_name, run) for run in reversed(runs)]


def stored(store: Store, table_name: str, place: PlaceKind, paths: Sequence[str]) -> Iterator[Stored]:
    """The copies that exist at these paths, fetched in parallel."""
    for i in range(0, len(paths), READERS):
        part = paths[i : i + READERS]
        for path, data in zip(part, store.each(store.get, part), strict=True):
            if data is not None:
                yield Stored(place, path, data, examine(data, table_name))


def primary(store: Store, table_name: str) -> Stored:
    """The primary copy, present or missing."""
    path = primary_path(table_name)
    data = store.get(path)
    return Stored("primary", path, data, examine(data, table_name))


def backups(store: Store, table_name: str, among: Sequence[str] | None = None) -> Iterator[Stored]:
    """All copies but the primary, in order of trust, from all sessions or from these; fetched lazily."""
    yield from stored(store, table_name, "daily", daily_paths(store, table_name))
    found = stored(store, table_name, "session", session_paths(store, table_name, among))
    folder = sessions(table_name)
    for _, same in groupby(found, key=lambda item: item.path.removeprefix(folder)[:_SECOND]):
        yield from sorted(same, key=_reached, reverse=True)  # names within a second are random


def elsewhere(
    store: Store, table_name: str, *, daily: bool = True, patient: bool = True, needed: bool = False
) -> Iterator[Stored]:
    """The copies in the further places, each place's primary first, present or missing.

    A place that can't be read yields one `unknown` flaw. Unless `patient`, a place has little time to answer.
    If `needed`, ends with an error when a place could not be read: a caller that uses no copy then stops.
    """
    failed: FloodmarkError | None = None
    for place in store.places:
        try:
            found = place.ask(lambda place: _in_place(store, place, table_name, daily), patient=patient)
        except FloodmarkError as error:
            place.complain(error.message, "read")
            failed = failed or unanswered(store, place, error)
            said = f"could not be read: {error.message}"
            yield Stored("copies_to", place.label, None, Flaw("unknown", said))
            continue
        yield from found
    if needed and failed is not None:
        raise failed.of(table_name)


def _in_place(store: Store, place: Place, table_name: str, daily: bool) -> list[Stored]:
    if not place.ours:
        check_owner(store, place.store, store.get(PIPELINE))
        place.ours = True
    there = place.store
    paths = [primary_path(table_name), *(daily_paths(there, table_name) if daily else ())]
    found = [(there.uri(path), there.get(path)) for path in paths]
    return [Stored("copies_to", uri, data, examine(data, table_name)) for uri, data in found]


def _reached(item: Stored) -> float:
    """The commit that the copy has reached; a damaged copy may be the newest, so it sorts first."""
    return item.found.checkpoint.state.n if isinstance(item.found, Copy) else math.inf


def commits_in(items: Iterable[Stored]) -> dict[int, set[bytes]]:
    """The commits carried by the copies, by number, byte for byte."""
    found: dict[int, set[bytes]] = {}
    for item in items:
        if isinstance(item.found, Copy):
            for data in chained(item.found.checkpoint.state, item.found.tail):
                found.setdefault(read_commit(data).n, set()).add(data)
    return found


PIPELINE = "pipeline.json"
# Names the store that a place holds copies of: `{"store": "s3://bucket/prefix"}`.
COPIED_FROM = "copied_from.json"
# In a store that was lost: its pipeline.json came back from a place, so its tables may be there too.
RECOVERED_FROM = "recovered_from.json"
REPLACED = "replaced/"


def send(store: Store, state: State, data: bytes, saved_at: str, own: Mapping[int, bytes]) -> None:
    """Sends a table's newest copy to the further places in the background; `own`: commits already in memory."""
    made = dict(own)
    for place in store.places:
        place.later(state.table_name, partial(_send, store, place, state, data, saved_at, made))


def _send(
    store: Store, place: Place, state: State, data: bytes, saved_at: str, own: Mapping[int, bytes]
) -> None:
    name = state.table_name
    introduce(store, place)
    known = place.reached.get(name)
    if known is None or known[0] > state.n or not _in_log(store, state, *known, own):
        _look(store, place, state, own)
    before = place.reached[name][0] if name in place.reached else None
    if before is not None and before > state.n:
        return  # another run has already sent a newer copy
    if place.with_log:
        _send_log(store, place, state, before, own)
    place.store.put(primary_path(name), data)
    place.store.put(daily_path(name, saved_at), data)
    place.reached[name] = state.n, state.digest


def _look(store: Store, place: Place, state: State, own: Mapping[int, bytes]) -> None:
    """Finds the newest commit that the place has of the table.

    Moves aside objects of another log, or of a branch that the log has left.
    """
    name = state.table_name
    place.reached.pop(name, None)
    found = _shown(place.store.get(primary_path(name)))
    if found is None:
        return
    if found.log != state.log:
        _put_aside(place.store, name, found.log)
    elif _left(store, place, state, found, own):
        _put_aside(place.store, name, f"{found.log}.{found.digest[:12]}")
    elif not place.with_log or place.store.get(commit_path(name, found.n)) is not None:
        place.reached[name] = found.n, found.digest


def _left(store: Store, place: Place, state: State, found: _Shown, own: Mapping[int, bytes]) -> bool:
    """Whether the copy shows commits that the log has given up: the store was restored to an older state and then continued.

    Compares the newest commit that both have.
    """
    if found.n <= state.n:
        return not _in_log(store, state, found.n, found.digest, own)
    carried = (_digest(state.n, commit) for commit in found.commits)
    theirs = next(filter(None, carried), None) or _digest(
        state.n, place.store.get(commit_path(state.table_name, state.n))
    )
    return theirs not in (state.digest, None)


def _in_log(store: Store, state: State, n: int, known: str, own: Mapping[int, bytes]) -> bool:
    """Whether the log's commit number `n`, at most the state's, has this digest, or can't be read."""
    if n == state.n:
        return known == state.digest
    data = own.get(n) or store.get(commit_path(state.table_name, n))
    return _digest(n, data) in (known, None)


def _digest(n: int, data: bytes | None) -> str | None:
    """The digest that these bytes stand for; None if they are not commit number `n`."""
    try:
        commit = read_commit(data or b"")
    except ValueError:
        return None
    return commit.stands_for or digest(data or b"") if commit.n == n else None


@dataclass(frozen=True)
class _Shown:
    """What a copy shows: its log, the newest commit, and the last commits that it carries."""

    log: str
    n: int
    digest: str
    commits: tuple[bytes, ...]


def _shown(data: bytes | None) -> _Shown | None:
    """What a copy shows; None if the copy is missing or unreadable, or shows no commit."""
    try:
        checkpoint = json.loads(data or b"")["checkpoint"]
        known, carried = checkpoint["body"]["state"], checkpoint.get("commits", ())
        commits = tuple(str(commit).encode() for commit in carried)
        found = _Shown(str(known["log"]), int(known["n"]), str(known["digest"]), commits)
        return found if found.n >= 0 else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def _put_aside(place: Store, name: str, log: str) -> None:
    aside = f"{REPLACED}{encode(name)}/{encode(log)}/"
    commits = (commit_path(name, n) for n in commit_numbers(place, name))
    # The primary copy last: while it is there, an interrupted move is repeated.
    for path in (*commits, *daily_paths(place, name), primary_path(name)):
        if (data := place.get(path)) is not None:
            place.put(aside + path, data)
            place.delete([path])


def daily_paths(store: Store, name: str) -> list[str]:
    """The table's daily copies in a store or place, newest first."""
    stem = daily_path(name, "").removesuffix(".json")
    paths = [o.path for o in store.list(stem, start_after=stem)]  # the folder holds the copies of all tables
    # The prefix `s.t_` also matches the copies of a table `s.t_2`.
    return [p for p in reversed(paths) if re.fullmatch(r"\d{8}\.json", p.removeprefix(stem))]


def _send_log(
    store: Store, place: Place, state: State, reached: int | None, own: Mapping[int, bytes]
) -> None:
    """Sends the commits that the place lacks; it already has those up to its own copy (`reached`)."""
    name = state.table_name
    there = set(commit_numbers(place.store, name)) if reached is None else set()
    missing = [n for n in range(0 if reached is None else reached + 1, state.n + 1) if n not in there]

    def one(n: int) -> None:
        path = commit_path(name, n)
        data = own.get(n) or store.get(path)
        if data is not None and not place.store.create(path, data) and place.store.get(path) != data:
            place.store.put(path, data)

    place.store.each(one, missing)


def introduce(store: Store, place: Place) -> None:
    """Marks the place as this pipeline's; ConfigError if it belongs to another."""
    if place.introduced:
        return
    own = store.get(PIPELINE)
    check_owner(store, place.store, own)
    place.ours = True
    if own is not None and place.store.get(PIPELINE) != own:
        place.store.put(PIPELINE, own)
    place.store.put(COPIED_FROM, json.dumps({"store": store.uri("")}).encode() + b"\n")
    place.introduced = own is not None


def check_owner(store: Store, place: Store, own: bytes | None) -> bytes | None:
    """The place's pipeline.json; ConfigError if it is another pipeline's or, ours unknown, another store's."""
    theirs = place.get(PIPELINE)
    instead = f"delete {COPIED_FROM} there"
    if own is not None and theirs is not None:
        same = _field(own, "id") == _field(theirs, "id")
        instead = (
            f"delete {store.uri(PIPELINE)} and, there, {COPIED_FROM}: the next sync adopts that identity"
        )
    else:
        known = place.get(COPIED_FROM)
        same = own is not None or known is None or _field(known, "store") == store.uri("")
    if same:
        return theirs
    whose = _field(place.get(COPIED_FROM), "store") or "another pipeline"
    raise ConfigError(
        f"copies_to {place.spec.url} holds copies of {whose}, not of {store.uri('')}",
        hint=f"give each pipeline its own place; if this store replaces that one, {instead}",
    )


def _field(data: bytes | None, name: str) -> Any:
    try:
        return load(dict[str, Any], data or b"{}").get(name)
    except ValueError:
        return None


def pipeline_elsewhere(store: Store, *, sure: bool) -> bytes | None:
    """The pipeline.json of a store that has lost it, from the first further place that has one.

    If `sure`, waits for the places, and raises if none has one and one of them could not be read.
    """
    found = answers(store, lambda place: check_owner(store, place.store, None), sure=sure)
    return next((data for data in found if data is not None), None)


def answers(store: Store, question: Callable[[Place], A], *, sure: bool) -> Iterator[A]:
    """The answers of the further places that can be read; if `sure`, waits for them, and ends with an error if one can't."""
    failed: FloodmarkError | None = None
    for place in store.places:
        try:
            yield place.ask(question, patient=sure)
        except FloodmarkError as error:
            failed = failed or unanswered(store, place, error)
    if sure and failed is not None:
        raise failed


def maybe_lost(store: Store) -> bool:
    """Whether a table that the store doesn't know may still be in a further place.

    So it is for a store without a pipeline.json, which is either new or lost, and for one that got it back
    from a place: its tables follow one by one.
    """
    return bool(store.places) and (store.get(PIPELINE) is None or store.get(RECOVERED_FROM) is not None)


def unanswered(store: Store, place: Place, error: FloodmarkError) -> FloodmarkError:
    """The error for a store that may be lost while a place can't be read: nothing may start over then."""
    if isinstance(error, ConfigError):
        return error
    return TransientError(
        f"{store.uri('')} is new or was lost, and copies_to {place.label}, which may have its state, could not be "
        f"read: {error.message}",
        hint="run again when that place is reachable, or remove it from store.copies_to",
    )


def commits_elsewhere(
    store: Store, name: str, wanted: Iterable[int], *, beyond: str = ""
) -> Iterator[tuple[int, bytes]]:
    """The wanted commits found in the logs of further places, fetched in parallel.

    Skips places that fail, but for the one that has the copy at this address (`beyond`): then it raises.
    """
    left = list(wanted)
    for place in store.places:
        if not place.with_log or not left:
            continue
        try:
            found = place.store.each(place.store.get, [commit_path(name, n) for n in left])
        except FloodmarkError as error:
            place.complain(error.message, "read")
            if beyond.startswith(place.store.uri("watermark/")):
                raise unanswered(store, place, error).of(name) from None
            continue
        yield from ((n, data) for n, data in zip(left, found, strict=True) if data is not None)
