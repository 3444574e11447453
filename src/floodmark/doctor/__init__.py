"""Looks for what would make a sync fail, before it does: configuration, services, rights, tables, Spark.

Services are looked at side by side, each within a short time; nothing is changed, but for one probe object in the
store that is removed again. A check that depends on a failed one is skipped and says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from floodmark.config import Config
from floodmark.doctor import configuration
from floodmark.doctor.check import STATUSES, Check, Section, at_once

SECONDS = 13.0
SECTIONS = ("configuration", "source", "tables", "store", "warehouse", "spark")


def examine(
    path: Path | None, tables: tuple[str, ...], start_spark: bool, learn: Callable[[Config], None]
) -> Iterator[list[Check]]:
    """The checks, some sections at a time and in their order; `learn` gets the configuration before all else."""
    config, found = configuration.load(path)
    if config is not None:
        learn(config)
    yield found
    if config is None:
        yield [
            check
            for name in SECTIONS[1:]
            for check in Section(name).skipped(name, "the configuration can't be used")
        ]
        return
    # The drivers are imported only now, so that a mistake in the file is told at once.
    from floodmark.doctor.engine import SPARK_SECONDS, examine_engine
    from floodmark.doctor.source import examine_source
    from floodmark.doctor.store import examine_store
    from floodmark.doctor.warehouse import examine_warehouse

    yield from at_once(
        (
            ("source", examine_source(config, tables), SECONDS),
            ("store", examine_store(config), SECONDS),
            ("warehouse", examine_warehouse(config), SECONDS),
            ("spark", examine_engine(config, start_spark), SPARK_SECONDS if start_spark else SECONDS),
        )
    )


def document(checks: list[Check], began: float) -> dict[str, Any]:
    """What `doctor --json` prints."""
    return {
        "ok": all(check.status != "failure" for check in checks),
        "seconds": round(time.monotonic() - began, 3),
        "counts": {status: sum(check.status == status for check in checks) for status in STATUSES},
        "checks": [check.as_json() for check in checks],
    }


__all__ = ["Check", "document", "examine"]
