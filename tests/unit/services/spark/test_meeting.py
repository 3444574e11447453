"""The meeting of tasks that read one snapshot: who takes part, who is dismissed, and how it ends."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from floodmark.services.spark.meeting import Guest, Invitation, Meeting, MeetingOver


@pytest.fixture
def meeting() -> Iterator[Meeting]:
    with Meeting("127.0.0.1", "127.0.0.1") as made:
        yield made


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as made:
        yield made


def never() -> bool:
    return False


def obedient(invitation: Invitation, slow: threading.Event | None = None) -> list[int]:
    """A task that follows the driver, and returns its pieces."""
    with Guest(invitation) as guest:
        done: list[int] = []
        while True:
            step = guest.told()
            if step["do"] in ("leave", "end"):
                return done
            if step["do"] == "open":
                guest.tell({"place": "here"})
                continue
            if step["do"] == "read":
                done.append(step["piece"])
                if slow is not None:
                    slow.wait(5)
            guest.tell({"do": "next"})


def test_all_members_do_each_step_together_and_share_the_work(
    meeting: Meeting, pool: ThreadPoolExecutor
) -> None:
    tasks = [pool.submit(obedient, meeting.invitation(n)) for n in range(3)]
    members = meeting.begin(lambda: 3, 5.0, never)
    assert [m.number for m in members] == [0, 1, 2]
    assert meeting.all_do(members, {"do": "open"}) == [{"place": "here"}] * 3
    for member in members:  # each asks for its first piece
        member.line.send({"do": "start"})
    given = meeting.share_out(members, range(10))
    assert sorted(p for pieces in given.values() for p in pieces) == list(range(10))
    assert [task.result(5) for task in tasks] == [given[n] for n in range(3)]


def test_a_member_may_ask_for_work_in_the_same_breath_as_it_answers(
    meeting: Meeting, pool: ThreadPoolExecutor
) -> None:
    with Guest(meeting.invitation(0)) as guest:
        members = meeting.begin(lambda: 1, 5.0, never)
        guest.tell({"held": True})
        guest.tell({"do": "next"})
        assert meeting.all_do(members, {"do": "hold"}) == [{"held": True}]
        shared = pool.submit(meeting.share_out, members, [7])
        assert [guest.told(), guest.told()] == [{"do": "hold"}, {"do": "read", "piece": 7}]
        guest.tell({"do": "next"})
        assert guest.told() == {"do": "end"} and shared.result(5) == {0: [7]}


def test_a_slow_member_gets_less_work(meeting: Meeting, pool: ThreadPoolExecutor) -> None:
    slow = threading.Event()
    tasks = [pool.submit(obedient, meeting.invitation(n), slow if n == 0 else None) for n in range(2)]
    members = meeting.begin(lambda: 2, 5.0, never)
    for member in members:
        member.line.send({"do": "start"})
    threading.Timer(0.3, slow.set).start()
    given = meeting.share_out(members, range(50))
    assert len(given[0]) < len(given[1])
    assert all(tasks[n].result(5) == given[n] for n in range(2))


def test_it_begins_without_those_for_whom_there_is_no_room_and_sends_them_home_later(
    meeting: Meeting, pool: ThreadPoolExecutor
) -> None:
    pool.submit(obedient, meeting.invitation(1))
    members = meeting.begin(lambda: 4, 0.2, never)
    assert [m.number for m in members] == [1]
    assert pool.submit(obedient, meeting.invitation(3)).result(5) == []
    meeting.send_home(members)


def test_a_second_attempt_at_a_task_neither_takes_part_nor_returns_before_the_end(
    meeting: Meeting, pool: ThreadPoolExecutor
) -> None:
    first = pool.submit(obedient, meeting.invitation(0))
    members = meeting.begin(lambda: 1, 5.0, never)
    second = pool.submit(obedient, meeting.invitation(0))
    members[0].line.send({"do": "start"})
    assert meeting.share_out(members, range(3)) == {0: [0, 1, 2]}
    assert first.result(5) == [0, 1, 2] and not second.done()
    meeting.close()
    with pytest.raises(MeetingOver):
        second.result(5)


def test_a_lost_member_ends_it(meeting: Meeting, pool: ThreadPoolExecutor) -> None:
    other = pool.submit(obedient, meeting.invitation(0))
    lost = Guest(meeting.invitation(1))
    members = meeting.begin(lambda: 2, 5.0, never)
    lost.close()
    with pytest.raises(MeetingOver):
        meeting.all_do(members, {"do": "open"})
    with pytest.raises(MeetingOver):
        meeting.share_out(members, range(9))
    meeting.close()
    with pytest.raises(MeetingOver):
        other.result(5)


def test_nobody_can_join_once_it_is_over(meeting: Meeting) -> None:
    invited = meeting.invitation(0)
    meeting.close()
    with pytest.raises(MeetingOver):
        Guest(invited)


def test_it_does_not_begin_without_anyone(meeting: Meeting) -> None:
    with pytest.raises(MeetingOver):
        meeting.begin(lambda: 2, 0.1, lambda: True)


def test_strangers_do_not_take_part(meeting: Meeting, pool: ThreadPoolExecutor) -> None:
    known = meeting.invitation(0)
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"[]\n", b'{"number": 0}\n', b"\xff\xfe\n", b"1\n"):
        with socket.create_connection((known.host, known.port), 5) as stranger:
            stranger.sendall(garbage)
            assert stranger.recv(10) == b""
    with Guest(replace(known, token="0" * 32)) as forger, pytest.raises(MeetingOver):
        forger.told()
    mine = pool.submit(obedient, known)
    members = meeting.begin(lambda: 1, 5.0, never)
    meeting.send_home(members)
    assert mine.result(5) == []
