"""`floodmark.dagster.assets(config)`: the name for users of what integrations/dagster.py holds."""

from __future__ import annotations

from floodmark.integrations.dagster import assets

__all__ = ["assets"]
