"""Group 1: SIGKILL before, during and after each durable step of a process, and answers lost at each step.

A first run without a fault counts a scenario's steps. Then every step has its turn, in random order. After each
crash the watermark must be readable, the same command must succeed, and a sync must leave everything correct.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from .lab import Lab, Outcome, in_turn, note, settle, timed, watermark_known
from .prepared import Prepared
from .truth import tamper

# Faults at one step; the last two apply only where there is an answer to lose.
FAULTS = ("before", "after", "during", "lost", "refused")
SAID = {
    "before": "SIGKILL before",
    "after": "SIGKILL after",
    "during": "SIGKILL during",
    "lost": "done, but its answer lost",
    "refused": "not done, and no answer",
}
# How many of the following runs are struck, too, before one may finish.
CHAIN = (0, 1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Scenario:
    """A command, and the state that it starts from."""

    name: str
    family: str
    kept: str
    command: tuple[str, ...]  # {t} is the table
    stacks: tuple[str, ...] = ("folder", "s3", "redshift")
    own_jvm: bool = False  # with its own Spark: the whole process group, as in production


SYNC = ("sync", "-t", "{t}")
LOCAL = ("folder",)
SCENARIOS = (
    Scenario("first sync", "orders", "empty", SYNC),
    Scenario("first sync, own JVM", "orders", "empty", SYNC, LOCAL, own_jvm=True),
    Scenario("incremental sync", "orders", "synced", SYNC),
    Scenario("sync --limit", "orders", "synced", (*SYNC, "--limit", "70"), LOCAL),
    Scenario("resume", "orders", "interrupted", SYNC),
    Scenario("load", "orders", "pending", (*SYNC, "--redshift-only")),
    Scenario("load without a key", "events", "pending", (*SYNC, "--redshift-only")),
    Scenario("sync without a key", "events", "synced", SYNC, LOCAL),
    Scenario("snapshot", "codes", "synced", SYNC, ("folder", "redshift")),
    Scenario("column added", "altered", "synced", SYNC),
    Scenario("reset", "orders", "synced", ("watermark", "reset", "-t", "{t}")),
    Scenario(
        "reset --redshift-only",
        "orders",
        "pending",
        ("watermark", "reset", "-t", "{t}", "--redshift-only"),
    ),
    Scenario("reset --mysql-only", "orders", "synced", ("watermark", "reset", "-t", "{t}", "--mysql-only"), LOCAL),
    Scenario(
        "set",
        "orders",
        "pending",
        ("watermark", "set", "-t", "{t}", "--timestamp", "2025-03-01 00:00:02", "--id", "800"),
        ("folder", "s3"),
    ),
    Scenario("restore", "orders", "pending", ("watermark", "restore", "-t", "{t}", "--commit", "3"), ("folder", "s3")),
    Scenario("validate --repair", "orders", "damaged", ("watermark", "validate", "-t", "{t}", "--repair"), LOCAL),
    Scenario("verify --repair", "orders", "tampered", ("verify", "-t", "{t}", "--repair"), LOCAL),
    Scenario("sync with deletes", "deleted", "synced", SYNC, ("folder", "redshift")),
    Scenario("s3clean clean", "orders", "synced", ("s3clean", "clean", "-t", "{t}", "--force"), ("folder", "s3")),
    Scenario("s3clean, pending too", "orders", "pending",
             ("s3clean", "clean", "-t", "{t}", "--include-pending", "--force"), LOCAL),
    Scenario("s3clean orphans", "orders", "interrupted", ("s3clean", "orphans", "-t", "{t}", "--force"), LOCAL),
    Scenario("cleanup", "orders", "synced", ("watermark", "cleanup", "--days", "0", "--force"), LOCAL),
    Scenario("system watermark", "orders", "synced", ("watermark", "set", "1week", "--force"), LOCAL),
)  # fmt: skip


@dataclass
class Case:
    """A scenario on a stack, ready to be struck repeatedly."""

    lab: Lab
    scenario: Scenario
    stack: str
    prepared: Prepared

    @property
    def name(self) -> str:
        return f"{self.scenario.name} [{self.stack}]"

    def lay(self) -> tuple[str, ...]:
        """Set the bench up for the scenario; returns the command."""
        kept = "synced" if self.scenario.kept in ("damaged", "tampered") else self.scenario.kept
        self.source = self.prepared.lay(self.scenario.family, kept)
        bench = self.prepared.bench
        if self.scenario.kept == "tampered":
            tamper(bench)
        if self.scenario.kept == "damaged":
            bench.put(f"watermark/tables/{self.source.name}.json", b"{}")
            bench.delete(bench.objects(f"commits/{self.source.name}/")[-2])
        return tuple(part.format(t=self.source.name) for part in self.scenario.command)

    def count(self) -> list[str]:
        """The steps of the command when undisturbed."""
        command, bench = self.lay(), self.prepared.bench
        ended = bench.run(*command, plan={"broken": None}, own_jvm=self.scenario.own_jvm)
        assert ended.code in (0, 7), f"{command}: {ended.code} {ended.stderr}"
        return bench.steps()

    def strike(self, at: int, label: str, when: str, own: str) -> Outcome:
        """One experiment."""
        began, bench = time.monotonic(), self.prepared.bench
        dice = self.lab.dice(own)
        command = self.lay()
        outcome = Outcome("crash", self.name, SAID[when], label, own)
        plan = {"at": at, "when": when, "delay": dice.uniform(0.0, 0.004)}
        ended = bench.run(*command, plan=plan, own_jvm=self.scenario.own_jvm)
        outcome.code = ended.code
        steps = bench.steps()
        outcome.hit = len(steps) >= at
        if outcome.hit:
            outcome.step = steps[at - 1]
        if when in ("lost", "refused"):
            note(outcome, ended, (0, 4, 5, 7))  # 4: it checked, and the step had not happened
        elif outcome.hit and when != "during":
            note(outcome, ended, (-9,))
        watermark_known(bench, self.source, outcome)
        for _ in range(0 if self.lab.quick else dice.choice(CHAIN)):
            self._again(command, dice, len(steps), outcome)
        # 7: validate reports what it has repaired, or what an earlier run had repaired.
        if command != ("sync", "-t", self.source.name):
            note(outcome, bench.run(*command), (0, 7) if "--repair" in command else (0,))
        # If deletes are checked every second, or a table is read whole, a sync always has something to do.
        idle = dice.random() < 0.2 and self.scenario.family not in ("deleted", "codes")
        settle(bench, self.source, outcome, idle=idle)
        return timed(outcome, began)

    def _again(self, command: tuple[str, ...], dice: Random, steps: int, outcome: Outcome) -> None:
        """Strike the run that would recover from the crash, too."""
        bench, when = self.prepared.bench, dice.choice(FAULTS[:3])
        at = dice.randint(1, max(1, steps))
        plan = {"at": at, "when": when, "delay": dice.uniform(0.0, 0.004)}
        ended = note(outcome, bench.run(*command, plan=plan), (0, 7, -9))
        if ended.code == -9:
            outcome.then.append((f"{SAID[when]}, again", bench.steps()[at - 1]))
            watermark_known(bench, self.source, outcome)


def crash(lab: Lab) -> Iterator[Outcome]:
    """Every step of every scenario, the scenarios taking turns."""
    turns = [_turns(lab, scenario, stack) for scenario, stack in _cases(lab)]
    yield from in_turn(turns)


def _cases(lab: Lab) -> list[tuple[Scenario, str]]:
    stacks = ("folder",) if lab.quick else ("folder", "s3", "redshift")
    found = [(s, stack) for s in SCENARIOS for stack in s.stacks if stack in stacks]
    chosen = [(s, stack) for s, stack in found if lab.wanted_any(f"crash:{stack}/{s.name}/")]
    lab.dice("crash").shuffle(chosen)
    return chosen


def _turns(lab: Lab, scenario: Scenario, stack: str) -> Iterator[Outcome]:
    bench = lab.bench(stack)
    case = Case(lab, scenario, stack, lab.prepared(bench))
    steps = case.count()
    chosen = [
        (at, label, when)
        for at, label in enumerate(steps, 1)
        for when in FAULTS
        if when not in ("lost", "refused") or label.startswith("commit ") or label == "warehouse COMMIT"
    ]
    lab.dice("crash", scenario.name, stack).shuffle(chosen)
    for at, label, when in chosen:
        own = f"crash:{stack}/{scenario.name}/{when}/{at}"
        if lab.wanted(own):
            yield case.strike(at, label, when, own)
