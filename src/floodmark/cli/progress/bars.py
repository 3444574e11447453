"""Progress as bars on a terminal: draws `frame` a few times a second, and removes it at the end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from floodmark.cli.progress.frame import Line, frame
from floodmark.cli.progress.silent import SilentProgress
from floodmark.cli.stderr import fitted, to_stderr
from floodmark.model.events import Event, StageBegan, Waiting
from floodmark.model.secrets import Scrubber
from floodmark.model.text import shown

if TYPE_CHECKING:
    from rich.live import Live

_STYLES = {
    "": "",
    "name": "bold",
    "bar": "green",
    "rest": "bright_black",
    "dim": "bright_black",
    "bad": "red",
}


class BarProgress(SilentProgress):
    """The running tables, with a bar for each stage, and a line for all; removed when the run is over."""

    def __init__(self, scrub: Scrubber, stopping: Callable[[], bool] = lambda: False) -> None:
        super().__init__(scrub, stopping)
        self._live: Live | None = None
        # A holder of this lock may wait for the drawing thread, and that one for `_lock`: never the other way round.
        self._screen = threading.RLock()

    def stop(self) -> None:
        with self._screen:
            live, self._live = self._live, None
            if live is not None:
                with suppress(OSError, ValueError):
                    live.stop()

    def __call__(self, event: Event) -> None:
        super().__call__(event)
        if isinstance(event, StageBegan) or (isinstance(event, Waiting) and event.on is not None):
            self._start()

    def _start(self) -> None:
        with self._screen:
            if self._live is None and not self._closed:
                self._live = _live(self._drawn)
                self._live.start()

    def _say(self, table: str, text: str) -> None:
        line = shown(self._scrub(f"{table}: {text}" if table else text))
        with self._screen:
            if self._live is None:
                to_stderr(line)
            else:
                console = self._live.console
                for part in fitted(line, console.width):
                    console.print(part, markup=False, highlight=False, soft_wrap=True)

    def _drawn(self, width: int, height: int) -> list[Line]:
        return frame(self.picture(), width, height)


def _live(lines: Callable[[int, int], list[Line]]) -> Live:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(stderr=True, highlight=False)

    def drawn() -> Text:
        width, height = console.size
        # The last column stays free: some terminals go to the next line when it is written to.
        rows = lines(max(width - 1, 20), height)
        text = Text("\n", no_wrap=True, overflow="crop").join(
            Text.assemble(*((piece, _STYLES[style]) for piece, style in row)) for row in rows
        )
        text.no_wrap = True
        return text

    return Live(console=console, transient=True, refresh_per_second=4, get_renderable=drawn)
