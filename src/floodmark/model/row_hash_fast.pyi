from collections.abc import Sequence
from typing import Any

BIT: int
INTEGER: int
FLOAT: int
DECIMAL: int
TEXT: int

def hashes(rows: int, columns: Sequence[tuple[Any, ...]], key: bytes) -> bytearray: ...
def add(hashed: bytearray | memoryview, parts: Any, sums: bytearray) -> None: ...
