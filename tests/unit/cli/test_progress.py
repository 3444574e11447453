"""Watching a run: what is counted, printed and kept."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable

import pytest

from floodmark.cli import printing
from floodmark.cli.options import Settings
from floodmark.cli.progress import BarProgress, PlainProgress, SilentProgress
from floodmark.model import events
from floodmark.model.errors import Interrupted, TransientError
from floodmark.model.run import Step, TableReport, Wait
from floodmark.model.secrets import Scrubber


def test_rows_of_unfinished_slices_count_until_they_are_done() -> None:
    watch = SilentProgress(Scrubber())
    watch(events.TablesChosen("", ("s.a",)))
    watch(events.StageBegan("s.a", "extract", 100))
    watch(events.Underway("s.a", "extract", 30))
    watch(events.Underway("s.a", "extract", 40))
    assert watch.picture().running[0].stages[0].rows == 40
    watch(events.Underway("s.a", "extract", 0))
    watch(events.Advanced("s.a", "extract", 50, 1, 10))
    watch(events.Underway("s.b", "extract", 7))  # of a table that is over
    assert [stage.rows for stage in watch.picture().running[0].stages] == [50]


def test_all_tables_together_have_a_total_once_each_has_been_planned() -> None:
    watch = SilentProgress(Scrubber())
    watch(
        events.TablesChosen(
            "",
            (
                "s.a",
                "s.b",
                "s.c",
            ),
        )
    )
    watch(events.StageBegan("s.a", "extract", 100))
    watch(events.Advanced("s.a", "extract", 100, 1, 10))
    watch(events.Ended("s.a", TableReport("s.a")))
    watch(events.StageBegan("s.b", "extract", 200))
    watch(events.Underway("s.b", "extract", 20))
    [whole] = watch.picture().whole
    assert (whole.rows, whole.expected) == (120, None)
    watch(events.StageBegan("s.c", "extract", 300))
    watch(events.StageBegan("s.c", "load", 300))
    extract, load = watch.picture().whole
    assert (extract.rows, extract.expected) == (120, 600)
    assert (load.rows, load.expected) == (0, 500)
    watch(events.Ended("s.b", TableReport("s.b", error=TransientError("away"))))
    watch(events.Ended("s.c", TableReport("s.c", left_out=True)))
    picture = watch.picture()
    assert (picture.tables, picture.done, picture.failed, picture.running) == (2, 2, 1, ())
    watch(
        events.Ended("s.d", TableReport("s.d", error=Interrupted("stopped", code=130)))
    )  # which did not fail
    assert watch.picture().failed == 1
    watch(events.TablesChosen("", ("s.a",)))  # the next cycle of a resident sync
    assert (watch.picture().done, watch.reports) == (0, [])


def test_tables_that_ctrl_c_ended_are_neither_done_nor_failed() -> None:
    stopping = False
    watch = SilentProgress(Scrubber(), lambda: stopping)
    watch(
        events.TablesChosen(
            "",
            (
                "s.a",
                "s.b",
                "s.c",
            ),
        )
    )
    watch(events.Ended("s.a", TableReport("s.a", error=TransientError("away"))))
    stopping = True
    watch(events.Ended("s.b", TableReport("s.b", error=TransientError("the task was cancelled"))))
    watch(events.Ended("s.c", TableReport("s.c")))
    picture = watch.picture()
    assert (picture.done, picture.failed, picture.stopping) == (2, 1, True)


def test_all_tables_together_are_done_when_each_is() -> None:
    watch = SilentProgress(Scrubber())
    watch(
        events.TablesChosen(
            "",
            (
                "s.a",
                "s.b",
            ),
        )
    )
    for name in ("s.a", "s.b"):
        watch(events.StageBegan(name, "extract", 100))
        watch(events.Advanced(name, "extract", 90, 1, 10))
    watch(events.StageEnded("s.a", "extract"))
    assert [stage.over for stage in watch.picture().whole] == [False]
    watch(events.StageEnded("s.b", "extract"))
    assert [stage.over for stage in watch.picture().whole] == [True]


Plain = Callable[..., PlainProgress]


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> Plain:
    """Plain progress that writes elsewhere, and says after so many seconds what lasts."""

    def made(write: Callable[[str], None], patience: float = 5.0) -> PlainProgress:
        monkeypatch.setattr("floodmark.cli.progress.to_stderr", write)
        monkeypatch.setattr("floodmark.cli.progress.EVERY", patience)
        return PlainProgress(Scrubber())

    return made


def test_a_long_wait_is_a_plain_line_and_a_short_one_is_not_shown(plain: Plain) -> None:
    lines: list[str] = []
    said = threading.Event()

    def write(line: str) -> None:
        lines.append(line)
        said.set()

    with plain(write, 3600) as watch:
        watch(events.Waiting("s.a", Wait("settling")))
        watch(events.Waiting("s.a", None))
    with plain(write, 0.01) as watch:
        watch(events.Waiting("s.a", Wait("lock", "process 7")))
        assert said.wait(10)
    assert len(lines) == 1 and lines[0].endswith("s for a lock in the warehouse, held by process 7")


def test_what_all_tables_wait_for_is_one_plain_line(plain: Plain) -> None:
    lines: list[str] = []
    said = threading.Event()

    def write(line: str) -> None:
        lines.append(line)
        if line.startswith("s.c"):
            said.set()

    with plain(write, 0.01) as watch:
        watch(
            events.TablesChosen(
                "",
                (
                    "s.a",
                    "s.b",
                    "s.c",
                ),
            )
        )
        watch(events.Waiting("s.a", Wait("spark")))
        watch(events.Waiting("s.b", Wait("spark")))
        while not lines:
            time.sleep(0.01)
        watch(events.Waiting("s.c", Wait("lock")))
        assert said.wait(10)
    assert lines == ["waiting 0 s for Spark to start", "s.c: waiting 0 s for a lock in the warehouse"]


def test_a_step_of_a_load_that_lasts_is_a_plain_line(plain: Plain) -> None:
    lines: list[str] = []
    said = threading.Event()

    def write(line: str) -> None:
        lines.append(line)
        said.set()

    with plain(write, 0.01) as watch:
        watch(events.StageBegan("s.a", "load", 1_300))
        watch(events.Underway("s.a", "load", 0, Step("copy", 3, 12)))
        assert said.wait(10)
        while len(lines) < 3:  # again after twice that time, and twice that
            time.sleep(0.01)
    assert lines[0] == "s.a: loading: 0 of about 1,300 rows, copying files, 3 of 12"
    with plain(write, 3600) as watch:
        watch(events.StageBegan("s.a", "load", 1_300))
        watch(events.Underway("s.a", "load", 0, Step("copy", 3, 12)))
        watch(events.Underway("s.a", "load", 700, Step("insert")))
        [running] = watch.picture().running
        [stage] = running.stages
        assert (stage.rows, stage.step) == (700, Step("insert")) and watch.at_work() == ["s.a"]
        watch(events.StageEnded("s.a", "load"))
        assert watch.at_work() == []


def test_notes_of_tables_are_kept_for_the_result_and_those_of_the_run_are_printed(plain: Plain) -> None:
    lines: list[str] = []
    with plain(lines.append).gathering() as watch:
        watch(events.Noted("", "starting Spark"))
        watch(events.Noted("s.a", "no index"))
    assert (lines, watch.notes) == (["starting Spark"], {"s.a": ["no index"]})


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("plain", ["NO_COLOR=1", "TERM=dumb", None])
def test_no_color_and_a_dumb_terminal_get_plain_lines(
    plain: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    if plain is not None:
        monkeypatch.setenv(*plain.split("="))
    monkeypatch.setattr("sys.stderr", Terminal())
    assert type(Settings().progress()) is (PlainProgress if plain else BarProgress)
    assert type(Settings(quiet=True).progress()) is type(Settings(json=True).progress()) is SilentProgress
    assert not printing.has_colour(io.StringIO())


def test_bars_end_cleanly_and_are_not_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with BarProgress(Scrubber()) as watch:
        watch(events.TablesChosen("", ("s.a",)))
        watch(events.StageBegan("s.a", "extract", 100))
        watch(events.Noted("s.a", "said above the bars"))
        watch(events.Advanced("s.a", "extract", 50, 1, 10))
    drawn = screen.getvalue()
    assert "said above the bars" in drawn and "extract" in drawn
    assert drawn.count("\x1b[?25l") == drawn.count("\x1b[?25h") == 1
    watch(events.StageBegan("s.a", "load", 100))  # by a thread that was left behind
    assert screen.getvalue() == drawn
