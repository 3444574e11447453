"""All probes, one after the other, in a place that is removed afterwards, whatever happens.

They run in a thread of their own: a main thread that waits inside a driver would not hear Ctrl-C.
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
from floodmark.config import Config, WarehouseSpec
from floodmark.doctor.live import (
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
from floodmark.doctor.live.mask import Mask
from floodmark.doctor.live.place import SCHEMA, Live, Scale, Stopped, limits, own_store
from floodmark.doctor.live.probe import STATES, Probe, Result, Unknown
from floodmark.errors import ConfigError, FloodmarkError, Interrupted, VerificationError
from floodmark.warehouse.redshift_data_api import DataApiTransport
from floodmark.warehouse.redshift_socket import SocketTransport
from floodmark.warehouse.redshift_steps import Failed, Transport

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
# How long a stop waits for schema and files to be removed.
CLEANING = 60.0


@dataclass
class Report:
    """What came of the probes."""

    schema: str
    prefix: str
    rows: int
    ways: dict[str, str]  # by name: "used", or why not
    results: list[Result] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  # what could not be removed
    stopped: str | None = None  # why not every probe was tried
    files: int = 0
    bytes: int = 0
    seconds: float = 0.0
    at: str = ""

    @property
    def code(self) -> int:
        """7 when an answer differs, a probe has failed, or not all were tried."""
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
    """Ask everything; raises only when nothing could be asked. `ways` stands for the configured ways in."""
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
    say(f"schema {live.schema}, files below {report.prefix}: both are removed in the end")
    _ran(live, report, probes, mask, say)
    return report


def _ran(live: Live, report: Report, probes: Sequence[Probe], mask: Mask, say: Callable[[str], None]) -> None:
    """The probes in their thread; a stop ends them, waits for what they made to be removed, and goes on up."""
    failed: list[BaseException] = []
    over = threading.Event()  # not the thread's own end: a join that a signal interrupts takes it for ended

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
        left = f"still there: {' '.join(report.left)}" if report.left else "schema and files are removed"
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
    """A probe's result, whatever it raises."""
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
    except Exception as error:  # a bug of the probe's own must not hide the other answers
        return result("failed", f"a bug in the probe: {type(error).__name__}: {error}")


def _ways(spec: WarehouseSpec, scale: Scale) -> tuple[dict[str, Transport], dict[str, str]]:
    """The ways in that the configuration allows and that answer; of the others, why not."""
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
