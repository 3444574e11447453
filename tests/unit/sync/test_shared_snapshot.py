"""Which results of tasks that read a snapshot together count: only those of the attempts that saw one moment."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from floodmark.config.load import Config, SourceSpec, StoreSpec, WarehouseSpec
from floodmark.extract.task import Share, SliceResult
from floodmark.model import events
from floodmark.model.errors import Interrupted, TransientError
from floodmark.model.run import Wait
from floodmark.model.window import Slice
from floodmark.services import Services
from floodmark.source.one_moment import Proof
from floodmark.source.session import Session
from floodmark.spark.meeting import Guest, Meeting, MeetingOver
from floodmark.sync.shared_snapshot import (
    RETURNED,
    MeetingOutcome,
    _open_all,
    _turn,
    conducted,
    failed,
    gathered,
    starts_over,
)
from tests.support.samples import RUN, TABLE


def result(number: int) -> SliceResult:
    return SliceResult(Slice("snapshot", number, "key"), (), 0, 0, 0.0)


GIVEN = MeetingOutcome(2, 1, {0: [0, 2], 1: [1]}, {0: "a", 1: "b"})
FIRST, SECOND = Share(0, "a", (result(0), result(2))), Share(1, "b", (result(1),))


def test_all_slices_of_the_attempts_that_took_part_count_in_order() -> None:
    found = gathered(GIVEN, [SECOND, FIRST, Share(2, "late")], 3)
    assert found is not None and [r.slice.number for r in found] == [0, 1, 2]


def test_anything_else_counts_for_nothing() -> None:
    assert gathered(GIVEN, [FIRST], 3) is None, "a slice is missing"
    assert gathered(GIVEN, [FIRST, SECOND], 4) is None
    assert gathered(GIVEN, [FIRST, SECOND, SECOND], 3) is None, "a slice came twice"
    assert gathered(GIVEN, [FIRST, Share(1, "other attempt", SECOND.results)], 3) is None
    assert gathered(GIVEN, [FIRST, Share(2, "b", SECOND.results)], 3) is None, "it was sent home"
    assert gathered(GIVEN, [Share(0, "a", (result(0),)), Share(1, "b", (result(1), result(2)))], 3) is None
    assert gathered(replace(GIVEN, error=MeetingOver("")), [FIRST, SECOND], 3) is None


def test_a_snapshot_starts_over_only_if_spark_lives_and_nobody_stopped_the_run() -> None:
    for lost in (MeetingOver(""), TransientError("")):
        assert starts_over(lost, interrupted=False, alive=True)
        assert not starts_over(lost, interrupted=False, alive=False), "as without a meeting: Spark has ended"
        assert not starts_over(lost, interrupted=True, alive=True)
    assert not starts_over(Interrupted(""), interrupted=False, alive=True)


def test_whatever_fails_in_the_conductor_ends_the_meeting_and_is_kept() -> None:
    def fails() -> None:
        raise KeyError("a bug")

    outcome = MeetingOutcome()
    outcome.ended.set()
    with Meeting("127.0.0.1", "127.0.0.1") as meeting, Guest(meeting.invitation(0)) as waiting:
        meeting.begin(lambda: 1, 5.0, lambda: False)
        conducted(fails, meeting, outcome)
        with pytest.raises(MeetingOver):
            waiting.told()
    assert isinstance(outcome.error, KeyError) and outcome.ready.is_set() and outcome.over


def test_tasks_that_do_not_come_back_fail_the_meeting_in_the_end() -> None:
    assert failed(MeetingOutcome(read_at=100.0), 100.0 + RETURNED) is None
    assert isinstance(failed(MeetingOutcome(read_at=100.0), 101.0 + RETURNED), MeetingOver)
    assert failed(MeetingOutcome(error=KeyError()), 1e9) is None, "a task's own error may still come"
    assert isinstance(failed(MeetingOutcome(error=KeyError(), over=True), 0.0), MeetingOver)


class Server:
    """A session of the driver's, on a server of this name."""

    def __init__(self, name: str) -> None:
        self.name = name

    def once(self, sql: str) -> list[tuple[bytes | None, ...]]:
        return self.rows(sql)

    def rows(self, sql: str) -> list[tuple[bytes | None, ...]]:
        if sql.startswith("SELECT CONCAT"):
            return [(f"server_uuid={self.name}".encode(),)]
        return [(b"server_uuid", self.name.encode())] if sql.startswith("SHOW GLOBAL") else []


class Proving:
    """A proof that always succeeds, and counts."""

    def __init__(self) -> None:
        self.times = 0

    def before(self) -> bool:
        self.times += 1
        return True

    def meanwhile(self) -> None:
        pass

    def after(self) -> bool:
        return True


def follows(meeting: Meeting, number: int, server: str) -> list[str]:
    """A task whose session is on this server; returns the steps that it was told."""
    steps: list[str] = []
    with Guest(meeting.invitation(number)) as guest:
        while (step := guest.told()["do"]) != "leave":
            steps.append(step)
            guest.tell({"server": f"server_uuid={server}"} if step == "connect" else {})
            if step == "hold":
                break
    return steps


@pytest.mark.parametrize(
    ("proof", "holder", "second"), [("a", "a", "a"), ("b", "a", "a"), ("a", "b", "a"), ("a", "a", "b")]
)
def test_several_connections_read_only_if_all_of_them_are_on_one_server(
    proof: str, holder: str, second: str
) -> None:
    outcome, proving, one = MeetingOutcome(), Proving(), proof == holder == second
    with Meeting("127.0.0.1", "127.0.0.1") as meeting, ThreadPoolExecutor(2) as pool:
        tasks = [pool.submit(follows, meeting, n, name) for n, name in enumerate(("a", second))]
        came = _open_all(
            meeting, meeting.begin(lambda: 2, 5.0, lambda: False), cast(Session, Server(proof)),
            cast(Session, Server(holder)), cast(Proof, proving), TABLE, 5.0, outcome,
        )  # fmt: skip
        steps = [task.result(5) for task in tasks]
    assert [member.number for member in came] == ([0, 1] if one else [0])
    assert outcome.obstacle == (None if one else "servers") and proving.times == (1 if one else 0)
    assert steps == [["connect", "open", "hold"], ["connect", "open", "hold"] if one else ["connect"]]


class Watch:
    """Keeps which table waits for what."""

    def __init__(self) -> None:
        self.waits: list[tuple[str, Wait | None]] = []

    def __call__(self, event: events.Event) -> None:
        if isinstance(event, events.Waiting):
            self.waits.append((event.table, event.on))


def test_one_table_of_a_run_at_a_time_reads_a_shared_snapshot_and_a_stopped_run_does_not_wait(
    tmp_path: Path,
) -> None:
    config = Config(
        tmp_path / "floodmark.yaml",
        SourceSpec("127.0.0.1", 1, "reader", "secret"),
        StoreSpec(url=str(tmp_path / "lake")),
        WarehouseSpec("duckdb", "main", tmp_path / "w.duckdb"),
    )
    watch, inside = Watch(), threading.Event()
    with Services(config, watch, RUN) as services, ThreadPoolExecutor(2) as pool:

        def second() -> None:
            with _turn(services, "shop.b"):
                inside.set()

        with _turn(services, "shop.a"):
            waiting = pool.submit(second)
            assert not inside.wait(0.3)
        waiting.result(5)
        assert inside.is_set() and watch.waits == [("shop.b", Wait("turn")), ("shop.b", None)]
        with _turn(services, "shop.a"):
            waiting = pool.submit(second)
            services.interrupt()
            with pytest.raises(Interrupted):
                waiting.result(5)
        assert not services.sharing.locked()
