"""Attempts and the pauses between them, and which failed slices are tried again."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from floodmark.host.retry import SLICE, Retries
from floodmark.model.errors import DataError, FloodmarkError, TransientError


@pytest.mark.parametrize(
    ("retries", "pauses"),
    [
        (Retries(1), []),
        (Retries(4, 0.5), [0.5, 1.0, 2.0]),
        (Retries(4, 0.5, factor=1), [0.5, 0.5, 0.5]),
        (Retries(4, 3.0, longest=5.0), [3.0, 5.0, 5.0]),
        (Retries(pause=1.0, seconds=0.0), []),
        (Retries(pause=1.0, seconds=8.0), [1.0, 2.0, 4.0]),
        (Retries(9, 1.0, factor=1, seconds=3.0), [1.0, 1.0, 1.0]),
    ],
)
def test_attempts_end_by_number_or_by_time(
    retries: Retries, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, slept = [100.0], list[float]()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(time, "sleep", sleep)
    assert len(list(retries)) == len(pauses) + 1 and slept == pauses


def test_a_part_of_a_pause_is_left_to_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    list(Retries(40, 2.0, factor=1, jitter=0.5))
    assert len(set(slept)) > 1 and all(1.0 <= each <= 2.0 for each in slept)


def run(*results: str | FloodmarkError, retries: Retries = SLICE) -> tuple[str, list[bool], list[float]]:
    left, firsts, paused = list(results), list[bool](), list[float]()

    def attempt(first: bool) -> str | FloodmarkError:
        firsts.append(first)
        return left.pop(0)

    return retries.persist(attempt, lambda seconds, error: paused.append(seconds)), firsts, paused


def test_a_slice_is_retried_after_each_pause_while_its_services_fail() -> None:
    assert run("rows") == ("rows", [True], [])
    assert run(TransientError("a"), TransientError("b"), "rows") == ("rows", [True, False, False], [1.0, 3.0])
    with pytest.raises(TransientError, match="c"):
        run(TransientError("a"), TransientError("b"), TransientError("c"), "too late")


def test_other_errors_are_raised_at_once() -> None:
    with pytest.raises(DataError, match="odd"):
        run(DataError("odd"), "rows")


def test_a_slice_that_has_been_failing_for_long_is_not_retried() -> None:
    with pytest.raises(TransientError, match="a"):
        run(TransientError("a"), "rows", retries=replace(SLICE, seconds=-1.0))
