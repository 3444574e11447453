from collections.abc import Sequence
from typing import Any

import numpy as np

_Numbers = np.ndarray[Any, np.dtype[Any]]

FIXED: int
DATE: int
TIME: int
DECIMAL: int
TEXT: int

def follow(data: bytearray, heads: _Numbers, count: int, end: int) -> int: ...
def columns(
    data: _Numbers, heads: _Numbers, kinds: Sequence[tuple[int, int, int]]
) -> list[tuple[bytearray | None, bytearray, bytearray | None]] | None: ...
