"""Files whose order shows that no key is in them twice."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark.load.files import ascending


def written(folder: Path, *files: Sequence[object], type_: pa.DataType | None = None) -> list[Path]:
    paths = []
    for number, values in enumerate(files):
        paths.append(folder / f"{number}.parquet")
        table = pa.table(
            {"k": pa.array(values, type_ or pa.int64()), "k.x": pa.nulls(len(values), pa.int32())}
        )
        pq.write_table(table, paths[-1], row_group_size=2)
    return paths


@pytest.mark.parametrize(
    "files",
    [
        [[1, 2, 3, 9]],
        [[-5, 0, 7], [8]],
        [[10, 11, 12], [1, 2], [4, 9]],
        [[], [3]],
        [[]],
        [],
    ],
)
def test_keys_that_only_grow_in_files_that_do_not_overlap_all_differ(
    tmp_path: Path, files: list[list[int]]
) -> None:
    ranges = [(values[0], values[-1]) for values in files if values]
    assert ascending(written(tmp_path, *files), "k") == sorted(ranges)


@pytest.mark.parametrize(
    "files",
    [
        [[1, 2, 2]],
        [[1, 3, 2]],
        [[1, 2], [2, 3]],
        [[1, 9], [4, 5]],
        [[4, 5], [1, 9]],
        [[1, None, 2]],
        [[None]],
    ],
)
def test_a_key_that_occurs_or_may_occur_twice_is_not_proven_distinct(
    tmp_path: Path, files: list[list[int | None]]
) -> None:
    assert ascending(written(tmp_path, *files), "k") is None


def test_keys_of_20_digits_are_compared_by_every_digit(tmp_path: Path) -> None:
    big = [Decimal(2**64 - 2), Decimal(2**64 - 1)]
    assert ascending(written(tmp_path, big, type_=pa.decimal128(20, 0)), "k") == [(big[0], big[1])]
    assert ascending(written(tmp_path, big[::-1], type_=pa.decimal128(20, 0)), "k") is None
