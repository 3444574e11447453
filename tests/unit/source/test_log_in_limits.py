"""Log-ins that would not end, or end in the wrong way: too slow, too long, in circles, several at a time."""

from __future__ import annotations

import socket
import ssl
import struct
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import pytest

from floodmark.config.load import Tls
from floodmark.model.errors import ConfigError, FloodmarkError, TransientError, bug, causes
from floodmark.source.errors import translated
from floodmark.source.log_in import opened
from floodmark.source.rows.packets import MySQLError, ask
from tests.support.mysql_log_ins import OK, PLAIN, Hostile, greeting, login, refusal, server
from tests.support.mysql_packets import packets


def drops(link: socket.socket) -> None:
    for byte in greeting(PLAIN) * 10:
        link.sendall(bytes([byte]))
        time.sleep(0.05)


def test_a_server_that_trickles_bytes_has_no_more_time_than_a_silent_one() -> None:
    begun = time.monotonic()
    with server(drops) as spec:
        with pytest.raises(MySQLError) as found:
            login(replace(spec, tls=None), connect_timeout=0.3)
        assert found.value.args == (2003, "no answer") and time.monotonic() - begun < 2


def test_a_trickling_handshake_has_no_more_time_either() -> None:
    def behave(link: socket.socket) -> None:
        link.sendall(greeting())
        link.recv(36)
        for byte in b"\x16\3\3\x40\0" + bytes(1000):
            link.sendall(bytes([byte]))
            time.sleep(0.05)

    begun = time.monotonic()
    with server(behave) as spec:
        with pytest.raises(MySQLError) as found:
            login(spec, connect_timeout=0.3)
        assert found.value.args == (2003, "no answer") and time.monotonic() - begun < 2


@pytest.mark.parametrize("said", ["one long packet", "short ones for ever"])
def test_a_server_that_sends_too_much_before_the_log_in_is_dropped(said: str) -> None:
    heard: list[bytes] = []

    def behave(link: socket.socket) -> None:
        link.settimeout(5)
        link.sendall(greeting(PLAIN, b"caching_sha2_password"))
        link.recv(65_536)
        if said == "one long packet":
            link.sendall(struct.pack("<I", 0xFFFFFE)[:3] + b"\2")
            heard.append(link.recv(1))
        for number in range(2, 1_000_000):  # that it still knows the password, to which nothing is answered
            link.sendall(packets([b"\1\3" + bytes(1000)], number & 0xFF))

    with server(behave) as spec, pytest.raises(MySQLError) as found:
        login(replace(spec, tls=None), connect_timeout=5)
    assert found.value.args[0] == 2027
    assert heard == ([b""] if said == "one long packet" else [])


def test_endless_results_are_an_error() -> None:
    more = b"\0\0\0\x0a\0\0\0"
    asked: list[bytes] = []

    def behave(link: socket.socket) -> None:
        link.settimeout(5)
        link.sendall(greeting(PLAIN))
        link.recv(65_536)
        link.sendall(packets([OK], 2))
        asked.append(link.recv(65_536))
        link.sendall(packets([more] * 50))
        while got := link.recv(65_536):
            asked.append(got)

    with server(behave) as spec:
        link = login(replace(spec, tls=None))
        with pytest.raises(MySQLError) as found:
            ask(link.link, b"SET @a = 1")
        link.close()
    assert found.value.args[0] == 2027 and asked[0].endswith(b"SET @a = 1")
    assert asked[1:] == [b"\1\0\0\0\1"], "anything but a good-bye"


def test_an_error_in_place_of_the_handshake_is_a_lost_connection_not_a_configuration_error() -> None:
    def behave(link: socket.socket) -> None:
        link.sendall(greeting())
        link.recv(36)
        link.sendall(packets([refusal(1053, b"Server shutdown in progress")], 2))
        link.recv(65_536)

    with server(behave) as spec, pytest.raises(MySQLError) as found:
        login(spec)
    assert found.value.args[0] == 2013
    assert isinstance(translated(found.value, spec), TransientError)


def test_a_server_without_a_suitable_tls_version_is_still_a_configuration_error(
    context: ssl.SSLContext,
) -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    old.set_ciphers("PSK")  # none that we have
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with server(Hostile([], old)) as spec, pytest.raises(MySQLError) as found:
        login(spec)
    assert found.value.args[0] == 2026


def test_no_error_is_its_own_cause() -> None:
    with server(lambda link: link.sendall(greeting(PLAIN))) as spec, pytest.raises(ConfigError) as found:
        login(spec)
    assert found.value.__cause__ is not found.value
    assert found.value in list(causes(found.value))


def test_a_cycle_of_causes_is_walked_once() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert list(causes(first)) == [first, second]
    assert type(bug(first)) is FloodmarkError


def test_a_password_that_is_not_utf_8_is_sent_as_the_environment_has_it(context: ssl.SSLContext) -> None:
    honest = Hostile([packets([b"\1\4"], 3), packets([OK], 5)], context)
    with server(honest) as spec:
        login(replace(spec, password=b"p\xe4ss".decode(errors="surrogateescape"))).close()
    assert b"p\xe4ss\0" in honest.heard


def test_an_incomplete_character_is_refused_before_the_server_is_contacted() -> None:
    with server(lambda link: None) as spec:
        for name in ("user", "password", "database"):
            with pytest.raises(ConfigError, match=f"the {name} contains an incomplete character"):
                half: dict[str, Any] = {name: "\ud800"}
                opened(replace(spec, tls=Tls("disabled"), **half), ("127.0.0.1", 9), 5, 5)
        socket.create_connection((spec.host, spec.port)).close()


AT_ONCE = """
import importlib.abc, sys, threading, time
from cryptography.hazmat.primitives import serialization as s
from cryptography.hazmat.primitives.asymmetric import rsa
key = rsa.generate_private_key(65537, 2048).public_key().public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)
for name in [n for n in sys.modules if n.startswith("cryptography") and "_rust" not in n]:
    del sys.modules[name]
from floodmark.source import log_in
ready, sent = threading.Barrier(8), []
def send():
    ready.wait()
    sent.append(log_in.pymysql._auth.sha2_rsa_encrypt(b"secret", b"1" * 20, key))
threads = [threading.Thread(target=send) for _ in range(8)]
sys.setswitchinterval(1e-6)
[t.start() for t in threads], [t.join() for t in threads]
print(len(sent))
"""


def test_several_log_ins_may_need_cryptography_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", AT_ONCE], capture_output=True, text=True, timeout=60)
    assert done.stdout == "8\n", done.stderr
