"""A table's commit log in the store: numbered, create-only, each commit naming the digest of the one before.

To commit is to create the next number, and only that number: if the response to a create is lost, the
commit's id shows whether it succeeded; it is never retried under another number. Reading resumes from the
published checkpoint if the log confirms it, and otherwise recovers (`recover`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar
from urllib.parse import unquote
from uuid import uuid4

from floodmark.host.retry import Retries
from floodmark.host.temp import scratched
from floodmark.log import copies
from floodmark.log.copies import PIPELINE, answers, check_owner, maybe_lost
from floodmark.log.document import Copy, accounts_for_older, commit_numbers, commit_path, primary_path
from floodmark.log.fold import Damaged, DataCommit, NothingLeft, State, data_commit, fold, within
from floodmark.log.lease import lease_path, who
from floodmark.log.recovery import put_back, recover
from floodmark.model.changes import SOURCE_LOG
from floodmark.model.commit import Claim, Commit, Open, files_of, read_commit
from floodmark.model.errors import ConfigError, ConflictError, DataError, FloodmarkError, TransientError
from floodmark.model.json import digest, dump
from floodmark.model.ledger import LedgerRow
from floodmark.model.run import Finding
from floodmark.model.times import stamp
from floodmark.store.places import Place
from floodmark.store.store import CHANGES, MOST_COMMIT, NO_DOCUMENT, Store, encode, file_folders

K = TypeVar("K", bound=Commit)
# Commits fetched at a time, so that a long log is never held in memory as a whole.
CHUNK = 512
# A run keeps its own newest commits in memory: at most this many, each up to this size.
OWN_COMMITS = 40
OWN_BYTES = 1 << 20
COMMITTING = Retries(seconds=30.0)


class Taken(ConflictError):
    """Our number is already taken by another run's commit."""


def draft(state: State, kind: type[K], run: str, **fields: Any) -> K:
    """The commit that would follow the state; nothing is written."""
    return kind(
        n=state.n + 1,
        id=uuid4().hex,
        log=state.log or uuid4().hex,
        table_name=state.table_name,
        run=run,
        at=stamp(),
        prev=state.digest,
        **fields,
    )


def tables(store: Store) -> list[str]:
    """Every table that has a log, or that still has a watermark although its log is gone."""
    stems = (o.path.rpartition("/")[2].removesuffix(".json") for o in store.list("watermark/tables/"))
    # The older tool kept its watermarks in the same folder, under names without a dot.
    found = {*store.folders("commits/"), *(stem for stem in stems if "." in stem)}
    if not found and store.places:  # perhaps a store that has lost everything
        found |= _tables_elsewhere(store, sure=maybe_lost(store))
    return sorted(unquote(name) for name in found)


def logs(store: Store) -> list[str]:
    """Every table that has a log or a watermark, and the source's log of changes if there is one."""
    there = store.folders(f"{CHANGES}commits/") or store.get(primary_path(SOURCE_LOG)) is not None
    return [*tables(store), *([SOURCE_LOG] if there else [])]


def _tables_elsewhere(store: Store, *, sure: bool) -> set[str]:
    """The encoded names of the tables in the further places; if `sure`, raises if a place can't be read."""
    own = store.get(PIPELINE)

    def ask(place: Place) -> set[str]:
        check_owner(store, place.store, own)
        return {encode(name) for name in tables(place.store)}

    return set().union(*answers(store, ask, sure=sure))


class Log:
    """One table's commit log."""

    def __init__(self, store: Store, table_name: str, *, repairs: bool = True, aloud: bool = True) -> None:
        self.store = store
        self.table_name = table_name
        self.repairs = repairs  # whether a recovery also repairs the store
        self.aloud = aloud  # whether a recovery from a further place is logged as a warning
        self.findings: list[Finding] = []  # repairs that were necessary
        # Known without another request: our commits since the last read, as stored,
        self.own: dict[int, bytes] = {}
        self.seen: tuple[Copy | None] | None = None  # the primary copy as that read found it; None: unusable
        self.over: set[str] = set()  # and claims known to be released
        self.counted_anew = False  # whether its published copy counts rows as version 0.1.0 did

    def read(self, old: float = 0.0) -> State:
        """The table's current state, recovered if necessary; n = -1 if the table has no log.

        That it has none may be `old` seconds old: as if it had been read then, before another run opened the log.
        So a run with many new tables lists the store's folders once for all of them.
        Raises Damaged if the log can't be read completely and no copy fills the gap, and NothingLeft if there
        are data files but neither a log nor a copy: a table never silently starts over.
        """
        if old:
            with suppress(DataError):
                state = Log(self.store.recently(old), self.table_name, repairs=False).read()
                if state.n < 0:
                    self.seen = (None,)
                    return state
        published = copies.primary(self.store, self.table_name)
        self.seen = None
        self.own.clear()  # a read must see what is actually in the store
        if isinstance(published.found, Copy) and self.confirms(published.found.checkpoint.state):
            self.seen = (published.found,)
            return self.fold_on(published.found.checkpoint.state)
        state = recover(self, published)
        if state.n < 0 and published.data is None:
            self.seen = (None,)
        return state

    def begin(self, force: bool = False) -> State:
        """The state for a command that may start over a table with nothing left or, if forced, a damaged one."""
        try:
            return self.read()
        except NothingLeft:
            self.store.delete([lease_path(self.table_name)])
            return State(self.table_name)
        except Damaged:
            if not force:
                raise
        aside = f"damaged/{encode(self.table_name)}/{stamp()}/"
        # The copies first: a copy that outlived the log would bring part of it back.
        stored = [copies.primary(self.store, self.table_name), *copies.backups(self.store, self.table_name)]
        paths = [c.path for c in stored if c.data is not None]
        with scratched("floodmark-aside-") as folder:  # objects may be of any size
            for path in (*paths, *(commit_path(self.table_name, n) for n in self.numbers())):
                self.store.download(path, folder / "object")
                self.store.put(aside + path, folder / "object")
                self.store.delete([path])
        # The old lease may have a higher number than the new log's claims, which then could not replace it.
        self.store.delete([lease_path(self.table_name)])
        return State(self.table_name)

    def append(self, state: State, commit: Commit) -> State:
        """Creates the next number and returns the state after it; fills in a missing id and time.

        Raises Taken (a ConflictError) if another run has that number, and TransientError if the store did not
        answer in time: the commit may then exist, or still come to exist, and the next read tells.
        """
        if not isinstance(commit, Open | Claim) and (state.claim is None or state.claim.run != commit.run):
            holder = f"claimed by run {state.claim.run}" if state.claim else "not claimed"
            raise ConflictError(f"the table is {holder}: nothing was committed", table=self.table_name)
        # Set once, before the first attempt: the id tells our commit from another run's.
        commit = replace(commit, id=commit.id or uuid4().hex, at=commit.at or stamp())
        data = dump(commit)
        if len(data) > MOST_COMMIT:  # too large to be read back
            raise ConfigError(
                f"commit {commit.n} would have {len(data):,} bytes, more than {MOST_COMMIT:,}",
                hint="raise slice_rows, so that the table is read in fewer slices",
                table=self.table_name,
            )
        after = fold(state, commit, digest(data))
        path = commit_path(self.table_name, commit.n)
        for _ in COMMITTING:  # the same number, never the next one
            try:
                if self.store.create(path, data):
                    return self._kept(commit.n, data, after)
                found = self.store.get(path)
                if found == data:
                    return self._kept(commit.n, data, after)  # the response to an earlier attempt was lost
                if found is not None:
                    raise self._taken(commit, found)
                why = "an object with its number exists but can't be read"
            except TransientError as error:
                why = error.message
        raise TransientError(
            f"the store did not confirm commit {commit.n}: {why}",
            hint="run the command again: it checks whether the commit was written; nothing is lost",
            table=self.table_name,
        )

    def _kept(self, n: int, data: bytes, after: State) -> State:
        """The state after a stored commit, whose bytes are kept in memory if small enough."""
        if len(data) <= OWN_BYTES:
            self.own[n] = data
            self.own.pop(n - OWN_COMMITS, None)
        return after

    def made(self, numbers: Sequence[int]) -> Iterator[tuple[Commit, str]]:
        """Like `commits`, but without a request for commits that we made since the last read."""
        asked = self.commits(n for n in numbers if n not in self.own)
        for n in numbers:
            yield self.parse(n, self.own[n]) if n in self.own else next(asked)

    def commit(self, n: int) -> tuple[Commit, str]:
        """One commit and its digest; a damaged one is restored from the copies or its files."""
        return self._sound(n, self._bytes(n))

    def commits(self, numbers: Iterable[int]) -> Iterator[tuple[Commit, str]]:
        """Several commits and their digests, in the order given, fetched in parallel."""
        wanted = iter(numbers)  # never as a list: a stray object with a huge number makes the range huge
        while part := list(islice(wanted, CHUNK)):
            for n, data in zip(part, self.store.each(self._bytes, part), strict=True):
                yield self._sound(n, data)  # the first that can't be restored ends the read

    def _sound(self, n: int, data: bytes | None) -> tuple[Commit, str]:
        try:
            return self.parse(n, data)
        except Damaged as damage:
            return put_back(self, n, damage)

    def _bytes(self, n: int) -> bytes | None:
        return self.store.get(commit_path(self.table_name, n))

    def data(
        self, state: State, ledger: Sequence[LedgerRow] | None = None, *, superseded: bool = False
    ) -> tuple[DataCommit, ...]:
        """The data commits, in order: all that the ledger lacks, and perhaps some that it has.

        Use this, not `state.data.commits`, to find pending commits: the state holds older ones only as totals. They
        are read from the log only if the ledger does not account for the totals, or if superseded commits are
        wanted too.
        """
        recent = state.data.commits if superseded else state.live
        if state.data.older.upto == 0 or (not superseded and accounts_for_older(state, ledger or ())):
            return recent
        older: list[DataCommit] = []
        described = -1
        for commit, found in self.commits(range(1, state.data.older.upto + 1)):
            if isinstance(commit, Claim) and commit.table is not None:
                described = commit.n
            data = data_commit(commit, found, described)
            if data is None:
                continue
            gone = data.n < state.data.superseded or within(state.data.dropped, data.n)
            if superseded or not gone:
                cleaned = data.files > 0 and within(state.data.cleaned, data.n)
                older.append(data._replace(superseded=gone, cleaned=cleaned))
        return (*older, *recent)

    def numbers(self, after: int = -1) -> list[int]:
        """The numbers of the commits in the store, readable or not."""
        return commit_numbers(self.store, self.table_name, after)

    def confirms(self, state: State) -> bool:
        """Whether the log has the state's last commit, byte for byte."""
        if state.n < 0:
            return False
        data = self.store.get(commit_path(self.table_name, state.n))
        # The bytes' own digest is the state's, unless the commit stands for another one.
        return data is not None and (
            digest(data) == state.digest or self._digest(state.n, data) == state.digest
        )

    def digest_of(self, n: int) -> str | None:
        """The digest that a stored commit stands for, even if it is damaged; None if it is missing."""
        data = self.store.get(commit_path(self.table_name, n)) if n >= 0 else None
        return None if data is None else self._digest(n, data)

    def _digest(self, n: int, data: bytes) -> str:
        try:
            return self.parse(n, data)[1]
        except Damaged:
            return digest(data)

    def readable(self, n: int) -> Commit | None:
        """A commit as stored, or None if it is missing or damaged."""
        try:
            return self.parse(n, self.store.get(commit_path(self.table_name, n)))[0]
        except Damaged:
            return None

    def fold_on(self, state: State) -> State:
        """The state with all later commits folded in; version 0.1.0 counted rows otherwise: then with all commits."""
        if not state.data.apart and state.n >= 0:
            with suppress(Damaged):
                anew = self.fold_on(State(self.table_name))
                self.counted_anew = True
                return anew
        last = max(self.numbers(state.n), default=state.n)
        before = state
        for commit, found in self.commits(range(state.n + 1, last + 1)):
            try:
                before, state = state, fold(state, commit, found)
            except Damaged as damage:
                before = state = self._unbroken(before, state, commit.n, damage)
        return state

    def _unbroken(self, before: State, state: State, n: int, damage: Damaged) -> State:
        """The state after a commit that does not fit its predecessor; restores the altered one of the two."""
        with suppress(Damaged):
            return fold(state, *put_back(self, n, damage))
        with suppress(Damaged):
            if before.n == n - 2:
                return fold(fold(before, *put_back(self, n - 1, damage)), *self.commit(n))
        raise damage

    def parse(self, n: int, data: bytes | None) -> tuple[Commit, str]:
        """Commit number `n` in these bytes and its digest; raises Damaged."""
        if data is None:
            raise self.damaged(n, " is missing")
        try:
            commit = read_commit(data)
        except ValueError:
            why = " is too large to be one" if data == NO_DOCUMENT else " is unreadable"
            raise self.damaged(n, why) from None
        if commit.n != n or commit.table_name != self.table_name:
            raise self.damaged(n, f" is really commit {str(commit.n)[:20]} of {commit.table_name[:200]}")
        folders = file_folders(self.table_name)
        if any(not f.path.startswith(folders) or "/../" in f.path for f in files_of(commit)):
            raise self.damaged(n, " names a file that is not the table's")
        return commit, commit.stands_for or digest(data)

    def damaged(self, n: int, why: str) -> Damaged:
        """The error about commit number `n`; `why` continues its sentence."""
        path = commit_path(self.table_name, n)
        return Damaged(
            f"the commit log is damaged: commit {n}{why}",
            hint=f"restore {self.store.uri(path)} from a backup of the store; "
            + (
                "else the next sync begins a new one"
                if self.table_name == SOURCE_LOG
                else f"or abandon the log: floodmark watermark reset -t {self.table_name} --force"
            ),
            table=self.table_name,
        )

    def _taken(self, ours: Commit, data: bytes) -> FloodmarkError:
        """The error for a number that holds something other than our commit."""
        theirs, _ = self.parse(ours.n, data)
        by = who(theirs.run, theirs.owner if isinstance(theirs, Claim) else None)
        if isinstance(theirs, Open | Claim) or isinstance(ours, Open | Claim):
            return Taken(
                f"{by} took the table at commit {theirs.n}, {theirs.at}: nothing was committed",
                hint="wait for that run to end, then run the command again",
                table=self.table_name,
            )
        # Only a claim may follow another run's claim, and a run writes its own commits in sequence.
        return self.damaged(theirs.n, f" is by {by}, which does not hold the table")
