"""Which tables are reported, to whom, and how often."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from floodmark.config.load import AlertSpec
from floodmark.log.status import LastVerify, TableStatus
from floodmark.model.lineage import ColumnChange
from floodmark.model.run import Lag
from floodmark.model.times import stamp
from floodmark.status.alerts import (
    Standing,
    TableSaid,
    Trouble,
    after_saying,
    good,
    left_alone,
    standing,
    to_say,
)
from floodmark.status.health import TableFacts, behind_seconds

NOW = datetime(2026, 11, 17, 12, 0, tzinfo=UTC)
ALERTS = AlertSpec.on


def ago(seconds: float) -> str:
    return stamp(NOW - timedelta(seconds=seconds))


def check(code: int = 0, caught_up: float = 10.0, **more: object) -> TableStatus:
    error = f"failed with {code}" if code else None
    return TableStatus("s.t", "r", ago(5), exit_code=code, error=error, caught_up_at=ago(caught_up), **more)  # type: ignore[arg-type]


def stands(given: TableStatus | None, on: tuple[str, ...] = ALERTS) -> Standing:
    return standing(TableFacts("s.t", status=given), 900, on, NOW)


def word(given: TableStatus | None, on: tuple[str, ...] = ALERTS) -> str:
    return stands(given, on).word


def behind(given: TableStatus) -> float | None:
    return behind_seconds(TableFacts("s.t", status=given), NOW)


def test_an_idle_source_is_healthy_and_a_dead_scheduler_is_not() -> None:
    assert word(check(caught_up=60, lag=Lag(seconds=0.0))) == "ok"
    assert word(check(caught_up=901, lag=Lag(seconds=0.0))) == "behind"
    assert word(None) == "ok"  # nothing is known of it


def test_how_far_behind_is_the_lag_of_the_last_look_and_the_time_since() -> None:
    assert behind(check(caught_up=100, lag=Lag(seconds=50.0))) == 150
    assert behind(check(caught_up=100, lag=Lag(ids=7))) == 100
    assert behind(check(caught_up=10, pending_since=ago(3000))) == 3000
    assert behind(TableStatus("s.t", "r", None, exit_code=4)) is None
    assert behind(TableStatus("s.t", "r", None, caught_up_at="yesterday")) is None


@pytest.mark.parametrize("code", [1, 2, 6])
def test_a_failure_that_needs_a_person_is_reported_at_once(code: int) -> None:
    assert word(check(code)) == "failed"


@pytest.mark.parametrize("code", [4, 5])
def test_a_transient_failure_is_reported_once_the_table_is_behind(code: int) -> None:
    assert word(check(code, caught_up=600)) == "ok"
    late = stands(check(code, caught_up=1000))
    assert (late.word, late.detail) == ("behind", f"failed with {code}")
    first = TableStatus(
        "s.t", "r", None, exit_code=code, error="away", failing_since=ago(600)
    )  # and never caught up
    assert word(first) == "ok" and word(replace(first, failing_since=ago(1000))) == "behind"


def test_another_run_s_lease_is_never_reported() -> None:
    assert word(check(3)) == "ok"


def test_differences_are_reported_until_a_verify_finds_none() -> None:
    differs = LastVerify("s.t", "r", ago(5), 1.0, False, missing=3)
    assert word(check(7)) == "differs" and word(check(verify=differs)) == "differs"
    assert word(check(verify=LastVerify("s.t", "r", ago(5), 1.0, True))) == "ok"
    assert "3 missing" in stands(check(verify=differs)).detail


def test_only_configured_kinds_are_reported() -> None:
    assert word(check(6, caught_up=1000), on=("behind",)) == "behind"
    assert word(check(6), on=("behind", "differs")) == "ok"


def test_there_is_one_message_per_change_then_one_a_day_then_a_recovery() -> None:
    said: TableSaid | None = None
    heard: list[tuple[str, bool]] = []
    moment = NOW
    bad, behind, well = Standing("s.t", "failed"), Standing("s.t", "behind"), Standing("s.t")
    for hours, now_stands in [
        (0, bad), (1, bad), (22, bad), (2, bad), (1, behind), (1, behind), (1, well), (1, well)
    ]:  # fmt: skip
        moment += timedelta(hours=hours)
        events = to_say(said, now_stands, ["hook"], ALERTS, moment)
        heard += [(e.kind, e.again) for e in events.get("hook", ())]
        said = after_saying(said, now_stands, events, ALERTS, moment)
    assert heard == [("failed", False), ("failed", True), ("behind", False), ("recovered", False)]
    assert said is None


def test_an_unreachable_receiver_gets_it_later_and_the_others_not_again() -> None:
    bad = Standing("s.t", "failed")
    first = to_say(None, bad, ["hook", "mail"], ALERTS, NOW)
    said = after_saying(None, bad, {"hook": first["hook"]}, ALERTS, NOW)
    assert set(to_say(said, bad, ["hook", "mail"], ALERTS, NOW)) == {"mail"}


def test_a_column_change_is_reported_once_and_not_when_it_is_old() -> None:
    change = (ColumnChange("added", "note", after="text"),)
    now_stands = stands(check(schema_at=ago(60), schema_changes=change))
    events = to_say(None, now_stands, ["hook"], ALERTS, NOW)
    assert [(e.kind, e.stands.detail) for e in events["hook"]] == [("schema", "note was added (text)")]
    said = after_saying(None, now_stands, events, ALERTS, NOW)
    assert said is not None and to_say(said, now_stands, ["hook"], ALERTS, NOW) == {}
    past = stands(check(schema_at=ago(90_000), schema_changes=change))
    assert to_say(None, past, ["hook"], ALERTS, NOW) == {}


def test_the_heartbeat_is_silent_while_a_failure_may_pass_by_itself() -> None:
    assert good([0, 0], False) is True
    assert good([0, 6], False) is False and good([7], False) is False
    assert good([4, 0], False) is None and good([3], False) is None
    assert good([4, 0], True) is False


def test_a_silent_receiver_is_left_alone_for_ten_minutes() -> None:
    assert left_alone(Trouble(ago(300), "no answer"), NOW) and not left_alone(
        Trouble(ago(700), "no answer"), NOW
    )
    assert not left_alone(Trouble(ago(300), "it answered 500"), NOW) and not left_alone(None, NOW)
    assert not left_alone(Trouble("never", "no answer"), NOW)
