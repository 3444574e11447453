"""Recovery: a table's state when its primary copy or its log is damaged, exact or not at all.

The log is the truth; a copy only says how far the log had come, and carries its newest commits byte for byte.
So a copy never overrules a sound log, newer commits are folded on top of it, and a commit is put back into
the log only if the log's digests prove it, or rebuilt from its files' footers if they agree to the last row.
Every recovery is recorded in the store and needs no action from the user.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import chain, islice
from secrets import token_hex
from typing import TYPE_CHECKING
from uuid import uuid4

from floodmark.log import copies
from floodmark.log.copies import chained, commits_elsewhere, maybe_lost, newest, render
from floodmark.log.document import Copy, Flaw, commit_path, document, observe, primary_path
from floodmark.log.document import log as logger
from floodmark.log.fold import Damaged, DataCommit, NothingLeft, State, fold
from floodmark.log.lease import holder, lease_path
from floodmark.model.commit import Batch, Commit, DataFile, Deletes, by_key, read_commit
from floodmark.model.errors import DataError, FloodmarkError, TransientError
from floodmark.model.json import digest, dump, load
from floodmark.model.parquet import Footer, data_file, read_footer
from floodmark.model.results import RecoveryRow
from floodmark.model.run import Finding
from floodmark.model.times import stamp
from floodmark.store.store import Store, encode, file_folders, home

if TYPE_CHECKING:
    from floodmark.log.log import Log

RECORDS = "watermark/recoveries/"
# Sessions searched for a table that shows no sign of ever having had state.
FEW = 64
# Commits requested from a further place at a time.
CHUNK = 512
# Commits requested at a time that a further place may have beyond its copy: seldom more than one or two.
LATER = 8


class Foreign(DataError):
    """A sound copy, but of another log."""


@dataclass(frozen=True)
class Recovery:
    """The record of one recovery."""

    table_name: str
    at: str
    success: bool
    source: str  # primary, daily, session, copies_to, log, files
    copy: str | None  # the copy that the state was recovered from
    commit: int | None  # the commit that the table has reached
    seconds: float
    wrong: tuple[str, ...]
    done: tuple[str, ...] = ()


def records(table_name: str) -> str:
    """The folder of a table's recovery records."""
    return f"{home(table_name)}{RECORDS}{encode(table_name)}/"


def recover(log: Log, primary: copies.Stored) -> State:
    """The table's state when the primary copy can't be used as it is; repairs the damage."""
    began = time.monotonic()
    wrong: list[str] = []
    done: list[str] = []
    try:
        state, source = _state(log, primary, wrong, done)
    except DataError as error:
        _record(log, began, "", None, None, [*wrong, error.message])
        raise
    if state.n < 0 or (source is None and primary.data is None and _begun(log, state)):
        return state
    copy = source.found if source and isinstance(source.found, Copy) else None
    if log.repairs and (source is None or source.place != "primary"):
        done += _restore(log, state, copy, primary.data)
    place, path = (source.place, source.path) if source else ("log", None)
    _record(log, began, place, path, state.n, wrong, done)
    return state


def _state(
    log: Log, primary: copies.Stored, wrong: list[str], done: list[str]
) -> tuple[State, copies.Stored | None]:
    """The state, and the copy it was folded from; None: from the log alone."""
    broken: Damaged | None = None
    reached = -1  # the highest commit in copies that the log no longer supports
    useless = False  # whether there are copies that can't be used
    unknown: Flaw | None = None  # a further place that could not be read
    signs = cache(partial(_signs, log))
    for item in _candidates(log, primary, signs):
        if isinstance(item.found, Flaw):
            wrong.append(f"{item.path}: {item.found}")
            useless = useless or item.found.kind not in ("missing", "unknown")
            unknown = item.found if item.found.kind == "unknown" else unknown
            continue
        if item.found.checkpoint.state.n < 0:  # from before the log was opened: says nothing
            continue
        try:
            state = carry_on(log, item.found, wrong, done)
            if item.place == "copies_to":
                state = _later_commits(log, state, item.path, done)
            if state.n >= reached:
                return state, item
        except Foreign as error:
            wrong.append(f"{item.path}: {error.message}")
            useless = True
        except Damaged as error:
            wrong.append(f"{item.path}: {error.message}")
            broken = broken or error
            reached = max(reached, item.found.checkpoint.state.n)
    state = State(log.table_name)
    try:
        if broken is not None:  # a sound copy knows commits that the log lacks, so the log is incomplete
            raise broken
        # A log opened by another run after this check does no harm: only one run can create commit 0.
        if signs().commits or _left_alone(log, signs().files, useless):
            state = log.fold_on(state)
    except DataError as error:
        if unknown is None:
            raise
        raise TransientError(
            f"{error.message}; copies_to {unknown}",
            hint="run again when that place is reachable, or remove it from store.copies_to",
            table=log.table_name,
        ) from None
    return state, None


@dataclass(frozen=True)
class _Signs:
    """What the store holds of a table besides its copies, and the runs that may have left some."""

    commits: bool
    files: int
    sessions: tuple[str, ...]

    def __bool__(self) -> bool:
        return self.commits or self.files > 0


def _signs(log: Log) -> _Signs:
    store, below, name = log.store, home(log.table_name), encode(log.table_name)
    # Folders, because new tables share the lists. In this order: a log opened meanwhile has commits before it has files.
    asked = (f"{below}{each}/" for each in ("commits", "data", "keys", "watermark/backups/sessions"))
    with_commits, with_rows, with_keys, runs = store.folders_of(*asked)
    commits = name in with_commits and bool(log.numbers())
    folders = file_folders(log.table_name) if below or name in (*with_rows, *with_keys) else ()
    files = sum(1 for folder in folders for _ in store.list(folder))
    return _Signs(commits, files, runs)


def _candidates(log: Log, primary: copies.Stored, signs: Callable[[], _Signs]) -> Iterator[copies.Stored]:
    yield primary
    few = primary.data is None and not signs()
    sessions = signs().sessions[-FEW:] if few else None
    yield from copies.backups(log.store, log.table_name, sessions)
    if log.store.places:  # worth waiting for only if the store has nothing else to go by
        lost = few and maybe_lost(log.store)
        patient = lost or (not few and not signs().commits)
        daily = lost or not few
        yield from copies.elsewhere(log.store, log.table_name, daily=daily, patient=patient, needed=lost)


def carry_on(log: Log, copy: Copy, wrong: list[str], done: list[str]) -> State:
    """The log's state from a copy onwards; puts the copy's own commit back if the log has lost it."""
    known = copy.checkpoint.state
    if log.confirms(known):
        return log.fold_on(known)
    last = next(filter(None, map(log.readable, reversed(log.numbers()))), None)
    if last is not None and last.log != known.log:
        raise Foreign(f"belongs to another log ({known.log})")
    tail = chained(known, copy.tail)
    path = commit_path(log.table_name, known.n)
    there = log.store.get(path)
    if there is not None and (other := _sound_commit(log, known.n, there)) is not None:
        # The ids show that another commit has this number: then the copy is wrong.
        if not tail or read_commit(tail[-1]).id != other.id:
            raise Foreign(f"does not match the log: commit {known.n} there is a different one")
    elif not tail:
        what = "missing" if there is None else "unreadable"
        raise log.damaged(known.n, f", which the published watermark shows, is {what}")
    wrong.append(f"{path}: {'missing' if there is None else 'damaged'}")
    done += _put_back_tail(log, tail)
    state = log.fold_on(known)
    _tell(log, known, done)
    return state


def _later_commits(log: Log, state: State, copy: str, done: list[str]) -> State:
    """The state with the commits that further places have beyond the copy: a place gets a commit first.

    Each is proven by the digest that it names. Raises if the place of the copy no longer answers.
    """
    while True:
        before = state.n
        wanted = range(before + 1, before + 1 + LATER)
        for n, data in sorted(commits_elsewhere(log.store, log.table_name, wanted, beyond=copy)):
            if n != state.n + 1:
                continue
            with suppress(Damaged):
                after = fold(state, *log.parse(n, data))
                done += _write(log, n, data)
                if log.repairs and log.store.get(commit_path(log.table_name, n)) != data:
                    return log.fold_on(state)  # another run has committed meanwhile
                state = after
        if state.n < before + LATER:
            return state


def _sound_commit(log: Log, n: int, data: bytes) -> Commit | None:
    """The commit in these bytes if it continues the one before it in the store."""
    try:
        commit, _ = log.parse(n, data)
    except DataError:
        return None
    before = log.store.get(commit_path(log.table_name, n - 1)) if n else None
    return commit if before is None or digest(before) == commit.prev else None


def _put_back_tail(log: Log, tail: Iterable[bytes]) -> list[str]:
    """Writes the proven commits missing or damaged in the log, and earlier ones from other copies."""
    done: list[str] = []
    lowest, expected = None, ""
    for data in tail:
        commit = read_commit(data)
        if lowest is None:
            lowest, expected = commit.n, commit.prev
        if log.store.get(commit_path(log.table_name, commit.n)) != data:
            done += _write(log, commit.n, data)
    there = [n for n in log.numbers() if n < (lowest or 0)]
    if len(there) == (lowest or 0):
        return done
    # The log has lost older commits too: work downwards, as far as each commit is proven by the next one.
    backups = copies.backups(log.store, log.table_name)
    others = copies.commits_in(chain(backups, copies.elsewhere(log.store, log.table_name)))
    kept = set(there)
    lost = (n for n in range((lowest or 0) - 1, -1, -1) if n not in kept)
    while part := list(islice(lost, CHUNK)):
        for n, data in commits_elsewhere(log.store, log.table_name, part):
            others.setdefault(n, set()).add(data)
    for n in sorted(kept | {n for n in others if 0 <= n < (lowest or 0)}, reverse=True):
        found = next((d for d in others.get(n, ()) if digest(d) == expected), None)
        if n not in kept and found is not None:
            done += _write(log, n, found)
        known = read_commit(found) if found is not None else log.readable(n)
        expected = known.prev if known else ""
    return done


def _write(log: Log, n: int, data: bytes) -> list[str]:
    """Puts a commit's own bytes back under its number."""
    path = commit_path(log.table_name, n)
    if log.repairs and log.store.get(path) is None:
        log.store.create(path, data)  # not put: must not overwrite what another run writes there meanwhile
    elif log.repairs:
        log.store.put(path, data)
    return [f"commit {n} put back"]


def _tell(log: Log, known: State, done: list[str]) -> None:
    """Reports the damaged log as a finding, even if everything was put back."""
    there = [n for n in log.numbers() if n <= known.n] if log.repairs else []
    lost = known.n + 1 - len(there) if log.repairs else 0
    kept = set(there)
    gone = list(islice((n for n in range(known.n + 1) if n not in kept), min(lost, 1000)))
    detail = f"the commit log was damaged: {', '.join(done) or 'nothing put back'}"
    if lost:
        highest = next(n for n in range(known.n, -1, -1) if n not in kept)
        detail += f"; {lost} older commits ({gone[0]} to {highest}) are lost; their totals are in the copies"
    log.findings.append(Finding("damaged_log", log.table_name, detail, {"lost": gone}))


def put_back(log: Log, n: int, damage: Damaged) -> tuple[Commit, str]:
    """Restores a commit missing or damaged in the log: byte for byte from a copy, else from its files."""
    began = time.monotonic()
    later = log.readable(n + 1)
    before = log.readable(n - 1) if n else None
    seen: list[State] = []

    def stored() -> Iterator[tuple[bytes, str, str | None]]:
        for item in _candidates(log, copies.primary(log.store, log.table_name), partial(_signs, log)):
            yield from ((data, item.place, item.path) for data in copies.commits_in([item]).get(n, ()))
            if isinstance(item.found, Copy):
                seen.append(item.found.checkpoint.state)
        yield from (
            (data, "copies_to", None) for _, data in commits_elsewhere(log.store, log.table_name, (n,))
        )

    for data, source, copy in stored():
        # The next commit proves it; the newest commit is proven by the copy that carries it.
        proven = later.prev == digest(data) if later is not None else copy is not None
        if proven and (before is None or log.parse(n, data)[0].prev == log.digest_of(n - 1)):
            return _repaired(log, n, data, damage, began, source, copy)
    commit = rebuilt(log.store, seen, n, later, log.digest_of(n - 1) if n else "")
    if commit is None:
        raise damage
    return _repaired(log, n, dump(commit), damage, began, "files")


def _repaired(
    log: Log, n: int, data: bytes, damage: Damaged, began: float, source: str, copy: str | None = None
) -> tuple[Commit, str]:
    written = _write(log, n, data)
    done = [f"commit {n} rebuilt from its files"] if source == "files" else written
    _record(log, began, source, copy, n, [f"{commit_path(log.table_name, n)}: {damage.message}"], done)
    detail = f"the commit log was damaged: {done[0]}"
    log.findings.append(Finding("damaged_log", log.table_name, detail, {"commit": n}))
    return log.parse(n, data)


def _begun(log: Log, state: State) -> bool:
    """Whether a missing primary copy is normal: nothing to publish yet, or a live run is about to."""
    if not state.data.commits and state.progress.moved_at is None and state.source is None:
        return True
    held = holder(log.store, log.table_name, state.claim)
    return held is not None and held.alive


def _left_alone(log: Log, files: int, useless: bool) -> bool:
    """Whether a table without a log has one by now; raises NothingLeft if only other traces of it exist."""
    name = log.table_name
    # All that is left if the files were cleaned.
    claimed = log.store.get(lease_path(name)) is not None
    if not (useless or files or claimed):
        return False
    if log.numbers():  # opened by another run meanwhile
        return True
    what = (
        f"{files:,} data files" if files else "only damaged watermark copies" if useless else "only the lease"
    )
    raise NothingLeft(
        f"the store has {what} of {name} but neither its log nor a sound watermark copy: its position is unknown",
        hint=f"restore commits/ and watermark/ from a backup of the store; or choose where to continue: "
        f"floodmark watermark set -t {name} --timestamp TS, restore -t {name} --file F (what `get --json` printed), "
        f"or reset -t {name} to start over",
        table=name,
    )


def _restore(log: Log, state: State, copy: Copy | None, seen: bytes | None) -> list[str]:
    """Rewrites the primary copy, unless another run has done so meanwhile."""
    path = primary_path(log.table_name)
    checkpoint = observe(state, None, copy)
    session = copy.saved.get("session_id") if copy else state.claim.run if state.claim else None
    saved = {"saved_at": stamp(), "session_id": session, "backup_locations": ["primary"]}
    body = document(checkpoint, log.store.uri, saved)
    data = render(body, checkpoint, newest(log.store, state, copy, log.own))
    try:
        if log.store.get(path) != seen:
            return []
        log.store.put(path, data)
        same = log.store.get(path) == data
    except FloodmarkError as error:  # a reader may lack write access; the state it has read is right anyway
        return [f"the primary copy could not be restored: {error.message}"]
    return ["primary copy restored" if same else "the primary copy differs when read back"]


def _record(
    log: Log, began: float, source: str, copy: str | None, commit: int | None,
    wrong: Sequence[str], done: Sequence[str] = (),
) -> None:  # fmt: skip
    """Logs and records a recovery; a record that can't be written stops nothing."""
    seconds, success = round(time.monotonic() - began, 3), commit is not None
    recovery = Recovery(
        log.table_name, stamp(), success, source, copy, commit, seconds, tuple(wrong), tuple(done)
    )
    outcome = f"recovered from {recovery.copy or recovery.source}" if recovery.success else "not recovered"
    # If the store itself could not recover the table, the user should know.
    logger.log(
        logging.WARNING if recovery.source == "copies_to" and log.aloud else logging.INFO,
        "%s: %s in %.1f s (%s)", log.table_name, outcome, recovery.seconds, "; ".join(recovery.wrong),
        extra={"table": log.table_name, "commit": recovery.commit, "step": "recover"},
    )  # fmt: skip
    if not log.repairs:
        return
    moment = recovery.at.translate(str.maketrans("", "", "-:.TZ"))
    name = f"{moment[:8]}_{moment[8:14]}_{moment[14:]}_{token_hex(2)}"
    if not recovery.success:  # one record per day and cause, however often it occurs
        name = f"{moment[:8]}_failed_{digest(repr(recovery.wrong).encode())[:8]}"
    try:
        log.store.put(f"{records(log.table_name)}{name}.json", dump(recovery) + b"\n")
    except FloodmarkError as error:
        logger.info("%s: the recovery could not be recorded: %s", log.table_name, error.message)


def recoveries(store: Store, table_name: str, last: int = 20) -> list[RecoveryRow]:
    """The table's latest recoveries, newest first."""
    found = []
    for item in sorted(store.list(records(table_name)), key=lambda o: o.path, reverse=True)[:last]:
        try:
            found.append(RecoveryRow.of(asdict(load(Recovery, store.get(item.path) or b""))))
        except ValueError:
            continue
    return sorted(found, key=lambda r: r.at, reverse=True)


def rebuilt(
    store: Store, checkpoints: Sequence[State], n: int, later: Commit | None, before: str | None
) -> Commit | None:
    """Commit number `n`, or None if it is not a data commit or its files don't prove it.

    `later` is the commit after it, `before` the digest of the one before.
    """
    for state in checkpoints:
        data = next((d for d in state.data.commits if d.n == n), None)
        paths = [f.path for f in state.data.recent_files if f.n == n]
        if (
            data is None
            or not paths
            or len(paths) != data.files
            or (later is not None and later.prev != data.digest)
        ):
            continue
        commit = _from_files(store, state, data, paths, before or "")
        if commit is not None:
            return commit
    return None


def _from_files(
    store: Store, state: State, data: DataCommit, paths: Sequence[str], before: str
) -> Commit | None:
    files: list[DataFile] = []
    footers: list[Footer] = []
    for path in paths:
        content = store.get(path, most=data.bytes)
        found = read_footer(content) if content is not None else None
        if content is None or found is None:
            return None
        files.append(data_file(path, content, *found, created_at=data.at))
        footers.append(found[0])
    if not _proven(state, data, files, footers):
        return None
    window = footers[0].window if footers[0].kind in ("window", "snapshot") else None
    slices = tuple(sorted({f.slice for f in files})) if window else ()
    kind: Callable[..., Commit] = partial(Batch, window_id=window, slices=slices)
    if by_key(data.load_as):
        kind = partial(Deletes, purpose="where" if footers[0].kind == "where" else None)
    return kind(
        n=data.n, id=uuid4().hex, log=state.log, table_name=state.table_name, run=footers[0].run, at=data.at, prev=before,
        schema=data.schema, files=tuple(files), load_as=data.load_as, note="rebuilt from its files", stands_for=data.digest,
    )  # fmt: skip


def _proven(state: State, data: DataCommit, files: Sequence[DataFile], footers: Sequence[Footer]) -> bool:
    """Whether these are the commit's files: same rows, bytes, table, log, schema, one attempt per slice."""
    attempts = {(f.claim, f.kind, f.slice, f.attempt) for f in footers}
    return (
        sum(f.rows for f in files) == data.rows
        and sum(f.bytes for f in files) == data.bytes
        and {(f.table, f.log, f.schema) for f in footers} <= {(state.table_name, state.log, data.schema)}
        and len({(f.claim, f.kind, f.slice) for f in footers}) == len(attempts)
        and len({(f.run, f.window) for f in footers}) <= 1
    )
