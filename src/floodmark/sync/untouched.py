"""Tables that nobody has touched: a run reports on them without reading their logs, however many there are.

A run that has read a table and found nothing to do notes that, with everything it rests on: the source's log, the
configuration, the table's lease and published watermark, its part of the ledger. The next run believes the note only
while all of that is as it was, and for an hour; if in doubt, the table is read. Losing the notes does no harm.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from floodmark import __version__
from floodmark.config.load import Config, TableOptions
from floodmark.log.document import primary_path
from floodmark.log.fold import State
from floodmark.log.following import here, unread
from floodmark.log.lease import lease_path
from floodmark.log.status import CheckedTables, parse, put, write_checked
from floodmark.model import events
from floodmark.model.errors import FloodmarkError, Interrupted
from floodmark.model.json import dump_quickly
from floodmark.model.results import Watermark
from floodmark.model.run import Lag, SyncOptions, TableReport
from floodmark.model.times import parse_moment, stamp
from floodmark.plan.followed import untouched
from floodmark.store.store import Store
from floodmark.sync import deletes
from floodmark.sync.work import TableRun, Work

NOTES = "status/untouched.json"
MOST_NOTES = 256 << 20  # bytes; 1 kB for a table
# Seconds after which a table is read again whatever its note says.
BELIEVED = 3600.0
# When everything that is due every so often will be due.
_LATER = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True)
class IdleNote:
    """A table that had nothing to read or load, and what that rests on."""

    at: str  # when it was read
    asked: str  # a digest of its configuration
    source_log: str  # the id of the source's log,
    n: int  # and its last commit: none up to there was left to follow
    log: str  # the id of the table's own log,
    stored: str  # its lease and its published watermark, as lists showed them before it was read,
    loaded: str  # and what the ledger had of it
    shown: dict[str, Any]  # its watermark


@dataclass(frozen=True)
class IdleNotes:
    """The notes of all tables, as stored."""

    tables: dict[str, IdleNote] = field(default_factory=dict)


@dataclass(frozen=True)
class IdleFacts:
    """What notes are held against: a run asks for it once, before it reads any table."""

    at: datetime
    source: State  # of the source's log
    stored: Mapping[str, str]  # by path
    loaded: Mapping[str, str]  # by the log's id

    def of(self, name: str) -> str:
        """A table's lease and published watermark."""
        return f"{self.stored.get(lease_path(name))} {self.stored.get(primary_path(name))}"

    def believes(self, name: str, note: IdleNote, asked: str) -> bool:
        """Whether everything that a note rests on is as it was."""
        upto = here(self.source)
        age = (self.at - parse_moment(note.at)).total_seconds()
        return (
            upto is not None
            and 0 <= age < BELIEVED
            and note.asked == asked
            and note.source_log == self.source.log
            and unread(self.source, name, replace(upto, n=note.n)) is None
            and note.stored == self.of(name)
            and note.loaded == self.loaded.get(note.log, "")
        )


class Untouched:
    """The notes of the tables of one run: what it need not read, and what it finds."""

    def __init__(self, work: Work, names: Sequence[str]) -> None:
        """`names`: the tables of the run that follow the source's log, which has been read."""
        self._work = work
        self._began = time.time()
        self._notes: dict[str, IdleNote] = {}
        self._seen: IdleFacts | None = None
        self._asked: dict[str, str] = {}
        self.reports: dict[str, TableReport] = {}  # of the tables that need not be read
        if not (names and _plain(work.options, work.services.config)):
            return
        try:
            self._seen = self._look()
            if self._seen is not None:
                work.pipeline.known()
                self._asked = {name: _asked(work.services.config, name) for name in names}
                self._notes = _read(work.services.store)
                self._report(self._seen)
        except Interrupted:
            raise
        except FloodmarkError:
            self._seen = None  # each table says what is wrong

    def _look(self) -> IdleFacts | None:
        services, state = self._work.services, self._work.news.state
        if state is None or state.source is None:
            return None
        lists = ("leases/", "watermark/tables/")
        stored = {
            one.path: f"{one.etag or ''} {one.bytes} {one.modified.timestamp()}"
            for folder in lists
            for one in services.store.list(folder)
        }
        loaded: dict[str, list[str]] = {}
        for one in services.warehouse().load_sums():
            loaded.setdefault(one.log, []).append(
                f"{one.epoch} {one.commits} {one.rows} {one.files} {one.loaded_at}"
            )
        sums = {log: ", ".join(sorted(texts)) for log, texts in loaded.items()}
        return IdleFacts(datetime.now(UTC), state, stored, sums)

    def _report(self, seen: IdleFacts) -> None:
        """Reports on every table whose note is to be believed, as if it had been read."""
        work, looked = self._work, stamp()
        until = self._until
        for name, asked in self._asked.items():
            note = self._notes.get(name)
            if note is None or not seen.believes(name, note, asked):
                continue
            account = events.Account(name, work.services.emit)
            account(events.LagMeasured(name, Lag(seconds=0.0)))
            account(events.TimeSpent(name, "extract", 0.0))
            account(left_alone(name, note.shown.get("strategy") or "", until, looked))
            account(events.TimeSpent(name, "verify", 0.0))
            shown = Watermark.of({**note.shown["watermark"], "last_check_time": looked})
            account(events.Succeeded(name, shown, Lag(seconds=0.0)))
            work.ended.append(account.report)
            account(events.Ended(name, account.report))
            self.reports[name] = account.report

    @property
    def _until(self) -> float:
        return self._began if self._work.news.until is None else self._work.news.until

    def keep(self, runs: Sequence[TableRun]) -> None:
        """Notes the tables that were read and had nothing to do, and drops the notes of the others; says what was checked."""
        seen, work = self._seen, self._work
        if seen is None or work.services.interrupted:
            return
        now = {
            name: note
            for name, note in self._notes.items()
            if name not in self._asked or name in self.reports
        }
        for run in runs:
            if run.name in self._asked and (note := _note(run, seen, self._asked[run.name])) is not None:
                now[run.name] = note
        store = work.services.store
        if now != self._notes:
            put(store, NOTES, dump_quickly(IdleNotes(now)), "the notes on untouched tables")
        if self.reports:
            looked = next(iter(self.reports.values())).looked or stamp()
            checked = CheckedTables(work.services.run, stamp(), looked, self._until, tuple(self.reports))
            write_checked(store, checked)


def left_alone(name: str, strategy: str, until: float, looked: str) -> events.Planned:
    """That nothing is asked of the source about a table that nobody has touched, and nothing is committed."""
    why = "the binary log has no change of the table"
    return events.Planned(name, strategy, True, 0, 0, 0.0, None, False, (), why, (), until, looked)


def _plain(options: SyncOptions, config: Config) -> bool:
    """Whether a run does just what an untouched table has no need of."""
    asked = (options.dry_run, options.load_only, options.backup_only, options.verify_data, options.force)
    return (
        not any(asked) and options.since is None and options.most is None and not config.warehouse.freshness
    )


def _asked(config: Config, name: str) -> str:
    """A digest of all that a table's configuration says, and of the version that reads it."""
    text = f"{__version__} {config.warehouse.label} {config.options(name)!r}"
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _read(store: Store) -> dict[str, IdleNote]:
    found = parse(IdleNotes, store.get(NOTES, MOST_NOTES))
    return found.tables if found is not None else {}


def _note(run: TableRun, seen: IdleFacts, asked: str) -> IdleNote | None:
    """What a run notes of a table that it has read; None: there is something about it that the next run should look at."""
    report, state, held = run.report, run.state, run.held
    quiet = (report.ok, report.idle, held.known, held.lease is None, not report.left_out, not state.retired)
    if not all(quiet) or report.notes or report.findings or report.watermark is None or report.looked is None:
        return None
    if report.watermark.pending_s3_files or held.watermark.failures or _due(state, run.options):
        return None
    news = run.news
    if news is None or not untouched(state, run.options, news):
        return None
    shown = {**report.watermark.as_json()}
    return IdleNote(
        stamp(seen.at), asked, news.newest.log, news.newest.n, state.log, seen.of(run.name),
        seen.loaded.get(state.log, ""), {"strategy": report.strategy, "watermark": shown},
    )  # fmt: skip


def _due(state: State, options: TableOptions) -> bool:
    """Whether the table has something to do at some time, even if nobody touches it."""
    return options.keep_files is not None or deletes.due(state, options, _LATER)
