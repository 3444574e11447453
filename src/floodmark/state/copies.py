"""The copies of a table's watermark that lie in the store, and the commits that they carry.

Only reads. In the order of trust: the primary, the daily copies from the newest on, the sessions' from the newest.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from floodmark.model import Commit, load
from floodmark.state.publish import OTHER_VERSION, chained, examine
from floodmark.state.watermark import Copy, daily_path, primary_path, session_path
from floodmark.store import Store

DAILY = "watermark/backups/daily/"
SESSIONS = "watermark/backups/sessions/"
READERS = 16
_SECOND = len("YYYYMMDD_HHMMSS")  # of a run's name; the rest is by chance

Place = Literal["primary", "daily", "session"]


@dataclass(frozen=True)
class Stored:
    """One copy as it was found."""

    place: Place
    path: str
    data: bytes | None
    found: Copy | str  # or what is wrong with it

    @property
    def bytes(self) -> int:
        return len(self.data or b"")

    @property
    def damaged(self) -> bool:
        """Whether it is there and of no use to anyone; one of another version may be to that version."""
        return isinstance(self.found, str) and self.data is not None and OTHER_VERSION not in self.found


def daily_paths(store: Store, table_name: str) -> list[str]:
    """The table's daily copies, newest first."""
    stem = daily_path(table_name, "").removesuffix(".json")
    paths = [o.path for o in store.list(stem, start_after=stem)]  # among those of all tables
    # `s.t_` also begins the copies of a table `s.t_2`.
    return [p for p in reversed(paths) if re.fullmatch(r"\d{8}\.json", p.removeprefix(stem))]


def session_paths(store: Store, table_name: str) -> list[str]:
    """Where copies of the table by each session would be, newest first; not every session has one."""
    return [session_path(table_name, run) for run in reversed(store.folders(SESSIONS))]


def stored(store: Store, table_name: str, place: Place, paths: Sequence[str]) -> Iterator[Stored]:
    """The copies at these paths that are there, fetched side by side."""
    with ThreadPoolExecutor(READERS, thread_name_prefix="copies") as pool:
        for i in range(0, len(paths), READERS):
            part = paths[i : i + READERS]
            for path, data in zip(part, pool.map(store.get, part), strict=True):
                if data is not None:
                    yield Stored(place, path, data, examine(data, table_name))


def primary(store: Store, table_name: str) -> Stored:
    """The primary copy, there or not."""
    path = primary_path(table_name)
    data = store.get(path)
    return Stored("primary", path, data, examine(data, table_name))


def backups(store: Store, table_name: str, sessions: int | None = None) -> Iterator[Stored]:
    """All copies but the primary, in the order of trust, of so many sessions; fetched as they are asked for."""
    yield from stored(store, table_name, "daily", daily_paths(store, table_name))
    found = stored(store, table_name, "session", session_paths(store, table_name)[:sessions])
    for _, same in groupby(found, key=lambda item: _run(item.path)[:_SECOND]):
        yield from sorted(same, key=_reached, reverse=True)  # their names are in no order


def _run(path: str) -> str:
    return path.removeprefix(SESSIONS).partition("/")[0]


def _reached(item: Stored) -> float:
    """How far the copy is; one that is damaged may be the newest."""
    return item.found.checkpoint.state.n if isinstance(item.found, Copy) else math.inf


def carried(items: Iterable[Stored]) -> dict[int, set[bytes]]:
    """The commits that copies carry, by number, byte for byte."""
    found: dict[int, set[bytes]] = {}
    for item in items:
        if isinstance(item.found, Copy):
            for data in chained(item.found.checkpoint.state, item.found.tail):
                found.setdefault(load(Commit, data).n, set()).add(data)
    return found
