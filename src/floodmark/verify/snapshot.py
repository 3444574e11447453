"""Whether a target still holds what the last snapshot held.

A warehouse that hands out its rows has them hashed here, with the key of the digest in the snapshot's commit.
Any other hashes them itself, and the same hash of the snapshot is computed from its files, as long as they are staged.
"""

from __future__ import annotations

from collections.abc import Sequence

from floodmark.host.temp import scratched
from floodmark.load import canonical
from floodmark.load.files import fetch
from floodmark.load.protocol import HandsOutRows
from floodmark.log.fold import State
from floodmark.log.log import Log
from floodmark.model.canonical import Digest, Scope, Span, forms
from floodmark.model.commit import Batch, DataFile
from floodmark.model.row_hash import compiled
from floodmark.services import Services
from floodmark.verify.hashed import stored_digests
from floodmark.verify.portions import summed
from floodmark.verify.sides import Sides, parsed_columns


def last_snapshot(services: Services, state: State) -> Batch | None:
    """The snapshot that the target should hold, if its digest is known or can be computed, and the target's too."""
    last = state.data.commits[-1] if state.data.commits else None
    if last is None or last.load_as != "replace" or last.superseded or state.table is None:
        return None
    [(commit, _)] = Log(services.store, state.table_name).commits([last.n])
    if not isinstance(commit, Batch) or commit.schema != state.table.fingerprint:
        return None
    if isinstance(services.warehouse(), HandsOutRows):
        return commit if compiled is not None and commit.snapshot is not None else None
    return None if last.cleaned else commit


def holds(services: Services, state: State, promised: Batch) -> bool | None:
    """Whether the target holds the rows of a snapshot.

    None if that can't be told: its columns have other types than we gave them, or the snapshot's files are gone.
    """
    warehouse, table, digest = services.warehouse(), state.table, promised.snapshot
    assert table is not None
    if isinstance(warehouse, HandsOutRows):
        assert digest is not None
        scope = Scope(table, forms(table, services.config.warehouse.can), hash_key=bytes.fromhex(digest.key))
        if not canonical.same_values(scope, warehouse.types(table.target) or {}):
            return None
        [stored] = stored_digests(warehouse, scope, [Span()], ())
        return stored == Digest(promised.rows, int(digest.sum, 16))
    scope = Scope(table, forms(table, services.config.warehouse.can, parsed_columns(services, table)))
    held = staged(services, scope, promised.files)
    return None if held is None else Sides(services, scope).warehouse([Span()]) == [held]


def staged(services: Services, scope: Scope, files: Sequence[DataFile]) -> Digest | None:
    """The digest of the rows in some files, as a warehouse computes it; None if a file is gone, or nobody waits.

    One file after the other, so that no more than one has to fit on this machine.
    """
    from floodmark.load.duckdb.merge import ask  # DuckDB is imported only when it is needed

    store, total = services.store, Digest()
    for file in files:
        if services.interrupted or store.end(file.path, 1) is None:
            return None
        with scratched("floodmark-verify-") as folder:
            [path] = fetch(store, [file], folder, scope.table.name)
            rows = ask(scope.table, path, lambda place: canonical.digests(place, scope, [Span()]))
        total += summed(rows).get("0", Digest())
    return total
