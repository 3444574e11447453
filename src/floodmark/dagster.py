"""`floodmark.dagster.assets(config)`: the public name of what is in integrations/dagster.py."""

from __future__ import annotations

from floodmark.integrations.dagster import assets

__all__ = ["assets"]
