"""Deliberately broken builds: each switch removes one protection from the product.

The laboratory must catch every one of them; that is how it is tested itself. A switch affects only processes whose
plan names it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from labinject.plan import PLAN

_installed: set[str] = set()


def install() -> None:
    """Install the plan's switch, if it names one; once per process."""
    if PLAN.broken and PLAN.broken not in _installed:
        _installed.add(PLAN.broken)
        globals()["_" + PLAN.broken.replace("-", "_")]()


def _swap(owner: Any, name: str, switch: str, broken: Callable[..., Any]) -> None:
    """Replace a function if the plan says so; the broken one receives the right one as its first argument."""
    right = getattr(owner, name)

    def either(*args: Any, **options: Any) -> Any:
        if PLAN.broken == switch:
            return broken(right, *args, **options)
        return right(*args, **options)

    setattr(owner, name, either)


def _strict_cursor() -> None:
    """`cursor > x` alone: the other rows with the same timestamp are skipped."""
    from floodmark.source import sql

    def after(right: Any, table: Any, columns: Any, position: Any) -> Any:
        return right(table, columns, position[:1])

    _swap(sql, "after", "strict-cursor", after)


def _session_zone() -> None:
    """The bound is in the session's zone (UTC), although the cursor is in the server's."""
    from floodmark.source import time_zones

    _swap(
        time_zones.ZoneClock,
        "offsets",
        "session-zone",
        lambda right, self, moments: time_zones.offsets(self._session, moments),
    )


def _any_reader() -> None:
    """MySQL's transactions are treated like MariaDB's."""
    from floodmark.source import open_work

    _swap(open_work, "may_still_commit", "any-reader", lambda right, *work: right(*work[:-1], True))


def _ledger_outside() -> None:
    """The ledger's rows are written in a separate transaction, after the data's."""
    from floodmark.load.duckdb.ledger import DuckDBLedger
    from floodmark.load.duckdb.warehouse import DuckDB

    def transaction(right: Any, self: Any, loads: Any) -> None:
        right(self, [replace(one, loaded=()) for one in loads])
        with self._file.writing() as con:
            con.execute("BEGIN")
            DuckDBLedger(con, self.schema).record([(one.request, one.loaded) for one in loads])
            con.execute("COMMIT")

    _swap(DuckDB, "_transaction", "ledger-outside", transaction)


def _ledger_number() -> None:
    """A commit counts as loaded if its number was, regardless of log, epoch and digest."""
    from floodmark.load.duckdb.ledger import DuckDBLedger, kind_of
    from floodmark.load.protocol import LEDGER, quote
    from floodmark.model.ledger import Ledger, LedgerRow

    class Numbers(frozenset):  # type: ignore[type-arg]
        def __contains__(self, item: object) -> bool:
            return any(isinstance(item, tuple) and item[0] == n for n, _ in self)

        def __sub__(self, other: Any) -> Any:
            return Numbers(frozenset(self) - frozenset(other))

    def read_each(right: Any, self: Any, questions: Any) -> Any:
        found = right(self, questions)
        if kind_of(self.con, self.schema, LEDGER) is None:
            return found
        return [with_others(self, one, log) for one, (log, _, _) in zip(found, questions, strict=True)]

    def with_others(self: Any, found: Any, log: str) -> Any:
        others = self.con.execute(
            f"SELECT n, digest, epoch, rows, files, '2026-01-01T00:00:00.000000Z', target "
            f"FROM {quote(self.schema, LEDGER)} WHERE log_id <> ?",
            [log],
        ).fetchall()
        return replace(found, rows=(*found.rows, *(LedgerRow(*row) for row in others)))

    def loaded(right: Any, self: Any, epoch: int) -> Any:
        return Numbers((row.n, row.digest) for row in self.rows)

    _swap(DuckDBLedger, "read_each", "ledger-number", read_each)
    _swap(Ledger, "loaded", "ledger-number", loaded)


def _commit_first() -> None:
    """Files are uploaded after the commit that names them."""
    from floodmark.log.log import Log
    from floodmark.store.store import Store

    def put(right: Any, self: Any, path: str, data: Any) -> None:
        if not path.startswith(("data/", "keys/")) or isinstance(data, Path):
            right(self, path, data)
            return
        spool = Path(PLAN.raw["spool"]) / path
        spool.parent.mkdir(parents=True, exist_ok=True)
        spool.write_bytes(bytes(data))

    def append(right: Any, self: Any, state: Any, commit: Any) -> Any:
        after = right(self, state, commit)
        for file in commit.files:
            self.store.put(file.path, Path(PLAN.raw["spool"]) / file.path)
        return after

    _swap(Store, "put", "commit-first", put)
    _swap(Log, "append", "commit-first", append)


def _overwrite() -> None:
    """A plain put where only a create is safe: the last writer wins."""
    from floodmark.store.store import Store

    def create(right: Any, self: Any, path: str, data: bytes) -> bool:
        self.put(path, data)
        return True

    _swap(Store, "create", "overwrite", create)


def _no_claim() -> None:
    """A claim is no fence: a run that finds its number taken takes the next, and none checks for a holder."""
    import importlib

    # By its full name: the package exports a function of the same name.
    claims = importlib.import_module("floodmark.log.claim")
    from floodmark.log import fold
    from floodmark.log.log import Log, Taken

    def append(right: Any, self: Any, state: Any, commit: Any) -> Any:
        while True:
            try:
                return right(self, state, commit)
            except Taken:
                state = self.fold_on(state)
                commit = replace(commit, n=state.n + 1, prev=state.digest)
            except fold.Damaged:
                raise

    def check(right: Any, state: Any, commit: Any) -> None:
        claim = replace(state.claim, run=commit.run) if state.claim is not None else None
        right(replace(state, claim=claim), commit)

    def append_unasked(right: Any, self: Any, state: Any, commit: Any) -> Any:
        claim = replace(state.claim, run=commit.run) if state.claim is not None else None
        return append(right, self, replace(state, claim=claim), commit)

    _swap(Log, "append", "no-claim", append_unasked)
    _swap(fold, "_check", "no-claim", check)
    _swap(claims, "refuse_if_held", "no-claim", lambda right, *args: None)


def _next_number() -> None:
    """After a lost answer, a commit is retried with the next number instead of the same one."""
    from floodmark.log.document import commit_path
    from floodmark.log.fold import fold
    from floodmark.log.log import Log
    from floodmark.model.errors import TransientError
    from floodmark.model.json import digest, dump

    def append(right: Any, self: Any, state: Any, commit: Any) -> Any:
        while True:
            data = dump(commit)
            after = fold(state, commit, digest(data))
            try:
                if self.store.create(commit_path(self.table_name, commit.n), data):
                    return after
                return right(self, state, commit)
            except TransientError:
                state = replace(state, n=commit.n, digest=digest(data))
                commit = replace(commit, n=commit.n + 1, prev=state.digest)
                time.sleep(0.05)

    _swap(Log, "append", "next-number", append)


def _believed_recipe() -> None:
    """Changes of the recipe are ignored."""
    from floodmark.plan import reread

    _swap(reread, "changes", "believed-recipe", lambda right, *what: ())


def _believed_target() -> None:
    """The target's state after the last load is forgotten."""
    from floodmark.load.duckdb import merge as duckdb_rows

    _swap(duckdb_rows, "known", "believed-target", lambda right, loaded, now: right(None, now))
