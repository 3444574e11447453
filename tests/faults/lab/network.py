"""Group 2: networks that break between the command and MySQL, the store or the warehouse.

Connections are reset, stalled, cut, delayed or slowed at a random byte, once or for good; the store returns errors,
loses answers, truncates them, or lists late. The command must end by itself with a proper error; then, with the
network healed, the same command must succeed, and a sync must leave everything correct.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from . import httpproxy, proxy
from .bench import Bench, bound
from .checker import Problem
from .httpproxy import HttpProxy
from .lab import Lab, Outcome, in_turn, note, settle, timed, watermark_known
from .prepared import Prepared
from .proxy import Proxy, Trouble
from .spawn import Ended

HURRY = {"hurry": True}
# Lines allowed besides the one or two of an error: the run's own progress notes.
MOST_LINES = 2


@dataclass(frozen=True)
class Errand:
    """A command, the state that it starts from, and the services that are struck while it runs."""

    name: str
    family: str
    kept: str
    command: tuple[str, ...]  # {t} is the table
    services: tuple[str, ...]


SYNC = ("sync", "-t", "{t}")
LOAD = (*SYNC, "--redshift-only")
ERRANDS = (
    Errand("first sync", "orders", "empty", SYNC, ("mysql", "s3")),
    Errand("incremental sync", "orders", "synced", SYNC, ("mysql", "s3", "redshift")),
    Errand("resume", "orders", "interrupted", SYNC, ("mysql", "s3")),
    Errand("load", "orders", "pending", LOAD, ("s3", "redshift")),
    Errand("load without a key", "events", "pending", LOAD, ("s3", "redshift")),
    Errand("snapshot", "codes", "synced", SYNC, ("mysql", "redshift")),
    Errand("reset", "orders", "synced", ("watermark", "reset", "-t", "{t}"), ("s3", "redshift")),
    Errand("reset --redshift-only", "orders", "pending", ("watermark", "reset", "-t", "{t}", "--redshift-only"),
           ("s3", "redshift")),
    Errand("set", "orders", "synced",
           ("watermark", "set", "-t", "{t}", "--timestamp", "2025-03-01 00:00:02", "--id", "800"), ("s3",)),
)  # fmt: skip
STACKS = {"mysql": "folder", "s3": "s3", "redshift": "redshift"}


@dataclass
class Ways:
    """The proxies of one stack's bench, and the tables prepared through them."""

    bench: Bench
    prepared: Prepared
    proxy: Proxy
    http: HttpProxy | None


def network(lab: Lab) -> Iterator[Outcome]:
    """Every errand with every service in turn; quick: the two that need no Spark."""
    turns = []
    for errand in ERRANDS:
        for service in errand.services:
            if service == "redshift" and lab.quick:
                continue
            for layer, make in (("tcp", _bytes), ("http", _requests)):
                if layer == "tcp" or service == "s3":
                    beginning = f"network:{service}/{layer}/{errand.name}/"
                    if lab.wanted_any(beginning):
                        turns.append(make(lab, errand, service, beginning))
    if not lab.quick:
        turns.append(_patient(lab))
    lab.dice("network").shuffle(turns)
    yield from in_turn(turns)


def _ways(lab: Lab, service: str) -> Ways:
    kept = lab.services.kept
    if ("ways", service) not in kept:
        services, http = lab.services, None
        behind = {"mysql": lambda: services.server.port, "s3": lambda: services.seaweed.port,
                  "redshift": lambda: services.redshift.port}[service]()  # fmt: skip
        if service == "s3":
            http = HttpProxy(behind)
        between = Proxy(http.port if http else behind)
        bench = Bench(services, STACKS[service], f"-far-{service}", {behind: between.port})
        kept["ways", service] = Ways(bench, Prepared(bench), between, http)
    found: Ways = kept["ways", service]
    found.bench.broken = lab.broken
    return found


def _bytes(lab: Lab, errand: Errand, service: str, beginning: str) -> Iterator[Outcome]:
    """Trouble at random bytes, each kind in turn."""
    ways = _ways(lab, service)
    kinds = [*((kind, False) for kind in proxy.KINDS), ("reset", True), ("stall", True)]
    for turn in range(2 if lab.quick else 12):
        lab.dice(beginning, turn).shuffle(kinds)
        for kind, lasting in kinds:
            own = f"{beginning}{kind}{' for good' if lasting else ''}/{turn}"
            if lab.wanted(own):
                yield _strike_bytes(lab, ways, errand, service, kind, lasting, own)


def _strike_bytes(
    lab: Lab, ways: Ways, errand: Errand, service: str, kind: str, lasting: bool, own: str, real: bool = False
) -> Outcome:
    whole = _whole(lab, ways, errand, service)[0]
    # Some of the first bytes, which are a login or the state, and any of the others.
    dice = lab.dice(own)
    at = dice.randrange(whole) if dice.random() < 0.8 else dice.randrange(min(whole, 2000))
    said = proxy.SAID[kind] + (" for good" if lasting else "")
    name = f"{errand.name}{', real time limits' if real else ''} [{ways.bench.stack}]"
    outcome = Outcome("network", name, said, f"{service}, at a byte", own)
    return _run(ways, errand, service, outcome, lambda: ways.proxy.arm(Trouble(kind, at, lasting)),
                lambda: ways.proxy.struck, real)  # fmt: skip


def _patient(lab: Lab) -> Iterator[Outcome]:
    """Permanent stalls and resets with the product's real time limits; mostly waiting, little work."""
    chosen = [(e, service, kind) for e in ERRANDS for service in e.services for kind in ("stall", "reset")]
    for turn in range(3):
        lab.dice("patient", turn).shuffle(chosen)
        for errand, service, kind in chosen:
            own = f"network:{service}/real/{errand.name}/{kind} for good/{turn}"
            if lab.wanted(own):
                ways = _ways(lab, service)
                yield _strike_bytes(lab, ways, errand, service, kind, True, own, real=True)


def _requests(lab: Lab, errand: Errand, service: str, beginning: str) -> Iterator[Outcome]:
    """Trouble at requests: every request with every kind, in random order; and late listings."""
    ways = _ways(lab, service)
    seen = _whole(lab, ways, errand, service)[1]
    chosen = [
        (at, kind, times) for at in range(1, len(seen) + 1) for kind in httpproxy.SAID for times in (1, 3)
    ]
    chosen += [(0, "lag", n) for n in range(6)]
    lab.dice(beginning).shuffle(chosen)
    for at, kind, times in chosen:
        own = f"{beginning}{kind}/{at}/{times}"
        if lab.wanted(own):
            yield _strike_request(ways, errand, service, kind, at, times, own)


def _strike_request(
    ways: Ways, errand: Errand, service: str, kind: str, at: int, times: int, own: str
) -> Outcome:
    assert ways.http is not None
    http, name = ways.http, f"{errand.name} [{ways.bench.stack}]"
    if kind == "lag":
        outcome = Outcome("network", name, "a listing that lags", "s3, every listing", own)
        return _run(ways, errand, service, outcome, partial(http.arm, lambda n: None, 2.0 + times * 3),
                    lambda: http.left_out > 0)  # fmt: skip
    outcome = Outcome(
        "network", name, httpproxy.SAID[kind] + (f", {times} times" if times > 1 else ""), "", own
    )
    ended = _run(ways, errand, service, outcome,
                 partial(http.arm, lambda n: kind if at <= n < at + times else None),
                 lambda: len(http.seen) >= at)  # fmt: skip
    return ended


def _whole(lab: Lab, ways: Ways, errand: Errand, service: str) -> tuple[int, list[str]]:
    """How many bytes and which requests pass through when undisturbed."""
    kept = lab.services.kept
    if ("whole", f"{errand.name}/{service}") not in kept:
        source = ways.prepared.lay(errand.family, errand.kept)
        ways.proxy.arm(None)
        if ways.http:
            ways.http.arm(lambda n: None)
        ended = ways.bench.run(*(p.format(t=source.name) for p in errand.command), plan={"broken": None})
        assert ended.code == 0, f"{errand.command}: {ended.code} {ended.stderr}"
        seen = list(ways.http.seen) if ways.http else []
        kept["whole", f"{errand.name}/{service}"] = (ways.proxy.passed, seen)
    found: tuple[int, list[str]] = kept["whole", f"{errand.name}/{service}"]
    return found


def _run(
    ways: Ways,
    errand: Errand,
    service: str,
    outcome: Outcome,
    arm: Callable[[], None],
    hit: Callable[[], bool],
    real: bool = False,
) -> Outcome:
    """One experiment: set up, strike, heal and check."""
    began, bench = time.monotonic(), ways.bench
    source = ways.prepared.lay(errand.family, errand.kept)
    command = tuple(part.format(t=source.name) for part in errand.command)
    arm()
    ended = bench.run(*command, plan=None if real else HURRY, seconds=10 * bound() if real else None)
    outcome.hit, outcome.code = hit(), ended.code
    if ways.http is not None and not outcome.step:
        at = int(outcome.replay.split("/")[-2])
        outcome.step = f"s3, {ways.http.seen[at - 1]}" if outcome.hit else "after its end"
    if ways.http is not None:
        ways.http.heal()
    ways.proxy.heal()
    # 3: the run takes its own claim for another's if a late listing does not show it yet.
    allowed = {"mysql": (0, 4), "s3": (0, 4), "redshift": (0, 4, 5)}[service]
    note(outcome, ended, (*allowed, 3) if "lags" in outcome.fault else allowed)
    outcome.problems += _lines(ended)
    watermark_known(bench, source, outcome)
    if command != ("sync", "-t", source.name):
        note(outcome, bench.run(*command, plan=HURRY), (0,))
    settle(bench, source, outcome)
    return timed(outcome, began)


def _lines(ended: Ended) -> list[Problem]:
    """An error is one or two lines."""
    if not ended.code:
        return []
    lines = ended.stderr.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith("floodmark:")), len(lines))
    told = [line for line in lines[first:] if line.strip()]
    if len(told) <= MOST_LINES:
        return []
    return [Problem("said", f"an error of {len(told)} lines: {' / '.join(told)[:400]}")]
