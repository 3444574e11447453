"""A DuckDB file and how it is opened: only for as long as it is needed, and whole or not at all when it is new."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb

from floodmark.errors import ConfigError
from floodmark.warehouse.duckdb_errors import is_lock, translated

Connection = duckdb.DuckDBPyConnection

# DuckDB takes this many rows at a time, however wide they are, and holds most of them twice.
VECTOR = 2048


class DatabaseFile:
    """Connections to one file. Several threads may share it; they take turns."""

    def __init__(self, path: Path, *, memory: int, lock_seconds: float) -> None:
        self.path = path
        self._turn = threading.RLock()
        self._memory = memory
        self._lock_seconds = lock_seconds

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection | None]:
        """A read-only connection, None when there is no file yet."""
        with self._turn:
            if not self.path.exists():
                self._check_folder()
                yield None
                return
            with self._connected(read_only=True) as con:
                yield con

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """A connection that may write; what is not committed at its end is rolled back."""
        with self._turn:
            if not self.path.exists():
                self._create()
            with self._connected(read_only=False) as con:
                yield con

    @contextlib.contextmanager
    def _connected(self, read_only: bool) -> Iterator[Connection]:
        try:
            con = self._connect(read_only)
            try:
                yield con
            finally:
                con.close()
        except duckdb.Error as error:
            raise translated(error, self.path) from error

    def _connect(self, read_only: bool) -> Connection:
        """Open the file; somebody else's lock is waited for, for a few seconds."""
        give_up = time.monotonic() + self._lock_seconds
        while True:
            try:
                return duckdb.connect(self.path, read_only=read_only, config=self._settings())
            except duckdb.Error as error:
                if not is_lock(error) or time.monotonic() > give_up:
                    raise
            time.sleep(0.1)

    def make_room(self, con: Connection, width: int) -> None:
        """Raise the memory limit for rows so wide that as many as DuckDB takes at a time would not fit into it."""
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        needed = min(2 * VECTOR * width, machine * 8 // 10)
        if needed > self._memory:
            con.execute(f"SET memory_limit = '{needed}B'")

    def _settings(self) -> dict[str, Any]:
        return {
            "memory_limit": f"{self._memory}B",
            "temp_directory": f"{self.path}.tmp",
            "preserve_insertion_order": False,
            # Nothing is ever fetched from the internet, and no Python variable is taken for a table.
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "python_enable_replacements": False,
        }

    def _create(self) -> None:
        """An empty database, whole or not at all: a crash must not leave half a file behind."""
        self._check_folder()
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}-{time.monotonic_ns():x}")
        try:
            duckdb.connect(draft).close()
            with contextlib.suppress(FileExistsError):  # another process was faster
                self._place(draft)
        except duckdb.Error as error:
            raise translated(error, self.path) from error
        except OSError as error:
            raise ConfigError(f"the warehouse {self.path} can't be created: {error.strerror}") from error
        finally:
            draft.unlink(missing_ok=True)

    def _place(self, draft: Path) -> None:
        try:
            os.link(draft, self.path)
        except FileExistsError:
            raise
        except OSError:  # a file system without links
            if not self.path.exists():
                os.rename(draft, self.path)

    def _check_folder(self) -> None:
        if not self.path.parent.is_dir():
            raise ConfigError(
                f"the folder of the warehouse {self.path} does not exist",
                hint="create it, or change warehouse.url",
            )
