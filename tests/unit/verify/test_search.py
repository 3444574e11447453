"""A search whose source answers by hand: what it makes of sums that differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from floodmark.load.duckdb.warehouse import DuckDB
from floodmark.model.canonical import Digest, Scope, Span, forms
from floodmark.model.errors import DataError
from floodmark.model.origin import Sources
from floodmark.model.row_hash import Sums, groups, hashes, to_hex
from floodmark.model.table import Column, Table
from floodmark.model.warehouse import DUCKDB
from floodmark.verify import search as searching
from floodmark.verify import sketch
from floodmark.verify.rows import HashedRows
from floodmark.verify.search import Search, SearchResult, hands_out_rows
from floodmark.verify.sketch import Sketches
from floodmark.verify.task import Place, SourceJob, SourceRows
from tests.support.described import described

KEY = bytes(range(16))
ID = Column("id", "int(11)", "int", nullable=False)
NAME = Column("name", "varchar(9)", "varchar", characters=9, charset="utf8mb4", collation="utf8mb4_bin")
NUMBERED = described("s", "t", (ID, NAME), ("id",), None, "full", "t")
CODE = Column(
    "id", "varchar(9)", "varchar", nullable=False, characters=9, charset="utf8mb4", collation="utf8mb4_bin"
)
NAMED = described("s", "t", (CODE, NAME), ("id",), None, "full", "t")
SPANS = [Span(None, (30,)), Span((30,), (60,)), Span((60,), None)]


class Source:
    """Rows 0 to 99; the first `wrong` digests are of rows that no listing shows."""

    def __init__(self, table: Table, path: Path, wrong: int = 0) -> None:
        self.table, self.wrong, self.path = table, wrong, path
        self.listed: list[Span] = []
        self.beyond: dict[Span, tuple[tuple[str, ...], int]] = {}

    def columns(self, span: Span) -> list[Any]:
        first = span.after[0] + 1 if span.after else 0  # type: ignore[operator]
        last = span.upto[0] + 1 if span.upto else 100  # type: ignore[operator]
        numbers = range(int(first), int(last))
        kind = pa.int32() if self.table is NUMBERED else pa.string()
        keys = pa.array(numbers if self.table is NUMBERED else [str(n) for n in numbers], kind)
        return [keys, pa.array([f"n{n}" for n in numbers], pa.string())]

    def submit(self, jobs: Sequence[SourceJob], table: str) -> Iterator[SourceRows]:
        for job in jobs:
            if job.listed:
                self.listed += job.spans
                columns = [pa.concat_arrays(c) for c in zip(*map(self.columns, job.spans), strict=True)]
                listed = pa.table({"key0": columns[0], "hash": hashes(columns, KEY)})
                if job.prefixes:
                    wanted = [int(prefix, 16) for prefix in job.prefixes]
                    listed = listed.filter(pa.array(np.isin(groups(hashes(columns[:1], KEY), 1), wanted)))
                yield SourceRows(job.spans, rows=HashedRows(listed, listed.slice(0, 0)))
                continue
            [span] = job.spans
            columns = self.columns(span)
            off = Digest(0, 1) if self.wrong and span.after is None else Digest()
            self.wrong -= bool(off.sum)
            hashed, keyed = hashes(columns, KEY), hashes(columns[:1], KEY)
            sums = Sums(16)
            sums.add(hashed, groups(keyed, 1) if job.digits else None)
            made: list[tuple[bytes, ...]] = [()]
            if job.cells:
                sketches = Sketches(self.scope, job.cells)
                sketches.add(columns, hashed)
                made = sketches.made()
            found: dict[Place, Digest] = {span: sums.digests()[0]}
            if job.digits:
                found = dict[Place, Digest](sums.by_group(1))
            first = next(iter(found))
            found[first] += off
            yield SourceRows(job.spans, found, *self.beyond.get(span, ((), 0)), sketch=made[0])

    @property
    def services(self) -> Any:
        return SimpleNamespace(
            warehouse=lambda: DuckDB(self.path),
            config=SimpleNamespace(source=SimpleNamespace(hash_on_server=False)),
            submit=self.submit,
            sources=Sources(),
            emit=lambda event: None,
        )

    @property
    def scope(self) -> Scope:
        return Scope(self.table, forms(self.table, DUCKDB), hash_key=KEY)

    def search(self, most: int | None = None) -> Search:
        return Search(self.services, self.scope, most=most)

    def searched(self, spans: Sequence[Span], rows: int = 0) -> SearchResult:
        return self.search().run(spans, rows)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(searching, "PAUSE", 0)
    return tmp_path / "w.duckdb"


def loaded(path: Path, kind: str, *more: str) -> None:
    with duckdb.connect(str(path)) as con:
        con.execute(f"CREATE TABLE t (id {kind}, name VARCHAR)")
        con.execute("INSERT INTO t SELECT range, 'n' || range FROM range(100)")
        for row in more:
            con.execute(f"INSERT INTO t VALUES ({row})")


@pytest.mark.parametrize("spans", [SPANS, [Span()]], ids=["ranges", "one range"])
def test_a_row_of_the_warehouse_without_a_key_is_suspect(path: Path, spans: list[Span]) -> None:
    loaded(path, "INTEGER", "NULL, 'x'")
    found = Source(NUMBERED, path).searched(spans)
    assert list(found.suspects) == [(None,)] and found.warehouse.rows == 101


def test_rows_that_differ_are_found_without_a_second_read(path: Path) -> None:
    loaded(path, "INTEGER", "200, 'x'", "7, 'n7'")
    with duckdb.connect(str(path)) as con:
        con.execute("DELETE FROM t WHERE id IN (5, 50, 80)")
        con.execute("UPDATE t SET name = 'other' WHERE id = 55")
    source = Source(NUMBERED, path)
    found = source.searched(SPANS)
    expected = {("5",): False, ("7",): True, ("50",): False, ("55",): True, ("80",): False, ("200",): True}
    assert found.suspects == expected and not source.listed and not found.suspicious


def test_a_range_with_more_differences_than_its_sketch_can_tell_is_listed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sketch, "FEW_CELLS", 4)
    loaded(path, "INTEGER")
    with duckdb.connect(str(path)) as con:
        con.execute("DELETE FROM t WHERE id = 3 OR id BETWEEN 31 AND 59")
    source = Source(NUMBERED, path)
    found = source.searched(SPANS)
    assert found.suspects == {("3",): False} | {(str(n),): False for n in range(31, 60)}
    assert source.listed == [SPANS[1]]


@pytest.mark.parametrize("crowded", [False, True])
def test_rows_that_have_changed_since_are_not_suspect_in_a_sketch(path: Path, crowded: bool) -> None:
    """A range with more of them than are named is listed."""
    loaded(path, "INTEGER", "-5, 'old'", "-6, 'extra'")
    source = Source(NUMBERED, path)
    changed = tuple(to_hex(hashes([pa.array([-5], pa.int32())], KEY)))
    source.beyond = {SPANS[0]: (changed, 2 if crowded else 1)}
    found = source.searched(SPANS)
    assert source.listed == (SPANS[:1] if crowded else [])
    assert crowded or found.suspects == {("-6",): True}


def test_sums_that_differ_for_good_are_no_agreement_even_if_no_row_is_suspect(path: Path) -> None:
    loaded(path, "INTEGER")
    found = Source(NUMBERED, path, wrong=99).searched(SPANS)
    assert found.suspicious and not found.suspects


def test_sums_that_differ_once_are_computed_again(path: Path) -> None:
    loaded(path, "INTEGER")
    found = Source(NUMBERED, path, wrong=2).searched(SPANS)
    assert not found.suspicious and not found.suspects


def test_ranges_are_settled_in_the_order_of_their_keys(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their tasks may end in any order, and the warehouse numbers ranges by their order."""
    monkeypatch.setattr(searching, "LISTING", 1)
    loaded(path, "INTEGER")
    source = Source(NUMBERED, path)
    submit = source.submit

    def backwards(jobs: Sequence[SourceJob], table: str) -> Iterator[SourceRows]:
        yield from reversed([*submit(jobs, table)])

    monkeypatch.setattr(source, "submit", backwards)
    found = source.search()
    differing = [SourceRows((span,), {span: Digest(30)}) for span in SPANS]
    assert found._list(SPANS, differing) == SPANS
    found._settle(SPANS, SPANS)
    assert not found.found.suspicious and not found.found.suspects


@pytest.mark.parametrize(("wrong", "suspicious"), [(0, False), (2, False), (99, True)])
def test_the_same_holds_for_groups(path: Path, wrong: int, suspicious: bool) -> None:
    loaded(path, "VARCHAR")
    found = Source(NAMED, path, wrong=wrong).searched(SPANS)
    assert found.suspicious is suspicious and not found.suspects
    assert found.source.rows == found.warehouse.rows == 100


@pytest.mark.parametrize("crowded", [False, True])
def test_groups_that_differ_are_listed_without_rows_that_have_changed_since(
    path: Path, crowded: bool
) -> None:
    loaded(path, "VARCHAR", "'-5', 'old'", "'-6', 'extra'")
    with duckdb.connect(str(path)) as con:
        con.execute("DELETE FROM t WHERE id = '31'")
        con.execute("UPDATE t SET name = 'other' WHERE id = '77'")
    source = Source(NAMED, path)
    changed = tuple(to_hex(hashes([pa.array(["-5"])], KEY)))
    source.beyond = {SPANS[0]: (changed, 2 if crowded else 1)}
    found = source.searched(SPANS)
    suspects = {("31",): False, ("77",): True, ("-6",): True}
    assert {key: there for key, there in found.suspects.items() if key != ("-5",)} == suspects
    assert found.beyond == (2 if crowded else 1) and not found.suspicious
    # The source's listing says which rows are outside the scope; of this one, nothing is listed.
    own = groups(hashes([pa.array(["-5"])], KEY), 1)[0]
    others = {groups(hashes([pa.array([key])], KEY), 1)[0] for (key,) in suspects}
    assert (("-5",) in found.suspects) == (own in others)


def test_a_table_without_a_key_is_hashed_by_the_servers(path: Path) -> None:
    """Our reader is checked by rows that the servers print, and without a key none can be looked up."""
    loaded(path, "INTEGER")
    for key in (("id",), ()):
        source = Source(described("s", "t", (ID, NAME), key, None, "full", "t"), path)
        assert hands_out_rows(source.services, source.scope) is bool(key)


def test_a_search_gives_up_before_it_holds_more_missing_rows_than_it_may(path: Path) -> None:
    loaded(path, "INTEGER", *(f"{n}, 'x'" for n in range(200, 209)))
    assert len(Source(NUMBERED, path).search(most=2).run(SPANS, 0).suspects) == 9, (
        "deleted rows are no missing ones"
    )
    with duckdb.connect(str(path)) as con:
        con.execute("DELETE FROM t WHERE id < 3")
    with pytest.raises(DataError, match=r"at least 3 rows that were read are missing from t\b"):
        Source(NUMBERED, path).search(most=2).run(SPANS, 0)
    with duckdb.connect(str(path)) as con:
        con.execute("DELETE FROM t WHERE id > 99")
    source = Source(NUMBERED, path)
    with pytest.raises(DataError):
        source.search(most=2).run(SPANS[:1], 0)
    assert not source.listed, "before any key is fetched"
