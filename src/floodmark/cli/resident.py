"""`sync --every`: what the cycles of a resident sync tell. One line each; with `--json`, one document on each line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from floodmark import logs, output, progress
from floodmark.cli.options import Settings
from floodmark.cli.signals import interrupted
from floodmark.errors import FloodmarkError, Interrupted
from floodmark.report import SyncOptions
from floodmark.units import shown

if TYPE_CHECKING:
    from floodmark.config import Config
    from floodmark.resident import Cycle


def stay(
    settings: Settings,
    config: Config,
    tables: Sequence[str],
    all_tables: bool,
    options: SyncOptions,
    every: float,
) -> int:
    """Syncs again and again until a signal ends it; the exit code."""
    from floodmark.resident import keep_up

    with settings.progress().brief() as watch:

        def told(cycle: Cycle) -> None:
            watch.stop()  # between two cycles the terminal is as it was
            _tell(settings, cycle)

        try:
            return keep_up(config, tables, all_tables, options, every, watch, told, settings.stopped)
        except Interrupted as error:
            code = settings.stopped() or error.code
    said = interrupted(code)
    settings.complain(said.as_json())
    if settings.json:
        output.emit_json(output.failure(said), settings.scrub, indent=None)
    return code


def _tell(settings: Settings, cycle: Cycle) -> None:
    """One cycle: failures to stderr too, whatever else is asked for; quiet ones not with --quiet."""
    document = cycle.as_json()
    line = shown(settings.scrub(output.cycle_line(document)))
    extra = {"run": cycle.run, "said": True}
    if cycle.exit_code:
        logs.log.error("%s", line, extra=extra)
        if not settings.json_logs:
            progress.to_stderr(line)
    else:
        logs.log.info("%s", line, extra=extra)
    try:
        if settings.json:
            output.emit_json(document, settings.scrub, indent=None)
        elif not cycle.exit_code and not (settings.quiet and not document["tables"]):
            output.emit(line)
    except FloodmarkError as unwritten:  # stdout is full or gone; the rows go on
        settings.complain(unwritten.as_json())
