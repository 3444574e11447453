"""Where this user's files are that are not data: private temporary folders, and caches.

Temporary folders bear the number of their process, so that a killed one's are found and removed.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from floodmark.errors import ConfigError

# A child of a killed process may still be starting, in its folder: without it, a JVM waits for ever instead of ending.
FRESH = 120


def scratch(prefix: str) -> Path:
    """A fresh folder for this user only; removes those of the same prefix whose process is gone."""
    for folder in Path(tempfile.gettempdir()).glob(f"{prefix}*-*"):
        owner = folder.name.removeprefix(prefix).partition("-")[0]
        with suppress(OSError, ValueError):
            seen = folder.stat()
            fresh = time.time() - seen.st_mtime < FRESH
            if seen.st_uid == os.getuid() and not fresh and not _alive(int(owner)):
                shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{prefix}{os.getpid()}-"))


@contextmanager
def scratched(prefix: str) -> Iterator[Path]:
    """The same for the time of a `with`."""
    folder = scratch(prefix)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def cache_folder() -> Path:
    """Where this user's caches are; below the temporary folder for a user without a home to write to."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folder = Path(base) / "floodmark"
    try:
        folder.mkdir(0o700, parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            return folder
    except OSError:
        pass
    folder = Path(tempfile.gettempdir()) / f"floodmark-{os.getuid()}"
    # Others may write there, too, and a JVM runs what a class archive says.
    with suppress(OSError):
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
            folder.chmod(0o700)
            return folder
    raise ConfigError(f"{folder} is not a folder of this user's own", hint="set XDG_CACHE_HOME")


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
