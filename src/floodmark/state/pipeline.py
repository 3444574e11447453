"""pipeline.json: the identity of a store prefix and the one warehouse that it fills."""

from __future__ import annotations

from dataclasses import dataclass, replace
from secrets import token_hex

from floodmark import model
from floodmark.errors import ConfigError, DataError
from floodmark.store import Store

PATH = "pipeline.json"


@dataclass(frozen=True)
class Identity:
    """Which pipeline a prefix holds."""

    id: str
    warehouse: str  # where it loads into, without credentials
    created_at: str


def read(store: Store) -> Identity | None:
    """The prefix's pipeline, or None before the first sync."""
    data = store.get(PATH)
    if data is None:
        return None
    try:
        return model.load(Identity, data)
    except ValueError:
        raise DataError(
            f"{store.uri(PATH)} is damaged, so it can't be told which pipeline this is",
            hint="restore it from a backup of the store",
        ) from None


def establish(store: Store, warehouse: str, now: str) -> Identity:
    """The prefix's pipeline, begun when there is none; another warehouse than before is refused."""
    found = check(store, warehouse)
    if found is None:
        begun = Identity(token_hex(16), warehouse, now)
        # Two first runs at once: whoever created it named the pipeline.
        store.create(PATH, model.dump(begun))
        found = check(store, warehouse) or begun
    return found


def check(store: Store, warehouse: str) -> Identity | None:
    """The prefix's pipeline, None before the first sync; another warehouse than before is refused."""
    found = read(store)
    if found is not None and found.warehouse != warehouse:
        raise ConfigError(
            f"{store.uri('')} belongs to a pipeline into {found.warehouse}, not into {warehouse}",
            hint="give the other warehouse a store prefix of its own; or, where this pipeline is to go on there: "
            "floodmark watermark move",
        )
    return found


def move(store: Store, found: Identity, warehouse: str) -> None:
    """Let the prefix's pipeline go on into another warehouse, by the same id."""
    store.put(PATH, model.dump(replace(found, warehouse=warehouse)))
