"""A meeting: tasks that run at the same time and follow the driver, one step after the other.

Each task connects to the driver over TCP, and follows it until it is dismissed. The driver waits for those that come in time,
and never for one that Spark has no room for. Of several attempts at one task, only the first takes part;
a speculative one just waits until Spark ends it. Where Spark doesn't speculate, a second attempt means that the
first is lost. A lost task ends the meeting for all, and so does one that is silent for too long while it works: its
process is frozen, and nothing else would notice. Messages are lines of JSON; only tasks with the meeting's token take part.
"""

from __future__ import annotations

import json
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from floodmark.model.errors import FloodmarkError

# Seconds that a connection may take to say who it is, and how many may be doing so at a time.
WELCOME = 10.0
ARRIVALS = 64
# Seconds that a member may take for a step that all do together.
STEP = 60.0
# Seconds between two signs of life of a member that works, and without one until it counts as lost.
SIGN_EVERY = 10.0
SILENCE = 120.0
# Seconds between two looks whether the meeting is over.
LOOK_EVERY = 0.5
# A silent peer is asked after so many seconds whether it is there, then every few seconds, so many times.
KEEP_ALIVE = (15, 5, 6)
_LONGEST = 65_536

Message = dict[str, Any]


class MeetingOver(FloodmarkError):
    """The meeting has ended for all its members: its work has to start over."""

    code = 4
    kind = "transient"


@dataclass(frozen=True)
class Invitation:
    """Where one task meets the driver. Travels in the task."""

    host: str
    port: int
    token: str
    number: int
    sign_every: float


# ---------------------------------------------------------------- the task's side


class Guest:
    """A task in the meeting; raises MeetingOver whenever the driver has gone."""

    def __init__(self, invitation: Invitation) -> None:
        self.attempt = secrets.token_hex(8)
        self._sign_every = invitation.sign_every
        self._sending = threading.Lock()
        try:
            self._line = _Line(socket.create_connection((invitation.host, invitation.port), WELCOME))
        except OSError as error:
            raise _over(f"the driver can't be reached at {invitation.host}:{invitation.port}") from error
        self._line.socket.settimeout(None)  # the kernel notices a driver that is gone
        self.tell({"token": invitation.token, "number": invitation.number, "attempt": self.attempt})

    def tell(self, message: Message) -> None:
        """Sends the driver a message."""
        try:
            with self._sending:
                self._line.send(message)
        except OSError as error:
            raise _over("the driver has ended it") from error

    def told(self) -> Message:
        """What the driver says next."""
        try:
            return self._line.receive()
        except (OSError, ValueError) as error:
            raise _over("the driver has ended it") from error

    @contextmanager
    def showing_life(self) -> Iterator[None]:
        """Tells the driver every few seconds that this process is not frozen."""
        over = threading.Event()

        def show() -> None:
            with suppress(MeetingOver):
                while not over.wait(self._sign_every):
                    self.tell({"do": "live"})

        threading.Thread(target=show, name="sign of life", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def __enter__(self) -> Guest:
        return self

    def __exit__(self, *error: object) -> None:
        self._line.close()


def _over(why: str) -> MeetingOver:
    return MeetingOver(f"the meeting of the tasks is over: {why}", hint="run the command again")


# ---------------------------------------------------------------- the driver's side


@dataclass(frozen=True)
class Member:
    """A task that takes part, as the driver sees it."""

    line: _Line
    number: int
    attempt: str


class Meeting:
    """The driver's side. `close` may be called from any thread, and ends it for everyone."""

    def __init__(self, bind: str, host: str, *, speculates: bool = False) -> None:
        """Listens on a free port of `bind`, known to others as `host`. Raises OSError.

        `speculates`: two attempts at one task may run at once.
        """
        self._host, self._speculates = host, speculates
        self._socket = _listening(bind)
        self._token = secrets.token_hex(16)
        self._change = threading.Condition()
        self._members: dict[int, Member] = {}
        self._lines: set[_Line] = set()
        self._parked: list[tuple[int, _Line]] = []  # further attempts at a member's task
        self._home: set[int] = set()  # members that were dismissed
        self._begun = self._shared_out = self._closed = False
        self._arrivals = threading.BoundedSemaphore(ARRIVALS)
        threading.Thread(target=self._accept, name="meeting", daemon=True).start()

    def invitation(self, number: int) -> Invitation:
        return Invitation(self._host, int(self._socket.getsockname()[1]), self._token, number, SIGN_EVERY)

    def begin(self, room: Callable[[], int], patience: float, gone: Callable[[], bool]) -> list[Member]:
        """Those who came: all for whom there is `room` now, or as many as came within `patience` seconds of the first.

        Later ones are dismissed. Waits for the first as long as it takes, until it is `gone`.
        """
        first: float | None = None
        with self._change:
            while not self._closed and not gone():
                if self._members:
                    first = first or time.monotonic()
                    if len(self._members) >= room() or time.monotonic() - first >= patience:
                        break
                self._change.wait(0.05)
            self._begun = True
            if self._closed or not self._members:
                raise _over("nobody is there")
            return [self._members[number] for number in sorted(self._members)]

    def all_do(
        self, members: Sequence[Member], message: Message, meanwhile: Callable[[], None] = lambda: None
    ) -> list[Message]:
        """Sends all of them the message, then waits for all their answers; raises MeetingOver."""
        try:
            for member in members:
                member.line.send(message)
            meanwhile()
            answers = []
            for member in members:
                answers.append(member.line.receive(STEP))
                member.line.socket.settimeout(None)
            return answers
        except (OSError, ValueError) as error:
            raise _over("a task was lost") from error

    def send_home(self, members: Sequence[Member]) -> None:
        """These need not wait any longer, nor any other attempt at their tasks."""
        with self._change:
            self._home.update(member.number for member in members)
            let_go = [line for number, line in self._parked if number in self._home]
        for line in [*(member.line for member in members), *let_go]:
            with suppress(OSError):
                line.send({"do": "leave"})

    def share_out(self, members: Sequence[Member], work: Sequence[int]) -> dict[int, list[int]]:
        """Gives each member one piece of work whenever it asks, until there is none; returns who got what.

        Raises MeetingOver, also if one of them has shown no sign of life for too long.
        """
        left = list(reversed(work))
        given: dict[int, list[int]] = {member.number: [] for member in members}
        here = list(members)
        heard = dict.fromkeys(given, time.monotonic())
        try:
            while here:
                if self._closed:
                    raise _over("the driver has ended it")
                for member in _speaking(here, LOOK_EVERY):
                    said = member.line.receive()
                    heard[member.number] = time.monotonic()
                    if said.get("do") == "live":
                        continue
                    if not left:
                        member.line.send({"do": "end"})
                        here.remove(member)
                        continue
                    piece = left.pop()
                    given[member.number].append(piece)
                    member.line.send({"do": "read", "piece": piece})
                # Only now: if this process itself was stopped, signs of life were waiting.
                if any(time.monotonic() - heard[member.number] > SILENCE for member in here):
                    raise _over(f"a task has not moved for {SILENCE:.0f} seconds")
        except (OSError, ValueError) as error:
            raise _over("a task was lost") from error
        return given

    def let_go(self) -> None:
        """All work was done: from now on, another attempt at it is told that the meeting is over.

        Its task was lost after its work, and would wait for ever. Tasks that Spark had no room for are dismissed.
        """
        with self._change:
            self._shared_out = True
            parked, self._parked = self._parked, []
        for _, line in parked:
            line.close()

    def close(self) -> None:
        """Ends the meeting; safe to call twice."""
        with self._change:
            self._closed = True
            lines, self._lines = self._lines, set()
            self._change.notify_all()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for line in lines:
            line.close()

    def __enter__(self) -> Meeting:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # arrivals

    def _accept(self) -> None:
        while not self._closed:
            if not self._arrivals.acquire(timeout=LOOK_EVERY):
                continue
            arrived: socket.socket | None = None
            try:
                arrived, _ = self._socket.accept()
                threading.Thread(target=self._arrive, args=(arrived,), name="arrival", daemon=True).start()
            except (OSError, RuntimeError):  # over, or the process has no more files or threads for now
                self._arrivals.release()
                if arrived is not None:
                    arrived.close()
                if not self._closed:
                    time.sleep(0.1)

    def _arrive(self, arrived: socket.socket) -> None:
        try:
            line = _Line(arrived)
            said = line.receive(WELCOME)
            if not secrets.compare_digest(str(said["token"]).encode(), self._token.encode()):
                raise ValueError("a stranger")
            number, attempt = int(said["number"]), str(said["attempt"])
            arrived.settimeout(None)
        except Exception:  # a stranger may send anything
            arrived.close()
            return
        finally:
            self._arrivals.release()
        self._welcome(line, number, attempt)

    def _welcome(self, line: _Line, number: int, attempt: str) -> None:
        with self._change:
            if self._closed:
                line.close()
                return
            self._lines.add(line)
            first = self._members.get(number)
            if number in self._home or (first is None and self._begun):
                with suppress(OSError):
                    line.send({"do": "leave"})
            elif first is not None and self._shared_out:
                line.close()
            elif first is not None and self._speculates:
                self._parked.append((number, line))  # if it returned, Spark would end the first one
            elif first is not None and self._begun:
                self.close()  # an earlier attempt is lost, and so is the meeting
            else:
                self._members[number] = Member(line, number, attempt)
                if first is not None:
                    first.line.close()
                self._change.notify_all()


class _Line:
    """Messages over one connection."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._rest = b""
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _keep_alive(connected)

    @property
    def waiting(self) -> bool:
        """Whether a message has arrived together with the last one."""
        return b"\n" in self._rest

    def send(self, message: Message) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, within: float | None = None) -> Message:
        """The next message, `within` so many seconds. Raises OSError, also once the other side has closed; ValueError."""
        deadline = None if within is None else time.monotonic() + within
        while b"\n" not in self._rest:
            if len(self._rest) > _LONGEST:
                raise ValueError("too long")
            if deadline is not None:
                self.socket.settimeout(max(0.001, deadline - time.monotonic()))
            part = self.socket.recv(4096)
            if not part:
                raise ConnectionResetError
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        message = json.loads(line)
        if not isinstance(message, dict):
            raise ValueError("not a message")
        return message

    def close(self) -> None:
        with suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


def _keep_alive(connected: socket.socket) -> None:
    """Has the kernel notice a peer that is gone without a word."""
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    idle, every, times = KEEP_ALIVE
    wanted = {
        "TCP_KEEPIDLE": idle, "TCP_KEEPINTVL": every, "TCP_KEEPCNT": times,
        "TCP_USER_TIMEOUT": 1000 * (idle + every * times),
    }  # fmt: skip
    for name, value in wanted.items():
        if (option := getattr(socket, name, None)) is not None:  # not every system has them all
            with suppress(OSError):
                connected.setsockopt(socket.IPPROTO_TCP, option, value)


def _speaking(members: Sequence[Member], within: float) -> list[Member]:
    """Those who have sent something; waits for one, but not longer than so many seconds."""
    if said := [member for member in members if member.line.waiting]:
        return said
    with selectors.DefaultSelector() as ready:
        for member in members:
            ready.register(member.line.socket, selectors.EVENT_READ, member)
        return [key.data for key, _ in ready.select(within)]


def _listening(bind: str) -> socket.socket:
    found = socket.getaddrinfo(bind, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, *_, place = found[0]
    everywhere = place[0] == "::" and socket.has_dualstack_ipv6()
    return socket.create_server(place, family=family, backlog=64, dualstack_ipv6=everywhere)
