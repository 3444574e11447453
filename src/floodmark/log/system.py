"""The system watermark: where tables without a position of their own begin.

One object in the store, `watermark/last_run_timestamp.txt`, holds one timestamp. Only the user sets it; an
unreadable one is an error, never ignored.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

from floodmark.config.load import Config
from floodmark.model import presets, times
from floodmark.model.errors import ConfigError, DataError
from floodmark.model.results import SystemWatermark
from floodmark.store.store import Store

PATH = "watermark/last_run_timestamp.txt"


@dataclass(frozen=True)
class Start:
    """Where a table without a position of its own begins, and which setting decides that."""

    timestamp: str | None  # None: at the first row
    by: str


def read(store: Store) -> str | None:
    """The system watermark, or None if there is none."""
    data = store.get(PATH)
    if data is None:
        return None
    text = data.decode("utf-8-sig", "replace").strip()
    try:
        # The older tool appended a zone to some timestamps, but compared only the digits.
        return times.timestamp(text.removesuffix("Z").removesuffix("+00:00"))
    except ValueError:
        raise DataError(
            f"the system watermark {store.uri(PATH)} does not hold a timestamp: {text[:40]!r}",
            hint="floodmark watermark set --timestamp TS --force replaces it, floodmark watermark clear --force removes it",
        ) from None


class Starts:
    """Where tables begin, with the system watermark read once for all tables of a run. Thread-safe."""

    def __init__(self, store: Store, config: Config) -> None:
        self._store = store
        self._config = config
        self._lock = threading.Lock()
        self._system: tuple[str | None] | None = None  # None until it has been read

    def of(self, name: str) -> Start:
        """Where a table without a position of its own begins: at the system watermark if there is one, else at `start`."""
        with self._lock:
            if self._system is None:
                self._system = (read(self._store),)
            (timestamp,) = self._system
        if timestamp is not None:
            return Start(timestamp, "the system watermark")
        return Start(self._config.options(name).start, "`start` in the configuration")


def system_get(config: Config) -> SystemWatermark:
    """The system watermark as the contract's document."""
    return SystemWatermark(timestamp=read(Store(config.store)))


def moment(preset: str | None, timestamp: str | None) -> str:
    """The timestamp given by a preset or directly; exactly one of the two must be set."""
    if (preset is None) == (timestamp is None):
        raise ConfigError(
            "the system watermark takes a preset or --timestamp",
            hint=f"presets: {presets.PRESETS}",
        )
    now = datetime.now(UTC)
    try:
        return presets.preset(preset, now) if preset is not None else times.timestamp(timestamp or "", now)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def system_clear(config: Config, confirm: Callable[[str], None] = lambda before: None) -> SystemWatermark:
    """Removes the system watermark unless `confirm` raises. Returns how to undo that, if there was one."""
    store = Store(config.store)
    try:
        before, readable = read(store), True
    except DataError:
        before, readable = "unreadable", False
    if before is None:
        return SystemWatermark(timestamp=None, undo=None)
    confirm(before)
    store.delete([PATH])
    undo = f'floodmark watermark set --timestamp "{before}" --force' if readable else None
    return SystemWatermark(timestamp=None, undo=undo)


def system_set(config: Config, preset: str | None = None, timestamp: str | None = None) -> SystemWatermark:
    """Sets the system watermark by a preset or a timestamp; returns its document and how to undo it."""
    chosen = moment(preset, timestamp)
    store = Store(config.store)
    try:
        before = read(store)
    except DataError:
        before = None  # nothing worth going back to
    store.put(PATH, f"{chosen}\n".encode())
    undo = "floodmark watermark clear --force"
    if before is not None:
        undo = f'floodmark watermark set --timestamp "{before}" --force'
    return SystemWatermark(timestamp=chosen, undo=undo)
