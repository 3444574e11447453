"""Compares source and warehouse by key: which rows are missing, extra or different. Read-only.

Only what was promised is compared (`scope`). Of rows without a place in the change order, a change since the last
sync can't be told from an error, and is reported as what it may be. Nothing is reported until both sides have been
queried a second time.

The target of a snapshot is also compared with what the snapshot held. A warehouse that hands out its rows has them
hashed here, with the key of the digest in the snapshot's commit. Any other hashes them itself, and the same hash of the
snapshot is computed from its files, as long as they are staged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from floodmark.host.retry import Retries
from floodmark.host.temp import scratched
from floodmark.load import canonical
from floodmark.load.files import fetch
from floodmark.load.pending import ledger_for, pending
from floodmark.load.protocol import HandsOutRows
from floodmark.log.fold import State
from floodmark.log.lease import holder, who
from floodmark.log.log import Log
from floodmark.model.canonical import Digest, Printed, Scope, Span, forms
from floodmark.model.commit import Batch, DataFile
from floodmark.model.errors import ConflictError, DataError
from floodmark.model.events import Noted, StageEnded
from floodmark.model.position import Position
from floodmark.model.row_hash import compiled
from floodmark.model.table import Table
from floodmark.model.text import counted
from floodmark.model.times import sortable
from floodmark.plan.bound import Reading
from floodmark.plan.origin import check_caught_up
from floodmark.plan.wait import Source
from floodmark.services import Services
from floodmark.source.describe import discover
from floodmark.source.errors import as_discovered
from floodmark.source.identity import source_id
from floodmark.source.session import Session
from floodmark.verify.lookup import AT_ONCE, Differences, look_up
from floodmark.verify.scope import parsed_columns, rows_before, scope_of
from floodmark.verify.search import search
from floodmark.verify.warehouse import WarehouseRows, summed

# How many times suspects are checked while other runs change the table, and the pause between.
TRIES = 10
PAUSE = 1.0
NO_WATERMARK = "a table in mode full has no watermark: changes since its last sync show as differences"
# Seconds to wait for a run that is loading.
PATIENCE = 60.0


@as_discovered()
def compare(
    services: Services,
    table: Table,
    state: State,
    *,
    only_keys: bool = False,
    also: Sequence[str] = (),
    totals: Callable[[int, int], None] = lambda source, warehouse: None,
    since: Position | None = None,
    expected_rows: int | None = None,
    most: int | None = None,
) -> Differences:
    """The differences between a table and its target, judged by what the log's state promises.

    `table` is the table as it is now (discovered), `state` the log's. Every commit in the log must have been
    loaded. `only_keys` compares which rows exist, plus the columns in `also`, but not the rest of their
    contents: cheaper, and enough for deletes. `totals` receives the row counts of both sides (the source's in
    full) before the search for differences, and may raise. `since` restricts it to the rows after a position,
    about `expected_rows` of them. If more than `most` rows are missing, it gives up.
    """
    scope, notes, taken_over = scope_of(services, table, state, only_keys, also)
    if since is None and not only_keys:
        notes += rows_before(services, scope, taken_over)
    elif since is not None and (scope.low is None or sortable(since[0]) > sortable(scope.low[0])):
        scope = replace(scope, low=since)
    found = search(services, scope, totals, expected_rows, most)
    services.emit(StageEnded(table.name, "verify"))
    promised = last_snapshot(services, state) if table.mode == "full" else None
    if table.mode == "full" and promised is None:
        notes.append(NO_WATERMARK)
    if found.suspicious and table.key and not only_keys and _changed(services, table, state):
        raise _changing()
    suspects, misread = found.suspects, False
    confirmed = _confirmed(services, table, state, suspects, only_keys, also) if suspects else Differences()
    if not confirmed and (sample := _misread(services, scope, state, found.sample)):
        confirmed = _confirmed(services, table, state, dict.fromkeys(sample, False), only_keys, also)
        # Rows of a live source may also have changed since they were hashed.
        misread = promised is not None and bool(confirmed) and not search(services, scope, totals).suspects
    differences = replace(
        confirmed,
        rows_source=found.source.rows,
        rows_warehouse=found.warehouse.rows,
        left_out=found.beyond + confirmed.left_out,
        agree=confirmed.agree and not found.suspicious,
        notes=tuple(notes),
        low=scope.low,
        high=scope.high,
    )
    if promised is None or misread:
        return differences
    return _since_snapshot(services, table, state, promised, differences)


def _since_snapshot(
    services: Services, table: Table, state: State, promised: Batch, found: Differences
) -> Differences:
    """The differences between source and target as those between the snapshot and the target, if there are any."""
    if not found and promised.snapshot is None:
        return found  # reading the snapshot's files would cost more than it could tell
    held = holds(services, state, promised)
    if held is False and _changed(services, table, state):
        raise _changing()
    if held is None:
        return replace(found, notes=(*found.notes, NO_WATERMARK))
    if not held:
        note = "the target is not what the snapshot held; the rows named may also have changed at the source since"
        return replace(found, notes=(*found.notes, note), agree=found.agree and bool(found.rows))
    if not found:
        return found
    what = counted(found.rows, "row") if found.rows else "rows"
    verb = "has" if found.rows == 1 else "have"
    note = f"{what} {verb} changed at the source since the snapshot; the next sync takes a new one"
    return replace(
        found, missing=(), extra=(), different=(), outside=(), agree=True, changed=found.rows,
        compared_with="snapshot", notes=(*found.notes, note),
    )  # fmt: skip


def described(services: Services, session: Session, name: str) -> Table:
    """The table as it is now, in the source that everything is compared with; raises if the run has read another."""
    table = discover(session, name, services.config.options(name), services.config.source.database)
    found = source_id(session, table, services.looks(session).ids(session, table))
    services.sources.check(name, found)
    services.sources.expect(name, found)
    return table


def check_different(services: Services, table: Table, state: State) -> None:
    """Raises TransientError if the rows differ because the source's address led to a server that is behind."""
    with services.reading("verify", table) as session:
        looks = services.looks(session)
        reading = Reading(table, state, services.config.options(table.name), looks.trust(session))
        check_caught_up(Source(session, looks, reading))


def check_compared(table: Table, found: Differences) -> None:
    """Refuses a comparison that left out every row: it has proven nothing."""
    if not found and not found.rows_source and found.left_out:
        rows = counted(found.left_out, "row")
        raise DataError(
            f"nothing could be compared: every row ({rows}) is after the watermark",
            hint=f"run floodmark sync -t {table.name} first",
        )


# ---------------------------------------------------------------- second query


def _misread(services: Services, scope: Scope, state: State, sample: Sequence[Printed]) -> list[Printed]:
    """Those of some rows that differ as the servers print them, though their hashes agree; maybe out of date."""
    some = sample[:: max(1, -(-len(sample) // AT_ONCE))]
    if not some or _loaded(services, scope.table, state) is None:
        return []
    return list(some) if look_up(services, scope, some) else []


def _confirmed(
    services: Services,
    table: Table,
    state: State,
    suspects: Mapping[Printed, bool],
    only_keys: bool,
    also: Sequence[str] = (),
) -> Differences:
    """The suspects that really differ, judged at a moment when no other run is changing the table.

    A row that the warehouse has listed and that neither side has under its key, though no run has changed the
    table since, can't be named, but differs.
    """
    seen = state
    for number in range(TRIES):
        if number:
            time.sleep(PAUSE)
            state = Log(services.store, table.name).read()
        before = _loaded(services, table, state)
        if before is None:
            continue
        scope, *_ = scope_of(services, table, state, only_keys, also)
        found = look_up(services, scope, list(suspects))
        if found.rows and table.follows and state.followed_to is not None:
            return found  # the binary log tells what other runs have loaded meanwhile (`changed`)
        if not found:
            lost = any(suspects[key] for key in found.nowhere) and not _changed(services, table, seen)
            return replace(found, agree=not lost)
        if _loaded(services, table, Log(services.store, table.name).read()) == before:
            return found
    raise _changing()


def _changing() -> ConflictError:
    return ConflictError(
        "other runs keep changing the table, so no difference can be confirmed",
        hint="run verify again when they have finished",
    )


def _changed(services: Services, table: Table, state: State) -> bool:
    """Whether another run has written to the log since."""
    return _version(Log(services.store, table.name).read()) != _version(state)


def _version(state: State) -> object:
    return state.n, state.digest


def _loaded(services: Services, table: Table, state: State) -> object:
    """The log's version once everything is loaded; None while something waits to be loaded."""
    return None if waiting(services, table, state) else _version(state)


def waiting(services: Services, table: Table, state: State) -> int:
    """How many of the log's rows are not in the warehouse yet."""
    ledger = ledger_for(services.warehouse(), state, table.target)
    data = Log(services.store, table.name).data(state, ledger.rows)
    return sum(max(1, d.rows) for d in pending(data, ledger, state.load_epoch))


def loaded_state(services: Services, table: Table) -> State:
    """The log's state once all of it is loaded; waits while a live run is about to load the rest.

    Raises ConflictError if that run takes too long, DataError if rows wait and no run is loading them.
    """
    log, told = Log(services.store, table.name), False
    for _ in Retries(pause=PAUSE, factor=1, seconds=PATIENCE):
        state = log.read()
        # Read before the ledger: a holder that is gone by now has loaded all that it will.
        held = holder(log.store, log.table_name, state.claim)
        rows = waiting(services, table, state)
        if not rows:
            return state
        if held is None or not held.alive or services.interrupted:
            raise DataError(
                f"{counted(rows, 'row')} {'waits' if rows == 1 else 'wait'} to be loaded, "
                "so source and warehouse can't agree yet",
                hint=f"run floodmark sync -t {table.name} first",
            )
        other, what = who(held.run, held.owner), counted(rows, "row")
        if not told:
            services.emit(Noted(table.name, f"waiting for {other} to load {what}"))
            told = True
    raise ConflictError(f"{other} still has {what} to load", hint="run verify again when it has finished")


# ---------------------------------------------------------------- the last snapshot


def last_snapshot(services: Services, state: State) -> Batch | None:
    """The snapshot that the target should hold, if its digest is known or can be computed, and the target's too."""
    last = state.data.commits[-1] if state.data.commits else None
    if last is None or last.load_as != "replace" or last.superseded or state.table is None:
        return None
    [(commit, _)] = Log(services.store, state.table_name).commits([last.n])
    if not isinstance(commit, Batch) or commit.schema != state.table.fingerprint:
        return None
    if isinstance(services.warehouse(), HandsOutRows):
        return commit if compiled is not None and commit.snapshot is not None else None
    return None if last.cleaned else commit


def holds(services: Services, state: State, promised: Batch) -> bool | None:
    """Whether the target holds the rows of a snapshot.

    None if that can't be told: its columns have other types than we gave them, or the snapshot's files are gone.
    """
    warehouse, table, digest = services.warehouse(), state.table, promised.snapshot
    assert table is not None
    if isinstance(warehouse, HandsOutRows):
        assert digest is not None
        scope = Scope(table, forms(table, services.config.warehouse.can), hash_key=bytes.fromhex(digest.key))
        if not canonical.same_values(scope, warehouse.types(table.target) or {}):
            return None
        stored, _ = WarehouseRows(warehouse, scope).sums([Span()])
        return stored[Span()] == Digest(promised.rows, int(digest.sum, 16))
    scope = Scope(table, forms(table, services.config.warehouse.can, parsed_columns(services, table)))
    held = staged(services, scope, promised.files)
    return None if held is None else WarehouseRows(warehouse, scope).sums([Span()])[0][Span()] == held


def staged(services: Services, scope: Scope, files: Sequence[DataFile]) -> Digest | None:
    """The digest of the rows in some files, as a warehouse computes it; None if a file is gone, or nobody waits.

    One file after the other, so that no more than one has to fit on this machine.
    """
    from floodmark.load.duckdb.merge import ask  # DuckDB is imported only when it is needed

    store, total = services.store, Digest()
    for file in files:
        if services.interrupted or store.end(file.path, 1) is None:
            return None
        with scratched("floodmark-verify-") as folder:
            [path] = fetch(store, [file], folder, scope.table.name)
            rows = ask(scope.table, path, lambda place: canonical.digests(place, scope, [Span()]))
        total += summed(rows).get("0", Digest())
    return total
