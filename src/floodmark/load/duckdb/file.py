"""A DuckDB file and how it is opened: only while it is needed; a new one appears whole or not at all.

Opening a file takes DuckDB 60 ms, so concurrent threads share one open database, and it stays open briefly
between uses if its owner says so. Another process that waits for the file gets it after two seconds plus the
running query, however busy the machine is: opening requires passing a turnstile, in which the waiting process
already stands.

DuckDB's exceptions become ours by what the operator does next. Locks, conflicts, memory, disk and I/O: TransientError.
A missing or read-only folder, missing permissions: ConfigError. A file that is damaged or not a database, values that
don't fit: DataError. SIGINT inside a statement: Interrupted. Anything else, such as SQL that does not parse, is a bug:
FloodmarkError.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from logging import DEBUG
from pathlib import Path
from typing import Any, cast

import duckdb

from floodmark.host.temp import cache_folder
from floodmark.model.errors import ConfigError, DataError, FloodmarkError, Interrupted, TransientError
from floodmark.model.run import Wait
from floodmark.model.statements import STATEMENTS, statement

# A row violates a primary key or another constraint of the table.
AlreadyThere = duckdb.ConstraintException
# An unknown name; a known one, but without that column.
NotThere = duckdb.CatalogException
Unlike = duckdb.BinderException

_TRY_AGAIN = (duckdb.TransactionException, duckdb.ConnectionException, duckdb.ResourceInUseException)
_DAMAGED = ("not a valid duckdb database file", "version number", "corrupt", "checksum", "deserializ")
_PATH = ("no such file or", "is a directory", "not a directory", "permission denied", "read-only file")
_VALUES = (
    duckdb.ConversionException, duckdb.ConstraintException, duckdb.OutOfRangeException, duckdb.DependencyException,
    duckdb.InvalidInputException, duckdb.TypeMismatchException, duckdb.SerializationException, duckdb.DataError,
    duckdb.IntegrityError,
)  # fmt: skip


# How DuckDB begins what it says through Arrow, which knows only OSError; anything else counts as I/O.
_SAID = {
    "Conversion Error": duckdb.ConversionException, "Fatal Error": duckdb.FatalException,
    "FATAL Error": duckdb.FatalException, "INTERRUPT Error": duckdb.InterruptException,
    "Invalid Input Error": duckdb.InvalidInputException, "Out of Memory Error": duckdb.OutOfMemoryException,
    "Out of Range Error": duckdb.OutOfRangeException, "Serialization Error": duckdb.SerializationException,
}  # fmt: skip


def said_through_arrow(error: Exception) -> duckdb.Error:
    """DuckDB's own error, from the one that Arrow raises when a running query fails."""
    text = str(error)
    return _SAID.get(text.partition(":")[0], duckdb.IOException)(text)


def is_lock(error: duckdb.Error) -> bool:
    """Whether the file is merely locked by someone else for now."""
    # A connection in this process with other settings causes a ConnectionException instead.
    return "could not set lock" in str(error).lower() or isinstance(error, duckdb.ConnectionException)


def lock_holder(error: duckdb.Error) -> str:
    """Who holds the lock, as in `process 4711 (/usr/bin/python3)`."""
    by = re.search(r"held in (\S+) \(PID (\d+)\)", str(error))
    return f"process {by[2]} ({by[1]})" if by else "another connection"


def translated(error: duckdb.Error, path: Path) -> FloodmarkError:
    """The error that an operator sees."""
    said = str(error).split("\n")[0]
    text = said.lower()
    if is_lock(error):
        return TransientError(
            f"the warehouse {path} is locked by {lock_holder(error)}", hint="close it there, then run again"
        )
    if "no space left" in text or "disk quota" in text:
        return TransientError(
            f"no space left for the warehouse {path}", hint="free some space, then run again: nothing is lost"
        )
    if isinstance(error, duckdb.OutOfMemoryException):
        return TransientError(
            f"the warehouse {path} ran out of memory: {said}",
            hint="free some memory or disk space, then run again",
        )
    if "wal does not match" in text or "replaying wal" in text:
        return DataError(
            f"the warehouse {path} and its log {path.name}.wal don't match: {said}",
            hint="restore both from one backup; or, if the other file was replaced, move the .wal file away: what is "
            "missing then loads again from the store",
        )
    if isinstance(error, duckdb.IOException) and ".parquet" in text:
        return DataError(
            f"a data file can't be read: {said}", hint="run again; floodmark watermark validate says more"
        )
    if any(word in text for word in _DAMAGED):
        return DataError(
            f"the warehouse {path} can't be read as a DuckDB database: {said}",
            hint="restore it from a backup or move it away; what is missing then loads again from the store",
        )
    if isinstance(error, duckdb.PermissionException) or any(word in text for word in _PATH):
        return ConfigError(
            f"the warehouse {path} can't be opened: {said}",
            hint="check warehouse.url and its folder's permissions",
        )
    if isinstance(error, duckdb.InterruptException):
        return Interrupted("interrupted while loading; the load was rolled back")
    if isinstance(error, (*_TRY_AGAIN, duckdb.IOException, duckdb.FatalException)):
        return TransientError(f"the warehouse {path} failed: {said}", hint="run again: nothing is lost")
    if isinstance(error, _VALUES):
        return DataError(f"the warehouse refused the rows: {said}")
    return FloodmarkError(f"unexpected error from DuckDB: {said}")


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


Connection = duckdb.DuckDBPyConnection

# DuckDB processes this many rows at a time, however wide they are, and holds most of them twice.
VECTOR = 2048
ROW_GROUP = 122_880
# A thread that inserts leaves its last row group partly filled; at a checkpoint DuckDB merges such groups,
# which costs as much as writing them. With this many rows per thread, there are too few to be merged.
THREAD_ROWS = 4 * ROW_GROUP
# Bytes of a row, and of a load, from which COMMIT writes to the file at once: the log would need two more copies.
WIDE = 16_384
BULKY = 16_000_000
# The targets whose rows are so wide that a vector of them hardly fits into memory; there only if there are any.
APART = "floodmark_wide"
# A file in constant use is released after this long if a process stands in the turnstile, and in any case after
# this long, for those who can't be seen waiting: DuckDB's own shell, or another user.
HOLD = 2.0
HOLD_AT_MOST = 4.0
# Never fetch anything from the internet, and never take a Python variable for a table.
ONLY_HERE: dict[str, Any] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "python_enable_replacements": False,
}
# A statement on fewer rows ends too soon to need progress.
MANY_ROWS = 500_000
# Seconds between checks of a statement's progress.
LOOK_EVERY = 0.5


@contextlib.contextmanager
def counting(con: Connection, rows: int, at_work: Callable[[int], None]) -> Iterator[None]:
    """While a statement reads this many rows, reports how many it has read, according to DuckDB."""
    at_work(0)
    if rows < MANY_ROWS:
        yield
        return
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_EVERY):
            with contextlib.suppress(Exception):  # an observer's error; the load continues
                at_work(min(rows, int(rows * max(0.0, con.query_progress()) / 100)))

    con.execute("SET enable_progress_bar = true; SET enable_progress_bar_print = false")
    looking = threading.Thread(target=look, name="how far", daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()
    con.execute("SET enable_progress_bar = false")


def _quiet(con: Connection) -> Connection:
    """The connection without a progress bar, which notebooks turn on: stdout is not DuckDB's."""
    con.execute("SET enable_progress_bar = false")
    return con


class _Timed:
    """A connection whose statements are logged with their times (`--debug`)."""

    def __init__(self, con: Connection) -> None:
        self._con = con

    def execute(self, sql: str, *parameters: Any) -> Connection:
        with statement("duckdb", sql):
            return self._con.execute(sql, *parameters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._con, name)


@dataclass(frozen=True)
class Volume:
    """How much a load has: its rows, their bytes in memory, and bytes per row where they are widest."""

    rows: int
    bytes: int
    widest: int

    @property
    def average(self) -> int:
        return self.bytes // max(1, self.rows)

    @property
    def wide(self) -> bool:
        """Whether its rows are wide and it has many: a few long ones do no harm, wherever they end up."""
        return self.bytes >= BULKY and self.average >= WIDE


class DatabaseFile:
    """Connections to one file. Threads may share it; only one of them writes at a time."""

    def __init__(
        self,
        path: Path,
        *,
        memory: int,
        lock_seconds: float,
        linger: float = 0.0,
        waits: Callable[[Wait | None], None] = lambda on: None,
    ) -> None:
        """`linger`: seconds that the file stays open for the next use; `close` must then be called.

        `waits` is called when a wait for someone else's lock begins, and with None when it ends.
        """
        self.path = path
        self._waits = waits
        self._memory = memory
        self._lock_seconds = lock_seconds
        self._linger = linger
        self._writers = threading.RLock()
        self._change = threading.Condition(threading.RLock())
        self._anchor: Connection | None = None  # keeps the database open between connections
        self._writable = False
        self._failed = False  # after a failure, the open database is not reused
        self._users: list[int] = []  # thread ids
        self._limit = memory
        self._opened = self._used = 0.0
        self._inode: tuple[int, int] | None = None
        self._timer: threading.Timer | None = None

    @contextlib.contextmanager
    def reading(self, *, about_to_write: bool = False) -> Iterator[Connection | None]:
        """A connection for reading, beside one that may be writing; None when there is no file yet.

        `about_to_write` opens the file for writing already: reopening it would take longer than fetching the files of a
        small load.
        """
        if not self.path.exists():
            self._check_folder()
            yield None
            return
        with self._connected(read_only=not about_to_write) as con:
            yield con

    @contextlib.contextmanager
    def writing(self) -> Iterator[Connection]:
        """A connection that may write; anything not committed at its end is rolled back."""
        with self._writers:
            if not self.path.exists():
                self._create()
            with self._connected(read_only=False) as con:
                yield con

    def close(self) -> None:
        """Release the file once nobody uses it; safe to call twice."""
        with self._change:
            self._linger = 0.0
            if not self._users:
                self._close()
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    @contextlib.contextmanager
    def _connected(self, read_only: bool) -> Iterator[Connection]:
        thread = threading.get_ident()
        try:
            con = self._enter(read_only, thread)
            try:
                yield con
            except BaseException:
                self._failed = True
                raise
            finally:
                try:
                    con.close()
                finally:
                    self._leave(thread)
        except duckdb.Error as error:
            raise translated(error, self.path) from error

    def _enter(self, read_only: bool, thread: int) -> Connection:
        with self._change:
            while self._users and (not self._fit(read_only) or self._gives_way(thread)):
                self._change.wait(TRY_EVERY)
            if self._anchor is not None and not self._fit(read_only):
                self._close()
            if opens := self._anchor is None:
                give_up = time.monotonic() + self._lock_seconds
                with turnstile(self.path, give_up):
                    self._anchor = self._connect(read_only, give_up)
                self._writable, self._failed, self._limit = not read_only, False, self._memory
                self._opened, self._inode = time.monotonic(), self._identity()
            try:
                if opens and self._writable:
                    self._keep_apart(self._anchor)
                con = _quiet(self._anchor.cursor())  # a connection of its own, at a fraction of the cost
            except BaseException:
                if not self._users:
                    self._close()
                raise
            self._users.append(thread)
            return cast(Connection, _Timed(con)) if STATEMENTS.isEnabledFor(DEBUG) else con

    def _fit(self, read_only: bool) -> bool:
        """Whether the open database will do: DuckDB opens a file either read-only or for writing."""
        right = self._writable or read_only
        return right and not self._failed and self._inode == self._identity()

    def _identity(self) -> tuple[int, int] | None:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def _gives_way(self, thread: int) -> bool:
        """Whether a new use lets the running ones end first, as another process has waited long enough."""
        late = time.monotonic() - self._opened > HOLD
        return late and thread not in self._users and awaited(self.path)

    def _leave(self, thread: int) -> None:
        with self._change:
            self._users.remove(thread)
            self._used = time.monotonic()
            if not self._users:
                if self._failed or self._linger <= 0 or self._held_enough(self._used - self._opened):
                    self._close()
                elif self._timer is None:
                    self._rest_after(self._linger)
            self._change.notify_all()

    def _held_enough(self, seconds: float) -> bool:
        """Whether others get the file now: reopening it costs 50 ms of CPU, so not without need."""
        return seconds > HOLD_AT_MOST or (seconds > HOLD and awaited(self.path))

    def _rest_after(self, seconds: float) -> None:
        # Not a daemon: native code must not still be running when the interpreter exits.
        self._timer = threading.Timer(seconds, self._rest)
        self._timer.start()

    def _rest(self) -> None:
        """Close a file that nobody has used for a while."""
        with self._change:
            self._timer = None
            if self._users or self._anchor is None:
                return
            left = self._used + self._linger - time.monotonic()
            if left > 0:
                self._rest_after(left)
            else:
                with contextlib.suppress(duckdb.Error):  # committed data is safe in the WAL beside the file
                    self._close()

    def _close(self) -> None:
        anchor, self._anchor = self._anchor, None
        if anchor is not None:
            anchor.close()

    def _connect(self, read_only: bool, give_up: float) -> Connection:
        """Open the file; wait a few seconds if someone else has it locked."""
        waited = False
        try:
            while True:
                try:
                    return _quiet(duckdb.connect(self.path, read_only=read_only, config=self._settings()))
                except duckdb.Error as error:
                    if not is_lock(error) or time.monotonic() > give_up:
                        raise
                    waited = True
                    self._waits(Wait("lock", lock_holder(error)))
                time.sleep(TRY_EVERY)
        finally:
            if waited:
                self._waits(None)

    @contextlib.contextmanager
    def threads_for(self, con: Connection, rows: int) -> Iterator[None]:
        """Use only as many threads as pay off for an INSERT of this many rows.

        A failure needs no reset: the file is reopened anyway.
        """
        if rows < ROW_GROUP:  # nothing is written before COMMIT, however many threads read
            yield
            return
        row = con.execute("SELECT current_setting('threads')").fetchone()
        con.execute(f"SET threads = {max(1, min(int(row[0]) if row else 1, rows // THREAD_ROWS))}")
        yield
        con.execute("RESET threads")

    @contextlib.contextmanager
    def room_for(self, con: Connection, loads: Sequence[Volume]) -> Iterator[None]:
        """Settings for a transaction of these loads.

        COMMIT holds a vector of their rows twice. So the memory limit is raised if that would not fit into it, and wide
        rows don't go through the log, which would hold the vector twice more. A failure needs no reset.
        """
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        vectors = max(2 * min(VECTOR, load.rows) * load.widest for load in loads)
        needed = max(self._memory, min(vectors, machine * 8 // 10))
        if needed != self._limit:
            con.execute(f"SET memory_limit = '{needed}B'")
            self._limit = needed
        if not any(load.wide for load in loads):
            yield
            return
        con.execute("SET threads = 1")
        con.execute("SET checkpoint_threshold = '1B'; SET auto_checkpoint_skip_wal_threshold = 0")
        yield
        con.execute("RESET auto_checkpoint_skip_wal_threshold; RESET checkpoint_threshold; RESET threads")

    def set_apart(self, con: Connection, target: str, load: Volume) -> None:
        """Keep row groups as they are loaded, from now on, if a vector of the load's rows is too large.

        A checkpoint merges small row groups of any table, whoever has written them, and needs memory for whole
        vectors. DuckDB can't be told to leave out a table, so no row groups of the file are merged any more.
        """
        if not load.wide or 2 * VECTOR * load.average <= self._memory:
            return
        con.execute(f"CREATE TABLE IF NOT EXISTS main.{APART} (target VARCHAR PRIMARY KEY, row_bytes BIGINT)")
        con.execute(f"INSERT OR REPLACE INTO main.{APART} VALUES ($1, $2)", [target, load.average])
        con.execute("SET max_vacuum_tasks = 0")

    def _keep_apart(self, con: Connection) -> None:
        """The same for a file that was just opened, as long as it has such a target."""
        names = "SELECT schema_name || '.' || table_name FROM duckdb_tables() WHERE NOT internal"
        with contextlib.suppress(duckdb.CatalogException):  # no such table
            if con.execute(f"SELECT 1 FROM main.{APART} WHERE target IN ({names}) LIMIT 1").fetchone():
                con.execute("SET max_vacuum_tasks = 0")

    def _settings(self) -> dict[str, Any]:
        return {
            "memory_limit": f"{self._memory}B",
            "temp_directory": f"{self.path}.tmp",
            "preserve_insertion_order": False,
            # Rows stay uncompressed until this many row groups are full: more costs memory and page faults.
            "write_buffer_row_group_count": 2,
            **ONLY_HERE,
        }

    def _create(self) -> None:
        """Create an empty database, whole or not at all: a crash must not leave half a file behind."""
        self._check_folder()
        draft = self.path.with_name(f".{self.path.name}.{os.getpid()}-{time.monotonic_ns():x}")
        try:
            duckdb.connect(draft).close()
            draft.chmod(0o600)  # before it holds a row, whatever the umask
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
        except OSError:  # another process came first, or the file system has no hard links
            if not os.path.lexists(self.path):
                os.rename(draft, self.path)

    def _check_folder(self) -> None:
        if not self.path.parent.is_dir():
            raise ConfigError(
                f"the folder of the warehouse {self.path} does not exist",
                hint="create it, or change warehouse.url",
            )
