"""The laboratory inside the product's process: numbers its durable steps, and strikes at one of them.

Nothing of this is in the product. `arm` puts a thin layer around the product's own lowest calls (the object
store's client, the folder's link and rename, the warehouse's statements); each asks `PLAN` what to do, so a Spark
worker that serves many experiments can be given another plan with every task.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from labinject.plan import PLAN, Plan

__all__ = ["PLAN", "Plan", "arm", "arm_when_imported"]


def arm(path: str) -> None:
    """Take the plan in a file, as the process that is to be struck, and put the layers around the product."""
    with open(path) as file:
        PLAN.take({**json.load(file), "pid": os.getpid()})
    if PLAN.raw.get("tmp"):
        os.environ["TMPDIR"], tempfile.tempdir = PLAN.raw["tmp"], None
    _layers()


def armed_for_a_task(plan: dict[str, Any]) -> None:
    """The same in a Spark worker, for one task."""
    PLAN.take(plan)
    _layers()


def _layers() -> None:
    from labinject import broken, hurry, spark, store, warehouse

    for layer in (store, warehouse, spark, hurry, broken):
        layer.install()


class _Once(importlib.abc.MetaPathFinder):
    """Arms as soon as the command's own module is asked for, so that starting Python stays as fast as it is."""

    def __init__(self, path: str) -> None:
        self._path = path

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name == "floodmark.cli":
            sys.meta_path.remove(self)
            arm(self._path)
        return None


def arm_when_imported(path: str) -> None:
    """For a Python of its own: nothing happens unless it runs the product's command line."""
    sys.meta_path.insert(0, _Once(path))
