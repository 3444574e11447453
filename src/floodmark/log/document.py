"""The watermark as people see it: the state of both stages of a table as the contract's document. Pure.

A document is derived from the log's fold and the ledger, never the other way round. The ledger's rows are
condensed first (`LoadStatus`), so that the published copies can say how far the load was while the warehouse
is unavailable. Only rows of the state's own load epoch count.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from floodmark.log.fold import NO_ROWS, RECENT_FILES, Counted, DataCommit, State, counted, sum_digests, within
from floodmark.model.ledger import SUMMED_DIGITS, LedgerRow
from floodmark.model.position import Value
from floodmark.model.run import Stage
from floodmark.model.table import Table
from floodmark.model.times import TEMPORAL, data_timestamp
from floodmark.store.store import Store, encode, home

log = logging.getLogger("floodmark")

# Incremented when the fold or the condensed ledger changes meaning; other versions' checkpoints are ignored.
CHECKPOINT_VERSION = 1


@dataclass(frozen=True)
class StageFailure:
    """Why a stage failed, kept until its next success."""

    stage: Stage
    message: str
    at: str


@dataclass(frozen=True)
class Checkpoint:
    """Everything a document is derived from; a reader resumes the fold here."""

    state: State
    load: LoadStatus
    failures: tuple[StageFailure, ...] = ()
    version: int = CHECKPOINT_VERSION


@dataclass(frozen=True)
class Copy:
    """One published copy, read and found sound."""

    checkpoint: Checkpoint
    saved: dict[str, Any]  # its backup_metadata
    tail: tuple[bytes, ...] = ()  # the newest commits up to the checkpoint's, byte for byte


@dataclass(frozen=True)
class Flaw:
    """Why a copy is unusable: missing, damaged, of another version, behind, or its place could not be read."""

    kind: Literal["missing", "damaged", "other_version", "behind", "unknown"]
    said: str

    def __str__(self) -> str:
        return self.said


def commit_path(table_name: str, n: int) -> str:
    """A commit's path: twenty digits, so that names sort like numbers."""
    return f"{home(table_name)}commits/{encode(table_name)}/{n:020d}.json"


def commit_numbers(store: Store, table_name: str, after: int = -1) -> list[int]:
    """The numbers of a table's commits in a store or place, readable or not."""
    folder = commit_path(table_name, 0).rpartition("/")[0] + "/"
    start = commit_path(table_name, after) if after >= 0 else None
    names = (item.path.rpartition("/")[2] for item in store.list(folder, start_after=start))
    return [int(name[:20]) for name in names if re.fullmatch(r"\d{20}\.json", name)]


def primary_path(table_name: str) -> str:
    """The path of the primary copy, which is read first."""
    return f"{home(table_name)}watermark/tables/{encode(table_name)}.json"


def daily_path(table_name: str, saved_at: str) -> str:
    """The path of the day's last copy (UTC)."""
    day = saved_at[:10].replace("-", "")
    return f"{home(table_name)}watermark/backups/daily/{encode(table_name)}_{day}.json"


def sessions(table_name: str) -> str:
    """The folder with a folder for each run that has published."""
    return f"{home(table_name)}watermark/backups/sessions/"


def session_path(table_name: str, run: str) -> str:
    """The path of the run's last copy."""
    return f"{sessions(table_name)}{run}/{encode(table_name)}.json"


def observe(
    state: State,
    ledger: Iterable[LedgerRow] | None,
    last: Copy | None = None,
    *,
    failure: StageFailure | None = None,
    succeeded: Collection[Stage] = (),
    lookup: Lookup = lambda numbers: (),
) -> Checkpoint:
    """Both stages as they are now; without a ledger, the load stage as last known."""
    if ledger is not None:
        loaded = condense(state, ledger, lookup)
    else:
        loaded = last_known(
            state, last.checkpoint.load if last else None, last.saved.get("saved_at") if last else None
        )
    failures = [f for f in last.checkpoint.failures if not _overcome(f, state, loaded)] if last else []
    kept = [f for f in failures if f.stage not in succeeded and not (failure and f.stage == failure.stage)]
    return Checkpoint(state, loaded, (*kept, failure) if failure else tuple(kept))


def _overcome(failure: StageFailure, state: State, loaded: LoadStatus) -> bool:
    """Whether log and ledger prove a success after the failure, or someone moved the table since."""
    if (state.progress.moved_at or "") > failure.at:
        return True
    if failure.stage == "extract":
        return state.window is None and (state.extraction.last_extraction_time or "") > failure.at
    return not loaded.pending(state) and (loaded.last or "") > failure.at


def document(
    seen: Checkpoint,
    uri: Callable[[str], str],
    saved: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """The contract's document; `saved` is its backup_metadata."""
    state, loaded = seen.state, seen.load
    timestamp, key = data_position(state)
    processed = [f.path for f in state.data.recent_files if loaded.has(f.n)]
    pending = [f.path for f in state.data.recent_files if f.n > state.data.superseded and not loaded.has(f.n)]
    times = [state.updated_at, loaded.last, *(f.at for f in seen.failures)]
    last_error = max(seen.failures, key=lambda f: f.at, default=None)
    extracted, loaded_rows = state.extracted, loaded.counted(state)
    body: dict[str, Any] = {
        "table_name": state.table_name,
        "commit": state.n if state.n >= 0 else None,
        "last_mysql_extraction_time": state.extraction.last_extraction_time,
        "last_mysql_data_timestamp": timestamp,
        "last_mysql_data_id": key,
        "mysql_rows_extracted": extracted.rows,
        "mysql_rows_reread": extracted.reread,
        "mysql_status": _extract_status(seen),
        "last_redshift_load_time": loaded.last,
        "redshift_rows_loaded": loaded_rows.rows,
        "redshift_rows_reloaded": loaded_rows.reread,
        "redshift_status": _load_status(seen),
        "backup_strategy": "manual_cli" if state.progress.manual else state.extraction.strategy,
        "s3_file_count": state.totals.files,
        "processed_s3_files": [uri(p) for p in processed[-RECENT_FILES:]],
        "pending_s3_files": [uri(p) for p in pending[-RECENT_FILES:]],
        "last_error": last_error.message if last_error else None,
        "created_at": state.created_at,
        "updated_at": max((t for t in times if t), default=None),
        "metadata": {
            "manual_watermark": state.progress.manual,
            "total_processing_time_seconds": round(state.totals.seconds, 3),
            "average_batch_size": round(state.totals.rows / state.totals.batches)
            if state.totals.batches
            else 0,
        },
        "backup_metadata": saved or {"saved_at": None, "session_id": None, "backup_locations": []},
    }
    if loaded.files > len(processed):
        body["processed_s3_files_truncated"] = True
    if state.live_files - loaded.live_files > len(pending):
        body["pending_s3_files_truncated"] = True
    if loaded.as_of is not None:
        body["redshift_status_as_of"] = loaded.as_of or None
    if last_error is not None:
        body["last_error_time"] = last_error.at
    if state.retired:
        body["retired"] = True
    if (stands := state.followed_to) is not None:
        body["binlog"] = {**stands.place._asdict(), "gtid": stands.gtid}
    return body


def _extract_status(seen: Checkpoint) -> str:
    if any(f.stage == "extract" for f in seen.failures):
        return "failed"
    return "success" if seen.state.looked_at and seen.state.window is None else "pending"


def _load_status(seen: Checkpoint) -> str:
    state, loaded = seen.state, seen.load
    if any(f.stage == "load" for f in seen.failures):
        return "failed"
    if loaded.pending(state) or (loaded.commits == 0 and not _nothing_to_load(state)):
        return "pending"
    # After a manual watermark, the load stage is pending until something has been loaded since.
    if state.progress.manual and (loaded.last or "") <= (state.progress.moved_at or ""):
        return "pending"
    return "success"


def _nothing_to_load(state: State) -> bool:
    """Whether a sync since the last reset of the load stage found no rows, so there is nothing to load."""
    return bool(state.load_epoch) and state.looked_at and not state.live and not state.data.older.commits


def data_position(state: State) -> tuple[str | None, list[Value] | None]:
    """The position as the document shows it: the cursor's time, and the key's values if all are known.

    Of a table that follows the binary log, the time (UTC) at which the last transaction was committed.
    """
    position, table = state.position, state.table
    if state.followed_to is not None and state.followed_to.at is not None:
        return data_timestamp(state.followed_to.at.removesuffix("Z")), None
    if not position:
        return None, None
    if table is None or table.cursor is None:  # set by hand before the table was ever read
        timestamp = data_timestamp(position[0])
        rest = list(position[1:]) if timestamp is not None else list(position)
        return timestamp, rest or None
    timestamp = data_timestamp(position[0]) if _tells_time(table, table.cursor) else None
    values = dict(zip(table.order, position, strict=False))
    if not table.key or any(k not in values for k in table.key):
        return timestamp, None
    return timestamp, [values[k] for k in table.key]


def _tells_time(table: Table, cursor: str) -> bool:
    found = [c.data_type for c in table.columns if c.name == cursor]
    return not found or found[0] in TEMPORAL


# Fetches data commits from the log by number.
Lookup = Callable[[Sequence[int]], Iterable[DataCommit]]


@dataclass(frozen=True)
class LoadStatus:
    """The progress of the load stage over the commits up to number `n`."""

    epoch: int
    n: int
    commits: int = 0
    rows: int = 0
    files: int = 0
    live_files: int = 0  # of those, files of commits that are not superseded
    last: str | None = None
    missing: tuple[int, ...] = ()  # commits that the state lists and the ledger lacks
    older: bool = True  # the ledger has every commit that the state holds only as totals
    as_of: str | None = None  # None: just read; else when the ledger was last read ("": never)
    of_older: Counted = NO_ROWS  # if the ledger lacks some of those, the rows of the rest

    def counted(self, state: State) -> Counted:
        """Loaded rows of the state's commits, each counted once, without superseded ones."""
        older = state.data.older.counted if self.has_older(state) else self.of_older
        return counted(older, (d for d in state.live if self.has(d.n)))

    def pending(self, state: State) -> bool:
        """Whether anything is waiting to be loaded."""
        return not self.has_older(state) or any(not self.has(d.n) for d in state.live)

    def has(self, n: int) -> bool:
        """Whether a commit that the state lists is loaded."""
        return n <= self.n and n not in self.missing

    def has_older(self, state: State) -> bool:
        """Whether every commit that the state holds only as totals is loaded."""
        if state.data.older.commits == 0:
            return True
        upto, since = state.data.older.upto, state.data.superseded
        return self.older and upto <= self.n and not any(since < m <= upto for m in self.missing)


def condense(state: State, ledger: Iterable[LedgerRow], lookup: Lookup = lambda numbers: ()) -> LoadStatus:
    """Condenses the ledger's rows of this log to what concerns the state.

    If the ledger lacks some of the commits that the state holds only as totals, `lookup` fetches those that
    it has.
    """
    rows = [r for r in ledger if r.epoch == state.load_epoch]
    known = {(r.n, r.digest) for r in rows if not r.summed}
    numbers = {r.n for r in rows if not r.summed}
    missing = {d.n for d in state.data.commits if (d.n, d.digest) not in known}
    missing.update(
        f.n for f in state.data.recent_files if f.n <= state.data.older.upto and f.n not in numbers
    )
    whole = accounts_for_older(state, rows)
    of_older = NO_ROWS
    if not whole:
        some = sorted(r.n for r in _inside(state, rows) if not r.summed)
        of_older = counted(of_older, (d for d in lookup(some) if (d.n, d.digest) in known))
    return LoadStatus(
        epoch=state.load_epoch,
        n=state.n,
        commits=sum(r.commits for r in rows),
        rows=sum(r.rows for r in rows),
        files=sum(r.files for r in rows),
        live_files=sum(r.files for r in rows if r.n > state.data.superseded),
        last=max((r.loaded_at for r in rows), default=None),
        missing=tuple(sorted(missing)),
        older=whole,
        of_older=of_older,
    )


def _inside(state: State, ledger: Iterable[LedgerRow]) -> list[LedgerRow]:
    """The ledger's rows for the commits that the state holds only as totals."""
    return [
        r
        for r in ledger
        if r.epoch == state.load_epoch
        and state.data.superseded < r.n <= state.data.older.upto
        and not within(state.data.dropped, r.n)
    ]


def accounts_for_older(state: State, ledger: Iterable[LedgerRow]) -> bool:
    """Whether the ledger has exactly the commits that the state holds only as totals."""
    older = state.data.older
    if older.commits == 0:
        return True
    inside = _inside(state, ledger)
    # Summed ledger rows keep only the last digits of their digests' sum. The last digits of a sum depend only
    # on the last digits of its terms, and together with the number of commits they are as good as the whole.
    end = -SUMMED_DIGITS if any(r.summed for r in inside) else 0
    try:
        check = sum_digests(r.digest for r in inside)
    except ValueError:  # somebody has written something else there
        return False
    return sum(r.commits for r in inside) == older.commits and check[end:] == older.check[end:]


def last_known(state: State, last: LoadStatus | None, read_at: str | None) -> LoadStatus:
    """The load stage as last known, for when the ledger can't be read."""
    if last is None or last.epoch != state.load_epoch:
        # Not read since this epoch began: nothing is known to be loaded.
        return LoadStatus(state.load_epoch, -1, older=False, as_of=read_at or "")
    return replace(last, as_of=last.as_of if last.as_of is not None else read_at or "")
