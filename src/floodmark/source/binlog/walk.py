"""One stretch of the binary log, walked event by event: what it says of each table, and where the next read begins.

Only transactions that a SELECT can see are taken; the next read begins at the first one that was left out. Rows of an
XA transaction stay apart until it is committed. Memory is bounded, however large a transaction is: keys are handed
out in portions, which count only if the read ends well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as field_

import pyarrow as pa

from floodmark.model.changes import (
    DoesNotFit,
    FollowedChanges,
    KeyDescription,
    LogEnd,
    LogPlace,
    PreparedXa,
    Reconcile,
    TableChanges,
    TableMap,
    UnknownEvent,
)
from floodmark.source.binlog import events as log
from floodmark.source.binlog.events import Gtid, LogEvent
from floodmark.source.binlog.gtid import GtidSet, unaccounted
from floodmark.source.binlog.keys import Incomplete, KeyRows, RowCounts
from floodmark.source.binlog.statements import Effect, NamedTables, boundary, meaning

# Takes a portion of a table's keys, and returns the name of the file that they are in.
Write = Callable[[str, Sequence[pa.RecordBatch]], str]

# Bytes of keys that are held before some are handed out.
HELD = 64 << 20
# Batches of one table that are held.
JOINED = 256
# Statements that are named for one table.
NAMED = 20

_GTIDS = frozenset((log.GTID, log.ANONYMOUS, log.GTID_TAGGED, log.MARIADB_GTID))
_QUERIES = frozenset((log.QUERY, log.QUERY_COMPRESSED))
# Parts of a statement that a Query event follows, and of a LOAD DATA that was logged as a statement.
_PARTS, _LOADS = frozenset((5, 9, 11, 13, 14, 17)), frozenset((6, 12, 18))
# The table of a row event that only ends its statement.
_NO_TABLE = 0xFFFFFFFFFFFF

_WHY: dict[Effect, Reconcile] = {"truncate": "truncate", "replaced": "ddl", "statement": "statement"}


@dataclass(frozen=True)
class Stretch:
    """What a walk has found; several, in the order of the log, become one `FollowedChanges`."""

    followed: FollowedChanges
    # XA transactions that end here and were prepared before, and whether they were committed.
    ended: tuple[tuple[str | None, bool], ...] = ()
    relaid: frozenset[str] = frozenset()  # tables whose layout may have changed
    unproven: frozenset[str] = frozenset()  # tables whose keys are right only if it did not
    left_out: LogPlace | None = None  # the first transaction that is not visible yet
    torn: tuple[str, ...] = ()  # files that end as no server ends them that was not killed
    first_commit: float | None = None
    anything: tuple[str, ...] = ()  # statements that may have changed any table: their first words
    created: tuple[tuple[str, int], ...] = ()  # files, and when they were begun


class _Found:
    """What is known so far of one table's rows."""

    def __init__(self) -> None:
        self.counts = [0, 0, 0, 0]  # inserts, updates, deletes, bytes
        self.statements: dict[str, None] = {}
        self.reconcile: dict[Reconcile, None] = {}
        self.rows: KeyRows | None = None
        self.shape: TableMap | None = None  # of the rows that are being gathered
        self.keyed = False  # whether keys are gathered from these rows, or only counts
        self.unproven = False
        self.batches: list[pa.RecordBatch] = []
        self.held = 0
        self.files: list[str] = []

    def changes(self) -> TableChanges:
        inserts, updates, deletes, size = self.counts
        statements = tuple(self.statements)[:NAMED]
        return TableChanges(
            inserts, updates, deletes, size, statements, tuple(self.reconcile), tuple(self.files)
        )

    def add(self, other: _Found) -> None:
        """Takes what is known of further rows."""
        self.gather()
        other.gather()
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.reconcile |= other.reconcile
        self.unproven |= other.unproven
        self.batches += other.batches
        self.held += other.held
        self.files += other.files

    def gather(self) -> None:
        """Makes batches of the keys."""
        if self.rows is None or not self.keyed:
            return
        try:
            batch = self.rows.taken()
        except Incomplete:
            self.reconcile["incomplete"] = None
            batch = self.rows.taken()
        if batch.num_rows:
            self.batches.append(batch)
        if len(self.batches) > JOINED:  # of small transactions
            self.batches = pa.Table.from_batches(self.batches).combine_chunks().to_batches()
        self.held = sum(each.nbytes for each in self.batches)


_Group = dict[str, _Found]


@dataclass
class _Under:
    """The transaction under way."""

    begin: LogPlace
    gtid: Gtid
    taken: bool = True  # else it is not visible yet, or was taken by an earlier read
    single: bool = True  # whether its first statement, or the next event, ends it
    xid: str | None = None
    group: _Group | None = None  # its own rows, if it is an XA transaction
    counts: dict[str, list[int]] = field_(default_factory=dict)


class Walk:
    """A walk from `start` to `end`. Give it the events of a dump, and of further ones while it isn't `over`."""

    def __init__(
        self,
        start: LogPlace,
        end: LogEnd,
        described: Mapping[str, KeyDescription | None],
        write: Write,
        *,
        before: str | None = None,
        also: Callable[[str], bool] = lambda name: False,
        within: tuple[float, float] = (-math.inf, math.inf),
        most: int = 0,
    ) -> None:
        """`described`: the tables to listen for; without a description their rows are only counted, as for those that
        `also` accepts. `before`: the GTIDs that earlier reads have taken. `within`: the moments at which the transactions to
        take were committed.
        """
        self.start, self.end = start, end
        self.place = start  # where another dump would go on
        self.over = False
        self.bytes = 0
        self.created: dict[str, int] = {}  # by file, as its Format_description says
        self._described, self._also, self._write, self._most = described, also, write, most or HELD
        self._within = within
        self._followed = NamedTables(described)
        self._visible = None if end.visible is None else GtidSet.parse(end.visible)
        self._before = None if not before else GtidSet.parse(before)
        self._gtids = GtidSet()
        self._file, self._last = start.file, 0  # and the kind of the last event that is in the file
        self._at = start.position
        self._maps: dict[int, tuple[str, TableMap] | None] = {}
        self._skip: set[int] = set()
        self._under: _Under | None = None
        self._main: _Group = {}
        self._prepared: dict[str, tuple[_Group, LogPlace]] = {}
        self._ended: list[tuple[str | None, bool]] = []
        self._relaid: set[str] = set()
        self._reconcile: dict[Reconcile, None] = {}
        self._anything: dict[str, None] = {}
        self._left_out: LogPlace | None = None
        self._torn: list[str] = []
        self._held = 0
        self._events = self._transactions = 0
        self._first: float | None = None
        self._newest: float | None = None
        self._limit = self._limit_in(start.file)

    # ---------------------------------------------------------------- events

    def follow(
        self,
        events: Iterable[LogEvent],
        skip: set[int] | None = None,
        told: Callable[[int], None] = lambda size: None,
    ) -> None:
        """Takes events until the walk is over, or there are no more.

        `skip` gets the ids of tables whose rows nobody needs, `told` the bytes that are done.
        """
        self._skip = skip if skip is not None else set()
        self._under = None  # a dump begins between transactions
        if self.place.position >= self._limit:
            self.over = True
        for event in () if self.over else events:
            if event.size:
                if event.place >= self._limit:
                    self.over = True
                    break
                self.bytes += event.place + event.size - self._at  # with those that the stream has skipped
                self._events += 1
                self._last = event.kind
                if not self._events & 0xFF:
                    told(self.bytes)
            self._take(event)
            if event.size and event.kind != log.ROTATE:
                self._at = event.place + event.size
            if self._under is None and not self.over:
                self.place = LogPlace(self._file, self._at)
                self.over = self._at >= self._limit
            if self.over:
                break

    def _limit_in(self, file: str) -> float:
        """The place in a file at which the walk ends."""
        here, last = LogPlace(file, 0).number[0], self.end.place.number[0]
        return self.end.place.position if here == last else -1 if here > last else math.inf

    def _take(self, event: LogEvent) -> None:
        kind, under = event.kind, self._under
        if kind in log.ROWS:
            if under is None or under.taken:
                self._rows(event)
        elif kind == log.TABLE_MAP:
            if under is None or under.taken:
                self._map(event)
        elif kind in _GTIDS:
            self._begin(event)
        elif kind in _QUERIES:
            self._query(event)
        elif kind == log.XID:
            self._commit(event)
        elif kind == log.PAYLOAD:
            self._payload(event)
        elif kind == log.XA_PREPARE:
            self._prepare(event)
        elif kind == log.ROTATE:
            self._rotate(event)
        elif kind == log.FORMAT_DESCRIPTION:
            self._maps.clear()
            self.created[self._file] = event.timestamp
        elif kind == log.INCIDENT:
            self._reconcile["lost"] = None
        elif kind in _LOADS:
            if under is None or under.taken:
                self._any("LOAD DATA")
        elif kind not in log.HARMLESS and kind not in _PARTS and not event.ignorable:
            raise UnknownEvent(
                f"the binary log has an event of type {kind} at {self._file}:{self._at}, which this version does not know",
                hint="upgrade floodmark; `floodmark watermark accept` goes on behind it and compares all tables",
            )

    def _rotate(self, event: LogEvent) -> None:
        following = log.rotate(event.body)
        if following.file == self._file:
            return  # the one that begins a dump, or the file that the last one named
        if self._last not in (log.ROTATE, log.STOP):
            self._torn.append(self._file)
        self._under, self._last = None, 0
        self._maps.clear()
        self._file, self._at = following
        self._limit = self._limit_in(self._file)
        self.place = following
        self.over = self._at >= self._limit

    # ---------------------------------------------------------------- transactions

    def _begin(self, event: LogEvent) -> None:
        gtid = log.gtid(event)
        under = self._under = _Under(LogPlace(self._file, event.place), gtid)
        if event.kind == log.MARIADB_GTID:
            under.single = gtid.standalone
            if gtid.prepared:
                under.xid, under.group = gtid.prepared, {}
        under.taken = self._within[0] <= (gtid.commit or event.timestamp) <= self._within[1]
        if gtid.text:
            self._gtids.add(gtid.text)
            if self._before is not None and self._taken_before(gtid.text, self._before):
                under.taken = False
            elif self._visible is not None and not self._visible.contains(gtid.text):
                under.taken = False
                self._left_out = self._left_out or under.begin

    def _taken_before(self, text: str, before: GtidSet) -> bool:
        if ":" in text:
            return before.contains(text)
        # MariaDB: nothing is known of a server that isn't named.
        return before.has_logged(GtidSet.parse(text))

    def _opened(self) -> _Under:
        """The transaction under way; one without a GTID event, as older servers write them, begins here."""
        if self._under is None:
            self._under = _Under(LogPlace(self._file, self._at), Gtid(""))
        return self._under

    def _commit(self, event: LogEvent, into: _Group | None = None) -> None:
        """Ends the transaction under way. Its rows belong to this read, or `into` the group of a prepared one."""
        under, self._under = self._under, None
        if under is None or not under.taken:
            return
        group = self._main if into is None else into
        if under.group is not None and under.group is not group:
            _merge(group, under.group)
        for name, counts in under.counts.items():
            found = group[name]
            found.counts = [a + b for a, b in zip(found.counts, counts, strict=True)]
        self._transactions += 1
        moment = under.gtid.commit or float(event.timestamp)
        self._first = moment if self._first is None else min(self._first, moment)
        self._newest = moment if self._newest is None else max(self._newest, moment)

    def _prepare(self, event: LogEvent) -> None:
        xid, one_phase = log.xa_prepare(event.body)
        under = self._under
        if under is None or one_phase or not under.taken or under.group is None:
            # Without its beginning it is unknown here, and its COMMIT will say so.
            self._commit(event)
            return
        self._prepared[xid] = under.group, under.begin
        self._commit(event, under.group)

    def _end_prepared(self, xid: str | None, committed: bool) -> None:
        group, _ = self._prepared.pop(xid or "", (None, None))
        if group is None:
            self._ended.append((xid, committed))
        elif committed:
            _merge(self._main, group)

    def _payload(self, event: LogEvent) -> None:
        """A compressed transaction, but for its GTID event."""
        self._opened()
        for each in log.payload(event.body):
            self._take(each)

    def _query(self, event: LogEvent) -> None:
        said = log.query(event)
        step = boundary(said.text)
        if step is None:
            under = self._opened()
            if under.taken:
                self._statement(said.text, said.schema)
            if under.single:
                self._commit(event)
        elif step.step in ("begin", "xa start"):
            under = self._opened()
            under.single = False
            if step.step == "xa start":
                under.xid, under.group = step.xid, {}
        elif step.step in ("commit", "rollback"):
            # After a ROLLBACK only rows of tables without transactions are in the log.
            self._commit(event)
        else:
            under = self._opened()
            if under.taken and (under.xid is None or step.xid != under.xid):
                self._end_prepared(step.xid, step.step == "xa commit")
            self._commit(event)

    def _statement(self, text: bytes, schema: str) -> None:
        said = meaning(text, schema, self._followed)
        if said.anything:
            self._any(said.words)
        for name, effect in said.effects.items():
            found = self._main.setdefault(name, _Found())
            found.statements[said.words] = None
            if effect == "ddl":
                self._relaid.add(name)
            else:
                found.reconcile[_WHY[effect]] = None
            if effect == "replaced":
                self._relaid.add(name)

    def _any(self, words: str) -> None:
        self._anything[words] = None
        self._reconcile["statement"] = None

    # ---------------------------------------------------------------- rows

    def _map(self, event: LogEvent) -> None:
        number, shape = log.table_map(event.body)
        name = shape.name
        if shape.unknown is not None and self._described.get(name) is not None:
            raise UnknownEvent(
                f"the binary log has rows of {name} with a column of type {shape.unknown}, which this version does not know",
                hint=f"upgrade floodmark, or set tables.{name}.changes: cursor",
            )
        if shape.unknown is None and (name in self._described or self._also(name)):
            self._maps[number] = name, shape
            self._skip.discard(number)
        else:
            self._maps[number] = None
            self._skip.add(number)

    def _rows(self, event: LogEvent) -> None:
        number = log.table_id(event.body)
        if number not in self._maps:
            if number == _NO_TABLE:
                return
            raise log.DamagedEvent(f"the binary log has rows of an unknown table at {self._file}:{self._at}")
        mapped = self._maps[number]
        if mapped is None:
            return
        name, shape = mapped
        under = self._opened()
        group = self._main if under.group is None else under.group
        found = group.get(name)
        if found is None:
            found = group[name] = _Found()
        if found.rows is None or found.shape is not shape:
            self._lay_out(found, name, shape)
        counts, held = self._counted(found, event)
        sums = under.counts.setdefault(name, [0, 0, 0, 0])
        for i, more in enumerate((*counts, event.size or len(event.body) + log.HEADER.size)):
            sums[i] += more
        if found.keyed:
            self._held += held
            if self._held > self._most:
                self._spill()

    def _counted(self, found: _Found, event: LogEvent) -> tuple[RowCounts, int]:
        """How many rows an event has, whose keys are now held, and how many bytes these are."""
        assert found.rows is not None
        before = found.rows.bytes
        try:
            counts = found.rows.add(event.kind, event.body)
        except Incomplete as error:
            counts = error.counts
            if found.keyed:
                found.reconcile["incomplete"] = None
        return counts, found.rows.bytes - before

    def _lay_out(self, found: _Found, name: str, shape: TableMap) -> None:
        """Gathers the rows that follow as their Table_map says."""
        if found.shape == shape and found.rows is not None:
            found.shape = shape
            return
        found.gather()
        described = self._described.get(name)
        found.rows, found.shape, found.keyed = None, shape, False
        if described is not None and described.key:
            try:
                found.rows, found.keyed = KeyRows(described, shape), True
                found.unproven |= not _proven(described, shape)
            except DoesNotFit:
                found.reconcile["ddl"] = None
        if found.rows is None:
            found.rows = _counter(name, shape)

    def _spill(self) -> None:
        """Hands out keys, those of the tables with most of them first."""
        groups = [self._main, *(group for group, _ in self._prepared.values())]
        if self._under is not None and self._under.group is not None:
            groups.append(self._under.group)
        founds = [(name, found) for group in groups for name, found in group.items()]
        for _, found in founds:
            found.gather()
        self._held = sum(found.held for _, found in founds)
        for name, found in sorted(founds, key=lambda each: -each[1].held):
            if self._held <= self._most // 4:
                break
            self._held -= found.held
            self._hand_out(name, found)

    def _hand_out(self, name: str, found: _Found) -> None:
        found.gather()
        if found.batches:
            found.files.append(self._write(name, found.batches))
        found.batches, found.held = [], 0

    # ---------------------------------------------------------------- the end

    def stretch(self) -> Stretch:
        """All that was found; the walk can't go on after it."""
        groups = [self._main, *(group for group, _ in self._prepared.values())]
        for group in groups:
            for name, found in group.items():
                self._hand_out(name, found)
        return Stretch(
            FollowedChanges(
                begin=self.start,
                next_start=self._left_out or self.place,
                tables=_changes(self._main),
                prepared=tuple(
                    PreparedXa(xid, _changes(group), begin) for xid, (group, begin) in self._prepared.items()
                ),
                reconcile=tuple(self._reconcile),
                transactions=self._transactions,
                events=self._events,
                bytes=self.bytes,
                gtids=self._gtids.text(),
                last_commit=self._newest,
            ),
            ended=tuple(self._ended),
            relaid=frozenset(self._relaid),
            unproven=frozenset(name for group in groups for name, found in group.items() if found.unproven),
            left_out=self._left_out,
            torn=tuple(self._torn),
            first_commit=self._first,
            anything=tuple(self._anything),
            created=tuple(self.created.items()),
        )


def _changes(group: _Group) -> dict[str, TableChanges]:
    """What is said of the tables, without those of which nothing is."""
    found = {name: one.changes() for name, one in sorted(group.items())}
    return {name: one for name, one in found.items() if one != TableChanges()}


def _merge(into: _Group, group: _Group) -> None:
    for name, found in group.items():
        into.setdefault(name, _Found()).add(found)


def _counter(name: str, shape: TableMap) -> KeyRows:
    """Gathers nothing, and only counts rows."""
    return KeyRows(KeyDescription(name, (), ()), replace(shape, names=("",) * len(shape.types)))


def _proven(described: KeyDescription, shape: TableMap) -> bool:
    """Whether the names in the log prove which columns are the key, whatever was done to the table."""
    return shape.names is not None and all(column.name in shape.names for column in described.key)


# ---------------------------------------------------------------- several stretches


def joined(
    stretches: Sequence[Stretch],
    end: LogEnd,
    *,
    before: LogEnd | None = None,
    prepared: Sequence[PreparedXa] = (),
    sync_binlog: int = 1,
) -> FollowedChanges:
    """What one read of several stretches, in the order of the log, has found. Pure.

    `before`: the end of the read before, unless this is the first one; `prepared`: the XA transactions that were open then.
    """
    tables: dict[str, TableChanges] = {}
    waiting = {one.xid: one for one in prepared}
    reconcile: dict[Reconcile, None] = {}
    for stretch in stretches:
        reconcile |= dict.fromkeys(stretch.followed.reconcile)
        _add(tables, stretch.followed.tables)
        for xid, committed in stretch.ended:
            one = waiting.pop(xid or "", None)
            if committed and one is None:
                reconcile["unprepared"] = None
            elif committed and one is not None:
                _add(tables, one.tables)
        waiting |= {one.xid: one for one in stretch.followed.prepared}
    gtids = GtidSet()
    for stretch in stretches:
        gtids.update(GtidSet.parse(stretch.followed.gtids))
    if sync_binlog != 1 and any(stretch.torn for stretch in stretches):
        reconcile["lost"] = None
    if before is not None and before.gtid and end.gtid and unaccounted(before.gtid, end.gtid, gtids.text()):
        reconcile["lost"] = None
    relaid = frozenset[str]().union(*(stretch.relaid for stretch in stretches))
    doubtful = relaid & frozenset[str]().union(*(stretch.unproven for stretch in stretches))
    whole = [stretch.followed for stretch in stretches]
    moments = [one.last_commit for one in whole if one.last_commit is not None]
    left_out = next((stretch.left_out for stretch in stretches if stretch.left_out is not None), None)
    return FollowedChanges(
        begin=whole[0].begin,
        next_start=left_out or whole[-1].next_start,
        tables=_marked(tables, doubtful),
        prepared=tuple(replace(one, tables=_marked(one.tables, doubtful)) for one in waiting.values()),
        reconcile=tuple(reconcile),
        transactions=sum(one.transactions for one in whole),
        events=sum(one.events for one in whole),
        bytes=sum(one.bytes for one in whole),
        gtids=gtids.text(),
        last_commit=max(moments, default=None),
    )


def _add(tables: dict[str, TableChanges], more: Mapping[str, TableChanges]) -> None:
    for name, one in more.items():
        tables[name] = plus(tables[name], one) if name in tables else one


def plus(one: TableChanges, other: TableChanges) -> TableChanges:
    """What two reads say of a table."""
    return TableChanges(
        one.inserts + other.inserts,
        one.updates + other.updates,
        one.deletes + other.deletes,
        one.bytes + other.bytes,
        tuple(dict.fromkeys((*one.statements, *other.statements)))[:NAMED],
        tuple(dict.fromkeys((*one.reconcile, *other.reconcile))),
        (*one.files, *other.files),
    )


def _marked(tables: Mapping[str, TableChanges], doubtful: frozenset[str]) -> dict[str, TableChanges]:
    """The tables, in order; those whose layout may have changed under unproven keys are to be reconciled."""
    return {
        name: plus(one, TableChanges(reconcile=("ddl",))) if name in doubtful else one
        for name, one in sorted(tables.items())
    }
