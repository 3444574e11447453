"""A meeting: tasks that run at the same time and follow the driver, one step after the other.

Each task connects to the driver over TCP, and follows it until it is dismissed. The driver waits for those that come in time,
and never for one that Spark has no room for. Of several attempts at one task, only the first takes part;
another one just waits until Spark ends it. A lost task ends the meeting for all. Messages are lines of
JSON; only tasks with the meeting's token take part.
"""

from __future__ import annotations

import json
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from floodmark.model.errors import FloodmarkError

# Seconds that a connection may take to say who it is.
WELCOME = 10.0
# Seconds that a member may take for a step that all do together.
STEP = 60.0
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


# ---------------------------------------------------------------- the task's side


class Guest:
    """A task in the meeting; raises MeetingOver whenever the driver has gone."""

    def __init__(self, invitation: Invitation) -> None:
        self.attempt = secrets.token_hex(8)
        try:
            self._line = _Line(socket.create_connection((invitation.host, invitation.port), WELCOME))
        except OSError as error:
            raise _over(f"the driver can't be reached at {invitation.host}:{invitation.port}") from error
        self._line.socket.settimeout(None)  # the kernel notices a driver that is gone
        self._line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.tell({"token": invitation.token, "number": invitation.number, "attempt": self.attempt})

    def tell(self, message: Message) -> None:
        """Sends the driver a message."""
        try:
            self._line.send(message)
        except OSError as error:
            raise _over("the driver has ended it") from error

    def told(self) -> Message:
        """What the driver says next."""
        try:
            message = self._line.receive()
        except (OSError, ValueError) as error:
            raise _over("the driver has ended it") from error
        if message is None:
            raise _over("the driver has ended it")
        return message

    def close(self) -> None:
        self._line.close()

    def __enter__(self) -> Guest:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _over(why: str) -> MeetingOver:
    return MeetingOver(f"the meeting of the tasks is over: {why}", hint="run the command again")


# ---------------------------------------------------------------- the driver's side


class Member:
    """A task that takes part, as the driver sees it."""

    def __init__(self, line: _Line, number: int, attempt: str) -> None:
        self.number, self.attempt = number, attempt
        self.line = line


class Meeting:
    """The driver's side. `close` may be called from any thread, and ends it for everyone."""

    def __init__(self, bind: str, host: str) -> None:
        """Listens on a free port of `bind`, known to others as `host`. Raises OSError."""
        self._host = host
        self._socket = _listening(bind)
        self._token = secrets.token_hex(16)
        self._change = threading.Condition()
        self._members: dict[int, Member] = {}
        self._lines: set[_Line] = set()
        self._begun = self._closed = False
        threading.Thread(target=self._accept, name="meeting", daemon=True).start()

    def invitation(self, number: int) -> Invitation:
        return Invitation(self._host, int(self._socket.getsockname()[1]), self._token, number)

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
                member.line.socket.settimeout(STEP)
                answers.append(_some(member.line.receive()))
                member.line.socket.settimeout(None)
            return answers
        except (OSError, ValueError) as error:
            raise _over("a task was lost") from error

    def send_home(self, members: Sequence[Member]) -> None:
        """These need not wait any longer."""
        for member in members:
            with suppress(OSError):
                member.line.send({"do": "leave"})

    def share_out(self, members: Sequence[Member], work: Sequence[int]) -> dict[int, list[int]]:
        """Gives each member one piece of work whenever it asks, until there is none; returns who got what."""
        left = list(reversed(work))
        given: dict[int, list[int]] = {member.number: [] for member in members}
        here = list(members)
        try:
            while here:
                for member in _speaking(here):
                    _some(member.line.receive())
                    if not left:
                        member.line.send({"do": "end"})
                        here.remove(member)
                        continue
                    piece = left.pop()
                    given[member.number].append(piece)
                    member.line.send({"do": "read", "piece": piece})
        except (OSError, ValueError) as error:
            raise _over("a task was lost") from error
        return given

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
        while True:
            try:
                arrived, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._welcome, args=(arrived,), name="arrival", daemon=True).start()

    def _welcome(self, arrived: socket.socket) -> None:
        line = _Line(arrived)
        try:
            arrived.settimeout(WELCOME)
            said = line.receive() or {}
            number, attempt = int(said["number"]), str(said["attempt"])
            if not secrets.compare_digest(str(said["token"]).encode(), self._token.encode()):
                raise ValueError
            arrived.settimeout(None)
        except (OSError, ValueError, KeyError, TypeError):
            line.close()
            return
        with self._change:
            if self._closed:
                line.close()
                return
            self._lines.add(line)
            if number in self._members:
                return  # another attempt at the same task: if it returned, Spark would end the first one
            if not self._begun:
                self._members[number] = Member(line, number, attempt)
                self._change.notify_all()
                return
        with suppress(OSError):
            line.send({"do": "leave"})


class _Line:
    """Messages over one connection."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected
        self._rest = b""
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    @property
    def waiting(self) -> bool:
        """Whether a message has arrived together with the last one."""
        return b"\n" in self._rest

    def send(self, message: Message) -> None:
        self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> Message | None:
        """The next message; None once the other side has closed. Raises OSError, ValueError."""
        while b"\n" not in self._rest:
            if len(self._rest) > _LONGEST:
                raise ValueError("too long")
            part = self.socket.recv(4096)
            if not part:
                return None
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


def _speaking(members: Sequence[Member]) -> list[Member]:
    """Waits until some of them have sent something."""
    if said := [member for member in members if member.line.waiting]:
        return said
    with selectors.DefaultSelector() as ready:
        for member in members:
            ready.register(member.line.socket, selectors.EVENT_READ, member)
        return [key.data for key, _ in ready.select()]


def _some(message: Message | None) -> Message:
    if message is None:
        raise ConnectionResetError
    return message


def _listening(bind: str) -> socket.socket:
    family, kind, protocol, _, place = socket.getaddrinfo(
        bind, 0, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.bind(place)
        made.listen(64)
        return made
    except OSError:
        made.close()
        raise
