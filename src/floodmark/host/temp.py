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
            seen = folder.lstat()
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


@contextmanager
def whole_file(path: Path, replaces: bool, hint: str | None = None) -> Iterator[Path]:
    """A file to write that takes its place only when it is whole. Raises ConfigError.

    Unless it `replaces` one: FileExistsError if there is one by now.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.absolute().parent) as folder:
            part = Path(folder) / path.name
            yield part
            if not replaces:
                try:
                    os.link(part, path)  # fails if there is one by now
                    return
                except (OSError, NotImplementedError):  # a file system without links
                    if path.exists():
                        raise FileExistsError from None
            part.replace(path)
    except FileExistsError:
        raise
    except OSError as error:
        raise ConfigError(f"{path} can't be written: {error.strerror or error}", hint=hint) from None


def cache_folder() -> Path:
    """This user's cache folder; under the temporary folder if the one at home can't be used.

    A JVM executes the code in a class archive, so a folder that others can write is never used.
    """
    home = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) / "floodmark"
    spare = Path(tempfile.gettempdir()) / f"floodmark-{os.getuid()}"
    for folder in (home, spare):
        with suppress(OSError):
            folder.mkdir(0o700, parents=folder is home, exist_ok=True)
            if is_own(folder) and os.access(folder, os.W_OK):
                return folder
    raise ConfigError(
        f"neither {home} nor {spare} is a folder of this user's that nobody else can write",
        hint=f"chmod go-w {home}, or set XDG_CACHE_HOME",
    )


def is_own(path: Path) -> bool:
    """Whether a file or folder is this user's, nobody else can write it, and no link leads to it."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return not stat.S_ISLNK(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
