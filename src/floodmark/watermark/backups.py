"""The published copies: `watermark backups` shows them, `cleanup` removes old ones, `drill` rehearses their use.

A drill tries each kind of loss with the real recovery code, on a view of the store that hides the lost objects and
keeps in memory whatever the recovery writes: the store itself and its further places are only read.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from floodmark.clean.copies import Keep, Old, choose, delete
from floodmark.config.load import Config
from floodmark.log import copies, pipeline
from floodmark.log.copies import daily_paths
from floodmark.log.document import Copy, Flaw, commit_numbers, commit_path, daily_path, primary_path, sessions
from floodmark.log.fold import State
from floodmark.log.log import Log, logs
from floodmark.log.recovery import records, recoveries
from floodmark.model.errors import FloodmarkError, VerificationError, exit_code
from floodmark.model.results import (
    BackupCopy,
    BackupPlace,
    Backups,
    CleanupResult,
    Drill,
    DrilledTable,
    DrillResult,
    Failure,
)
from floodmark.model.text import counted
from floodmark.plan.tables import full_name, must_exist
from floodmark.store.places import Place
from floodmark.store.store import Store


def watermark_backups(config: Config, name: str) -> Backups:
    """Where a table's copies are, which are valid, their size, and the latest recoveries; changes nothing."""
    store = Store(config.store)
    name = full_name(config, store, name)
    found = {
        "primary": [copies.primary(store, name)],
        "daily": list(copies.stored(store, name, "daily", daily_paths(store, name))),
        "sessions": list(copies.stored(store, name, "session", copies.session_paths(store, name))),
    }
    history = Log(store, name, repairs=False)
    if not any(c.data for each in found.values() for c in each) and not history.numbers():
        must_exist(config, name)
    if store.places:
        found["copies_to"] = list(copies.elsewhere(store, name))
    places = {
        place: _place(place, tuple(_shown(store, history, copy) for copy in each))
        for place, each in found.items()
    }
    if store.places:
        further = tuple(_further(place, name) for place in store.places)
        places["copies_to"] = places["copies_to"].but(places=further)
    return Backups(table_name=name, backup_locations=places, recoveries=tuple(recoveries(store, name)))


def _place(place: str, listed: tuple[BackupCopy, ...]) -> BackupPlace:
    valid = [c for c in listed if c.status == "valid"]
    counts: dict[str, Any] = {} if place == "primary" else {"count": len(listed), "valid": len(valid)}
    return BackupPlace(
        status=listed[0].status if listed else "missing",
        bytes=sum(c.bytes for c in listed),
        # By their content, not their name: two runs may begin in the same second.
        commit=max((c.commit for c in valid if c.commit is not None), default=None),
        **counts,
        copies=listed,
    )


def flaw(history: Log, stored: copies.Stored) -> Flaw | None:
    """What is wrong with a copy: its content, or that the log does not have its commit; None: it is valid."""
    if isinstance(stored.found, Flaw):
        return stored.found
    state = stored.found.checkpoint.state
    if history.confirms(state):
        return None
    return Flaw("damaged", f"its commit {state.n} is not in the log")


def _further(place: Place, name: str) -> dict[str, Any]:
    """A further place, and how many commits of the table it has; None: the log is not copied there, or it does not answer."""
    commits = None
    if place.with_log:
        with suppress(FloodmarkError):
            commits = len(commit_numbers(place.store, name))
    return {"url": place.label, "log": place.with_log, "commits": commits}


def _shown(store: Store, history: Log, stored: copies.Stored) -> BackupCopy:
    wrong = flaw(history, stored)
    copy = stored.found if isinstance(stored.found, Copy) else None
    why = wrong.kind if wrong is not None else "valid"
    shown = BackupCopy(
        uri=stored.path if stored.place == "copies_to" else store.uri(stored.path),
        status=why if why in ("valid", "missing", "unknown") else "damaged",
        bytes=len(stored.data or b""),
        commit=copy.checkpoint.state.n if copy else None,
        saved_at=copy.saved.get("saved_at") if copy else None,
    )
    return shown if wrong is None or wrong.kind == "missing" else shown.but(detail=wrong.said)


def watermark_cleanup(
    config: Config, days: int = 7, dry_run: bool = False, confirm: Callable[[Old], None] = lambda old: None
) -> CleanupResult:
    """Removes copies older than `days`; `confirm` may object by raising."""
    store = Store(config.store)
    old = choose(store, Keep.all(days), datetime.now(UTC))
    if not dry_run:
        confirm(old)
        delete(store, old.all)
    return CleanupResult(
        cleaned_daily_backups=len(old.daily),
        cleaned_session_backups=len(old.sessions),
        cleaned_recoveries=len(old.records),
        bytes=old.bytes,
        dry_run=dry_run,
    )


# A run that commits in the meantime changes what should be recovered: then the loss is tried again.
ATTEMPTS = 5


@dataclass(frozen=True)
class Loss:
    """What is lost: kinds of copies, the log, or the whole store except for one of its further places."""

    lost: tuple[str, ...]
    hides: Callable[[str], bool]
    place: int | None = None  # of the further places, the one that is left; None: all are there
    files_too: bool = False  # data files are lost with it


def watermark_drill(config: Config, names: Sequence[str] = (), *, all_tables: bool = False) -> DrillResult:
    """Tries each loss for each table; `ok` means that everything could be recovered. Changes nothing."""
    store = Store(config.store)
    chosen = logs(store) if all_tables else [full_name(config, store, name) for name in names]
    found = tuple(_table(config, store, name) for name in chosen)
    codes = [t.error.code if t.error else VerificationError.code for t in found if not t.ok]
    return DrillResult(ok=not codes, exit_code=exit_code(codes), tables=found)


def _table(config: Config, store: Store, name: str) -> DrilledTable:
    result = DrilledTable(table=name, ok=True, commit=None, drills=(), error=None)
    try:
        state = Log(store, name, repairs=False, aloud=False).read()
        if state.n < 0:
            must_exist(config, name)
            return result  # nothing to lose yet
        drills = tuple(_tried(store, name, loss) for loss in losses(store, name))
    except FloodmarkError as error:
        return result.but(ok=False, error=Failure.by(error.of(name)))
    return result.but(ok=all(d.recovered for d in drills), commit=state.n, drills=drills)


def losses(store: Store, name: str) -> Iterator[Loss]:
    """Each kind of copy, all copies, the log, the log with each kind of copy; and, where there are further places, the store."""
    folder = commit_path(name, 0).rpartition("/")[0] + "/"
    stem = daily_path(name, "").removesuffix(".json")
    kinds: dict[str, Callable[[str], bool]] = {
        "primary": lambda path: path == primary_path(name),
        "daily": lambda path: path.startswith(stem),
        "sessions": lambda path: path.startswith(sessions(name)),
    }

    def log(path: str) -> bool:
        return path.startswith(folder)

    def any_copy(path: str) -> bool:
        return any(hides(path) for hides in kinds.values())

    for kind, hides in kinds.items():
        yield Loss((kind,), hides)
    yield Loss(tuple(kinds), any_copy)
    yield Loss(("log",), log)
    for kind, hides in kinds.items():
        yield Loss(("log", kind), lambda path, hides=hides: log(path) or hides(path))  # type: ignore[misc]
    for n in range(len(store.places)):
        yield Loss(("log", *kinds), lambda path: log(path) or any_copy(path), n)
        yield Loss(("store",), lambda path: True, n, files_too=True)


def _tried(store: Store, name: str, loss: Loss) -> Drill:
    for attempt in range(ATTEMPTS):
        before = Log(store, name, repairs=False, aloud=False).read()
        outcome = _once(store, name, loss, before)
        if outcome.recovered or attempt == ATTEMPTS - 1:
            return outcome
        if Log(store, name, repairs=False, aloud=False).read().digest == before.digest:
            return outcome
    raise AssertionError("unreachable")


def _once(store: Store, name: str, loss: Loss, expected: State) -> Drill:
    """Applies the loss, recovers, and compares: the recovered state must equal the expected one in every field."""
    places = range(len(store.places)) if loss.place is None else (loss.place,)
    nothing = Drill(
        lost=loss.lost, left=None if loss.place is None else store.places[loss.place].label, recovered=False, from_=None,
        copy=None, commit=None, seconds=0.0, commits_put_back=0, commits_lost=0, detail=None,
    )  # fmt: skip
    view = store.after_losing(lambda path: path.startswith(records(name)) or loss.hides(path), places)
    log, real = Log(view, name, aloud=False), Log(store, name, repairs=False, aloud=False)
    left = len(log.numbers())
    began = time.monotonic()
    try:
        state = log.read()
        waiting = _waiting(real, log, state)
    except FloodmarkError as error:
        return nothing.but(seconds=_since(began), detail=error.message)
    seconds = _since(began)
    record = next(iter(recoveries(view, name)[-1:]), None)  # the first: it decided
    there = len(log.numbers())
    if state.n < 0:
        detail = "nothing could be recovered, and the table would start over"
        return nothing.but(seconds=seconds, detail=detail)
    return nothing.but(
        recovered=(wrong := _wrong(view, loss, state, expected, waiting)) is None,
        from_=record.source if record else "primary",
        copy=record.copy if record else None,
        commit=state.n,
        seconds=seconds,
        commits_put_back=there - left,
        commits_lost=max(0, len(real.numbers()) - there),
        detail=wrong,
    )


def _wrong(view: Store, loss: Loss, state: State, expected: State, waiting: int) -> str | None:
    """What would be missing, although the table has a state again; None: nothing."""
    if state != expected:
        return f"recovered as of commit {state.n}, not as it is now (commit {expected.n})"
    if loss.files_too and waiting:
        return f"{counted(waiting, 'file')} waiting to be loaded would be lost with the store"
    if loss.files_too and pipeline.read(view) is None:
        return "the pipeline's identity would be lost"
    return None


def _waiting(real: Log, log: Log, state: State) -> int:
    """How many files wait to be loaded, by the published copy; raises Damaged when one of their commits is lost."""
    published = copies.primary(real.store, real.table_name).found
    loaded = published.checkpoint.load if isinstance(published, Copy) else None
    if loaded is not None and loaded.epoch != state.load_epoch:
        loaded = None
    waiting = [d for d in state.live if loaded is None or not loaded.has(d.n)]
    for data in waiting:
        log.commit(data.n)
    return sum(data.files for data in waiting)


def _since(began: float) -> float:
    return round(time.monotonic() - began, 3)
