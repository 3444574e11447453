"""Runs all probes, one after the other, in a schema and prefix that are removed afterwards, whatever happens.

They run in their own thread: a main thread blocked inside a driver would not notice Ctrl-C.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from floodmark import __version__
from floodmark.config.load import Config, WarehouseSpec
from floodmark.model.errors import ConfigError, FloodmarkError, Interrupted, VerificationError
from floodmark.services.warehouse.redshift.data_api import DataApiTransport
from floodmark.services.warehouse.redshift.socket import SocketTransport
from floodmark.services.warehouse.redshift.steps import Failed, Transport
from floodmark.setup.doctor.live import (
    alters,
    copies,
    data_api,
    deaths,
    files,
    identity,
    sessions,
    sql,
    statements,
    values,
    volume,
)
from floodmark.setup.doctor.live.mask import Mask
from floodmark.setup.doctor.live.place import SCHEMA, Live, Scale, Stopped, limits, own_store
from floodmark.setup.doctor.live.probe import STATES, Probe, Result, Unknown

PROBES: tuple[Probe, ...] = (
    *identity.PROBES,
    *copies.PROBES,
    *values.PROBES,
    *files.PROBES,
    *sql.PROBES,
    *alters.PROBES,
    *sessions.PROBES,
    *statements.PROBES,
    *data_api.PROBES,
    *deaths.PROBES,
    *volume.PROBES,
)
GROUPS = tuple(dict.fromkeys(probe.group for probe in PROBES))
# Seconds that a stop waits for schema and files to be removed.
CLEANING = 60.0


@dataclass
class Report:
    """The outcome of all probes."""

    schema: str
    prefix: str
    rows: int
    ways: dict[str, str]  # by name: "used", or why not
    results: list[Result] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  # what could not be removed
    stopped: str | None = None  # why some probes did not run
    files: int = 0
    bytes: int = 0
    seconds: float = 0.0
    at: str = ""

    @property
    def code(self) -> int:
        """7 if an answer differs, a probe failed, or some did not run."""
        fine = all(result.state in ("as assumed", "unknown") for result in self.results)
        return 0 if fine and self.stopped is None else VerificationError.code

    def as_json(self) -> dict[str, Any]:
        """What `doctor --redshift-live --json` prints."""
        return {
            "report": "redshift-live",
            "floodmark": __version__,
            "at": self.at,
            "ok": self.code == 0,
            "seconds": round(self.seconds, 1),
            "schema": self.schema,
            "rows": self.rows,
            "ways": self.ways,
            "files": self.files,
            "bytes": self.bytes,
            "counts": {state: sum(r.state == state for r in self.results) for state in STATES},
            "stopped": self.stopped,
            "left": self.left,
            "probes": [result.as_json() for result in self.results],
        }


def examine_live(
    config: Config,
    scale: Scale,
    say: Callable[[str], None],
    *,
    second: WarehouseSpec | None = None,
    ways: dict[str, Transport] | None = None,
    probes: Sequence[Probe] = PROBES,
) -> Report:
    """Run the probes; raises only if none could run. `ways` replaces the configured ways in."""
    spec = config.warehouse
    if spec.kind != "redshift":
        raise ConfigError(
            "the warehouse is DuckDB", hint="set warehouse.url to redshift://user@host:5439/database"
        )
    found, missing = _ways(spec, scale) if ways is None else (ways, {})
    name = secrets.token_hex(6)
    live = Live(
        spec,
        own_store(config.store, name),
        SCHEMA + name,
        found,
        missing,
        None if second is None else SocketTransport(second, limits(scale)),
        scale,
    )
    mask = Mask.of(config, second)
    report = Report(
        live.schema,
        live.store.uri(""),
        scale.rows,
        {
            way: "used" if way in found else mask(missing.get(way, "not configured"))
            for way in ("socket", "data_api")
        },
        at=datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    )
    say(f"schema {live.schema}, files below {report.prefix}; both are removed at the end")
    _ran(live, report, probes, mask, say)
    return report


def _ran(live: Live, report: Report, probes: Sequence[Probe], mask: Mask, say: Callable[[str], None]) -> None:
    """Run the probes in their thread. An interrupt stops them, waits for the cleanup, and is then re-raised."""
    failed: list[BaseException] = []
    over = threading.Event()  # not `join`: interrupted by a signal, it takes the thread for ended

    def work() -> None:
        try:
            _worked(live, report, probes, mask, say)
        except BaseException as error:
            failed.append(error)
        finally:
            over.set()

    threading.Thread(target=work, name="live probes", daemon=True).start()
    try:
        while not over.wait(0.2):
            pass
    except BaseException as error:
        say("stopping; removing the schema and the files")
        live.stop()
        if not over.wait(CLEANING):
            report.left = [f'DROP SCHEMA "{live.schema}" CASCADE;', report.prefix]
        if not isinstance(error, Interrupted):
            raise
        left = (
            f"not removed: {' '.join(report.left)}" if report.left else "schema and files have been removed"
        )
        tried = f"{len(report.results)} of {len(probes)} probes"
        raise Interrupted(f"interrupted after {tried}; {left}", code=error.code) from error
    if failed:
        raise failed[0]


def _worked(
    live: Live, report: Report, probes: Sequence[Probe], mask: Mask, say: Callable[[str], None]
) -> None:
    began = time.monotonic()
    try:
        live.create()
        for name in live.users():
            mask.user(name)
        for number, probe in enumerate(probes, 1):
            result = mask.result(_asked(live, probe))
            report.results.append(result)
            say(f"{number}/{len(probes)} {probe.group}: {probe.name}: {result.state}, {result.seconds:.1f} s")
            live.check()
    except Stopped as stopped:
        report.stopped = str(stopped)
    finally:
        left = live.remove()
        for one in left:
            say(f"could not be removed: {one}")
        report.left = [mask(one) for one in left]
        report.files, report.bytes = live.files, live.sent
        report.seconds = time.monotonic() - began


def _asked(live: Live, probe: Probe) -> Result:
    """Run a probe; whatever it raises becomes its result."""
    began = time.monotonic()

    def result(state: Any, found: str, details: dict[str, Any] | None = None) -> Result:
        return Result(probe, state, found, time.monotonic() - began, details or {})

    try:
        answer = probe.ask(live)
        return result("as assumed" if answer.as_assumed else "differs", answer.found, answer.details)
    except Unknown as unknown:
        return result("unknown", str(unknown))
    except Stopped as stopped:
        return result("unknown", str(stopped))
    except Failed as failed:
        return result("failed", " ".join(failed.error.message.split()), {"sqlstate": failed.code or None})
    except FloodmarkError as error:
        return result("failed", " ".join(error.message.split()), {"kind": error.kind})
    except Exception as error:  # a bug in one probe must not hide the other answers
        return result("failed", f"a bug in the probe: {type(error).__name__}: {error}")


def _ways(spec: WarehouseSpec, scale: Scale) -> tuple[dict[str, Transport], dict[str, str]]:
    """The configured ways in that answer; for the others, why not."""
    tried: dict[str, Transport] = {"socket": SocketTransport(spec, limits(scale))}
    missing: dict[str, str] = {}
    if spec.iam is not None:
        tried["data_api"] = DataApiTransport(spec, limits(scale))
    else:
        missing["data_api"] = "warehouse.iam is not set"
    ways: dict[str, Transport] = {}
    errors: list[FloodmarkError] = []
    for name, transport in tried.items():
        try:
            session = transport.open("floodmark doctor --redshift-live")
            try:
                session.query("SELECT 1")
            finally:
                session.close()
            ways[name] = transport
        except Failed as failed:
            errors.append(failed.error)
            missing[name] = failed.error.message
    if not ways:
        raise errors[0 if spec.transport == "socket" else -1]
    return ways, missing
