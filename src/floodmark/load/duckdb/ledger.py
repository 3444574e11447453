"""The ledger's tables in a DuckDB file: one row per loaded commit, and three per target (holder, row count, freshness)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from floodmark.load.duckdb.errors import AlreadyThere, NotThere, Unlike
from floodmark.load.duckdb.file import Connection
from floodmark.load.freshness import COLUMNS, FRESHNESS, Freshness
from floodmark.load.protocol import COUNTS, LEDGER, TARGETS, LoadRequest, quote
from floodmark.model.errors import ConflictError
from floodmark.model.ledger import SUMMED_DIGITS, Ledger, LedgerRow, Part, TargetFiller, summed
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
        places = ", ".join([f"({_places(COLUMNS)})"] * len(rows))
        changed = ", ".join(f"{name} = excluded.{name}" for name in COLUMNS if name != "target")
        values = [value for row in rows for value in vars(row).values()]
        self.con.execute(
            f"INSERT INTO {table} ({', '.join(COLUMNS)}) VALUES {places} ON CONFLICT (target) "
            f"DO UPDATE SET {changed} WHERE excluded.as_of >= as_of",
            [
                one.astimezone(UTC).replace(tzinfo=None) if isinstance(one, datetime) else one
                for one in values
            ],
        )


def _moment(at: str | None) -> datetime | None:
    """A time as DuckDB stores it."""
    return parse_moment(at).replace(tzinfo=None) if at else None
