"""Finds what would make a sync fail: configuration, services, rights, tables, Spark.

Services are checked in parallel, each within a short time. Nothing is changed, except for one probe object in the store
that is removed again. A check that depends on a failed one is skipped and says so.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from floodmark.config.load import Config
from floodmark.model.errors import FloodmarkError
from floodmark.model.times import stamp
from floodmark.model.typed import Result
from floodmark.setup.doctor import configuration
from floodmark.setup.doctor.check import STATUSES, Check, Section, at_once

SECONDS = 13.0


def examine(
    path: Path | None, tables: tuple[str, ...], start_spark: bool, learn: Callable[[Config], None]
) -> Iterator[list[Check]]:
    """The checks, section by section in order; `learn` gets the configuration first."""
    config, found = configuration.load(path)
    if config is not None:
        learn(config)
    yield found
    if config is None:
        yield [
            check
            for name in ("source", "tables", "store", "warehouse", "spark")
            for check in Section(name).skipped(name, "the configuration can't be used")
        ]
        return
    # The drivers are imported only now, so that a mistake in the file is reported at once.
    from floodmark.setup.doctor.source import examine_source
    from floodmark.setup.doctor.spark import SPARK_SECONDS, examine_engine
    from floodmark.setup.doctor.store import examine_store
    from floodmark.setup.doctor.warehouse import examine_warehouse

    # A process can open a DuckDB file either to read or to write, not both at once.
    file_lock = threading.Lock()
    yield from at_once(
        (
            ("source", examine_source(config, tables, file_lock), SECONDS),
            ("store", examine_store(config), SECONDS),
            ("warehouse", examine_warehouse(config, file_lock), SECONDS),
            ("spark", examine_engine(config, start_spark), SPARK_SECONDS if start_spark else SECONDS),
        )
    )


class Examination(Result):
    """What `doctor` found."""

    ok: bool
    seconds: float
    counts: dict[str, int]
    checks: tuple[Check, ...]


def examination(checks: list[Check], began: float) -> Examination:
    """The result of these checks."""
    return Examination(
        ok=all(check.status != "failure" for check in checks),
        seconds=round(time.monotonic() - began, 3),
        counts={status: sum(check.status == status for check in checks) for status in STATUSES},
        checks=tuple(checks),
    )


def keep(config: Config, said: Mapping[str, Any], tables: tuple[str, ...]) -> None:
    """Leaves the result, masked, in a store that is in use and was found sound; failing to do so stops nothing."""
    from floodmark.log import pipeline
    from floodmark.log.status import DoctorResult, write_doctor
    from floodmark.store.store import Store

    if any(one["section"] == "store" and one["status"] == "failure" for one in said["checks"]):
        return
    result = DoctorResult(at=stamp(), host=socket.gethostname(), tables=tables, **said)
    with suppress(FloodmarkError):
        store = Store(config.store)
        if pipeline.check(store, config.warehouse.label) is not None:
            write_doctor(store, result)


__all__ = ["Check", "Examination", "examination", "examine", "keep"]
