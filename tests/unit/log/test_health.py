"""One word for each table, and why: a table of cases."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from floodmark.config.load import AlertSpec
from floodmark.log.document import StageFailure
from floodmark.log.status import LastVerify, Live, TableStatus
from floodmark.model.run import Lag
from floodmark.model.times import stamp
from floodmark.status.health import DEFAULT_LIMIT, WORDS, Mark, TableFacts, judge, limit_of
from tests.support.dashboards import config_of

NOW = datetime(2026, 11, 17, 12, 0, tzinfo=UTC)
HOUR = 3600.0


def ago(seconds: float) -> str:
    return stamp(NOW - timedelta(seconds=seconds))


FINE = TableStatus("s.t", "r", ago(30), exit_code=0, caught_up_at=ago(30), lag=Lag(seconds=0.0))
SYNCED = Mark("s.t", document={"last_mysql_extraction_time": ago(30)})
DIFFERS = LastVerify("s.t", "r", ago(60), 1.0, False, missing=3)
AGREES = LastVerify("s.t", "r", ago(60), 1.0, True)
LATE = DEFAULT_LIMIT + 1


def live(lag: float, at: float = 5) -> Live:
    return Live("s.t", "r", "etl-1", 7, ago(9), ago(1), lag_seconds=lag, lag_at=ago(at))


def failed(code: int, **more: Any) -> dict[str, Any]:
    return {"exit_code": code, "error": "why", "failing_since": ago(60), **more}


# What the status says, what the watermark says, what else is known; the word, and the reason.
CASES: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], str, str]] = [
    ({}, {}, {}, "ok", ""),
    (failed(1), {}, {}, "failed", "why"),
    (failed(2), {}, {}, "failed", "why"),
    (failed(6), {}, {}, "failed", "why"),
    (failed(6, caught_up_at=ago(LATE)), {}, {}, "failed", "why"),
    (failed(6), {}, {"damaged": True}, "failed", "why"),
    ({"exit_code": 3, "error": "held"}, {}, {}, "ok", ""),
    ({"exit_code": 7, "error": "they differ"}, {}, {}, "differs", "they differ"),
    ({"verify": DIFFERS}, {}, {}, "differs", "verify found 3 missing, 0 extra, 0 different"),
    ({"verify": DIFFERS, "caught_up_at": ago(LATE)}, {}, {}, "behind", "no sync has looked since 2026-11-16 10:59:59 UTC, target 1 d 1 h"),
    ({"verify": AGREES}, {}, {}, "ok", ""),
    (failed(4), {}, {}, "failing", "will be tried again: why"),
    (failed(5), {}, {}, "failing", "will be tried again: why"),
    (failed(4, caught_up_at=ago(LATE)), {}, {}, "behind", "why"),
    (failed(4, caught_up_at=None, failing_since=ago(LATE)), {}, {}, "behind", "why"),
    ({}, {"document": {**SYNCED.document, "last_error": "the load failed"}}, {}, "failing", "will be tried again: the load failed"),
    ({"failure": StageFailure("extract", "away", ago(9))}, {"document": {}}, {}, "failing", "will be tried again: away"),
    ({}, {"open": True}, {}, "failing", "the last run was interrupted; the next one continues from there"),
    ({}, {"open": True}, {"running": True}, "ok", ""),
    ({"lag": Lag(seconds=LATE)}, {}, {}, "behind", "1 d 1 h behind the source, target 1 d 1 h"),
    ({"caught_up_at": ago(3 * 24 * HOUR)}, {}, {}, "behind", "no sync has looked since 2026-11-14 12:00:00 UTC, target 1 d 1 h"),
    ({"lag": Lag(seconds=LATE - 20)}, {}, {}, "behind", "no sync has looked since 2026-11-17 11:59:30 UTC, target 1 d 1 h"),
    ({"pending_since": ago(2 * 24 * HOUR)}, {}, {}, "behind", "files have waited to be loaded since 2026-11-15 12:00:00 UTC, target 1 d 1 h"),
    ({"caught_up_at": None, "last_check_time": ago(3 * 24 * HOUR)}, {}, {}, "behind", "no sync has looked since 2026-11-14 12:00:00 UTC, target 1 d 1 h"),
    ({"caught_up_at": ago(LATE)}, {}, {"running": True, "live": live(60.0)}, "ok", ""),
    # A run that hangs renews its lease, but measures nothing any more.
    ({"caught_up_at": ago(LATE)}, {}, {"running": True, "live": live(60.0, LATE)}, "behind", "no sync has looked since 2026-11-16 10:59:59 UTC, target 1 d 1 h"),
    ({}, {}, {"running": True, "live": live(LATE)}, "behind", "1 d 1 h behind the source, target 1 d 1 h"),
    ({}, {}, {"damaged": True, "mark": None}, "unknown", "its watermark can't be read"),
    ({"caught_up_at": None, "last_check_time": None, "lag": None}, {}, {}, "unknown", "no sync has recorded when it last looked"),
    ({}, {"pending_files": 2}, {}, "waiting to load", "2 files not yet in the warehouse"),
    ({}, {"pending_files": 2}, {"running": True}, "ok", ""),
    ({}, {"document": {}}, {}, "never synced", ""),
    ({}, {"document": {}}, {"running": True}, "never synced", "a first sync is running"),
    ({"lag": Lag(ids=12)}, {}, {}, "ok", "12 ids behind"),
    (failed(6), {"document": {"retired": True}}, {}, "ok", "retired"),
]  # fmt: skip


@pytest.mark.parametrize(("status", "mark", "more", "word", "why"), CASES)
def test_the_word_is_the_worst_that_is_known(
    status: dict[str, Any], mark: dict[str, Any], more: dict[str, Any], word: str, why: str
) -> None:
    facts = replace(TableFacts("s.t", replace(SYNCED, **mark), replace(FINE, **status)), **more)
    health = judge(facts, DEFAULT_LIMIT, NOW)
    assert (health.word, health.why) == (word, why)


def test_the_cases_have_every_word_and_the_worst_is_first() -> None:
    assert {case[3] for case in CASES} == set(WORDS)
    assert (WORDS[0], WORDS[-1]) == ("failed", "ok")


def test_what_the_ledger_says_about_waiting_files_counts_more_than_what_was_published() -> None:
    facts = TableFacts("s.t", replace(SYNCED, pending_files=2), FINE)
    assert judge(facts, DEFAULT_LIMIT, NOW, pending=0).word == "ok"
    assert judge(replace(facts, mark=SYNCED), DEFAULT_LIMIT, NOW, pending=1).word == "waiting to load"


def test_the_limit_is_the_table_s_own_or_that_of_the_alerts_or_25_hours(tmp_path: Any) -> None:
    config = config_of(tmp_path)
    assert limit_of(config, "s.t") == 25 * HOUR
    config = replace(config, alerts=AlertSpec(behind=600.0))
    assert limit_of(config, "s.t") == 600.0
    config = replace(config, entries={"s.t": {"behind": 60.0}})
    assert (limit_of(config, "s.t"), limit_of(config, "s.u")) == (60.0, 600.0)
