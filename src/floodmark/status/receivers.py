"""The receivers of alerts: a heartbeat, a webhook, and whatever Apprise supports. Each has a thread of its own.

Addresses are secrets: no error quotes one, nor what a library says about it.
"""

from __future__ import annotations

import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Literal

from floodmark import __version__
from floodmark.config.load import AlertSpec
from floodmark.model.errors import ConfigError
from floodmark.model.text import counted, duration
from floodmark.model.times import stamp
from floodmark.status.notices import AlertEvent

# How long a receiver may take for one message.
PATIENCE = 5.0
# Tables that a message names one by one.
NAMED = 20
NO_ANSWER = "no answer"


@dataclass(frozen=True)
class Message:
    """What is sent: a headline, a line for each event, and the same as values."""

    title: str
    lines: tuple[str, ...]
    events: tuple[AlertEvent, ...] = ()
    run: str | None = None

    @property
    def text(self) -> str:
        return "\n".join((self.title, *self.lines))

    def as_json(self) -> dict[str, object]:
        """The webhook's document; `text` is what Slack and its like show."""
        return {
            "text": self.text,
            "floodmark": __version__,
            "at": stamp(),
            "host": socket.gethostname(),
            "run": self.run,
            "events": [event.as_json() for event in self.events],
        }


def message(events: Sequence[AlertEvent], run: str | None = None) -> Message:
    """The events in words."""
    lines = [_line(event) for event in events[:NAMED]]
    if len(events) > NAMED:
        lines.append(f"and {len(events) - NAMED} more")
    if len(events) == 1:
        return Message(f"Floodmark: {lines[0]}", (), tuple(events), run)
    kinds = {kind: sum(e.kind == kind for e in events) for kind in dict.fromkeys(e.kind for e in events)}
    title = ", ".join(f"{count} {_WORDS[kind]}" for kind, count in kinds.items())
    return Message(f"Floodmark: {counted(len(events), 'message')}: {title}", tuple(lines), tuple(events), run)


_WORDS = {
    "failed": "failed",
    "behind": "behind",
    "differs": "different from the source",
    "schema": "with changed columns",
    "recovered": "recovered",
}


def _line(event: AlertEvent) -> str:
    stands = event.stands
    still = "still " if event.again else ""
    since = f" (since {event.since[:16].replace('T', ' ')} UTC)" if event.again else ""
    detail = f": {stands.detail}" if stands.detail else ""
    match event.kind:
        case "failed":
            failing = "is still failing" if event.again else "has failed"
            return f"{stands.table} {failing}{since}{detail}"
        case "behind":
            far = duration(stands.behind_seconds or 0.0)
            return f"{stands.table} is {still}{far} behind its source{since}{detail}"
        case "differs":
            return f"{stands.table} {still}differs from its source{since}{detail}"
        case "schema":
            return f"{stands.table}: the source's columns have changed{detail}"
        case "recovered":
            return f"{stands.table} has recovered"


@dataclass(frozen=True)
class Receiver:
    """One receiver: what people and the store call it, without a secret, and how to send to it.

    `send` returns why it failed, or None.
    """

    label: str  # as the configuration has it: webhook, to[0]
    name: str
    send: Callable[[Message], str | None]


def receivers(spec: AlertSpec) -> list[Receiver]:
    """The receivers of events; raises ConfigError if the extra for one of them is not installed."""
    found = []
    if (hook := spec.webhook) is not None:
        found.append(Receiver("webhook", _name("webhook", hook), lambda said: post(hook, said.as_json())))
    if spec.to:
        need_apprise()
        found += [
            Receiver(f"to[{n}]", _name("to", url), partial(_apprise, url)) for n, url in enumerate(spec.to)
        ]
    return found


def _name(kind: str, url: str) -> str:
    """A receiver's name in the store: distinct, but without a trace of the address."""
    return f"{kind}-{sha256(url.encode()).hexdigest()[:12]}"


def need_apprise() -> None:
    """Raises ConfigError when floodmark[notify] is not installed."""
    from importlib.util import find_spec

    if find_spec("apprise") is None:
        raise ConfigError(
            "alerts.to needs Apprise, which is not installed", hint="pip install 'floodmark[notify]'"
        )


Beat = Literal["", "fail", "log"]  # a good run; a failed one; only a line for the receiver's log


def beat(url: str, kind: Beat, text: str = "") -> str | None:
    """The heartbeat, by healthchecks.io's convention; returns why it failed, or None."""
    place, mark, query = url.partition("?")
    return post((f"{place.rstrip('/')}/{kind}" if kind else place) + mark + query, text)


def post(url: str, body: Mapping[str, object] | str) -> str | None:
    """One POST; returns why it failed, without quoting the address, or None."""
    kind = "text/plain; charset=utf-8" if isinstance(body, str) else "application/json"
    data = body.encode() if isinstance(body, str) else json.dumps(body, ensure_ascii=False).encode()
    headers = {"Content-Type": kind, "User-Agent": f"floodmark/{__version__}"}
    try:
        request = urllib.request.Request(url, data=data, headers=headers, method="POST")
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            answer.read(1024)
        return None
    except urllib.error.HTTPError as error:
        error.close()
        return f"it answered {error.code}"
    except urllib.error.URLError as error:
        return _why(error.reason)
    except Exception as error:  # http.client has its own errors for what is not HTTP
        return _why(error)


def _why(reason: object) -> str:
    if isinstance(reason, TimeoutError):
        return NO_ANSWER
    if isinstance(reason, OSError) and reason.strerror:
        return str(reason.strerror).lower()
    return type(reason).__name__ if isinstance(reason, BaseException) else "it could not be reached"


def _apprise(url: str, message: Message) -> str | None:
    import logging

    import apprise

    logging.getLogger("apprise").setLevel(logging.CRITICAL + 1)  # it quotes addresses
    sender = apprise.Apprise()
    if not sender.add(url):
        return "Apprise does not support this kind of address"
    done = sender.notify(title=message.title, body="\n".join(message.lines) or message.title)
    return None if done else "Apprise could not deliver it"


def deliver(
    sends: Mapping[str, Callable[[], str | None]], patience: float = PATIENCE
) -> dict[str, str | None]:
    """Sends in parallel, and waits at most `patience` seconds for all; returns for each name why it failed, or None."""
    results: dict[str, str | None] = {}
    threads: list[threading.Thread] = []

    def one(name: str, send: Callable[[], str | None]) -> None:
        try:
            results[name] = send()
        except Exception as error:
            results[name] = type(error).__name__

    for name, send in sends.items():
        thread = threading.Thread(target=one, args=(name, send), name=f"alert {name}", daemon=True)
        thread.start()
        threads.append(thread)
    end = time.monotonic() + patience
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return {name: results.get(name, NO_ANSWER) for name in sends}
