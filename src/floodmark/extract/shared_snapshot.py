"""The body of a Spark task that reads a snapshot together with others: each has a session, all see one moment.

The task follows the driver, which proves that the sessions' snapshots are equal before any of them reads. Then it
asks for one slice after the other, and reads them all in its one transaction. It never opens a second session: a lost one
ends the meeting, and the snapshot starts over.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from floodmark.config.load import SourceSpec
from floodmark.extract.task import SliceJob, SliceResult, read_slice
from floodmark.model.table import Table
from floodmark.model.window import Slice
from floodmark.source.one_moment import at_moment, hold, open_snapshot
from floodmark.source.server import server_of
from floodmark.source.session import Session
from floodmark.spark.job import Relay
from floodmark.spark.meeting import Guest, Invitation


@dataclass(frozen=True)
class Share:
    """The slices that one task has read, and which attempt at the task it was."""

    number: int
    attempt: str
    results: tuple[SliceResult, ...] = ()


@dataclass(frozen=True)
class SharedSnapshotJob:
    """One of the tasks that read a snapshot together. Pickled into the task, never shown anywhere."""

    source: SourceSpec
    like: SliceJob  # each slice's job is like this one, but for the slice
    pieces: tuple[Slice, ...]  # all slices of the snapshot
    invitation: Invitation
    moment: str | None = None  # the value of NOW(), in case the table's `where` uses it

    @property
    def table(self) -> Table:
        return self.like.table

    def title(self, of: int) -> str:
        """The task's name in the Spark UI."""
        return f"extract {self.table.name} snapshot, connection {self.invitation.number + 1} of {of}"

    def go(self, told: Callable[[int], None] = lambda rows: None, relay: Relay | None = None) -> Share:
        """Takes part until the driver has no more slices, or dismisses this task."""
        with Guest(self.invitation) as guest:
            return Share(self.invitation.number, guest.attempt, self._take_part(guest, told))

    def _take_part(self, guest: Guest, told: Callable[[int], None]) -> tuple[SliceResult, ...]:
        if guest.told()["do"] != "connect":
            return ()  # the others have begun
        purpose = f"extract {self.table.name}"
        with Session(self.source, read_timeout=self.like.read_timeout, purpose=purpose) as session:
            if self.moment is not None:
                at_moment(session, self.moment)
            guest.tell({"server": server_of(session)})
            while (step := guest.told()["do"]) == "open":
                open_snapshot(session)
                guest.tell({})
            if step != "hold":
                return ()
            hold(session, self.table)
            guest.tell({})
            with guest.showing_life():
                return self._read(guest, session, told)

    def _read(self, guest: Guest, session: Session, told: Callable[[int], None]) -> tuple[SliceResult, ...]:
        done: list[SliceResult] = []
        rows = 0
        while True:
            guest.tell({"do": "next"})
            said = guest.told()
            if said["do"] != "read":
                return tuple(done)
            job = replace(self.like, source=self.source, slice=self.pieces[said["piece"]])
            done.append(read_slice(job, session, _beyond(rows, told)))
            rows += done[-1].rows


def _beyond(before: int, told: Callable[[int], None]) -> Callable[[int], None]:
    """Reports the rows of one slice on top of those before it."""
    return lambda rows: told(before + rows)
