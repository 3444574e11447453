"""Parts of a table's recipe that may change between two syncs, for random walks: its columns and its configuration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MODES: dict[str, dict[str, Any]] = {
    "upsert": {"mode": "upsert", "deletes": "hard", "deletes_every": "0s"},
    "append": {"mode": "append", "cursor": "at"},
    "keyless": {"mode": "append", "cursor": "at", "overlap_seconds": 0},
    "full": {"mode": "full"},
}
EVERY = frozenset(MODES)
THINGS = """CREATE TABLE things (id INT NOT NULL{key}, a INT, b INT, n INT, txt VARCHAR(20), price DECIMAL(10,2),
  bin BINARY(4), picks SET('x','y'), pick ENUM('p','q'), ratio DOUBLE, twice INT AS (n * 2) STORED,
  at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6), KEY (at))"""


def rows(first: int, last: int, now: bool = False) -> str:
    """An INSERT of some rows, with old cursors or the current one."""
    names = "id, a, b, n, txt, price, bin, picks, pick, ratio"
    made = (
        f"({i}, {i % 7}, {i % 5 or (0 if now else 'NULL')}, {i}, 't{i}', {i}.5, 'b{i % 10}', 'x', 'q', {i}"
        + ("" if now else f", '2025-03-01' + INTERVAL {i} SECOND")
        + ")"
        for i in range(first, last + 1)
    )
    return f"INSERT INTO things ({names}{'' if now else ', at'}) VALUES {', '.join(made)}"


@dataclass(frozen=True)
class Part:
    """What happens at the source, and the table's options from then on (None: removed)."""

    at_source: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    modes: frozenset[str] = EVERY


def ddl(*statements: str) -> Part:
    return Part(("SET sql_mode = ''", *(f"ALTER TABLE things {s}" for s in statements)))


PARTS = {
    "columns swapped": ddl("CHANGE a b INT, CHANGE b a INT"),
    "expression changed": ddl("MODIFY twice INT AS (n * ({n} + 3)) STORED"),
    "BINARY longer": ddl("MODIFY bin BINARY(8)"),
    "SET reordered": ddl("MODIFY picks SET('y','x')"),
    "VARCHAR truncated": ddl("MODIFY txt VARCHAR(6)"),
    "VARCHAR longer": ddl("MODIFY txt VARCHAR(90)"),
    "ENUM value added": ddl("MODIFY pick ENUM('p','q','r')"),
    "not NULL any more": ddl("MODIFY b INT NOT NULL DEFAULT 7"),
    "INT larger": ddl("MODIFY n BIGINT"),
    "DECIMAL larger": ddl("MODIFY price DECIMAL(14,2)"),
    "a column elsewhere": ddl("MODIFY txt VARCHAR(20) FIRST"),
    "column added and filled": Part(
        ("ALTER TABLE things ADD COLUMN extra_{n} INT", "UPDATE things SET extra_{n} = id, at = at")
    ),
    "column with a default added": ddl("ADD COLUMN extra_{n} INT NOT NULL DEFAULT 7"),
    "excluded": Part(options={"exclude": ["b"]}),
    "no longer excluded": Part(options={"exclude": None}),
    "a where": Part(options={"where": "id % 3 <> 0"}, modes=frozenset({"upsert", "full"})),
    "another where": Part(options={"where": "id % 2 = 0"}, modes=frozenset({"upsert", "full"})),
    "no where": Part(options={"where": None}, modes=frozenset({"upsert", "full"})),
    "another target": Part(options={"target": "other_{n}"}, modes=frozenset({"upsert", "full"})),
    "read whole": Part(options={"mode": "full", "deletes": None, "deletes_every": None, "cursor": None},
                       modes=frozenset({"upsert", "append"})),
    "by the cursor": Part(options={"mode": "upsert", "cursor": None}, modes=frozenset({"full", "append"})),
}  # fmt: skip
