"""The ledger in SQL: how it is asked and written, the same in every warehouse but for a few words. Pure.

One query answers all that a decision needs: ledger rows, sums of older ones, who fills the target, and what else a
warehouse keeps of it. All its rows have the columns of a ledger row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from floodmark.load.merge import Do
from floodmark.load.protocol import COUNTS, FRESHNESS, LEDGER, TARGETS, LoadRequest, quote
from floodmark.model.ledger import Ledger, LedgerRow, LoadSum, Part, TargetFiller, summed
from floodmark.model.times import parse_moment, wall_clock

COLUMNS = {
    LEDGER: '"log_id" VARCHAR(128), "epoch" BIGINT, "n" BIGINT, "digest" VARCHAR(128), "pipeline_id" VARCHAR(128), '
    '"source_table" VARCHAR(1024), "target" VARCHAR(1024), "run" VARCHAR(128), "rows" BIGINT, "files" BIGINT, '
    '"loaded_at" TIMESTAMP',
    TARGETS: '"target" VARCHAR(1024), "pipeline_id" VARCHAR(128), "log_id" VARCHAR(128), "source_table" VARCHAR(1024), '
    '"epoch" BIGINT',
}
FRESHNESS_TYPES = (
    '"target" VARCHAR(1024), "source_table" VARCHAR(1024), "as_of" TIMESTAMP, "checked_at" TIMESTAMP, '
    '"watermark" VARCHAR(128), "commit_n" BIGINT, "run" VARCHAR(128)'
)
# The same with keys, for a warehouse that enforces them: a second guard, so that of two loads that race for one commit
# only one can be committed; and the count of rows, which is valid only while the ledger is as the load left it.
KEYED = {
    LEDGER: f'{COLUMNS[LEDGER]}, PRIMARY KEY ("log_id", "epoch", "n", "digest")',
    TARGETS: f'{COLUMNS[TARGETS]}, PRIMARY KEY ("target")',
    COUNTS: '"target" VARCHAR(1024) PRIMARY KEY, "log_id" VARCHAR(128), "epoch" BIGINT, "commits" BIGINT, '
    '"loaded_at" TIMESTAMP, "rows" BIGINT',
    FRESHNESS: f'{FRESHNESS_TYPES}, PRIMARY KEY ("target")',
}
PORTION = 60_000  # bytes of a list in one statement
ORDER = 'ORDER BY "epoch", "n", "digest"'

# Rows of an answer: a ledger row, sums of some, a row of TARGETS; further numbers are the warehouse's own.
ROW, SUMS, HOLDER, OWN = range(4)
_NONE = "CAST('' AS VARCHAR)"
_EMPTY = {
    "n": "0", "digest": _NONE, "epoch": "0", "rows": "0", "files": "0", "at": _NONE, "target": _NONE,
    "commits": "1", "what": "", "oldest": _NONE,
}  # fmt: skip

Row = tuple[Any, ...]
Cell = int | str | datetime | None


@dataclass(frozen=True)
class LedgerDialect:
    """What a warehouse says in its own words."""

    moment: str  # a time as text
    total: str  # the sum of the digests' last digits, as text
    backslash: str = "\\"  # in a text

    def literal(self, value: Cell) -> str:
        """A value as an SQL literal, times in UTC."""
        if value is None:
            return "NULL"
        if isinstance(value, int):
            return str(value)
        if isinstance(value, datetime):
            value = wall_clock(value.astimezone(UTC))
        return "'" + value.replace("\\", self.backslash).replace("'", "''") + "'"


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

    @property
    def row(self) -> tuple[Cell, ...]:
        at = parse_moment(self.loaded_at) if self.loaded_at else None
        return (*self[:4], at, self.rows)


@dataclass(frozen=True)
class LedgerSql:
    """The ledger of one schema, in one dialect."""

    schema: str
    words: LedgerDialect

    def sums(self) -> str:
        """The query for the whole ledger, summed up by log and load epoch; its rows: `load_sums`."""
        return (
            f'SELECT "log_id", "epoch", count(*), sum("rows"), sum("files"), {self._at("max", "loaded_at")} '
            f"FROM {quote(self.schema, LEDGER)} GROUP BY 1, 2"
        )

    def holders_of(self, log: str, target: str) -> str:
        """The query for a log's load epochs and for who fills a target."""
        cells = row_cells(
            HOLDER,
            digest='"pipeline_id"',
            epoch='"epoch"',
            at='"log_id"',
            target='"target"',
            oldest='"source_table"',
        )
        literal = self.words.literal
        mine = f'"target" = {literal(target)} OR "log_id" = {literal(log)}'
        return f"SELECT {cells} FROM {quote(self.schema, TARGETS)} WHERE {mine}"

    @property
    def cells(self) -> str:
        """The columns of a ledger row."""
        return (
            f'"n", "digest", "epoch", "rows", "files", {self._at("", "loaded_at")} AS "at", '
            f'"target", 1 AS "commits", {ROW} AS "what", CAST(\'\' AS VARCHAR) AS "oldest"'
        )

    def each_of(self, log: str, part: Part | None) -> str:
        """The query for what was loaded from a log: all of it, or a part without the rest."""
        some = f' AND "epoch" = {part.epoch} AND "n" > {part.after}' if part else ""
        mine = f'"log_id" = {self.words.literal(log)}{some}'
        return f"SELECT {self.cells} FROM {quote(self.schema, LEDGER)} WHERE {mine}"

    def rows_of(self, log: str, part: Part | None) -> str:
        """The same, but of a part with sums of the rest."""
        rows = self.each_of(log, part)
        if part is None:
            return rows
        epoch = f'CASE WHEN "epoch" = {part.epoch} THEN {part.epoch} ELSE -1 END'
        live = f'CASE WHEN "n" > {part.superseded} THEN 1 ELSE 0 END'
        kept = " AND ".join(['"files" > 0', *(f'"n" NOT BETWEEN {a} AND {b}' for a, b in part.cleaned)])
        oldest = self.words.moment.format(f'min(CASE WHEN {kept} THEN "loaded_at" END)')
        return (
            f'{rows} UNION ALL SELECT max("n"), {self.words.total if part.proven else "CAST(NULL AS VARCHAR)"}, {epoch}, '
            f'CAST(sum("rows") AS BIGINT), CAST(sum("files") AS BIGINT), {self._at("max", "loaded_at")}, '
            f'"target", CAST(count(*) AS INTEGER), {SUMS}, {oldest} '
            f'FROM {quote(self.schema, LEDGER)} WHERE "log_id" = {self.words.literal(log)} '
            f'AND ("epoch" <> {part.epoch} OR "n" <= {part.after}) GROUP BY {epoch}, {live}, "target"'
        )

    def _at(self, function: str, column: str) -> str:
        return self.words.moment.format(f"{function}({quote(column)})" if function else quote(column))

    def record(self, loads: Iterable[tuple[LoadRequest, Sequence[LedgerRow]]]) -> Iterator[Do]:
        """Delete the ledger rows that some loads take back, and write their new ones."""
        ledger, literal, values = quote(self.schema, LEDGER), self.words.literal, []
        for request, loaded in loads:
            mine = f'"log_id" = {literal(request.log)} AND "epoch" = {request.epoch}'
            names = [literal(f"{n}/{digest}") for n, digest in sorted(request.retake)]
            for some in portions(names):  # an IN list, because ORs would nest
                gone = f"""CAST("n" AS VARCHAR) || '/' || "digest" IN ({", ".join(some)})"""
                yield Do(f"DELETE FROM {ledger} WHERE {mine} AND {gone}")
            who = (request.pipeline, request.table.name, request.target, request.run)
            for row in loaded:
                at = parse_moment(row.loaded_at)
                cells = (request.log, row.epoch, row.n, row.digest, *who, row.rows, row.files, at)
                values.append(self._row(*cells))
        for some in portions(values):
            yield Do(f"INSERT INTO {ledger} VALUES {', '.join(some)}", rows=len(some))

    def set_holder(self, target: str, holder: TargetFiller, before: TargetFiller | None) -> Iterator[Do]:
        """Record whose rows the target holds, and in which epoch, without an upsert; `before`: who is replaced."""
        table, cells = quote(self.schema, TARGETS), (target, *vars(holder).values())
        if before is not None:
            yield Do(f'DELETE FROM {table} WHERE "target" = {self.words.literal(target)}')
        yield Do(f"INSERT INTO {table} VALUES {self._row(*cells)}", rows=1)

    def upsert(self, name: str, rows: Sequence[Sequence[Cell]], newer: str | None = None) -> str:
        """Insert or replace rows of one of KEYED by target; `newer`: only if they have no lower value there."""
        columns = re.findall(r'(?:^|, )("\w+")', KEYED[name])
        changed = ", ".join(f"{column} = excluded.{column}" for column in columns if column != '"target"')
        where = f" WHERE excluded.{quote(newer)} >= {quote(name, newer)}" if newer else ""
        return (
            f"INSERT INTO {quote(self.schema, name)} ({', '.join(columns)}) "
            f"VALUES {', '.join(self._row(*row) for row in rows)} "
            f'ON CONFLICT ("target") DO UPDATE SET {changed}{where}'
        )

    def counts_of(self, targets: Iterable[str]) -> str:
        """The query for the rows of COUNTS of some targets."""
        listed = ", ".join(self.words.literal(target) for target in targets)
        return (
            f'SELECT "target", "log_id", "epoch", "commits", {self._at("", "loaded_at")}, "rows" '
            f'FROM {quote(self.schema, COUNTS)} WHERE "target" IN ({listed})'
        )

    def _row(self, *cells: Cell) -> str:
        return f"({', '.join(self.words.literal(cell) for cell in cells)})"


def row_cells(what: int, **given: str) -> str:
    """Values that are not a ledger row, in the columns of one, so that a single query answers everything."""
    cells = {**_EMPTY, "what": str(what), **given}
    return ", ".join(f'{value} AS "{name}"' for name, value in cells.items())


def ledger_in(rows: Sequence[Row], log: str, target: str, part: Part | None) -> Ledger:
    """What the rows of one query say about a log and a target."""
    holders = [
        (name, pipeline, of_log, table, int(epoch))
        for _, pipeline, epoch, _, _, of_log, name, _, what, table in rows
        if int(what) == HOLDER
    ]
    return replace(Ledger.about(holders, log, target), rows=ledger_rows(rows), part=part)


def ledger_rows(rows: Sequence[Row]) -> tuple[LedgerRow, ...]:
    """Those rows of an answer that are ledger rows, or sums of some."""
    return tuple(
        summed(n, digest, epoch, count, files, at, target, commits, oldest) if int(what) == SUMS else
        LedgerRow(int(n), str(digest), int(epoch), int(count), int(files), str(at), str(target))
        for n, digest, epoch, count, files, at, target, commits, what, oldest in rows if int(what) in (ROW, SUMS)
    )  # fmt: skip


def load_sums(rows: Iterable[Row]) -> list[LoadSum]:
    """The rows of `LedgerSql.sums`."""
    return [LoadSum(str(r[0]), int(r[1]), int(r[2]), int(r[3]), int(r[4]), str(r[5])) for r in rows]


def portions(parts: Sequence[str]) -> Iterator[list[str]]:
    """Parts of a statement in portions that every transport accepts."""
    size = max(1, PORTION // (max((len(part.encode()) for part in parts), default=0) + 2))
    for first in range(0, len(parts), size):
        yield list(parts[first : first + size])
