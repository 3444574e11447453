"""The system watermark: where tables begin that have no position of their own.

One object of the store, `watermark/last_run_timestamp.txt`, that holds one timestamp. Only the user writes it;
one that can't be understood is said, never passed over.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from floodmark import moments
from floodmark.config import Config
from floodmark.errors import ConfigError, DataError
from floodmark.store import Store

PATH = "watermark/last_run_timestamp.txt"


@dataclass(frozen=True)
class Start:
    """Where a table without a position of its own begins, and who says so."""

    timestamp: str | None  # None: at the first row
    by: str


def read(store: Store) -> str | None:
    """The system watermark, or None when there is none."""
    data = store.get(PATH)
    if data is None:
        return None
    text = data.decode("utf-8-sig", "replace").strip()
    try:
        # The older tool wrote a zone behind some of them; the digits are what it compared.
        return moments.timestamp(text.removesuffix("Z").removesuffix("+00:00"))
    except ValueError:
        raise DataError(
            f"the system watermark {store.uri(PATH)} holds no timestamp: {text[:40]!r}",
            hint="floodmark watermark set --timestamp TS --force writes a new one",
        ) from None


def start(system: str | None, config: Config, name: str) -> Start:
    """Where a table begins: at the system watermark if there is one, else at `start`."""
    if system is not None:
        return Start(system, "the system watermark")
    return Start(config.options(name).start, "`start` in the configuration")


def system_get(config: Config) -> dict[str, Any]:
    """The system watermark as the contract's document."""
    return {"timestamp": read(Store(config.store))}


def moment(preset: str | None, timestamp: str | None) -> str:
    """The one moment that a preset or a timestamp gives."""
    if (preset is None) == (timestamp is None):
        raise ConfigError(
            "the system watermark takes a preset or --timestamp",
            hint=f"presets: {moments.PRESETS}",
        )
    now = datetime.now(UTC)
    try:
        return moments.preset(preset, now) if preset is not None else moments.timestamp(timestamp or "", now)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def system_set(config: Config, preset: str | None = None, timestamp: str | None = None) -> dict[str, Any]:
    """Sets the system watermark by a preset or a timestamp; returns its document and how to undo it."""
    chosen = moment(preset, timestamp)
    store = Store(config.store)
    try:
        before = read(store)
    except DataError:
        before = None  # nothing worth going back to
    store.put(PATH, f"{chosen}\n".encode())
    undo = f"delete {store.uri(PATH)}"
    if before is not None:
        undo = f'floodmark watermark set --timestamp "{before}" --force'
    return {"timestamp": chosen, "undo": undo}
