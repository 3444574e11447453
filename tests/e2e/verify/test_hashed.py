"""The two sides of a comparison by themselves: what a worker hashes, what the driver hashes, and what is printed too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import duckdb
import pytest

from floodmark.load.protocol import HandsOutRows
from floodmark.log.fold import State
from floodmark.log.log import Log
from floodmark.model import row_hash
from floodmark.model.canonical import Scope, Span
from floodmark.model.run import new_run
from floodmark.services import Services
from floodmark.source.describe import discover
from floodmark.verify import hashed, task
from floodmark.verify.compare import _misread, scope_of
from floodmark.verify.hashed import SAMPLE
from floodmark.verify.search import search
from floodmark.verify.task import Digested, DigestJob, EntriesJob
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
    def warehouse(self) -> HandsOutRows:
        found = self.services.warehouse()
        assert isinstance(found, HandsOutRows)
        return found

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


def test_worker_and_driver_hash_a_row_alike(compared: Compared, monkeypatch: pytest.MonkeyPatch) -> None:
    source, scope = compared.workspace.settings.source, compared.scope
    spans = [Span(None, (600,)), Span((600,), (2999,)), Span((2999,), None)]
    parts = [part for span in spans for part in DigestJob(source, scope, span).go().parts]
    assert [p.digest for p in parts] == hashed.stored_digests(compared.warehouse, scope, spans, [])
    assert sum(p.digest.rows for p in parts) == ROWS and len(parts[1].sample) == SAMPLE
    groups = DigestJob(source, scope, Span(), digits=2).go().groups
    assert groups == hashed.stored_groups(compared.warehouse, scope, 2, [])
    listing = EntriesJob(source, scope, (spans[0], spans[2])).go().rows
    assert listing is not None and listing.compared.num_rows == 201
    assert (
        hashed.differing(scope, listing, hashed.stored(compared.warehouse, scope, [spans[0], spans[2]])) == {}
    )

    # Rows that have changed since the watermark are left out on both sides.
    compared.workspace.execute("UPDATE readings SET note = 'later' WHERE id IN (3, 6)")
    [first] = DigestJob(source, scope, spans[0]).go().parts
    assert (first.digest.rows, first.left_out, len(first.beyond)) == (198, 2, 2)
    assert hashed.stored_digests(compared.warehouse, scope, spans[:1], first.beyond) == [first.digest]
    listing = EntriesJob(source, scope, (spans[0],)).go().rows
    assert listing is not None
    assert hashed.differing(scope, listing, hashed.stored(compared.warehouse, scope, spans[:1])) == {}

    monkeypatch.setattr(row_hash, "compiled", None)
    assert DigestJob(source, scope, Span()).go().refused and EntriesJob(source, scope, (Span(),)).go().refused


def test_workers_that_cannot_hash_are_tried_once_per_run(
    compared: Compared, monkeypatch: pytest.MonkeyPatch
) -> None:
    services, submitted = compared.services, list[bool]()

    def here(jobs: Sequence[DigestJob], group: str) -> Iterator[Digested]:
        submitted.extend(job.scope.hash_key is not None for job in jobs)
        return (job.go() for job in jobs)

    monkeypatch.setattr(services, "submit", here)
    monkeypatch.setattr(task, "_able", lambda scope: scope.hash_key is None)
    for _ in range(2):
        found = search(services, replace(compared.scope, hash_key=None), lambda *totals: None)
        assert found.source == found.warehouse and found.source.rows == ROWS
    assert submitted == [True, False, False]


def test_rows_that_were_misread_are_found_by_what_the_servers_print(compared: Compared) -> None:
    """As if the reader had loaded a wrong value and now read the same one again: only the printed rows differ."""
    scope = replace(compared.scope, hash_key=None)
    sample = [("3",), ("6",), ("9",)]
    assert _misread(compared.services, scope, compared.state, sample) == []
    compared.change("UPDATE readings SET exact = exact * (1 + 2.3e-16) WHERE id = 6")
    assert _misread(compared.services, scope, compared.state, [("3",), ("9",)]) == []
    assert _misread(compared.services, scope, compared.state, sample) == sample
