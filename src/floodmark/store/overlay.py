"""A store as it would be after a loss: some of its objects are hidden, and writes stay in memory.

Reads go to the real store, so that they take as long as they would; nothing is ever written to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from floodmark.store.folder import NO_DOCUMENT, Object


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
