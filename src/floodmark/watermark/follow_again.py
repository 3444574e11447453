"""Tables that follow the binary log, put back by hand: a stretch of the log is followed again, or everything is compared.

Both are commits of the source's log of changes. A table's own log does not move, and no row is lost or doubled: the next
sync reads the rows behind the keys as they are then, or compares both sides.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa

from floodmark.config.load import Config
from floodmark.extract.keys import write_changed_keys
from floodmark.log import source_log
from floodmark.log.changes import SourceState
from floodmark.log.claim import HeldTable
from floodmark.log.fold import State
from floodmark.model.changes import FollowedChanges, KeyDescription, LogEnd, LogPlace, TableChanges
from floodmark.model.commit import DataFile
from floodmark.model.errors import ConfigError, DataError
from floodmark.model.results import Watermark
from floodmark.model.table import Table
from floodmark.model.text import counted
from floodmark.model.times import parse_moment, stamp
from floodmark.source.binlog.dump import LogEvents, begun_at, place_at, start_of_following
from floodmark.source.binlog.end import LogGone, log_files, log_identity
from floodmark.source.binlog.walk import Walk, joined
from floodmark.source.describe import discover
from floodmark.source.session import Session
from floodmark.store.store import Store
from floodmark.watermark.show import watermark_get

# Seconds to wait for a run that reads the log.
PATIENCE = 60.0
# Seconds that a moment may be ahead of this machine's clock.
SLACK = 60.0


def follow_again(config: Config, state: State, text: str, run: str) -> Watermark:
    """Lets a table follow the log again from the first transaction after a moment (UTC); DataError if that was purged."""
    name, moment = state.table_name, parse_moment(text).timestamp()
    if moment > datetime.now(UTC).timestamp() + SLACK:
        raise ConfigError(
            f"{text} is in the future",
            hint="a table that follows the binary log takes a time in UTC",
            table=name,
        )
    if state.followed_to is None:
        raise ConfigError(
            "the table has not been copied yet, so there is nothing to follow again",
            hint=f"run floodmark sync -t {name} first",
            table=name,
        )
    with _held(config, run) as held:
        source = _source(held, name)
        begin = _begin(config, source, moment, name)
        changes, files = _read(config, held, source, name, begin, moment)
        if changes != TableChanges():
            _append(held, source, {name: changes}, files)
    marks = watermark_get(config, name)
    upto = f"after {text}, up to {source.next_start}"
    if changes.reconcile:
        note = f"the binary log does not name every row that changed {upto}: the next sync compares the table"
    elif changes.rows:
        note = f"the next sync reads the rows of {counted(changes.rows, 'change')} again, committed {upto}"
    else:
        note = f"the binary log has no change of the table {upto}"
    undo = "no need: rows are read as they are at the source then"
    return marks.but(rows_read_again=changes.rows, notes=(note,), undo=undo)


def accept_log(config: Config, table: Table, run: str) -> Watermark | None:
    """Goes on at the end of the binary log that the source has now: the next sync compares every table that follows it.

    None: no binary log was read so far.
    """
    store = Store(config.store)
    if source_log.read(source_log.source_log(store, run)).source is None:
        return None
    with _held(config, run) as held:
        start, identity = start_of_following(lambda: Session(config.source, purpose="accept"))
        source = _source(held, table.name)
        lost = FollowedChanges(start.place, start.place, reconcile=("lost",))
        # Columns may have changed in what nobody reads.
        described = _described(config, tuple(source.tables))
        source_log.append(held, lost, start, identity, described=described)
        others = len(source.tables) - 1
    also = f", and {counted(others, 'other table')} that follow{'s' * (others == 1)} it" if others > 0 else ""
    note = f"the binary log is followed from {start.place} on; the next sync compares {table.name} with its target{also}"
    return watermark_get(config, table.name).but(accepted=("the source's binary log",), notes=(note,))


def _described(config: Config, names: Sequence[str]) -> list[KeyDescription]:
    """How row events are decoded from now on; without tables that are gone."""
    found = []
    with Session(config.source, purpose="accept") as session:
        for name in names:
            with suppress(ConfigError, DataError):  # its own plan will say so
                table = discover(session, name, config.options(name), config.source.database)
                found.append(KeyDescription.of(table))
    return found


@contextmanager
def _held(config: Config, run: str) -> Iterator[HeldTable]:
    """The source's log of changes, claimed."""
    held = source_log.source_log(Store(config.store), run)
    try:
        source_log.hold(held, lambda state: state.source is not None, seconds=PATIENCE)
        yield held
    finally:
        held.release()


def _source(held: HeldTable, name: str) -> SourceState:
    if held.state.source is None:
        raise ConfigError(
            "the binary log was never read", hint=f"run floodmark sync -t {name} first", table=name
        )
    return held.state.source


def _begin(config: Config, source: SourceState, moment: float, name: str) -> LogPlace:
    """A place before the first transaction after a moment."""

    def connect() -> Session:
        return Session(config.source, purpose="set")

    with connect() as session:
        if log_identity(session).server != source.identity.server:
            raise ConfigError(
                "source.url leads to another server than the one whose binary log was followed",
                hint=f"run floodmark sync -t {name} first",
                table=name,
            )
        first = log_files(session)[0].name
    try:
        return place_at(connect, moment)
    except LogGone:
        since = stamp(datetime.fromtimestamp(begun_at(connect, first), UTC))
        raise DataError(
            f"the source has its binary log only since {since} (UTC, {first})",
            hint=f"name a later time, or let the next sync copy the table again: floodmark watermark reset -t {name}",
            table=name,
        ) from None


def _read(
    config: Config, held: HeldTable, source: SourceState, name: str, begin: LogPlace, moment: float
) -> tuple[TableChanges, list[DataFile]]:
    """What the log says of the table in transactions from a moment on, as far as it has been read."""
    end, files, claim = source.next_start, list[DataFile](), held.state.claim
    assert claim is not None
    if begin.number >= end.number:
        return TableChanges(), files

    def write(name: str, keys: Sequence[pa.RecordBatch]) -> str:
        files.append(
            write_changed_keys(held.log.store, name, keys, run=claim.run, claim=claim.n, log=held.state.log)
        )
        return files[-1].path

    described = source_log.descriptions(held.log, held.state, [name])
    walk = Walk(begin, LogEnd(end), described, write, within=(moment, math.inf))
    events = LogEvents(
        lambda: Session(config.source, purpose="set"), begin, end, server=source.identity.server
    )
    walk.follow(events, events.skip)
    read = joined([walk.stretch()], LogEnd(end))
    found = read.tables.get(name, TableChanges())
    # What would concern all tables was told to all when it was read first.
    return replace(found, reconcile=tuple(dict.fromkeys((*found.reconcile, *read.reconcile)))), files


def _append(
    held: HeldTable, source: SourceState, tables: dict[str, TableChanges], files: Sequence[DataFile]
) -> None:
    """Commits changes that were read again, at the place where the log stands."""
    place, prepared = source.next_start, tuple(each.xa for each in source.prepared)
    again = FollowedChanges(place, place, tables=tables, prepared=prepared)
    source_log.append(held, again, source.end, source.identity, files=files)
