"""Floodmark in Airflow: one task per table, retried where a retry helps and failed at once where it does not."""

from __future__ import annotations

import json
import subprocess
from datetime import datetime, timedelta

from airflow.exceptions import AirflowException, AirflowFailException, AirflowSkipException
from airflow.sdk import dag, task

FLOODMARK = "/opt/floodmark/.venv/bin/floodmark"
CONFIG = "/etc/floodmark/floodmark.yaml"
TABLES = ["settlement.orders", "settlement.settlement_normal_delivery_detail"]

ANOTHER_RUN = 3  # another run holds the table and does the work
# A service failed, an answer was lost, the run was interrupted: a retry is always safe.
AGAIN = (4, 5, 130, 143)
STOP_SECONDS = 60  # from SIGTERM to SIGKILL; a sync usually needs a few


def run_floodmark(*arguments: str) -> dict[str, object]:
    """The document that a command prints; raises what Airflow should do about its exit code."""
    command = [FLOODMARK, "--config", CONFIG, "--json", "--quiet", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, errors = process.communicate()
    except BaseException:  # execution_timeout, or somebody stopped the task
        # subprocess.run would send SIGKILL here. SIGTERM lets the run give its tables back.
        process.terminate()
        try:
            process.communicate(timeout=STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
        raise
    print(errors, end="")
    if process.returncode == 0:
        return dict(json.loads(out))
    why = errors.strip() or f"exit code {process.returncode}"
    if process.returncode == ANOTHER_RUN:
        raise AirflowSkipException(why)
    if process.returncode in AGAIN:
        raise AirflowException(why)
    raise AirflowFailException(why)  # configuration, data, differences: somebody has to look


RETRIES = {"retries": 3, "retry_delay": timedelta(minutes=1), "retry_exponential_backoff": True}


@dag(
    schedule=timedelta(minutes=15),
    start_date=datetime(2025, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args=RETRIES,
)
def floodmark_sync() -> None:
    """Every quarter of an hour: bring each table up to date."""

    @task(execution_timeout=timedelta(hours=2))
    def sync(table: str) -> dict[str, object]:
        document = run_floodmark("sync", "-t", table)
        done = document["tables"][0]
        # Small enough for XCom; the whole document is in the store as runs/<run>.json.
        return {key: done[key] for key in ("table", "rows_extracted", "rows_loaded", "lag_after")}

    sync.expand(table=TABLES)


@dag(
    schedule="30 3 * * *",
    start_date=datetime(2025, 1, 1),
    catchup=False,
    max_active_runs=1,
    default_args=RETRIES,
)
def floodmark_verify() -> None:
    """Once a night: compare every table with the source."""

    @task
    def verify(table: str) -> None:
        run_floodmark("verify", "-t", table)

    verify.expand(table=TABLES)


floodmark_sync()
floodmark_verify()
