"""Private temporary folders that bear the number of their process, so that a killed one's are found and removed."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

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


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
