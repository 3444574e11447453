"""What is special to a folder as a store: durability, rights, processes that die in it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from floodmark.config.load import StoreSpec
from floodmark.model.errors import ConfigError, FloodmarkError, TransientError
from floodmark.store import folder
from floodmark.store.store import Store
from tests.support.store_addresses import paths

OTHER_USER = 65534


def test_a_folder_knows_where_its_objects_are(tmp_path: Path) -> None:
    store = Store(StoreSpec(str(tmp_path / "my lake")))
    store.put("data/t%20t/1", b"x")
    assert store.local("data/t%20t/1") == tmp_path / "my lake/data/t%20t/1"
    assert store.uri("data/t%20t/1").endswith("/my%20lake/data/t%2520t/1")


def test_a_store_s_objects_are_private_to_the_user_and_an_existing_folder_keeps_its_mode(
    tmp_path: Path, open_umask: None
) -> None:
    (tmp_path / "shared").mkdir(0o755)
    store = Store(StoreSpec(str(tmp_path / "shared" / "lake")))
    store.put("data/t/1", b"x")
    assert store.create("commits/t/1", b"x")
    made = [tmp_path / "shared" / "lake", *(tmp_path / "shared" / "lake").rglob("*")]
    assert len(made) == 8
    assert {p.stat().st_mode & 0o777 for p in made if p.is_dir()} == {0o700}
    assert {p.stat().st_mode & 0o777 for p in made if p.is_file()} == {0o600}
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o755


def test_a_file_is_flushed_to_the_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, steps = Store(StoreSpec(str(tmp_path / "lake"))), []

    def trace(name: str, real: Callable[..., None]) -> Callable[..., None]:
        def traced(*args: Any) -> None:
            steps.append(name)
            real(*args)

        return traced

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
from floodmark.config.load import StoreSpec
from floodmark.store.store import Store
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
from floodmark.config.load import StoreSpec
from floodmark.store.store import Store
from floodmark.model.errors import ConfigError
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
