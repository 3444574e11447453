"""Results: a line of JSON for every experiment, by seed, written as it ends; and tables of them.

`fixed.json` records, by seed and replay, how failures were resolved: the commit that fixed the cause, or `void: …`
if the laboratory itself was wrong and the run proves nothing. Void runs are not counted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from .broken import BROKEN
from .lab import RECOVERY, Outcome
from .services import ROOT

RESULTS = ROOT / "tests" / "faults" / "results"
VERDICTS = ("survived", "lost", "doubled", "hung", "failed")
BUILDS = "broken.jsonl"
# The source of results from before they recorded it.
FIRST_SOURCE = "MariaDB 10.11"

Kept = dict[str, Any]


@dataclass
class Sum:
    """The totals of one kind of experiment."""

    runs: int = 0
    survived: int = 0
    lost: int = 0
    doubled: int = 0
    hung: int = 0
    failed: int = 0
    fixed: int = 0
    recovery: float = 0.0

    def add(self, other: Kept) -> None:
        self.runs += other["runs"]
        bad = other["verdict"] != "survived"
        self.survived += other["runs"] - bad
        if bad:
            name = "fixed" if other.get("became") else other["verdict"]
            setattr(self, name, getattr(self, name) + 1)
        if not other.get("became"):
            self.recovery = max(self.recovery, other["recovery"])


def line(outcome: Outcome, seed: int, source: str) -> Kept | None:
    """An experiment as it is stored; None if its fault did not strike and nothing is wrong either."""
    bad = outcome.verdict != "survived"
    if outcome.group == "setup":
        return None
    if not bad and not (outcome.hit and outcome.strikes):
        return None
    found: Kept = {
        "seed": seed,
        "source": source,
        "at": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "group": outcome.group,
        "scenario": outcome.scenario,
        "fault": outcome.fault,
        "step": outcome.step,
        "replay": outcome.replay,
        "runs": max(1, outcome.strikes),
        "verdict": outcome.verdict,
        "code": outcome.code,
        "recovery": round(outcome.recovery, 2),
        "cpu": round(outcome.cpu, 2),
        "load": round(outcome.load, 1),
        "seconds": round(outcome.seconds, 1),
    }
    if outcome.then and not bad:
        found["then"] = outcome.then
    if outcome.said:
        found["said"] = outcome.said
    if bad:
        found["problems"] = [f"{p.kind}: {p.text}"[:1500] for p in outcome.problems[:5]]
    return found


def add(found: Kept | None) -> None:
    """Store an experiment; stored results survive, however the laboratory ends."""
    if found is not None:
        _append(f"{found['seed']}.jsonl", found)


def add_broken(name: str, seed: int, seen: Outcome | None, runs: int, seconds: float) -> None:
    """Store how a broken build was caught, or that it was not."""
    found = {"build": name, "seed": seed, "runs": runs, "seconds": round(seconds), "by": seen and seen.replay,
             "problem": seen and f"{seen.problems[0].kind}: {seen.problems[0].text}"[:300]}  # fmt: skip
    _append(BUILDS, found)


def _append(name: str, found: Kept) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    with (RESULTS / name).open("a") as file:
        file.write(json.dumps(found, ensure_ascii=False) + "\n")


def kept(void: bool = False) -> list[Kept]:
    """All results so far, each failure with its resolution; or the void ones."""
    became = _became()
    found = [one for path in sorted(RESULTS.glob("[0-9]*.jsonl")) for one in _read(path.name)]
    for one in found:
        one.setdefault("source", FIRST_SOURCE)
        if one["verdict"] == "survived" and one["recovery"] > RECOVERY:
            one["verdict"], one["problems"] = "failed", [f"slow: the watermark took {one['recovery']} s"]
        if one["verdict"] != "survived":
            one["became"] = became.get(f"{one['seed']} {one['replay']}")
    found = [one for one in found if str(one.get("became")).startswith("void:") is void]
    return [each for one in found for each in (one, *_after(one))]


def _after(one: Kept) -> list[Kept]:
    """The later runs of an experiment that were struck while recovering from the first strike."""
    quiet = {"recovery": 0.0, "cpu": 0.0, "said": []}
    return [{**one, **quiet, "fault": fault, "step": step} for fault, step in one.get("then", ())]


def builds() -> list[Kept]:
    """How each broken build was caught the last time it was tried."""
    last = {one["build"]: one for one in _read(BUILDS)}
    return [last[name] for name in BROKEN if name in last]


def _read(name: str) -> list[Kept]:
    path = RESULTS / name
    return [json.loads(text) for text in path.read_text().splitlines()] if path.exists() else []


def _became() -> dict[str, str]:
    path = RESULTS / "fixed.json"
    return json.loads(path.read_text()) if path.exists() else {}


def table(found: Iterable[Kept], *by: str) -> list[str]:
    """A Markdown table of runs and their results, by the given fields."""
    sums: dict[tuple[str, ...], Sum] = {}
    for one in found:
        sums.setdefault(tuple(one[name] for name in by), Sum()).add(one)
    head = [*by, "runs", *VERDICTS, "fixed since", "longest recovery"]
    rows = ["| " + " | ".join(head) + " |", "|" + "---|" * len(by) + "--:|" * (len(head) - len(by))]
    for at, s in sorted(sums.items()):
        cells = [s.runs, s.survived, s.lost, s.doubled, s.hung, s.failed, s.fixed, f"{s.recovery:.1f} s"]
        rows.append("| " + " | ".join(map(str, [*at, *cells])) + " |")
    return rows


def total(found: Iterable[Kept]) -> Sum:
    """The sum of all results."""
    whole = Sum()
    for one in found:
        whole.add(one)
    return whole
