"""A local folder as an object store: whole files under their final names, or nothing.

A file is written under `.part/` and flushed to disk, and only then linked (create) or renamed (put) to its
name, which is flushed too. So neither a crash nor a power failure leaves a truncated object. The S3 client's
local store can't promise that, because it never calls fsync. Files and folders are accessible to this user
only.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from floodmark.host.retry import Retries
from floodmark.model.errors import ConfigError, FloodmarkError, TransientError

PARTS = ".part"
LOCK_SECONDS = 1.0  # for the lock of `swap`, which is held for moments
STALE_SECONDS = 86_400
# Stands for an object too large to be one of ours: no reader takes it for a document.
NO_DOCUMENT = b"\xff(too large to be read)"

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
# What to do about a place that can't be a store.
_UNFIT = {
    **dict.fromkeys(
        (errno.EXDEV, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS),
        "the store's folder must be on a single file system that supports hard links",
    ),
    errno.ENAMETOOLONG: "the table's percent-encoded name exceeds the 255 bytes of a file name;"
    " S3 has room for it (store.url: s3://bucket/prefix)",
    **dict.fromkeys(
        (errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP), "change store.url to a dedicated folder"
    ),
}


@dataclass(frozen=True, slots=True)
class Object:
    """One object, as a listing shows it."""

    path: str  # below the store's prefix
    bytes: int
    modified: datetime
    etag: str | None = None


class Folder:
    """The objects below one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._swept = False

    def get(self, path: str, most: int) -> bytes | None:
        """The whole object, None if absent; NO_DOCUMENT if larger than `most`, or not a regular file."""
        with self._errors("read"), suppress(FileNotFoundError):
            # Without O_NONBLOCK, opening a pipe would wait for its writer.
            descriptor = os.open(self.root / path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(descriptor, "rb") as file:
                found = os.fstat(descriptor)
                if not stat.S_ISREG(found.st_mode) or found.st_size > most:
                    return NO_DOCUMENT
                data = file.read(most + 1)
                return data if len(data) <= most else NO_DOCUMENT
        return None

    def tagged(self, path: str, most: int) -> tuple[bytes | None, str | None]:
        """The whole object, and a tag that changes with it."""
        tag = self._tag(path)  # first: if it changes in between, `swap` refuses
        return self.get(path, most), tag

    def swap(self, path: str, data: bytes, tag: str) -> bool:
        """Replaces the object if it still has this tag; a lock keeps other processes from doing so at the same time."""
        with self._errors("write"):
            _make(self.root / PARTS)
            lock = os.open(self.root / PARTS, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                for _ in Retries(pause=0.01, longest=0.2, seconds=LOCK_SECONDS):
                    try:
                        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        break
                    except BlockingIOError:
                        continue  # a process that was stopped may hold it for ever
                    except OSError:
                        break  # a file system without locks
                else:
                    return False
                if self._tag(path) != tag:
                    return False
                self.put(path, data)
                return True
            finally:
                os.close(lock)

    def create(self, path: str, data: bytes) -> bool:
        """Creates the object, atomically and durably; False if it exists already."""
        with self._errors("write"), self._part(data) as part:
            try:
                self._place(path, lambda final: os.link(part, final))
            except FileExistsError:
                return False
            return True

    def put(self, path: str, data: bytes | bytearray | memoryview | Path) -> None:
        """Writes or replaces the object, atomically and durably."""
        with self._errors("write"), self._part(data) as part:
            self._place(path, lambda final: os.replace(part, final))

    def list(self, parent: str, after: str = "", prefix: str = "") -> Iterator[Object]:
        """Every object below a folder (`""`: all), unordered; `after` and `prefix` save nothing here."""
        with self._errors("read"):
            waiting = [(self.root / parent, parent)]
            while waiting:
                place, prefix = waiting.pop()
                try:
                    entries = list(os.scandir(place))
                except FileNotFoundError:
                    continue
                for entry in entries:
                    if not prefix and entry.name == PARTS:
                        continue
                    if entry.is_dir():
                        waiting.append((place / entry.name, f"{prefix}{entry.name}/"))
                        continue
                    with suppress(FileNotFoundError):  # deleted since the folder was read
                        found = entry.stat()
                        modified = datetime.fromtimestamp(found.st_mtime, UTC)
                        yield Object(f"{prefix}{entry.name}", found.st_size, modified)

    def folders(self, prefix: str) -> Iterator[str]:
        """The names of the immediate subfolders."""
        with self._errors("read"), suppress(FileNotFoundError, NotADirectoryError):
            for entry in os.scandir(self.root / prefix):
                if entry.is_dir():
                    yield entry.name

    def delete(self, paths: Iterable[str]) -> None:
        """Deletes those objects that exist, and the folders that this leaves empty."""
        with self._errors("delete from"):
            for path in paths:
                with suppress(FileNotFoundError):
                    os.unlink(self.root / path)
                for parent in (self.root / path).parents:
                    if parent == self.root:
                        break
                    try:
                        os.rmdir(parent)
                    except OSError:
                        break

    def uri(self, path: str) -> str:
        """The object's full address."""
        return (self.root / path).as_uri()

    def stream(self, path: str) -> Iterator[bytes] | None:
        """The object in chunks, or None if it doesn't exist."""
        with self._errors("read"), suppress(FileNotFoundError):
            return self._chunks((self.root / path).open("rb"))
        return None

    def end(self, path: str, size: int) -> tuple[int, bytes, None] | None:
        """The object's size, its last bytes and no ETag, or None if it doesn't exist."""
        with self._errors("read"), suppress(FileNotFoundError), (self.root / path).open("rb") as file:
            whole = file.seek(0, os.SEEK_END)
            file.seek(max(0, whole - size))
            return whole, file.read(), None
        return None

    def _chunks(self, file: BinaryIO) -> Iterator[bytes]:
        with self._errors("read"), file:
            while chunk := file.read(8 << 20):
                yield chunk

    # writing

    def _tag(self, path: str) -> str | None:
        """Identifies the present object, as every write makes a new file; None if there is none."""
        with self._errors("read"), suppress(FileNotFoundError):
            found = os.stat(self.root / path)
            return f"{found.st_ino} {found.st_mtime_ns} {found.st_size}"
        return None

    @contextmanager
    def _part(self, data: bytes | bytearray | memoryview | Path) -> Iterator[Path]:
        """The data in a file that no listing shows, flushed to disk; removed afterwards."""
        self._sweep()
        part = self.root / PARTS / uuid4().hex
        try:
            _make(part.parent)
            with open(part, "xb", opener=_private) as file:
                if isinstance(data, Path):
                    with data.open("rb") as source:
                        shutil.copyfileobj(source, file, 1 << 20)
                else:
                    file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield part
        finally:
            with suppress(OSError):
                os.unlink(part)

    def _place(self, path: str, move: Callable[[Path], None]) -> None:
        """Moves the part to its name; retries if a delete removed the folder in between."""
        final = self.root / path
        for attempt in range(100):
            try:
                _make(final.parent)
                move(final)
                break
            except FileNotFoundError:
                if attempt == 99:
                    raise
        with suppress(FileNotFoundError):
            _flush(final.parent)

    def _sweep(self) -> None:
        """Once per process, removes parts that a crash left a day ago or earlier."""
        if self._swept:
            return
        self._swept = True
        with suppress(OSError):
            for entry in os.scandir(self.root / PARTS):
                if entry.stat().st_mtime < time.time() - STALE_SECONDS:
                    os.unlink(entry.path)

    @contextmanager
    def _errors(self, verb: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise translate(error, verb, f"the store {self.root}") from None


def translate(error: OSError, verb: str, what: str) -> FloodmarkError:
    """What a file system error means for the operator."""
    reason = os.strerror(error.errno).lower() if error.errno else type(error).__name__
    if error.errno in _FULL:
        return TransientError(
            f"no space left to {verb} {what} ({reason})", hint="free some space, then run again"
        )
    if error.errno in _FORBIDDEN:
        return ConfigError(
            f"no permission to {verb} {what} ({reason})",
            hint="allow this user to read and write the folder, or change store.url",
        )
    hint = _UNFIT.get(error.errno or 0)
    kind = TransientError if hint is None else ConfigError
    return kind(f"can't {verb} {what}: {reason}", hint=hint or "check the disk, then run again")


def _private(path: str, flags: int) -> int:
    """Opens a file for this user only, whatever the umask."""
    return os.open(path, flags, 0o600)


def _make(folder: Path) -> None:
    """Creates a folder and its parents, for this user only, so that they survive a power failure."""
    if folder.is_dir():
        return
    _make(folder.parent)
    with suppress(FileExistsError):
        folder.mkdir(0o700)
        _flush(folder.parent)


def _flush(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
