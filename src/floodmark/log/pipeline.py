"""What a store's prefix says of all its tables: its pipeline and warehouse, and the system watermark.

pipeline.json names the prefix's pipeline and the one warehouse it loads into. The system watermark is one
timestamp, where tables without a position of their own begin: only the user sets it, and an unreadable one is
an error, never ignored.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from secrets import token_hex

from floodmark.config.load import Config
from floodmark.log.copies import RECOVERED_FROM, pipeline_elsewhere
from floodmark.model import presets, times
from floodmark.model.errors import ConfigError, DataError, FloodmarkError
from floodmark.model.json import dump, load
from floodmark.model.results import SystemWatermark
from floodmark.store.store import Store

PATH = "pipeline.json"


@dataclass(frozen=True)
class Identity:
    """Which pipeline a prefix holds."""

    id: str
    warehouse: str  # the target's URL, without credentials
    created_at: str


def read(store: Store, *, sure: bool = False) -> Identity | None:
    """The prefix's pipeline, or None before the first sync; if lost, taken from a further place.

    Raises if a place can't be read and the answer matters: to a caller that has to be `sure`, or in a store
    without any table, which may have been lost as a whole.
    """
    data = store.get(PATH)
    if data is None and store.places:
        data = pipeline_elsewhere(store, sure=sure or not store.folders("commits/"))
    if data is None:
        return None
    try:
        return load(Identity, data)
    except ValueError:
        raise DataError(
            f"{store.uri(PATH)} is damaged, so the pipeline can't be identified",
            hint="restore it from a backup of the store",
        ) from None


def establish(store: Store, warehouse: str, now: str) -> Identity:
    """The prefix's pipeline, created if there is none; ConfigError if it loads into another warehouse."""
    found = check(store, warehouse, sure=True)
    if found is not None and (not store.places or store.get(PATH) is not None):
        return found
    if found is not None:  # before pipeline.json, without which the store counts as lost anyway
        store.put(RECOVERED_FROM, dump(found))
    begun = found or Identity(token_hex(16), warehouse, now)
    # If two first runs race, the one that creates the object names the pipeline.
    store.create(PATH, dump(begun))
    return check(store, warehouse) or begun


def check(store: Store, warehouse: str, *, sure: bool = False) -> Identity | None:
    """The prefix's pipeline, None before the first sync; ConfigError if it loads into another warehouse."""
    found = read(store, sure=sure)
    if found is not None and found.warehouse != warehouse:
        raise ConfigError(
            f"{store.uri('')} belongs to a pipeline into {found.warehouse}, but warehouse.url is {warehouse}",
            hint="correct warehouse.url. A second warehouse needs its own store prefix; to move this pipeline to "
            "the new one: floodmark watermark move",
        )
    return found


def move(store: Store, found: Identity, warehouse: str) -> None:
    """Moves the prefix's pipeline to another warehouse, keeping its id."""
    store.put(PATH, dump(replace(found, warehouse=warehouse)))


class StorePipeline:
    """The pipeline of a store's prefix, read once for all tables of a run. Thread-safe."""

    def __init__(self, store: Store, warehouse: str) -> None:
        self._store = store
        self._warehouse = warehouse
        self._lock = threading.Lock()
        self._found: Identity | None = None

    def known(self) -> Identity | None:
        """The pipeline, None before the first sync; ConfigError if it loads into another warehouse."""
        with self._lock:
            if self._found is None:
                self._found = check(self._store, self._warehouse)
            return self._found

    @property
    def known_id(self) -> str:
        """Its id, empty before the first sync."""
        found = self.known()
        return found.id if found else ""

    def ours(self) -> bool:
        """Whether a run may write about the tables: not if the prefix belongs to a pipeline into another warehouse."""
        try:
            self.known()
        except ConfigError:
            return False
        except FloodmarkError:
            pass  # whose it is can't be told now, but nobody was refused
        return True

    def begun(self, now: str) -> Identity:
        """The same, but created if the prefix is new: call it only once the warehouse has answered."""
        with self._lock:
            if self._found is None:
                self._found = establish(self._store, self._warehouse, now)
            return self._found


SYSTEM_PATH = "watermark/last_run_timestamp.txt"


@dataclass(frozen=True)
class Start:
    """Where a table without a position of its own begins, and which setting decides that."""

    timestamp: str | None  # None: at the first row
    by: str


def system_watermark(store: Store) -> str | None:
    """The system watermark, or None if there is none."""
    data = store.get(SYSTEM_PATH)
    if data is None:
        return None
    text = data.decode("utf-8-sig", "replace").strip()
    try:
        # The older tool appended a zone to some timestamps, but compared only the digits.
        return times.timestamp(text.removesuffix("Z").removesuffix("+00:00"))
    except ValueError:
        raise DataError(
            f"the system watermark {store.uri(SYSTEM_PATH)} does not hold a timestamp: {text[:40]!r}",
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
                self._system = (system_watermark(self._store),)
            (timestamp,) = self._system
        if timestamp is not None:
            return Start(timestamp, "the system watermark")
        return Start(self._config.options(name).start, "`start` in the configuration")


def system_get(config: Config) -> SystemWatermark:
    """The system watermark as the contract's document."""
    return SystemWatermark(timestamp=system_watermark(Store(config.store)))


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
        before, readable = system_watermark(store), True
    except DataError:
        before, readable = "unreadable", False
    if before is None:
        return SystemWatermark(timestamp=None, undo=None)
    confirm(before)
    store.delete([SYSTEM_PATH])
    undo = f'floodmark watermark set --timestamp "{before}" --force' if readable else None
    return SystemWatermark(timestamp=None, undo=undo)


def system_set(config: Config, preset: str | None = None, timestamp: str | None = None) -> SystemWatermark:
    """Sets the system watermark by a preset or a timestamp; returns its document and how to undo it."""
    chosen = moment(preset, timestamp)
    store = Store(config.store)
    try:
        before = system_watermark(store)
    except DataError:
        before = None  # nothing worth going back to
    store.put(SYSTEM_PATH, f"{chosen}\n".encode())
    undo = "floodmark watermark clear --force"
    if before is not None:
        undo = f'floodmark watermark set --timestamp "{before}" --force'
    return SystemWatermark(timestamp=chosen, undo=undo)
