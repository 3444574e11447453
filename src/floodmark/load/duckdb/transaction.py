"""What a transaction of loads writes into a DuckDB file: the rows of each target, and the ledger's rows of all.

One load, or several small ones of different targets. Nothing here begins or commits: an exception leaves the file as it
was, for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from floodmark.load.column_mapping import (
    arrived,
    constants,
    fills,
    left_alone,
    placed,
    target_renames,
)
from floodmark.load.columns import check_strangers, renamed, renamings
from floodmark.load.decide import Decision, count_after, decide
from floodmark.load.duckdb import merge as put
from floodmark.load.duckdb.ddl import changes, literal, refused_rows
from floodmark.load.duckdb.errors import AlreadyThere
from floodmark.load.duckdb.file import BULKY, Connection, Volume
from floodmark.load.duckdb.files import check_itself
from floodmark.load.duckdb.ledger import Count, LedgerTables
from floodmark.load.protocol import LoadRequest
from floodmark.model.commit import by_key
from floodmark.model.errors import ConflictError, about
from floodmark.model.ledger import Ledger, LedgerRow
from floodmark.model.run import Step

# Loads of at most this many rows, and bytes in files, may share a transaction: the work for each transaction and each
# target outweighs that for the rows.
SMALL_ROWS = 20_000
SMALL_BYTES = 4_000_000


@dataclass(frozen=True)
class Ready:
    """A load that was decided, with its files on this machine."""

    request: LoadRequest
    decision: Decision
    staged: put.DuckDBPut
    loaded: tuple[LedgerRow, ...]  # the ledger rows to write
    volume: Volume

    @property
    def small(self) -> bool:
        """Whether it may share a transaction; not if its files, of repeated values, unpack to many times their size."""
        return small(self.request) and self.volume.bytes < BULKY

    def is_in(self, ledger: Ledger) -> bool:
        """Whether the ledger has all its commits."""
        there = ledger.loaded(self.request.epoch)
        return all((commit.n, digest) in there for commit, digest in self.decision.new)


def small(request: LoadRequest) -> bool:
    """Whether a request is so small that its load may share a transaction with others."""
    commits = [commit for commit, _ in request.commits]
    return sum(c.rows for c in commits) <= SMALL_ROWS and sum(c.bytes for c in commits) <= SMALL_BYTES


def write(con: Connection, schema: str, loads: Sequence[Ready]) -> None:
    """Write the rows and ledger rows of all loads, inside a transaction; raises if one is no longer as decided.

    Each load is decided by what was there before the transaction, so no two of them may be about the same log or target.
    """
    for same in ({one.request.log for one in loads}, {one.request.target for one in loads}):
        if len(same) < len(loads):
            raise ConflictError("two loads of one table or into one target can't share a transaction")
    tables = LedgerTables(con, schema).create()
    ledgers = tables.read_each([one.request.question for one in loads])
    done = [_write_rows(con, schema, *each) for each in zip(loads, ledgers, strict=True)]
    tables.record([(one.request, one.loaded) for one in loads])
    tables.keep_counts([count for _, count in done])
    tables.set_holders([
        (one.request.target, one.request.holder)
        for one, (decision, _) in zip(loads, done, strict=True) if decision.set_holder
    ])  # fmt: skip
    for one in loads:
        one.request.at_work(Step("commit"), one.volume.rows)


def _write_rows(con: Connection, schema: str, one: Ready, ledger: Ledger) -> tuple[Decision, Count]:
    """Put the rows of a load into its target; returns what was decided, and how many it should have from now on."""
    request, target = one.request, put.Target(con, schema, one.request.target)
    with about(request.table.name):
        rows = target.count()
        decision = decide(request, ledger, rows)
        if replace(decision, set_holder=one.decision.set_holder) != one.decision:
            raise ConflictError("another load has changed the warehouse in the meantime", hint="run again")
        check_itself(con, one.staged.paths)
        _put(con, schema, one, rows)
        rule = count_after(request, ledger, decision, rows, "count(*)")
        kept = target.number(f"SELECT {rule} FROM {target.sql}")
    left = ledger.after(request.epoch, request.retake, one.loaded).last(request.target, request.epoch)
    return decision, Count(request.target, request.log, request.epoch, *left, kept)


def _put(con: Connection, schema: str, one: Ready, rows: int | None) -> None:
    """Make the target fit, then put the rows into it; `rows`: how many it has, None when there is no target."""
    request, decision, staged, count = one.request, one.decision, one.staged, one.volume.rows
    target = put.Target(con, schema, request.target)
    found = None if rows is None else target.columns()
    renames = target_renames(request.now)
    if by_key(decision.way) and found is not None:
        fit = renamings(target.sql, found, renames)
    else:
        wanted = put.wanted(placed(request.table, request.now), fills(request.now))
        if request.keeps_rows(decision.way):
            new = arrived(request.shaped, request.now)
            check_strangers(
                request.target, found or (), wanted, new, target.has, described=request.table.name
            )
        zstd = put.packed(con, staged) if found is None else ()
        known = put.known(None if decision.way == "replace" else request.loaded, request.now)
        fit = changes(schema, request.target, wanted, found, renames, zstd, known)
    target.check_alterable(fit)
    if renames:
        side = target.weights
        fit += renamings(side.sql, side.columns() or (), renames)
    for statement in (s for change in fit for s in change.statements):
        con.execute(statement)
    there = {name.lower(): name for _, name in renamed(found or (), renames)}
    given = tuple(c for c in constants(request.table, request.now) if c.target in there)
    kept = left_alone(there.values(), staged.fields, given)
    if kept:
        computed = target.generated()
        kept = tuple(name for name in kept if name.lower() not in computed)
    staged = replace(
        staged,
        constants=tuple((c.target, literal(c.duckdb, c.value)) for c in given),
        kept=kept,
        filled=bool(rows),
        side_filled=staged.weighed and bool(target.weights.count()),
    )
    target = replace(target, at_work=request.at_work)
    try:
        put.put(target, staged, decision.way, count)
    except AlreadyThere as error:
        with con.cursor() as beside:  # this transaction is aborted and takes no more queries
            same, said = replace(target, con=beside), str(error).partition("\n")[0]
            columns = same.columns() or ()
            raise refused_rows(schema, request.target, columns, same.held(), said) from error
