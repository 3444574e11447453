"""Processes of our own: what they get of the environment, and what they need not import.

None takes code from the working folder, where somebody else may be able to write. Python looks there first for the
modules of `-m` and `-c`, and for an empty element of PYTHONPATH. Whatever Python our programs start inherits the rule,
such as the workers of a JVM.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

SAFE_PATH = "PYTHONSAFEPATH"


def child_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment and `more`, for a program that we start."""
    found = {**os.environ, **(more or {}), SAFE_PATH: "1"}
    if path := found.get("PYTHONPATH"):
        found["PYTHONPATH"] = os.pathsep.join(filter(None, path.split(os.pathsep)))
    return found


class _Hidden:
    """Hides a package from the imports of one thread."""

    def __init__(self, name: str) -> None:
        self._name, self._thread = name, threading.get_ident()

    def find_spec(self, name: str, *_: object) -> None:
        if name == self._name and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"{name} is not needed here", name=name)


@contextmanager
def hidden(name: str) -> Iterator[None]:
    """Makes a package look as if it were not installed, to this thread; no difference once it is imported.

    For what a library imports if it is installed, at a cost, though we have no use for it.
    """
    finder = _Hidden(name)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def spare_pandas() -> None:
    """Keeps pyarrow from importing pandas for the rest of this process: a third of a second, with the first value.

    Only for a process of our own: pyarrow can't convert to pandas any more.
    """
    import pyarrow as pa

    with hidden("pandas"):
        pa.scalar(0)  # it looks for pandas once
