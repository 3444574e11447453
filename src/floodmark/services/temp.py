"""Where this user's files other than data live: private temporary folders, and caches.

A temporary folder's name carries its process id, so that a killed process's folders are found and removed.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path

from floodmark.model.errors import ConfigError

# A killed process may have a child still starting in its folder; without it, a JVM hangs instead of exiting.
FRESH = 120


def scratch(prefix: str) -> Path:
    """A new folder private to this user; removes folders with the same prefix whose process is gone."""
    _sweep(tempfile.gettempdir(), prefix, int(time.monotonic() // FRESH))
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-"))


@lru_cache(maxsize=8)  # a run that loads fifty tables looks once, not fifty times
def _sweep(place: str, prefix: str, period: int) -> None:
    """Removes the folders of processes that are gone; once in a period."""
    for folder in Path(place).glob(f"{prefix}*-*"):
        owner = folder.name.removeprefix(prefix).partition("-")[0]
        with suppress(OSError, ValueError):
            seen = folder.stat()
            fresh = time.time() - seen.st_mtime < FRESH
            if seen.st_uid == os.getuid() and not fresh and not _alive(int(owner)):
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def scratched(prefix: str) -> Iterator[Path]:
    """The same as a context manager that removes the folder."""
    folder = scratch(prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def cache_folder() -> Path:
    """This user's cache folder; under the temporary folder if the home directory isn't writable."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(base) / "floodmark"
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    folder = Path(tempfile.gettempdir()) / f"floodmark-{os.getuid()}"
    # Other users can write there too, and a JVM executes the code in a class archive.
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
            folder.chmod(0o700)
            return folder
    raise ConfigError(f"{folder} is not a folder owned by this user", hint="set XDG_CACHE_HOME")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
