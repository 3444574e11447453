"""Objects of the store as values for the dashboard: small ones, without the lists of files. Pure.

Everything here is derived and may be damaged, of another version or written by someone else: what can't be read is
None, and the page shows it as unknown. Free text is masked as it comes in.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from floodmark.commit.checks import parse_check
from floodmark.commit.lease import LEASE_SECONDS
from floodmark.commit.status import Day, DoctorResult, parse_month
from floodmark.model.errors import exit_code
from floodmark.model.run import Lag
from floodmark.model.times import parse_moment
from floodmark.web.seen import Document, Holder, Part, Run, Verified, run_at

Scrub = Callable[[str], str]
# Lists that may have a thousand entries per table; only their lengths are shown.
_LISTS = ("processed_s3_files", "pending_s3_files")
_LOADED = ("epoch", "commits", "files")  # of what the ledger had when the watermark was published
_MOST_TEXT = 2000  # characters of a message
_MOST_NOTES = 50


def _object(data: bytes | None) -> dict[str, Any] | None:
    try:
        found = json.loads(data or b"")
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _whole(value: object) -> int:
    return int(value) if isinstance(value, int | float) else 0


def _maybe(value: object) -> int | None:
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _said(value: object, scrub: Scrub) -> str | None:
    return scrub(str(value))[:_MOST_TEXT] if value else None


def masked(value: Any, scrub: Scrub) -> Any:
    """A document with every text in it masked."""
    if isinstance(value, dict):
        return {name: masked(inner, scrub) for name, inner in value.items()}
    if isinstance(value, list):
        return [masked(inner, scrub) for inner in value]
    return scrub(value) if isinstance(value, str) else value


def masked_doctor(found: DoctorResult, scrub: Scrub) -> DoctorResult:
    """Doctor's result with every text in it masked."""
    return replace(found, checks=tuple(masked(one, scrub) for one in found.checks))


def _listed(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def watermark(data: bytes | None, scrub: Scrub) -> Document | None:
    """A published watermark, with its lists of files as counts; None if it is not one."""
    found = _object(data)
    if found is None or not isinstance(found.get("table_name"), str):
        return None
    checkpoint = found.pop("checkpoint", None)
    for name in _LISTS:
        listed = found.pop(name, None)
        found[name.replace("_s3", "")] = len(listed) if isinstance(listed, list) else 0
    found["last_error"] = _said(found.get("last_error"), scrub)
    state = _at(checkpoint, "body", "state")
    found["open"] = bool(state.get("window") or state.get("reread"))
    found["log"], found["load_epoch"] = state.get("log"), state.get("load_epoch")
    found["loaded"] = {key: _at(checkpoint, "body", "load").get(key) for key in _LOADED}
    found["staged_bytes"] = _whole(state.get("bytes"))
    table = _at(state, "table")
    found["mode"], found["target"] = table.get("mode"), table.get("target")
    return found


def _at(value: object, *names: str) -> Mapping[str, Any]:
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def run(data: bytes | None, scrub: Scrub) -> Run | None:
    """A run's report, without the watermarks in it."""
    found = _object(data)
    if found is None or not isinstance(found.get("run"), str):
        return None
    begun = run_at(found["run"])
    parts = tuple(
        _part(found["run"], begun, one, scrub)
        for one in _listed(found.get("tables"))
        if isinstance(one, dict) and isinstance(one.get("table"), str)
    )
    error = _at(found, "error")
    codes = [_whole(error.get("code"))] if error else [part.exit_code or 0 for part in parts]
    return Run(
        found["run"],
        begun,
        bool(found.get("ok")),
        exit_code(codes),
        _number(found.get("seconds")) or 0.0,
        parts,
        _said(error.get("message"), scrub),
        _said(error.get("hint"), scrub),
    )


def _part(run: str, begun: str, one: Mapping[str, Any], scrub: Scrub) -> Part:
    """A table's part of a run: as the run's report has it, or as the check object has the last run's work."""
    error, before = _at(one, "error"), _at(one, "lag_before")
    lag = _at(one, "lag_after") or before
    notes, findings = _listed(one.get("notes")), _listed(one.get("findings"))
    stages, code = _at(one, "stage_seconds") or _at(one, "stages"), _whole(one.get("exit_code"))
    return Part(
        run=run,
        table=one["table"],
        ok=bool(one.get("ok", code == 0)),
        exit_code=code,
        at=begun or str(one.get("at") or ""),
        seconds=_number(one.get("seconds")) or 0.0,
        rows=_whole(one.get("rows_extracted")),
        reread=_whole(one.get("rows_reread")),
        loaded=_whole(one.get("rows_loaded")),
        deleted=_whole(one.get("rows_deleted")),
        bytes=_whole(one.get("bytes_written", one.get("bytes"))),
        files=_whole(one.get("files_written", one.get("files"))),
        lag=_number(lag.get("seconds")),
        lag_ids=_maybe(lag.get("ids")),
        strategy=str(one["strategy"]) if one.get("strategy") else None,
        error=_said(error.get("message"), scrub),
        hint=_said(error.get("hint"), scrub),
        notes=tuple(said for note in notes[:_MOST_NOTES] if (said := _said(note, scrub))),
        findings=tuple(finding(one, scrub) for one in findings[:_MOST_NOTES]),
        stages=tuple((str(name), _number(value) or 0.0) for name, value in stages.items()),
        began_behind=_number(before.get("seconds"))
        if before.get("seconds") is not None
        else _number(before.get("ids")),
    )


def finding(found: object, scrub: Scrub) -> str:
    """A finding in a line: its kind, and what it says."""
    if not isinstance(found, Mapping):
        return _said(found, scrub) or ""
    said = _said(found.get("detail"), scrub) or ""
    return f"{str(found.get('kind', 'finding')).replace('_', ' ')}: {said}".rstrip(": ")


def verified(data: bytes | None, scrub: Scrub) -> Verified | None:
    """The last verify of a table."""
    found = _object(data)
    if found is None or not isinstance(found.get("at"), str):
        return None
    listed = _listed(found.get("findings"))
    counted = sum(_whole(found.get(kind)) for kind in ("missing", "extra", "different"))
    return Verified(
        found["at"],
        max(counted, len(listed), 0 if found.get("ok", True) else 1),
        _maybe(found.get("rows_source")),
        _maybe(found.get("rows_warehouse")),
        tuple(finding(one, scrub) for one in listed[:_MOST_NOTES]),
    )


@dataclass(frozen=True)
class Checked:
    """What the last run of a table left in its check object."""

    table: str
    looked: str | None
    caught_up: str | None  # when a run last looked and committed all that there was
    success: str | None
    failure: str | None
    failed_at: str | None
    lag: float | None
    lag_ids: int | None
    last: Part | None
    today: Day | None
    killed: tuple[Part, ...] = ()  # of runs that were killed


def check(data: bytes | None, scrub: Scrub) -> Checked | None:
    """A check object; those of earlier versions have only the time of the look, and why a table without a log failed."""
    found = parse_check(data)
    if found is None:
        return None
    # Exit codes 3 and 7 don't count as failures: another run has the table, or verify has found differences.
    failed = found.exit_code not in (None, 0, 3, 7)
    failure, lag, work = found.failure, found.lag or Lag(), found.work
    return Checked(
        found.table_name,
        found.last_check_time,
        found.caught_up_at,
        found.success_at,
        _said(failure.message if failure else found.error if failed else None, scrub),
        failure.at if failure else found.at if failed else None,
        lag.seconds,
        lag.ids,
        _part(work.run, run_at(work.run), {**asdict(work), "table": found.table_name}, scrub)
        if work
        else None,
        found.today,
        tuple(
            killed_part(found.table_name, one.run, one.until, one.rows, one.stage, one.host)
            for one in found.killed
        ),
    )


def killed_part(
    table: str, run: str, until: str | None, rows: int, stage: str | None, host: str | None
) -> Part:
    """A table's part of a run that was killed, at the latest when its lease expired."""
    begun = run_at(run)
    try:
        seconds = max(0.0, (parse_moment(until or "") - parse_moment(begun)).total_seconds() - LEASE_SECONDS)
    except ValueError:
        seconds = 0.0
    where = "".join((f", in {stage}" if stage else "", f", on {host}" if host else ""))
    return Part(run, table, False, None, begun, seconds, rows=rows, error=f"the run was killed{where}")


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def live(data: bytes | None) -> Holder | None:
    """The progress of the run that holds a table; only the lease says whether it still does."""
    found = _object(data)
    if found is None or not isinstance(found.get("table_name"), str) or not isinstance(found.get("run"), str):
        return None
    now = [one for one in _listed(found.get("stages")) if _at(one) and not one.get("ended")]
    since = _text(now[0].get("since")) if now else None
    return Holder(
        table=found["table_name"],
        run=found["run"],
        host=_text(found.get("host")),
        pid=_maybe(found.get("pid")),
        purpose=None,
        since=_text(found.get("since")),
        stage=_text(found.get("stage")),
        stage_since=since,
        rows=_maybe(found.get("rows")),
        total=_maybe(found.get("expected")),
        files=_maybe(found.get("files")),
        bytes=_maybe(found.get("bytes")),
        told=_text(found.get("updated_at")),
        lag=_number(found.get("lag_seconds")),
        lag_ids=_maybe(found.get("lag_ids")),
    )


def days(data: bytes | None) -> tuple[Day, ...]:
    """The days of one month of a table, in order."""
    found = parse_month(data)
    return found.days if found is not None else ()
