"""The laboratory inside the product's process: numbers its durable steps, and strikes at one of them.

None of this is in the product. `arm` wraps the product's lowest-level calls (the object store's client, the
folder's link and rename, the warehouse's statements). Each wrapper consults `PLAN`, so a Spark worker that serves
many experiments can get a new plan with every task.
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
    """Make this the process to be struck: read the plan from a file and wrap the product."""
    with open(path) as file:
        PLAN.take({**json.load(file), "pid": os.getpid()})
    if PLAN.raw.get("tmp"):
        os.environ["TMPDIR"], tempfile.tempdir = PLAN.raw["tmp"], None
    _layers()


def armed_for_a_task(plan: dict[str, Any]) -> None:
    """The same inside a Spark worker, for one task."""
    PLAN.take(plan)
    _layers()


def _layers() -> None:
    from labinject import broken, hurry, spark, store, warehouse

    for layer in (store, warehouse, spark, hurry, broken):
        layer.install()


class _Once(importlib.abc.MetaPathFinder):
    """Arms when the command's module is first imported, so that Python itself starts as fast as ever."""

    def __init__(self, path: str) -> None:
        self._path = path

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name == "floodmark.cli.main":
            sys.meta_path.remove(self)
            arm(self._path)
        return None


def arm_when_imported(path: str) -> None:
    """For a separate Python process: nothing happens unless it runs the product's command line."""
    sys.meta_path.insert(0, _Once(path))
