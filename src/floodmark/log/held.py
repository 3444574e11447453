"""A table held by one run: its state, our claim on it, and its published watermark."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from floodmark.log.claim import Changed, Claimed, claim, decide_and_claim
from floodmark.log.copies import Publisher
from floodmark.log.fold import State
from floodmark.log.lease import Lease, holder
from floodmark.log.log import K, Log, draft
from floodmark.log.status import Killed
from floodmark.model.commit import Commit
from floodmark.model.errors import ConflictError
from floodmark.model.lineage import Known, with_lineage
from floodmark.model.table import Table
from floodmark.model.window import Intent
from floodmark.store.store import Store


class HeldTable:
    """One table's log as one run reads, claims and writes it."""

    def __init__(self, store: Store, name: str, run: str) -> None:
        self.log = Log(store, name)
        self.run = run
        self.watermark = Publisher(store, name, run, log=self.log)
        self.state = State(name)
        self.known = False  # whether the state has been read from the store
        self.lease: Lease | None = None
        self.killed: Killed | None = None  # the run that we have taken the table over from
        self.last_commit = time.monotonic()

    def read(self, old: float = 0.0) -> State:
        """Reads the current state from the store; that there is none may be `old` seconds old."""
        self.state = self.log.read(old)
        self.known = True
        return self.state

    def claim(self, intent: Intent) -> Claimed | Changed:
        """Claims the table unless it has changed since it was read."""
        try:
            taken = claim(self.log, self.state, run=self.run, **vars(intent))
        except ConflictError:
            self.watermark.drop_due()
            raise
        self.state = taken.state
        if isinstance(taken, Claimed):
            self._release_lease()
            self.lease = taken.lease
            self.killed = self.killed or taken.killed
            self.last_commit = time.monotonic()
        return taken

    def hold(self, purpose: str, table: Table | None = None, known: Sequence[Known] = ()) -> None:
        """Claims the table unless we already hold it and its description in the log is current.

        `known`: see `parts_to_reread`.
        """

        def take(state: State) -> Claimed | Changed | None:
            now = table
            if now is not None:
                now = with_lineage(state.table, now, from_start=state.read_upto is None, known=known)
            same = now is None or now == state.table
            return None if self.lease is not None and same else self.claim(Intent(purpose, now))

        decide_and_claim(self.log, self.state, take)

    def draft(self, kind: type[K], **fields: Any) -> K:
        """The commit that would follow; nothing is written."""
        return draft(self.state, kind, self.run, **fields)

    def append(self, commit: Commit) -> None:
        """Appends a commit to the log. The caller publishes it, because only the caller knows the ledger."""
        try:
            self.state = self.log.append(self.state, commit)
        except ConflictError:
            self.watermark.drop_due()
            raise
        self.last_commit = time.monotonic()

    def may_speak(self) -> bool:
        """Whether no other live run holds the table. Rereads the state to pick up other runs' commits."""
        if self.lease is not None:
            return True
        before = self.state.digest
        self.read()
        if self.state.digest != before:  # changed by others: our view of the copies is out of date
            self.watermark = Publisher(self.log.store, self.log.table_name, self.run, log=self.log)
        held = holder(self.log.store, self.log.table_name, self.state.claim)
        return held is None or not held.alive or held.run == self.run

    def release(self) -> None:
        """Releases the table, once everything is published."""
        try:
            self.watermark.publish_due()
        finally:  # an unreleased table keeps others waiting
            self._release_lease()

    def _release_lease(self) -> None:
        if self.lease is not None:
            self.lease.release()
