"""Answers of an S3 server that are lost, late or strange."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest

from floodmark.config.load import StoreSpec
from floodmark.model.errors import ConfigError, FloodmarkError, NoAnswer, TransientError
from floodmark.store import s3
from floodmark.store.store import Store


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are repeated for a second, not for eight."""
    monkeypatch.setitem(s3._RETRY, "retry_timeout", timedelta(seconds=1))


def at(endpoint: str) -> Store:
    return Store(StoreSpec("s3://lake/x", endpoint, "us-east-1", "key", "the-secret"))


@contextmanager
def server(*replies: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """An endpoint that gives these replies in turn, then the last one for ever; b"" drops the connection."""
    requests: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    link, _ = listener.accept()
                except OSError:
                    return
                with link:
                    link.settimeout(5)
                    try:
                        requests.append(link.recv(1 << 16))
                        link.sendall(replies[min(len(requests), len(replies)) - 1])
                    except OSError:
                        continue

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", requests
        listener.shutdown(socket.SHUT_RDWR)


def reply(status: int, code: str = "", more: str = "") -> bytes:
    body = f"<Error><Code>{code}</Code>{more}</Error>" if code else ""
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}".encode()


ABSENT = reply(404, "NoSuchKey")
DONE = b'HTTP/1.1 200 OK\r\nETag: "1"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n'


def test_a_repeated_create_after_a_lost_response_reports_the_object_as_existing() -> None:
    with server(ABSENT, b"", reply(412, "PreconditionFailed")) as (endpoint, requests):
        assert at(endpoint).create("a", b"x") is False
    assert len(requests) == 3


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize(
    "answer",
    [
        b"",
        reply(500, "InternalError"),
        reply(503, "SlowDown"),
        b"nonsense\r\n\r\n",
        reply(409, "ConditionalRequestConflict"),
    ],
)
def test_a_create_without_a_clear_response_raises_no_answer(answer: bytes) -> None:
    with server(ABSENT, answer) as (endpoint, _), pytest.raises(NoAnswer) as caught:
        at(endpoint).create("a", b"x")
    assert caught.value.hint


def test_a_refusal_after_a_lost_response_proves_nothing() -> None:
    with server(ABSENT, b"", reply(403, "AccessDenied")) as (endpoint, _), pytest.raises(NoAnswer):
        at(endpoint).create("a", b"x")


def test_a_create_that_is_refused_at_once_is_a_config_error() -> None:
    with server(ABSENT, reply(403, "AccessDenied")) as (endpoint, _), pytest.raises(ConfigError):
        at(endpoint).create("a", b"x")


def test_a_brief_failure_of_the_server_is_survived() -> None:
    with server(ABSENT, reply(503, "SlowDown"), b"", DONE) as (endpoint, requests):
        assert at(endpoint).create("a", b"x") is True
    assert len(requests) == 4


def test_a_404_that_is_not_s3s_own_does_not_pass_for_an_empty_store() -> None:
    with server(reply(404)) as (endpoint, _):
        for use in (lambda: at(endpoint).get("a"), lambda: list(at(endpoint).list("a/"))):
            with pytest.raises(ConfigError, match="the answer is not from an S3 server"):
                use()


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (reply(301, "PermanentRedirect"), ConfigError, "region"),
        (reply(400, "AuthorizationHeaderMalformed"), ConfigError, "region"),
        (reply(400, "ExpiredToken"), ConfigError, "keys"),
        (reply(403, "RequestTimeTooSkewed"), ConfigError, "clock"),
        (reply(401), ConfigError, "keys"),
        (reply(403, "AccessDenied"), ConfigError, "denied"),
        (reply(404, "NoSuchBucket"), ConfigError, "does not exist"),
        (reply(400, "RequestTimeout"), TransientError, "RequestTimeout"),
        (reply(400, "InvalidRequest"), ConfigError, "refused"),
        (reply(501, "NotImplemented"), ConfigError, "supported"),
        (reply(500, "InternalError"), TransientError, "500"),
        (reply(429), TransientError, "429"),
        (b"", TransientError, "broke"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_answer_of_the_server_is_translated(
    answer: bytes, kind: type[FloodmarkError], said: str
) -> None:
    with server(answer) as (endpoint, _):
        store = at(endpoint)
        uses = (lambda: store.get("a"), lambda: list(store.list("a/")), lambda: store.put("a", b""))
        for use in uses[: 1 if kind is TransientError or b" 501 " in answer else 3]:  # tried for seconds
            with pytest.raises(FloodmarkError, match=said) as caught:
                use()
            assert type(caught.value) is kind
            assert "\n" not in caught.value.message
            assert caught.value.hint
            assert "the-secret" not in caught.value.message


def test_an_endpoint_that_refuses_connections_fails_within_seconds() -> None:
    begun = time.monotonic()
    with pytest.raises(TransientError, match="can't be reached"):
        at("http://127.0.0.1:1").create("a", b"x")
    assert time.monotonic() - begun < 10


def test_an_endpoint_that_drops_packets_fails_within_about_ten_seconds() -> None:
    with socket.socket() as full:
        # A listener whose queue is full answers no connection, as a firewall that drops packets.
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        links = [socket.socket() for _ in range(8)]
        for link in links:
            link.setblocking(False)
            link.connect_ex(full.getsockname())
        time.sleep(0.2)
        begun = time.monotonic()
        with pytest.raises(TransientError, match=r"can't be reached|in time"):
            at(f"http://127.0.0.1:{full.getsockname()[1]}").get("a")
        assert time.monotonic() - begun < 14
        for link in links:
            link.close()


@pytest.mark.usefixtures("hurried")
def test_an_endpoint_whose_name_is_unknown_says_so() -> None:
    with pytest.raises(TransientError, match="name is unknown"):
        at("http://no-such-host.invalid").get("a")
