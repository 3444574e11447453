"""Columns whose values hardly ever repeat."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark.load import files
from floodmark.load.files import hardly_repeats


@pytest.fixture(autouse=True)
def small_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "SAMPLE_ROWS", 100)


def written(folder: Path, *files: Sequence[str | None], dictionary: bool = False) -> list[Path]:
    paths = []
    for number, values in enumerate(files):
        paths.append(folder / f"{number}.parquet")
        table = pa.table({"v": pa.array(values, pa.string()), "v.x": pa.nulls(len(values), pa.string())})
        pq.write_table(table, paths[-1], row_group_size=40, use_dictionary=dictionary)
    return paths


def different(count: int, begin: int = 0) -> list[str]:
    return [f"SO{number}" for number in range(begin, begin + count)]


def test_values_that_differ_hardly_repeat_in_one_file_or_in_several(tmp_path: Path) -> None:
    assert hardly_repeats(written(tmp_path, different(100)), "v")
    assert hardly_repeats(written(tmp_path, different(50), [], different(70, 50)), "v")


def test_values_that_occur_several_times_repeat(tmp_path: Path) -> None:
    assert not hardly_repeats(written(tmp_path, different(50) * 2), "v")
    assert not hardly_repeats(written(tmp_path, different(60), different(60)), "v")
    assert not hardly_repeats(written(tmp_path, different(200)), "v.x")


def test_a_column_that_is_mostly_empty_repeats(tmp_path: Path) -> None:
    assert not hardly_repeats(written(tmp_path, [*different(70), *[None] * 30]), "v")


def test_a_column_that_was_written_with_a_dictionary_repeats(tmp_path: Path) -> None:
    assert not hardly_repeats(written(tmp_path, different(100), dictionary=True), "v")


def test_few_values_prove_nothing_unless_they_are_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = written(tmp_path, [text + "x" * 1000 for text in different(99)])
    assert not hardly_repeats(paths, "v")
    assert not hardly_repeats([], "v")
    monkeypatch.setattr(files, "SAMPLE_BYTES", 50_000)
    assert hardly_repeats(paths, "v")


def test_long_values_are_not_read_to_be_compared(tmp_path: Path) -> None:
    assert hardly_repeats(written(tmp_path, [text + "x" * 5000 for text in different(2)]), "v")
    assert not hardly_repeats(written(tmp_path, []), "v")
