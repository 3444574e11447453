"""The turnstile before a DuckDB file: processes of one user open it in the order in which they came."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from floodmark.host.temp import cache_folder
from floodmark.model.errors import ConfigError

# Seconds between attempts to open a file that someone else holds.
TRY_EVERY = 0.05


@contextlib.contextmanager
def turnstile(path: Path, give_up: float) -> Iterator[None]:
    """One process of this user passes at a time, so one that releases a file can't overtake a waiting one.

    It only orders, and protects nothing: after a timeout, or if its file can't be created, the caller proceeds
    without it.
    """
    door = _door(path)
    place = _taken(door, give_up) if door else None
    try:
        yield
    finally:
        if door is not None and place is not None:
            with contextlib.suppress(OSError):
                door.unlink()
                # Closing is not enough: a process forked meanwhile would keep the lock.
                fcntl.flock(place, fcntl.LOCK_UN)
            os.close(place)


def _door(path: Path) -> Path | None:
    """The turnstile's own file: opening and closing the database itself would drop DuckDB's lock on it."""
    try:
        found = path.stat()
        return cache_folder() / f"duckdb-{found.st_dev:x}-{found.st_ino:x}.lock"
    except (OSError, ConfigError):  # DuckDB's own error explains it better
        return None


def _taken(door: Path, give_up: float) -> int | None:
    while time.monotonic() < give_up:
        place = None
        try:
            place = os.open(door, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(place), door.stat()):
                return place
        except BlockingIOError:
            time.sleep(TRY_EVERY / 5)
        except FileNotFoundError:  # its holder has just removed it
            pass
        except OSError:
            give_up = 0
        if place is not None:
            os.close(place)
    return None


def awaited(path: Path) -> bool:
    """Whether another process is waiting in the turnstile."""
    door = _door(path)
    if door is None:
        return False
    try:
        place = os.open(door, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(place, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(place)
    return False
