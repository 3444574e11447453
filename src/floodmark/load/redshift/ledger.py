"""The ledger's tables in Redshift: how they are created, read before a load, and written at its end; and freshness.

Redshift enforces no keys. What makes a commit load exactly once is the target's own lock table. It is locked
before the transaction sees anything, and holds the version of what the ledger says about the target, which
every writer changes. If the version is still the one that was read, the decision still holds; the transaction
need not read tables that loads of other targets write to. Those are only appended to, at the very end
(docs/decisions/0015).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import uuid4

from floodmark.load.ledger import (
    COLUMNS,
    FRESHNESS_TYPES,
    ORDER,
    OWN,
    LedgerSql,
    ledger_in,
    load_sums,
    row_cells,
)
from floodmark.load.protocol import (
    FRESHNESS,
    FRESHNESS_COLUMNS,
    LEDGER,
    TARGETS,
    Freshness,
    quote,
)
from floodmark.load.redshift.catalog import (
    WORDS,
    Relation,
    create_tables,
    folded,
    literal,
    make,
    path,
    relations,
)
from floodmark.load.redshift.steps import (
    Do,
    Expect,
    Limits,
    Lock,
    RedshiftSession,
    Row,
    StatementFailed,
    Step,
)
from floodmark.model.errors import ConflictError
from floodmark.model.ledger import Ledger, LoadSum, Part
from floodmark.model.names import OUR_TABLES

LOCKS = f"{OUR_TABLES}lock_"  # + target
# A load reads the rows of one log and epoch; a copy on every node saves network traffic.
_LAYOUT = {LEDGER: ' DISTSTYLE ALL SORTKEY ("log_id", "epoch", "n")', TARGETS: " DISTSTYLE ALL"}
_TOKEN = '"token" VARCHAR(64)'
ROWS = '"rows"'  # a target's, where they are counted
UNWRITTEN = "0/"  # the version of a target that nobody has written to

_VERSION, _COUNT = OWN, OWN + 1  # rows of an answer: the version, the target's row count


@dataclass(frozen=True)
class Seen:
    """What a decision is made from, all read at one moment."""

    ledger: Ledger = field(default_factory=Ledger)
    version: str = UNWRITTEN
    rows: int | None = None  # the target has at least this many; None: there is no target


@dataclass(frozen=True)
class RedshiftLedger:
    """The ledger in one schema."""

    schema: str

    @property
    def sql(self) -> LedgerSql:
        return LedgerSql(self.schema.lower(), WORDS)

    def lock_table(self, target: str) -> str:
        """The name of the table that a load of this target locks."""
        return folded(target, LOCKS)

    def lock_path(self, target: str) -> str:
        """The same, quoted and with its schema."""
        return path(self.schema, self.lock_table(target))

    def needed(self, target: str) -> tuple[str, ...]:
        """The tables that a load of a target needs."""
        return (LEDGER, TARGETS, self.lock_table(target))

    def versioned(
        self, session: RedshiftSession, target: str, found: Mapping[str, Relation], seconds: float
    ) -> None:
        """Add the version column to a lock table of an earlier release.

        This waits for the lock's holder, so what is read afterwards includes what a load of that release
        wrote.
        """
        lock = self.lock_table(target)
        if lock in found and not found[lock].has("token"):
            make(session, f"ALTER TABLE {path(self.schema, lock)} ADD COLUMN {_TOKEN}", seconds)

    def create(self, session: RedshiftSession, target: str, found: Collection[str], seconds: float) -> None:
        """Create the tables that were not found, each in a statement by itself."""
        wanted = {**COLUMNS, self.lock_table(target): _TOKEN}
        laid_out = {name: f"({columns}){_LAYOUT.get(name, '')}" for name, columns in wanted.items()}
        create_tables(session, self.schema, laid_out, found, seconds)

    def read(self, session: RedshiftSession, log: str, target: str, part: Part | None = None) -> Ledger:
        """What the ledger says about a log and a target; empty when there is none. Waits for no load."""
        found = relations(session, self.schema, (LEDGER, TARGETS))
        return self.seen(session, log, target, found, part).ledger

    def sums(self, session: RedshiftSession) -> list[LoadSum]:
        """The whole ledger, summed up by log and load epoch; empty when there is none. Waits for no load."""
        if not relations(session, self.schema, (LEDGER,)):
            return []
        return load_sums(session.query(self.sql.sums()))

    def seen(
        self,
        session: RedshiftSession,
        log: str,
        target: str,
        found: Collection[str],
        part: Part | None = None,
        *,
        rows: bool = True,
        name: str = "",
        seconds: float | None = None,
    ) -> Seen:
        """What a load or a reset is decided from: the ledger and its version. Waits for a load of the target.

        `found`: the tables that exist; `rows`: whether to read the ledger's rows; `name`: the target's, to
        see whether it has rows; `seconds`: how long to wait.
        """
        parts = []
        lock = self.lock_table(target)
        if LEDGER in found and TARGETS in found:
            parts += [self.sql.rows_of(log, part)] if rows else []
            parts.append(self.sql.holders_of(log, target))
        if lock in found:
            version = row_cells(_VERSION, digest="""coalesce(max("token"), '')""", rows="count(*)")
            parts.append(f"SELECT {version} FROM {path(self.schema, lock)}")
        if name in found:
            first = f"(SELECT 1 FROM {path(self.schema, name)} LIMIT 1) AS first_row"
            parts.append(f"SELECT {row_cells(_COUNT, rows='count(*)')} FROM {first}")
        if not parts:
            return Seen()
        answer = session.query(f"{' UNION ALL '.join(parts)} {ORDER}", waits=seconds)
        return _seen(answer, log, target, part)

    # inside a transaction

    def unchanged(self, target: str, version: str) -> Step:
        """Check that nobody has written since the decision, so that it still holds for the target."""
        return Expect(
            f"""SELECT CAST(count(*) AS VARCHAR) || '/' || coalesce(max("token"), '') FROM {self.lock_path(target)}""",
            version,
            meanwhile,
            again=True,
        )

    def renewed(self, target: str, version: str) -> tuple[Step, ...]:
        """Set a new version: anyone who decided from the old one has to look again."""
        return self._new_token(target, version, f"VALUES ({literal(uuid4().hex)})")

    def recounted(self, target: str, version: str, commits: int, rule: str = ROWS) -> tuple[Step, ...]:
        """Set a new version that also holds the row count for the next load, by a rule over the present one.

        The count is valid while the ledger has this many commits for the target: an earlier release writes no
        count, and edits to the ledger by hand are not blamed on the rows.
        """
        counted = f"(SELECT count(*) AS {ROWS} FROM {path(self.schema, folded(target))}) AS counted"
        token = f"""{literal(uuid4().hex + "/")} || CAST({rule} AS VARCHAR) || {literal(f"/{commits}")}"""
        return self._new_token(target, version, f"SELECT {token} FROM {counted}")

    def _new_token(self, target: str, version: str, made: str) -> tuple[Step, ...]:
        # Not UPDATE: its new value would be a query on another table.
        table = self.lock_path(target)
        before = () if version == UNWRITTEN else (Do(f"DELETE FROM {table}"),)
        return (*before, Do(f'INSERT INTO {table} ("token") {made}', rows=1))


def _seen(rows: Sequence[Row], log: str, target: str, part: Part | None) -> Seen:
    """What the rows of one query say."""
    ledger = ledger_in(rows, log, target, part)
    versions = [row for row in rows if int(row[8]) == _VERSION]
    counts = [int(row[3]) for row in rows if int(row[8]) == _COUNT]
    ledger = replace(ledger, counted=_counted(ledger, target, versions))
    version = f"{versions[0][3]}/{versions[0][1]}" if versions else UNWRITTEN
    return Seen(ledger, version, counts[0] if counts else None)


def _counted(ledger: Ledger, target: str, versions: Sequence[Row]) -> int | None:
    """How many rows the last load left in the target, by its token; None: not counted, or no longer valid."""
    found = re.fullmatch(r"[0-9a-f]{32}/(\d+)/(\d+)", str(versions[0][1])) if len(versions) == 1 else None
    if found is None or int(found[2]) != ledger.last(target, ledger.epoch)[0]:
        return None
    return int(found[1])


def check_still(
    session: RedshiftSession, schema: str, names: Sequence[str], found: Mapping[str, Relation]
) -> None:
    """Start over if a load that `seen` waited for has created or changed the target's tables.

    The catalog was read before that. A load that would only put rows into the tables needs no second look.
    """
    if relations(session, schema, names) != found:
        raise StatementFailed(meanwhile(), again=True)


def meanwhile(found: object = None) -> ConflictError:
    """Another load of the target came first."""
    return ConflictError("another load has changed the warehouse in the meantime", hint="run again")


_AT_ONCE = 200  # rows in one statement: the Data API takes statements of 100 kB at most


def write_freshness(session: RedshiftSession, schema: str, rows: Sequence[Freshness], limits: Limits) -> None:
    """Replaces the rows that are not newer."""
    table = path(schema, FRESHNESS)
    if FRESHNESS not in relations(session, schema, (FRESHNESS,)):
        create_tables(session, schema, {FRESHNESS: f"({FRESHNESS_TYPES}) DISTSTYLE ALL"}, (), limits.lock)
    elif not (rows := _not_older(session, table, rows)):
        return
    session.transaction(Lock(table, limits.lock), list(_steps(table, rows)))


def _not_older(session: RedshiftSession, table: str, rows: Sequence[Freshness]) -> list[Freshness]:
    """The rows whose targets have no newer one yet: a target has one row. If one comes meanwhile, the next run removes ours."""
    newer: set[str] = set()
    for first in range(0, len(rows), _AT_ONCE):
        some = rows[first : first + _AT_ONCE]
        found = session.query(f'SELECT "target" FROM {table} WHERE {_of(some, ">")}')
        newer |= {str(row[0]) for row in found}
    return [row for row in rows if row.target not in newer]


def _of(rows: Sequence[Freshness], than: str) -> str:
    return " OR ".join(
        f'("target" = {literal(row.target)} AND "as_of" {than} {literal(row.as_of)})' for row in rows
    )


def _steps(table: str, rows: Sequence[Freshness]) -> Iterator[Step]:
    names = ", ".join(quote(name) for name in FRESHNESS_COLUMNS)
    for first in range(0, len(rows), _AT_ONCE):
        some = rows[first : first + _AT_ONCE]
        yield Do(f"DELETE FROM {table} WHERE {_of(some, '<=')}")
        values = ", ".join(f"({', '.join(literal(value) for value in vars(row).values())})" for row in some)
        yield Do(f"INSERT INTO {table} ({names}) VALUES {values}")
