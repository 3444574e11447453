"""Rows behind keys that the log named: read where they exist; else the key is absent, by MySQL's own equality."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark.config.load import SourceSpec, StoreSpec, TableOptions
from floodmark.extract.keys import key_table, portions, read_keys, write_keys
from floodmark.extract.task import SliceJob, SliceResult
from floodmark.load.files import key_fields
from floodmark.model.changes import DoesNotFit
from floodmark.model.commit import DataFile
from floodmark.model.keys import distinct, keys_of
from floodmark.model.origin import SourceChanged, SourceId, Sources
from floodmark.model.parquet import Footer, data_file
from floodmark.model.table import Table
from floodmark.model.types import KEY_FIELD, fields
from floodmark.model.window import Slice
from floodmark.plan.keys import slices
from floodmark.source.describe import discover
from floodmark.source.identity import source_id
from floodmark.source.read import Batches
from floodmark.source.session import Session
from floodmark.source.sql import selects
from floodmark.store.store import Store
from tests.support.described import changed
from tests.support.every_key import KEYS, MEMBERS, session

pytestmark = pytest.mark.both_servers

AT = "update_at DATETIME NOT NULL DEFAULT CURRENT_TIMESTAMP"
MORE: dict[str, tuple[str, str, Callable[[random.Random], tuple[str, ...]]]] = {
    "k_int": ("a INT", "", lambda r: (str(r.randint(-2000, 2000)),)),
    "k_stamp": ("t TIMESTAMP(6)", "", lambda r: (f"'2024-03-31 02:30:00' + INTERVAL {r.getrandbits(40)} MICROSECOND",)),
    "k_second": ("t TIMESTAMP", "", lambda r: (f"'2024-10-27 00:30:00' + INTERVAL {r.randrange(9000)} SECOND",)),
    "k_date": ("d DATE", "", lambda r: (f"'0001-01-01' + INTERVAL {r.randrange(3000000)} DAY",)),
    "k_day": ("d DATETIME(2), b BIT(1)", "", lambda r: (f"'2024-01-01' + INTERVAL {r.randrange(999)} SECOND", str(r.randrange(2)))),
    "k_year": ("y YEAR, t TINYINT UNSIGNED", "", lambda r: (str(r.choice([0, 1901, 2155])), str(r.randrange(256)))),
    "k_bit": ("b BIT(9)", "", lambda r: (str(r.getrandbits(9)),)),
    "k_zero": ("c VARCHAR(3), z INT(5) ZEROFILL", "", lambda r: (f"'{r.choice('abAB')}'", str(r.randrange(200000)))),
    "k_clock": ("c VARCHAR(3), t TIME(3)", "", lambda r: (f"'{r.choice('abAB')}'", f"'{r.choice(['', '-'])}{r.randrange(838)}:00:00.5'")),
    "k_latin": ("c CHAR(5) CHARSET latin1 COLLATE latin1_german1_ci", "", lambda r: (f"'{''.join(r.choice('aAäsSß ') for _ in range(5))}'",)),
    "k_enum": (f"e ENUM({MEMBERS}), i INT", "", lambda r: (str(r.randint(1, 64)), str(r.randrange(9)))),
    "k_blank": ("e ENUM('b','a',''), i INT", "", lambda r: (f"'{r.choice(['a', 'b', ''])}'", str(r.randrange(99)))),
}  # fmt: skip
ALL = {"mysql": KEYS["mysql"] | MORE, "mariadb": KEYS["mariadb"] | MORE}


class Source:
    """A table, its keys and its rows as the log and the tasks see them."""

    def __init__(self, database: Any, folder: Path, **options: Any) -> None:
        server = database.server
        self.spec = SourceSpec(server.host, server.port, server.user, server.password, database.name)
        self.place = StoreSpec(url=str(folder / "lake"))
        self.store = Store(self.place)
        self.database = database
        with self.session() as s:
            given = TableOptions(**{"cursor": "update_at", "mode": "upsert", **options})
            self.table = discover(s, "t", given, database.name)

    def session(self) -> Session:
        return session(self.database)

    def rows(self, condition: str | None = None) -> pa.Table:
        """The rows as the reader has them."""
        question = selects(changed(self.table, where=condition), Slice("snapshot", 0, "snapshot"))[0]
        with self.session() as s:
            return pa.Table.from_batches(
                list(Batches(s, self.table, question)), schema=self.no_rows(self.table)
            )

    def no_rows(self, table: Table) -> pa.Schema:
        return pa.schema([(f.name, f.arrow) for f in fields(table)])

    def keys(self, condition: str | None = None) -> pa.Table:
        """The keys as the log's files have them."""
        return self.rows(condition).select(list(self.table.key))

    def log(self, *parts: pa.Table) -> list[DataFile]:
        """Files of the source's log with these keys: a file for each part, in no order, with repetitions."""
        files = []
        for n, part in enumerate(parts):
            order = random.Random(n).sample(range(part.num_rows), part.num_rows)
            sink = io.BytesIO()
            pq.write_table(pa.concat_tables([part.take(order), part.slice(0, 3)]), sink)
            data = pa.py_buffer(sink.getvalue())
            path = f"keys/{self.table.name}/{n}.parquet"
            footer = Footer(self.table.name, "log", "run", 1, None, "keys", n, "", "")
            etag = self.store.put(path, sink.getvalue())
            files.append(
                data_file(path, data, footer, part.num_rows + min(3, part.num_rows), created_at="", etag=etag)
            )
        return files

    def read(self, keys: pa.Table, outside: bool = False) -> list[SliceResult]:
        return [self.task(piece, outside) for piece in slices(self.table, keys)]

    def task(self, piece: Slice, outside: bool = False, expected: SourceId | None = None) -> SliceResult:
        outside = outside and self.table.recipe.where is not None
        job = SliceJob(self.spec, self.place, self.table, piece, "20250101_000000_abcd", 1, outside=outside)
        return (job if expected is None else SliceJob(**{**vars(job), "expected": expected})).go()

    def found(self, results: Sequence[SliceResult]) -> pa.Table:
        schema = self.no_rows(self.table)
        data = [self.store.get(f.path, 1 << 30) for r in results for f in r.files]
        tables = [pq.read_table(io.BytesIO(d or b"")).select(schema.names) for d in data]
        return pa.concat_tables([schema.empty_table(), *(t.cast(schema) for t in tables)])

    def one(self, *keys: Any) -> tuple[list[Any], list[Any], list[Any]]:
        """What reading these keys finds: the rows' keys, the absent ones and those outside `where`."""
        results = self.read(key_table(self.table, [k if isinstance(k, tuple) else (k,) for k in keys]), True)
        absent = [key for r in results if r.absent for key in keys_of(self.table, r.absent)]
        outside = [key for r in results if r.outside for key in keys_of(self.table, r.outside)]
        parts = sorted(keys_of(self.table, self.found(results))), sorted(absent), sorted(outside)
        return tuple([k[0] if len(k) == 1 else k for k in part] for part in parts)  # type: ignore[return-value]


class Target:
    """Rows by key, as a load would merge them: by bytes, or by weights."""

    def __init__(self, table: Table, rows: pa.Table) -> None:
        self.own, self.weight = list(table.key), any(f.file_only for f in fields(table))
        self.rows = {self.name(row): row for row in rows.to_pylist()}

    def name(self, row: dict[str, Any]) -> Any:
        return row[KEY_FIELD] if self.weight else tuple(row[name] for name in self.own)

    def apply(self, source: Source, results: Sequence[SliceResult]) -> None:
        """Commits each slice by itself: its deletes, then its rows."""
        for result in results:
            for leaving in (result.absent, result.outside):
                for key in leaving.to_pylist() if leaving is not None else ():
                    self.rows.pop(self.name(key), None)
            self.rows |= {self.name(row): row for row in source.found([result]).to_pylist()}


def storm(database: Any, names: list[str], draw: Callable[[], tuple[str, ...]]) -> None:
    """Inserts, updates, deletes, keys that come back, and keys that change."""
    database.execute(
        "SET sql_mode = ''",
        "DELETE FROM t WHERE n_ % 5 = 0",
        "UPDATE t SET n_ = n_ + 1000 WHERE n_ % 5 = 1",
        *(f"INSERT IGNORE INTO t ({', '.join(names)}, n_) VALUES ({', '.join(draw())}, {5000 + i})" for i in range(40)),
        *(
            f"UPDATE IGNORE t SET {', '.join(f'{n} = {v}' for n, v in zip(names, draw(), strict=True))}, n_ = {9000 + i} WHERE n_ = {i}"
            for i in range(2, 200, 5)
        ),
    )  # fmt: skip


@pytest.mark.parametrize("name", KEYS["mysql"] | KEYS["mariadb"] | MORE)
def test_after_a_storm_the_named_keys_bring_the_copy_up_to_date(
    database: Any, tmp_path: Path, name: str
) -> None:
    if name not in ALL[database.server.name]:
        pytest.skip(f"{database.server.name} has no such type or collation")
    columns, _, draw = ALL[database.server.name][name]
    chosen = random.Random(name)
    names = [part.split()[0] for part in columns.split(", ") if part[0] != "'"]
    lines = [f"({', '.join(draw(chosen))}, {i}, NOW())" for i in range(200)]
    database.execute(
        "SET sql_mode = ''",
        f"CREATE TABLE t ({columns}, n_ INT, {AT}, PRIMARY KEY ({', '.join(names)}), KEY (update_at))",
        f"INSERT IGNORE INTO t VALUES {', '.join(lines)}",
    )
    source = Source(database, tmp_path, where="n_ % 7 < 5")
    before = source.keys("n_ % 5 IN (0, 1, 2)")  # what the storm will touch
    target = Target(source.table, source.rows("n_ % 7 < 5"))
    storm(database, names, lambda: draw(chosen))
    after = source.keys("n_ >= 1000")
    files = source.log(before, after, before.slice(0, 7))
    keys = read_keys(source.store, source.table, files)
    assert keys.equals(distinct(pa.concat_tables([before, after])))
    for number in range(2):
        results = source.read(keys.take(list(range(number, keys.num_rows, 2))), outside=True)
        target.apply(source, results)
        assert number or any(r.absent and r.absent.num_rows for r in results)
    assert target.rows == Target(source.table, source.rows("n_ % 7 < 5")).rows


@pytest.mark.parametrize("collation", ["utf8mb4_general_ci", "utf8mb4_bin", "other"])
def test_another_spelling_of_a_row_is_not_absent_in_one_question_or_in_two(
    database: Any, tmp_path: Path, collation: str, kind: str
) -> None:
    folds = collation != "utf8mb4_bin"
    pads = collation != "other" or kind == "mariadb"
    other = "utf8mb4_0900_ai_ci" if kind == "mysql" else "utf8mb4_uca1400_ai_ci"
    database.execute(
        f"CREATE TABLE t (k VARCHAR(9) COLLATE {other if collation == 'other' else collation} PRIMARY KEY, {AT})",
        "INSERT INTO t (k) VALUES ('abc'), ('pad'), ('emile'), ('gone')",
        "UPDATE t SET k = 'ABC' WHERE k = 'abc'",
        "UPDATE t SET k = 'pad  ' WHERE k = 'pad'",
        "UPDATE t SET k = 'Émile' WHERE k = 'emile'",
        "DELETE FROM t WHERE k = 'gone'",
    )
    source = Source(database, tmp_path)
    absent = [*([] if folds else ["abc", "emile"]), "gone", *([] if pads else ["pad"])]
    every = ["abc", "ABC", "pad", "pad  ", "emile", "Émile", "gone"]
    assert source.one(*every) == (["ABC", "pad  ", "Émile"], sorted(absent), [])
    # Each in a question of its own.
    for spelling in every:
        found, lacking, _ = source.one(spelling)
        assert (lacking == [spelling]) is (spelling in absent) and len(found) + len(lacking) == 1


def test_two_spellings_of_a_row_that_is_gone_are_both_absent(database: Any, tmp_path: Path) -> None:
    database.execute(f"CREATE TABLE t (k VARCHAR(9) COLLATE utf8mb4_general_ci PRIMARY KEY, {AT})")
    source = Source(database, tmp_path)
    [result] = source.read(key_table(source.table, [("abc",), ("ABC",)]))
    assert result.absent is not None and len(set(result.absent.column(KEY_FIELD).to_pylist())) == 1
    assert source.one("abc", "ABC") == ([], ["ABC", "abc"], [])


def test_numbers_spelled_differently_are_one_key(database: Any, tmp_path: Path) -> None:
    database.execute(
        f"CREATE TABLE t (k DECIMAL(9,2) PRIMARY KEY, {AT})",
        "INSERT INTO t (k) VALUES (1.5), (-0.1), (7)",
    )
    source = Source(database, tmp_path)
    assert source.one("1.5", "1.50", "7", "-0.10", "8.0") == (["-0.10", "1.50", "7.00"], ["8.00"], [])


def test_a_row_that_where_excludes_is_outside_and_not_absent(database: Any, tmp_path: Path) -> None:
    database.execute(
        f"CREATE TABLE t (k VARCHAR(9) COLLATE utf8mb4_general_ci PRIMARY KEY, n INT, {AT})",
        "INSERT INTO t (k, n) VALUES ('IN', 1), ('Out', 2), ('unknown', NULL)",
    )
    source = Source(database, tmp_path, where="n < 2 -- only those")
    assert source.one("in", "OUT", "unknown", "gone") == (["IN"], ["gone"], ["Out", "unknown"])


def test_a_run_of_numbers_is_read_as_a_range_with_all_its_gaps_absent(database: Any, tmp_path: Path) -> None:
    database.execute(
        f"CREATE TABLE t (id BIGINT PRIMARY KEY, n INT, {AT})",
        "INSERT INTO t (id, n) SELECT seq, seq % 10 FROM seq_1_to_5000",
        "INSERT INTO t (id, n) VALUES (90000, 1), (-7, 1)",
        "DELETE FROM t WHERE id % 100 = 50",
    )
    source = Source(database, tmp_path, where="n < 9")
    named = [*range(1000, 4000, 2), 90000, 90001, -7]
    pieces = slices(source.table, key_table(source.table, [(n,) for n in named]))
    assert any(" BETWEEN " in q for piece in pieces for q in selects(source.table, piece))
    found, absent, outside = source.one(*named)
    there = [n for n in range(1, 5001) if n % 100 != 50]
    assert absent == [n for n in named if n in range(1000, 4000) and n % 100 == 50] + [90001]
    assert set(found) >= {n for n in named if n not in absent and n % 10 < 9}
    assert set(found) <= {n for n in there if n % 10 < 9} | {90000, -7}
    assert set(outside) <= {n for n in there if n % 10 == 9}


@pytest.mark.parametrize(
    "alter", ["ADD COLUMN m INT", "MODIFY n BIGINT", "MODIFY k VARCHAR(9) COLLATE utf8mb4_bin"]
)
def test_nothing_counts_that_was_read_of_a_table_altered_since(
    database: Any, tmp_path: Path, alter: str
) -> None:
    database.execute(
        f"CREATE TABLE t (k VARCHAR(9) COLLATE utf8mb4_general_ci PRIMARY KEY, n INT, {AT})",
        "INSERT INTO t (k) VALUES ('a')",
    )
    source, sources = Source(database, tmp_path), Sources()
    with source.session() as s:
        sources.expect(source.table.name, source_id(s, source.table, with_id=True))
    expected = sources.expected(source.table.name)
    [piece] = slices(source.table, key_table(source.table, [("a",), ("b",)]))
    sources.check(source.table.name, source.task(piece, expected=expected).source)
    database.execute("DO SLEEP(1.1)", f"ALTER TABLE t {alter}")
    with pytest.raises(SourceChanged):
        sources.check(source.table.name, source.task(piece, expected=expected).source)


def test_key_files_of_another_key_are_refused(database: Any, tmp_path: Path) -> None:
    database.execute(f"CREATE TABLE t (id INT PRIMARY KEY, {AT})")
    source = Source(database, tmp_path)
    good = pa.table({"id": pa.array([1, 2], pa.int32())})
    assert read_keys(source.store, source.table, source.log(good)).equals(good)
    for other in (pa.table({"id": pa.array([1], pa.int64())}), pa.table({"no": pa.array([1], pa.int32())})):
        with pytest.raises(DoesNotFit, match="id is int32"):
            read_keys(source.store, source.table, source.log(good, other))
    assert read_keys(source.store, source.table, []).num_rows == 0


def test_key_files_are_read_in_groups_that_fit_into_memory(database: Any, tmp_path: Path) -> None:
    database.execute(f"CREATE TABLE t (id INT PRIMARY KEY, {AT})")
    source = Source(database, tmp_path)
    files = source.log(*(pa.table({"id": pa.array(range(n), pa.int32())}) for n in (7, 47, 17, 7)))
    assert [[f.rows for f in group] for group in portions(files, 30)] == [[10], [50], [20, 10]]
    assert list(portions([])) == []


def test_absent_keys_are_written_like_rows(database: Any, tmp_path: Path) -> None:
    database.execute(
        f"CREATE TABLE t (a TINYINT, c VARCHAR(9), e ENUM('x','y'), PRIMARY KEY (e, c, a), {AT})",
        "INSERT INTO t (a, c, e) VALUES (1, 'a', 'y'), (2, 'B', 'x')",
    )
    source = Source(database, tmp_path)
    keys, rows = source.keys(), source.rows()
    database.execute("DELETE FROM t")
    [result] = source.read(distinct(keys))
    assert result.absent is not None and not result.files
    (file,) = write_keys(source.store, source.table, result.absent, run="r", claim=3, log="l")
    stored = pq.read_table(io.BytesIO(source.store.get(file.path) or b""))
    names = [f.name for f in key_fields(source.table, fields(source.table))]
    assert stored.schema.names == names
    assert sorted(map(str, stored.to_pylist())) == sorted(map(str, rows.select(names).to_pylist()))
