"""The source's log of changes, as a run reads, claims and continues it: a table's log under a name of its own.

Nothing in it is beyond recovery: what it says can be read from the binary log again, from where the tables have followed it.
So a run waits for another one that holds it, and puts a log that can't be read aside and begins anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from floodmark.host.retry import Retries
from floodmark.log.changes import key_files, with_late_tables
from floodmark.log.claim import HeldTable, decide_and_claim
from floodmark.log.fold import Damaged, State
from floodmark.log.following import Unfollowed, first_of, to_read, unfollowed
from floodmark.log.lease import holds
from floodmark.log.log import Log
from floodmark.model.changes import (
    SOURCE_LOG,
    FollowedChanges,
    FollowedTo,
    KeyDescription,
    LogEnd,
    LogIdentity,
)
from floodmark.model.commit import Changes, DataFile, files_of
from floodmark.model.errors import ConflictError, TransientError
from floodmark.model.window import Intent
from floodmark.store.store import Store

log = logging.getLogger("floodmark")

# Seconds to wait for a run that holds the log: reading a backlog takes that long.
PATIENCE = 3600.0
# Tables added by one commit, of 1 kB each: whoever needs one description reads this many.
ADDED_AT_ONCE = 500


def source_log(store: Store, run: str) -> HeldTable:
    """The source's log, as one run reads, claims and writes it."""
    return HeldTable(store, SOURCE_LOG, run)


def read(held: HeldTable) -> State:
    """The log's state; one that can't be read is put aside, unless a live run holds it.

    The new log must begin where the tables' commits say (`following.lowest`).
    """
    try:
        return held.read()
    except Damaged as damage:
        if holds(held.log.store, SOURCE_LOG):
            raise ConflictError(f"another run holds the log, which is damaged: {damage.message}") from None
        log.warning("%s: %s; a new one begins", SOURCE_LOG, damage.message, extra={"step": "recover"})
        held.state, held.known = held.log.begin(force=True), True
        return held.state


def hold(held: HeldTable, wanted: Callable[[State], bool], seconds: float = PATIENCE) -> bool:
    """Claims the log once nobody else holds it; False: nothing is `wanted` of its state, perhaps because another run did it."""

    def take(state: State) -> bool:
        if wanted(state):
            held.claim(Intent("changes"))
            return True
        return False

    why = ""
    for _ in Retries(pause=0.3, factor=1.5, longest=5.0, jitter=0.3, seconds=seconds):
        try:
            return decide_and_claim(held.log, read(held), take)
        except ConflictError as error:
            why = error.message
    raise TransientError(
        f"the source's log of changes was not free within {seconds:g} s: {why}",
        hint="run the command again when that run is done",
    )


def append(
    held: HeldTable,
    followed: FollowedChanges,
    end: LogEnd,
    identity: LogIdentity,
    *,
    files: Sequence[DataFile] = (),
    described: Sequence[KeyDescription] = (),
    left: Collection[str] = (),
    seconds: float = 0.0,
) -> State:
    """Commits what one read of the binary log found, and publishes it soon.

    The key files must have been written since our claim: others may be taken for orphans.
    """
    commit = held.draft(
        Changes,
        followed=with_late_tables(held.state.source, followed),
        end=end,
        identity=identity,
        files=(*files, *_prepared_files(held, followed)),
        described=tuple(described),
        left=tuple(left),
        seconds=seconds,
    )
    held.append(commit)
    held.watermark.publish_soon(held.state, ())
    return held.state


def _prepared_files(held: HeldTable, followed: FollowedChanges) -> tuple[DataFile, ...]:
    """The files that an earlier commit named for XA transactions that have been committed now: this one names them, too."""
    source, open_now = held.state.source, {xa.xid for xa in followed.prepared}
    ended = [each for each in (source.prepared if source is not None else ()) if each.xa.xid not in open_now]
    wanted = {*key_files(followed.tables)} if ended else set()
    return tuple(
        file
        for each in ended
        for file in files_of(held.log.commit(each.n)[0])
        if file.path in wanted and file.path in key_files(each.xa.tables)
    )


def listen(
    held: HeldTable,
    described: Sequence[KeyDescription],
    left: Collection[str] = (),
    begin: tuple[LogEnd, LogIdentity] | None = None,
) -> State:
    """Commits that these tables are listened for, too, and those that `left` no longer are, before their copies are read.

    `begin`: where a new log begins.
    """
    parts = [described[n : n + ADDED_AT_ONCE] for n in range(0, len(described), ADDED_AT_ONCE)]
    for part in parts or [()] * bool(left or begin):
        source = held.state.source
        end, identity = (source.end, source.identity) if source is not None else begin or (None, None)
        assert end is not None and identity is not None
        place = source.next_start if source is not None else end.place
        prepared = tuple(each.xa for each in source.prepared) if source is not None else ()
        still = FollowedChanges(place, place, prepared=prepared)
        append(held, still, end, identity, described=part, left=left)
        left = ()
    return held.state


def descriptions(log: Log, state: State, names: Collection[str]) -> dict[str, KeyDescription]:
    """How these tables' row events are decoded, as of the state's place.

    Left out are tables that nobody listens for, and those whose description is lost: they must be described anew, and reconciled.
    """
    tables = state.source.tables if state.source is not None else {}
    where = {name: tables[name].described for name in names if name in tables}
    found: dict[str, KeyDescription] = {}
    for n in sorted({*where.values()}):
        with suppress(Damaged):
            for commit, _ in log.made([n]):
                described = commit.described if isinstance(commit, Changes) else ()
                found |= {one.name: one for one in described if where.get(one.name) == n}
    return found


def waiting(log: Log, state: State, followed: Mapping[str, FollowedTo | None]) -> dict[str, Unfollowed]:
    """What these tables have not followed of the log, without those that have followed everything."""
    try:
        return unfollowed(state, followed, log.made(to_read(state, followed)))
    except Damaged:  # a commit is lost for good
        return {
            name: replace(each, reconcile=(*each.reconcile, "lost"))
            for name, each in unfollowed(state, followed, ()).items()
        }


def waiting_first(
    log: Log, state: State, name: str, stands: FollowedTo, found: Unfollowed, most: int
) -> Unfollowed:
    """Of what a table has not followed, the first commits, with at most so many rows."""
    return first_of(found, state, name, stands, log.made(to_read(state, {name: stands})), most)
