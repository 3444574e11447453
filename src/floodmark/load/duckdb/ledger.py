"""The ledger's tables in a DuckDB file: one row per loaded commit, and three per target (holder, row count, freshness).

A load reads and writes them inside its transaction. Someone who only watches takes a glance: without a lock, and for
100 ms at most.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from floodmark.host.children import child_environment
from floodmark.load.duckdb.file import AlreadyThere, Connection, DatabaseFile, NotThere, Unlike
from floodmark.load.protocol import (
    COUNTS,
    FRESHNESS,
    FRESHNESS_COLUMNS,
    LEDGER,
    TARGETS,
    Freshness,
    LoadRequest,
    quote,
)
from floodmark.model.errors import ConflictError, TransientError
from floodmark.model.ledger import SUMMED_DIGITS, Ledger, LedgerRow, LoadSum, Part, TargetFiller, summed
from floodmark.model.times import STAMP, parse_moment

# The primary keys are a second guard: if two loads race for one commit, only one can be committed.
_TABLES = {
    LEDGER: "log_id VARCHAR, epoch BIGINT, n BIGINT, digest VARCHAR, pipeline_id VARCHAR, source_table VARCHAR, "
    "target VARCHAR, run VARCHAR, rows BIGINT, files BIGINT, loaded_at TIMESTAMP, "
    "PRIMARY KEY (log_id, epoch, n, digest)",
    TARGETS: "target VARCHAR PRIMARY KEY, pipeline_id VARCHAR, log_id VARCHAR, source_table VARCHAR, epoch BIGINT",
    # A count is valid only while the ledger is as the load left it: earlier versions of Floodmark keep none.
    COUNTS: "target VARCHAR PRIMARY KEY, log_id VARCHAR, epoch BIGINT, commits BIGINT, loaded_at TIMESTAMP, rows BIGINT",
}
_FRESHNESS_COLUMNS = (
    "target VARCHAR PRIMARY KEY, source_table VARCHAR, as_of TIMESTAMP, checked_at TIMESTAMP, "
    "watermark VARCHAR, commit_n BIGINT, run VARCHAR"
)


def kind_of(con: Connection, schema: str, name: str) -> str | None:
    """BASE TABLE, VIEW, or None when nothing has that name.

    It probes the name itself: DuckDB's lists of tables get slower the more tables there are. It uses a second
    cursor, because an unknown name would abort the transaction, and so does not see what that transaction
    itself has created or dropped.
    """
    with con.cursor() as beside:
        try:
            beside.execute(f"SELECT rowid FROM {quote(schema, name)} LIMIT 0")
            return "BASE TABLE"  # only tables have a rowid
        except NotThere:
            return None
        except Unlike:
            found = beside.execute(
                "SELECT table_type FROM information_schema.tables WHERE table_catalog = current_database() "
                "AND table_schema = ? AND lower(table_name) = lower(?)",
                [schema, name],
            ).fetchone()
            return str(found[0]) if found else None


def _places(values: Sequence[object]) -> str:
    return ", ".join("?" * len(values))


# A log, its target, and which part of its ledger is wanted.
Question = tuple[str, str, Part | None]
AT_ONCE = 100  # rows in one INSERT
_HIGHEST = (1 << 63) - 1


class Count(NamedTuple):
    """How many rows a target has after a load, and how the load left the ledger: a row of COUNTS."""

    target: str
    log: str
    epoch: int
    commits: int
    loaded_at: str | None
    rows: int

    def valid(self, ledger: Ledger, log: str) -> bool:
        """Whether the ledger of a log is still as that load left it."""
        now = (log, ledger.epoch, *ledger.last(self.target, ledger.epoch))
        return self.commits > 0 and now == (self.log, self.epoch, self.commits, self.loaded_at)


@dataclass(frozen=True)
class LedgerTables:
    """The ledger, seen through one connection."""

    con: Connection
    schema: str

    def create(self) -> LedgerTables:
        """Create the tables that don't exist yet."""
        self.con.execute(f"CREATE SCHEMA IF NOT EXISTS {quote(self.schema)}")
        for name, columns in _TABLES.items():
            self.con.execute(f"CREATE TABLE IF NOT EXISTS {quote(self.schema, name)} ({columns})")
        return self

    def there(self, name: str = TARGETS) -> bool:
        """Whether the tables have been created and committed; earlier versions of Floodmark make no COUNTS."""
        return kind_of(self.con, self.schema, name) is not None

    def read_each(self, questions: Sequence[Question]) -> list[Ledger]:
        """What the ledger says about each log and target, with the row counts; its tables must exist."""
        found = self.read_all(questions)
        counts = self._counts([target for _, target, _ in questions])
        return [
            replace(ledger, counted=counts[target].rows)
            if target in counts and counts[target].valid(ledger, log)
            else ledger
            for ledger, (log, target, _) in zip(found, questions, strict=True)
        ]

    def read_all(self, questions: Sequence[Question]) -> list[Ledger]:
        """The same for several logs and targets, without the counts; its tables must exist."""
        logs = [log for log, _, part in questions if part is None]
        rows = self._rows_of(logs) if logs else {}
        about = self._about([log for log, _, _ in questions], [target for _, target, _ in questions])
        found = []
        for log, target, part in questions:
            told = [one for one in about if log == one[2] or target == one[0]]
            mine = rows.get(log, ()) if part is None else self._part(log, part)
            found.append(replace(Ledger.about(told, log, target), rows=tuple(mine), part=part))
        return found

    def in_sums(self, log: str, target: str) -> Ledger:
        """What the ledger says about a log and a target, with the row count but without single rows."""
        epoch = self.about(log, target).epoch
        part = None if epoch is None else Part(epoch, _HIGHEST, proven=False)
        return self.read_each([(log, target, part)])[0]

    def _counts(self, targets: Sequence[str]) -> dict[str, Count]:
        """What the last load of each target has recorded."""
        found = self.con.execute(
            f"SELECT target, log_id, epoch, commits, strftime(loaded_at, '{STAMP}'), rows "
            f"FROM {quote(self.schema, COUNTS)} WHERE target IN ({_places(targets)})",
            list(targets),
        ).fetchall()
        return {row[0]: Count._make(row) for row in found}

    def keep_counts(self, counts: Sequence[Count]) -> None:
        """Record how many rows each target should have until its next load."""
        rows = [(*count[:4], _moment(count.loaded_at), count.rows) for count in counts]
        self._insert(quote(self.schema, COUNTS), rows, "INSERT OR REPLACE INTO")

    def _rows_of(self, logs: Sequence[str]) -> dict[str, list[LedgerRow]]:
        """All rows of each log."""
        found: dict[str, list[LedgerRow]] = {}
        for log, *row in self._rows(f"log_id IN ({_places(logs)})", logs):
            found.setdefault(log, []).append(LedgerRow._make(row))
        return found

    def _part(self, log: str, part: Part) -> tuple[LedgerRow, ...]:
        recent = self._rows("log_id = ? AND epoch = ? AND n > ?", [log, part.epoch, part.after])
        return (*self._sums(log, part), *(LedgerRow._make(row[1:]) for row in recent))

    def _rows(self, where: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        """A row's log, and the row."""
        return self.con.execute(
            f"SELECT log_id, n, digest, epoch, rows, files, strftime(loaded_at, '{STAMP}'), target, 1, false, '' "
            f"FROM {quote(self.schema, LEDGER)} WHERE {where} ORDER BY epoch, n, digest",
            list(values),
        ).fetchall()

    def _sums(self, log: str, part: Part) -> tuple[LedgerRow, ...]:
        """Sums of the rows that are not read one by one."""
        # A malformed digest has no number: the sum then matches nothing, and the rows are read one by one.
        end = f"TRY_CAST('0x' || substr(digest, {65 - SUMMED_DIGITS}, {SUMMED_DIGITS}) AS BIGINT)"
        kept = " AND ".join(["files > 0", *(f"n NOT BETWEEN {a} AND {b}" for a, b in part.cleaned)])
        found = self.con.execute(
            f"SELECT max(n), {f'sum({end})' if part.proven else 'NULL'}, CASE WHEN epoch = $epoch THEN epoch ELSE -1 END, "
            f"sum(rows), sum(files), strftime(max(loaded_at), '{STAMP}'), target, count(*), "
            f"strftime(min(loaded_at) FILTER ({kept}), '{STAMP}') FROM {quote(self.schema, LEDGER)} "
            "WHERE log_id = $log AND (epoch <> $epoch OR n <= $after) GROUP BY 3, n > $superseded, target",
            {"log": log, "epoch": part.epoch, "after": part.after, "superseded": part.superseded},
        ).fetchall()
        return tuple(summed(*row) for row in found)

    def about(self, log: str, target: str) -> Ledger:
        """The load epoch of a log, and who fills a target."""
        return Ledger.about(self._about([log], [target]), log, target)

    def _about(self, logs: Sequence[str], targets: Sequence[str]) -> list[tuple[Any, ...]]:
        """The rows of TARGETS that concern any of them."""
        return self.con.execute(
            f"SELECT target, pipeline_id, log_id, source_table, epoch FROM {quote(self.schema, TARGETS)} "
            f"WHERE target IN ({_places(targets)}) OR log_id IN ({_places(logs)})",
            [*targets, *logs],
        ).fetchall()

    def record(self, loads: Sequence[tuple[LoadRequest, Sequence[LedgerRow]]]) -> None:
        """Write the ledger rows of some loads, and delete those that they take back."""
        ledger = quote(self.schema, LEDGER)
        for request, _ in loads:
            for n, digest in sorted(request.retake):
                self.con.execute(
                    f"DELETE FROM {ledger} WHERE log_id = ? AND epoch = ? AND n = ? AND digest = ?",
                    [request.log, request.epoch, n, digest],
                )
        rows = [
            (one.log, row.epoch, row.n, row.digest, one.pipeline, one.table.name, one.target, one.run, row.rows,
             row.files, _moment(row.loaded_at))
            for one, loaded in loads for row in loaded
        ]  # fmt: skip
        try:
            for first in range(0, len(rows), AT_ONCE):
                self._insert(ledger, rows[first : first + AT_ONCE])
        except AlreadyThere as error:
            raise ConflictError(
                "another load has loaded these commits in the meantime", hint="run again"
            ) from error

    def set_holders(self, holders: Sequence[tuple[str, TargetFiller]]) -> None:
        """Record whose rows each target holds, and in which epoch."""
        rows = [(target, one.pipeline, one.log, one.table, one.epoch) for target, one in holders]
        if rows:
            self._insert(quote(self.schema, TARGETS), rows, "INSERT OR REPLACE INTO")

    def _insert(self, table: str, rows: Sequence[Sequence[object]], how: str = "INSERT INTO") -> None:
        """Insert rows with one statement: a statement costs DuckDB more than a row."""
        values = ", ".join([f"({_places(rows[0])})"] * len(rows))
        self.con.execute(f"{how} {table} VALUES {values}", [value for row in rows for value in row])

    def note_freshness(self, rows: Sequence[Freshness]) -> None:
        """Insert or advance rows of `floodmark_freshness`."""
        table = quote(self.schema, FRESHNESS)
        if not self.there(FRESHNESS):
            self.con.execute(f"CREATE SCHEMA IF NOT EXISTS {quote(self.schema)}")
            self.con.execute(f"CREATE TABLE IF NOT EXISTS {table} ({_FRESHNESS_COLUMNS})")
        places = ", ".join([f"({_places(FRESHNESS_COLUMNS)})"] * len(rows))
        changed = ", ".join(f"{name} = excluded.{name}" for name in FRESHNESS_COLUMNS if name != "target")
        values = [value for row in rows for value in vars(row).values()]
        self.con.execute(
            f"INSERT INTO {table} ({', '.join(FRESHNESS_COLUMNS)}) VALUES {places} ON CONFLICT (target) "
            f"DO UPDATE SET {changed} WHERE excluded.as_of >= as_of",
            [
                one.astimezone(UTC).replace(tzinfo=None) if isinstance(one, datetime) else one
                for one in values
            ],
        )


def _moment(at: str | None) -> datetime | None:
    """A time as DuckDB stores it."""
    return parse_moment(at).replace(tzinfo=None) if at else None


OPEN_SECONDS = 0.1
# For starting Python and importing DuckDB, before the file is touched.
START_SECONDS = 30.0

# Run with only the standard library, DuckDB and fsspec. The timer starts just before the file is opened.
_CHILD = """
import contextlib, json, os, signal, sys, tempfile, time
import duckdb
from fsspec.implementations.local import LocalFileSystem
class Unlocked(LocalFileSystem):
    protocol = "unlocked"
    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(str(path).removeprefix("unlocked://"))
path, question, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
settings = {"threads": 1, "autoinstall_known_extensions": False, "autoload_known_extensions": False}
con = duckdb.connect(":memory:", config=settings)
con.register_filesystem(Unlocked())
def look(file):
    con.execute("ATTACH 'unlocked://" + file.replace("'", "''") + "' AS warehouse (READ_ONLY)")
    con.execute("USE warehouse")
    found = con.execute(question).fetchall()
    con.execute("USE memory")
    con.execute("DETACH warehouse")
    return found
# The same with a file of our own first: the second time takes half as long.
with contextlib.suppress(duckdb.Error, OSError), tempfile.TemporaryDirectory() as folder:
    con.execute("ATTACH '" + folder.replace("'", "''") + "/first.duckdb' AS first")
    con.execute(
        "CREATE TABLE first.floodmark_ledger AS SELECT '' AS log_id, 0 AS epoch, 1 AS rows, 1 AS files, now()::TIMESTAMP AS loaded_at"
    )
    con.execute("DETACH first")
    look(folder + "/first.duckdb")
con.execute("USE memory")
con.execute("DETACH DATABASE IF EXISTS warehouse")
def written():
    found = []
    for one in (path, path + ".wal"):
        try:
            known = os.stat(one)
            found.append((known.st_ino, known.st_size, known.st_mtime_ns))
        except FileNotFoundError:
            found.append(None)
    return found
def fresh():  # within a tick of the clock, a further write would not show in the file's time
    return any(one and 0 <= time.time_ns() - one[2] < 1_000_000_000 for one in written())
for _ in range(20):
    if not fresh():
        break
    time.sleep(0.1)
signal.signal(signal.SIGALRM, signal.SIG_DFL)
print("ready", flush=True)
if not sys.stdin.readline():
    sys.exit(0)
signal.setitimer(signal.ITIMER_REAL, seconds)
before = written()
if fresh():
    sys.exit(5)
try:
    found = look(path)
except duckdb.CatalogException:
    found = []
except duckdb.Error:
    sys.exit(4 if written() == before else 5)
signal.setitimer(signal.ITIMER_REAL, 0)
if written() != before:
    sys.exit(5)
print(json.dumps(found))
"""


def ledger_sums(path: Path, schema: str, free: Callable[[], bool] = lambda: True) -> list[LoadSum]:
    """The ledger's sums; empty when the file has none. TransientError if it can't be read now: it never waits.

    `free` is called when all is ready, and only if it says so is the file opened.
    """
    if not path.exists():  # perhaps on another machine, where the syncs run
        raise TransientError(f"there is no file {path} here")
    seconds = OPEN_SECONDS
    question = (
        "SELECT log_id, epoch, count(*), sum(rows)::BIGINT, sum(files)::BIGINT, "
        f"strftime(max(loaded_at), '%Y-%m-%dT%H:%M:%S.%fZ') FROM {quote(schema, LEDGER)} GROUP BY 1, 2"
    )
    command = [sys.executable, "-c", _CHILD, str(path), question, str(seconds)]
    pipe, none = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(
        command, text=True, stdin=pipe, stdout=pipe, stderr=none, env=child_environment()
    ) as child:
        watchdog = threading.Timer(START_SECONDS, child.kill)
        watchdog.start()
        try:
            assert child.stdout is not None
            started = child.stdout.readline() == "ready\n"
            if started and not free():
                raise TransientError("a run is active and may need the file")
            found, _ = child.communicate("go\n" if started else None)
        finally:
            watchdog.cancel()
            child.kill()
    if not started:
        raise TransientError(f"{path} could not be inspected: DuckDB or fsspec did not start")
    if child.returncode:
        said = {-signal.SIGALRM: f"could not be read within {seconds * 1000:.0f} ms", 5: "is being written"}
        why = said.get(child.returncode, "can't be read, or is not a DuckDB file")
        raise TransientError(f"{path} {why}")
    return [LoadSum(*row) for row in json.loads(found)]


@dataclass(frozen=True)
class FileFacts:
    """An existing database file."""

    version: str  # of the library
    commits: int | None  # in the ledger; None: there is no ledger yet


def look(path: Path, schema: str, lock_seconds: float) -> FileFacts:
    """Open the file as a load would; the error says who has it locked, or why it can't be opened."""
    with DatabaseFile(path, memory=200_000_000, lock_seconds=lock_seconds).writing() as con:
        # Closing would checkpoint what a crash left in the .wal file: that is the next load's job.
        con.execute("PRAGMA disable_checkpoint_on_shutdown")
        version = con.execute("SELECT version()").fetchone()
        commits = None
        if kind_of(con, schema, LEDGER) is not None:
            found = con.execute(f"SELECT count(*) FROM {quote(schema, LEDGER)}").fetchone()
            commits = int(found[0]) if found else 0
        return FileFacts(str(version[0]) if version else "", commits)
