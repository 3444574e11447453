"""Floodmark: incremental replication from MySQL through S3 (Parquet) into a warehouse, exactly once.

`floodmark.Pipeline` is the library; it is imported on first use, so that this import stays cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from floodmark.api import Pipeline as Pipeline
    from floodmark.model.errors import FloodmarkError as FloodmarkError

__version__ = "0.1.0"
__all__ = ["FloodmarkError", "Pipeline", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "Pipeline":
        from floodmark.api import Pipeline

        return Pipeline
    if name == "FloodmarkError":
        from floodmark.model.errors import FloodmarkError

        return FloodmarkError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
