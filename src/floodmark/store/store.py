"""The object store: get, create, put, list, delete over S3, an S3-compatible server or a local folder.

The invariant: `create` returns True only if this call wrote the object, False only if the server said that it
exists, and raises NoAnswer whenever the outcome is unknown. An object counts as absent only if the server
said so in S3's own terms.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Protocol, TypeVar
from uuid import uuid4

from floodmark.config.load import StoreSpec
from floodmark.host.threads import RecentAnswers
from floodmark.model.changes import SOURCE_LOG
from floodmark.model.errors import DataError
from floodmark.store import folder
from floodmark.store.folder import NO_DOCUMENT, PARTS, Folder, Object
from floodmark.store.places import Place
from floodmark.store.s3 import Bucket


class Objects(Protocol):
    """What a store is built on: a bucket, a folder, or one of them after a loss."""

    def get(self, path: str, most: int) -> bytes | None: ...
    def tagged(self, path: str, most: int) -> tuple[bytes | None, str | None]: ...
    def create(self, path: str, data: bytes) -> bool: ...
    def swap(self, path: str, data: bytes, tag: str) -> bool: ...
    def put(self, path: str, data: bytes | bytearray | memoryview | Path) -> str | None: ...
    def list(self, parent: str, after: str, prefix: str) -> Iterator[Object]: ...
    def folders(self, prefix: str) -> Iterator[str]: ...
    def end(self, path: str, size: int) -> tuple[int, bytes, str | None] | None: ...
    def delete(self, paths: Sequence[str]) -> None: ...
    def stream(self, path: str) -> Iterator[bytes] | None: ...
    def uri(self, path: str) -> str: ...


class Overlay:
    """The objects of another store without the `lost` ones, plus what was written since."""

    def __init__(self, under: Objects, lost: Callable[[str], bool]) -> None:
        self._under = under
        self._lost = lost
        self._written: dict[str, bytes] = {}
        self._deleted: set[str] = set()

    def _hidden(self, path: str) -> bool:
        return path in self._deleted or self._lost(path)

    def get(self, path: str, most: int) -> bytes | None:
        if path in self._written:
            data = self._written[path]
            return data if len(data) <= most else NO_DOCUMENT
        return None if self._hidden(path) else self._under.get(path, most)

    def tagged(self, path: str, most: int) -> tuple[bytes | None, str | None]:
        data = self.get(path, most)
        return data, None if data is None else "here"

    def swap(self, path: str, data: bytes, tag: str) -> bool:
        self._written[path] = data  # nobody else writes here
        return True

    def create(self, path: str, data: bytes) -> bool:
        if self.end(path, 1) is not None:
            return False
        self._written[path] = data
        return True

    def put(self, path: str, data: bytes | bytearray | memoryview | Path) -> None:
        self._written[path] = data.read_bytes() if isinstance(data, Path) else bytes(data)

    def list(self, parent: str, after: str, prefix: str) -> Iterator[Object]:
        for item in self._under.list(parent, after, prefix):
            if item.path not in self._written and not self._hidden(item.path):
                yield item
        now = datetime.now(UTC)
        yield from (
            Object(path, len(data), now)
            for path, data in sorted(self._written.items())
            if path.startswith(parent)
        )

    def folders(self, prefix: str) -> Iterator[str]:
        found = {
            path.removeprefix(prefix).partition("/")[0]
            for path in self._written
            if path.startswith(prefix) and "/" in path.removeprefix(prefix)
        }
        # A folder may be listed although all its objects are hidden: it then turns out empty.
        yield from found | set(self._under.folders(prefix))

    def end(self, path: str, size: int) -> tuple[int, bytes, str | None] | None:
        if path in self._written:
            data = self._written[path]
            return len(data), data[-size:], None
        return None if self._hidden(path) else self._under.end(path, size)

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._written.pop(path, None)
            self._deleted.add(path)

    def stream(self, path: str) -> Iterator[bytes] | None:
        if path in self._written:
            return iter((self._written[path],))
        return None if self._hidden(path) else self._under.stream(path)

    def uri(self, path: str) -> str:
        return self._under.uri(path)


A = TypeVar("A")
R = TypeVar("R")

__all__ = ["MOST_COMMIT", "MOST_COPY", "NO_DOCUMENT", "Object", "Store", "encode"]

# Requests at a time for callers that have several.
_AT_ONCE = 16
# A folder with more objects than this takes more than one request to list.
_ONE_LIST = 999
# Most bytes to read into memory, far above what Floodmark writes: a claim with 800,000 slices has 32 MiB, and
# a copy of the watermark holds the claim twice. Someone with write access to the store must not be able to
# fill a reader's memory.
MOST_COMMIT = 32 << 20
MOST_COPY = 80 << 20
_MOST_BYTES = (
    ("commits/", MOST_COMMIT),
    ("pipeline.json", 1 << 20),
    ("leases/", 1 << 20),
    ("status/", 8 << 20),
    ("watermark/last_run", 1 << 20),
    ("watermark/recoveries/", 1 << 20),
)


def encode(name: str) -> str:
    """A name as part of an object's path: all but `A-Za-z0-9_$.-` percent-encoded as UTF-8."""
    return "".join(chr(b) if chr(b) in _PLAIN else f"%{b:02X}" for b in name.encode())


_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_$.-")


# Everything of the source's log of changes lies below this folder, so that no list of tables shows it.
CHANGES = "changes/"


def home(name: str) -> str:
    """The folder that a log's objects lie below: for a table, the store's prefix."""
    return CHANGES if name == SOURCE_LOG else ""


def file_folders(name: str) -> tuple[str, str]:
    """The folders of a table's files: of its rows, and of its keys, which earlier versions kept among the rows.

    Those of the source's log hold the files of all tables (`changed_keys`).
    """
    below = "" if name == SOURCE_LOG else f"{encode(name)}/"
    return f"{home(name)}data/{below}", f"{home(name)}keys/{below}"


def changed_keys(table_name: str) -> str:
    """The folder of a table's key files in the source's log of changes."""
    return f"{CHANGES}keys/{encode(table_name)}/"


class Store:
    """The objects below one prefix. Opening it makes no request; safe to share between threads."""

    def __init__(self, spec: StoreSpec) -> None:
        self.spec = spec
        self._at: Objects = Bucket(spec) if spec.url.startswith("s3://") else Folder(Path(spec.url))
        self._recent = RecentAnswers()
        self._age = 0.0  # see `recently`
        self.places = tuple(Place(Store(each.store), each.log) for each in spec.copies_to)

    def recently(self, seconds: float) -> Store:
        """The same store, where that something doesn't exist may be so many seconds old.

        For several callers with paths in one folder, which has no subfolders: they share a list of it.
        """
        view = copy(self)
        view._age = seconds
        return view

    def after_losing(self, lost: Callable[[str], bool], places: Sequence[int] = ()) -> Store:
        """The store as it would be without the `lost` objects, and with only these of its additional places.

        Writes to it stay in memory; neither the store nor a place changes.
        """
        other = Store(replace(self.spec, copies_to=()))
        other._at = Overlay(self._at, lost)
        other.places = tuple(
            Place(self.places[n].store.after_losing(lambda path: False), self.places[n].with_log)
            for n in places
        )
        return other

    def exists(self) -> bool:
        """Whether there is a place to write to. Makes no request: a bucket is taken to be there, a folder may not be."""
        return self.spec.url.startswith("s3://") or Path(self.spec.url).is_dir()

    def get(self, path: str, most: int | None = None) -> bytes | None:
        """The whole object, or None if it doesn't exist.

        An object with more than `most` bytes (default: the limit for its kind) is not read; the result is
        NO_DOCUMENT.
        """
        if self._lacked(path):
            return None
        return self._at.get(_checked(path), _most(path) if most is None else most)

    def tagged(self, path: str) -> tuple[bytes | None, str | None]:
        """The whole object and its tag for `swap`."""
        return (None, None) if self._lacked(path) else self._at.tagged(_checked(path), _most(path))

    def swap(self, path: str, data: bytes, tag: str | None) -> bool:
        """Replaces the object that has this tag, or creates it (None); False: someone else has written it since."""
        return self._at.swap(path, data, tag) if tag is not None else self.create(path, data)

    def create(self, path: str, data: bytes) -> bool:
        """Creates the object if there is none; False: there is one, perhaps from an earlier attempt of ours.

        Raises NoAnswer if the object may or may not have been written.
        """
        return self._at.create(_checked(path), data)

    def put(self, path: str, data: bytes | bytearray | memoryview | Path) -> str | None:
        """Writes or replaces the object (from a file if it's a Path), all or nothing; returns any ETag."""
        return self._at.put(_checked(path), data)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[Object]:
        """The objects whose path begins with the prefix, sorted by path; `data/t/` never shows `data/t_old/`.

        `start_after` skips paths up to and including it, and is only for folders without subfolders: servers
        disagree on how those sort. With it, nothing beyond the prefix is requested.
        """
        parent = prefix[: prefix.rfind("/") + 1]
        if parent:
            _checked(parent[:-1])
        if self._lacked(prefix):
            return
        after = start_after or ""
        found = self._at.list(parent, after, prefix)
        chosen = [item for item in found if item.path.startswith(prefix) and item.path > after]
        yield from sorted(chosen, key=lambda item: item.path)

    def folders(self, prefix: str) -> tuple[str, ...]:
        """The names of the immediate subfolders (of `commits/`, say), sorted; cheap however full they are."""
        return self.folders_of(prefix)[0]

    def folders_of(self, *prefixes: str) -> tuple[tuple[str, ...], ...]:
        """The same for several folders, listed one after the other."""
        for prefix in prefixes:
            _checked(prefix.removesuffix("/"))

        def names() -> tuple[tuple[str, ...], ...]:
            return tuple(tuple(sorted(self._at.folders(prefix))) for prefix in prefixes)

        return self._recent.ask(prefixes, self._age, names)

    def _lacked(self, start: str) -> bool:
        """Whether a recent list says that no object's path begins like this; False if there is none."""
        if self._age <= 0 or start.endswith("/"):
            return False
        folder = _checked(start).rpartition("/")[0] + "/"
        paths = self._recent.ask(folder, self._age, lambda: _paths(self._at, folder))
        if paths is None:
            return False
        at = bisect_left(paths, start)
        return at == len(paths) or not paths[at].startswith(start)

    def end(self, path: str, size: int) -> tuple[int, bytes, str | None] | None:
        """The object's size, its last bytes and its ETag; None if it doesn't exist."""
        return self._at.end(_checked(path), size)

    def delete(self, paths: Iterable[str]) -> None:
        """Deletes the objects; missing ones are no error."""
        if batch := [_checked(path) for path in paths]:
            self._at.delete(batch)

    def each(self, act: Callable[[A], R], items: Sequence[A]) -> tuple[R, ...]:
        """The results of `act` for each item, side by side: in this thread and in others, which end with the call.

        After an error, nothing more is begun.
        """
        with ThreadPoolExecutor(min(_AT_ONCE, max(1, len(items) - 1)), thread_name_prefix="store") as pool:
            others = [pool.submit(act, item) for item in items[1:]]
            try:
                return (*map(act, items[:1]), *(one.result() for one in others))
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def versioned(self, path: str) -> bool:
        """Whether the bucket keeps deleted objects as old versions, judged by one of its objects."""
        return self._at.versioned(_checked(path)) if isinstance(self._at, Bucket) else False

    def uri(self, path: str) -> str:
        """The object's full address, `s3://…` or `file:///…`."""
        return self._at.uri(path)

    def local(self, path: str) -> Path | None:
        """The object's path on disk, if the store is a folder."""
        return self._at.root / _checked(path) if isinstance(self._at, Folder) else None

    def download(self, path: str, to: Path, most: int | None = None) -> None:
        """Copies the object to a file that appears whole or not at all; raises DataError if it doesn't exist.

        If it has more than `most` bytes, the copy stops just past that.
        """
        chunks = self._at.stream(_checked(path))
        if chunks is None:
            raise DataError(
                f"{self.uri(path)} is not in the store", hint="put it back, or read the table again"
            )
        part = to.with_name(f"{to.name}.{uuid4().hex[:8]}.part")
        try:
            with part.open("wb") as file:
                for chunk in chunks:
                    file.write(chunk)
                    if most is not None and file.tell() > most:
                        break
            os.replace(part, to)
        except OSError as error:
            raise folder.translate(error, "write to", str(to.parent)) from None
        finally:
            part.unlink(missing_ok=True)


def _paths(objects: Objects, folder: str) -> list[str] | None:
    """The paths in a folder, sorted; None if they are too many for one list."""
    found = [item.path for item in islice(objects.list(folder, "", folder), _ONE_LIST + 1)]
    return sorted(found) if len(found) <= _ONE_LIST else None


def _most(path: str) -> int:
    """The maximum size in bytes of a document at this path."""
    kind = path.removeprefix(CHANGES)
    return next((most for prefix, most in _MOST_BYTES if kind.startswith(prefix)), MOST_COPY)


def _checked(path: str) -> str:
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts) or parts[0] == PARTS:
        # Such a path can only come from a document that someone else has written.
        raise DataError(f"{path[:200]!r} is not the path of an object below the store's prefix")
    return path
