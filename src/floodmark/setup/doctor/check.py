"""A check and its outcome, what several services are checked for, and lanes of checks, each within a time limit.

Whether a host has an address and a port answers is checked before any driver is used, so that the message names the
cause. A lane is an iterator that yields checks as they are made. When its time is up, what it has found so far counts, and
not finishing is a failure of its own. So `doctor` always ends, however silent a service is.
"""

from __future__ import annotations

import shutil
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal

from floodmark.config.load import Ssh
from floodmark.host import ssh as tunnel
from floodmark.model.errors import ConfigError, FloodmarkError, TlsError, TransientError
from floodmark.model.text import size

Status = Literal["ok", "warning", "failure", "skipped"]
STATUSES: tuple[Status, ...] = ("ok", "warning", "failure", "skipped")
LITTLE_SPACE = 1 << 30  # bytes on a disk
NAME_SECONDS = 4.0
PORT_SECONDS = 3.0


@dataclass(frozen=True)
class Check:
    """What was checked, the result, and what to do about it."""

    section: str
    name: str
    status: Status
    detail: str
    hint: str | None = None
    table: str | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Section:
    """The checks of one service, or of one table."""

    name: str
    table: str | None = None

    def ok(self, name: str, detail: str) -> Check:
        return Check(self.name, name, "ok", detail, None, self.table)

    def warning(self, name: str, detail: str, hint: str | None = None) -> Check:
        return Check(self.name, name, "warning", detail, hint, self.table)

    def failure(self, name: str, detail: str, hint: str | None = None) -> Check:
        return Check(self.name, name, "failure", detail, hint, self.table)

    def failed(self, name: str, error: FloodmarkError) -> Check:
        """An error as a failed check, in the error's own words."""
        return self.failure(name, " ".join(error.message.split()), error.hint)

    def tried(self, name: str, answer: Callable[[], str]) -> Check:
        """A question that a service answers, or else fails to."""
        try:
            return self.ok(name, answer())
        except FloodmarkError as error:
            return self.failed(name, error)

    def check(self, name: str, fine: str, wrong: str | None, hint: str | None = None) -> Check:
        """Fine, unless there is something wrong: then a warning."""
        return self.ok(name, fine) if wrong is None else self.warning(name, wrong, hint)

    def space(self, name: str, folder: Path, shown: str, hint: str) -> Check:
        """The free space of a folder's disk."""
        free = shutil.disk_usage(folder).free
        wrong = f"{shown}: only {size(free)} free" if free < LITTLE_SPACE else None
        return self.check(name, f"{shown}, {size(free)} free", wrong, hint)

    def in_order(self, steps: Iterable[Check], names: Sequence[str]) -> Generator[Check, None, str | None]:
        """The checks up to the first failure, whose name it returns; of `names`, those not made are skipped.

        An error that the steps raise is a failure of the first of these names, or of TLS.
        """
        made: list[str] = []
        try:
            for check in steps:
                yield check
                made.append(check.name)
                if check.status == "failure":
                    break
            else:
                return None
        except FloodmarkError as error:
            check = self.failed("TLS" if isinstance(error, TlsError) else names[0], error)
            yield check
        yield from self.skipped(
            [name for name in names if name not in (*made, check.name)], f"see {check.name}"
        )
        return check.name

    def skipped(self, names: str | Sequence[str], because: str) -> list[Check]:
        """Checks that could not be made because of an earlier one."""
        listed = [names] if isinstance(names, str) else names
        return [Check(self.name, name, "skipped", because, None, self.table) for name in listed]


# ---------------------------------------------------------------- names and ports


def addresses(host: str) -> tuple[str, ...]:
    """The host's addresses; ConfigError when it has none, TransientError when no name server answers."""
    answers: list[tuple[str, ...] | OSError | UnicodeError] = []

    def ask() -> None:
        try:
            listed = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
            answers.append(tuple(dict.fromkeys(str(each[4][0]) for each in listed)))
        except (OSError, UnicodeError) as error:
            answers.append(error)

    # The system's resolver takes no timeout, so it runs in a thread that can be abandoned.
    thread = threading.Thread(target=ask, name="resolve", daemon=True)
    thread.start()
    thread.join(NAME_SECONDS)
    answer = next(iter(answers), None)
    if isinstance(answer, tuple):
        return answer
    if answer is not None and not (isinstance(answer, OSError) and answer.errno == socket.EAI_AGAIN):
        raise ConfigError(f"unknown host {host}", hint="correct the name, and check that DNS works from here")
    raise TransientError(
        f"no name server answers for {host}", hint="check the network and /etc/resolv.conf, then try again"
    )


def connected(host: str, port: int) -> float:
    """How many seconds it took until the port answered."""
    began = time.monotonic()
    try:
        socket.create_connection((host, port), timeout=PORT_SECONDS).close()
    except TimeoutError:
        raise TransientError(
            f"{host}:{port} does not answer within {PORT_SECONDS:g} s",
            hint="a firewall or security group may be dropping packets; check the port and the route",
        ) from None
    except ConnectionRefusedError:
        raise TransientError(
            f"nothing listens on {host}:{port}: the connection was refused",
            hint="check the port, and that the server is running and listens on that address",
        ) from None
    except OSError as error:
        raise TransientError(
            f"{host}:{port} can't be reached: {(error.strerror or str(error)).lower()}",
            hint="check the network and the route",
        ) from None
    return time.monotonic() - began


def reach(section: Section, host: str, port: int, what: str = "") -> Iterator[Check]:
    """The checks `name` and `port` of a server; the second only if the first succeeds."""
    name, door = (f"{what} name", f"{what} port") if what else ("name", "port")
    try:
        found = addresses(host)
    except FloodmarkError as error:
        yield section.failed(name, error)
        return
    if host not in found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        yield section.ok(name, f"{host} resolves to {found[0]}{more}")
    yield section.tried(door, lambda: f"{host}:{port} answers in {connected(host, port) * 1000:.1f} ms")


def bastion(section: Section, ssh: Ssh, host: str, port: int) -> Iterator[Check]:
    """A bastion's name and port, and whether it accepts us; the login shows what is behind it."""
    yield from reach(section, ssh.host, ssh.port, "bastion")

    def accepted() -> str:
        tunnel.local_port(ssh, host, port)
        who = f" as {ssh.user}" if ssh.user else ""
        return f"{ssh.host}:{ssh.port} accepts us{who}; its host key is known"

    yield section.tried("tunnel", accepted)


def nearby(host: str) -> bool:
    """Whether the host is this machine."""
    try:
        return host.lower() == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


# ---------------------------------------------------------------- lanes


def _begun(section: str, checks: Iterable[Check], seconds: float) -> Callable[[], list[Check]]:
    """Runs a lane in a thread: a function that waits for what it finds in time, and raises a bug in a check."""
    until, made, bugs = time.monotonic() + seconds, list[Check](), list[BaseException]()

    def run() -> None:
        try:
            for check in checks:
                made.append(check)  # seen at once by whoever stops waiting
        except FloodmarkError as error:
            made.append(Section(section).failed("answer", error))
        except BaseException as error:
            bugs.append(error)

    # A daemon: a driver that waits for a silent service can't be stopped, only abandoned.
    thread = threading.Thread(target=run, name=f"check {section}", daemon=True)
    thread.start()

    def wait() -> list[Check]:
        thread.join(max(0.0, until - time.monotonic()))
        found = list(made)
        for bug in bugs:
            raise bug
        if thread.is_alive():
            after = f" (last answer: {found[-1].name})" if found else ""
            late = Section(found[-1].section if found else section).failure(
                "time",
                f"did not finish within {seconds:g} s{after}",
                "the service is silent or very slow: check it, the network, and any firewalls in between",
            )
            found.append(late)
        return found

    return wait


def at_once(lanes: Iterable[tuple[str, Iterable[Check], float]]) -> Iterator[list[Check]]:
    """The checks of each lane in order, as soon as it has ended; all lanes start at once."""
    waits = [_begun(*lane) for lane in lanes]
    for wait in waits:
        yield wait()
