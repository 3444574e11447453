"""The published copies: `watermark backups` shows them, `watermark cleanup` removes old ones."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from floodmark.clean.copies import Keep, Old, choose, delete
from floodmark.config.load import Config
from floodmark.log import copies
from floodmark.log.copies import daily_paths
from floodmark.log.document import Copy, Flaw, commit_numbers
from floodmark.log.log import Log
from floodmark.log.recovery import recoveries
from floodmark.model.errors import FloodmarkError
from floodmark.model.results import BackupCopy, BackupPlace, Backups, CleanupResult
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
    shown = BackupCopy(
        uri=stored.path if stored.place == "copies_to" else store.uri(stored.path),
        status="valid"
        if wrong is None
        else wrong.kind
        if wrong.kind in ("missing", "unknown")
        else "damaged",
        bytes=stored.bytes,
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
