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
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field

from floodmark.extract.task import Share, SharedSnapshotJob, SliceJob, SliceResult
from floodmark.model import log_lines
from floodmark.model.errors import FloodmarkError, Interrupted, TransientError
from floodmark.model.events import waiting
from floodmark.model.notes import Obstacle
from floodmark.model.run import Wait
from floodmark.model.table import Table
from floodmark.services import Services
from floodmark.source.one_moment import Proof, hold, moment_of, one_server, proof
from floodmark.source.server import server_of
from floodmark.source.session import Session
from floodmark.spark.context import Spark
from floodmark.spark.meeting import Meeting, MeetingOver, Member

logger = logging.getLogger("floodmark")

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
# Seconds that the results of attempts that have done their work may take, until speculative ones are let go.
RETURNING = 15.0
# Seconds after which a task that has not returned its results is frozen.
RETURNED = 120.0


@dataclass
class MeetingOutcome:
    """How a meeting went."""

    connections: int = 0
    attempts: int = 0
    given: dict[int, list[int]] = field(default_factory=dict)  # the slices that each task was given
    members: dict[int, str] = field(default_factory=dict)  # the attempts that took part
    obstacle: Obstacle | None = None
    error: BaseException | None = None
    over: bool = False  # the error has ended the meeting
    read_at: float | None = None  # when all slices were read
    ready: threading.Event = field(default_factory=threading.Event)  # tasks may be submitted
    ended: threading.Event = field(default_factory=threading.Event)  # nobody waits for the tasks any more


def read_shared(
    services: Services, jobs: Sequence[SliceJob], underway: Callable[[int], None]
) -> tuple[tuple[SliceResult, ...] | None, Obstacle | None]:
    """Reads all slices of a snapshot with several connections at one moment, or with one if that can't be proven.

    Returns what was read, if everything was, and what prevented reading it over several connections. Without results, a task was lost or there is only room for one, and nothing of what was written counts. Raises
    errors that reading with one connection would meet as well.
    """
    table, spark = jobs[0].table, services.spark()
    wanted = min(len(jobs), spark.tasks_at_once(services.config.source.max_connections - OWN))
    if wanted < 2:
        return None, None
    with _turn(services, table.name):
        with services.session("snapshot") as session:
            mariadb = services.looks(session).trust(session).sight.mariadb
            moment = moment_of(session) if table.recipe.where else None
        outcome, shares, lost = _met(services, spark, jobs, wanted, mariadb, moment, underway)
    if outcome.error is not None and not isinstance(outcome.error, FloodmarkError):
        raise outcome.error  # a bug
    if lost is not None:
        if not starts_over(lost, services.interrupted, spark.alive):
            raise lost
        logger.info("a shared snapshot starts over: %s", lost.message, extra={"table": table.name})
        return None, "lost"
    results = gathered(outcome, shares, len(jobs))
    if results is None:
        return None, "lost"
    said = f"the snapshot was read with {outcome.connections} connections, after {outcome.attempts} attempts at one moment"
    log_lines.tell(
        logger, logging.DEBUG, "decision", said, table=table.name, step="extract",
        connections=outcome.connections, attempts=outcome.attempts,
    )  # fmt: skip
    return results, outcome.obstacle


@contextmanager
def _turn(services: Services, name: str) -> Iterator[None]:
    """Waits until no other table of the run reads a shared snapshot: there are cores and connections for one."""
    if not services.sharing.acquire(blocking=False):
        with waiting(services.emit, name, Wait("turn")):
            while not services.sharing.acquire(timeout=0.2):
                if services.interrupted:
                    raise Interrupted("stopped", table=name)
    try:
        yield
    finally:
        services.sharing.release()


def _met(
    services: Services,
    spark: Spark,
    jobs: Sequence[SliceJob],
    wanted: int,
    mariadb: bool,
    moment: str | None,
    underway: Callable[[int], None],
) -> tuple[MeetingOutcome, list[Share], FloodmarkError | None]:
    """Holds the meeting: how it went, what the tasks read, and the error if one was lost."""
    table, pieces, local = jobs[0].table, tuple(job.slice for job in jobs), spark.local
    patience = max(1.0, min(15.0, sum(piece.rows for piece in pieces) / RATE / 4))
    outcome, shares = MeetingOutcome(), list[Share]()
    lost: FloodmarkError | None = None
    with spark.meeting() as meeting:
        members = [
            SharedSnapshotJob(jobs[0].source, jobs[0], pieces, meeting.invitation(n), moment)
            for n in range(wanted)
        ]

        def room() -> int:
            return min(wanted, spark.cores())

        def conduct() -> None:
            # Opened before any task is submitted: the tasks would take all connections.
            with services.throttle.sessions("snapshot", OWN) as (session, holder):
                outcome.ready.set()
                came = meeting.begin(room, patience if local else max(patience, COMING), outcome.ended.is_set)
                proving = proof(session, mariadb)
                came = _open_all(meeting, came, session, holder, proving, table, patience, outcome)
            outcome.connections = len(came)
            outcome.members = {member.number: member.attempt for member in came}
            outcome.given = meeting.share_out(came, range(len(pieces)))
            outcome.read_at = time.monotonic()
            if spark.speculates:  # a speculative attempt that returned before the first one would replace it
                outcome.ended.wait(RETURNING)
            meeting.let_go()

        conductor = threading.Thread(
            target=conducted, args=(conduct, meeting, outcome), name="snapshot", daemon=True
        )
        conductor.start()
        try:
            while not outcome.ready.wait(0.2):
                if services.interrupted:
                    raise Interrupted("stopped", table=table.name)
            if outcome.error is None:
                submitted = services.submit(
                    members, table.name, underway, lambda: failed(outcome, time.monotonic())
                )
                with closing(submitted):
                    for share in submitted:
                        shares.append(share)
                        if gathered(outcome, shares, len(jobs)) is not None:
                            break  # whoever has not come by now is not needed
        except (MeetingOver, TransientError) as error:
            lost = error
        finally:
            outcome.ended.set()
            meeting.close()
            conductor.join(GRACE if services.interrupted else 10.0)
    return outcome, shares, lost


def conducted(conduct: Callable[[], None], meeting: Meeting, outcome: MeetingOutcome) -> None:
    """Conducts a meeting; whatever fails ends it, so that no task waits for ever, and is kept for the caller."""
    try:
        conduct()
    except BaseException as error:
        outcome.error = error
        outcome.ready.set()
        outcome.ended.wait(GRACE)
        outcome.over = True
        meeting.close()


def failed(outcome: MeetingOutcome, now: float) -> FloodmarkError | None:
    """The error of a meeting that has failed, or whose results don't come back, though no task has failed. Pure."""
    if outcome.over or (outcome.read_at is not None and now - outcome.read_at > RETURNED):
        return MeetingOver("the meeting of the tasks is over", hint="run the command again")
    return None


def starts_over(lost: FloodmarkError, interrupted: bool, alive: bool) -> bool:
    """Whether a snapshot that lost a task may start over: not without Spark, nor if the run is ending. Pure."""
    return isinstance(lost, MeetingOver | TransientError) and alive and not interrupted


def gathered(outcome: MeetingOutcome, shares: Sequence[Share], pieces: int) -> tuple[SliceResult, ...] | None:
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


def _open_all(
    meeting: Meeting,
    members: list[Member],
    session: Session,
    holder: Session,
    proving: Proof,
    table: Table,
    patience: float,
    outcome: MeetingOutcome,
) -> list[Member]:
    """Has the tasks open their snapshots at one moment; returns those that did, or the first one alone."""
    servers = [str(said.get("server", "")) for said in meeting.all_do(members, {"do": "connect"})]
    if len(members) > 1 and not one_server([server_of(session), server_of(holder), *servers]):
        outcome.obstacle = "servers"
    # Until every task holds the table itself, nobody may change its definition.
    holder.rows("START TRANSACTION")
    hold(holder, table)
    together = False
    deadline = time.monotonic() + patience
    while len(members) > 1 and not together and outcome.obstacle is None and not outcome.ended.is_set():
        outcome.attempts += 1
        if proving.before():
            meeting.all_do(members, {"do": "open"}, proving.meanwhile)
            together = proving.after()
        if together:
            break
        if time.monotonic() > deadline:
            outcome.obstacle = "unproven"
        outcome.ended.wait(random.uniform(*PAUSES))
    if not together:
        meeting.send_home(members[1:])
        members = members[:1]
        meeting.all_do(members, {"do": "open"})
    meeting.all_do(members, {"do": "hold"})
    with suppress(FloodmarkError):
        holder.rows("COMMIT")
    return members
