"""Finds what would make a sync fail: configuration, services, rights, tables, Spark.

Services are checked in parallel, each within a short time. Nothing is changed, except for one probe object in the store
that is removed again. A check that depends on a failed one is skipped and says so.
"""

from __future__ import annotations

import re
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from floodmark.config.file import Tree, parse
from floodmark.config.load import Config, load
from floodmark.model.errors import ConfigError, FloodmarkError, Mistake, Mistakes
from floodmark.model.secrets import in_setting, of_url
from floodmark.model.times import stamp
from floodmark.model.typed import Result
from floodmark.setup.doctor.check import STATUSES, Check, Section, at_once

SECONDS = 13.0
SECTION = Section("configuration")


def examine(
    path: Path | None, tables: tuple[str, ...], start_spark: bool, learn: Callable[[Config], None]
) -> Iterator[list[Check]]:
    """The checks, section by section in order; `learn` gets the configuration first."""
    config, found = _load(path)
    if config is not None:
        learn(config)
    yield found
    if config is None:
        names = ("source", "tables", "store", "warehouse", "spark")
        yield [Check(name, name, "skipped", "the configuration can't be used") for name in names]
        return
    # The drivers are imported only now, so that a mistake in the file is reported at once.
    from floodmark.setup.doctor.source import examine_source
    from floodmark.setup.doctor.spark import SPARK_SECONDS, examine_engine
    from floodmark.setup.doctor.store import examine_store
    from floodmark.setup.doctor.warehouse import examine_warehouse

    # A process can open a DuckDB file either to read or to write, not both at once.
    file_lock = threading.Lock()
    spark_seconds = SPARK_SECONDS if start_spark else SECONDS
    yield from at_once(
        (
            ("source", examine_source(config, tables, file_lock), SECONDS),
            ("store", examine_store(config), SECONDS),
            ("warehouse", examine_warehouse(config, file_lock), SECONDS),
            ("spark", examine_engine(config, start_spark), spark_seconds),
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


# ---------------------------------------------------------------- the configuration


def _load(path: Path | None) -> tuple[Config | None, list[Check]]:
    """The configuration, if it has no mistakes, and its checks."""
    try:
        found = load(path)
    except ConfigError as error:
        return None, list(mistakes(error))
    tables = f"{len(found.tables)} in tables" if found.tables else "every table of the source"
    return found, [SECTION.ok("file", f"{found.path}, {tables}"), *secrets(found.path), *exposed(found)]


def mistakes(error: ConfigError) -> Iterator[Check]:
    """One failure for each mistake in the file."""
    found = error.mistakes if isinstance(error, Mistakes) else ()
    if not isinstance(error, Mistakes) or not error.listed:
        yield SECTION.failure("file", error.message, error.hint or next(map(_remedy, found), None))
        return
    yield SECTION.failure("file", error.summary, error.hint)
    for mistake in found:
        yield SECTION.failure(mistake.place, mistake.said, _remedy(mistake))


def _remedy(mistake: Mistake) -> str | None:
    if mistake.variable is None:
        return None
    return f"export {mistake.variable} in the shell, or the job, that runs floodmark"


def secrets(path: Path) -> Iterator[Check]:
    """Whether others can read a secret that is written in the file; one that came from a pipe is gone."""
    tree: Tree = None
    with suppress(OSError, ValueError, UnicodeDecodeError):
        if path.is_file():
            tree = parse(path.read_bytes().decode("utf-8-sig"))[0]
    written = in_clear(tree)
    if not written:
        return
    if _mode(path) & (stat.S_IRGRP | stat.S_IROTH):
        wrong = f"{', '.join(written)}: in plain text, in a file that other users can read"
        hint = f"chmod 600 {path}; or write ${{NAME}} instead and export NAME"
        yield SECTION.warning("secrets", wrong, hint)
    else:
        yield SECTION.ok("secrets", f"{', '.join(written)}: in plain text, readable only by you")


def exposed(config: Config) -> Iterator[Check]:
    """Whether others can change the file, and so send its passwords elsewhere, or read a private key that it names."""
    if _mode(config.path) & (stat.S_IWGRP | stat.S_IWOTH):
        wrong = f"{config.path}: other users can change it, and so where passwords are sent"
        yield SECTION.warning("rights", wrong, f"chmod go-w {config.path}")
    for name, service in (("source", config.source), ("warehouse", config.warehouse)):
        for kind, block in (("tls", service.tls), ("ssh", service.ssh)):
            key = block.key if block is not None else None
            if key is not None and _mode(key) & (stat.S_IRWXG | stat.S_IRWXO):
                wrong = f"{name}.{kind}.key: a private key that other users can read"
                yield SECTION.warning("rights", wrong, f"chmod 600 {key}")


def _mode(path: Path) -> int:
    try:
        return stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return 0


def in_clear(tree: Tree) -> list[str]:
    """The keys whose value holds a secret that is not a `${NAME}`."""
    return [
        place
        for place, text in _texts(tree)
        if any(secret and "${" not in secret.replace("$${", "") for secret in _secrets(place, text))
    ]


def _texts(tree: Tree, place: str = "") -> Iterator[tuple[str, str]]:
    """Every text of the file, and the keys that lead to it: `store.copies_to.0.url`."""
    if isinstance(tree, str):
        yield place.removeprefix("."), tree
    elif tree is not None:
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from _texts(value, f"{place}.{key}")


def _secrets(place: str, text: str) -> Iterable[str]:
    if place in ("source.url", "warehouse.url"):
        return [of_url(text)]
    if re.fullmatch(r"store\.(copies_to\.\d+\.)?secret_access_key", place):
        return [text]
    section, _, setting = place.partition(".conf.")
    return in_setting(setting, text) if section == "spark" else []


__all__ = ["Check", "Examination", "examination", "examine", "keep"]
