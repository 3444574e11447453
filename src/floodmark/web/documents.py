"""The JSON twins of the pages. Pure."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Any

from floodmark.log.status import DoctorResult, LastVerify, RunOutcome, TableOutcome
from floodmark.model.times import stamp
from floodmark.web.detail import House
from floodmark.web.pages import Places, job, sums, totals, verify_findings
from floodmark.web.snapshot import Row, Snapshot

Document = dict[str, Any]


def _head(snapshot: Snapshot) -> Document:
    return {"at": stamp(snapshot.at), "problem": snapshot.problem}


def overview(snapshot: Snapshot, now: datetime) -> Document:
    """Every table in a line, worst first, and the totals."""
    return {
        **_head(snapshot),
        "totals": {"tables": len(snapshot.rows), **dict(totals(snapshot.rows)), **sums(snapshot, now)},
        "tables": [_row(row) for row in snapshot.rows],
    }


def _row(row: Row) -> Document:
    return {
        "table": row.name,
        "health": row.health.word,
        "why": row.health.why or None,
        "running": row.holder is not None,
        "retired": row.retired,
        "lag_seconds": row.lag.seconds,
        "lag_ids": row.lag.ids,
        "lag_points": list(row.points),
        "target_seconds": row.target,
        "last_check_time": row.looked,
        "last_success_time": row.last_success,
        "last_run": part(row.last) if row.last else None,
        "pending_files": row.pending,
        "verified": verified(row.verified) if row.verified else None,
    }


def _only(value: object, *names: str) -> Document:
    return {name: getattr(value, name) for name in names}


def verified(one: LastVerify) -> Document:
    """The last verify of a table."""
    shown = _only(one, "at", "differences", "rows_source", "rows_warehouse")
    return {**shown, "findings": verify_findings(one)}


def part(one: TableOutcome) -> Document:
    """One table's part of a run."""
    rows = ("rows_extracted", "rows_reread", "rows_loaded", "rows_deleted")
    return {
        **_only(one, "run", "table", "ok", "exit_code"),
        "began": one.at,
        **_only(one, "seconds", *rows, "bytes_written", "files_written"),
        "error": one.error.message if one.error else None,
    }


def tables(snapshot: Snapshot) -> Document:
    """The watermarks as they were published, without their lists of files."""
    return {
        "tables": [row.document for row in sorted(snapshot.rows, key=lambda row: row.name) if row.document]
    }


def runs(snapshot: Snapshot) -> Document:
    """The runs that are known, newest first."""
    return {**_head(snapshot), "runs": [_run(run) for run in snapshot.runs]}


def _run(run: RunOutcome) -> Document:
    return {
        **_only(run, "run", "ok", "exit_code"),
        "began": run.at,
        "seconds": run.seconds,
        "tables": len(run.tables),
        "rows_extracted": sum(one.rows_extracted for one in run.tables),
    }


def killed(run: RunOutcome) -> Document:
    """A killed run, in the form of the report it did not write."""
    return {"run": run.run, "ok": False, "exit_code": None, "tables": [part(one) for one in run.tables]}


def working(snapshot: Snapshot, now: datetime) -> Document:
    """What is running now, and how far it has got."""
    return {**_head(snapshot), "running": [asdict(job(holder, now)) for holder in snapshot.holders]}


def house(snapshot: Snapshot, places: Places, house: House | None, doctor: DoctorResult | None) -> Document:
    """Where things are, what is in the store, once that has been counted, the ledger, and doctor's last result."""
    return {
        **asdict(places),
        "store_counts": asdict(house) if house else None,
        "ledger": ledger(snapshot),
        "doctor": asdict(doctor) if doctor else None,
    }


def ledger(snapshot: Snapshot) -> Document:
    """What the ledger last said, and the tables of which it says something else than was published."""
    seen = snapshot.ledger
    sums = seen.sums.values()
    return {
        "asked": not seen.off,
        "at": seen.at,
        "problem": seen.problem,
        **{what: sum(getattr(one, what) for one in sums) for what in ("commits", "rows", "files")},
        "tables": [
            {"table": row.name, "commits": row.loads.commits, "commits_published": row.loads.published}
            for row in snapshot.rows
            if row.loads is not None and not row.loads.agrees
        ],
    }
