"""`verify` for people, beside test_rendered.py: narrow terminals, and what a stopped one leaves behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest

from floodmark.cli.main import main
from floodmark.cli.verify import verify_lines
from floodmark.model import events
from floodmark.model.results import VerifiedTable
from floodmark.model.run import Finding
from floodmark.model.text import cells
from floodmark.verify.lookup import Differences
from floodmark.verify.run import Verified
from tests.unit.conftest import does

TABLE = VerifiedTable(
    table="shop.orders", ok=False, error=None, seconds=1.5, rows_source=10, rows_warehouse=9, rows_left_out=0, missing=0,
    extra=0, different=0, loose=0, rows_changed=0, findings=(), notes=(), compared_with="source",
)  # fmt: skip


def shown(repair: bool = False, width: int | None = None, **changed: Any) -> list[str]:
    return verify_lines([TABLE.but(**changed)], repair, width)


@pytest.mark.parametrize("width", [40, 60, 80])
def test_a_result_fits_the_terminal(width: int) -> None:
    detail = "id = 99999999 is in the warehouse and not at the source"
    found = [
        Finding("extra_row", "shop.orders", detail),
        Finding("different_row", "shop.orders", "id = 43 differs in name"),
    ]
    lines = shown(width=width, extra=1, different=1, findings=found)
    assert max(cells(line) for line in lines if "floodmark verify" not in line) <= width
    assert detail in " ".join(" ".join(lines).split())


def stopped(repaired: int | None) -> Callable[..., Any]:
    """A comparison that is interrupted at its second table."""

    def step(config: Any, names: Any, progress: Any, run: str, *, ended: Any, **_: Any) -> Any:
        progress(events.StageBegan("a.first", "verify", 10))
        progress(events.StageEnded("a.first", "verify"))
        ended(Verified("a.first", Differences(), repaired=repaired).result)
        progress(events.StageBegan("a.second", "verify", 10))
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(10)

    return step


def test_a_verify_that_is_interrupted_says_what_it_compared_and_that_nothing_was_changed(
    pipeline: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    does(pipeline, verify=stopped(None))
    assert main(["verify", "-t", "a.first", "-t", "a.second"]) == 130
    out, err = capsys.readouterr()
    assert out.startswith("a.first: 0 rows agree")
    said = err.splitlines()[-1]
    assert said.endswith(
        "interrupted by Ctrl-C; verify was stopped while it compared a.second; nothing was changed"
    )
    assert "committed" not in err


def test_a_repair_that_is_interrupted_says_what_it_repaired(
    pipeline: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    does(pipeline, verify=stopped(3))
    assert main(["verify", "-t", "a.first", "-t", "a.second", "--repair"]) == 130
    said = capsys.readouterr().err.splitlines()[-1]
    assert "the repair was stopped at a.second; 3 rows of 1 table before it repaired" in said


def test_the_help_of_reset_says_that_it_can_be_undone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watermark", "reset", "--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "final" not in said and "To go back, run the command that the reset prints" in said
