"""Log-ins against hand-made servers, hostile ones among them: what is sent, what is not, and what a failure means."""

from __future__ import annotations

import hashlib
import socket
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from floodmark.config import SourceSpec, Tls
from floodmark.errors import ConfigError
from floodmark.mysql import log_in
from floodmark.mysql.log_in import SAFE, Link, opened, pymysql
from floodmark.mysql.wire import MySQLError
from tests.unit.test_wire import packets

PASSWORD = "hunter2"
TLS, PLAIN = 0xFFFF, 0xFFFF & ~0x0800
OK = b"\0\0\0\2\0\0\0"
SALT = b"123456789012\0"


def greeting(capabilities: int = TLS, plugin: bytes = b"mysql_native_password") -> bytes:
    about = struct.pack("<HBHHB", capabilities, 45, 2, 0x81BF & 0xFFFF, 21) + bytes(10)
    head = b"\x0a10.11.0-MariaDB\0" + struct.pack("<I", 7) + b"12345678\0"
    return packets([head + about + SALT + plugin + b"\0"], first=0)


def refusal(code: int, text: bytes) -> bytes:
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
def pem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate of 127.0.0.1 that is its own authority, with its key."""
    pem = tmp_path_factory.mktemp("tls") / "server.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-subj",
         "/CN=db", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", pem.with_suffix(".key"), "-out", pem],
        check=True, capture_output=True,
    )  # fmt: skip
    return pem


@pytest.fixture(scope="module")
def context(pem: Path) -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    made.load_cert_chain(pem, pem.with_suffix(".key"))
    return made


class Hostile:
    """Says its part, one piece after each message of the client's, and keeps all that it was sent, out of TLS too."""

    def __init__(
        self, said: list[bytes], context: ssl.SSLContext | None = None, capabilities: int = 0
    ) -> None:
        self.said, self.context, self.heard = said, context, b""
        self.capabilities = capabilities or (TLS if context else PLAIN)

    def __call__(self, link: socket.socket) -> None:
        link.settimeout(5)
        link.sendall(greeting(self.capabilities, b"caching_sha2_password"))
        if self.context is not None:
            link.recv(36)
            link = self.context.wrap_socket(link, server_side=True)
        for piece in [*self.said, b""]:
            self.heard += (got := link.recv(65_536))
            if not got:
                return
            link.sendall(piece)

    @property
    def betrayed(self) -> bool:
        return PASSWORD.encode() in self.heard


def switch(plugin: bytes, data: bytes = SALT) -> bytes:
    return b"\xfe" + plugin + b"\0" + data


CLEARLY = {
    "in clear": switch(b"mysql_clear_password", b""),
    "by a dialog": switch(b"dialog", b"\4Password: "),
    "by an old hash": switch(b"mysql_old_password"),
    "by Kerberos": switch(b"auth_gssapi_client", b"principal\0"),
    "by what does not exist": switch(b"\x1b[2J" * 30, b""),
}


@pytest.mark.parametrize("how", list(CLEARLY))
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "in TLS"])
def test_a_hostile_server_gets_no_password_in_clear(
    context: ssl.SSLContext, how: str, encrypted: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    hostile = Hostile([packets([CLEARLY[how]], 3 if encrypted else 2)], context if encrypted else None)
    with server(hostile) as spec, pytest.raises(ConfigError, match="asks for") as found:
        login(replace(spec, tls=Tls("required") if encrypted else None))
    assert not hostile.betrayed and b"me\0" in hostile.heard
    assert PASSWORD not in str(found.value) and ("clear text" in str(found.value)) == (how == "in clear")
    assert capfd.readouterr() == ("", "")


def test_a_password_in_clear_needs_leave_and_a_server_that_has_proven_its_name(
    context: ssl.SSLContext, pem: Path
) -> None:
    for mode, allowed in (
        ("verify_identity", True),
        ("verify_identity", False),
        ("verify_ca", True),
        ("required", True),
    ):
        hostile = Hostile([packets([CLEARLY["in clear"]], 3), packets([OK], 5)], context)
        with server(hostile) as spec:
            spec = replace(spec, tls=Tls(mode, ca=pem), cleartext_password=allowed)  # type: ignore[arg-type]
            if mode == "verify_identity" and allowed:
                login(spec).close()
                assert hostile.betrayed
                continue
            with pytest.raises(ConfigError, match="in clear text"):
                login(spec)
        assert not hostile.betrayed


def test_a_server_whose_greeting_has_lost_its_tls_hears_nothing() -> None:
    heard: list[bytes] = []

    def behave(link: socket.socket) -> None:
        link.sendall(greeting(PLAIN))
        heard.append(link.recv(1000))

    for mode in ("required", "verify_ca", "verify_identity"):
        with (
            server(behave) as spec,
            pytest.raises(ConfigError, match=f"offers no TLS, and source.tls.mode is {mode}"),
        ):
            login(replace(spec, tls=Tls(mode)))  # type: ignore[arg-type]
    assert heard == [b""] * 3


def test_only_the_request_for_tls_is_sent_in_plain_text() -> None:
    heard: list[bytes] = []

    def behave(link: socket.socket) -> None:
        # What is said behind the greeting is not taken for a word of the encrypted server.
        link.sendall(greeting() + packets([OK], 2))
        heard.append(link.recv(36))
        heard.append(link.recv(1000))

    with server(behave) as spec, pytest.raises(MySQLError) as found:
        login(spec)
    request, hello = heard
    assert request[:4] == b"\x20\0\0\1" and b"me" not in request
    assert hello[:1] == b"\x16", "not the beginning of a TLS handshake"
    assert PASSWORD not in str(found.value)


def test_a_certificate_that_is_not_accepted_ends_it_before_the_log_in(
    context: ssl.SSLContext, pem: Path, tmp_path: Path
) -> None:
    for host, tls, why in (
        ("127.0.0.1", Tls("verify_ca"), "self-signed certificate"),
        ("127.1", Tls("verify_identity", ca=pem), "mismatch"),
    ):
        hostile = Hostile([], context)
        with (
            server(hostile) as spec,
            pytest.raises(MySQLError, match=f"its certificate is not accepted: .*{why}") as e,
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


def test_what_the_server_says_instead_of_a_greeting_is_raised() -> None:
    for code, text in ((1040, "Too many connections"), (1129, "Host is blocked")):
        said = packets([refusal(code, text.encode())], 0)
        with server(lambda link, said=said: link.sendall(said)) as spec:  # type: ignore[misc]
            with pytest.raises(MySQLError) as found:
                login(spec)
            assert found.value.args == (code, text)


@pytest.mark.parametrize("known", [True, False], ids=["the server remembers it", "it is sent whole"])
def test_mysql_8_s_own_way_to_log_in_sends_the_password_only_in_tls(
    context: ssl.SSLContext, known: bool
) -> None:
    said = [packets([b"\1\3"], 3) + packets([OK], 4)] if known else [packets([b"\1\4"], 3), packets([OK], 5)]
    honest = Hostile(said, context)
    with server(honest) as spec:
        link = login(spec)
        assert link.number == 7 and link.socket.gettimeout() == 5
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


def test_packages_that_only_some_log_ins_need_are_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nacl.bindings", None)
    hostile = Hostile([packets([switch(b"client_ed25519", b"s" * 32)], 2)])
    with server(hostile) as spec, pytest.raises(ConfigError, match="PyNaCl") as found:
        login(replace(spec, tls=None))
    assert "floodmark[ed25519]" in (found.value.hint or "")
    code = (
        "import sys; from floodmark.mysql import log_in; assert 'cryptography' not in sys.modules;"
        "sys.modules['cryptography'] = None; log_in.pymysql._auth.sha2_rsa_encrypt(b'', b'', b'')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "needs the package cryptography" in done.stderr


def test_pymysql_still_has_what_the_log_in_relies_on() -> None:
    """Methods that are replaced, and those of them that the list of safe plug-ins depends on."""
    theirs = pymysql.connections.Connection
    names = ("_process_auth", "_get_server_information", "set_character_set", "_read_bytes", "_write_bytes")
    for name in names:
        assert callable(getattr(theirs, name)) and name in vars(log_in._Connection)
    assert {b.decode() for b in theirs._process_auth.__code__.co_consts if isinstance(b, bytes)} >= set(SAFE)


def test_every_exception_of_pymysql_becomes_one_of_ours() -> None:
    class Broken:
        def __init__(self, error: Exception) -> None:
            self.error = error

        def cursor(self) -> None:
            raise self.error

        def close(self) -> None:
            pass

    kinds = [
        k for k in vars(pymysql.err).values() if isinstance(k, type) and issubclass(k, pymysql.MySQLError)
    ]
    assert len(kinds) > 8
    for kind in (*kinds, AssertionError, IndexError, struct.error, UnicodeError, RuntimeError):
        for arguments in ((1064, "syntax"), (2013, "cut"), (0, ""), ("words",), ()):
            with pytest.raises(MySQLError) as found:
                Link(Broken(kind(*arguments)), None).ask(b"SELECT 1")  # type: ignore[arg-type]
            wanted = (1064 if arguments[:1] == (1064,) else 2013) if kind in kinds else 2027
            assert found.value.args[0] == wanted


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
