"""Packages that a library imports if they are installed, at a cost, though we have no use for them."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Hidden:
    """Hides a package from the imports of one thread."""

    def __init__(self, name: str) -> None:
        self._name, self._thread = name, threading.get_ident()

    def find_spec(self, name: str, *_: object) -> None:
        if name == self._name and threading.get_ident() == self._thread:
            raise ModuleNotFoundError(f"{name} is not needed here", name=name)


@contextmanager
def hidden(name: str) -> Iterator[None]:
    """Makes a package look as if it were not installed, to this thread; no difference once it is imported."""
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
