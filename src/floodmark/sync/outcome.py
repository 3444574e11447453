"""What people see when a table's run ends: success or failure, and when it looked.

Every failed attempt is published, even one that failed before planning. While another run holds the table,
that run reports on it, and this one stays silent.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from floodmark.log.document import StageFailure
from floodmark.log.held import HeldTable
from floodmark.log.lease import activity, holder
from floodmark.log.status import read_status
from floodmark.model.errors import ConflictError, FloodmarkError
from floodmark.model.results import Watermark
from floodmark.model.run import EXTRACT, LOAD, Stage, SyncOptions
from floodmark.model.times import parse_moment, stamp
from floodmark.sync.loader import Loader

log = logging.getLogger("floodmark")

# Minimum time before the same failure of a table is published again.
TOLD_EVERY = timedelta(minutes=5)


@dataclass(frozen=True)
class Told:
    """What is shown of a failed run, and whether it was ours to report."""

    shown: Watermark | None
    failure: StageFailure | None = None  # goes into the status only, because there is no log
    ours: bool = True


def succeeded(
    held: HeldTable, loader: Loader, asked: SyncOptions, *, idle: bool, looked: str | None
) -> Watermark:
    """The document to show after a success; published only if something changed."""
    stages: tuple[Stage, ...] = (
        *(() if asked.load_only else EXTRACT),
        *(() if asked.backup_only else LOAD),
    )
    overcome = any(f.stage in stages for f in held.watermark.failures)
    # Until a count of version 0.1.0 is published anew, every run has to read the whole log.
    untold = not asked.dry_run and (overcome or held.log.counted_anew)
    # A claim is a commit, too.
    if not idle or held.lease is not None or (untold and _may_speak(held, loader)):
        shown = held.watermark.publish(held.state, _ledger_rows(loader), succeeded=stages)
    else:
        shown = held.watermark.current(held.state, _ledger_rows(loader))
    return _with_activity(held, shown, looked or _last_look(held))


def failed(
    held: HeldTable,
    loader: Loader,
    asked: SyncOptions,
    error: FloodmarkError,
    *,
    looked: str | None,
    ours: bool = True,
) -> Told:
    """Publishes the reason for a failure with the watermark, unless another run holds the table or it is not `ours`."""
    unlogged = None
    conflict = error.code == ConflictError.code
    if conflict:
        held.watermark.drop_due()
    try:
        looked = looked or _last_look(held)
        if conflict or asked.dry_run or not ours or not _may_speak(held, loader):
            held.watermark.drop_due()
            shown = held.watermark.current(held.state, _ledger_rows(loader))
            return Told(_with_activity(held, shown, looked), ours=False)
        failure = StageFailure("load" if loader.failed else "extract", error.message, stamp())
        if held.state.n < 0:  # no log yet, so there is no copy of it to publish
            unlogged = failure
            shown = held.watermark.current(held.state, _ledger_rows(loader), failure)
        elif held.lease is None and any(_same(f, failure) for f in held.watermark.failures):
            shown = held.watermark.current(held.state, _ledger_rows(loader), failure)
        else:
            shown = held.watermark.publish(held.state, _ledger_rows(loader), failure=failure)
        return Told(_with_activity(held, shown, looked), unlogged)
    except FloodmarkError as other:
        name = held.log.table_name
        log.info("the failure could not be published: %s", other.message, extra={"table": name})
        return Told(None, ours=False)


def _may_speak(held: HeldTable, loader: Loader) -> bool:
    """Whether no other run holds the table."""
    before = held.state.digest
    free = held.may_speak()
    if held.state.digest != before:  # changed by another run: our copy of the ledger is out of date
        loader.ledger = None
    return free


def _same(known: StageFailure, now: StageFailure) -> bool:
    """Whether the failure was published recently: a resident sync must not leave a copy per failed cycle."""
    if replace(known, at=now.at) != now:
        return False
    age = parse_moment(now.at) - parse_moment(known.at)
    return timedelta(0) <= age < TOLD_EVERY


def _last_look(held: HeldTable) -> str | None:
    status = read_status(held.log.store, held.log.table_name)
    return status.last_check_time if status else None


def _ledger_rows(loader: Loader) -> Any:
    return loader.ledger.rows if loader.ledger is not None else None


def _with_activity(held: HeldTable, shown: dict[str, Any], looked: str | None) -> Watermark:
    """The document as `watermark get` would show it once the run has released the table."""
    other = None
    if held.lease is None:
        other = holder(held.log.store, held.log.table_name, held.state.claim)
    return Watermark.of({**shown, "activity": activity(held.state, other), "last_check_time": looked})
