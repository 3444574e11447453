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
from pathlib import Path
from typing import Any

from floodmark.host.process import child_environment
from floodmark.load.duckdb.file import AlreadyThere, Connection, DatabaseFile, NotThere, Unlike
from floodmark.load.ledger import KEYED, ORDER, Count, LedgerDialect, LedgerSql, Row, ledger_rows, load_sums
from floodmark.load.protocol import COUNTS, FRESHNESS, LEDGER, TARGETS, Freshness, LoadRequest, quote
from floodmark.model.errors import ConflictError, TransientError
from floodmark.model.ledger import SUMMED_DIGITS, Ledger, LedgerRow, LoadSum, Part, TargetFiller
from floodmark.model.times import STAMP

WORDS = LedgerDialect(
    moment=f"strftime({{}}, '{STAMP}')",
    # A malformed digest has no number: the sum then matches nothing, and the rows are read one by one.
    total=f"CAST(sum(TRY_CAST('0x' || substr(\"digest\", {65 - SUMMED_DIGITS}, {SUMMED_DIGITS}) AS BIGINT)) AS VARCHAR)",
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
_HIGHEST = (1 << 63) - 1


@dataclass(frozen=True)
class DuckDBLedger:
    """The ledger, seen through one connection."""

    con: Connection
    schema: str

    @property
    def sql(self) -> LedgerSql:
        return LedgerSql(self.schema, WORDS)

    def create(self, *names: str) -> DuckDBLedger:
        """Create those of the tables that don't exist yet."""
        self.con.execute(f"CREATE SCHEMA IF NOT EXISTS {quote(self.schema)}")
        for name in names or (LEDGER, TARGETS, COUNTS):
            self.con.execute(f"CREATE TABLE IF NOT EXISTS {quote(self.schema, name)} ({KEYED[name]})")
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

    def sums(self) -> list[LoadSum]:
        """The whole ledger, summed up by log and load epoch; empty when there is none."""
        return load_sums(self.con.execute(self.sql.sums()).fetchall()) if self.there(LEDGER) else []

    def _counts(self, targets: Sequence[str]) -> dict[str, Count]:
        """What the last load of each target has recorded."""
        found = self.con.execute(self.sql.counts_of(targets)).fetchall()
        return {row[0]: Count._make(row) for row in found}

    def keep_counts(self, counts: Sequence[Count]) -> None:
        """Record how many rows each target should have until its next load."""
        self.con.execute(self.sql.upsert(COUNTS, [count.row for count in counts]))

    def _rows_of(self, logs: Sequence[str]) -> dict[str, tuple[LedgerRow, ...]]:
        """All rows of each log, with one statement: it costs DuckDB more than the rows of a small table."""
        found: dict[str, list[Row]] = {}
        listed = ", ".join(WORDS.literal(log) for log in logs)
        sql = f'SELECT "log_id", {self.sql.cells} FROM {quote(self.schema, LEDGER)} WHERE "log_id" IN ({listed}) {ORDER}'
        for log, *row in self.con.execute(sql).fetchall():
            found.setdefault(log, []).append(tuple(row))
        return {log: ledger_rows(rows) for log, rows in found.items()}

    def _part(self, log: str, part: Part) -> tuple[LedgerRow, ...]:
        return ledger_rows(self.con.execute(f"{self.sql.rows_of(log, part)} {ORDER}").fetchall())

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
        try:
            for step in self.sql.record(loads):
                self.con.execute(step.sql)
        except AlreadyThere as error:
            raise ConflictError(
                "another load has loaded these commits in the meantime", hint="run again"
            ) from error

    def set_holders(self, holders: Sequence[tuple[str, TargetFiller]]) -> None:
        """Record whose rows each target holds, and in which epoch."""
        if rows := [(target, *vars(one).values()) for target, one in holders]:
            self.con.execute(self.sql.upsert(TARGETS, rows))

    def note_freshness(self, rows: Sequence[Freshness]) -> None:
        """Insert or advance rows of `floodmark_freshness`."""
        if not self.there(FRESHNESS):
            self.create(FRESHNESS)
        self.con.execute(self.sql.upsert(FRESHNESS, [tuple(vars(row).values()) for row in rows], "as_of"))


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
    question = LedgerSql(schema, WORDS).sums()
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
    return load_sums(json.loads(found))


def look(path: Path, schema: str, lock_seconds: float) -> tuple[str, int | None]:
    """DuckDB's version, and how many commits the ledger has; None: there is no ledger yet. The error says who has it locked, or why it can't be opened."""
    with DatabaseFile(path, memory=200_000_000, lock_seconds=lock_seconds).writing() as con:
        # Closing would checkpoint what a crash left in the .wal file: that is the next load's job.
        con.execute("PRAGMA disable_checkpoint_on_shutdown")
        version = con.execute("SELECT version()").fetchone()
        commits = None
        if kind_of(con, schema, LEDGER) is not None:
            found = con.execute(f"SELECT count(*) FROM {quote(schema, LEDGER)}").fetchone()
            commits = int(found[0]) if found else 0
        return str(version[0]) if version else "", commits
