"""The lease: the heartbeat of a claim's holder, and what the holder is doing.

It may be lost, late or overwritten without harm: a run that is taken over by mistake can no longer commit. A
holder counts as alive until its lease expires and, on the same machine, only while its process exists. A
table is running while its holder is alive, interrupted while a window is open and nobody alive holds it.
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
from typing import Any

from floodmark.log.document import log as logger
from floodmark.log.fold import ClaimInfo, State
from floodmark.log.status import Live, read_live
from floodmark.model.commit import Owner, by_key
from floodmark.model.errors import FloodmarkError
from floodmark.model.json import dump, load
from floodmark.model.times import parse_moment, stamp
from floodmark.store.store import Store, encode, home

LEASE_SECONDS = 60.0
# Claims of this process that have ended but could not be released in the store. A later run in the same
# process must not wait for them, although their owner is alive. Kept per process because the two runs share
# nothing else.
_over: set[str] = set()


@dataclass(frozen=True)
class LeaseNote:
    """The lease object: which run holds a table, by which claim, and until when."""

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
    """The run with the newest claim, and whether it is alive."""

    run: str
    owner: Owner | None
    purpose: str | None
    until: str
    alive: bool


def who(run: str, owner: Owner | None) -> str:
    """`run 2025… on host db1 (pid 12)`."""
    return f"run {run} on host {owner.host} (pid {owner.pid})" if owner else f"run {run}"


def lease_path(table_name: str) -> str:
    """The path of a table's lease."""
    return f"{home(table_name)}leases/{encode(table_name)}.json"


def this_process() -> Owner:
    """Identifies this process, so that others on this machine can tell whether it is still running."""
    return Owner(socket.gethostname(), _boot(), os.getpid(), _started(os.getpid()) or "")


@cache
def _boot() -> str:
    """Identifies this boot of the machine and our PID namespace (containers have their own)."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _started(pid: int) -> str | None:
    """A process's start time in ticks since boot; None if it does not exist or is a zombie."""
    try:
        # The process name in parentheses may contain anything, including parentheses and spaces.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return None if fields[0] in "ZX" else fields[19]
    except (OSError, IndexError):
        return None


def _gone(owner: Owner | None) -> bool:
    """Whether the owner's process is known to be dead; on other machines we can't tell."""
    if owner is None or not owner.boot or (owner.host, owner.boot) != (socket.gethostname(), _boot()):
        return False
    return _started(owner.pid) != owner.started


def holder(store: Store, table_name: str, claim: ClaimInfo | None) -> Holder | None:
    """The holder of the newest claim, or None if it was released.

    `claim` is the newest that the caller knows of; a live lease with a higher number shows that a later claim
    holds the table.
    """
    if claim is None:
        return None
    now = stamp()
    note = _read(store, table_name)
    if note is not None:
        alive = lives(note, now)
        if note.claim == claim.id and note.released:
            return None
        if note.claim == claim.id or (note.n > claim.n and alive):
            return Holder(note.run, note.owner, note.purpose, note.expires_at, alive)
    # Claimed, but the lease is not written yet or was overwritten: a fresh claim counts as a heartbeat.
    until = stamp(parse_moment(claim.at) + timedelta(seconds=LEASE_SECONDS))
    alive = until > now and not _gone(claim.owner) and claim.id not in _over
    return Holder(claim.run, claim.owner, claim.purpose, until, alive)


def lives(note: LeaseNote, now: str | None = None) -> bool:
    """Whether the lease is still valid and its process alive."""
    ended = note.released or note.claim in _over
    return not ended and note.expires_at > (now or stamp()) and not _gone(note.owner)


def holds(store: Store, table_name: str) -> bool:
    """Whether the lease says that a live run holds it, when no log tells by which claim."""
    note = _read(store, table_name)
    return note is not None and lives(note)


def end_unsaid(claim_id: str) -> None:
    """Records, in this process, the end of a claim that could not be released in the store."""
    _over.add(claim_id)


def _read(store: Store, table_name: str) -> LeaseNote | None:
    data = store.get(lease_path(table_name))
    try:
        note = load(LeaseNote, data or b"")
    except ValueError:
        return None
    return note if note.table_name == table_name else None


class Lease:
    """Our own heartbeat, renewed in the background until released."""

    def __init__(self, store: Store, table_name: str, claim: ClaimInfo) -> None:
        self._store = store
        self._seconds = LEASE_SECONDS
        owner = claim.owner or this_process()
        self._claimed = parse_moment(claim.at)
        self._note = LeaseNote(table_name, claim.run, claim.id, claim.n, owner, claim.purpose, "", "")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, name=f"lease {table_name}", daemon=True)

    def start(self) -> Lease:
        """Writes the lease and starts renewing it."""
        # A fresh claim itself counts as a heartbeat, so no later run can have written a lease: skip the read.
        fresh = timedelta(0) <= datetime.now(UTC) - self._claimed < timedelta(seconds=self._seconds / 2)
        self._put(unread=fresh)
        self._thread.start()
        return self

    def release(self) -> None:
        """Marks the table as free; safe to call twice."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._thread.join(self._seconds)
        self._put(released=True)

    def __enter__(self) -> Lease:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()

    def _renew(self) -> None:
        while not self._stop.wait(self._seconds / 3):
            self._put()

    def _put(self, released: bool = False, unread: bool = False) -> None:
        """Writes the lease unless a later claim has it; a failure costs only the heartbeat, not the table."""
        table_name = self._note.table_name
        now = datetime.now(UTC)
        until = now if released else now + timedelta(seconds=self._seconds)
        note = replace(self._note, renewed_at=stamp(now), expires_at=stamp(until), released=released)
        try:
            there = None if unread else _read(self._store, table_name)
            if there is None or there.n <= note.n:
                self._store.put(lease_path(table_name), dump(note))
        except FloodmarkError as error:
            # An unreleased lease expires by itself; the run reports the underlying failure.
            if released:
                end_unsaid(note.claim)
            logger.log(
                logging.INFO if released else logging.WARNING,
                "%s: the lease could not be %s: %s", table_name, "released" if released else "renewed", error.message,
                extra={"run": note.run, "table": table_name, "step": "lease"},
            )  # fmt: skip


FIELDS = ("run", "host", "pid", "since", "stage", "rows")
IDLE: dict[str, Any] = {"state": "idle", **dict.fromkeys(FIELDS)}


def activity(state: State, held: Holder | None, live: Live | None = None) -> dict[str, Any]:
    """The contract's `activity`; `held` holds the newest claim, alive or not, `live` is its progress."""
    if held is not None and held.alive:
        shown = at_work("running", state, held)
        if live is not None and live.run == held.run and live.stage is not None:
            shown |= {"stage": live.stage, "rows": live.rows}
        return shown
    if state.window is None and state.extraction.reread is None:
        return dict(IDLE)
    claim = state.claim
    last = Holder(claim.run, claim.owner, claim.purpose, "", False) if claim else None
    return at_work("interrupted", state, last)


def activity_now(store: Store, state: State) -> dict[str, Any]:
    """The table's activity now; fetches the progress only while a live run holds the table."""
    held = holder(store, state.table_name, state.claim)
    live = read_live(store, state.table_name, held.run) if held is not None and held.alive else None
    return activity(state, held, live)


def at_work(word: str, state: State, held: Holder | None) -> dict[str, Any]:
    """Who holds the newest claim, and what was committed under it."""
    claim = state.claim if state.claim and held and state.claim.run == held.run else None
    committed = [d for d in state.data.commits if claim and d.n > claim.n and not by_key(d.load_as)]
    owner = held.owner if held else None
    return {
        "state": word,
        "run": held.run if held else None,
        "host": owner.host if owner else None,
        "pid": owner.pid if owner else None,
        "since": claim.at if claim else None,
        "stage": _stage(state, held.purpose if held else None, bool(committed)),
        "rows": sum(d.rows for d in committed),
    }


def _stage(state: State, purpose: str | None, committed: bool) -> str | None:
    """`extract` or `load`; for commands that do neither, their purpose."""
    if state.window is not None or state.extraction.reread is not None:
        return "extract"
    if purpose == "sync":
        return "load" if committed else "extract"
    return purpose
