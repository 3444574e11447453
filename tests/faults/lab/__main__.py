"""`make faults`: runs the laboratory with a time budget and a seed, and prints a table at the end."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from types import FrameType

from floodmark.setup.services.databases import SERVERS

from . import document, report
from .broken import BROKEN
from .groups import GROUPS
from .lab import Lab, Outcome
from .runner import caught, run
from .services import Services

# Distance between the seeds of parallel laboratories: histories are numbered upwards from the seed.
APART = 1000


def main() -> int:
    """0 if nothing was lost, duplicated, hung or misreported (with --broken: if it was caught), else 1."""
    parser = argparse.ArgumentParser(prog="make faults", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--group", action="append", default=[], choices=list(GROUPS))
    parser.add_argument(
        "--source", choices=list(SERVERS), help="MySQL where `make setup` could fetch it, else MariaDB"
    )
    parser.add_argument("--seed", type=int, default=int(time.time()) % 1_000_000)
    parser.add_argument("--only", help="one experiment again, or all whose name begins so")
    parser.add_argument(
        "--jobs", type=int, default=1, help="laboratories beside each other, each with its servers"
    )
    parser.add_argument("--broken", choices=[*BROKEN, "all"], help="with one protection out of the product")
    parser.add_argument("--forget", action="store_true", help="keep no results")
    parser.add_argument("--keep", action="store_true", help="keep results with --only too")
    parser.add_argument("--document", action="store_true", help="only write docs/faults.md from what is kept")
    parser.add_argument("--part", action="store_true", help=argparse.SUPPRESS)  # one of several jobs
    asked = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    if asked.only and not asked.group:
        asked.group = [asked.only.partition(":")[0]]
    try:
        if asked.document:
            document.write()
            return 0
        if asked.broken:
            return _broken(asked)
        return _jobs(asked) if asked.jobs > 1 else _whole(asked)
    except KeyboardInterrupt:
        print("\nstopped", flush=True)
        return 130


def _stop(number: int, frame: FrameType | None) -> None:
    """The first signal shuts everything down cleanly; later ones are ignored."""
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    raise KeyboardInterrupt


def _whole(asked: argparse.Namespace) -> int:
    began = time.monotonic()
    found: list[report.Kept | None] = []
    keep = not asked.forget and (asked.keep or not asked.only)
    print(f"seed {asked.seed}, {asked.minutes:g} minutes", flush=True)
    try:
        with Services(asked.source) as services:
            lab = Lab(services, asked.seed, only=asked.only)
            for outcome in run(lab, asked.group, asked.minutes * 60):
                found.append(report.line(outcome, asked.seed, services.source))
                _show(outcome, len(found), time.monotonic() - began)
                if keep:
                    report.add(found[-1])
    except KeyboardInterrupt:
        print("\nstopped; what was seen counts", flush=True)
    if asked.part:
        return 0
    return _told([line for line in found if line is not None], keep)


def _jobs(asked: argparse.Namespace) -> int:
    """Run several laboratories at once: they wait more than they work."""
    seeds = [asked.seed + APART * i for i in range(asked.jobs)]
    more = [*(f"--group={g}" for g in asked.group), *(["--forget"] if asked.forget else [])]
    more += [f"--source={asked.source}"] if asked.source else []
    parts = [
        subprocess.Popen([sys.executable, "-m", "tests.faults.lab", "--part", f"--minutes={asked.minutes}",
                          f"--seed={seed}", *more])
        for seed in seeds
    ]  # fmt: skip
    try:
        for part in parts:
            part.wait()
    except KeyboardInterrupt:
        for part in parts:
            part.terminate()
        for part in parts:
            part.wait()
    return _told([line for line in report.kept() if line["seed"] in seeds], not asked.forget)


def _told(found: list[report.Kept], keep: bool) -> int:
    """Print the table for this call, and rewrite the page from all results."""
    print("\n".join(["", *report.table(found, "group", "fault", "step")]))
    whole = report.total(found)
    print(f"\n{whole.runs} faulted runs: {whole.survived} survived, {whole.lost} lost, {whole.doubled} doubled, "
          f"{whole.hung} hung, {whole.failed} failed; longest recovery {whole.recovery:.1f} s")  # fmt: skip
    if keep and found:
        document.write()
    return 0 if whole.runs == whole.survived else 1


def _show(outcome: Outcome, number: int, seconds: float) -> None:
    struck = f", {len(outcome.then)} again" if outcome.then else ""
    if not (outcome.hit and outcome.strikes):
        struck = " (not struck)"
    print(
        f"{seconds:6.0f} s {number:5} {outcome.verdict:8} {outcome.replay}: {outcome.step}{struck} "
        f"({outcome.seconds:.1f} s, recovery {outcome.recovery:.1f} s)",
        flush=True,
    )
    for problem in outcome.problems if caught(outcome) else ():
        print(f"           {problem.kind}: {problem.text}", flush=True)


def _broken(asked: argparse.Namespace) -> int:
    """Run against each broken build until it is caught."""
    missed = 0
    names = list(BROKEN) if asked.broken == "all" else [asked.broken]
    with Services(asked.source) as services:
        for name in names:
            began = time.monotonic()
            seen, runs = catch(services, name, asked.seed, asked.minutes * 60 / len(names))
            seconds = time.monotonic() - began
            if not asked.forget:
                report.add_broken(name, asked.seed, seen, runs, seconds)
            if seen is None:
                missed += 1
                print(
                    f"{name}: NOT caught within {seconds:.0f} s, {runs} runs ({BROKEN[name][0]})", flush=True
                )
            else:
                said = f"{seen.problems[0].kind}: {seen.problems[0].text}"[:300]
                print(
                    f"{name}: caught after {runs} runs, {seconds:.0f} s by {seen.replay}: {said}", flush=True
                )
    if not asked.forget:
        document.write()
    return 1 if missed else 0


def catch(services: Services, name: str, seed: int, seconds: float) -> tuple[Outcome | None, int]:
    """The first experiment that exposes the fault, and how many it took; those designed for it come first."""
    deadline, runs = time.monotonic() + seconds, 0
    for only in (*BROKEN[name][1], None):
        group = [only.partition(":")[0]] if only else []
        lab = Lab(services, seed, broken=name, only=only, quick=True)
        for outcome in run(lab, group, deadline - time.monotonic(), stop=caught):
            runs += 1
            if caught(outcome):
                return outcome, runs
    return None, runs


if __name__ == "__main__":
    sys.exit(main())
