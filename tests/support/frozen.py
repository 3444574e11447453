"""A clock that stands still for all of Floodmark, for tests that compare whole texts."""

from __future__ import annotations

import sys
from datetime import datetime, tzinfo
from typing import Any

import pytest


class _Any(type):
    """Takes every datetime for an instance: those of libraries are not of the class that stands still."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, datetime)


def freeze(monkeypatch: pytest.MonkeyPatch, now: datetime) -> None:
    """Lets every module of Floodmark that is loaded see this moment."""

    class Frozen(datetime, metaclass=_Any):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return now if tz is None else now.astimezone(tz)

    for name, module in list(sys.modules.items()):
        if name.startswith("floodmark.") and getattr(module, "datetime", None) is datetime:
            monkeypatch.setattr(module, "datetime", Frozen)
