"""A table's commit log in the store: numbered, create-only, each commit naming the digest of the one before.

To commit is to create the next number, and only that number: a create whose answer was lost is asked about by
the commit's id, never repeated under another number. Reading goes on from the published checkpoint where the log
confirms it, else from commit 0.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

from floodmark.errors import ConflictError, DataError, FloodmarkError, TransientError
from floodmark.model import Commit, CommitKind, digest, dump, load, replace
from floodmark.state.fold import DataCommit, State, data_commit, fold
from floodmark.state.loaded import LedgerRow, accounts_for_older
from floodmark.state.watermark import log as logger
from floodmark.state.watermark import parse, primary_path, stamp
from floodmark.store import Store, encode

READERS = 16
# Commits that are fetched at once, so that a long log is not held in memory whole.
CHUNK = 512


class Taken(ConflictError):
    """The number that we wanted holds another run's commit."""


def commit_path(table_name: str, n: int) -> str:
    """Where a commit lies: twenty digits, so that names sort as numbers do."""
    return f"commits/{encode(table_name)}/{n:020d}.json"


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


class Log:
    """One table's commit log."""

    def __init__(self, store: Store, table_name: str, *, patience: float = 30.0, pause: float = 0.2) -> None:
        self.store = store
        self.table_name = table_name
        self._patience = patience
        self._pause = pause

    def read(self) -> State:
        """The state of the table now; for a table without a log one with n = -1."""
        copy = parse(self.store.get(primary_path(self.table_name)), self.table_name)
        known = copy.checkpoint.state if copy else None
        if known is None or known.n < 0:
            return self._fold_on(State(self.table_name))
        newest = self.store.get(commit_path(self.table_name, known.n))
        if newest is None:
            # Never start over silently: the table was further than its log says.
            raise DataError(
                f"the commit log is damaged: commit {known.n}, which the published watermark shows, is gone",
                hint=f"restore commits/{encode(self.table_name)}/ from a backup of the store; to go on from the "
                f"commits that are left instead, remove {primary_path(self.table_name)}",
                table=self.table_name,
            )
        if digest(newest) == known.digest:
            return self._fold_on(known)
        logger.warning(
            "%s: the published watermark does not fit the log and is not used", self.table_name,
            extra={"table": self.table_name, "commit": known.n, "step": "read"},
        )  # fmt: skip
        return self._fold_on(State(self.table_name))

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
        after = fold(state, commit, digest(data))
        path = commit_path(self.table_name, commit.n)
        give_up = time.monotonic() + self._patience
        pause = self._pause
        while True:
            try:
                if self.store.create(path, data):
                    return after
                found = self.store.get(path)
                if found == data:
                    return after  # the answer to an earlier attempt was lost
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

    def commit(self, n: int) -> tuple[Commit, str]:
        """One commit and its digest."""
        return self._parse(n, self.store.get(commit_path(self.table_name, n)))

    def commits(self, numbers: Iterable[int]) -> Iterator[tuple[Commit, str]]:
        """Several commits and their digests, in the order given, fetched side by side."""
        wanted = list(numbers)
        if len(wanted) < 2:
            yield from (self.commit(n) for n in wanted)
            return
        with ThreadPoolExecutor(min(READERS, len(wanted))) as pool:
            for i in range(0, len(wanted), CHUNK):
                yield from pool.map(self.commit, wanted[i : i + CHUNK])

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
            if data is not None and (superseded or data.n > state.superseded):
                older.append(data._replace(superseded=data.n < state.superseded))
        return (*older, *recent)

    def _fold_on(self, state: State) -> State:
        """The state with all commits after it folded in."""
        folder = commit_path(self.table_name, 0).rpartition("/")[0] + "/"
        after = commit_path(self.table_name, state.n) if state.n >= 0 else None
        numbers = []
        for item in self.store.list(folder, start_after=after):
            name = re.fullmatch(r"(\d{20})\.json", item.path.rpartition("/")[2])
            if name is not None:
                numbers.append(int(name[1]))
        for expected, n in enumerate(numbers, state.n + 1):
            if n != expected:
                raise self._damaged(expected, "is missing, but later ones exist")
        for commit, found in self.commits(numbers):
            state = fold(state, commit, found)
        return state

    def _parse(self, n: int, data: bytes | None) -> tuple[Commit, str]:
        if data is None:
            raise self._damaged(n, "is missing")
        try:
            commit = load(Commit, data)
        except ValueError:
            raise self._damaged(n, "is unreadable") from None
        if commit.n != n or commit.table_name != self.table_name:
            raise self._damaged(n, f"is really commit {commit.n} of {commit.table_name}")
        return commit, digest(data)

    def _damaged(self, n: int, why: str) -> DataError:
        path = commit_path(self.table_name, n)
        return DataError(
            f"the commit log is damaged: commit {n} {why}",
            hint=f"restore {self.store.uri(path)} from a backup of the store",
            table=self.table_name,
        )

    def _taken(self, ours: Commit, data: bytes) -> FloodmarkError:
        """The error for a number that holds something else than our commit."""
        theirs, _ = self._parse(ours.n, data)
        if theirs.kind in ("open", "claim") or ours.kind in ("open", "claim"):
            return Taken(
                f"{who(theirs)} took the table at commit {theirs.n}, {theirs.at}: nothing was committed",
                hint="wait for that run to end, then run the command again",
                table=self.table_name,
            )
        # Only a claim may follow another run's claim, and a run numbers its own commits one after the other.
        return self._damaged(theirs.n, f"is by {who(theirs)}, which does not hold the table")
