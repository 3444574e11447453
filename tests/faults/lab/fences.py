"""Group 3a: runs that are paused and overtaken, and a store or warehouse that was set back unnoticed.

A command stops (SIGSTOP) at one of its durable steps; its lease expires; another command takes the table; then the
first one resumes. Or the warehouse is yesterday's file, the store starts from scratch, the newest commit is gone.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from .bench import Bench
from .checker import check_said, expired
from .lab import Lab, Outcome, in_turn, note, settle, timed, watermark_known
from .spawn import Running
from .truth import Source

# Exit codes of the other command while the first blocks it: table held (3), warehouse file locked (4).
HELD = (0, 3, 4)


@dataclass(frozen=True)
class Overtaking:
    """A command that is paused, and another that overtakes it."""

    name: str
    family: str
    kept: str
    paused: tuple[str, ...]
    other: tuple[str, ...]


SYNC = ("sync", "-t", "{t}")
LOAD = (*SYNC, "--redshift-only")
OVERTAKINGS = (
    Overtaking("first sync, by another sync", "orders", "empty", SYNC, SYNC),
    Overtaking("sync, by another sync", "orders", "synced", SYNC, SYNC),
    Overtaking("resume, by another sync", "orders", "interrupted", SYNC, SYNC),
    Overtaking("sync without a key, by another", "events", "synced", SYNC, SYNC),
    Overtaking("load without a key, by another", "events", "pending", LOAD, LOAD),
    Overtaking("load, by a reset of the load", "orders", "pending", LOAD,
               ("watermark", "reset", "-t", "{t}", "--redshift-only")),
    Overtaking("load, by a reset of both", "orders", "pending", LOAD, ("watermark", "reset", "-t", "{t}")),
    Overtaking("sync, by a set", "orders", "synced", SYNC,
               ("watermark", "set", "-t", "{t}", "--timestamp", "2025-03-01 00:00:02")),
    Overtaking("reset, by a sync", "orders", "pending", ("watermark", "reset", "-t", "{t}"), SYNC),
)  # fmt: skip


def fences(lab: Lab) -> Iterator[Outcome]:
    """Overtakings at every step, and stores and warehouses set back, in turn."""
    stacks = ("folder",) if lab.quick else ("folder", "s3", "redshift")
    turns = [_overtaken(lab, o, stack) for o in OVERTAKINGS for stack in stacks]
    turns.append(_set_back(lab))
    lab.dice("fences").shuffle(turns)
    yield from in_turn(turns)


# ---------------------------------------------------------------- paused and overtaken


def _overtaken(lab: Lab, one: Overtaking, stack: str) -> Iterator[Outcome]:
    beginning = f"fences:{stack}/{one.name}/"
    if not lab.wanted_any(beginning):
        return
    bench = lab.bench(stack)
    prepared = lab.prepared(bench)
    source = prepared.lay(one.family, one.kept)
    ended = bench.run(*_of(one.paused, source), plan={"broken": None})
    assert ended.code == 0, ended.stderr
    numbers = list(range(1, len(bench.steps()) + 1))
    lab.dice(beginning).shuffle(numbers)
    for at in numbers:
        if lab.wanted(f"{beginning}{at}"):
            prepared.lay(one.family, one.kept)
            yield _overtake(bench, source, one, at, f"{beginning}{at}")


def _of(command: tuple[str, ...], source: Source) -> tuple[str, ...]:
    return tuple(part.format(t=source.name) for part in command)


def _overtake(bench: Bench, source: Source, one: Overtaking, at: int, own: str) -> Outcome:
    began = time.monotonic()
    outcome = Outcome("fences", f"{one.name} [{bench.stack}]", "SIGSTOP, overtaken, SIGCONT", "", own)
    # Commands wait for Redshift's locks; a tenth of the time will do.
    hurry = {"hurry": bench.stack == "redshift"}
    first = bench.start(*_of(one.paused, source), plan={"at": at, "when": "pause", **hurry})
    steps_file = bench.steps_file
    outcome.hit = _stopped(bench, first)
    steps = [line.partition(" ")[2] for line in steps_file.read_text().splitlines()]
    outcome.step = steps[at - 1] if len(steps) >= at else "after its end"
    lease = f"leases/{source.name}.json"
    if (held := bench.get(lease)) is not None:
        bench.put(lease, expired(held))
    other = note(outcome, bench.run(*_of(one.other, source), plan=hurry), HELD)
    if outcome.hit:
        os.kill(first.pid, signal.SIGCONT)
    ended = note(outcome, bench.wait(first), (0, 3, 4))
    outcome.code = ended.code
    watermark_known(bench, source, outcome)
    if other.code != 0:  # the first command was in its way, and now is not
        note(outcome, bench.run(*_of(one.other, source)), (0,))
    settle(bench, source, outcome)
    return timed(outcome, began)


def _stopped(bench: Bench, running: Running) -> bool:
    """Waits until a command has stopped; False if it ended first."""
    deadline = time.monotonic() + 40
    while time.monotonic() < deadline and not bench.services.spawner.ended(running):
        try:
            if Path(f"/proc/{running.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
                return True
        except OSError:
            return False
        time.sleep(0.005)
    return False


# ---------------------------------------------------------------- a store or warehouse set back


def _set_back(lab: Lab) -> Iterator[Outcome]:
    """Every way to set one back, round after round with new random numbers."""
    ways: tuple[tuple[str, Callable[[Lab, Bench, Outcome, int], Source]], ...] = (
        ("the warehouse is yesterday's file", _yesterday),
        ("the warehouse is gone", _no_warehouse),
        ("the store begins anew", _new_store),
        ("the log begins anew", _new_log),
        ("the newest commit is gone", _no_commit),
        ("the newest commit and all copies are gone", _no_copies),
        ("every copy is gone", _only_log),
    )
    for turn in range(1 if lab.quick else 12):
        for name, way in ways:
            own = f"fences:folder/{name}/{turn}"
            if not lab.wanted(own):
                continue
            began, bench = time.monotonic(), lab.bench("folder")
            outcome = Outcome("fences", "sync [folder]", name, "between two syncs", own)
            source = way(lab, bench, outcome, turn)
            watermark_known(bench, source, outcome)
            if outcome.code == 6:  # refused, with a way out
                outcome.problems = [p for p in outcome.problems if p.kind in ("said", "hung")]
                note(outcome, bench.run("watermark", "reset", "-t", source.name, "--force"), (0,))
            settle(bench, source, outcome)
            outcome.problems += check_said(bench, bench.printed)
            yield timed(outcome, began)


def _changed(lab: Lab, bench: Bench) -> Source:
    """A table that has been synced, with changes after it."""
    return lab.prepared(bench).lay("orders", "synced")


def _sync(
    bench: Bench, outcome: Outcome, source: Source, *more: str, allowed: tuple[int, ...] = (0,)
) -> None:
    outcome.code = note(outcome, bench.run("sync", "-t", source.name, *more), allowed).code


def _yesterday(lab: Lab, bench: Bench, outcome: Outcome, turn: int) -> Source:
    source = _changed(lab, bench)
    shutil.copy(bench.warehouse, bench.folder / "yesterday")
    for _ in range(1 + turn % 3):
        _sync(bench, outcome, source, "--limit", "60")
    shutil.copy(bench.folder / "yesterday", bench.warehouse)
    _sync(bench, outcome, source)
    return source


def _no_warehouse(lab: Lab, bench: Bench, outcome: Outcome, turn: int) -> Source:
    source = _changed(lab, bench)
    bench.warehouse.unlink()
    _sync(bench, outcome, source)
    return source


def _new_store(lab: Lab, bench: Bench, outcome: Outcome, turn: int) -> Source:
    source = _changed(lab, bench)
    shutil.rmtree(bench.folder / "lake")
    _sync(bench, outcome, source, allowed=(2,))
    _sync(bench, outcome, source, "--force")
    return source


def _new_log(lab: Lab, bench: Bench, outcome: Outcome, turn: int) -> Source:
    source = _changed(lab, bench)
    for name in ("commits", "watermark", "data", "leases"):
        shutil.rmtree(bench.folder / "lake" / name)
    shutil.rmtree(bench.folder / "lake" / "keys", ignore_errors=True)  # only where rows were deleted
    _sync(bench, outcome, source)
    return source


def _no_commit(lab: Lab, bench: Bench, outcome: Outcome, turn: int) -> Source:
    source = _changed(lab, bench)
    _sync(bench, outcome, source, "--limit", str(50 + turn))
    bench.delete(bench.objects(f"commits/{source.name}/")[-1])
    _sync(bench, outcome, source, allowed=(0, 6))
    return source


def _no_copies(lab: Lab, bench: Bench, outcome: Outcome, turn: int) -> Source:
    source = _changed(lab, bench)
    _sync(bench, outcome, source, "--limit", str(50 + turn))
    bench.delete(bench.objects(f"commits/{source.name}/")[-1])
    shutil.rmtree(bench.folder / "lake" / "watermark")
    _sync(bench, outcome, source, allowed=(0, 6))
    return source


def _only_log(lab: Lab, bench: Bench, outcome: Outcome, turn: int) -> Source:
    source = _changed(lab, bench)
    shutil.rmtree(bench.folder / "lake" / "watermark")
    _sync(bench, outcome, source)
    return source
