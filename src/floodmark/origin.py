"""Stops at a source that is not the one that was read, or no longer what it was: asks, and lets `witnesses` decide.

Restored from a backup, failed over to a replica that was behind, truncated and filled again, another server's table
of the same name: what such a source holds at or below the watermark would never be read, and nobody would be told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from floodmark import plan
from floodmark.errors import DataError, TransientError
from floodmark.model import Origin, Position, Table, Window, Witness
from floodmark.mysql import edges, identity, sql
from floodmark.mysql.bounds import Trust
from floodmark.mysql.connect import Session
from floodmark.mysql.looks import Looks
from floodmark.state import State
from floodmark.witnesses import (
    Answer,
    Deep,
    Fate,
    Verdict,
    compare_signs,
    fates,
    gtid_relation,
    judge,
    mark,
    merged,
)


@dataclass(frozen=True)
class Known:
    """A source that has been looked at and found to be the one that was read."""

    signs: Origin
    witnesses: tuple[Witness, ...] = ()  # those of earlier claims
    fates: tuple[Fate, ...] = ()

    def with_witnesses(
        self, session: Session, table: Table, window: Window | None, low: Position | None
    ) -> Origin:
        """What a claim keeps of the source: its signs, and rows of what is about to be read."""
        new = identity.witnesses(session, table, window, low, first=not self.witnesses)
        return replace(self.signs, witnesses=merged(self.witnesses, self.fates, new))


def check_origin(
    session: Session,
    table: Table,
    state: State,
    looks: Looks,
    newest: Position | None,
    steady: bool = False,
    back_to: str | None = None,
    rewritten: Position | None = None,
) -> Known:
    """Looks whether the source is the one that was read. Raises DataError, or TransientError where it may become so.

    A row with a lower cursor is an older version of itself where the clocks were `steady` since the watermark, that is,
    did not go back; what they have written since, where they did, lies from `back_to` on. Where applications write the
    cursor, each by its own clock, the row at the watermark may have a lower one: behind `rewritten` it is read again.
    """
    trust = looks.trust(session)
    now = identity.look(session, table, trust)
    read, low = state.read_upto, state.position
    if table.mode == "full":
        return Known(now)
    if read is None or state.manual:
        return Known(replace(now, table_id=identity.table_id(session, table, trust)))
    retyped = _retyped(state.table, table)  # its values may be others
    certain = not retyped and (steady or not plan.temporal(table))
    look = _Look(session, table, trust, state.origin or Origin(), now)
    look, asked, found, at_low = look.judged(low, read, certain)
    whole = low is not None and len(low) == len(table.order)
    in_place = any(row.cursor == 0 for row in at_low) or (retyped and at_low)
    if low is not None and whole and not in_place:
        look.check_end(low, newest, back_to, rewritten, there=bool(at_low))
    return Known(look.now, tuple(asked), tuple(found))


def _retyped(before: Table | None, now: Table) -> bool:
    """Whether the cursor has another type than the positions that were read."""
    was = next((c for c in before.columns if c.name == now.cursor), None) if before else None
    return was is not None and now.cursor is not None and mark(was) != mark(now.column(now.cursor))


def check_still(
    opened: Callable[[str], Session], made: plan.Plan, state: State, results: int, looks: Looks
) -> None:
    """The same when so many results are about to close a window of several slices: all must have come from one table."""
    window, origin = state.window, state.origin
    if window is None or window.high is None or origin is None or len(made.slices) < 2:
        return
    if len(state.done) + results < window.slices:
        return
    with opened("plan") as session:
        trust = looks.trust(session)
        look = _Look(session, made.table, trust, origin, identity.look(session, made.table, trust))
        look.judged(None, window.high, steady=False)


@dataclass(frozen=True)
class _Look:
    """One look at a source, against what is known of it."""

    session: Session
    table: Table
    trust: Trust
    before: Origin
    now: Origin

    def judged(
        self, low: Position | None, read: Position, steady: bool
    ) -> tuple[_Look, Sequence[Witness], Sequence[Fate], Sequence[Answer]]:
        """All that was seen, the witnesses, what has become of each, and the row at the watermark; raises where that is bad."""
        session, table = self.session, self.table
        asked = identity.to_ask(table, self.before.witnesses)
        if low is not None and len(low) < len(table.order):
            low = None
        known = [w.position for w in asked].index(low) if low in [w.position for w in asked] else None
        # Without a key, any row of that moment stands for the one at the watermark.
        extra = [Witness(low)] if low is not None and (known is None or not table.key) else []
        answers = identity.answers(session, table, [*asked, *extra])
        at_low = answers[-1] if extra else answers[known] if known is not None else []
        if extra and (table.key or not asked):
            asked = [*asked, *extra]
        found = fates(table, asked, answers[: len(asked)], steady=steady)
        self._check_gtids(found)
        look = replace(self, now=replace(self.now, table_id=self._table_id(found)))
        verdict = judge(table, look.before, look.now, asked, found)
        if verdict.kind == "deeper":
            ends = identity.ends(session, table, read)
            deep = Deep(ends.below, ends.lowest, ends.counter)
            verdict = judge(table, look.before, look.now, asked, found, deep=deep)
        if verdict.kind != "lives":
            raise look._refused(verdict)
        return look, asked, found, at_low

    def _table_id(self, found: Sequence[Fate]) -> int | None:
        """The table's id; not asked for while nothing else has changed and the newest row is in place."""
        before, now = self.before, self.now
        same = (before.server, before.created) == (now.server, now.created) and found[-1:] == ["kept"]
        if same and before.table_id is not None:
            return before.table_id
        return identity.table_id(self.session, self.table, self.trust)

    @property
    def _moved(self) -> bool:
        return compare_signs(self.before, self.now)[0]

    def _check_gtids(self, found: Sequence[Fate]) -> None:
        """A server must have executed what the one had that was read before."""
        if gtid_relation(self.before.gtids, self.now.gtids) != "lacks":
            return
        if identity.applying(self.session, self.trust):
            raise self._behind("it lacks transactions that were read before")
        if self.trust.sight.mariadb and self._moved and found[-1:] == ["kept"]:
            return  # its numbers don't say whose they are: a server that was filled from a dump begins anew
        raise self._set_back("the server lacks transactions that were read before (GTID)")

    def check_end(
        self,
        low: Position,
        newest: Position | None,
        back_to: str | None,
        rewritten: Position | None,
        there: bool,
    ) -> None:
        """The row at the watermark is not in its place: there must be newer rows, or it was only deleted."""
        table = self.table
        if edges.nth(self.session, replace(table, where=None), table.order, low, None, 1) is not None:
            return  # also by rows that have left the `where`
        if newest is not None and back_to is not None and plan.reaches(newest[0], back_to):
            return  # it was changed once more, and is read again
        key = low[len(low) - len(table.key) :] if table.cursor not in table.key else None
        if key is None and table.order == table.key:
            key = low
        if there and key is not None and rewritten is not None and not self._moved:
            same = [sql.any_of(table, [key])]
            if edges.nth(self.session, table, table.order, rewritten, low, 1, same) is not None:
                return
        if key is not None and len(table.key) == 1 and table.column(table.key[0]).auto_increment:
            # A counter beyond the lost row, and no older version of it: it was deleted, nothing was set back.
            counter = edges.next_auto_increment(self.session, table)
            if counter and counter > int(key[0]) and not there:
                return
        said = " ".join(map(str, newest)) if newest else "none"
        raise self._set_back(f"the row at the watermark {low} is gone and its newest row is older ({said})")

    def _refused(self, verdict: Verdict) -> DataError | TransientError:
        if verdict.kind == "set back":
            behind = self._moved and identity.applying(self.session, self.trust)
            return self._behind(verdict.why) if behind else self._set_back(verdict.why)
        what = "the server is another one" if self._moved else "the table was made anew"
        name = self.table.name
        return DataError(
            f"the source is not the one that was read: {what}, and {verdict.why}",
            hint=f"if that was meant: floodmark watermark accept -t {name}, which reads {self._all()} again; "
            "else look where `source.url` leads",
            table=name,
        )

    def _behind(self, why: str) -> TransientError:
        return TransientError(
            f"the replica is behind what was read before: {why}",
            hint="run the sync again when it has caught up; nothing is lost",
            table=self.table.name,
        )

    def _set_back(self, why: str) -> DataError:
        name = self.table.name
        return DataError(
            f"the source has been set back: {why}",
            hint=f"after a restore or a failover: floodmark watermark accept -t {name}, which reads {self._all()} again; "
            f"or floodmark watermark set -t {name} with the time of the backup, then floodmark verify -t {name} --repair; "
            "if the newest rows were only deleted: the time of the newest row",
            table=name,
        )

    def _all(self) -> str:
        return f"all of it (about {edges.table_rows(self.session, self.table):,} rows)"
