"""Whether a target still holds what the last snapshot held, by the digest in the snapshot's commit.

Only for a warehouse that hands out its rows: they are hashed here, with the key that the snapshot's tasks used.
"""

from __future__ import annotations

from floodmark.commit.fold import State
from floodmark.commit.log import Log
from floodmark.model.canonical import Digest, Scope, Span, forms
from floodmark.model.commit import Batch
from floodmark.model.row_hash import compiled
from floodmark.services.run import Services
from floodmark.services.warehouse.canonical import same_values
from floodmark.services.warehouse.protocol import HandsOutRows
from floodmark.verify.hashed import stored_digests


def last_snapshot(services: Services, state: State) -> Batch | None:
    """The snapshot that the target should hold, if its digest is known and the target's can be computed."""
    last = state.data.commits[-1] if state.data.commits else None
    if last is None or last.load_as != "replace" or last.superseded or state.table is None:
        return None
    if compiled is None or not isinstance(services.warehouse(), HandsOutRows):
        return None
    [(commit, _)] = Log(services.store, state.table_name).commits([last.n])
    if not isinstance(commit, Batch) or commit.schema != state.table.fingerprint:
        return None
    return commit if commit.snapshot is not None else None


def holds(services: Services, state: State, promised: Batch) -> bool | None:
    """Whether the target holds the rows of a snapshot; None if its columns have other types than we gave them."""
    warehouse, table, digest = services.warehouse(), state.table, promised.snapshot
    assert isinstance(warehouse, HandsOutRows) and table is not None and digest is not None
    scope = Scope(table, forms(table, redshift=False), hash_key=bytes.fromhex(digest.key))
    if not same_values(scope, warehouse.types(table.target) or {}):
        return None
    [stored] = stored_digests(warehouse, scope, [Span()], ())
    return stored == Digest(promised.rows, int(digest.sum, 16))
