"""What a task carries: on this machine no secret; the worker reads it where the driver has left it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from pyspark.serializers import CloudPickleSerializer

from floodmark.config.load import SourceSpec, StoreSpec
from floodmark.spark.job import Piece, packed, task, unpacked

SOURCE = SourceSpec("db", 3306, "reader", "the-password-of-the-source")
STORE = StoreSpec("s3://lake", access_key_id="key", secret_access_key="the-secret-of-the-store")


@dataclass(frozen=True)
class Job:
    """Returns what it was given."""

    source: SourceSpec
    stores: tuple[StoreSpec, ...]
    table: None = None

    def title(self, of: int) -> str:
        return "a job"

    def go(self, told: object, relay: object) -> list[str | None]:
        return [self.source.password, *(store.secret_access_key for store in self.stores)]


JOB = Job(SOURCE, (STORE, STORE))
SECRETS = [SOURCE.password, STORE.secret_access_key, STORE.secret_access_key]


def test_a_local_task_knows_every_secret_and_carries_none() -> None:
    run = task([Piece(JOB)], True)  # type: ignore[arg-type]
    said: list[object] = list(run([]))
    assert said == [SECRETS]
    data = CloudPickleSerializer().dumps(run)  # type: ignore[no-untyped-call]
    assert not [secret for secret in SECRETS if secret and secret.encode() in data]
    assert SOURCE.password.encode() in CloudPickleSerializer().dumps(task([Piece(JOB)], False))  # type: ignore[no-untyped-call, arg-type]


def test_another_process_of_this_user_finds_the_secrets_left_for_it() -> None:
    program = (
        "import sys; from floodmark.spark.job import unpacked; print(*unpacked(sys.stdin.buffer.read()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        input=packed((SOURCE.password[::-1], SOURCE)),
        capture_output=True,
        timeout=60,
    )
    assert done.stdout.decode().split()[0] == SOURCE.password[::-1], done.stderr
    assert b"SourceSpec(host='db'" in done.stdout


def test_the_same_secret_is_left_once() -> None:
    assert packed(JOB) == packed(JOB) and unpacked(packed(JOB)) == JOB


def test_many_secrets_stay_where_they_were_left_and_take_one_file_each() -> None:
    many = [SourceSpec("db", 3306, "reader", f"password {number}") for number in range(40)]
    first = [packed(spec) for spec in many]
    held = len(os.listdir("/proc/self/fd"))
    assert [packed(spec) for spec in many] == first
    assert len(os.listdir("/proc/self/fd")) == held


HIDDEN = """
import ctypes, os, stat, tempfile
from pathlib import Path
from floodmark.spark.job import _left, packed, unpacked
from floodmark.config.load import SourceSpec
tempfile.tempdir = "/tmp"
if os.getuid() == 0:
    os.setuid(65534)
ctypes.CDLL(None).prctl(4, 0)  # as of a program with rights of its own
spec = SourceSpec("db", 3306, "reader", "secret")
assert unpacked(packed(spec)) == spec
path = Path(_left(spec, os.getpid())[0])
print(path, *(oct(stat.S_IMODE(p.stat().st_mode)) for p in (path, path.parent)))
"""


def test_a_private_file_is_used_if_the_kernel_hides_the_driver_s_memory() -> None:
    done = subprocess.run([sys.executable, "-c", HIDDEN], capture_output=True, text=True, timeout=60)
    path, *modes = done.stdout.split()
    assert path.startswith("/tmp/floodmark-carried-") and modes == ["0o600", "0o700"], done.stderr
    assert not Path(path).parent.exists()
