"""One suite over every store, then what is special to a folder and to S3: durability, rights, lost answers."""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from floodmark import folder
from floodmark.doctor.store import prove
from floodmark.errors import ConfigError, DataError, FloodmarkError, NoAnswer, TransientError
from floodmark.store import NO_DOCUMENT, Store, StoreSpec, encode
from floodmark.testing.services import SeaweedFS

OTHER_USER = 65534


def s3_spec(
    seaweed: SeaweedFS, prefix: str, *, bucket: str | None = None, keys: tuple[str, str] | None = None
) -> StoreSpec:
    key, secret = keys or seaweed.writer
    return StoreSpec(
        f"s3://{bucket or seaweed.bucket}/{prefix}", seaweed.endpoint, seaweed.region, key, secret
    )


def at(endpoint: str) -> Store:
    return Store(StoreSpec("s3://lake/x", endpoint, "us-east-1", "key", "the-secret"))


@pytest.fixture(params=["folder", "s3"])
def spec(request: pytest.FixtureRequest, tmp_path: Path) -> StoreSpec:
    if request.param == "folder":
        return StoreSpec(str(tmp_path / "lake"))
    return s3_spec(request.getfixturevalue("seaweed"), f"store tests/{secrets.token_hex(6)}")


@pytest.fixture
def store(spec: StoreSpec) -> Store:
    return Store(spec)


def paths(store: Store, prefix: str, start_after: str | None = None) -> list[str]:
    return [item.path for item in store.list(prefix, start_after)]


# every store


def test_an_object_that_is_not_there_is_none(store: Store) -> None:
    assert store.get("commits/a.b/00000000000000000000.json") is None
    assert paths(store, "") == []


def test_an_object_that_is_too_large_for_its_kind_is_not_read(store: Store) -> None:
    store.put("pipeline.json", b" " * ((1 << 20) + 1))
    store.put("data/a.b/f.parquet", b"x" * 100)
    assert store.get("pipeline.json") == NO_DOCUMENT
    assert store.get("data/a.b/f.parquet", most=99) == NO_DOCUMENT
    assert store.get("data/a.b/f.parquet", most=100) == b"x" * 100
    store.put("pipeline.json", b" " * (1 << 20))
    assert len(store.get("pipeline.json") or b"") == 1 << 20


@pytest.mark.parametrize("data", [b"", b"x", os.urandom(1 << 16)])
def test_what_is_put_is_what_is_got(store: Store, data: bytes) -> None:
    store.put("data/a.b/f.parquet", data)
    assert store.get("data/a.b/f.parquet") == data
    store.put("data/a.b/f.parquet", b"newer")
    assert store.get("data/a.b/f.parquet") == b"newer"


def test_a_large_object_passes_in_parts_from_memory_and_from_a_file(store: Store, tmp_path: Path) -> None:
    data = os.urandom(1 << 20) * 21
    source, copy = tmp_path / "source", tmp_path / "copy"
    source.write_bytes(data)
    for body in (data, memoryview(data), source):
        store.put("data/big", body)
        store.download("data/big", copy)
        assert hashlib.sha256(copy.read_bytes()).digest() == hashlib.sha256(data).digest()
    assert store.get("data/big") == data
    assert {item.name for item in tmp_path.iterdir()} <= {"source", "copy", "lake"}


def test_create_writes_once_and_only_once(store: Store) -> None:
    assert store.create("commits/a.b/1.json", b"first") is True
    assert store.create("commits/a.b/1.json", b"second") is False
    assert store.get("commits/a.b/1.json") == b"first"
    store.delete(["commits/a.b/1.json"])
    assert store.create("commits/a.b/1.json", b"third") is True


def test_of_many_that_create_one_object_at_once_exactly_one_wins(spec: StoreSpec) -> None:
    # SeaweedFS makes those that contend for one name wait for whole seconds, so fewer rounds there.
    many, rounds = (4, 4) if spec.endpoint else (8, 100)
    stores = [Store(spec) for _ in range(many)]
    start = threading.Barrier(many)

    def attempt(me: int, path: str) -> bool:
        start.wait()
        return stores[me].create(path, b"%d" % me * 1000)

    with ThreadPoolExecutor(many) as pool:
        for path in [f"race/{n}" for n in range(rounds)]:
            won = list(pool.map(attempt, range(many), [path] * many))
            assert won.count(True) == 1
            assert stores[0].get(path) == b"%d" % won.index(True) * 1000


def test_a_listing_is_sorted_and_knows_folders_from_names_that_begin_alike(store: Store) -> None:
    names = [
        "data/a/b",
        "data/a-b",
        "data/a.b/c",
        "data/a0",
        "data/orders/1",
        "data/orders/2/x",
        "data/orders_old/1",
    ]
    for name in names:
        store.put(name, b"12345")
    assert paths(store, "") == sorted(names)
    assert paths(store, "data/orders/") == ["data/orders/1", "data/orders/2/x"]
    assert paths(store, "data/orders_") == ["data/orders_old/1"]
    assert paths(store, "data/orders/1") == ["data/orders/1"]
    assert paths(store, "nothing/here/") == []
    item = next(store.list("data/a0"))
    assert item.bytes == 5
    assert abs((datetime.now(UTC) - item.modified).total_seconds()) < 120


def test_a_listing_goes_over_many_pages_and_can_start_after_a_path(store: Store) -> None:
    names = [f"commits/a.b/{n:020}.json" for n in range(1203)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: store.create(name, b"{}"), names))
    assert paths(store, "commits/a.b/") == names
    assert paths(store, "commits/a.b/", names[1100]) == names[1101:]
    assert paths(store, "commits/a.b/", names[-1]) == []
    store.delete(names)
    assert paths(store, "commits/") == []


def test_folders_are_the_names_right_below_and_no_more(store: Store) -> None:
    for path in (
        "commits/s.t/1.json",
        "commits/s.t/2.json",
        "commits/a%20b.c/1.json",
        "commits/x.json",
        "other/y/1",
    ):
        store.put(path, b"x")
    assert store.folders("commits/") == ("a%20b.c", "s.t")
    assert store.folders("nothing/") == store.folders("commits/s.t/") == ()


def test_deleting_what_is_not_there_is_no_error(store: Store) -> None:
    store.put("data/a/1", b"x")
    store.delete(["data/a/1", "data/a/2", "data/never/3"])
    store.delete([])
    assert paths(store, "") == []


def test_encoded_names_come_back_as_they_were_written(store: Store) -> None:
    name = f"data/{encode('shöp. x')}.{encode('a/b%c#d')}/1.parquet"
    store.put(name, b"x")
    assert paths(store, "data/") == [name]
    assert store.get(name) == b"x"
    assert store.uri(name).startswith(("s3://", "file:///"))


def test_encode_leaves_only_plain_characters() -> None:
    assert encode("shop.Orders_$-1") == "shop.Orders_$-1"
    assert encode("ö/ %#?~") == "%C3%B6%2F%20%25%23%3F%7E"


@pytest.mark.parametrize("path", ["", "/etc/passwd", "a//b", "a/../../b", "a/", "."])
def test_a_path_that_leaves_the_prefix_is_refused(store: Store, path: str) -> None:
    with pytest.raises(DataError, match="no path of an object"):
        store.get(path)


def test_a_download_of_a_missing_object_is_a_data_error_and_leaves_nothing(
    store: Store, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="not in the store"):
        store.download("data/none", tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_download_into_a_folder_that_is_full_or_gone_leaves_nothing(store: Store, tmp_path: Path) -> None:
    store.put("data/x", b"x")
    with pytest.raises(TransientError):
        store.download("data/x", tmp_path / "gone" / "copy")


def test_the_proof_of_the_doctor_passes_and_leaves_nothing(store: Store) -> None:
    checks = list(prove(store))
    assert [check.name for check in checks] == ["read", "create", "list", "delete"]
    assert {check.status for check in checks} == {"ok"}
    assert paths(store, "") == []


def test_a_spec_travels_and_shows_no_secret(spec: StoreSpec) -> None:
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert spec.secret_access_key is None or spec.secret_access_key not in repr(spec)


# a folder


def test_a_folder_tells_where_its_objects_are(tmp_path: Path) -> None:
    store = Store(StoreSpec(str(tmp_path / "my lake")))
    store.put("data/t%20t/1", b"x")
    assert store.local("data/t%20t/1") == tmp_path / "my lake/data/t%20t/1"
    assert store.uri("data/t%20t/1").endswith("/my%20lake/data/t%2520t/1")


def test_a_file_is_flushed_to_the_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, steps = Store(StoreSpec(str(tmp_path / "lake"))), []

    def trace(name: str, real: Callable[..., None]) -> Callable[..., None]:
        return lambda *args: (steps.append(name), real(*args))[1]

    for name in ("fsync", "link", "replace"):
        monkeypatch.setattr(os, name, trace(name, getattr(os, name)))
    store.put("commits/0.json", b"x")
    steps.clear()
    store.create("commits/1.json", b"x")
    assert steps == ["fsync", "link", "fsync"]
    steps.clear()
    store.put("commits/1.json", b"y")
    assert steps == ["fsync", "replace", "fsync"]


KILLED = """
import os, sys
from floodmark.store import Store, StoreSpec
os.link = os.replace = lambda *a: os.kill(os.getpid(), 9)
getattr(Store(StoreSpec(sys.argv[1])), sys.argv[2])("commits/1.json", b"x" * 100)
"""


@pytest.mark.parametrize("verb", ["create", "put"])
def test_a_process_killed_while_it_writes_leaves_no_object(tmp_path: Path, verb: str) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), verb], check=False)
    assert done.returncode == -9
    store = Store(StoreSpec(str(tmp_path)))
    assert paths(store, "") == []
    assert store.create("commits/1.json", b"whole") is True
    left = list((tmp_path / folder.PARTS).iterdir())
    assert len(left) == 1
    os.utime(left[0], (1, 1))
    Store(StoreSpec(str(tmp_path))).put("x", b"")
    assert list((tmp_path / folder.PARTS).iterdir()) == []


def test_writers_and_cleaners_of_one_folder_do_not_trip_over_each_other(tmp_path: Path) -> None:
    store, end = Store(StoreSpec(str(tmp_path))), time.monotonic() + 1

    def churn(me: int) -> None:
        while time.monotonic() < end:
            store.put(f"data/t/r/{me}", b"x")
            store.delete([f"data/t/r/{me}"])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(churn, range(4)))
    assert paths(store, "") == []


READ_ONLY = """
import os, sys
from floodmark.store import Store, StoreSpec
from floodmark.errors import ConfigError
store = Store(StoreSpec(sys.argv[1]))
os.setuid(int(sys.argv[2])) if os.geteuid() == 0 else None
print(store.get("there"))
for write in (lambda: store.create("a/1", b"x"), lambda: store.put("a/1", b"x"), lambda: store.delete(["there"])):
    try:
        write()
    except ConfigError as error:
        print(error.message)
"""


def test_a_read_only_folder_is_a_config_error_and_can_still_be_read() -> None:
    # Not in tmp_path, which other users can't enter.
    with tempfile.TemporaryDirectory(dir="/tmp") as place:
        os.chmod(place, 0o755)
        Path(place, "there").write_bytes(b"1")
        os.chmod(place, 0o555)
        done = subprocess.run(
            [sys.executable, "-c", READ_ONLY, place, str(OTHER_USER)],
            capture_output=True,
            text=True,
            check=True,
        )
    lines = done.stdout.splitlines()
    assert lines[0] == "b'1'"
    assert len(lines) == 4
    assert all("no permission" in line and place in line for line in lines[1:])


def test_a_folder_that_is_a_file_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "lake").write_bytes(b"")
    with pytest.raises(ConfigError):
        Store(StoreSpec(str(tmp_path / "lake"))).put("a", b"x")


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, TransientError),
        (errno.EDQUOT, TransientError),
        (errno.EIO, TransientError),
        (errno.ESTALE, TransientError),
        (errno.EROFS, ConfigError),
        (errno.EACCES, ConfigError),
        (errno.EPERM, ConfigError),
        (errno.EXDEV, ConfigError),
        (errno.ENAMETOOLONG, ConfigError),
        (errno.ENOTDIR, ConfigError),
    ],
)
def test_every_error_of_the_file_system_is_translated(number: int, kind: type[FloodmarkError]) -> None:
    error = folder.translate(OSError(number, "x"), "write", "the store /lake")
    assert type(error) is kind
    assert error.hint
    assert "\n" not in error.message


# S3


def test_a_bucket_that_does_not_exist_is_a_config_error_on_first_use(seaweed: SeaweedFS) -> None:
    for use in (
        lambda store: store.get("a"),
        lambda store: store.create("a", b"x"),
        lambda store: store.put("a", b"x"),
        lambda store: list(store.list("a/")),
        lambda store: store.delete(["a"]),
    ):
        with pytest.raises(ConfigError, match="bucket no-such-bucket does not exist"):
            use(Store(s3_spec(seaweed, "x", bucket="no-such-bucket")))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        (("nobody", "wrong-secret"), "keys are not valid"),
        (("floodmark-writer", "wrong-secret"), "keys are not valid"),
    ],
)
def test_wrong_keys_are_a_config_error_that_shows_no_secret(
    seaweed: SeaweedFS, keys: tuple[str, str], said: str
) -> None:
    store = Store(s3_spec(seaweed, "x", keys=keys))
    for use in (lambda: store.get("a"), lambda: store.create("a", b""), lambda: list(store.list(""))):
        with pytest.raises(ConfigError, match=said) as caught:
            use()
        assert "wrong-secret" not in repr(caught.value) + str(caught.value.hint)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__


def test_a_reader_can_read_and_is_told_that_it_may_not_write(seaweed: SeaweedFS) -> None:
    Store(s3_spec(seaweed, "ro")).put("there", b"1")
    store = Store(s3_spec(seaweed, "ro", keys=seaweed.reader))
    assert store.get("there") == b"1"
    for write in (
        lambda: store.create("a", b""),
        lambda: store.put("a", b""),
        lambda: store.delete(["there"]),
    ):
        with pytest.raises(ConfigError, match="access denied"):
            write()


def test_configured_keys_and_endpoint_win_over_the_environment(
    seaweed: SeaweedFS, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "AWS_SESSION_TOKEN": "another",
        "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:1",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_SKIP_SIGNATURE": "true",
        "AWS_REGION": "eu-west-1",
    }.items():
        monkeypatch.setenv(name, value)
    assert Store(s3_spec(seaweed, "env")).get("none") is None


def test_without_configured_keys_the_environment_then_the_profile_is_used(
    seaweed: SeaweedFS, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    spec = StoreSpec(f"s3://{seaweed.bucket}/chain", seaweed.endpoint)
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    file = tmp_path / "credentials"
    key, secret = seaweed.writer
    file.write_text(
        f"[other]\naws_access_key_id = {key}\naws_secret_access_key = {secret}\n[sso]\nsso_x = 1\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    monkeypatch.setenv("AWS_PROFILE", "other")
    assert Store(spec).get("none") is None
    monkeypatch.setenv("AWS_PROFILE", "sso")
    with pytest.raises(ConfigError, match="AWS profile sso has no keys"):
        Store(spec)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    assert Store(spec).get("none") is None


def test_no_credentials_at_all_is_a_config_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", "http://127.0.0.1:1")
    with pytest.raises(ConfigError, match="no AWS credentials"):
        Store(StoreSpec("s3://lake/x", "http://127.0.0.1:1")).get("a")


# answers that are lost, late or strange


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


def test_a_create_whose_answer_was_lost_and_is_repeated_reports_the_object_as_existing() -> None:
    with server(ABSENT, b"", reply(412, "PreconditionFailed")) as (endpoint, requests):
        assert at(endpoint).create("a", b"x") is False
    assert len(requests) == 3


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
def test_a_create_without_a_clear_answer_is_no_answer(answer: bytes) -> None:
    with server(ABSENT, answer) as (endpoint, _), pytest.raises(NoAnswer) as caught:
        at(endpoint).create("a", b"x")
    assert caught.value.hint


def test_a_refusal_after_a_lost_answer_proves_nothing() -> None:
    with server(ABSENT, b"", reply(403, "AccessDenied")) as (endpoint, _), pytest.raises(NoAnswer):
        at(endpoint).create("a", b"x")


def test_a_create_that_is_refused_at_once_is_a_config_error() -> None:
    with server(ABSENT, reply(403, "AccessDenied")) as (endpoint, _), pytest.raises(ConfigError):
        at(endpoint).create("a", b"x")


def test_a_short_failure_of_the_server_is_ridden_out() -> None:
    with server(ABSENT, reply(503, "SlowDown"), b"", DONE) as (endpoint, requests):
        assert at(endpoint).create("a", b"x") is True
    assert len(requests) == 4


def test_a_404_that_is_not_s3s_own_does_not_pass_for_an_empty_store() -> None:
    with server(reply(404)) as (endpoint, _):
        for use in (lambda: at(endpoint).get("a"), lambda: list(at(endpoint).list("a/"))):
            with pytest.raises(ConfigError, match="does not answer as S3 does"):
                use()


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


def test_an_endpoint_whose_name_is_unknown_says_so() -> None:
    with pytest.raises(TransientError, match="name is unknown"):
        at("http://no-such-host.invalid").get("a")
