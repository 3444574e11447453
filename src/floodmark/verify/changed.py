"""Differences of a table that follows the binary log: those whose keys have changed since are none.

The keys come from the source's log of changes, as far as the table has not followed it, and from the binary log behind
it, up to a moment after the differences were seen. Nothing is committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pyarrow as pa

from floodmark.extract.keys import absent_keys, fitting, key_table, portions, read_keys, with_weights
from floodmark.log import source_log
from floodmark.log.fold import Damaged, State
from floodmark.log.log import Log
from floodmark.model.changes import SOURCE_LOG, DoesNotFit, LogEnd, Reconcile, TableChanges
from floodmark.model.commit import files_of
from floodmark.model.errors import TransientError
from floodmark.model.keys import keys_of
from floodmark.model.table import Table
from floodmark.model.text import counted
from floodmark.plan.followed import said_reasons
from floodmark.services import Services
from floodmark.source.binlog.dump import LogEvents
from floodmark.source.binlog.end import LogGone, file_of, log_identity, logged_place
from floodmark.source.binlog.walk import Walk, joined
from floodmark.source.ranges import key_weights
from floodmark.source.session import Session
from floodmark.verify.lookup import Differences

# Keys of the log whose weights are asked for at once.
WEIGHED = 20_000


def unexplained(services: Services, table: Table, state: State, found: Differences) -> Differences:
    """The differences without those of rows that have changed since; TransientError if the log can't tell which."""
    left, why = set_apart(services, table, state, found)
    if left.rows and why:
        rows = counted(left.rows, "row")
        raise TransientError(
            f"{rows} differ{'s' * (left.rows == 1)}, and the binary log can't tell whether they have changed since:"
            f" {said_reasons(why)}",
            hint=f"run floodmark sync -t {table.name}, which compares the table, then verify again",
        )
    return left


def set_apart(
    services: Services, table: Table, state: State, found: Differences
) -> tuple[Differences, tuple[Reconcile, ...]]:
    """The differences without those of rows that have changed since `state`, and why there may be more of these."""
    if not found.rows or not table.follows or state.followed_to is None:
        return found, ()
    keys = [*found.missing, *found.extra, *(key for key, _ in found.different)]
    asked = key_table(table, keys)
    search = _Search(services, table, asked)
    try:
        why = search.since(state)
    except (LogGone, Damaged):
        why = ("lost",)
    except DoesNotFit:
        why = ("ddl",)
    known, left = set(keys_of(table, asked)), set(keys_of(table, search.left))
    changed = {key for key in keys if key in known and key not in left}
    if not changed:
        return found, why
    verb = "has" if len(changed) == 1 else "have"
    note = f"{counted(len(changed), 'row')} {verb} changed at the source since: the next sync follows them"
    rest = found.without(changed)
    return replace(rest, notes=(*found.notes, note)), why


class _Search:
    """Keys that have not been found in the log so far."""

    def __init__(self, services: Services, table: Table, asked: pa.Table) -> None:
        self.left = asked
        self._services, self._table = services, table

    def since(self, state: State) -> tuple[Reconcile, ...]:
        """Looks at all keys behind the place where the table stands; returns why they may not be all."""
        log = Log(self._services.store, SOURCE_LOG, repairs=False)
        now = log.read()
        if now.source is None:
            return ("lost",)
        name, why = self._table.name, dict[Reconcile, None]()
        if waiting := source_log.waiting(log, now, {name: state.followed_to}).get(name):
            why |= dict.fromkeys(waiting.reconcile)
            for group in portions(waiting.files):
                self._drop(read_keys(self._services.store, self._table, group))
        for each in now.source.prepared:  # they may have been committed since
            if (changes := each.xa.tables.get(name)) is not None:
                files = [f for f in files_of(log.commit(each.n)[0]) if f.path in changes.files]
                self._drop(read_keys(self._services.store, self._table, files))
        return tuple(why | dict.fromkeys(self._behind(log, now)))

    def _behind(self, log: Log, now: State) -> tuple[Reconcile, ...]:
        """Looks at the keys that the binary log names after its last read; returns why they may not be all."""
        source, name = now.source, self._table.name
        assert source is not None
        with self._session() as session:
            server, end = log_identity(session).server, logged_place(session)
            same = server == source.identity.server
            if end is None or not (same or source.end.gtid):
                return ("lost",)
            begin = source.next_start if same else file_of(session, source.end.gtid or "")
        described = source_log.descriptions(log, now, [name])
        if end.number < begin.number or name not in described:
            return ("lost",) if name in described else ("unlisted",)
        # What is not visible yet can't be a difference: no harm if its keys are taken, too.
        walk = Walk(begin, LogEnd(end), described, self._take)
        events = LogEvents(self._session, begin, end, server=server)
        walk.follow(events, events.skip)
        if same and events.created not in (0, source.identity.created or events.created):
            return ("lost",)  # it was reset, and file names began again
        read = joined([walk.stretch()], LogEnd(end), prepared=[each.xa for each in source.prepared])
        return (*read.reconcile, *read.tables.get(name, TableChanges()).reconcile)

    def _take(self, name: str, keys: Sequence[pa.RecordBatch]) -> str:
        self._drop(fitting(self._table, pa.Table.from_batches(keys)))
        return ""

    def _drop(self, keys: pa.Table) -> None:
        """Leaves out the keys that MySQL considers equal to one of these."""
        for at in range(0, keys.num_rows, WEIGHED):
            if not self.left.num_rows:
                return
            some = keys.slice(at, WEIGHED)
            with self._session() as session:
                weights = key_weights(session, self._table, keys_of(self._table, some))
                weighed = with_weights(self._table, some, weights)
                self.left = absent_keys(session, self._table, self.left, [weighed])

    @contextmanager
    def _session(self) -> Iterator[Session]:
        with self._services.throttle.sessions("verify", 1) as [session]:
            yield session
