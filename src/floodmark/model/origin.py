"""What we remember about a source, so that we notice if it has been replaced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from floodmark.model.position import Position


class Witness(NamedTuple):
    """A row as the source had it: its position, and checksums of some cells by `witnesses.mark`."""

    position: Position
    cells: tuple[tuple[str, int | None], ...] = ()


@dataclass(frozen=True)
class SourceId:
    """The server and the table that a session has read. Each part may be unknown."""

    server: str = ""  # all that tells it from others, as `trust.server_of` has it
    created: str | None = None  # when the table was created
    table_id: int | None = None  # InnoDB's id of the table

    def differs(self, other: SourceId) -> Literal["server", "table"] | None:
        """What is not the same, as far as both know it."""
        if self.server and other.server and self.server != other.server:
            return "server"
        pairs = (self.created, other.created), (self.table_id, other.table_id)
        return "table" if any(None not in pair and pair[0] != pair[1] for pair in pairs) else None


UNKNOWN_SOURCE = SourceId()


@dataclass(frozen=True)
class Origin:
    """What identifies a source. Each part may be unknown."""

    server: str | None = None  # its UUID
    gtids: str | None = None  # executed transactions: MySQL's GTID set, or MariaDB's GTID position
    table_id: int | None = None  # InnoDB's id of the table
    created: str | None = None  # when the table was created
    witnesses: tuple[Witness, ...] = ()  # some rows, highest positions last
