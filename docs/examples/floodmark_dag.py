"""Floodmark in Airflow: one task a table, retried where a retry helps, failed at once where it does not."""

from __future__ import annotations

import json
import subprocess
from datetime import datetime, timedelta

from airflow.exceptions import AirflowException, AirflowFailException, AirflowSkipException
from airflow.sdk import dag, task

FLOODMARK = "/opt/floodmark/.venv/bin/floodmark"
CONFIG = "/etc/floodmark/floodmark.yaml"
TABLES = ["settlement.orders", "settlement.settlement_normal_delivery_detail"]

ANOTHER_RUN = 3  # another run holds the table: this one has nothing to add
AGAIN = (
    4,
    5,
    130,
    143,
)  # a service failed, an answer was lost, the worker was stopped: a retry is always safe


def run_floodmark(*arguments: str) -> dict[str, object]:
    """The document that a command prints; raises what Airflow should do about its exit code."""
    command = [FLOODMARK, "--config", CONFIG, "--json", "--quiet", *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    print(ended.stderr, end="")
    if ended.returncode == 0:
        return dict(json.loads(ended.stdout))
    why = ended.stderr.strip() or f"exit code {ended.returncode}"
    if ended.returncode == ANOTHER_RUN:
        raise AirflowSkipException(why)
    if ended.returncode in AGAIN:
        raise AirflowException(why)
    raise AirflowFailException(why)  # configuration, data, verification: somebody has to look


@dag(
    schedule=timedelta(minutes=15),
    start_date=datetime(2025, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args={"retries": 3, "retry_delay": timedelta(minutes=1), "retry_exponential_backoff": True},
)
def floodmark_sync() -> None:
    """Every quarter of an hour: bring each table up to date, and prove once a night that it is."""

    @task
    def sync(table: str) -> dict[str, object]:
        document = run_floodmark("sync", "-t", table)
        done = document["tables"][0]
        # Small enough for XCom; the whole document is in the store as runs/<run>.json.
        return {key: done[key] for key in ("table", "rows_extracted", "rows_loaded", "lag_after")}

    @task
    def verify(done: dict[str, object]) -> None:
        if datetime.now().hour == 3:
            run_floodmark("verify", "-t", str(done["table"]))

    verify.expand(done=sync.expand(table=TABLES))


floodmark_sync()
