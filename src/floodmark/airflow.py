"""`floodmark.airflow.FloodmarkOperator`: the public name of what is in integrations/airflow.py."""

from __future__ import annotations

from floodmark.integrations.airflow import FloodmarkOperator, asset

__all__ = ["FloodmarkOperator", "asset"]
