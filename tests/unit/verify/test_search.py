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
from floodmark.model.canonical import Digest, Part, Scope, Span, forms
from floodmark.model.origin import Sources
from floodmark.model.row_hash import Sums, groups, hashes, to_hex
from floodmark.model.table import Column, Table
from floodmark.model.warehouse import DUCKDB
from floodmark.verify import gathered, sketched
from floodmark.verify.gathered import Gathering, SearchResult
from floodmark.verify.groups import GroupSearch
from floodmark.verify.hashed import Rows
from floodmark.verify.portions import in_key_order
from floodmark.verify.search import RangeSearch, hands_out_rows
from floodmark.verify.sides import Sides
from floodmark.verify.sketched import KeyedSketches
from floodmark.verify.task import Digested, DigestJob, EntriesJob, Listing
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

    def submit(self, jobs: Sequence[DigestJob | EntriesJob], table: str) -> Iterator[Digested | Listing]:
        for job in jobs:
            if isinstance(job, EntriesJob):
                self.listed += job.spans
                columns = [pa.concat_arrays(c) for c in zip(*map(self.columns, job.spans), strict=True)]
                listed = pa.table({"key0": columns[0], "hash": hashes(columns, KEY)})
                if job.prefixes:
                    wanted = [int(prefix, 16) for prefix in job.prefixes]
                    listed = listed.filter(pa.array(np.isin(groups(hashes(columns[:1], KEY), 1), wanted)))
                yield Listing(job.spans, rows=Rows(listed, listed.slice(0, 0)))
                continue
            columns = self.columns(job.span)
            off = Digest(0, 1) if self.wrong and job.span.after is None else Digest()
            self.wrong -= bool(off.sum)
            if not job.digits:
                sums = Sums()
                sums.add(hashes(columns, KEY))
                sketches = KeyedSketches(self.scope, job.cells) if job.cells else None
                if sketches is not None:
                    sketches.add(columns, hashes(columns, KEY))
                [sketch] = sketches.made() if sketches is not None else [()]
                left_out = self.beyond.get(job.span, ((), 0))
                yield Digested((Part(job.span, sums.digests()[0] + off, *left_out, sketch=sketch),))
                continue
            parts = Sums(16)
            parts.add(hashes(columns, KEY), groups(hashes(columns[:1], KEY), 1))
            found = {f"{n:x}": d for n, d in enumerate(parts.digests()) if d.rows}
            first = next(iter(found))
            yield Digested((), found | {first: found[first] + off})

    @property
    def services(self) -> Any:
        return SimpleNamespace(
            warehouse=lambda: DuckDB(self.path),
            config=SimpleNamespace(source=SimpleNamespace(hash_on_server=False)),
            submit=self.submit,
            sources=Sources(),
            workers_hash=True,
            emit=lambda event: None,
        )

    @property
    def scope(self) -> Scope:
        return Scope(self.table, forms(self.table, DUCKDB), hash_key=KEY)

    def sides(self) -> Sides:
        return Sides(self.services, self.scope)

    def gathering(self) -> Gathering:
        return Gathering(self.table, lambda source, warehouse: None)

    def by_ranges(self, spans: Sequence[Span]) -> SearchResult:
        found = self.gathering()
        RangeSearch(self.sides(), found).go(spans)
        return found.found


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(gathered, "PAUSE", 0)
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
    found = Source(NUMBERED, path).by_ranges(spans)
    assert list(found.suspects) == [(None,)] and found.warehouse.rows == 101


def test_rows_that_differ_are_found_without_a_second_read(path: Path) -> None:
    loaded(path, "INTEGER", "200, 'x'", "7, 'n7'")
    with duckdb.connect(str(path)) as con:
        con.execute("DELETE FROM t WHERE id IN (5, 50, 80)")
        con.execute("UPDATE t SET name = 'other' WHERE id = 55")
    source = Source(NUMBERED, path)
    found = source.by_ranges(SPANS)
    expected = {("5",): False, ("7",): True, ("50",): False, ("55",): True, ("80",): False, ("200",): True}
    assert found.suspects == expected and not source.listed and not found.suspicious


def test_a_range_with_more_differences_than_its_sketch_can_tell_is_listed(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sketched, "FEW_CELLS", 4)
    loaded(path, "INTEGER")
    with duckdb.connect(str(path)) as con:
        con.execute("DELETE FROM t WHERE id = 3 OR id BETWEEN 31 AND 59")
    source = Source(NUMBERED, path)
    found = source.by_ranges(SPANS)
    assert found.suspects == {("3",): False} | {(str(n),): False for n in range(31, 60)}
    assert source.listed == [SPANS[1]]


@pytest.mark.parametrize("crowded", [False, True])
def test_rows_that_have_changed_since_are_not_suspect_in_a_sketch(path: Path, crowded: bool) -> None:
    """A range with more of them than are named is listed."""
    loaded(path, "INTEGER", "-5, 'old'", "-6, 'extra'")
    source = Source(NUMBERED, path)
    changed = tuple(to_hex(hashes([pa.array([-5], pa.int32())], KEY)))
    source.beyond = {SPANS[0]: (changed, 2 if crowded else 1)}
    found = source.by_ranges(SPANS)
    assert source.listed == (SPANS[:1] if crowded else [])
    assert crowded or found.suspects == {("-6",): True}


def test_sums_that_differ_for_good_are_no_agreement_even_if_no_row_is_suspect(path: Path) -> None:
    loaded(path, "INTEGER")
    found = Source(NUMBERED, path, wrong=99).by_ranges(SPANS)
    assert found.suspicious and not found.suspects


def test_sums_that_differ_once_are_computed_again(path: Path) -> None:
    loaded(path, "INTEGER")
    found = Source(NUMBERED, path, wrong=2).by_ranges(SPANS)
    assert not found.suspicious and not found.suspects


def test_ranges_are_listed_and_settled_in_the_order_of_their_keys(path: Path) -> None:
    """They are found level by level, so that the last of all may come first."""
    loaded(path, "INTEGER")
    source = Source(NUMBERED, path)
    gathering = source.gathering()
    RangeSearch(source.sides(), gathering)._list_ranges(
        [Part(SPANS[2], Digest(39)), Part(SPANS[0], Digest(31))]
    )
    assert not gathering.found.suspicious and not gathering.found.suspects


@pytest.mark.parametrize(("wrong", "suspicious"), [(0, False), (2, False), (99, True)])
def test_the_same_holds_for_groups(path: Path, wrong: int, suspicious: bool) -> None:
    loaded(path, "VARCHAR")
    source = Source(NAMED, path, wrong=wrong)
    gathering = source.gathering()
    GroupSearch(source.sides(), gathering).go(SPANS, 1)
    found = gathering.found
    assert found.suspicious is suspicious and not found.suspects
    assert found.source.rows == found.warehouse.rows == 100


def test_a_table_without_a_key_is_hashed_by_the_servers(path: Path) -> None:
    """Our reader is checked by rows that the servers print, and without a key none can be looked up."""
    loaded(path, "INTEGER")
    for key in (("id",), ()):
        source = Source(described("s", "t", (ID, NAME), key, None, "full", "t"), path)
        assert hands_out_rows(source.services, source.scope) is bool(key)


def test_ranges_are_ordered_as_their_keys_are() -> None:
    table = described(
        "s",
        "t",
        (Column("n", "decimal(9,1)", "decimal", scale=1), Column("day", "date", "date")),
        ("n", "day"),
        None,
        "full",
        "t",
    )
    cuts = [
        None,
        ("-7.5", "2025-01-01"),
        ("9.5", "2024-12-31"),
        ("9.5", "2025-01-01"),
        ("10.0", "0000-01-01"),
    ]
    parts = [Part(Span(cut), Digest()) for cut in cuts]
    assert in_key_order(Scope(table, forms(table, DUCKDB)), [*parts[2:], *parts[:2]]) == parts
