"""Log-ins against hand-made servers, hostile ones among them: what is sent, what is not, and what a failure means."""

from __future__ import annotations

import hashlib
import socket
import ssl
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from floodmark.config.load import Tls
from floodmark.model.errors import ConfigError
from floodmark.source import log_in
from floodmark.source.log_in import SAFE, pymysql
from floodmark.source.rows.packets import MySQLError
from tests.support.mysql_log_ins import (
    OK,
    PASSWORD,
    PLAIN,
    SALT,
    TLS,
    Hostile,
    greeting,
    login,
    refusal,
    server,
    switch,
)
from tests.support.mysql_packets import packets

CLEARLY = {
    "in clear": switch(b"mysql_clear_password", b""),
    "by a dialog": switch(b"dialog", b"\4Password: "),
    "by an old hash": switch(b"mysql_old_password"),
    "by Kerberos": switch(b"auth_gssapi_client", b"principal\0"),
    "by what does not exist": switch(b"\x1b[2J" * 30, b""),
}


@pytest.mark.parametrize("how", list(CLEARLY))
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "in TLS"])
def test_a_hostile_server_gets_no_clear_text_password(
    context: ssl.SSLContext, how: str, encrypted: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    hostile = Hostile([packets([CLEARLY[how]], 3 if encrypted else 2)], context if encrypted else None)
    with (
        server(hostile) as spec,
        pytest.raises(ConfigError, match=r"asks for|requires the log-in plug-in") as found,
    ):
        login(replace(spec, tls=Tls("required") if encrypted else None))
    assert not hostile.betrayed and b"me\0" in hostile.heard
    assert PASSWORD not in str(found.value) and ("clear text" in str(found.value)) == (how == "in clear")
    assert capfd.readouterr() == ("", "")


def test_a_clear_text_password_needs_permission_and_a_verified_server(
    context: ssl.SSLContext, pem: Path
) -> None:
    cases: list[tuple[Any, bool]] = [
        ("verify_identity", True),
        ("verify_identity", False),
        ("verify_ca", True),
        ("required", True),
    ]
    for mode, allowed in cases:
        hostile = Hostile([packets([CLEARLY["in clear"]], 3), packets([OK], 5)], context)
        with server(hostile) as spec:
            spec = replace(spec, tls=Tls(mode, ca=pem), cleartext_password=allowed)
            if mode == "verify_identity" and allowed:
                login(spec).close()
                assert hostile.betrayed
                continue
            with pytest.raises(ConfigError, match="in clear text"):
                login(spec)
        assert not hostile.betrayed


def test_a_server_whose_greeting_lost_its_tls_flag_gets_nothing() -> None:
    heard: list[bytes] = []

    def behave(link: socket.socket) -> None:
        link.sendall(greeting(PLAIN))
        heard.append(link.recv(1000))

    for mode in ("required", "verify_ca", "verify_identity"):
        with (
            server(behave) as spec,
            pytest.raises(ConfigError, match=f"offers no TLS, but source.tls.mode is {mode}"),
        ):
            login(replace(spec, tls=Tls(mode)))
    assert heard == [b""] * 3


def test_only_the_request_for_tls_is_sent_in_plain_text() -> None:
    heard: list[bytes] = []

    def behave(link: socket.socket) -> None:
        # Bytes after the greeting don't count as the encrypted server's.
        link.sendall(greeting() + packets([OK], 2))
        heard.append(link.recv(36))
        heard.append(link.recv(1000))

    with server(behave) as spec, pytest.raises(MySQLError) as found:
        login(spec)
    request, hello = heard
    assert request[:4] == b"\x20\0\0\1" and b"me" not in request
    assert hello[:1] == b"\x16", "not the beginning of a TLS handshake"
    assert PASSWORD not in str(found.value)


def test_a_rejected_certificate_ends_the_connection_before_the_log_in(
    context: ssl.SSLContext, pem: Path, tmp_path: Path
) -> None:
    for host, tls, why in (
        ("127.0.0.1", Tls("verify_ca"), "self-signed certificate"),
        ("127.1", Tls("verify_identity", ca=pem), "mismatch"),
    ):
        hostile = Hostile([], context)
        with (
            server(hostile) as spec,
            pytest.raises(MySQLError, match=f"its certificate was rejected: .*{why}") as e,
        ):
            login(replace(spec, host=host, tls=tls))
        assert e.value.args[0] == 2026 and hostile.heard == b""
    empty = tmp_path / "empty.pem"
    empty.write_text("")
    with pytest.raises(ConfigError, match=r"source.tls.ca: .*empty.pem can't be read"):
        login(replace(spec, tls=Tls("required", ca=empty)))


@pytest.mark.parametrize("capabilities", [None, TLS], ids=["from the beginning", "in the log-in"])
def test_a_server_that_falls_silent_ends_the_log_in(capabilities: int | None) -> None:
    done = threading.Event()

    def behave(link: socket.socket) -> None:
        if capabilities:
            link.sendall(greeting(capabilities))
        done.wait(10)

    with server(behave) as spec:
        with pytest.raises(MySQLError) as found:
            login(spec, connect_timeout=0.2)
        done.set()
    assert found.value.args == (2003, "no answer")


def test_an_error_in_place_of_a_greeting_is_raised() -> None:
    for code, text in ((1040, "Too many connections"), (1129, "Host is blocked")):
        said = packets([refusal(code, text.encode())], 0)
        with server(lambda link, said=said: link.sendall(said)) as spec:  # type: ignore[misc]
            with pytest.raises(MySQLError) as found:
                login(spec)
            assert found.value.args == (code, text)


@pytest.mark.parametrize("known", [True, False], ids=["the server remembers it", "it is sent whole"])
def test_mysql_8_s_own_plug_in_sends_the_password_only_in_tls(context: ssl.SSLContext, known: bool) -> None:
    said = [packets([b"\1\3"], 3) + packets([OK], 4)] if known else [packets([b"\1\4"], 3), packets([OK], 5)]
    honest = Hostile(said, context)
    with server(honest) as spec:
        link = login(spec)
        assert link.number == 7 and link.link.gettimeout() == 5
        link.close()
    assert honest.betrayed is not known


def test_without_tls_the_password_is_encrypted_with_the_servers_key() -> None:
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import padding, rsa

    private = rsa.generate_private_key(65537, 2048)
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    honest = Hostile([packets([b"\1\4"], 2), packets([b"\1" + public], 4), packets([OK], 6)])
    with server(honest) as spec:
        login(replace(spec, tls=None)).close()
    assert not honest.betrayed
    sent = honest.heard[honest.heard.index(b"\1\0\0\3\2") + 9 :][:256]
    plain = private.decrypt(sent, padding.OAEP(padding.MGF1(hashes.SHA1()), hashes.SHA1(), None))
    assert bytes(a ^ b for a, b in zip(plain, b"12345678" + SALT, strict=False)) == PASSWORD.encode() + b"\0"


def test_ed25519_signs_what_the_server_says_and_sends_nothing_else() -> None:
    bindings = pytest.importorskip("nacl.bindings")
    scramble = bytes(range(32))
    honest = Hostile([packets([switch(b"client_ed25519", scramble)], 2), packets([OK], 4)])
    with server(honest) as spec:
        login(replace(spec, tls=None)).close()
    first = bytearray(hashlib.sha512(PASSWORD.encode()).digest()[:32])
    first[0], first[31] = first[0] & 248, first[31] & 127 | 64
    public = bindings.crypto_scalarmult_ed25519_base_noclamp(bytes(first))
    signature = honest.heard[honest.heard.index(b"\x40\0\0\3") + 4 :][:64]
    assert bindings.crypto_sign_open(signature + scramble, public) == scramble
    assert not honest.betrayed


def test_packages_that_only_some_log_ins_need_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nacl.bindings", None)
    hostile = Hostile([packets([switch(b"client_ed25519", b"s" * 32)], 2)])
    with server(hostile) as spec, pytest.raises(ConfigError, match="PyNaCl") as found:
        login(replace(spec, tls=None))
    assert "floodmark[ed25519]" in (found.value.hint or "")
    code = (
        "import sys; from floodmark.source import log_in; assert 'cryptography' not in sys.modules;"
        "sys.modules['cryptography'] = None; log_in.pymysql._auth.sha2_rsa_encrypt(b'', b'', b'')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "needs the package cryptography" in done.stderr


def test_pymysql_still_has_what_the_log_in_relies_on() -> None:
    """Methods that are replaced, and those of them that the list of safe plug-ins depends on."""
    theirs = pymysql.connections.Connection
    names = ("_process_auth", "_get_server_information", "set_character_set", "_read_bytes", "_write_bytes")
    for name in names:
        assert callable(getattr(theirs, name)) and name in vars(log_in.Connection)
    assert {b.decode() for b in theirs._process_auth.__code__.co_consts if isinstance(b, bytes)} >= set(SAFE)


@pytest.mark.parametrize(
    ("tls", "checks"),
    [
        (None, (False, False)),
        (Tls("required"), (False, False)),
        (Tls("required", ca=Path("ca")), (True, False)),
        (Tls("verify_ca", ca=Path("ca")), (True, False)),
        (Tls("verify_ca"), (True, True)),
        (Tls("verify_identity", ca=Path("ca")), (True, True)),
        (Tls("verify_identity"), (True, True)),
    ],
)
def test_the_mode_says_whether_chain_and_name_are_checked(
    tls: Tls | None, checks: tuple[bool, bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", lambda *_: None, raising=False)
    made = log_in._context(tls)
    assert (made.verify_mode == ssl.CERT_REQUIRED, made.check_hostname) == checks
    assert made.minimum_version >= ssl.TLSVersion.TLSv1_2
