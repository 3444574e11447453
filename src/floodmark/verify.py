"""`verify`: the source's tables against their targets, and the findings that are made of the differences."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from floodmark.compare import Differences, check_compared, compare, loaded_state
from floodmark.config import Config
from floodmark.errors import FloodmarkError, Interrupted, VerificationError, exit_code
from floodmark.model import Finding, Key, Table
from floodmark.mysql.discover import discover
from floodmark.report import Progress, SyncOptions
from floodmark.spark import Spark
from floodmark.work import Work

# Rows of each kind that are named, unless told otherwise.
NAMED = 20
# How long an interrupted verify may take to end its tasks.
GRACE = 5.0


@dataclass(frozen=True)
class Verified:
    """One table's part of the result."""

    table: str
    differences: Differences = field(default_factory=Differences)
    findings: tuple[Finding, ...] = ()
    seconds: float = 0.0
    error: FloodmarkError | None = None
    repaired: int | None = None  # rows; None: nothing was to be repaired

    @property
    def exit_code(self) -> int:
        if self.error is not None:
            return self.error.code
        return VerificationError.code if self.differences else 0

    def as_json(self) -> dict[str, Any]:
        found, known = self.differences, self.error is None
        repaired = {} if self.repaired is None else {"repaired": self.repaired}
        return {
            "table": self.table,
            "ok": self.exit_code == 0,
            "rows_source": found.rows_source if known else None,
            "rows_warehouse": found.rows_warehouse if known else None,
            "rows_left_out": found.left_out if known else None,
            "missing": len(found.missing),
            "extra": len(found.extra),
            "different": len(found.different),
            "findings": [f.as_json() for f in self.findings],
            **repaired,
            "notes": list(found.notes),
            "seconds": round(self.seconds, 3),
            "error": self.error.as_json() if self.error else None,
        }


def verify(
    config: Config,
    names: Sequence[str],
    progress: Progress,
    run: str,
    *,
    named: int = NAMED,
    spark: Spark | None = None,
    one: Callable[[Work, str, int], Verified] | None = None,
    force: bool = False,
) -> tuple[dict[str, Any], int]:
    """The contract's document for the tables, one after the other, and the exit code.

    `one` is what is done with a table, where that is more than a look: a repair.
    """
    with (
        Work(config, SyncOptions(force=force), progress, run, spark) as work,
        ThreadPoolExecutor(1, "verify") as pool,
    ):
        tables, unknown = work.resolve(names, False)
        results = [Verified(t.table, error=t.error) for t in unknown]
        work.warm_up()
        for name in tables:
            future = pool.submit(one or _one, work, name, named)
            try:
                while not future.done():  # short waits keep the main thread open to signals
                    wait([future], 0.5)
            except (Interrupted, KeyboardInterrupt):
                pool.shutdown(wait=False, cancel_futures=True)
                work.interrupt()
                wait([future], GRACE)
                raise
            results.append(future.result())
    code = exit_code([r.exit_code for r in results])
    return {"ok": code == 0, "tables": [r.as_json() for r in results]}, code


def _one(work: Work, name: str, named: int) -> Verified:
    began = time.monotonic()
    try:
        work.known_identity()
        with work.session("verify") as session:
            table = discover(session, name, work.config.options(name), work.config.source.database)
        state = loaded_state(work, table)
        found = compare(work, table, state)
        check_compared(table, found)
        if not found:
            with suppress(FloodmarkError):  # of a warehouse that may only be read: equal all the same
                work.warehouse().recount(state.log, table.target)
    except FloodmarkError as error:
        work.progress.end(name, "verify")
        return Verified(name, seconds=time.monotonic() - began, error=error.of(name))
    return Verified(name, found, findings(table, found, named), time.monotonic() - began)


def findings(table: Table, found: Differences, named: int = NAMED) -> tuple[Finding, ...]:
    """The differences as findings: of each kind the first ones."""

    def shown(key: Key) -> str:
        pairs = zip(table.key, key, strict=True)
        return ", ".join(f"{column} = {'NULL' if value is None else value}" for column, value in pairs)

    made = [
        Finding("missing_row", table.name, f"{shown(k)} is not in the warehouse", {"key": list(k)})
        for k in found.missing[:named]
    ]
    made += [
        Finding(
            "extra_row", table.name, f"{shown(k)} is in the warehouse and not at the source", {"key": list(k)}
        )
        for k in found.extra[:named]
    ]
    made += [
        Finding(
            "different_row",
            table.name,
            f"{shown(k)} differs in {', '.join(columns)}"
            if columns
            else f"{shown(k)} is there more than once",
            {"key": list(k), "columns": list(columns)},
        )
        for k, columns in found.different[:named]
    ]
    if not found.agree:
        made.append(_keyless(table, found))
    return tuple(made)


def _keyless(table: Table, found: Differences) -> Finding:
    """Without a key there is only the whole to be named."""
    more = {"rows_source": found.rows_source, "rows_warehouse": found.rows_warehouse}
    if found.rows_source != found.rows_warehouse:
        said = f"{found.rows_source:,} rows at the source, {found.rows_warehouse:,} in the warehouse"
        return Finding("count_mismatch", table.name, said, more)
    said = "as many rows on both sides, but not the same; without a key they can't be named"
    return Finding("different_row", table.name, said, more)
