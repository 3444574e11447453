"""What we remember about a source, so that we notice if it has been replaced."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from floodmark.model.position import Position


class Witness(NamedTuple):
    """A row as the source had it: its position, and checksums of some cells by `witnesses.mark`."""

    position: Position
    cells: tuple[tuple[str, int | None], ...] = ()


@dataclass(frozen=True)
class Origin:
    """What identifies a source. Each part may be unknown."""

    server: str | None = None  # its UUID
    gtids: str | None = None  # executed transactions: MySQL's GTID set, or MariaDB's GTID position
    table_id: int | None = None  # InnoDB's id of the table
    created: str | None = None  # when the table was created
    witnesses: tuple[Witness, ...] = ()  # some rows, highest positions last
