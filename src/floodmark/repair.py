"""`verify --repair`: rows that are missing or differ are extracted again, rows that are extra become deletes.

All of it under one claim, as commits like any other that move no position; the later read wins. Whatever dies in
between leaves commits that the next sync loads, or nothing. Then source and warehouse are compared again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from floodmark.compare import Differences, check_compared, compare
from floodmark.deletes import read_again, remove
from floodmark.errors import ConfigError, FloodmarkError
from floodmark.model import LoadAs, Table
from floodmark.mysql import edges
from floodmark.mysql.discover import discover
from floodmark.mysql.keys import gone
from floodmark.origin import check_origin
from floodmark.plan import temporal
from floodmark.report import TableReport
from floodmark.settle import settle
from floodmark.sync import TableRun
from floodmark.verify import Verified, findings
from floodmark.work import Work


@dataclass(frozen=True)
class Repaired:
    """What a repair found, did, and left."""

    table: Table
    before: Differences
    after: Differences
    report: TableReport

    @property
    def rows(self) -> int:
        """Rows that were read again or removed."""
        return self.report.rows_reread + self.report.rows_extracted + self.report.rows_deleted


def repair(work: Work, name: str) -> Repaired:
    """Compares, mends what differs, and compares again; what was pending is loaded first."""
    run = TableRun(work, name, 1)
    run.loader.repairs = True
    try:
        run.state = run.log.read()
        work.known_identity()
        run.load()
        with work.session("verify") as session:
            table = discover(session, name, run.options, work.config.source.database)
        found = compare(work, table, run.state)
        check_compared(table, found)
        after = found
        if found:
            _mend(run, table, found)
            run.load()
            after = compare(work, table, run.state)
        if not after:
            run.loader.accept_rows(run.state)
        return Repaired(table, found, after, run.report)
    finally:
        run.loader.abandon()
        run.release()


def verified(work: Work, name: str, named: int) -> Verified:
    """What `verify --repair` says of one table: what was repaired, and what is left."""
    began = time.monotonic()
    try:
        done = repair(work, name)
    except FloodmarkError as error:
        work.progress.end(name, "verify")
        return Verified(name, seconds=time.monotonic() - began, error=error.of(name))
    seconds = time.monotonic() - began
    return Verified(name, done.after, findings(done.table, done.after, named), seconds, repaired=done.rows)


def _mend(run: TableRun, table: Table, found: Differences) -> None:
    if table.mode == "full":
        run.extract()  # a new snapshot takes the place of everything
        return
    if not table.key:
        raise ConfigError(
            "a table without a key can't be repaired row by row",
            hint=f"read it again into an empty target: floodmark watermark reset -t {table.name} --force",
            table=table.name,
        )
    if found.extra:
        with run.work.session("verify") as session:
            newest, back_to = edges.last(session, table, None), None
            if temporal(table):
                looks, position = run.work.looks, run.state.position
                back_to = settle(session, table, run.state, position, run.options, looks).back_to
            check_origin(session, table, run.state, run.work.looks, newest, back_to=back_to)
    run.hold("repair", table)
    with run.work.session("verify") as session:
        absent = set(gone(session, table, found.extra))
    # A row that is there twice, or reads otherwise than at the source, is extra too: it is read again.
    there = (key for key in found.extra if key not in absent)
    different = (key for key, _ in found.different)
    read_again(run, table, (*found.missing, *different, *there), purpose="repair")
    way: LoadAs = "mark" if run.options.deletes == "soft" else "delete"
    rows = found.rows_warehouse
    remove(run, table, tuple(absent), way, purpose="repair", rows=rows, force=run.request.force)
