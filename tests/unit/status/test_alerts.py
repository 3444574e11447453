"""Alerts against a real web server and a real mail server on this machine."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.handlers import Message as MailHandler

from floodmark.config.load import AlertSpec, Config, SourceSpec, StoreSpec, WarehouseSpec
from floodmark.log.pipeline import establish
from floodmark.log.status import LastVerify, TableStatus, write_verify
from floodmark.model.errors import ConfigError, DataError, FloodmarkError, TransientError
from floodmark.model.json import dump
from floodmark.model.results import Watermark
from floodmark.model.run import SyncReport, TableReport
from floodmark.model.times import stamp
from floodmark.setup.services.process import free_ports
from floodmark.status import alerts
from floodmark.status.alerts import STATE, Alerts, guarding, read_state
from floodmark.store.store import Store
from tests.support.receiving import Receiving, receiving
from tests.support.watermark_copies import put_status

SECRET = "T0PSECRET/abc"


@pytest.fixture
def hook() -> Iterator[Receiving]:
    with receiving() as here:
        yield here


@pytest.fixture
def config(tmp_path: Path, hook: Receiving) -> Config:
    spec = AlertSpec(heartbeat=f"{hook.url}/beat/{SECRET}", webhook=f"{hook.url}/hook/{SECRET}")
    return Config(
        tmp_path / "floodmark.yaml",
        SourceSpec("127.0.0.1", 3306, "u", "p"),
        StoreSpec(str(tmp_path / "lake")),
        WarehouseSpec("duckdb", "main", path=tmp_path / "w.duckdb"),
        alerts=spec,
    )


def ended(config: Config, *errors: FloodmarkError | None, patience: float = 5.0) -> None:
    """A run of s.t0, s.t1 …, which ended like this, and the alerts it causes."""
    store, tables = Store(config.store), []
    for n, error in enumerate(errors):
        report = TableReport(f"s.t{n}", error=error, watermark=Watermark.of({"pending_s3_files": []}))
        before = TableStatus(report.table, "r", caught_up_at=stamp(), success_at=stamp())
        put_status(store, before.after_run(report, "r", stamp(), looked=None if error else stamp())[0])
        tables.append(report)
    with Alerts(config, patience) as alerts:
        alerts.after(SyncReport("r", 1.0, tuple(tables)))


def test_a_failure_is_reported_once_and_so_is_its_end(config: Config, hook: Receiving) -> None:
    bad = DataError("the source was replaced")
    for errors in ((None,), (bad,), (bad,), (None,), (None,)):
        ended(config, *errors)
    assert hook.events == [("failed", "s.t0", False), ("recovered", "s.t0", False)]
    first = hook.documents[0]
    assert first["text"] == "Floodmark: s.t0 has failed: the source was replaced"
    assert first["events"][0]["exit_code"] == 6
    beat = f"/beat/{SECRET}"
    assert hook.beats == [beat, f"{beat}/fail", f"{beat}/fail", beat, beat]
    assert read_state(Store(config.store)).tables == {}


def test_tables_of_one_run_share_a_message(config: Config, hook: Receiving) -> None:
    ended(config, *(DataError("damaged") for _ in range(25)))
    (document,) = hook.documents
    assert len(document["events"]) == 25 and "and 5 more" in document["text"]
    assert document["text"].startswith("Floodmark: 25 messages: 25 failed\ns.t0 has failed: damaged\n")


def test_a_briefly_unreachable_source_is_not_reported(config: Config, hook: Receiving) -> None:
    ended(config, TransientError("MySQL is away"))
    assert hook.got == []


def test_sent_alerts_are_remembered_without_addresses(config: Config, hook: Receiving) -> None:
    ended(config, DataError("damaged"))
    kept = (Store(config.store).get(STATE) or b"").decode()
    assert "s.t0" in kept and SECRET not in kept and "127.0.0.1" not in kept
    Store(config.store).put(STATE, b"{")  # lost: it is sent once more
    ended(config, DataError("damaged"))
    assert len(hook.documents) == 2


def test_a_receiver_that_hangs_holds_nothing_up_and_is_reported_once(
    config: Config, hook: Receiving, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    hook.hangs = True
    with Alerts(config, patience=0.2) as alerts:
        began = time.monotonic()
        alerts.after(None, DataError("damaged"))
        alerts.after(None, DataError("damaged"))
        assert time.monotonic() - began < 5  # at once, on any machine
    ended(config, DataError("damaged"), patience=0.2)
    came = len(hook.got)
    ended(config, DataError("damaged"), patience=0.2)
    assert len(hook.got) == came  # left alone
    assert sum("webhook" in r.message for r in caplog.records) == 1
    assert SECRET not in caplog.text
    # Ten minutes later it is tried again, and gets what it missed.
    hook.hangs = False
    store = Store(config.store)
    state = read_state(store)
    past = stamp(datetime.now(UTC) - timedelta(minutes=11))
    store.put(
        STATE, dump(replace(state, receivers={n: replace(t, at=past) for n, t in state.receivers.items()}))
    )
    ended(config, DataError("damaged"))
    assert hook.documents[-1]["events"][0]["event"] == "failed" and read_state(store).receivers == {}


def test_a_receiver_that_refused_is_reported_once_and_gets_the_alert_with_a_later_run(
    config: Config, hook: Receiving, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    hook.status = 500
    for _ in range(2):  # the second time a minute later, when it is tried again
        ended(config, DataError("damaged"))
        monkeypatch.setattr(alerts, "REFUSED_FOR", timedelta(0))
    said = "alerts.webhook could not be notified: it answered 500"
    found = [r.levelno for r in caplog.records if r.getMessage() == said]
    assert found == [logging.WARNING, logging.INFO]
    assert read_state(Store(config.store)).tables == {}
    hook.status = 200
    ended(config, DataError("damaged"))
    assert hook.documents[-1]["events"][0]["event"] == "failed"


def test_an_unreachable_receiver_is_reported_without_its_address(config: Config) -> None:
    spec = AlertSpec(webhook=f"http://127.0.0.1:1/{SECRET}", heartbeat=f"http://[{SECRET}/")
    found = Alerts(replace(config, alerts=spec)).test()
    assert not found["ok"] and SECRET not in str(found)
    assert {one["receiver"]: one["ok"] for one in found["receivers"]} == {
        "heartbeat": False,
        "webhook": False,
    }


def test_a_test_reaches_everybody_and_passes_for_no_run(config: Config, hook: Receiving) -> None:
    with Alerts(config) as alerts:
        assert alerts.test()["ok"]
    assert hook.beats == [f"/beat/{SECRET}/log"] and len(hook.documents) == 1
    assert read_state(Store(config.store)).tables == {}


def test_a_check_finds_the_table_that_nobody_syncs_any_more(config: Config, hook: Receiving) -> None:
    store = Store(config.store)
    old = stamp(datetime.now(UTC) - timedelta(hours=2))
    put_status(store, TableStatus("s.dead", "r", old, exit_code=0, success_at=old, caught_up_at=old))
    put_status(
        store, TableStatus("s.alive", "r", stamp(), exit_code=0, success_at=stamp(), caught_up_at=stamp())
    )
    limits = replace(config, tables=("s.slow", "s.never", "p.*"), entries={"s.slow": {"behind": 86_400.0}})
    put_status(store, TableStatus("s.slow", "r", old, exit_code=0, success_at=old, caught_up_at=old))
    document = Alerts(limits).check()
    states = {one["table"]: one["state"] for one in document["tables"]}
    assert states == {"s.alive": "ok", "s.dead": "behind", "s.slow": "ok", "s.never": "unknown"}
    assert not document["ok"] and hook.events == [("behind", "s.dead", False)]
    assert Alerts(limits).check()["receivers"] == []  # said before
    assert hook.beats == []


def test_the_guard_sends_alerts_unasked(config: Config, hook: Receiving) -> None:
    old = stamp(datetime.now(UTC) - timedelta(hours=2))
    put_status(Store(config.store), TableStatus("s.dead", "r", old, exit_code=0, caught_up_at=old))
    with guarding(config, every=0.01):
        end = time.monotonic() + 30
        while not hook.documents and time.monotonic() < end:
            time.sleep(0.01)
    assert hook.events == [("behind", "s.dead", False)]
    with guarding(replace(config, alerts=None)):
        pass


def test_a_verify_with_differences_is_reported_and_so_is_the_next_good_one(
    config: Config, hook: Receiving
) -> None:
    store = Store(config.store)
    put_status(store, TableStatus("s.t", "r", stamp(), exit_code=0, caught_up_at=stamp()))
    for ok in (False, False, True):
        write_verify(store, LastVerify("s.t", "r", stamp(), 1.0, ok, missing=0 if ok else 3))
        with Alerts(config) as alerts:
            alerts.after_verify(["s.t"])
    assert hook.events == [("differs", "s.t", False), ("recovered", "s.t", False)]


class Mails(MailHandler):
    """Keeps what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.got: list[Any] = []

    def handle_message(self, message: Any) -> None:
        self.got.append(message)


def test_mail_goes_through_apprise(config: Config) -> None:
    mails = Mails()
    (port,) = free_ports(1)
    server = Controller(mails, hostname="127.0.0.1", port=port)
    server.start()
    try:
        to = f"mailto://127.0.0.1:{port}?from=floodmark@example.org&to=ops@example.org&mode=insecure"
        ended(
            replace(config, alerts=AlertSpec(to=(to,))), DataError("damaged"), patience=60.0
        )  # Apprise takes a while to import
    finally:
        server.stop()
    (mail,) = mails.got
    assert mail["Subject"] == "Floodmark: s.t0 has failed: damaged" and "ops@example.org" in mail["To"]


def test_an_address_that_apprise_does_not_know_is_reported(config: Config) -> None:
    found = Alerts(replace(config, alerts=AlertSpec(to=(f"nothing://{SECRET}",)))).test()
    assert found["receivers"] == [
        {"receiver": "to[0]", "ok": False, "error": "Apprise does not support this kind of address"}
    ]


def test_a_refused_run_of_a_copied_configuration_says_and_remembers_nothing_about_the_owner_s_tables(
    config: Config, hook: Receiving
) -> None:
    store = Store(config.store)
    establish(store, config.warehouse.label, stamp())
    ended(config, DataError("the source was replaced"))
    remembered, before = store.get(STATE), len(hook.events)
    copied = replace(config, warehouse=WarehouseSpec("duckdb", "main", path=Path("/elsewhere.duckdb")))
    refusal = ConfigError("the store belongs to another pipeline")
    with Alerts(copied) as alerts:
        alerts.after(SyncReport("r2", 1.0, (TableReport("s.t0", error=refusal), TableReport("s.t1"))))
    assert Alerts(copied).check()["receivers"] == []
    assert store.get(STATE) == remembered and len(hook.events) == before


def test_a_damaged_pipeline_json_silences_no_alert(config: Config, hook: Receiving) -> None:
    Store(config.store).put("pipeline.json", b"{")
    ended(config, DataError("the source was replaced"))
    assert [kind for kind, *_ in hook.events] == ["failed"]
