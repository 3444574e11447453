"""Builds of the compiled row reader against each other: CPU-seconds per million rows, taking turns, medians.

    .venv/bin/python bench/reader.py FIRST.so SECOND.so [ROUNDS]

Each file is one build of source/rows/decoder_fast.pyx. Both decode the same blocks of 16,384 rows with 18 columns,
as the settlement table of `make bench` has them: follow the packets, then read them by column.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import random
import statistics
import struct
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

NAME = "floodmark.source.rows.decoder_fast"
ROWS, BLOCKS = 16_384, 12


def build(path: str) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(NAME, path)
    spec = importlib.util.spec_from_file_location(NAME, path, loader=loader)
    assert spec
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


def text(value: str) -> bytes:
    data = value.encode()
    return bytes([len(data)]) + data


def moment(dice: random.Random) -> bytes:
    clock = dice.randrange(24), dice.randrange(60), dice.randrange(60)
    return struct.pack(
        "<BHBBBBBI", 11, 2025, dice.randint(1, 12), dice.randint(1, 28), *clock, dice.randrange(10**6)
    )


def row(dice: random.Random) -> bytes:
    numbers = struct.pack("<qqqiii", *(dice.randrange(1 << 30) for _ in range(6)))
    decimals = b"".join(text(f"{dice.randrange(10**9)}.{dice.randrange(100):02}") for _ in range(4))
    texts = b"".join(text("x" * dice.randrange(4, 40)) for _ in range(5))
    cells = numbers + decimals + texts + moment(dice) + moment(dice) + struct.pack("<i", 7)
    body = b"\0" + bytes((18 + 9) // 8) + cells
    return struct.pack("<I", len(body)) + body


def measured(module: Any, data: bytearray, kinds: list[tuple[int, int, int]]) -> float:
    """CPU-seconds per million rows."""
    heads = np.zeros(ROWS + 1, np.int64)
    block = np.frombuffer(data, np.uint8)
    began = time.process_time()
    for _ in range(BLOCKS):
        assert module.follow(data, heads, 1, len(data)) == ROWS + 1
        assert module.columns(block, heads, kinds) is not None
    return (time.process_time() - began) / (ROWS * BLOCKS) * 1e6


def main(first: str, second: str, rounds: int = 41) -> None:
    dice = random.Random(7)
    data = bytearray(b"".join(row(dice) for _ in range(ROWS)))
    builds = {path: build(path) for path in (first, second)}
    one = builds[first]
    kinds = [(one.FIXED, 8, 0)] * 3 + [(one.FIXED, 4, 0)] * 3 + [(one.DECIMAL, 2, 18)] * 4
    kinds += [(one.TEXT, 0, 0)] * 5 + [(one.TIME, 0, 0)] * 2 + [(one.FIXED, 4, 0)]
    seconds: dict[str, list[float]] = {path: [] for path in builds}
    for turn in range(rounds):
        for path in list(builds)[:: 1 if turn % 2 else -1]:
            seconds[path].append(measured(builds[path], data, kinds))
    for path, found in seconds.items():
        print(
            f"{statistics.median(found):.4f} CPU-s per million rows (least {min(found):.4f})  {Path(path).name}"
        )
    print(f"second / first: {statistics.median(seconds[second]) / statistics.median(seconds[first]):.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(int, sys.argv[3:]))
