from collections.abc import Sequence
from typing import Any

def gather(
    rows: memoryview | bytes,
    before: bytes | None,
    after: bytes | None,
    old: bool,
    new: bool,
    partial: int,
    cells: Sequence[tuple[bytearray, bytearray | None]],
) -> tuple[int, int, int] | None: ...
def scan(
    view: memoryview,
    at: int,
    end: int,
    number: int,
    place: int,
    checksum: bool,
    gaps: bool,
    skip: set[int],
    make: Any,
    type: type[Any],
    found: list[Any],
) -> tuple[int, int, int, int, int]: ...
