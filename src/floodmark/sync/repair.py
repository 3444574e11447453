"""`verify --repair`: extracts missing and differing rows again, and turns extra rows into deletes.

Everything happens under one claim, in ordinary commits that move no position; the later read wins. A crash
leaves commits that the next sync loads, or nothing. Then source and warehouse are compared again.
"""

from __future__ import annotations

from dataclasses import dataclass

from floodmark.commit.fold import State
from floodmark.config.load import TableOptions
from floodmark.model.errors import ConfigError
from floodmark.model.position import Key
from floodmark.model.table import Table
from floodmark.model.times import temporal
from floodmark.plan.bound import Reading
from floodmark.plan.origin import check_origin
from floodmark.plan.wait import Source, settle
from floodmark.services.mysql.keys import gone
from floodmark.services.mysql.sources import source_id
from floodmark.services.run import Services
from floodmark.verify.compare import Differences


@dataclass(frozen=True)
class RepairPlan:
    """What a repair has to do for a table."""

    table: Table
    found: Differences

    def absent(self, services: Services) -> set[Key]:
        """The extra rows that the source lacks, queried now under our claim."""
        with services.reading("verify", self.table) as session:
            return set(gone(session, self.table, self.found.extra))

    def to_read(self, absent: set[Key]) -> tuple[Key, ...]:
        """The rows to read again; of extra ones, those that exist twice or whose key reads differently."""
        there = (key for key in self.found.extra if key not in absent)
        different = (key for key, _ in self.found.different)
        return (*self.found.missing, *different, *there)


def what_to_repair(
    services: Services, table: Table, state: State, options: TableOptions, found: Differences
) -> RepairPlan:
    """What to repair row by row; refuses a table without a key, and a source other than the one read."""
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
    return RepairPlan(table, found)
