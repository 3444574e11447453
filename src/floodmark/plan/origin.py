"""Refuses a source that was swapped or set back since it was read: queries it, and lets `witnesses` decide.

After a restore, a failover to a lagging replica, a truncate and refill, or a switch to another server's table
of the same name, rows at or below the watermark would never be read, and nobody would notice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from floodmark.model.errors import DataError, TransientError
from floodmark.model.open_work import Trust
from floodmark.model.origin import Origin, SourceId, Witness, exchanged, several_servers
from floodmark.model.position import Position
from floodmark.model.table import Table
from floodmark.model.text import place
from floodmark.model.times import temporal
from floodmark.model.window import Window
from floodmark.model.witnesses import (
    CurrentRow,
    Fate,
    Verdict,
    compare_signs,
    fates,
    gtid_relation,
    judge,
    mark,
    merged,
)
from floodmark.plan.bound import Settled
from floodmark.plan.overlap import future, reaches
from floodmark.plan.wait import Source
from floodmark.source import identity, sql
from floodmark.source import ranges as edges
from floodmark.source.identity import elsewhere, table_id
from floodmark.source.server import first_server, server_of
from floodmark.source.session import Session


@dataclass(frozen=True)
class Known:
    """A source that was checked and found to be the one read before."""

    signs: Origin
    witnesses: tuple[Witness, ...] = ()  # those of earlier claims
    fates: tuple[Fate, ...] = ()

    def with_witnesses(
        self, session: Session, table: Table, window: Window | None, low: Position | None
    ) -> Origin:
        """What a claim stores about the source: its signs, and sample rows from what is about to be read."""
        new = identity.witnesses(session, table, window, low, first=not self.witnesses)
        return replace(self.signs, witnesses=merged(self.witnesses, self.fates, new))

    def source(self, source: Source, reads: bool) -> SourceId:
        """The server and the table that were checked. Whoever reads asks for its id only if the server tells it in time."""
        known, session = self.signs.table_id, source.session
        if reads and known is not None and not source.looks.ids(session, source.table):
            known = None
        return SourceId(first_server(session), self.signs.created, known)


def check_origin(source: Source, settled: Settled, rewritten: Position | None = None) -> Known:
    """Checks that the source is the one read before; raises DataError, or TransientError if it may catch up.

    If clocks were steady (never went back) since the watermark, a row with a lower cursor is an older
    version of itself. If they did go back, rows written since then lie from `back_to` on. Where applications
    write the cursor, each by its own clock, the row at the watermark may get a lower one: beyond `rewritten`
    it is read again. If the table was exchanged in this very run and nothing was read of either, the next run decides.
    """
    try:
        return _checked(source, settled, rewritten)
    except DataError as error:
        if source.doubted and not source.reading.state.progress.done:
            raise exchanged() from error
        raise


def _checked(source: Source, settled: Settled, rewritten: Position | None) -> Known:
    session, table, state = source.session, source.table, source.reading.state
    trust = source.looks.trust(session)
    now = identity.signs(session, table, trust)
    read, low = state.read_upto, state.position
    if table.mode == "full":
        return Known(now)
    before = state.extraction.origin or Origin()
    if read is None or state.progress.manual:
        if source.doubted and state.window is not None and state.window.high is not None:
            _Look(source, trust, before, now).check(None, state.window.high, steady=False)
        number = table_id(session, table) if source.looks.ids(session, table) else None
        return Known(replace(now, table_id=number))
    # Whether the cursor's type differs from that of the positions read before: its values may, too.
    was = next((c for c in state.table.columns if c.name == table.cursor), None) if state.table else None
    retyped = was is not None and table.cursor is not None and mark(was) != mark(table.column(table.cursor))
    certain = not retyped and (settled.steady or not temporal(table))
    look, known, at_low = _Look(source, trust, before, now).check(low, read, certain)
    whole = low is not None and len(low) == len(table.order)
    in_place = any(row.cursor == 0 for row in at_low) or (retyped and at_low)
    if low is not None and whole and not in_place:
        look.check_end(low, settled, rewritten, there=bool(at_low))
    return known


def check_caught_up(source: Source) -> None:
    """Raises TransientError if this is one of several servers at an address, and lacks what another one had."""
    session, table, reading = source.session, source.table, source.reading
    before, read = reading.state.extraction.origin or Origin(), reading.state.read_upto
    look = _Look(source, reading.trust, before, identity.signs(session, table, reading.trust))
    if not look.moved:
        return
    asked = identity.to_ask(table, before.witnesses)
    found = fates(table, asked, identity.answers(session, table, asked), steady=False)
    if gtid_relation(before.gtids, look.now.gtids) == "lacks" and not look.counts_over(found):
        look.check_alone("transactions that were read before are not there")
    if read is not None:
        look.check_newest(asked, found, read)


@dataclass(frozen=True)
class _Look:
    """One look at a source, compared with what is known about it."""

    source: Source
    trust: Trust
    before: Origin
    now: Origin

    @property
    def session(self) -> Session:
        return self.source.session

    @property
    def table(self) -> Table:
        return self.source.table

    def check(
        self, low: Position | None, read: Position, steady: bool
    ) -> tuple[_Look, Known, Sequence[CurrentRow]]:
        """The look, what is known now, the rows at the watermark; raises if the source changed."""
        session, table = self.session, self.table
        asked = identity.to_ask(table, self.before.witnesses)
        if low is not None and len(low) < len(table.order):
            low = None
        places = [w.position for w in asked]
        known = places.index(low) if low in places else None
        # Without a key, any row of that moment can stand in for the one at the watermark.
        extra = [Witness(low)] if low is not None and (known is None or not table.key) else []
        answers = identity.answers(session, table, [*asked, *extra])
        at_low = answers[-1] if extra else answers[known] if known is not None else []
        if extra and (table.key or not asked):
            asked = [*asked, *extra]
        found = fates(table, asked, answers[: len(asked)], steady=steady)
        self._check_gtids(found)
        self.check_newest(asked, found, read)
        look = replace(self, now=replace(self.now, table_id=self._table_id(found)))
        verdict = judge(table, look.before, look.now, asked, found)
        if verdict.kind == "deeper":
            deep = identity.ends(session, table, read)
            verdict = judge(table, look.before, look.now, asked, found, deep=deep)
        if verdict.kind != "lives":
            raise look._refused(verdict)
        return look, Known(look.now, tuple(asked), tuple(found)), at_low

    def _table_id(self, found: Sequence[Fate]) -> int | None:
        """The table's id; not queried while nothing else has changed and the newest row is in place."""
        before, now = self.before, self.now
        same = (before.server, before.created) == (now.server, now.created) and found[-1:] == ["kept"]
        if same and before.table_id is not None and not self.source.doubted:
            return before.table_id
        tells = self.source.looks.ids(self.session, self.table)
        return table_id(self.session, self.table) if tells else None

    @property
    def moved(self) -> bool:
        """Whether the server is a different one."""
        return compare_signs(self.before, self.now)[0]

    def _check_gtids(self, found: Sequence[Fate]) -> None:
        """The server must have executed every transaction of the one read before."""
        if gtid_relation(self.before.gtids, self.now.gtids) != "lacks":
            return
        if identity.applying(self.session, self.trust):
            raise self._behind("it lacks transactions that were read before")
        if not self.counts_over(found):
            raise self._set_back("the server lacks transactions that were read before (GTID)")

    def counts_over(self, found: Sequence[Fate]) -> bool:
        """Whether it may be filled from a dump: MariaDB's GTIDs don't name their server, so that they start over."""
        return self.trust.sight.mariadb and self.moved and found[-1:] == ["kept"]

    def check_newest(self, asked: Sequence[Witness], found: Sequence[Fate], read: Position) -> None:
        """One of several servers at an address must have the newest row that another one had, or newer ones, or have
        deleted it: otherwise it may be behind."""
        covers = gtid_relation(self.before.gtids, self.now.gtids) == "covers"
        if not self.moved or covers or not found or found[-1] in ("kept", "changed"):
            return
        table, far = self.table, future(self.table, self.source.now())
        if self._newer(table.order, read, None if far is None else (far,)):
            return
        newest = asked[-1].position
        if found[-1] == "gone" and self._counted_beyond(newest):
            key = (newest[table.order.index(table.key[0])],)
            if not self._newer(table.key, key):
                return  # no other row has moved the counter
        self.check_alone("the newest row that was read before is not there")

    def check_alone(self, why: str) -> None:
        """Raises TransientError if the server is a different one than before, and the address leads to others still."""
        if self.moved and (other := elsewhere(self.session)):
            raise several_servers([server_of(self.session), other], f"; on the first, {why}")

    def _newer(self, by: Sequence[str], after: Position, upto: Position | None = None) -> bool:
        """Whether there are rows after a position or key; those that no longer match `where` count too."""
        return edges.nth(self.session, edges.every_row(self.table), by, after, upto, 1) is not None

    def _counted_beyond(self, position: Position) -> bool:
        """Whether the counter of keys is past that of a row: if it is not there, it was deleted."""
        table = self.table
        if len(table.key) != 1 or not table.column(table.key[0]).auto_increment:
            return False
        counter = edges.next_auto_increment(self.session, table)
        return counter is not None and counter > int(position[table.order.index(table.key[0])])

    def check_end(self, low: Position, settled: Settled, rewritten: Position | None, there: bool) -> None:
        """The row at the watermark is not in its place: there must be newer rows, or it was just deleted."""
        table, newest, back_to = self.table, settled.newest, settled.back_to
        if self._newer(table.order, low):
            return
        if newest is not None and back_to is not None and reaches(newest[0], back_to):
            return  # the row was changed again, and will be read again
        apart = table.cursor not in table.key
        key = low[len(low) - len(table.key) :] if apart else low if table.order == table.key else None
        if there and key is not None and rewritten is not None and not self.moved:
            same = [sql.any_of(table, [key])]
            if edges.nth(self.session, table, table.order, rewritten, low, 1, same) is not None:
                return
        if not there and (self._counted_beyond(low) or self._went_on()):
            return  # no older version exists: it was deleted, nothing was set back
        said = f"the newest row is older: {place(newest, apart)}" if newest else "there is no other row"
        raise self._set_back(f"the row at the watermark, {place(low, apart)}, is gone, and {said}")

    def _went_on(self) -> bool:
        """Whether it is certain that the same table on the same server has only changed since, by its GTIDs."""
        moved, remade, sure = compare_signs(self.before, self.now)
        covers = gtid_relation(self.before.gtids, self.now.gtids) == "covers"
        return sure and not moved and not remade and covers

    def _refused(self, verdict: Verdict) -> DataError | TransientError:
        if verdict.kind == "set back":
            behind = self.moved and identity.applying(self.session, self.trust)
            return self._behind(verdict.why) if behind else self._set_back(verdict.why)
        self.check_alone(verdict.why)
        name = self.table.name
        return DataError(
            f"the source is not the one that was read before: {verdict.why}",
            hint=f"if that is intended: floodmark watermark accept -t {name}, which reads {self._all()} again; "
            "otherwise check where `source.url` points",
        )

    def _behind(self, why: str) -> TransientError:
        return TransientError(
            f"the replica is behind what was read before: {why}",
            hint="run the sync again when it has caught up; nothing is lost",
        )

    def _set_back(self, why: str) -> DataError:
        self.check_alone(why)
        name = self.table.name
        return DataError(
            f"the source has been set back: {why}",
            hint=f"after a restore or a failover: floodmark watermark accept -t {name}, which reads {self._all()} again; "
            f"or floodmark watermark set -t {name} with the time of the backup, then floodmark verify -t {name} --repair; "
            "if the newest rows were just deleted, use the time of the newest row that is left",
        )

    def _all(self) -> str:
        return f"all of it (about {edges.table_rows(self.session, self.table):,} rows)"
