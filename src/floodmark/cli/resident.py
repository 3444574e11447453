"""`sync --every`: what the cycles of a resident sync print. One line each; with `--json`, one document per line.

A failure is printed when it begins and when it is over, not with every cycle in between.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from floodmark.cli import logs
from floodmark.cli.options import Settings
from floodmark.cli.output import emit
from floodmark.cli.output.sync import cycle_line, moved
from floodmark.cli.signals import KEPT, interrupted
from floodmark.cli.stderr import to_stderr
from floodmark.model import log_lines
from floodmark.model.errors import FloodmarkError, Interrupted
from floodmark.model.events import Event, RunBegan, to_all
from floodmark.model.run import SyncOptions, SyncReport
from floodmark.model.text import clock, counted, duration, shown
from floodmark.model.times import parse_moment

if TYPE_CHECKING:
    from floodmark.config.load import Config
    from floodmark.model.results import Failure
    from floodmark.sync.resident import Cycle, Failing, Health


def stay(
    settings: Settings,
    config: Config,
    tables: Sequence[str],
    all_tables: bool,
    options: SyncOptions,
    every: float,
    listen: tuple[str, int] | None = None,
    metrics_file: Path | None = None,
) -> int:
    """Syncs again and again until a signal ends it; returns the exit code."""
    from floodmark.status.run import Observer
    from floodmark.sync.resident import Health, keep_up

    health = Health()
    with ExitStack() as stack:
        observer = stack.enter_context(Observer(config, metrics_file))
        beat = _listen(stack, config, listen, every) if listen is not None else lambda code: None
        watch = stack.enter_context(settings.progress().brief())

        def told(cycle: Cycle) -> None:
            nonlocal health
            watch.stop()  # leave the terminal alone between cycles
            health = health.after(cycle)
            _tell(settings, cycle, health)
            beat(cycle.exit_code)

        def name_run(event: Event) -> None:
            if isinstance(event, RunBegan):
                settings.run = event.run

        emit_all = to_all(name_run, watch, observer)
        try:
            return keep_up(config, tables, all_tables, options, every, emit_all, told, settings.stopped)
        except Interrupted as error:
            code = settings.stopped() or error.code
    said = interrupted(code, KEPT)
    settings.complain(said)
    if settings.json:
        emit.emit_json(emit.failure(said), settings.scrub, indent=None)
    return code


def _listen(
    stack: ExitStack, config: Config, address: tuple[str, int], every: float
) -> Callable[[int], None]:
    """Serves /metrics and /healthz from now on; returns what to call when a cycle has ended."""
    from floodmark.status.facts import StoreFacts
    from floodmark.status.health import limit_of
    from floodmark.status.listen import Listener, Metrics, Pulse
    from floodmark.store.store import Store

    pulse = Pulse(every)
    stack.enter_context(
        Listener(
            address,
            {
                "/metrics": Metrics(StoreFacts(Store(config.store), partial(limit_of, config))).answer,
                "/healthz": pulse.health,
            },
        )
    )
    return pulse.beat


def _tell(settings: Settings, cycle: Cycle, health: Health) -> None:
    """Prints one cycle: news about failures to stderr, rows to stdout; idle cycles not with --quiet."""
    for error in emit.together([one.error for one in health.new]):
        line = failing_line(cycle.at, error)
        log_lines.tell(
            logs.log, logging.ERROR, "failing", line, run=cycle.run, table=error.table, said=True,
            cycle=cycle.number, exit_code=error.code, kind=error.kind, hint=error.hint,
        )  # fmt: skip
        _to_stderr(settings, line)
    if health.recovered:
        line = recovered_line(cycle.at, health.recovered)
        failures = max(one.cycles for one in health.recovered)
        seconds = max(_seconds(one, cycle.at) for one in health.recovered)
        log_lines.tell(
            logs.log, logging.INFO, "recovered", line, run=cycle.run, said=True,
            cycle=cycle.number, failures=failures, seconds=seconds,
        )  # fmt: skip
        _to_stderr(settings, line)
    report = cycle.report or SyncReport(cycle.run, 0.0, ())
    line = shown(settings.scrub(cycle_line(cycle)))
    log_lines.tell(
        logs.log, logging.INFO, "cycle_end", line, run=cycle.run, said=True, cycle=cycle.number,
        seconds=round(cycle.seconds, 3), exit_code=cycle.exit_code, **report.log_fields,
    )  # fmt: skip
    try:
        if settings.json:
            emit.emit_json(cycle.as_json(), settings.scrub, indent=None)
        elif moved(report.tables) or (not cycle.exit_code and not settings.quiet):
            emit.emit(line)
    except FloodmarkError as unwritten:  # stdout is full or closed; the sync continues
        settings.complain(unwritten)


def _to_stderr(settings: Settings, line: str) -> None:
    if not settings.json_logs:
        to_stderr(shown(settings.scrub(line)))


def failing_line(at: str, error: FloodmarkError | Failure) -> str:
    """`2025-08-14 16:45:33 UTC  failed, exit code 4: shop.orders: …`, once for each failure."""
    reason = "; ".join(line.strip() for line in emit.error_said(error))
    return f"{clock(at)}  failed, exit code {error.code}: {reason} (retrying; nothing more is printed until it recovers)"


def recovered_line(at: str, recovered: Sequence[Failing]) -> str:
    """`2025-08-14 16:51:36 UTC  recovered: shop.orders, after 12 failed cycles in 6 min 3 s`."""
    names = [one.table for one in recovered if one.table is not None]
    who = f" {names[0]}," if len(names) == 1 else f" {counted(len(names), 'table')}," if names else ""
    cycles = counted(max(one.cycles for one in recovered), "failed cycle")
    return (
        f"{clock(at)}  recovered:{who} after {cycles} in {duration(max(_seconds(r, at) for r in recovered))}"
    )


def _seconds(failing: Failing, at: str) -> float:
    return max(0.0, round((parse_moment(at) - parse_moment(failing.since)).total_seconds(), 3))
