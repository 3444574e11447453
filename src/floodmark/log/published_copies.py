"""The stored copies of a table's watermark, and the commits they carry.

Read-only. In order of trust: the primary, the daily copies, the session copies (newest first in both cases),
then the primary and daily copies in each further place (`store.copies_to`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from floodmark.log.copies_to import PIPELINE, check_owner, daily_paths, unanswered
from floodmark.log.document import Copy, Flaw, primary_path, session_path
from floodmark.log.publish import chained, examine
from floodmark.model.commit import read_commit
from floodmark.model.errors import FloodmarkError
from floodmark.store.places import Place as FurtherPlace
from floodmark.store.store import Store

DAILY = "watermark/backups/daily/"
SESSIONS = "watermark/backups/sessions/"
READERS = 16
_SECOND = len("YYYYMMDD_HHMMSS")  # of a run's name; the rest is random

Place = Literal["primary", "daily", "session", "copies_to"]


@dataclass(frozen=True)
class Stored:
    """One copy as found."""

    place: Place
    path: str  # in a further place: the full URI
    data: bytes | None
    found: Copy | Flaw

    @property
    def bytes(self) -> int:
        return len(self.data or b"")

    @property
    def damaged(self) -> bool:
        """Whether it exists but is useless to every version; a copy of another version is not damaged."""
        return isinstance(self.found, Flaw) and self.found.kind == "damaged"


def session_paths(store: Store, table_name: str, sessions: Sequence[str] | None = None) -> list[str]:
    """The path of the table's copy in each session, or each of these, newest first; not every session has one."""
    runs = store.folders(SESSIONS) if sessions is None else sessions
    return [session_path(table_name, run) for run in reversed(runs)]


def stored(store: Store, table_name: str, place: Place, paths: Sequence[str]) -> Iterator[Stored]:
    """The copies that exist at these paths, fetched in parallel."""
    for i in range(0, len(paths), READERS):
        part = paths[i : i + READERS]
        for path, data in zip(part, store.each(store.get, part), strict=True):
            if data is not None:
                yield Stored(place, path, data, examine(data, table_name))


def primary(store: Store, table_name: str, old: float = 0.0) -> Stored:
    """The primary copy, present or missing; that it is missing may be `old` seconds old."""
    path = primary_path(table_name)
    data = store.get_recent(path, old)
    return Stored("primary", path, data, examine(data, table_name))


def backups(
    store: Store, table_name: str, sessions: Sequence[str] | None = None, old: float = 0.0
) -> Iterator[Stored]:
    """All copies but the primary, in order of trust, from all sessions or from these; fetched lazily."""
    yield from stored(store, table_name, "daily", daily_paths(store, table_name, old))
    found = stored(store, table_name, "session", session_paths(store, table_name, sessions))
    for _, same in groupby(found, key=lambda item: _run(item.path)[:_SECOND]):
        yield from sorted(same, key=_reached, reverse=True)  # names within a second are random


def elsewhere(
    store: Store, table_name: str, *, daily: bool = True, patient: bool = True, needed: bool = False
) -> Iterator[Stored]:
    """The copies in the further places, each place's primary first, present or missing.

    A place that can't be read yields one `unknown` flaw. Unless `patient`, a place has little time to answer.
    If `needed`, ends with an error when a place could not be read: a caller that uses no copy then stops.
    """
    failed: FloodmarkError | None = None
    for place in store.places:
        try:
            found = place.ask(lambda place: _in_place(store, place, table_name, daily), patient=patient)
        except FloodmarkError as error:
            place.complain(error.message, "read")
            failed = failed or unanswered(store, place, error)
            said = f"could not be read: {error.message}"
            yield Stored("copies_to", place.label, None, Flaw("unknown", said))
            continue
        yield from found
    if needed and failed is not None:
        raise failed.of(table_name)


def _in_place(store: Store, place: FurtherPlace, table_name: str, daily: bool) -> list[Stored]:
    if not place.ours:
        check_owner(store, place.store, store.get(PIPELINE))
        place.ours = True
    there = place.store
    paths = [primary_path(table_name), *(daily_paths(there, table_name) if daily else ())]
    found = [(there.uri(path), there.get(path)) for path in paths]
    return [Stored("copies_to", uri, data, examine(data, table_name)) for uri, data in found]


def _run(path: str) -> str:
    return path.removeprefix(SESSIONS).partition("/")[0]


def _reached(item: Stored) -> float:
    """The commit that the copy has reached; a damaged copy may be the newest, so it sorts first."""
    return item.found.checkpoint.state.n if isinstance(item.found, Copy) else math.inf


def commits_in(items: Iterable[Stored]) -> dict[int, set[bytes]]:
    """The commits carried by the copies, by number, byte for byte."""
    found: dict[int, set[bytes]] = {}
    for item in items:
        if isinstance(item.found, Copy):
            for data in chained(item.found.checkpoint.state, item.found.tail):
                found.setdefault(read_commit(data).n, set()).add(data)
    return found
