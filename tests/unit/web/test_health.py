"""One word for each table, and why."""

from __future__ import annotations

from dataclasses import replace

import pytest

from floodmark.web.health import DEFAULT_TARGET, WORDS, Facts, judge

FINE = Facts(lag=0.0, age=30.0, looked="2026-11-17T11:59:30Z")


def word(**more: object) -> str:
    return judge(replace(FINE, **more)).word  # type: ignore[arg-type]


def test_a_checked_table_without_lag_is_ok() -> None:
    assert judge(FINE).word == "ok"


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"error": "MySQL is away"}, "failed"),
        ({"interrupted": True}, "failed"),
        ({"interrupted": True, "running": True}, "ok"),
        ({"differences": 3}, "failed"),
        ({"differences": 0}, "ok"),
        ({"synced": False}, "never synced"),
        ({"synced": False, "error": "no privilege"}, "failed"),
        ({"lag": DEFAULT_TARGET + 1}, "behind"),
        ({"age": DEFAULT_TARGET + 1}, "behind"),
        ({"age": DEFAULT_TARGET + 1, "running": True}, "ok"),
        ({"lag": 60.0, "target": 30.0}, "behind"),
        ({"lag": 60.0, "target": 30.0, "running": True}, "behind"),
        ({"pending": 2}, "waiting to load"),
        ({"pending": 2, "running": True}, "ok"),
        ({"pending": 2, "lag": 60.0, "target": 30.0}, "behind"),
        ({"age": None, "lag": None}, "unknown"),
        ({"readable": False}, "unknown"),
        ({"readable": False, "error": "x"}, "unknown"),
        ({"retired": True, "error": "x", "age": 9e9}, "ok"),
    ],
)
def test_the_word_is_the_worst_that_is_known(facts: dict[str, object], expected: str) -> None:
    assert word(**facts) == expected


def test_an_idle_source_and_a_stuck_pipeline_differ_by_the_time_of_the_last_check() -> None:
    idle = judge(replace(FINE, age=10.0))
    stuck = judge(replace(FINE, age=3 * 86400.0, looked="2026-11-14T12:00:00Z"))
    assert (idle.word, stuck.word) == ("ok", "behind")
    assert stuck.why == "no sync has looked since 2026-11-14 12:00:00 UTC, target 1 d 1 h"


def test_lag_and_age_add_up() -> None:
    assert word(lag=20.0, age=20.0, target=30.0) == "behind"
    assert word(lag=5.0, age=20.0, target=30.0) == "ok"


def test_every_word_has_a_rank_and_the_worst_is_first() -> None:
    assert WORDS[0] == "failed"
    assert WORDS[-1] == "ok"
    assert judge(FINE).rank == len(WORDS) - 1
