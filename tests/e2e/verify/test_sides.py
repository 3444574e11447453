"""The two sides of a comparison by themselves: what a worker hashes, what the driver hashes, and what is printed too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import duckdb
import pytest

from floodmark.log.fold import State
from floodmark.log.log import Log
from floodmark.model import row_hash
from floodmark.model.canonical import Scope, Span
from floodmark.model.run import new_run
from floodmark.services import Services
from floodmark.source.describe import discover
from floodmark.verify.compare import _misread
from floodmark.verify.rows import HashedRows, differing
from floodmark.verify.scope import scope_of
from floodmark.verify.search import search
from floodmark.verify.task import SAMPLE, SourceJob, SourceRows
from floodmark.verify.warehouse import WarehouseRows
from tests.conftest import Silent, Workspace
from tests.support.tampered_warehouse import FILL, READINGS

pytestmark = pytest.mark.source
ROWS = 1000


@dataclass
class Compared:
    workspace: Workspace
    services: Services
    scope: Scope  # with a key for hashes
    state: State

    @property
    def warehouse(self) -> WarehouseRows:
        return WarehouseRows(self.services.warehouse(), self.scope)

    def summed(self, *spans: Span, digits: int = 0) -> SourceRows:
        return SourceJob(self.workspace.settings.source, self.scope, spans, digits=digits).go()

    def listed(self, *spans: Span) -> HashedRows:
        rows = SourceJob(self.workspace.settings.source, self.scope, spans, listed=True).go().rows
        assert rows is not None
        return rows

    def change(self, statement: str) -> None:
        self.services.warehouse().close()  # it would stay open for a moment
        with duckdb.connect(str(self.workspace.warehouse)) as con:
            con.execute(statement)


@pytest.fixture
def compared(workspace: Workspace) -> Iterator[Compared]:
    workspace.execute(READINGS, FILL.format(n=ROWS))
    workspace.synced("readings")
    config, name = workspace.settings, workspace.full_name("readings")
    with Services(config, Silent(), new_run(), workspace.spark()) as services:
        state = Log(services.store, name).read()
        with services.session("test") as session:
            table = discover(session, name, config.options(name), None)
        scope, *_ = scope_of(services, table, state, only_keys=False)
        yield Compared(workspace, services, replace(scope, hash_key=row_hash.new_key()), state)


@pytest.mark.parametrize("hash_key", [row_hash.new_key(), None], ids=["we hash", "the servers hash"])
def test_source_and_warehouse_hash_a_row_alike(compared: Compared, hash_key: bytes | None) -> None:
    compared.scope = scope = replace(compared.scope, hash_key=hash_key)
    spans = [Span(None, (600,)), Span((600,), (2999,)), Span((2999,), None)]
    parts = [compared.summed(span) for span in spans]
    assert {span: part.digest for span, part in zip(spans, parts, strict=True)} == compared.warehouse.sums(
        spans
    )[0]
    assert sum(p.digest.rows for p in parts) == ROWS and len(parts[1].sample) == (SAMPLE if hash_key else 0)
    assert compared.summed(Span(), digits=2).sums == compared.warehouse.sums(digits=2)[0]
    listing = compared.listed(spans[0], spans[2])
    assert listing.compared.num_rows == 201
    assert differing(scope, listing, compared.warehouse.rows([spans[0], spans[2]])) == {}

    # Rows that have changed since the watermark are left out on both sides.
    compared.workspace.execute("UPDATE readings SET note = 'later' WHERE id IN (3, 6)")
    first = compared.summed(spans[0])
    assert (first.digest.rows, first.left_out, len(first.beyond)) == (198, 2, 2)
    assert compared.warehouse.sums(spans[:1], without=first.beyond)[0] == first.sums
    assert differing(scope, compared.listed(spans[0]), compared.warehouse.rows(spans[:1])) == {}


def test_mysql_sums_a_range_by_pieces(compared: Compared) -> None:
    compared.scope = replace(compared.scope, hash_key=None)
    source = compared.workspace.settings.source
    found = SourceJob(source, compared.scope, (Span((600,), None),), step=300).go()
    assert [digest.rows for digest in found.sums.values()] == [300, 300, 200]
    assert compared.warehouse.sums([span for span in found.sums if isinstance(span, Span)])[0] == found.sums


def test_workers_without_the_compiled_hash_leave_it_to_the_servers(
    compared: Compared, monkeypatch: pytest.MonkeyPatch
) -> None:
    services, submitted = compared.services, list[bool]()

    def here(jobs: Sequence[SourceJob], group: str) -> Iterator[SourceRows]:
        submitted.extend(job.scope.hash_key is not None for job in jobs)
        return (job.go() for job in jobs)

    monkeypatch.setattr(services, "submit", here)
    monkeypatch.setattr(row_hash, "compiled", None)
    found = search(services, replace(compared.scope, hash_key=None), lambda *totals: None)
    assert found.source == found.warehouse and found.source.rows == ROWS
    assert submitted == [True, False]


def test_rows_that_were_misread_are_found_by_what_the_servers_print(compared: Compared) -> None:
    """As if the reader had loaded a wrong value and now read the same one again: only the printed rows differ."""
    scope = replace(compared.scope, hash_key=None)
    sample = [("3",), ("6",), ("9",)]
    assert _misread(compared.services, scope, compared.state, sample) == []
    compared.change("UPDATE readings SET exact = exact * (1 + 2.3e-16) WHERE id = 6")
    assert _misread(compared.services, scope, compared.state, [("3",), ("9",)]) == []
    assert _misread(compared.services, scope, compared.state, sample) == sample
