"""The ledger's tables in Redshift, and the checks of them inside a load's transaction.

Redshift enforces no key: what makes a commit load once is the lock of the target's own lock table, taken before the
transaction sees anything, and the checks under it that the ledger is still what the decision was made from.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from floodmark.errors import ConfigError, ConflictError
from floodmark.names import OUR_TABLES
from floodmark.state.loaded import SUMMED_DIGITS
from floodmark.warehouse import (
    LEDGER,
    TARGETS,
    Holder,
    Ledger,
    LedgerRow,
    LoadRequest,
    Numbered,
    Part,
    quote,
    summed,
)
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
_LOCK_COLUMNS = '"nothing" SMALLINT'


@dataclass(frozen=True)
class LedgerTables:
    """The ledger in one schema."""

    schema: str

    def lock_table(self, target: str) -> str:
        """The name of the table that a load of this target locks."""
        return folded(target, LOCKS)

    def lock(self, target: str, seconds: float, *, ledger_too: bool = False) -> Lock:
        """The lock of a target; with the ledger's, where loads of other targets keep getting in the way."""
        tables = [path(self.schema, self.lock_table(target))]
        if ledger_too:
            tables.append(path(self.schema, LEDGER))
        return Lock(tuple(tables), seconds)

    def kinds(self, session: Session, names: Iterable[str]) -> dict[str, str]:
        """What there is of some names: r a table, v a view, and so on."""
        listed = ", ".join(literal(name) for name in names)
        rows = session.query(
            "SELECT c.relname, c.relkind FROM pg_catalog.pg_class AS c JOIN pg_catalog.pg_namespace AS n "
            f"ON n.oid = c.relnamespace WHERE n.nspname = {literal(self.schema.lower())} AND c.relname IN ({listed})"
        )
        return {str(name): _text(kind) for name, kind in rows}

    def create(self, session: Session, target: str) -> None:
        """Make the tables unless they are there; each statement stands by itself."""
        wanted = {**_COLUMNS, self.lock_table(target): _LOCK_COLUMNS}
        found = self.kinds(session, wanted)
        if wanted.keys() <= found.keys():
            return
        schemas = (
            f"SELECT nspname FROM pg_catalog.pg_namespace WHERE nspname = {literal(self.schema.lower())}"
        )
        if not session.query(schemas):
            self._make(session, f"CREATE SCHEMA IF NOT EXISTS {quote(self.schema.lower())}")
        for name, columns in wanted.items():
            if name not in found:
                self._make(session, f"CREATE TABLE IF NOT EXISTS {path(self.schema, name)} ({columns})")

    def _make(self, session: Session, statement: str) -> None:
        try:
            session.execute(statement)
        except Failed as failed:
            if not isinstance(failed.error, ConflictError):  # another session was faster
                raise

    def read(self, session: Session, log: str, target: str, part: Part | None = None) -> Ledger:
        """What the ledger says of a log and of a target; empty when there is none."""
        if len(self.kinds(session, (LEDGER, TARGETS))) < 2:
            return Ledger()
        rows = ledger_rows(session.query(self.rows_query(log, part)))
        return replace(self._about(session, log, target), rows=rows, part=part)

    def about(self, session: Session, log: str, target: str) -> Ledger:
        """The load epoch of a log, and who fills a target; nothing when there is no ledger."""
        return self._about(session, log, target) if self.kinds(session, (TARGETS,)) else Ledger()

    def _about(self, session: Session, log: str, target: str) -> Ledger:
        targets = session.query(
            'SELECT "target", "pipeline_id", "log_id", "source_table", "epoch" '
            f'FROM {path(self.schema, TARGETS)} WHERE "target" = {literal(target)} OR "log_id" = {literal(log)}'
        )
        return Ledger.about(targets, log, target)

    def rows_query(self, log: str, part: Part | None = None, *, sums: bool = True) -> str:
        """The question for what was loaded of a log: all of it, or a part and, of the rest, sums."""
        stamp, mine = literal(_STAMP), f'FROM {path(self.schema, LEDGER)} WHERE "log_id" = {literal(log)}'
        rows = (
            f'SELECT "n", "digest", "epoch", "rows", "files", to_char("loaded_at", {stamp}) AS "at", "target", '
            f'1 AS "commits", 0 AS "summed", CAST(\'\' AS VARCHAR) AS "oldest" {mine}'
        )
        order = 'ORDER BY "epoch", "n", "digest"'
        if part is None:
            return f"{rows} {order}"
        rows += f' AND "epoch" = {part.epoch} AND "n" > {part.after}'
        if not sums:
            return f"{rows} {order}"
        epoch = f'CASE WHEN "epoch" = {part.epoch} THEN {part.epoch} ELSE -1 END'
        live = f'CASE WHEN "n" > {part.superseded} THEN 1 ELSE 0 END'
        kept = " AND ".join(['"files" > 0', *(f'"n" NOT BETWEEN {a} AND {b}' for a, b in part.cleaned)])
        return (
            f'{rows} UNION ALL SELECT max("n"), {_total() if part.proven else "CAST(NULL AS VARCHAR)"}, {epoch}, '
            f'CAST(sum("rows") AS BIGINT), CAST(sum("files") AS BIGINT), to_char(max("loaded_at"), {stamp}), '
            f'"target", CAST(count(*) AS INTEGER), 1, '
            f'to_char(min(CASE WHEN {kept} THEN "loaded_at" END), {stamp}) '
            f'{mine} AND ("epoch" <> {part.epoch} OR "n" <= {part.after}) GROUP BY {epoch}, {live}, "target" {order}'
        )

    # inside a transaction

    def unchanged(self, log: str, target: str, ledger: Ledger) -> tuple[Step, ...]:
        """Holder and epoch are still what the decision was made from."""
        mine = f'"target" = {literal(target)}'
        where = f"FROM {path(self.schema, TARGETS)} WHERE"
        holder = ledger.holder
        as_was = "1 = 0"
        if holder is not None:
            as_was = (
                f'"pipeline_id" = {literal(holder.pipeline)} AND "log_id" = {literal(holder.log)} '
                f'AND "epoch" = {holder.epoch}'
            )
        return (
            Check(
                f"SELECT {_counted(as_was)} {where} {mine}",
                "0/0" if holder is None else "1/1",
                _meanwhile,
                again=True,
            ),
            Check(
                f'SELECT coalesce(max("epoch"), -1) {where} "log_id" = {literal(log)}',
                -1 if ledger.epoch is None else ledger.epoch,
                _meanwhile,
                again=True,
            ),
        )

    def absent(self, request: LoadRequest, ledger: Ledger, new: Sequence[Numbered]) -> tuple[Step, ...]:
        """None of the new commits is in the ledger, and nothing else of the log has come or gone."""
        ours = [(c.n, d) for c, d in new if (c.n, d) not in request.retake]
        mine = f'FROM {path(self.schema, LEDGER)} WHERE "log_id" = {literal(request.log)}'
        return tuple(
            Check(
                f'SELECT {_counted(f"""{loaded} AND "epoch" = {request.epoch}""")} {mine}',
                f"{ledger.commits}/0",
                _meanwhile,
                again=True,
            )
            for loaded in _listed(ours) or ("1 = 0",)
        )

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

    def set_holder(self, target: str, holder: Holder) -> tuple[Step, ...]:
        """Say whose rows the target holds, and in which epoch."""
        table = path(self.schema, TARGETS)
        cells = (target, holder.pipeline, holder.log, holder.table, holder.epoch)
        return (
            Do(f'DELETE FROM {table} WHERE "target" = {literal(target)}'),
            Do(f"INSERT INTO {table} VALUES ({', '.join(literal(cell) for cell in cells)})", rows=1),
        )


def ledger_rows(rows: Sequence[Sequence[object]]) -> tuple[LedgerRow, ...]:
    """Answers to `rows_query` as ledger rows."""
    return tuple(
        summed(n, digest, epoch, count, files, at, target, commits, oldest) if int(str(of_several)) else
        LedgerRow(
            int(str(n)), str(digest), int(str(epoch)), int(str(count)), int(str(files)), str(at), str(target)
        )
        for n, digest, epoch, count, files, at, target, commits, of_several, oldest in rows
    )  # fmt: skip


def _total() -> str:
    """The sum of the digests' last digits, as text; a digest that is none does not count."""
    end = f'STRTOL(SUBSTRING("digest", {65 - SUMMED_DIGITS}, {SUMMED_DIGITS}), 16)'
    hexes = """CHAR_LENGTH("digest") = 64 AND TRANSLATE("digest", '0123456789abcdef', '') = ''"""
    return f"CAST(coalesce(sum(CASE WHEN {hexes} THEN CAST({end} AS DECIMAL(38,0)) END), 0) AS VARCHAR)"


def check_kind(kind: str | None, target: str) -> bool:
    """Whether the target is there; anything but a table is refused."""
    if kind is None:
        return False
    if kind != "r":
        what = {"v": "view", "m": "materialized view"}.get(kind, "thing that is no table")
        raise ConfigError(f"the target {target} is a {what}, not a table", hint="set another `target`")
    return True


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


def _counted(condition: str) -> str:
    """The expression "all/those that fulfil the condition"."""
    some = f"sum(CASE WHEN {condition} THEN 1 ELSE 0 END)"
    return f"CAST(count(*) AS VARCHAR) || '/' || CAST(coalesce({some}, 0) AS VARCHAR)"


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _meanwhile(found: object) -> ConflictError:
    return ConflictError("the warehouse was changed by another load meanwhile", hint="run again")
