"""Which failed slices are tried again, and how often."""

from __future__ import annotations

import pytest

from floodmark.model.errors import DataError, FloodmarkError, TransientError
from floodmark.services.spark import retries
from floodmark.services.spark.retries import PAUSES, patiently


def run(*results: str | FloodmarkError) -> tuple[str, list[bool], list[float]]:
    left, firsts, paused = list(results), list[bool](), list[float]()

    def attempt(first: bool) -> str | FloodmarkError:
        firsts.append(first)
        return left.pop(0)

    return patiently(attempt, lambda seconds, error: paused.append(seconds)), firsts, paused


def test_a_slice_is_retried_after_each_pause_while_its_services_fail() -> None:
    assert run("rows") == ("rows", [True], [])
    assert run(TransientError("a"), TransientError("b"), "rows") == ("rows", [True, False, False], [*PAUSES])
    with pytest.raises(TransientError, match="c"):
        run(TransientError("a"), TransientError("b"), TransientError("c"), "too late")


def test_other_errors_are_raised_at_once() -> None:
    with pytest.raises(DataError, match="odd"):
        run(DataError("odd"), "rows")


def test_a_slice_that_has_been_failing_for_long_is_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "PATIENCE", -1.0)
    with pytest.raises(TransientError, match="a"):
        run(TransientError("a"), "rows")
