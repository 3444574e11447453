"""The configuration: the file, its values and its specs. `Pipeline` takes a `floodmark.config.Config`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from floodmark.config.load import Config

__all__ = ["Config"]


def __getattr__(name: str) -> Any:
    """Imports `Config` on first use, so that help texts don't wait for it."""
    if name == "Config":
        from floodmark.config.load import Config

        return Config
    raise AttributeError(name)
