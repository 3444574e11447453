"""Floodmark in Airflow 3: a sync every 15 minutes, a DAG that runs after changes, a verify once a night."""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.sdk import dag, task

from floodmark.airflow import FloodmarkOperator, asset

TABLES = ["settlement.orders", "settlement.settlement_normal_delivery_detail"]
FLOODMARK = {
    "config": "/etc/floodmark/floodmark.yaml",
    "program": "/opt/floodmark/.venv/bin/floodmark",
    "retries": 3,
    "retry_delay": timedelta(minutes=1),
    "retry_exponential_backoff": True,
}
DAILY = {"start_date": datetime(2025, 1, 1), "catchup": False, "max_active_runs": 1}


@dag(schedule=timedelta(minutes=15), **DAILY)
def floodmark_sync() -> None:
    """Every 15 minutes: bring each table up to date, one task per table."""
    FloodmarkOperator.partial(task_id="sync", execution_timeout=timedelta(hours=2), **FLOODMARK).expand(
        tables=TABLES
    )


@dag(schedule=[asset("settlement.orders")], **DAILY)
def orders_changed() -> None:
    """Whenever rows of the orders have changed."""

    @task
    def follow(triggering_asset_events: dict[object, list[object]] | None = None) -> None:
        for events in (triggering_asset_events or {}).values():
            for event in events:
                print(event.extra["rows"], "rows up to", event.extra["watermark"])

    follow()


@dag(schedule="30 3 * * *", **DAILY)
def floodmark_verify() -> None:
    """Once a night: compare every table with the source; differences (exit code 7) fail the task."""
    FloodmarkOperator.partial(task_id="verify", command="verify", **FLOODMARK).expand(tables=TABLES)


floodmark_sync()
orders_changed()
floodmark_verify()
