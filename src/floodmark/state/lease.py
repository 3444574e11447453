"""The lease: a claim's holder's sign of life, and nothing more.

It may be lost, late or overwritten without harm: whoever is taken over by mistake can't commit any more. A holder
counts as alive until its lease runs out, on the same machine only while its process exists.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from types import TracebackType

from floodmark.errors import FloodmarkError
from floodmark.model import Owner, dump, load
from floodmark.state.fold import ClaimInfo
from floodmark.state.watermark import log as logger
from floodmark.state.watermark import stamp
from floodmark.store import Store, encode

LEASE_SECONDS = 60.0
# Claims of this process that have ended and could not say so in the store: a later run in the same process must not
# wait for them, although their owner is alive.
_over: set[str] = set()


@dataclass(frozen=True)
class LeaseNote:
    """The lease object: who holds a table, by which claim, and until when."""

    table_name: str
    run: str
    claim: str  # the claim's commit id
    n: int  # and its number
    owner: Owner
    purpose: str | None
    renewed_at: str
    expires_at: str
    released: bool = False


@dataclass(frozen=True)
class Holder:
    """The run that has the newest claim, and whether it is alive."""

    run: str
    owner: Owner | None
    purpose: str | None
    until: str
    alive: bool

    def describe(self) -> str:
        """`run 2025… on host db1 (pid 12)`."""
        where = f" on host {self.owner.host} (pid {self.owner.pid})" if self.owner else ""
        return f"run {self.run}{where}"


def lease_path(table_name: str) -> str:
    """Where a table's lease lies."""
    return f"leases/{encode(table_name)}.json"


def this_process() -> Owner:
    """Who we are, so that others on this machine can tell whether we are still there."""
    return Owner(socket.gethostname(), _boot(), os.getpid(), _started(os.getpid()) or "")


@cache
def _boot() -> str:
    """This boot of this machine, and the space in which its process numbers count (containers have their own)."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _started(pid: int) -> str | None:
    """When a process began, in ticks since boot; None when it does not exist or is only waiting to be reaped."""
    try:
        # The name in brackets may hold anything, brackets and blanks too.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    except (OSError, IndexError):
        return None


def _gone(owner: Owner | None) -> bool:
    """Whether the owner's process is known to be dead; of other machines nothing is known."""
    if owner is None or not owner.boot or (owner.host, owner.boot) != (socket.gethostname(), _boot()):
        return False
    return _started(owner.pid) != owner.started


def holder(
    store: Store, table_name: str, claim: ClaimInfo | None, *, seconds: float = LEASE_SECONDS
) -> Holder | None:
    """Who holds the table by its newest claim, or None when nobody does any more.

    `claim` is the newest that the caller knows of; the lease of a later one is a sign of that one's life.
    """
    if claim is None:
        return None
    now = stamp()
    note = _read(store, table_name)
    if note is not None:
        alive = note.expires_at > now and not _gone(note.owner) and note.claim not in _over
        if note.claim == claim.id and note.released:
            return None
        if note.claim == claim.id or (note.n > claim.n and alive):
            return Holder(note.run, note.owner, note.purpose, note.expires_at, alive)
    # Claimed, but the lease is not there yet or was overwritten: a fresh claim is sign of life enough.
    until = stamp(datetime.fromisoformat(claim.at) + timedelta(seconds=seconds))
    alive = until > now and not _gone(claim.owner) and claim.id not in _over
    return Holder(claim.run, claim.owner, claim.purpose, until, alive)


def end_unsaid(claim_id: str) -> None:
    """Remembers, for this process, that a claim has ended that the store could not be told of."""
    _over.add(claim_id)


def _read(store: Store, table_name: str) -> LeaseNote | None:
    data = store.get(lease_path(table_name))
    try:
        note = load(LeaseNote, data or b"")
    except ValueError:
        return None
    return note if note.table_name == table_name else None


class Lease:
    """Our own sign of life, renewed in the background until it is released."""

    def __init__(
        self, store: Store, table_name: str, claim: ClaimInfo, *, seconds: float = LEASE_SECONDS
    ) -> None:
        self._store = store
        self._seconds = seconds
        owner = claim.owner or this_process()
        self._claimed = datetime.fromisoformat(claim.at)
        self._note = LeaseNote(table_name, claim.run, claim.id, claim.n, owner, claim.purpose, "", "")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name=f"lease {table_name}", daemon=True)

    def start(self) -> Lease:
        """Writes the lease and begins to renew it."""
        # The claim was made just now, and is sign of life enough: nobody else's lease can be there.
        fresh = timedelta(0) <= datetime.now(UTC) - self._claimed < timedelta(seconds=self._seconds / 2)
        self._put(unread=fresh)
        self._thread.start()
        return self

    def release(self) -> None:
        """Says that the table is free; safe to call twice."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._thread.join(self._seconds)
        self._put(released=True)

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def _renew(self) -> None:
        while not self._stop.wait(self._seconds / 3):
            self._put()

    def _put(self, released: bool = False, unread: bool = False) -> None:
        """Writes the lease unless a later claim has it; a failure only costs the sign of life, not the table."""
        table_name = self._note.table_name
        now = datetime.now(UTC)
        until = now if released else now + timedelta(seconds=self._seconds)
        note = replace(self._note, renewed_at=stamp(now), expires_at=stamp(until), released=released)
        try:
            there = None if unread else _read(self._store, table_name)
            if there is None or there.n <= note.n:
                self._store.put(lease_path(table_name), dump(note))
        except FloodmarkError as error:
            # A lease that is not released runs out; its run has said or is about to say what failed.
            if released:
                end_unsaid(note.claim)
            logger.log(
                logging.INFO if released else logging.WARNING,
                "%s: the lease could not be %s: %s", table_name, "released" if released else "renewed", error.message,
                extra={"run": note.run, "table": table_name, "step": "lease"},
            )  # fmt: skip
