"""A pytest plugin: which tests run on a real cluster, in which order, and the report of what each one saw."""

from __future__ import annotations

import textwrap
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from pathlib import PurePath
from typing import Any, Literal

import pytest
from redshift_connector.error import Error as DriverError

from floodmark import __version__
from floodmark.load.redshift.steps import StatementFailed
from floodmark.model.errors import FloodmarkError, TransientError, VerificationError
from floodmark.model.text import clock, duration
from tests.live.cluster import CLUSTER, Cluster
from tests.live.mask import Mask

State = Literal["as assumed", "differs", "unknown", "failed"]
STATES: tuple[State, ...] = ("as assumed", "differs", "unknown", "failed")
# Facts before loads: if the time is short, the first ones say the most.
FOLDERS = ("tests/contract/standin", "tests/contract/warehouse")
OF_THE_STAND_IN = "tests/contract/standin/test_faults.py"  # says nothing about Redshift
_LONGEST = 600


@dataclass
class LiveReport:
    """What every test of the run saw."""

    cluster: Cluster
    mask: Mask
    minutes: float
    say: Callable[[str], None]
    checks: list[dict[str, Any]] = field(default_factory=list)
    left: list[str] = field(default_factory=list)  # what could not be removed
    stopped: str | None = None  # why some tests did not run
    at: str = field(default_factory=lambda: datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"))
    began: float = field(default_factory=time.monotonic)
    seconds: float = 0.0
    total: int = 0

    def pytest_configure(self, config: pytest.Config) -> None:
        config.stash[CLUSTER] = self.cluster

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Keep what runs on a Redshift."""
        chosen = [item for item in items if _on_redshift(item)]
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = sorted(chosen, key=lambda item: "standin" not in item.path.parts)
        self.total = len(items)

    def pytest_runtest_setup(self) -> None:
        if time.monotonic() - self.began > self.minutes * 60:
            self.stopped = f"the time limit of {self.minutes:g} minutes is up"
            pytest.exit(self.stopped)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.when == "call" or (call.when == "setup" and call.excinfo) or report.failed:
            self._note(item, call)
        return report

    def _note(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        state, seen = _outcome(call.excinfo)
        details: dict[str, Any] = {}
        for name, value in item.user_properties:
            details.setdefault(name, []).append(value)
        if state in ("differs", "failed"):
            details["at"] = _line(call.excinfo)
        path = PurePath(item.location[0])
        check = {
            "group": f"{path.parent.name}/{path.stem.removeprefix('test_')}",
            "assumed": item.name.removeprefix("test_").replace("_", " "),
            "state": state,
            "found": self.mask(seen),
            "seconds": round(call.duration, 3),
            "details": self.mask.all(details),
        }
        self.checks.append(check)
        self.say(
            f"{len(self.checks)}/{self.total} {check['group']}: {check['assumed']}: {state}, {call.duration:.1f} s"
        )

    @property
    def code(self) -> int:
        """7 if an answer differs, a test failed, or some did not run."""
        fine = all(check["state"] in ("as assumed", "unknown") for check in self.checks)
        return 0 if fine and self.checks and self.stopped is None else VerificationError.code

    def as_json(self) -> dict[str, Any]:
        return {
            "report": "redshift-live",
            "floodmark": __version__,
            "at": self.at,
            "ok": self.code == 0,
            "seconds": round(self.seconds, 1),
            "schema": self.cluster.name,
            "rows": self.cluster.rows,
            "counts": {state: sum(check["state"] == state for check in self.checks) for state in STATES},
            "stopped": self.stopped,
            "left": [self.mask(one) for one in self.left],
            "checks": self.checks,
        }


def _on_redshift(item: pytest.Item) -> bool:
    names = getattr(item, "fixturenames", ())
    params = getattr(getattr(item, "callspec", None), "params", {})
    return "redshift" in (*names, params.get("place")) or "redshift_place" in names


def _outcome(caught: pytest.ExceptionInfo[BaseException] | None) -> tuple[State, str]:
    """How a test ended. What Redshift refuses, and what it answers otherwise, differs; the rest is a failure of the test."""
    if caught is None:
        return "as assumed", ""
    seen = " ".join(str(caught.value).split())
    if caught.errisinstance(pytest.skip.Exception):
        return "unknown", seen
    error = caught.value.error if isinstance(caught.value, StatementFailed) else caught.value
    differs = isinstance(error, AssertionError | DriverError | FloodmarkError | pytest.fail.Exception)
    seen = seen if isinstance(error, AssertionError) else f"{type(error).__name__}: {seen}"
    return "failed" if isinstance(error, TransientError) or not differs else "differs", seen[:_LONGEST]


def _line(caught: pytest.ExceptionInfo[BaseException] | None) -> str:
    """The test's own line that failed."""
    assert caught is not None
    frames = [(PurePath(entry.path).name, entry.lineno + 1) for entry in caught.traceback]
    name, line = next((at for at in reversed(frames) if at[0].startswith("test_")), frames[-1])
    return f"{name}:{line}"


# ---------------------------------------------------------------- for people


def lines(document: Mapping[str, Any], width: int | None = None) -> list[str]:
    """The report as text: a line for each test, and more where the cluster differs."""
    said = [f"Floodmark {document['floodmark']} on a real Redshift, {clock(document['at'])}"]
    for group, listed in groupby(document["checks"], lambda check: str(check["group"])):
        said += ["", group]
        for check in listed:
            said += _wrapped(f"  {check['state']:<10} ", check["assumed"], width)
            if check["state"] != "as assumed":
                said += _wrapped(" " * 13, f"found: {check['found']}", width)
    counts = ", ".join(f"{number} {state}" for state, number in document["counts"].items())
    said += ["", f"{counts}; {duration(document['seconds'])}"]
    if document["stopped"]:
        said.append(f"stopped early: {document['stopped']}")
    if document["left"]:
        return [*said, "could not be removed:", *(f"  {one}" for one in document["left"])]
    return [*said, "the schemas and the files were removed"]


def _wrapped(head: str, text: str, width: int | None) -> list[str]:
    if width is None:
        return [head + text]
    broken = textwrap.wrap(text, max(30, width - len(head)), break_on_hyphens=False) or [""]
    return [head + broken[0], *(" " * len(head) + line for line in broken[1:])]
