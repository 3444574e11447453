"""`verify`: compares the source's tables with their targets, and turns the differences into findings.

`sync --verify-data` compares what a run has loaded before the run counts as a success: the rows from the lowest cursor
in the loaded files up to the watermark, along the cursor's index if they are few, and those without a place in the
change order, which every sync reads. A snapshot's rows are compared with its digest if there is one, else counted:
changes at the source since the read can't be told from errors.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace

from floodmark.config.load import Config
from floodmark.extract.keys import read_keys
from floodmark.log import pipeline, status
from floodmark.log.fold import State
from floodmark.log.status import write_verify
from floodmark.model.canonical import printed
from floodmark.model.commit import Batch, WithFiles
from floodmark.model.errors import ConfigError, FloodmarkError, Interrupted, VerificationError, exit_code
from floodmark.model.events import Compared, Emit, RunBegan, StageEnded
from floodmark.model.position import Key, Position
from floodmark.model.results import Failure, VerifiedTable, VerifyResult
from floodmark.model.run import Finding
from floodmark.model.table import Table
from floodmark.model.times import just_before, stamp
from floodmark.plan.tables import StoredTables
from floodmark.services import Services
from floodmark.spark.context import Spark, WarmSpark
from floodmark.verify.changed import unexplained
from floodmark.verify.compare import (
    check_compared,
    check_different,
    compare,
    described,
    holds,
    last_snapshot,
    loaded_state,
    waiting,
)
from floodmark.verify.lookup import Differences, look_up
from floodmark.verify.scope import scope_of

# Default number of rows named per kind.
NAMED = 20
# Why a difference may be none once a sync has run.
LOOSE = "its cursor is NULL, zero or in the future, so it may only have changed since the last sync"
# Rows that are looked up by key after a load.
BY_KEY = 50_000
# Seconds that an interrupted verify may take to end its tasks.
GRACE = 5.0


@dataclass(frozen=True)
class Verified:
    """One table's part of the result."""

    table: str
    differences: Differences = field(default_factory=Differences)
    findings: tuple[Finding, ...] = ()
    seconds: float = 0.0
    error: FloodmarkError | None = None
    repaired: int | None = None  # rows; None if there was nothing to repair

    @property
    def exit_code(self) -> int:
        if self.error is not None:
            return self.error.code
        return VerificationError.code if self.differences else 0

    @property
    def result(self) -> VerifiedTable:
        """What people and programs see of it."""
        found, known = self.differences, self.error is None
        repaired = {} if self.repaired is None else {"repaired": self.repaired}
        return VerifiedTable(
            table=self.table,
            ok=self.exit_code == 0,
            rows_source=found.rows_source if known else None,
            rows_warehouse=found.rows_warehouse if known else None,
            rows_left_out=found.left_out if known else None,
            missing=len(found.missing),
            extra=len(found.extra),
            different=len(found.different),
            loose=len(found.loose),
            rows_changed=found.changed,
            compared_with=found.compared_with,
            findings=self.findings,
            **repaired,
            notes=tuple(found.notes),
            seconds=round(self.seconds, 3),
            error=Failure.by(self.error),
        )


def verify(
    config: Config,
    names: Sequence[str],
    emit: Emit,
    run: str,
    *,
    named: int = NAMED,
    spark: Spark | WarmSpark | None = None,
    one: Callable[[Services, str, int], Verified] | None = None,
    all_tables: bool = False,
    ended: Callable[[VerifiedTable], None] = lambda result: None,
) -> tuple[VerifyResult, int]:
    """The result of the tables, one after the other, and the exit code.

    `all_tables` means the same tables as `sync --all`. `one` is what to do with each table if not just
    compare it: a repair. `ended` is called with each table's result as soon as there is one.
    """
    emit(RunBegan("", run, "verify"))
    with (
        Services(config, emit, run, spark) as services,
        ThreadPoolExecutor(1, "verify") as pool,
    ):
        services.need_spark()
        stored = StoredTables(config, services.store)
        tables, unknown = stored.resolve(services.session, names, all_tables)
        if all_tables:
            tables = [name for name in tables if not stored.retired(name)]
        if not tables and not unknown:
            raise ConfigError(
                "nothing to compare: every table is retired",
                hint="name the tables: floodmark verify -t schema.table",
            )
        results = [Verified(t.table, error=t.error) for t in unknown]
        services.warm_up()
        for name in tables:
            future = pool.submit(one or _one, services, name, named)
            try:
                while not future.done():  # short waits let the main thread handle signals
                    wait([future], 0.5)
            except (Interrupted, KeyboardInterrupt):
                pool.shutdown(wait=False, cancel_futures=True)
                services.interrupt()
                wait([future], GRACE)
                raise
            results.append(result := future.result())
            ended(result.result)
            if result.error is None:
                write_verify(services.store, status_of(result, run))
    code = exit_code([r.exit_code for r in results])
    compared = tuple(r.result for r in results)
    emit(Compared("", run, compared, code))
    return VerifyResult(ok=code == 0, tables=compared), code


def status_of(result: Verified, run: str) -> status.LastVerify:
    """The part of a result that is stored as the table's last verify."""
    found = result.differences
    return status.LastVerify(
        result.table, run, stamp(), round(result.seconds, 3), not found,
        by="verify" if result.repaired is None else "repair",
        low=found.low, high=found.high,
        rows_source=found.rows_source, rows_warehouse=found.rows_warehouse, rows_left_out=found.left_out,
        missing=len(found.missing), extra=len(found.extra), different=len(found.different),
        repaired=result.repaired, findings=tuple(f.as_json() for f in result.findings),
    )  # fmt: skip


def _one(services: Services, name: str, named: int) -> Verified:
    began = time.monotonic()
    try:
        identity = pipeline.check(services.store, services.config.warehouse.label)
        table, state, found = services.sources.twice(lambda: _compared(services, name))
        if not found:
            with suppress(FloodmarkError):  # the warehouse may be read-only; the rows agree all the same
                services.warehouse().recount(identity.id if identity else "", state.log, table.target)
    except FloodmarkError as error:
        services.emit(StageEnded(name, "verify"))
        return Verified(name, seconds=time.monotonic() - began, error=error.of(name))
    return Verified(name, found, findings(table, found, named), time.monotonic() - began)


def _compared(services: Services, name: str) -> tuple[Table, State, Differences]:
    with services.session("verify") as session:
        table = described(services, session, name)
    state = loaded_state(services, table)
    found = compare(services, table, state)
    check_compared(table, found)
    found = unexplained(services, table, state, found)
    if found:
        check_different(services, table, state)
    return table, state, found


_GONE = "not at the source"
_OUTSIDE = "does not match `where` at the source"


def findings(table: Table, found: Differences, named: int = NAMED) -> tuple[Finding, ...]:
    """The differences as findings: the first few of each kind."""

    def shown(key: Key) -> str:
        pairs = zip(table.key, key, strict=True)
        return ", ".join(f"{column} = {'NULL' if value is None else value}" for column, value in pairs)

    def finding(kind: str, key: Key, said: str, **more: object) -> Finding:
        loose = {"loose": True} if key in found.loose else {}
        because = f"; {LOOSE}" if loose else ""
        return Finding(kind, table.name, f"{shown(key)} {said}{because}", {"key": list(key), **more, **loose})

    made = [finding("missing_row", k, "is not in the warehouse") for k in found.missing[:named]]
    outside = set(found.outside)
    made += [
        finding("extra_row", k, f"is in the warehouse but {_OUTSIDE if k in outside else _GONE}")
        for k in found.extra[:named]
    ]
    made += [
        finding(
            "different_row",
            k,
            f"differs in {', '.join(columns)}" if columns else "is in the warehouse more than once",
            columns=list(columns),
        )
        for k, columns in found.different[:named]
    ]
    if not found.agree:
        made.append(_unnamed(table, found))
    return tuple(made)


def _unnamed(table: Table, found: Differences) -> Finding:
    """The finding where single rows can't be named, as in a table without a key."""
    more = {"rows_source": found.rows_source, "rows_warehouse": found.rows_warehouse}
    if found.rows_source != found.rows_warehouse:
        said = f"{found.rows_source:,} rows at the source, {found.rows_warehouse:,} in the warehouse"
        return Finding("count_mismatch", table.name, said, more)
    why = "no single row could be named" if table.key else "without a key they can't be named"
    said = f"both sides have the same number of rows, but not the same rows; {why}"
    return Finding("different_row", table.name, said, more)


# ---------------------------------------------------------------- sync --verify-data


@dataclass(frozen=True)
class Checked:
    """The outcome: how many rows still waited to be loaded, what was compared, and the findings."""

    waiting: int = 0
    differences: Differences | None = None  # None: rows were only counted, or nothing was compared
    findings: tuple[Finding, ...] = ()


def verify_loaded(services: Services, name: str, state: State, commits: Sequence[WithFiles]) -> Checked:
    """Compares what these commits have loaded into the warehouse with the source, as it is now."""
    return services.sources.twice(lambda: _verified(services, name, state, commits))


def _verified(services: Services, name: str, state: State, commits: Sequence[WithFiles]) -> Checked:
    with services.session("verify") as session:
        table = described(services, session, name)
    if rows := waiting(services, table, state):
        return Checked(waiting=rows)
    if table.mode == "full":
        return Checked(findings=_snapshot(services, table, state, commits))
    if table.follows:
        return _followed(services, table, state, commits)
    read = [commit for commit in commits if isinstance(commit, Batch)]
    firsts = [file.first for commit in read for file in commit.files if file.first]
    moved = sum(commit.rows for commit in read)
    if not moved or state.position is None:
        return Checked()
    since = before(table, firsts) if firsts else state.position
    differences = compare(services, table, state, since=since, expected_rows=moved)
    # A row that the source no longer has was deleted after it was read: that is up to `deletes`.
    kept = replace(differences, extra=())
    if kept:
        check_different(services, table, state)
    return Checked(differences=kept, findings=findings(table, kept))


def _followed(services: Services, table: Table, state: State, commits: Sequence[WithFiles]) -> Checked:
    """The rows behind the keys in the loaded files; the whole table if they are many, as after a copy."""
    files = [file for commit in commits for file in commit.files]
    many = sum(file.rows for file in files) > BY_KEY or state.followed_to is None
    if many or any(isinstance(commit, Batch) and commit.window_id for commit in commits):
        found = compare(services, table, state)
    else:
        keys, scope = read_keys(services.store, table, files), scope_of(services, table, state, False)[0]
        names = [printed(form, keys.column(form.field.name)) for form in scope.keys]
        found = look_up(services, scope, list(zip(*names, strict=True)))
        found = replace(found, rows_source=keys.num_rows, rows_warehouse=keys.num_rows)
    if services.config.options(table.name).deletes == "ignore":
        found = replace(found, extra=())
    left = unexplained(services, table, state, found)
    return Checked(differences=left, findings=findings(table, left))


def _snapshot(
    services: Services, table: Table, state: State, commits: Iterable[WithFiles]
) -> tuple[Finding, ...]:
    expected = next((c.rows for c in reversed(list(commits)) if c.load_as == "replace"), None)
    rows = services.warehouse().rows(table.target)
    more = {"rows": rows, "expected": expected}
    if expected is None:
        return ()
    if rows != expected:
        detail = f"{table.target} has {rows:,} rows, but the loaded snapshot has {expected:,}"
        return (Finding("count_mismatch", table.name, detail, more),)
    promised = last_snapshot(services, state)
    if promised is None or holds(services, state, promised) is not False:
        return ()
    detail = f"{table.target} has as many rows as the loaded snapshot, but not the same"
    return (Finding("different_row", table.name, detail, more),)


def before(table: Table, firsts: Iterable[Position]) -> Position | None:
    """A position right before the lowest cursor; None if the cursor's type has no such value."""
    value = just_before(table, *(first[0] for first in firsts))
    return None if value is None else (value,)
