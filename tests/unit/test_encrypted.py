"""Log-ins over TLS of our own, against hand-made servers: what is sent before TLS, and what a failure means."""

from __future__ import annotations

import socket
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pymysql
import pytest
from MySQLdb import _mysql

from floodmark.config import SourceSpec, Tls
from floodmark.mysql import connect, encrypted
from floodmark.mysql.answer import Answer
from floodmark.mysql.encrypted import Link, Unable, opened
from tests.unit.test_wire import ROWS, answer, packets

PASSWORD = "hunter2"
TLS, PLAIN = 0xFFFF, 0xFFFF & ~0x0800


def greeting(capabilities: int, plugin: bytes = b"mysql_native_password") -> bytes:
    about = struct.pack("<HBHHB", capabilities, 45, 2, 0x81BF & 0xFFFF, 21) + bytes(10)
    head = b"\x0a10.11.0-MariaDB\0" + struct.pack("<I", 7) + b"12345678\0"
    return packets([head + about + b"123456789012\0" + plugin + b"\0"], first=0)


def error(code: int, text: bytes) -> bytes:
    return b"\xff" + struct.pack("<H", code) + b"#HY000" + text


@contextmanager
def server(behave: Callable[[socket.socket], None]) -> Iterator[SourceSpec]:
    """Accepts one connection and behaves so."""
    with socket.create_server(("127.0.0.1", 0)) as door:

        def serve() -> None:
            with suppress(OSError), door.accept()[0] as link:
                behave(link)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield SourceSpec("127.0.0.1", door.getsockname()[1], "me", PASSWORD, tls=Tls("required"))
        thread.join(10)


def login(spec: SourceSpec, connect_timeout: float = 5) -> Link:
    return opened(spec, (spec.host, spec.port), 5, connect_timeout)


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> ssl.SSLContext:
    pem = tmp_path_factory.mktemp("tls") / "server.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj",
         "/CN=db", "-keyout", pem.with_suffix(".key"), "-out", pem],
        check=True, capture_output=True,
    )  # fmt: skip
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(pem, pem.with_suffix(".key"))
    return made


def test_a_server_without_tls_gets_no_word_of_the_log_in() -> None:
    heard: list[bytes] = []

    def behave(link: socket.socket) -> None:
        link.sendall(greeting(PLAIN))
        heard.append(link.recv(1000))

    with server(behave) as spec, pytest.raises(Unable) as found:
        login(spec)
    assert heard == [b""] and found.value.lasting


def test_only_the_request_for_tls_is_sent_in_plain_text() -> None:
    heard: list[bytes] = []

    def behave(link: socket.socket) -> None:
        link.sendall(greeting(TLS))
        heard.append(link.recv(36))
        heard.append(link.recv(1000))

    with server(behave) as spec, pytest.raises(Unable) as found:
        login(spec)
    request, hello = heard
    assert request[:4] == b"\x20\0\0\1" and b"me" not in request
    assert hello[:1] == b"\x16", "not the beginning of a TLS handshake"
    assert PASSWORD not in str(found.value)


@pytest.mark.parametrize("capabilities", [None, TLS], ids=["from the beginning", "in the log-in"])
def test_a_server_that_falls_silent_ends_the_log_in_and_is_not_asked_twice(capabilities: int | None) -> None:
    done = threading.Event()

    def behave(link: socket.socket) -> None:
        if capabilities:
            link.sendall(greeting(capabilities))
        done.wait(10)

    with server(behave) as spec:
        with pytest.raises(_mysql.OperationalError, match="system error: 110") as found:
            login(spec, connect_timeout=0.2)
        done.set()
    assert found.value.args[0] == 2013


def saying(sent: bytes) -> Callable[[socket.socket], None]:
    """A server that says this and hangs up."""
    return lambda link: link.sendall(sent)


def test_only_what_would_fail_again_is_remembered() -> None:
    with server(saying(b"")) as spec:
        with pytest.raises(Unable) as found:
            login(spec)
        encrypted.remember(spec, found.value)
        assert encrypted.unable(spec) is None
    with server(saying(greeting(PLAIN))) as spec:
        with pytest.raises(Unable) as found:
            login(spec)
        encrypted.remember(spec, found.value)
        assert encrypted.unable(spec) == str(found.value)


def test_what_the_server_says_is_raised_as_the_driver_does() -> None:
    for code, text in ((1040, "Too many connections"), (1129, "Host is blocked")):
        with server(saying(packets([error(code, text.encode())], 0))) as spec:
            with pytest.raises(_mysql.OperationalError) as found:
                login(spec)
            assert found.value.args == (code, text)


def test_a_way_to_log_in_that_only_the_driver_knows_is_left_to_it(context: ssl.SSLContext) -> None:
    def behave(link: socket.socket) -> None:
        link.sendall(greeting(TLS))
        link.recv(36)
        with context.wrap_socket(link, server_side=True) as wrapped:
            wrapped.recv(1000)
            wrapped.sendall(packets([b"\xfeauth_gssapi_client\0principal\0"], 3))
            wrapped.recv(1000)

    with server(behave) as spec, pytest.raises(Unable, match="auth_gssapi_client") as found:
        login(spec)
    assert found.value.lasting and PASSWORD not in str(found.value)


OK = b"\0\0\0\2\0\0\0"


@pytest.mark.parametrize("known", [True, False], ids=["the server remembers it", "it is sent whole"])
def test_mysql_8_s_own_way_to_log_in_needs_no_further_package(
    context: ssl.SSLContext, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pymysql._auth._have_cryptography", False)
    heard: list[bytes] = []

    def behave(link: socket.socket) -> None:
        link.sendall(greeting(TLS, b"caching_sha2_password"))
        link.recv(36)
        with context.wrap_socket(link, server_side=True) as wrapped:
            heard.append(wrapped.recv(1000))
            wrapped.sendall(packets([b"\1\3" if known else b"\1\4"], 3))
            if not known:
                heard.append(wrapped.recv(1000)[4:])
            wrapped.sendall(packets([OK], 4 if known else 5))
            heard.append(wrapped.recv(1000)[5:])
            wrapped.sendall(packets([OK]))
            wrapped.recv(1000)

    with server(behave) as spec:
        link = login(spec)
        assert link.thread_id() == 7 and link.tls.gettimeout() == 5
        link.close()
    first, *others = heard
    assert PASSWORD.encode() not in first
    assert others == [*([] if known else [PASSWORD.encode() + b"\0"]), b"SET NAMES utf8mb4"]


def test_every_exception_of_pymysql_becomes_one_of_the_drivers() -> None:
    class Broken:
        def __init__(self, error: Exception) -> None:
            self.error = error

        def cursor(self) -> None:
            raise self.error

    kinds = [
        k for k in vars(pymysql.err).values() if isinstance(k, type) and issubclass(k, pymysql.MySQLError)
    ]
    assert len(kinds) > 8
    for kind in kinds:
        for arguments in ((1064, "syntax"), (2013, "cut"), (0, ""), ("words",), ()):
            with pytest.raises(_mysql.MySQLError) as found:
                Link(Broken(kind(*arguments)), None).query(b"SELECT 1")  # type: ignore[arg-type]
            code = found.value.args[0]
            assert code == (1064 if arguments[:1] == (1064,) else 2013)
            assert isinstance(found.value, _mysql.ProgrammingError) == (code == 1064)


def test_an_answer_over_tls_is_the_same_in_records_of_any_size(context: ssl.SSLContext) -> None:
    sent = answer(ROWS, 3)
    for piece in (1, 7, 4096, len(sent)):
        for cut in (0, 1):
            ours, theirs = socket.socketpair()

            def behave(link: socket.socket = theirs, piece: int = piece, cut: int = cut) -> None:
                with suppress(OSError), context.wrap_socket(link, server_side=True) as wrapped:
                    for at in range(0, len(sent) - cut, piece):
                        wrapped.sendall(sent[at : min(at + piece, len(sent) - cut)])

            thread = threading.Thread(target=behave, daemon=True)
            thread.start()
            anyone = ssl.create_default_context()
            anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
            with anyone.wrap_socket(ours) as link:
                found = Answer(link, [pa.binary()] * 3, 5, 4096)
                rows: list[object] = []
                found.begin()
                try:
                    while block := found.fetch_row(2):
                        rows += zip(*(column.to_pylist() for column in block), strict=True)
                    assert not cut and rows == ROWS
                except _mysql.OperationalError as error:
                    assert cut and error.args[0] == 2013
            thread.join(10)


@pytest.mark.parametrize(
    ("tls", "tunnelled", "checks"),
    [
        (None, False, (False, False)),
        (Tls("required"), False, (False, False)),
        (Tls("required", ca=Path("ca")), False, (True, False)),
        (Tls("verify_ca", ca=Path("ca")), False, (True, False)),
        (Tls("verify_ca"), False, (True, True)),
        (Tls("verify_ca"), True, (True, False)),
        (Tls("verify_identity", ca=Path("ca")), False, (True, True)),
        (Tls("verify_identity"), True, (True, True)),
    ],
)
def test_the_mode_says_whether_chain_and_name_are_checked(
    tls: Tls | None, tunnelled: bool, checks: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda *_: None, raising=False)
    made = encrypted._context(tls, 5, tunnelled)
    assert (made.verify_mode == ssl.CERT_REQUIRED, made.check_hostname) == checks
    assert made.minimum_version >= ssl.TLSVersion.TLSv1_2


def test_a_machine_without_pymysql_reads_through_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymysql", None)
    monkeypatch.delitem(sys.modules, "floodmark.mysql.encrypted")
    monkeypatch.delattr("floodmark.mysql.encrypted")
    monkeypatch.setattr(connect, "_driven", lambda *_: "the driver's")
    spec = SourceSpec("127.0.0.1", 1, "me", "secret")
    assert connect._connect(spec, 5, 5, bulk=True) == "the driver's"
