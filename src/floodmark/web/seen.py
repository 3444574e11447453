"""What the dashboard shows, as values: tables, runs, and all of it at one moment. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any

from floodmark.log.lease import LEASE_SECONDS
from floodmark.log.status import (
    Day,
    ErrorText,
    Killed,
    LastVerify,
    RunOutcome,
    TableOutcome,
    TableStatus,
    run_at,
)
from floodmark.status.facts import Past
from floodmark.status.health import (
    DEFAULT_LIMIT,
    Mark,
    TableFacts,
    TableHealth,
    behind_seconds,
    judge,
    moment,
)
from floodmark.web.ledger import NOT_ASKED, LedgerSeen, Loads, loads_of, waiting

POINTS = 30  # of a sparkline


@dataclass(frozen=True)
class TableHolder:
    """The run that holds a table, and how far it has got."""

    table: str
    run: str
    host: str | None
    pid: int | None
    purpose: str | None
    since: str | None
    stage: str | None = None
    stage_since: str | None = None
    rows: int | None = None
    total: int | None = None
    files: int | None = None
    bytes: int | None = None
    told: str | None = None  # when that was written
    lag: float | None = None  # behind the source, as the run measured it
    lag_ids: int | None = None


def holder_of(facts: TableFacts) -> TableHolder | None:
    """Who holds the table, while its lease is alive, and how far it has got, if it says so."""
    lease, live = facts.lease, facts.live
    if lease is None:
        return None
    if live is None:
        since = run_at(lease.run) or None
        return TableHolder(facts.table, lease.run, lease.owner.host, lease.owner.pid, lease.purpose, since)
    stage_since = next((one.since for one in live.stages if not one.ended), None)
    return TableHolder(
        facts.table, live.run, live.host, live.pid, lease.purpose, live.since, live.stage, stage_since,
        live.rows, live.expected, live.files, live.bytes, live.updated_at, live.lag_seconds, live.lag_ids,
    )  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One table as the overview shows it."""

    name: str
    health: TableHealth
    lag: float | None = None
    lag_ids: int | None = None
    looked: str | None = None
    points: tuple[float | None, ...] = ()
    last: TableOutcome | None = None
    last_success: str | None = None
    pending: int = 0
    verified: LastVerify | None = None
    holder: TableHolder | None = None
    mark: Mark | None = None
    target: float = DEFAULT_LIMIT
    loads: Loads | None = None  # as the ledger has them; None: not known
    at_most: float | None = (
        None  # it may be that far behind by now, in whole minutes; only where that is too far
    )

    @property
    def retired(self) -> bool:
        return self.mark is not None and self.mark.retired

    @property
    def document(self) -> Mapping[str, Any]:
        """The published watermark, without its lists of files."""
        return self.mark.document if self.mark else {}


@dataclass(frozen=True)
class Snapshot:
    """Everything at one moment; `problem` says why it is not newer."""

    at: datetime
    version: int
    rows: tuple[Row, ...] = ()
    runs: tuple[RunOutcome, ...] = ()  # newest first
    days: Mapping[str, tuple[Day, ...]] = field(default_factory=dict)
    problem: str | None = None
    read: bool = True  # False: the store was never read
    ledger: LedgerSeen = NOT_ASKED

    def row(self, name: str) -> Row | None:
        return next((row for row in self.rows if row.name == name), None)

    def run(self, run: str) -> RunOutcome | None:
        return next((one for one in self.runs if one.run == run), None)

    def parts(self, table: str, most: int = 60) -> list[TableOutcome]:
        """A table's parts of the runs that are known, newest first."""
        return list(islice((part for run in self.runs for part in run.tables if part.table == table), most))

    def shows(self, other: Snapshot) -> bool:
        """Whether this one shows the same as the other."""
        here = (self.rows, self.runs, self.days, self.ledger)
        return here == (other.rows, other.runs, other.days, other.ledger)

    @property
    def refused(self) -> RunOutcome | None:
        """The last run, if it failed as a whole and no sync has got further since."""
        last = self.runs[0] if self.runs else None
        if last is None or last.error is None or any((row.looked or "") > last.at for row in self.rows):
            return None
        return last

    @property
    def holders(self) -> list[TableHolder]:
        return [row.holder for row in self.rows if row.holder is not None]


def make_row(
    facts: TableFacts,
    limit: float,
    parts: list[TableOutcome],
    days: Iterable[Day],
    now: datetime,
    ledger: LedgerSeen = NOT_ASKED,
) -> Row:
    """A table's line of the overview; `parts` are its parts of runs, newest first."""
    mark, status = facts.mark or Mark(facts.table), facts.status or TableStatus(facts.table)
    loads = loads_of(mark, ledger)
    work = status.work
    last = next((part for part in parts if not part.idle), work or (parts[0] if parts else None))
    if work is not None and last is not None and work.run > last.run:
        last = work
    lag = facts.lag
    if lag.seconds is None and lag.ids is None:
        lag = next((part.lag for part in parts if part.exit_code != 3), lag)
    pending = waiting(mark, loads)
    health = judge(facts, limit, now, pending=pending)
    total = behind_seconds(facts, now)
    return Row(
        name=facts.table,
        health=health,
        lag=lag.seconds,
        lag_ids=lag.ids,
        looked=status.last_check_time,
        points=points(parts, days),
        last=last,
        last_success=status.success_at or _last_success(mark, status, parts),
        pending=pending,
        verified=status.verify,
        holder=holder_of(facts),
        mark=facts.mark,
        target=limit,
        loads=loads,
        at_most=total // 60 * 60 if total is not None and total > limit else None,
    )


def _last_success(mark: Mark, status: TableStatus, parts: list[TableOutcome]) -> str | None:
    """When a sync of the table last succeeded, where its status does not say so."""
    loaded = mark.document.get("last_redshift_load_time")
    if mark.error is None and status.error is None:
        return latest(status.last_check_time, loaded, mark.document.get("last_mysql_extraction_time"))
    return latest(*(part.at for part in parts if part.ok), loaded)


def killed_runs(tables: Iterable[TableFacts], history: Past, since: str) -> list[RunOutcome]:
    """The runs since then that were killed: of which another run, or only the lease, tells."""
    taken_over = [(t.table, one) for t in tables if t.status for one in t.status.killed]
    known = {run.run for run in history.runs}
    found: dict[str, dict[str, TableOutcome]] = {}
    for table, one in (*taken_over, *history.killed):
        if one.run not in known and one.run >= since:
            found.setdefault(one.run, {}).setdefault(table, _killed(table, one))
    return [
        RunOutcome(
            run, seconds=max(one.seconds for one in by_table.values()), tables=tuple(by_table.values())
        )
        for run, by_table in found.items()
    ]


def _killed(table: str, one: Killed) -> TableOutcome:
    """A table's part of a run that was killed, at the latest when its lease expired."""
    at = run_at(one.run)
    begun, ended = moment(at), moment(one.until)
    seconds = (ended - begun).total_seconds() - LEASE_SECONDS if begun and ended else 0.0
    where = "".join((f", in {one.stage}" if one.stage else "", f", on {one.host}" if one.host else ""))
    error = ErrorText(f"the run was killed{where}")
    return TableOutcome(table, one.run, at, None, max(0.0, seconds), error=error, rows_extracted=one.rows)


def parts_of(runs: Iterable[RunOutcome]) -> dict[str, list[TableOutcome]]:
    """The parts of runs by their tables, in the runs' order."""
    found: dict[str, list[TableOutcome]] = {}
    for run in runs:
        for part in run.tables:
            found.setdefault(part.table, []).append(part)
    return found


def points(parts: list[TableOutcome], days: Iterable[Day]) -> tuple[float | None, ...]:
    """The lag over time, oldest first: of the runs that are known, else the worst of each day."""
    of_runs = [part.behind for part in parts[:POINTS]][::-1]
    known = [value for value in of_runs if value is not None]
    if len(known) >= 3:
        return tuple(of_runs)
    of_days = [worst_lag(day) for day in days][-POINTS:]
    return tuple(of_days) if len(of_days) > len(of_runs) else tuple(of_runs)


def worst_lag(day: Day) -> float | None:
    """The worst lag of a day, in seconds or ids."""
    return day.worst_lag_seconds if day.worst_lag_seconds is not None else day.worst_lag_ids


def latest(*times: object) -> str | None:
    """The latest of some moments; unknown ones are ignored."""
    return max((str(one) for one in times if one), default=None)


def worst_first(rows: Iterable[Row]) -> list[Row]:
    """The rows by health, then by how far they are behind, then by name; retired tables last."""
    return sorted(
        rows, key=lambda r: (r.retired, r.health.rank, -(r.at_most or r.lag or 0.0), -r.pending, r.name)
    )
