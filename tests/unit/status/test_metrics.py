"""Metrics: the contract's names, values from the store, and the verdict of Prometheus' own tool."""

from __future__ import annotations

import json
import re
import shutil
import stat
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import NoReturn

import pytest
from prometheus_client.parser import text_string_to_metric_families

from floodmark.config.load import StoreSpec
from floodmark.log.copies import Publisher
from floodmark.log.status import Day, LastVerify, TableOutcome, TableStatus, status_path, write_verify
from floodmark.model.errors import ConfigError, TransientError
from floodmark.model.run import Lag
from floodmark.status.facts import AllFacts, StoreFacts
from floodmark.status.metrics import Listener, Metrics, Pulse, exposition, families, write_file
from tests.support.samples import RUN, TABLE
from tests.support.watermark_copies import Counting, put_status, synced

DOCS = Path(__file__).resolve().parents[3] / "docs" / "monitoring"
NAMES = {
    "floodmark_lag_seconds", "floodmark_lag_ids", "floodmark_last_success_timestamp_seconds",
    "floodmark_last_check_timestamp_seconds", "floodmark_watermark_timestamp_seconds",
    "floodmark_rows_extracted_total", "floodmark_rows_loaded_total", "floodmark_rows_deleted_total",
    "floodmark_bytes_written_total", "floodmark_pending_files", "floodmark_pending_rows",
    "floodmark_run_duration_seconds", "floodmark_runs_total", "floodmark_verify_differences",
    "floodmark_verify_timestamp_seconds", "floodmark_recoveries", "floodmark_recovery_seconds",
    "floodmark_recovery_timestamp_seconds", "floodmark_table_state", "floodmark_copies_bytes", "floodmark_build_info",
}  # fmt: skip
AT = "2026-11-17T10:00:00.000000Z"
NAME = TABLE.name


@pytest.fixture
def store(tmp_path: Path) -> Counting:
    """A store with one table and everything that can be known about it."""
    store = Counting(StoreSpec(url=str(tmp_path / "lake")))
    Publisher(store, NAME, RUN).publish(synced().state, ())
    put_status(
        store,
        TableStatus(
            NAME, RUN, AT, exit_code=0, at=AT, success_at=AT, caught_up_at=AT, lag=Lag(seconds=1.5, ids=7),
            work=TableOutcome(NAME, RUN, AT, 0, 4.0, {"extract": 3.0, "load": 1.0}),
            total=Day(runs=3, rows_deleted=2, exit_codes={"0": 2, "4": 1}),
        ),
    )  # fmt: skip
    write_verify(store, LastVerify(NAME, RUN, AT, 1.0, False, missing=3))
    record = {
        "table_name": NAME, "at": AT, "success": True, "source": "daily", "copy": None, "commit": 1,
        "seconds": 0.25, "wrong": [], "done": [],
    }  # fmt: skip
    failed = {**record, "at": "2026-11-17T10:00:01.000000Z", "success": False, "source": "", "seconds": 2.0}
    for n, one in enumerate((record, failed)):
        store.put(f"watermark/recoveries/{NAME}/20261117_10000{n}_ab.json", json.dumps(one).encode())
    return store


def samples(text: bytes) -> dict[str, float]:
    """The samples as `name{label="value"}`."""
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for one in family.samples:
            labels = ",".join(f"{k}={v}" for k, v in sorted(one.labels.items()))
            found[f"{one.name}{{{labels}}}"] = one.value
    return found


def promtool(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    unpacked = Path(__file__).resolve().parents[3] / ".venv/prometheus/usr/bin/promtool"
    tool = shutil.which("promtool") or (str(unpacked) if unpacked.exists() else None)
    if tool is None:
        pytest.skip("promtool is not installed: make setup unpacks it from Debian's package prometheus")
    return subprocess.run([tool, *arguments], input=given, capture_output=True, check=False, timeout=60)


def test_every_metric_of_the_contract_is_there_also_of_an_empty_store() -> None:
    described = re.findall(r"^# HELP (\S+) ", exposition(AllFacts()).decode(), re.MULTILINE)
    assert set(described) == NAMES


def test_the_values_are_those_of_the_store(store: Counting) -> None:
    found = samples(exposition(StoreFacts(store).look()))
    table = f"{{table={NAME}}}"
    assert found[f"floodmark_lag_seconds{table}"] == 1.5 and found[f"floodmark_lag_ids{table}"] == 7
    moment = 1794909600.0
    assert found[f"floodmark_last_success_timestamp_seconds{table}"] == moment
    assert found[f"floodmark_last_check_timestamp_seconds{table}"] == moment
    assert found[f"floodmark_verify_timestamp_seconds{table}"] == moment
    assert found[f"floodmark_rows_extracted_total{table}"] == 100
    assert found[f"floodmark_rows_loaded_total{table}"] == 0
    assert found[f"floodmark_rows_deleted_total{table}"] == 2
    assert found[f"floodmark_pending_rows{table}"] == 100 and found[f"floodmark_pending_files{table}"] == 2
    assert found[f"floodmark_bytes_written_total{table}"] > 0
    assert found[f"floodmark_verify_differences{table}"] == 3
    assert found[f"floodmark_runs_total{{exit_code=0,table={NAME}}}"] == 2
    assert found[f"floodmark_runs_total{{exit_code=4,table={NAME}}}"] == 1
    assert found[f"floodmark_run_duration_seconds{{stage=load,table={NAME}}}"] == 1
    assert found[f"floodmark_run_duration_seconds{{stage=total,table={NAME}}}"] == 4
    assert found[f"floodmark_table_state{{state=behind,table={NAME}}}"] == 1
    assert found["floodmark_recoveries{source=daily,success=yes}"] == 1
    assert found["floodmark_recoveries{source=nothing,success=no}"] == 1
    assert found["floodmark_recovery_timestamp_seconds{source=daily}"] == moment
    took = [found[f"floodmark_recovery_seconds{{of={of}}}"] for of in ("average", "latest", "worst")]
    assert took == [1.125, 2.0, 2.0] and found["floodmark_copies_bytes{}"] > 0


def test_promtool_accepts_the_text(store: Counting) -> None:
    hostile = 'we"ird\\ta\nble.naïve\u202e{}'
    put_status(store, TableStatus(hostile, RUN, AT, exit_code=0, total=Day(exit_codes={"0": 1})))
    text = exposition(StoreFacts(store).look())
    done = promtool("check", "metrics", given=text)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    parsed = {s.labels.get("table") for f in text_string_to_metric_families(text.decode()) for s in f.samples}
    assert hostile in parsed


def test_a_second_look_fetches_only_what_has_changed(store: Counting) -> None:
    facts = StoreFacts(store)
    first = facts.look()
    store.reads.clear()
    store.lists.clear()
    assert facts.look() == first and store.reads == [] and len(store.lists) == 6
    write_verify(store, LastVerify(NAME, RUN, AT, 1.0, True))
    store.reads.clear()
    status = facts.look().tables[0].status
    assert store.reads == [status_path(NAME)] and status is not None and status.verify is not None
    assert status.verify.ok
    store.delete([status_path(NAME)])
    assert facts.look().tables[0].status is None


def test_damaged_objects_cost_their_own_values_only(store: Counting) -> None:
    for path in (status_path(NAME), "status/tables/x.y.json", "watermark/tables/other.json"):
        store.put(path, b'{"table_name": "x", "lag": NaN')
    put_status(store, TableStatus("s.odd", RUN, "not a time", success_at="0000-00-00", lag=Lag(seconds=0.0)))
    found = samples(exposition(StoreFacts(store).look()))
    assert f"floodmark_lag_seconds{{table={NAME}}}" not in found
    assert found[f"floodmark_rows_extracted_total{{table={NAME}}}"] == 100
    assert "floodmark_last_success_timestamp_seconds{table=s.odd}" not in found


def test_the_file_for_node_exporter_appears_whole_and_can_be_read_by_others(tmp_path: Path) -> None:
    file = tmp_path / "floodmark.prom"
    for text in (b"a 1\n", b"a 2\n"):
        write_file(file, text)
        assert file.read_bytes() == text
    assert stat.S_IMODE(file.stat().st_mode) == 0o644 and list(tmp_path.iterdir()) == [file]
    with pytest.raises(ConfigError, match="can't be written"):
        write_file(tmp_path / "missing" / "f.prom", b"")


def test_metrics_and_health_are_answered_over_http(store: Counting, tmp_path: Path) -> None:
    pulse = Pulse(30.0)
    with Listener(
        ("127.0.0.1", 0),
        {"/metrics": Metrics(StoreFacts(store)).answer, "/healthz": pulse.health},
    ) as listener:

        def ask(path: str) -> tuple[str | None, bytes]:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{listener.server_port}{path}", timeout=30
            ) as answer:
                return answer.headers["Content-Type"], answer.read()

        kind, text = ask("/metrics")
        assert kind is not None and kind.startswith("text/plain; version=0.0.4")
        assert f'floodmark_lag_seconds{{table="{NAME}"}} 1.5' in text.decode()
        assert json.loads(ask("/healthz")[1])["last_cycle"] is None
        pulse.beat(4)
        assert json.loads(ask("/healthz")[1])["last_cycle"]["exit_code"] == 4
        with pytest.raises(urllib.error.HTTPError) as missing:
            ask("/secret")
        assert missing.value.code == 404
        with pytest.raises(ConfigError, match="can't listen"):
            Listener(("127.0.0.1", listener.server_port), {})


def test_a_store_that_can_not_be_read_is_503_and_no_old_value(
    store: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = Metrics(StoreFacts(store))
    assert metrics.answer().status == 200

    def away(prefix: str, start_after: str | None = None) -> NoReturn:
        raise TransientError("S3 does not answer")

    monkeypatch.setattr(store, "list", away)
    monkeypatch.setattr("floodmark.status.metrics.FRESH", -1.0)
    assert (metrics.answer().status, metrics.answer().body) == (503, b"S3 does not answer\n")


def _named(text: str) -> set[str]:
    return set(re.findall(r"floodmark_[a-z_]+", text))


def test_the_dashboard_and_the_rules_name_only_metrics_that_exist() -> None:
    made = {
        m.name + ("_total" if m.type == "counter" else "_info" if m.type == "info" else "")
        for m in families(AllFacts())
    }
    assert made == NAMES
    board = json.loads((DOCS / "grafana.json").read_text())
    asked = {name for p in board["panels"] for t in p["targets"] for name in _named(t["expr"])}
    assert asked <= NAMES and NAMES - asked == set()  # and the dashboard shows all of them
    assert len({p["id"] for p in board["panels"]}) == len(board["panels"])
    assert _named((DOCS / "alerts.rules.yml").read_text()) <= NAMES


def test_promtool_accepts_the_rules() -> None:
    done = promtool("check", "rules", str(DOCS / "alerts.rules.yml"))
    assert done.returncode == 0 and b"7 rules found" in done.stdout, done.stdout + done.stderr


def test_the_rule_distinguishes_an_idle_source_from_a_stuck_pipeline(tmp_path: Path) -> None:
    cases = tmp_path / "cases.yml"
    cases.write_text(f"""
rule_files: [{DOCS / "alerts.rules.yml"}]
evaluation_interval: 1m
tests:
  - interval: 1m
    input_series:
      - {{series: 'floodmark_lag_seconds{{table="idle"}}', values: '0x60'}}
      - {{series: 'floodmark_last_success_timestamp_seconds{{table="idle"}}', values: '0+60x60'}}
      - {{series: 'floodmark_lag_seconds{{table="stuck"}}', values: '0x60'}}
      - {{series: 'floodmark_last_success_timestamp_seconds{{table="stuck"}}', values: '0x60'}}
      - {{series: 'floodmark_build_info{{version="1"}}', values: '1x60'}}
    alert_rule_test:
      - eval_time: 30m
        alertname: FloodmarkBehind
        exp_alerts:
          - exp_labels: {{severity: warning, table: stuck}}
            exp_annotations:
              summary: "stuck is 30m 0s behind its source"
              description: "floodmark watermark get -t stuck says how far it got, and why it stopped."
""")
    done = promtool("test", "rules", str(cases))
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
