"""What data files look like and when they are uploaded, without a source."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark.config.load import SourceSpec, StoreSpec
from floodmark.extract import files as extract
from floodmark.extract import task
from floodmark.extract.files import DataFiles
from floodmark.extract.task import SliceJob
from floodmark.model.commit import DataFile
from floodmark.model.errors import FloodmarkError, TransientError
from floodmark.model.table import Column
from floodmark.model.types import READ_FIELD, file_schema
from floodmark.model.window import Slice
from floodmark.source import connections
from floodmark.spark.job import Relay, attempt
from floodmark.store.store import Store
from tests.support.described import changed, described

TABLE = described(
    "shop",
    "orders €",
    (
        Column("id", "bigint(20)", "bigint", nullable=False),
        Column("small", "smallint(6)", "smallint"),
        Column("price", "decimal(18,4)", "decimal", precision=18, scale=4),
        Column("name", "varchar(20)", "varchar", characters=20, charset="utf8mb4", collation="utf8mb4_bin"),
        Column("raw", "varbinary(9)", "varbinary", octets=9),
        Column("day", "date", "date"),
        Column("at", "datetime(6)", "datetime", fraction=6),
    ),
    ("id",),
    "at",
    "upsert",
    "orders",
)


def rows(count: int, start: int = 0) -> pa.RecordBatch:
    numbers = range(start, start + count)
    columns: dict[str, list[Any]] = {
        "id": list(numbers),
        "small": [n % 7 for n in numbers],
        "price": [f"{n}.5000" for n in numbers],
        "name": [None if n % 5 == 0 else f"name {n}" for n in numbers],
        "raw": [b"\x00\xff"] * count,
        "day": ["2025-01-01"] * count,
        "at": [f"2025-01-01 00:{n // 60 % 60:02}:{n % 60:02}" for n in numbers],
    }
    arrays = [
        pa.array(columns[f.name]).cast(pa.timestamp("us") if f.name == "at" else f.type)
        for f in file_schema(TABLE)
    ]
    arrays[-1] = arrays[-1].view(pa.timestamp("us", "UTC"))
    return pa.RecordBatch.from_arrays(arrays, schema=file_schema(TABLE))


@pytest.fixture
def job(tmp_path: Path) -> SliceJob:
    source = SourceSpec(host="127.0.0.1", port=1, user="reader", password="s3cret-password")
    store = StoreSpec(url=str(tmp_path / "lake"))
    return SliceJob(
        source, store, TABLE, Slice("window", 3), "20250819_153000_ab12", 41, log="abc", window="w1"
    )


def put(job: SliceJob, *batches: pa.RecordBatch, changed: int = 0) -> list[DataFile]:
    files = DataFiles(job, Store(job.store))
    for batch in batches:
        files.add(batch, changed)
    files.close()
    return files.done


def content(job: SliceJob, file: DataFile) -> bytes:
    data = Store(job.store).get(file.path)
    assert data is not None
    return data


def test_no_rows_make_no_file(job: SliceJob) -> None:
    assert put(job) == []
    assert put(job, rows(0)) == []
    assert list(Store(job.store).list("data/")) == []


def test_a_file_is_described_as_it_is(job: SliceJob) -> None:
    [file] = put(job, rows(100), rows(50, 100), changed=2)
    data = content(job, file)
    assert file.path.startswith("data/shop.orders%20%E2%82%AC/20250819_153000_ab12/41-window3-")
    assert (file.rows, file.bytes, file.slice, file.truncated) == (150, len(data), 3, 2)
    assert file.checksum == hashlib.sha256(data).hexdigest()
    assert file.first == ("2025-01-01 00:00:00.000000", 0)
    assert file.last == ("2025-01-01 00:02:29.000000", 149)
    written = pq.read_table(io.BytesIO(data))
    assert written.column_names[-1] == READ_FIELD
    assert written.drop_columns([READ_FIELD]).equals(pa.Table.from_batches([rows(100), rows(50, 100)]))


def test_rows_that_merge_carry_their_read_time(job: SliceJob) -> None:
    def told(**changed: Any) -> list[Any] | None:
        [file] = put(replace(job, **changed), rows(2))
        table = pq.read_table(io.BytesIO(content(job, file)))
        return list(table.column(READ_FIELD).to_pylist()) if READ_FIELD in table.column_names else None

    earlier, again, window = (
        replace(job.slice, kind=kind) for kind in ("window", "overlap", "window")
    )  # of claims 40, 41 and 41
    order = [told(claim=40, slice=earlier), told(slice=again), told(slice=window)]
    assert order == sorted(order, key=lambda reads: reads or []) and len({str(reads) for reads in order}) == 3
    assert told(slice=replace(job.slice, kind="snapshot")) is None
    assert told(table=changed(TABLE, key=())) is None


def test_the_footer_says_where_the_file_belongs(job: SliceJob) -> None:
    [file] = put(job, rows(2))
    metadata = pq.read_metadata(io.BytesIO(content(job, file))).metadata or {}
    said = {k.decode(): v.decode() for k, v in metadata.items()}
    assert said.pop("floodmark.attempt") in file.path
    assert said == {
        "floodmark.table": "shop.orders €",
        "floodmark.log": "abc",
        "floodmark.run": "20250819_153000_ab12",
        "floodmark.claim": "41",
        "floodmark.window": "w1",
        "floodmark.slice": "window/3",
        "floodmark.schema": TABLE.fingerprint,
        "floodmark.first": json.dumps(file.first),
        "floodmark.last": json.dumps(file.last),
    }


def test_files_are_cut_at_their_number_of_rows(job: SliceJob) -> None:
    files = put(replace(job, max_file_rows=40), rows(100), rows(5, 100))
    assert [f.rows for f in files] == [40, 40, 25]
    assert len({f.path for f in files}) == 3
    tables = [pq.read_table(io.BytesIO(content(job, f))) for f in files]
    assert pa.concat_tables(tables).column("id").to_pylist() == list(range(105))
    assert [f.last[1] if f.last else None for f in files] == [39, 79, 104]


def test_files_are_cut_at_their_size(job: SliceJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extract, "GROUP_ROWS", 1000)
    files = put(replace(job, max_file_bytes=20_000), *(rows(500, n * 500) for n in range(40)))
    assert sum(f.rows for f in files) == 20_000
    assert len(files) > 3
    assert max(f.bytes for f in files) < 40_000


def test_row_groups_follow_their_limit(job: SliceJob, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extract, "GROUP_ROWS", 100)
    [file] = put(job, *(rows(50, n * 50) for n in range(5)))
    metadata = pq.read_metadata(io.BytesIO(content(job, file)))
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [100, 100, 50]


def test_files_keep_to_the_dialect_that_copy_accepts(job: SliceJob) -> None:
    [file] = put(job, rows(3000))
    read = pq.ParquetFile(io.BytesIO(content(job, file)))
    columns = {c.name: c for c in (read.schema.column(i) for i in range(len(TABLE.columns)))}
    shape = {name: (c.physical_type, c.converted_type) for name, c in columns.items()}
    assert shape == {
        "id": ("INT64", "NONE"),
        "small": ("INT32", "INT_16"),
        "price": ("FIXED_LEN_BYTE_ARRAY", "DECIMAL"),
        "name": ("BYTE_ARRAY", "UTF8"),
        "raw": ("BYTE_ARRAY", "NONE"),
        "day": ("INT32", "DATE"),
        "at": ("INT64", "TIMESTAMP_MICROS"),
    }
    assert columns["price"].length == 8
    assert b"ARROW:schema" not in (read.metadata.metadata or {})
    group = read.metadata.row_group(0)
    chunks = [group.column(i) for i in range(group.num_columns)]
    assert {e for c in chunks for e in c.encodings} <= {"PLAIN", "RLE", "RLE_DICTIONARY"}
    assert {c.compression for c in chunks} == {"ZSTD"}
    dictionaries = {c.path_in_schema for c in chunks if c.has_dictionary_page}
    assert "small" in dictionaries and "id" not in dictionaries
    measured = {c.path_in_schema for c in chunks if c.statistics is not None}
    assert measured == {"id", "small", "price", "day", "at", READ_FIELD}
    assert chunks[-1].total_compressed_size < 200  # one value, however many rows


def test_a_task_returns_its_error_with_the_table_and_without_secrets(job: SliceJob) -> None:
    result = attempt(replace(job, read_timeout=2))
    assert isinstance(result, TransientError)
    assert result.table == TABLE.name
    again = pickle.loads(pickle.dumps(result))
    assert (type(again), again.message) == (TransientError, result.message)


def test_an_unexpected_error_comes_back_as_a_bug(job: SliceJob, capfd: pytest.CaptureFixture[str]) -> None:
    result = attempt(replace(job, store=None))  # type: ignore[arg-type]
    assert isinstance(result, FloodmarkError)
    assert (result.code, result.kind, result.table) == (1, "bug", TABLE.name)
    assert "AttributeError" in result.message
    assert "Traceback" in capfd.readouterr().err  # which is Spark's log


def test_jobs_travel_whole_and_show_no_secret(job: SliceJob) -> None:
    assert pickle.loads(pickle.dumps(job)) == job
    assert "s3cret" not in repr(job)


class Opened:
    """Stands for a session of a task."""

    def __init__(self, spec: SourceSpec, read_timeout: int, purpose: str) -> None:
        self.spec, self.read_timeout, self.purpose = spec, read_timeout, purpose
        self.opened, self.at_rest, self.closed = time.monotonic(), True, False

    def use_for(self, purpose: str) -> Opened:
        self.purpose = purpose
        return self

    def close(self) -> None:
        self.closed = True


def test_a_slice_is_read_in_the_session_of_the_last_one_only_if_that_is_young_and_alike(
    job: SliceJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task, "Session", Opened)
    relay = Relay()

    def session(job: SliceJob) -> Opened:
        with task._session(job, relay) as found:
            return cast(Opened, found)

    first, again = session(job), session(job)
    assert again is first
    patient = session(replace(job, read_timeout=600))
    other = session(replace(job, read_timeout=600, source=replace(job.source, user="other")))
    other.at_rest = False  # its server has hung up
    young = session(replace(job, read_timeout=600, source=other.spec))
    young.opened -= connections.KEPT
    last = session(replace(job, read_timeout=600, source=other.spec))
    opened = (first, patient, other, young, last)
    assert len(set(opened)) == 5 and [one.closed for one in opened] == [True] * 4 + [False]
