"""The ledger's tables in Redshift: how they are made, read before a load, and written at its end.

Redshift enforces no key. What makes a commit load once is the target's own lock table. It is locked before the
transaction sees anything, and holds the version of what the ledger says of the target: every writer changes it. A
version that is still the one that was read proves that the decision still holds, without a look at tables that loads
of other targets write to. Those are only appended to, last of all (docs/decisions/0015).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import uuid4

from floodmark.errors import ConflictError
from floodmark.names import OUR_TABLES
from floodmark.state.loaded import SUMMED_DIGITS
from floodmark.warehouse import (
    LEDGER,
    TARGETS,
    Holder,
    Ledger,
    LedgerRow,
    LoadRequest,
    Part,
    quote,
    summed,
)
from floodmark.warehouse.redshift_catalog import Relation, relations
from floodmark.warehouse.redshift_names import folded, literal, path
from floodmark.warehouse.redshift_steps import Check, Do, Failed, Lock, Session, Step

LOCKS = f"{OUR_TABLES}lock_"  # + target
PORTION = 60_000  # bytes of a list in one statement
_STAMP = 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'
_COLUMNS = {
    LEDGER: '"log_id" VARCHAR(128), "epoch" BIGINT, "n" BIGINT, "digest" VARCHAR(128), "pipeline_id" VARCHAR(128), '
    '"source_table" VARCHAR(1024), "target" VARCHAR(1024), "run" VARCHAR(128), "rows" BIGINT, "files" BIGINT, '
    '"loaded_at" TIMESTAMP',
    TARGETS: '"target" VARCHAR(1024), "pipeline_id" VARCHAR(128), "log_id" VARCHAR(128), "source_table" VARCHAR(1024), '
    '"epoch" BIGINT',
}
# A load looks for the rows of one log and epoch; a copy on every node spares the network.
_LAYOUT = {LEDGER: ' DISTSTYLE ALL SORTKEY ("log_id", "epoch", "n")', TARGETS: " DISTSTYLE ALL"}
_TOKEN = '"token" VARCHAR(64)'
UNWRITTEN = "0/"  # the version of a target that nobody has written to

# What a row of an answer is: a ledger row, sums of some, a row of TARGETS, the version, the target's number of rows.
_ROW, _SUMS, _HOLDER, _VERSION, _COUNT = range(5)


@dataclass(frozen=True)
class Seen:
    """What is decided from, seen at one moment."""

    ledger: Ledger = field(default_factory=Ledger)
    version: str = UNWRITTEN
    rows: int | None = None  # of the target, at least so many; None: there is no target


@dataclass(frozen=True)
class LedgerTables:
    """The ledger in one schema."""

    schema: str

    def lock_table(self, target: str) -> str:
        """The name of the table that a load of this target locks."""
        return folded(target, LOCKS)

    def lock(self, target: str, seconds: float) -> Lock:
        """The lock of a target."""
        return Lock(self._lock_path(target), seconds)

    def kinds(self, session: Session, names: Iterable[str]) -> dict[str, str]:
        """What there is of some names: r a table, v a view, and so on."""
        return {name: found.kind for name, found in relations(session, self.schema, names).items()}

    def needed(self, target: str) -> tuple[str, ...]:
        """The tables that a load of a target needs."""
        return (LEDGER, TARGETS, self.lock_table(target))

    def versioned(self, session: Session, target: str, found: Mapping[str, Relation], seconds: float) -> None:
        """Give a lock table of an earlier release its column for the version.

        That waits for whoever has the lock, so what is read afterwards has the rows of a load of that release.
        """
        lock = self.lock_table(target)
        if lock in found and not found[lock].has("token"):
            self._make(session, f"ALTER TABLE {path(self.schema, lock)} ADD COLUMN {_TOKEN}", seconds)

    def create(self, session: Session, target: str, found: Collection[str], seconds: float) -> None:
        """Make the tables that were not found; each statement stands by itself."""
        wanted = {**_COLUMNS, self.lock_table(target): _TOKEN}
        if wanted.keys() <= set(found):
            return
        schemas = (
            f"SELECT nspname FROM pg_catalog.pg_namespace WHERE nspname = {literal(self.schema.lower())}"
        )
        if not session.query(schemas):
            self._make(session, f"CREATE SCHEMA IF NOT EXISTS {quote(self.schema.lower())}", seconds)
        for name, columns in wanted.items():
            if name not in found:
                made = f"{path(self.schema, name)} ({columns}){_LAYOUT.get(name, '')}"
                self._make(session, f"CREATE TABLE IF NOT EXISTS {made}", seconds)

    def _make(self, session: Session, statement: str, seconds: float) -> None:
        try:
            session.execute(statement, seconds=seconds)
        except Failed as failed:
            if not isinstance(failed.error, ConflictError):  # another session was faster
                raise

    def read(self, session: Session, log: str, target: str, part: Part | None = None) -> Ledger:
        """What the ledger says of a log and of a target; empty when there is none. Waits for no load."""
        if len(self.kinds(session, (LEDGER, TARGETS))) < 2:
            return Ledger()
        rows = session.query(f"{self._rows_of(log, part)} UNION ALL {self._holders_of(log, target)} {_ORDER}")
        return _seen(rows, log, target, part).ledger

    def seen(
        self,
        session: Session,
        log: str,
        target: str,
        found: Collection[str],
        part: Part | None = None,
        *,
        rows: bool = True,
        name: str = "",
        seconds: float | None = None,
    ) -> Seen:
        """What a load or a reset is decided from: the ledger with its version; waits for a load of the target.

        `found` is what there is; `rows`: whether the ledger's rows count; `name`: of the target, to see if it has any;
        `seconds`: how long to wait.
        """
        parts = []
        lock = self.lock_table(target)
        if LEDGER in found and TARGETS in found:
            parts += [self._rows_of(log, part)] if rows else []
            parts.append(self._holders_of(log, target))
        if lock in found:
            version = _cells(_VERSION, text="""coalesce(max("token"), '')""", number="count(*)")
            parts.append(f"SELECT {version} FROM {path(self.schema, lock)}")
        if name in found:
            first = f"(SELECT 1 FROM {path(self.schema, name)} LIMIT 1) AS first_row"
            parts.append(f"SELECT {_cells(_COUNT, number='count(*)')} FROM {first}")
        if not parts:
            return Seen()
        answer = session.query(f"{' UNION ALL '.join(parts)} {_ORDER}", waits=seconds)
        return _seen(answer, log, target, part)

    def _holders_of(self, log: str, target: str) -> str:
        """The question for a log's load epochs and who fills a target."""
        cells = _cells(
            _HOLDER,
            text='"pipeline_id"',
            epoch='"epoch"',
            at='"log_id"',
            target='"target"',
            more='"source_table"',
        )
        mine = f'"target" = {literal(target)} OR "log_id" = {literal(log)}'
        return f"SELECT {cells} FROM {path(self.schema, TARGETS)} WHERE {mine}"

    def rows_query(self, log: str, part: Part) -> str:
        """The question for a part of what was loaded of a log, without the rest."""
        return f"{self._each_of(log, part)} {_ORDER}"

    def _each_of(self, log: str, part: Part | None) -> str:
        some = f' AND "epoch" = {part.epoch} AND "n" > {part.after}' if part else ""
        return (
            f'SELECT "n", "digest", "epoch", "rows", "files", to_char("loaded_at", {literal(_STAMP)}) AS "at", '
            f'"target", 1 AS "commits", {_ROW} AS "what", CAST(\'\' AS VARCHAR) AS "oldest" '
            f'FROM {path(self.schema, LEDGER)} WHERE "log_id" = {literal(log)}{some}'
        )

    def _rows_of(self, log: str, part: Part | None) -> str:
        """The question for what was loaded of a log: all of it, or a part and, of the rest, sums."""
        rows = self._each_of(log, part)
        if part is None:
            return rows
        stamp = literal(_STAMP)
        epoch = f'CASE WHEN "epoch" = {part.epoch} THEN {part.epoch} ELSE -1 END'
        live = f'CASE WHEN "n" > {part.superseded} THEN 1 ELSE 0 END'
        kept = " AND ".join(['"files" > 0', *(f'"n" NOT BETWEEN {a} AND {b}' for a, b in part.cleaned)])
        return (
            f'{rows} UNION ALL SELECT max("n"), {_total() if part.proven else "CAST(NULL AS VARCHAR)"}, {epoch}, '
            f'CAST(sum("rows") AS BIGINT), CAST(sum("files") AS BIGINT), to_char(max("loaded_at"), {stamp}), '
            f'"target", CAST(count(*) AS INTEGER), {_SUMS}, '
            f'to_char(min(CASE WHEN {kept} THEN "loaded_at" END), {stamp}) '
            f'FROM {path(self.schema, LEDGER)} WHERE "log_id" = {literal(log)} '
            f'AND ("epoch" <> {part.epoch} OR "n" <= {part.after}) GROUP BY {epoch}, {live}, "target"'
        )

    # inside a transaction

    def unchanged(self, target: str, version: str) -> Step:
        """What the ledger says of the target is still what was decided from: nobody has written since."""
        return Check(
            f"""SELECT CAST(count(*) AS VARCHAR) || '/' || coalesce(max("token"), '') FROM {self._lock_path(target)}""",
            version,
            meanwhile,
            again=True,
        )

    def renewed(self, target: str, version: str) -> Step:
        """A new version: whoever has decided from the old one has to look again."""
        table, token = self._lock_path(target), literal(uuid4().hex)
        if version == UNWRITTEN:
            return Do(f'INSERT INTO {table} ("token") VALUES ({token})', rows=1)
        return Do(f'UPDATE {table} SET "token" = {token}')

    def _lock_path(self, target: str) -> str:
        return path(self.schema, self.lock_table(target))

    def record(self, request: LoadRequest, loaded: Sequence[LedgerRow]) -> tuple[Step, ...]:
        """Write the rows of a load, in place of those that it takes back."""
        ledger = path(self.schema, LEDGER)
        mine = f'"log_id" = {literal(request.log)} AND "epoch" = {request.epoch}'
        steps: list[Step] = [
            Do(f"DELETE FROM {ledger} WHERE {mine} AND {gone}") for gone in _listed(sorted(request.retake))
        ]
        who = (request.pipeline, request.table.name, request.target, request.run)
        values = []
        for row in loaded:
            stamp = row.loaded_at.replace("T", " ").removesuffix("Z")
            cells = (request.log, row.epoch, row.n, row.digest, *who, row.rows, row.files, stamp)
            values.append("(" + ", ".join(literal(cell) for cell in cells) + ")")
        for some in _portions(values):
            steps.append(Do(f"INSERT INTO {ledger} VALUES {', '.join(some)}", rows=len(some)))
        return tuple(steps)

    def set_holder(self, target: str, holder: Holder, before: Holder | None) -> tuple[Step, ...]:
        """Say whose rows the target holds, and in which epoch; `before`: who is replaced."""
        table = path(self.schema, TARGETS)
        cells = (target, holder.pipeline, holder.log, holder.table, holder.epoch)
        insert = Do(f"INSERT INTO {table} VALUES ({', '.join(literal(cell) for cell in cells)})", rows=1)
        if before is None:
            return (insert,)
        return (Do(f'DELETE FROM {table} WHERE "target" = {literal(target)}'), insert)


_ORDER = 'ORDER BY "epoch", "n", "digest"'


def _cells(
    what: int,
    *,
    text: str = "",
    number: str = "0",
    epoch: str = "0",
    at: str = "",
    target: str = "",
    more: str = "",
) -> str:
    """What is not a ledger row, in the columns of one: so that one question answers all."""
    none = "CAST('' AS VARCHAR)"
    return (
        f'0 AS "n", {text or none} AS "digest", {epoch} AS "epoch", {number} AS "rows", 0 AS "files", {at or none} AS "at", '
        f'{target or none} AS "target", 1 AS "commits", {what} AS "what", {more or none} AS "oldest"'
    )


def _seen(rows: Sequence[Sequence[object]], log: str, target: str, part: Part | None) -> Seen:
    """The answer to one question."""
    by_kind: dict[int, list[Sequence[object]]] = {}
    for row in rows:
        by_kind.setdefault(int(str(row[8])), []).append(row)
    holders = [
        (name, pipeline, of_log, table, int(str(epoch)))
        for _, pipeline, epoch, _, _, of_log, name, _, _, table in by_kind.get(_HOLDER, ())
    ]
    loaded = ledger_rows([row for row in rows if int(str(row[8])) in (_ROW, _SUMS)])
    ledger = replace(Ledger.about(holders, log, target), rows=loaded, part=part)
    versions = [f"{row[3]}/{row[1]}" for row in by_kind.get(_VERSION, ())]
    counts = [int(str(row[3])) for row in by_kind.get(_COUNT, ())]
    return Seen(ledger, versions[0] if versions else UNWRITTEN, counts[0] if counts else None)


def ledger_rows(rows: Sequence[Sequence[object]]) -> tuple[LedgerRow, ...]:
    """Answers that are ledger rows, or sums of some."""
    return tuple(
        summed(n, digest, epoch, count, files, at, target, commits, oldest) if int(str(what)) == _SUMS else
        LedgerRow(
            int(str(n)), str(digest), int(str(epoch)), int(str(count)), int(str(files)), str(at), str(target)
        )
        for n, digest, epoch, count, files, at, target, commits, what, oldest in rows
    )  # fmt: skip


def _total() -> str:
    """The sum of the digests' last digits, as text; a digest that is none does not count."""
    end = f'STRTOL(SUBSTRING("digest", {65 - SUMMED_DIGITS}, {SUMMED_DIGITS}), 16)'
    hexes = """CHAR_LENGTH("digest") = 64 AND TRANSLATE("digest", '0123456789abcdef', '') = ''"""
    return f"CAST(coalesce(sum(CASE WHEN {hexes} THEN CAST({end} AS DECIMAL(38,0)) END), 0) AS VARCHAR)"


def _listed(commits: Iterable[tuple[int, str]]) -> tuple[str, ...]:
    """The condition that a ledger row is of one of the commits, in parts; a list, because ORs would nest."""
    names = [literal(f"{n}/{digest}") for n, digest in commits]
    return tuple(
        f"""CAST("n" AS VARCHAR) || '/' || "digest" IN ({", ".join(some)})""" for some in _portions(names)
    )


def _portions(parts: Sequence[str]) -> Iterator[list[str]]:
    """Parts of a statement in portions that the Data API takes."""
    size = max(1, PORTION // (max((len(part.encode()) for part in parts), default=0) + 2))
    for first in range(0, len(parts), size):
        yield list(parts[first : first + size])


def check_still(session: Session, schema: str, names: Sequence[str], found: Mapping[str, Relation]) -> None:
    """Begin again if a load of the target that `seen` has waited for has made or changed its tables.

    The catalog was read before. A load that would only put rows into the tables needs no second look.
    """
    if relations(session, schema, names) != found:
        raise Failed(meanwhile(), again=True)


def meanwhile(found: object = None) -> ConflictError:
    """Another load of the target was faster."""
    return ConflictError("the warehouse was changed by another load meanwhile", hint="run again")
