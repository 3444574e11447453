"""Which progress fits the global options and where stderr goes."""

from __future__ import annotations

from collections.abc import Callable

from floodmark.cli.progress.bars import BarProgress
from floodmark.cli.progress.lines import PlainProgress
from floodmark.cli.progress.silent import SilentProgress
from floodmark.model.secrets import Scrubber


def choose(
    scrub: Scrubber,
    *,
    json: bool,
    quiet: bool,
    json_logs: bool,
    bars: bool,
    stopping: Callable[[], bool] = lambda: False,
) -> SilentProgress:
    """The progress that fits the global options and where stderr goes."""
    if quiet or json_logs or json:
        return SilentProgress(scrub, stopping)  # the log, or the document, has the notes
    return BarProgress(scrub, stopping) if bars else PlainProgress(scrub, stopping=stopping)
