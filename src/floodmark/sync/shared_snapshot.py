"""Reads a snapshot with several connections, in several tasks, which are proven to see one moment.

The driver has all tasks open their snapshots at once, and repeats that until nothing was committed meanwhile. If it
never succeeds, the first task reads everything alone: one snapshot is always one moment. Results count only
if they are from the very attempts that took part in the proof, and cover every slice once.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from floodmark.extract.shared_snapshot import Share, SharedSnapshotJob
from floodmark.extract.task import SliceJob, SliceResult
from floodmark.model import events
from floodmark.model.errors import FloodmarkError, TransientError
from floodmark.model.notes import Obstacle
from floodmark.model.table import Table
from floodmark.services.mysql.one_moment import hold, moment_of, proof
from floodmark.services.run import Services
from floodmark.services.spark.jvm import is_local
from floodmark.services.spark.meeting import Meeting, MeetingOver, Member

log = logging.getLogger("floodmark")

# Connections of the driver's own while snapshots are opened.
OWN = 2
# Seconds between two attempts to open all snapshots at one moment.
PAUSES = (0.005, 0.05)
# Rows that one connection reads in a second, roughly: how long waiting may take depends on what it saves.
RATE = 300_000
# Seconds that a cluster's first task waits for the others, at least: executors come one after the other.
COMING = 10.0
# Seconds after which a task's own error has reached us, if there is one, and the others are dismissed.
GRACE = 1.0


@dataclass
class Outcome:
    """How a meeting went."""

    connections: int = 0
    attempts: int = 0
    given: dict[int, list[int]] = field(default_factory=dict)  # the slices that each task was given
    members: dict[int, str] = field(default_factory=dict)  # the attempts that took part
    error: FloodmarkError | None = None


@dataclass(frozen=True)
class Read:
    """What was read, if everything was, and what prevented reading it over several connections."""

    results: tuple[SliceResult, ...] | None
    obstacle: Obstacle | None = None


def read_shared(services: Services, jobs: Sequence[SliceJob], underway: Callable[[int], None]) -> Read:
    """Reads all slices of a snapshot with several connections at one moment, or with one if that can't be proven.

    Without results, a task was lost or there is only room for one, and nothing of what was written counts. Raises
    errors that reading with one connection would meet as well.
    """
    table, spark = jobs[0].table, services.spark()
    wanted = min(len(jobs), spark.tasks_at_once(services.config.source.max_connections - OWN))
    if wanted < 2:
        return Read(None)
    with services.session("snapshot") as session:
        mariadb = services.looks.trust(session).sight.mariadb
        moment = moment_of(session) if table.recipe.where else None
    pieces, local = tuple(job.slice for job in jobs), is_local(spark.settings)
    patience = max(1.0, min(15.0, sum(piece.rows for piece in pieces) / RATE / 4))
    with spark.meeting() as meeting:
        members = [
            SharedSnapshotJob(jobs[0].source, jobs[0], pieces, meeting.invitation(n), moment)
            for n in range(wanted)
        ]
        outcome, ended = Outcome(), threading.Event()

        def room() -> int:
            return min(wanted, spark.cores())

        def conduct() -> None:
            try:
                came = meeting.begin(room, patience if local else max(patience, COMING), ended.is_set)
                _conduct(services, table, meeting, mariadb, came, len(pieces), patience, outcome, ended)
            except FloodmarkError as error:
                outcome.error = error
                ended.wait(GRACE)
                meeting.close()

        conductor = threading.Thread(target=conduct, name="snapshot", daemon=True)
        conductor.start()
        shares: list[Share] = []
        try:
            shares += services.submit(members, table.name, underway)
        except (MeetingOver, TransientError) as error:
            if services.interrupted:
                raise
            log.info("a shared snapshot starts over: %s", error.message, extra={"table": table.name})
            return Read(None, "lost")
        finally:
            ended.set()
            meeting.close()
            conductor.join(10.0)  # it has nothing left to wait for but, rarely, room for a connection
    results = gathered(outcome, shares, len(pieces))
    if results is None:
        return Read(None, "lost")
    said = f"the snapshot was read with {outcome.connections} connections, after {outcome.attempts} attempts at one moment"
    events.tell(
        log, logging.DEBUG, "decision", said, table=table.name, step="extract",
        connections=outcome.connections, attempts=outcome.attempts,
    )  # fmt: skip
    return Read(results, "unproven" if outcome.connections == 1 and outcome.attempts else None)


def gathered(outcome: Outcome, shares: Sequence[Share], pieces: int) -> tuple[SliceResult, ...] | None:
    """All slices, each once and read by the attempt that was given it; None if that is not what came back. Pure."""
    if outcome.error is not None:
        return None
    found: dict[int, SliceResult] = {}
    for share in shares:
        if not share.results:
            continue
        read = [result.slice.number for result in share.results]
        if outcome.members.get(share.number) != share.attempt or outcome.given.get(share.number) != read:
            return None
        found.update({result.slice.number: result for result in share.results})
    if sorted(found) != list(range(pieces)) or sum(len(s.results) for s in shares) != pieces:
        return None
    return tuple(found[number] for number in range(pieces))


def _conduct(
    services: Services,
    table: Table,
    meeting: Meeting,
    mariadb: bool,
    members: list[Member],
    pieces: int,
    patience: float,
    outcome: Outcome,
    ended: threading.Event,
) -> None:
    """Has the tasks open their snapshots at one moment, then shares out the slices; raises FloodmarkError."""
    meeting.all_do(members, {"do": "connect"})
    with services.session("snapshot") as session, services.session("snapshot") as holder:
        # Until every task holds the table itself, nobody may change its definition.
        holder.rows("START TRANSACTION")
        hold(holder, table)
        together = len(members) == 1
        deadline = time.monotonic() + patience
        proving = proof(session, mariadb)
        while not together and time.monotonic() < deadline and not ended.is_set():
            outcome.attempts += 1
            if proving.before():
                meeting.all_do(members, {"do": "open"}, proving.meanwhile)
                together = proving.after()
            if not together:
                ended.wait(random.uniform(*PAUSES))
        if not together or len(members) == 1:
            meeting.send_home(members[1:])
            members = members[:1]
            meeting.all_do(members, {"do": "open"})
        meeting.all_do(members, {"do": "hold"})
        with suppress(FloodmarkError):
            holder.rows("COMMIT")
    outcome.connections = len(members)
    outcome.members = {member.number: member.attempt for member in members}
    outcome.given = meeting.share_out(members, range(pieces))
