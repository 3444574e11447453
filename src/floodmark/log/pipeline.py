"""pipeline.json: the identity of a store prefix and the one warehouse it loads into."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from secrets import token_hex

from floodmark.log.copies_to import RECOVERED_FROM, pipeline_elsewhere
from floodmark.model.errors import ConfigError, DataError, FloodmarkError
from floodmark.model.json import dump, load
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
