"""Several jobs in one task: each has its own result or error, and none waits long for the others."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import SimpleNamespace

from floodmark.config.load import SourceSpec
from floodmark.model.errors import FloodmarkError, TransientError
from floodmark.spark.job import Piece, Relay, attempts

SOURCE = SourceSpec("db", 3306, "reader", "word")


@dataclass(frozen=True)
class Job:
    """Returns its table's name after a while, or fails."""

    name: str
    seconds: float = 0
    error: Exception | None = None
    source: SourceSpec = SOURCE

    @property
    def table(self) -> SimpleNamespace:
        return SimpleNamespace(name=self.name)

    def go(self, told: object, relay: Relay) -> str:
        time.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        return self.name


def run(*jobs: Job) -> list[str | FloodmarkError]:
    return attempts([Piece(job) for job in jobs], patience=0.05)  # type: ignore[arg-type]


def test_an_error_comes_back_for_its_own_table_and_the_other_jobs_of_the_task_run() -> None:
    first, lost, bug, last = run(
        Job("a"), Job("b", error=TransientError("gone")), Job("c", error=ValueError("odd")), Job("d")
    )
    assert (first, last) == ("a", "d")
    assert isinstance(lost, TransientError) and lost.table == "b"
    assert isinstance(bug, FloodmarkError) and (bug.table, bug.message) == ("c", "ValueError: odd")


def test_a_task_that_has_taken_long_leaves_the_rest_to_others_but_always_runs_its_first_job() -> None:
    assert run(Job("a"), Job("b", seconds=0.1), Job("c"), Job("d")) == ["a", "b"]


class Link:
    """Stands for a connection."""

    closed = False

    def close(self) -> None:
        self.closed = True


@dataclass(frozen=True)
class Relayed(Job):
    """Leaves a connection, and says whether there was one."""

    link: Link = field(default_factory=Link)

    def go(self, told: object, relay: Relay) -> str:
        taken = relay.taken()
        super().go(told, relay)
        relay.leave(taken or self.link)
        return "taken" if taken else "new"


def test_jobs_of_a_task_use_one_connection_after_another_and_the_task_closes_it() -> None:
    jobs = Relayed("a"), Relayed("b"), Relayed("c", error=TransientError("gone")), Relayed("d")
    first, second, lost, last = run(*jobs)
    assert (first, second, last) == ("new", "taken", "new") and isinstance(lost, TransientError)
    assert jobs[-1].link.closed and not jobs[1].link.closed
