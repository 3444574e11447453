"""`verify --repair`: extracts missing and differing rows again, and turns extra rows into deletes.

Everything happens under one claim, in ordinary commits that move no position; the later read wins. A crash
leaves commits that the next sync loads, or nothing. Then source and warehouse are compared again.
"""

from __future__ import annotations

from floodmark.config.load import TableOptions
from floodmark.log.fold import State
from floodmark.model.errors import ConfigError
from floodmark.model.position import Key
from floodmark.model.table import Table
from floodmark.model.times import temporal
from floodmark.plan.bound import Reading
from floodmark.plan.origin import check_origin
from floodmark.plan.wait import Source, settle
from floodmark.services import Services
from floodmark.source.keys import gone
from floodmark.source.sources import source_id
from floodmark.verify.lookup import Differences


def to_repair(
    services: Services, table: Table, found: Differences
) -> tuple[tuple[Key, ...], tuple[Key, ...]]:
    """The rows to read again, and the extra rows that the source lacks, queried now under our claim.

    Extra rows that it has exist twice, or their key reads differently.
    """
    with services.reading("verify", table) as session:
        absent = set(gone(session, table, found.extra))
    there = (key for key in found.extra if key not in absent)
    different = (key for key, _ in found.different)
    return (*found.missing, *different, *there), tuple(absent)


def check_repairable(services: Services, table: Table, state: State, options: TableOptions) -> None:
    """Refuses a table without a key, and a source other than the one read."""
    if not table.key:
        raise ConfigError(
            "a table without a key can't be repaired row by row",
            hint=f"read it again into an empty target: floodmark watermark reset -t {table.name} --force",
            table=table.name,
        )
    # Rows of a source that is behind would replace newer ones.
    with services.session("verify") as session:
        services.sources.check(table.name, source_id(session, table, with_id=False))
        looks = services.looks(session)
        reading = Reading(table, state, options, looks.trust(session), low=state.position)
        source = Source(session, looks, reading)
        newest = source.last()
        back_to = settle(source).back_to if temporal(table) else None
        check_origin(source, newest, back_to=back_to)
