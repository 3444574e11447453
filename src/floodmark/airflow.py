"""`floodmark.airflow.FloodmarkOperator`: the name for users of what integrations/airflow.py holds."""

from __future__ import annotations

from floodmark.integrations.airflow import FloodmarkOperator, asset

__all__ = ["FloodmarkOperator", "asset"]
