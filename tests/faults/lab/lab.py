"""What a group of experiments works with, and what it returns.

A group is a function that takes a `Lab`, runs one experiment after the other and yields an `Outcome` for each;
`groups.GROUPS` lists them all. The laboratory takes the groups in turn until its time is up.
"""

from __future__ import annotations

import os
import random
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from .bench import Bench
from .checker import Problem, check, check_document, check_said
from .prepared import Prepared
from .services import Services
from .spawn import Ended
from .truth import Place, Source

# The watermark must be readable again within this many seconds after a crash.
RECOVERY = 10.0


@dataclass
class Outcome:
    """One experiment and its result."""

    group: str
    scenario: str  # what ran, on which store and warehouse
    fault: str  # what was done to it
    step: str  # at which of its durable steps
    replay: str  # the value for `make faults ONLY=…` to run it again
    hit: bool = True  # whether the fault struck; only those count
    problems: list[Problem] = field(default_factory=list)
    hung: bool = False
    code: int | None = None  # exit code of the struck command
    said: list[tuple[int, str]] = field(default_factory=list)  # exit code and line of failed commands
    strikes: int = 1  # how many faults struck in this experiment
    then: list[tuple[str, str]] = field(default_factory=list)  # fault and step of each strike after the first
    recovery: float = 0.0  # seconds until the watermark was readable again
    cpu: float = 0.0  # CPU seconds that this took
    load: float = 0.0  # load average per processor at that time
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """`survived`, or the worst that happened."""
        kinds = {p.kind for p in self.problems}
        if self.hung:
            return "hung"
        if kinds & {"lost", "different", "files", "log", "ledger"}:
            return "lost"
        if kinds & {"doubled", "extra"}:
            return "doubled"
        return "failed" if kinds else "survived"


@dataclass
class Lab:
    """One run of the laboratory."""

    services: Services
    seed: int
    broken: str | None = None
    only: str | None = None  # a replay's name, or a prefix of several
    quick: bool = False  # the part that runs in `make test`: one stack, few kinds

    def bench(self, stack: str = "folder") -> Bench:
        """The bench of a stack; laboratories on the same services use it one after the other."""
        found: Bench = self.services.kept.setdefault(("bench", stack), Bench(self.services, stack))
        found.broken = self.broken
        return found

    def dice(self, *names: object) -> random.Random:
        """A random generator that depends on the seed and the names alone."""
        return random.Random(f"{self.seed}/{'/'.join(map(str, names))}")

    def prepared(self, bench: Bench) -> Prepared:
        """The tables of a bench that are created once."""
        found: Prepared = self.services.kept.setdefault(("prepared", bench.stack), Prepared(bench))
        return found

    def wanted(self, replay: str) -> bool:
        return self.only is None or replay.startswith(self.only)

    def wanted_any(self, beginning: str) -> bool:
        """Whether any replay with this prefix may be wanted."""
        return self.only is None or self.only.startswith(beginning) or beginning.startswith(self.only)


def watermark_known(bench: Bench, source: Source, outcome: Outcome) -> None:
    """Check that the watermark can be read right after a crash, and quickly."""
    seen = bench.run("watermark", "get", "-t", source.name, "--json", calm=True)
    load = os.getloadavg()[0] / (os.cpu_count() or 1)
    if seen.seconds >= outcome.recovery:
        outcome.recovery, outcome.load = seen.seconds, load
    outcome.cpu = max(outcome.cpu, seen.cpu)
    note(outcome, seen, (0,))
    if seen.seconds > RECOVERY or seen.cpu > RECOVERY / 4:
        outcome.problems.append(
            Problem("slow", f"the watermark took {seen.seconds:.1f} s, {seen.cpu:.1f} s of a processor")
        )


def note(outcome: Outcome, ended: Ended, allowed: Iterable[int]) -> Ended:
    """Record a problem if a command hung or ended with a code that isn't allowed; returns `ended`."""
    if ended.code is None:
        outcome.hung = True
        outcome.problems.append(
            Problem("hung", f"{' '.join(ended.args)}: no end within {ended.seconds:.0f} s")
        )
    elif ended.code not in tuple(allowed):
        lines = [line for line in ended.stderr.splitlines() if line.startswith(("floodmark:", "  "))]
        said = " ".join(" ".join(lines or ended.stderr.splitlines()[-3:]).split())[:600]
        kind = "lost" if ended.code in (6, 7) else "code"
        outcome.problems.append(Problem(kind, f"{' '.join(ended.args)}: exit code {ended.code}: {said}"))
    return ended


def settle(
    bench: Bench,
    source: Source,
    outcome: Outcome,
    idle: bool = False,
    excused: Sequence[tuple[Place | None, Place]] = (),
    by_files: bool = True,
) -> None:
    """Run the last sync, then check everything."""
    outcome.said += failures(bench.printed)
    last = note(outcome, bench.run("sync", "-t", source.name, "--json"), (0,))
    if idle:
        last = note(outcome, bench.run("sync", "-t", source.name, "--json"), (0,))
        if last.code == 0 and last.json["tables"][0]["commits"]:
            outcome.problems.append(Problem("log", "a sync with nothing to do has committed"))
    try:
        outcome.problems += check(bench, source, excused=excused, by_files=by_files)
        if last.code == 0:
            outcome.problems += check_document(bench, source, last.json["tables"][0]["watermark"])
        outcome.problems += check_said(bench, bench.printed)
    except (ValueError, KeyError) as error:  # the state can't even be read
        outcome.problems.append(Problem("log", f"{type(error).__name__}: {error}"))


def failures(ended: Iterable[Ended]) -> list[tuple[int, str]]:
    """Exit code and line of every command that failed, without names and numbers specific to the experiment."""
    found = []
    for one in ended:
        if one.code is not None and one.code > 0:
            lines = [line for line in one.stderr.splitlines() if line.startswith("floodmark:")]
            found.append((one.code, _OWN.sub("…", lines[-1] if lines else "(no line)")[:220]))
    return found


# Databases, addresses, folders, runs and digests are specific to one experiment.
_OWN = re.compile(
    r"lab_[0-9a-f]{8}|127\.0\.0\.1:\d+|/\S*floodmark-\S*|\d{8}_\d{6}_\w{4}|bench-\w+|"
    r"\b[0-9a-f]{12,}\b|\b\d{4}-\d\d-\d\d[ T][\d:.]+Z?"
)


def in_turn(turns: list[Iterator[Outcome]]) -> Iterator[Outcome]:
    """One experiment of each, round after round; one whose setup fails is reported once and dropped."""
    while turns:
        for turn in list(turns):
            try:
                outcome = next(turn, None)
            except AssertionError as error:
                outcome = Outcome(
                    "setup", "setup", "none", "none", "setup", problems=[Problem("setup", str(error))]
                )
                turns.remove(turn)
                yield outcome
                continue
            if outcome is None:
                turns.remove(turn)
            else:
                yield outcome


def timed(outcome: Outcome, began: float) -> Outcome:
    outcome.seconds = time.monotonic() - began
    return outcome
