"""The meeting of tasks that read one snapshot: who takes part, who is dismissed, and how it ends."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import cast

import pytest

from floodmark.spark import meeting as module
from floodmark.spark.meeting import Guest, Invitation, Meeting, MeetingOver


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


def test_a_member_that_is_frozen_ends_the_meeting_and_one_that_is_slow_does_not(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SIGN_EVERY", 0.05)
    monkeypatch.setattr(module, "SILENCE", 0.5)
    monkeypatch.setattr(module, "LOOK_EVERY", 0.05)

    def works(guest: Guest, seconds: float) -> str:
        with guest.showing_life():
            guest.tell({"do": "next"})
            guest.told()
            time.sleep(seconds)
            guest.tell({"do": "next"})
            return str(guest.told()["do"])

    with Meeting("127.0.0.1", "127.0.0.1") as meeting, Guest(meeting.invitation(0)) as slow:
        members = meeting.begin(lambda: 1, 5.0, never)
        working = pool.submit(works, slow, 1.5)
        assert meeting.share_out(members, [7]) == {0: [7]} and working.result(5) == "end"
    with Meeting("127.0.0.1", "127.0.0.1") as meeting, Guest(meeting.invitation(0)) as frozen:
        members = meeting.begin(lambda: 1, 5.0, never)
        frozen.tell({"do": "next"})
        with pytest.raises(MeetingOver, match="has not moved"):
            meeting.share_out(members, [7])


def test_it_begins_without_those_for_whom_there_is_no_room_and_sends_them_home_later(
    meeting: Meeting, pool: ThreadPoolExecutor
) -> None:
    pool.submit(obedient, meeting.invitation(1))
    members = meeting.begin(lambda: 4, 0.2, never)
    assert [m.number for m in members] == [1]
    assert pool.submit(obedient, meeting.invitation(3)).result(5) == []
    meeting.send_home(members)


def test_a_speculative_attempt_neither_takes_part_nor_returns_before_the_end(
    pool: ThreadPoolExecutor,
) -> None:
    with Meeting("127.0.0.1", "127.0.0.1", speculates=True) as meeting:
        first = pool.submit(obedient, meeting.invitation(0))
        members = meeting.begin(lambda: 1, 5.0, never)
        second = pool.submit(obedient, meeting.invitation(0))
        members[0].line.send({"do": "start"})
        assert meeting.share_out(members, range(3)) == {0: [0, 1, 2]}
        assert first.result(5) == [0, 1, 2] and not second.done()
        meeting.let_go()
        with pytest.raises(MeetingOver):
            second.result(5)


def test_a_second_attempt_without_speculation_means_that_the_first_is_lost_without_a_word(
    meeting: Meeting, pool: ThreadPoolExecutor
) -> None:
    with Guest(meeting.invitation(0)), Guest(meeting.invitation(1)) as other:
        members = meeting.begin(lambda: 2, 5.0, never)
        shared = pool.submit(meeting.share_out, members, [1])
        again = pool.submit(obedient, meeting.invitation(0))
        for waiting in (shared, again, pool.submit(other.told)):
            with pytest.raises(MeetingOver):
                waiting.result(5)


def test_before_it_begins_a_second_attempt_takes_the_place_of_the_first(
    meeting: Meeting, pool: ThreadPoolExecutor
) -> None:
    with Guest(meeting.invitation(0)) as first:
        while 0 not in meeting._members:  # each arrival has a thread of its own
            time.sleep(0.001)
        again = pool.submit(obedient, meeting.invitation(0))
        with pytest.raises(MeetingOver):
            first.told()
        members = meeting.begin(lambda: 1, 5.0, never)
        assert [m.attempt for m in members] != [first.attempt]
        meeting.send_home(members)
        assert again.result(5) == []


def test_a_task_retried_after_its_work_is_not_kept_waiting(
    meeting: Meeting, pool: ThreadPoolExecutor
) -> None:
    tasks = [pool.submit(obedient, meeting.invitation(n)) for n in range(2)]
    members = meeting.begin(lambda: 2, 5.0, never)
    meeting.send_home(members[1:])
    assert tasks[1].result(5) == []
    assert pool.submit(obedient, meeting.invitation(1)).result(5) == [], "it had been dismissed"
    members[0].line.send({"do": "start"})
    assert meeting.share_out(members[:1], [4]) == {0: [4]} and tasks[0].result(5) == [4]
    meeting.let_go()
    with pytest.raises(MeetingOver):
        pool.submit(obedient, meeting.invitation(0)).result(5)
    assert pool.submit(obedient, meeting.invitation(1)).result(5) == []
    assert pool.submit(obedient, meeting.invitation(7)).result(5) == [], "Spark had no room for it until now"


def test_closing_it_ends_a_share_out_that_nobody_asks_anything_of(
    meeting: Meeting, pool: ThreadPoolExecutor
) -> None:
    with Guest(meeting.invitation(0)):
        members = meeting.begin(lambda: 1, 5.0, never)
        shared = pool.submit(meeting.share_out, members, [1])
        time.sleep(0.1)
        began = time.monotonic()
        meeting.close()
        with pytest.raises(MeetingOver):
            shared.result(5)
        assert time.monotonic() - began < 1.0


def test_both_sides_notice_a_peer_that_is_gone_without_a_word(meeting: Meeting) -> None:
    with Guest(meeting.invitation(0)) as guest:
        [member] = meeting.begin(lambda: 1, 5.0, never)
        for connected in (guest._line.socket, member.line.socket):
            assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            if hasattr(socket, "TCP_KEEPIDLE"):
                assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == module.KEEP_ALIVE[0]


def test_a_lost_member_ends_it(meeting: Meeting, pool: ThreadPoolExecutor) -> None:
    other = pool.submit(obedient, meeting.invitation(0))
    with Guest(meeting.invitation(1)):
        members = meeting.begin(lambda: 2, 5.0, never)
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
    for garbage in (
        b"GET / HTTP/1.1\r\n\r\n",
        b"[]\n",
        b'{"number": 0}\n',
        b"\xff\xfe\n",
        b"1\n",
        b"[" * 60_000 + b"\n",
    ):
        with socket.create_connection((known.host, known.port), 5) as stranger:
            stranger.sendall(garbage)
            assert stranger.recv(10) == b""
    with Guest(replace(known, token="0" * 32)) as forger, pytest.raises(MeetingOver):
        forger.told()
    mine = pool.submit(obedient, known)
    members = meeting.begin(lambda: 1, 5.0, never)
    meeting.send_home(members)
    assert mine.result(5) == []


def test_numbers_that_are_none_are_refused(meeting: Meeting) -> None:
    known = meeting.invitation(0)
    for number in (b"1e999", b"[]", b"null", b'"x"'):
        with socket.create_connection((known.host, known.port), 5) as odd:
            odd.sendall(b'{"token": "%s", "attempt": "a", "number": %s}\n' % (known.token.encode(), number))
            assert odd.recv(10) == b""


def test_a_stranger_that_drips_is_cut_off(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WELCOME", 0.3)
    known = meeting.invitation(0)
    with socket.create_connection((known.host, known.port), 5) as stranger:
        began = time.monotonic()
        with suppress(OSError):
            while time.monotonic() - began < 5:
                stranger.sendall(b" ")
                time.sleep(0.05)
        assert time.monotonic() - began < 3


def test_strangers_that_say_nothing_do_not_keep_tasks_out(
    monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor
) -> None:
    monkeypatch.setattr(module, "ARRIVALS", 2)
    monkeypatch.setattr(module, "WELCOME", 0.3)
    before = threading.active_count()
    with Meeting("127.0.0.1", "127.0.0.1") as meeting, ExitStack() as strangers:
        known = meeting.invitation(0)
        for _ in range(6):
            strangers.enter_context(socket.create_connection((known.host, known.port), 5))
        time.sleep(0.1)
        assert threading.active_count() - before <= 3, "the one that accepts, and two arrivals"
        monkeypatch.setattr(module, "WELCOME", 5.0)
        strangers.close()
        mine = pool.submit(obedient, known)
        meeting.send_home(meeting.begin(lambda: 1, 5.0, never))
        assert mine.result(5) == []


def test_a_process_without_room_for_another_socket_goes_on_accepting(pool: ThreadPoolExecutor) -> None:
    with Meeting("127.0.0.1", "127.0.0.1") as meeting:
        real, full = meeting._socket, threading.Event()

        class Full:
            """The listening socket of a process that has no more files, once."""

            def accept(self) -> tuple[socket.socket, object]:
                if not full.is_set():
                    full.set()
                    raise OSError(errno.EMFILE, "too many open files")
                return real.accept()

            def __getattr__(self, name: str) -> object:
                return getattr(real, name)

        meeting._socket = cast(socket.socket, Full())
        tasks = [
            pool.submit(obedient, meeting.invitation(n)) for n in range(2)
        ]  # the first is accepted already
        meeting.send_home(meeting.begin(lambda: 2, 5.0, never))
        assert full.is_set() and [task.result(5) for task in tasks] == [[], []]
