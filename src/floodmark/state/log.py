"""A table's commit log in the store: numbered, create-only, each commit naming the digest of the one before.

To commit is to create the next number, and only that number: a create whose answer was lost is asked about by
the commit's id, never repeated under another number. Reading goes on from the published checkpoint where the log
confirms it, else recovers (`recover`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any
from urllib.parse import unquote
from uuid import uuid4

from floodmark.errors import ConfigError, ConflictError, FloodmarkError, TransientError
from floodmark.model import Commit, CommitKind, Finding, digest, dump, load, replace
from floodmark.scratch import scratched
from floodmark.state import copies
from floodmark.state.fold import Damaged, DataCommit, NothingLeft, State, data_commit, fold
from floodmark.state.lease import lease_path
from floodmark.state.loaded import LedgerRow, accounts_for_older
from floodmark.state.recover import put_back, recover
from floodmark.state.spans import within
from floodmark.state.watermark import Copy, commit_path, stamp
from floodmark.store import MOST_COMMIT, NO_DOCUMENT, Store, encode

READERS = 16
# Commits that are fetched at once, so that a long log is not held in memory whole.
CHUNK = 512
# Of the commits that a run has made itself, the newest are not asked for again: so many, but none so large.
OWN_COMMITS = 40
OWN_BYTES = 1 << 20
# Commits of a log that an earlier version counted and this one counts anew, rows of windows apart; longer logs keep
# the old count until `watermark validate --repair`.
COUNTED_ANEW = 5000


@dataclass(frozen=True)
class Seen:
    """The primary copy as a read of the log found it; None: there was none."""

    copy: Copy | None


class Taken(ConflictError):
    """The number that we wanted holds another run's commit."""


def draft(state: State, kind: CommitKind, run: str, **fields: Any) -> Commit:
    """The commit that would follow the state; nothing is written."""
    return Commit(
        n=state.n + 1,
        id=uuid4().hex,
        log=state.log or uuid4().hex,
        kind=kind,
        table_name=state.table_name,
        run=run,
        at=stamp(),
        prev=state.digest,
        **fields,
    )


def who(commit: Commit) -> str:
    """Who wrote a commit, for an error's line."""
    if commit.owner is None:
        return f"run {commit.run}"
    return f"run {commit.run} on host {commit.owner.host} (pid {commit.owner.pid})"


def tables(store: Store) -> list[str]:
    """Every table that has a log, or a watermark although its log is gone."""
    stems = (o.path.rpartition("/")[2].removesuffix(".json") for o in store.list("watermark/tables/"))
    # The older tool kept its own there, under names without a dot.
    found = {*store.folders("commits/"), *(stem for stem in stems if "." in stem)}
    return sorted(unquote(name) for name in found)


class Log:
    """One table's commit log."""

    def __init__(
        self, store: Store, table_name: str, *, mend: bool = True, patience: float = 30.0, pause: float = 0.2
    ) -> None:
        self.store = store
        self.table_name = table_name
        self.mend = mend  # whether what a recovery finds damaged is put right in the store too
        self.findings: list[Finding] = []  # of what had to be mended
        # What need not be asked for once more: commits that were made since the last read, as they are in the store,
        self.own: dict[int, bytes] = {}
        self.seen: Seen | None = None  # the primary copy as that read found it,
        self.over: set[str] = set()  # and claims that are known to be released
        self._patience = patience
        self._pause = pause

    def read(self) -> State:
        """The state of the table now, recovered if need be; for a table without a log one with n = -1.

        Raises Damaged when the log can't be read whole and no copy makes up for it, NothingLeft when there are
        data files but neither a log nor a copy: a table never starts over by itself.
        """
        return self._told_apart(self._read())

    def _read(self) -> State:
        published = copies.primary(self.store, self.table_name)
        self.seen = None
        self.own.clear()  # whoever reads wants to know what is there
        if isinstance(published.found, Copy) and self.confirms(published.found.checkpoint.state):
            self.seen = Seen(published.found)
            return self.fold_on(published.found.checkpoint.state)
        state = recover(self, published)
        if state.n < 0 and published.data is None:
            self.seen = Seen(None)
        return state

    def _told_apart(self, state: State) -> State:
        """The state of a log that an earlier version has counted, with rows of windows told from others.

        Where the log is damaged or very long, the counts stay as they were.
        """
        if state.apart or not 0 <= state.n <= COUNTED_ANEW:
            return state
        whole = State(self.table_name)
        try:
            with ThreadPoolExecutor(READERS) as pool:
                for n, data in enumerate(pool.map(self._bytes, range(state.n + 1))):
                    whole = fold(whole, *self.parse(n, data))
        except Damaged:
            return state
        if whole.digest != state.digest:
            return state
        return replace(state, apart=True, data=whole.data, older=whole.older)

    def begin(self, force: bool = False) -> State:
        """The state for a command that may begin a table anew: one that has nothing left, or, forced, is damaged."""
        try:
            return self.read()
        except NothingLeft:
            self.store.delete([lease_path(self.table_name)])
            return State(self.table_name)
        except Damaged:
            if not force:
                raise
        aside = f"damaged/{encode(self.table_name)}/{stamp()}/"
        # The copies first: one that outlived the log would bring a part of it back.
        stored = [copies.primary(self.store, self.table_name), *copies.backups(self.store, self.table_name)]
        paths = [c.path for c in stored if c.data is not None]
        with scratched("floodmark-aside-") as folder:  # they may be of any size
            for path in (*paths, *(commit_path(self.table_name, n) for n in self.numbers())):
                self.store.download(path, folder / "object")
                self.store.put(aside + path, folder / "object")
                self.store.delete([path])
        # Of a claim with a higher number than the new log's, it would not make way for theirs.
        self.store.delete([lease_path(self.table_name)])
        return State(self.table_name)

    def append(self, state: State, commit: Commit) -> State:
        """Creates the next number and returns the state after it; a commit without id or time gets them here.

        Raises Taken (a ConflictError) when another run has that number, and TransientError when the store gave no
        answer in time: the commit may then exist or come to exist, which the next read shows.
        """
        if commit.kind not in ("open", "claim") and (state.claim is None or state.claim.run != commit.run):
            holder = f"claimed by run {state.claim.run}" if state.claim else "not claimed"
            raise ConflictError(f"the table is {holder}: nothing was committed", table=self.table_name)
        # Once, before the first attempt: the id is what tells our commit from another's.
        commit = replace(commit, id=commit.id or uuid4().hex, at=commit.at or stamp())
        data = dump(commit)
        if len(data) > MOST_COMMIT:  # nobody would read it
            raise ConfigError(
                f"commit {commit.n} would have {len(data):,} bytes, more than {MOST_COMMIT:,}",
                hint="set slice_rows higher, so that the table is read in fewer slices",
                table=self.table_name,
            )
        after = fold(state, commit, digest(data))
        path = commit_path(self.table_name, commit.n)
        give_up = time.monotonic() + self._patience
        pause = self._pause
        while True:
            try:
                if self.store.create(path, data):
                    return self._kept(commit.n, data, after)
                found = self.store.get(path)
                if found == data:
                    return self._kept(commit.n, data, after)  # the answer to an earlier attempt was lost
                if found is not None:
                    raise self._taken(commit, found)
                why = "the commit's number exists but can't be read"
            except TransientError as error:
                why = error.message
            # No answer: the same number again, never the next one.
            if time.monotonic() + pause > give_up:
                raise TransientError(
                    f"the store did not confirm commit {commit.n}: {why}",
                    hint="run the command again: it finds out whether the commit was written, nothing is lost",
                    table=self.table_name,
                )
            time.sleep(pause)
            pause *= 2

    def _kept(self, n: int, data: bytes, after: State) -> State:
        """The state after a commit that is in the store for good."""
        if len(data) <= OWN_BYTES:
            self.own[n] = data
            self.own.pop(n - OWN_COMMITS, None)
        return after

    def made(self, numbers: Sequence[int]) -> Iterator[tuple[Commit, str]]:
        """The same as `commits`, but for those that were made since the last read no request."""
        asked = self.commits(n for n in numbers if n not in self.own)
        for n in numbers:
            yield self.parse(n, self.own[n]) if n in self.own else next(asked)

    def commit(self, n: int) -> tuple[Commit, str]:
        """One commit and its digest; one that is damaged is put back from the copies or its files."""
        try:
            return self.parse(n, self._bytes(n))
        except Damaged as damage:
            return put_back(self, n, damage)

    def commits(self, numbers: Iterable[int]) -> Iterator[tuple[Commit, str]]:
        """Several commits and their digests, in the order given, fetched side by side."""
        wanted = iter(numbers)  # never as a whole: after a stray object with a vast number they are very many
        part = list(islice(wanted, CHUNK))
        if len(part) < 2:
            yield from (self.commit(n) for n in part)
            return
        with ThreadPoolExecutor(min(READERS, len(part))) as pool:
            while part:
                for n, data in zip(part, pool.map(self._bytes, part), strict=True):
                    try:
                        found = self.parse(n, data)
                    except Damaged as damage:  # one after the other: what can't be put back ends it
                        found = put_back(self, n, damage)
                    yield found
                part = list(islice(wanted, CHUNK))

    def _bytes(self, n: int) -> bytes | None:
        return self.store.get(commit_path(self.table_name, n))

    def data(
        self, state: State, ledger: Sequence[LedgerRow] | None = None, *, superseded: bool = False
    ) -> tuple[DataCommit, ...]:
        """The data commits, in order: all that the ledger lacks, and perhaps some that it has.

        Use this, not `state.data`, to find what is pending: the state only sums up its older commits. The log is
        asked for them only when the ledger does not account for the sums, or for superseded ones, which come
        along when wanted.
        """
        recent = state.data if superseded else state.live
        if state.older.upto == 0 or (not superseded and accounts_for_older(state, ledger or ())):
            return recent
        older: list[DataCommit] = []
        described = -1
        for commit, found in self.commits(range(1, state.older.upto + 1)):
            if commit.table is not None:
                described = commit.n
            data = data_commit(commit, found, described)
            if data is None:
                continue
            gone = data.n < state.superseded or within(state.dropped, data.n)
            if superseded or not gone:
                cleaned = data.files > 0 and within(state.cleaned, data.n)
                older.append(data._replace(superseded=gone, cleaned=cleaned))
        return (*older, *recent)

    def numbers(self, after: int = -1) -> list[int]:
        """The numbers of the commits that are in the store, readable or not."""
        folder = commit_path(self.table_name, 0).rpartition("/")[0] + "/"
        start = commit_path(self.table_name, after) if after >= 0 else None
        names = (item.path.rpartition("/")[2] for item in self.store.list(folder, start_after=start))
        return [int(name[:20]) for name in names if re.fullmatch(r"\d{20}\.json", name)]

    def confirms(self, state: State) -> bool:
        """Whether the log has the state's last commit, to the byte."""
        return state.n >= 0 and self.digest_of(state.n) == state.digest

    def digest_of(self, n: int) -> str | None:
        """The digest that a commit counts as, whatever it says; None when it is not there."""
        data = self.store.get(commit_path(self.table_name, n)) if n >= 0 else None
        if data is None:
            return None
        try:
            return self.parse(n, data)[1]
        except Damaged:
            return digest(data)

    def readable(self, n: int) -> Commit | None:
        """A commit as it lies there, or None when it is missing or damaged."""
        try:
            return self.parse(n, self.store.get(commit_path(self.table_name, n)))[0]
        except Damaged:
            return None

    def fold_on(self, state: State) -> State:
        """The state with all commits after it folded in."""
        last = max(self.numbers(state.n), default=state.n)
        before = state
        for commit, found in self.commits(range(state.n + 1, last + 1)):
            try:
                before, state = state, fold(state, commit, found)
            except Damaged as damage:
                before = state = self._unbroken(before, state, commit.n, damage)
        return state

    def _unbroken(self, before: State, state: State, n: int, damage: Damaged) -> State:
        """The state after a commit that does not fit the one before it: one of the two was changed."""
        with suppress(Damaged):
            return fold(state, *put_back(self, n, damage))
        with suppress(Damaged):
            if before.n == n - 2:
                return fold(fold(before, *put_back(self, n - 1, damage)), *self.commit(n))
        raise damage

    def parse(self, n: int, data: bytes | None) -> tuple[Commit, str]:
        """The commit number `n` in these bytes and its digest; raises Damaged."""
        if data is None:
            raise self._damaged(n, "is missing")
        try:
            commit = load(Commit, data)
        except ValueError:
            why = "is too large to be one" if data == NO_DOCUMENT else "is unreadable"
            raise self._damaged(n, why) from None
        if commit.n != n or commit.table_name != self.table_name:
            raise self._damaged(n, f"is really commit {str(commit.n)[:20]} of {commit.table_name[:200]}")
        folder = f"data/{encode(self.table_name)}/"
        if any(not f.path.startswith(folder) or "/../" in f.path for f in commit.files):
            raise self._damaged(n, "names a file that is not the table's")
        return commit, commit.stands_for or digest(data)

    def _damaged(self, n: int, why: str) -> Damaged:
        path = commit_path(self.table_name, n)
        return Damaged(
            f"the commit log is damaged: commit {n} {why}",
            hint=f"restore {self.store.uri(path)} from a backup of the store; or give the log up: "
            f"floodmark watermark reset -t {self.table_name} --force",
            table=self.table_name,
        )

    def _taken(self, ours: Commit, data: bytes) -> FloodmarkError:
        """The error for a number that holds something else than our commit."""
        theirs, _ = self.parse(ours.n, data)
        if theirs.kind in ("open", "claim") or ours.kind in ("open", "claim"):
            return Taken(
                f"{who(theirs)} took the table at commit {theirs.n}, {theirs.at}: nothing was committed",
                hint="wait for that run to end, then run the command again",
                table=self.table_name,
            )
        # Only a claim may follow another run's claim, and a run numbers its own commits one after the other.
        return self._damaged(theirs.n, f"is by {who(theirs)}, which does not hold the table")
