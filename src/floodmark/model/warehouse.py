"""What the program knows of each kind of warehouse, as data; how it works is in its folder of `load`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:  # a run reads its configuration before anything as heavy as Arrow is imported
    from floodmark.model.types import Field

SUPER = "SUPER"  # Redshift's type for parsed JSON

# Capacity of Redshift's columns, in bytes.
MAX_VARCHAR = 65_535
MAX_VARBYTE = 16_777_216
MAX_WEIGHT = MAX_VARCHAR // 2  # of a key's weights: they are hashed as text, in hexadecimal
MAX_LARGE_STRING = 16_000_000  # of SUPER, and of text in memory, if the cluster has large strings enabled


@dataclass(frozen=True)
class Capabilities:
    """A kind of warehouse: what it can do, and how many bytes a value may have (None: any)."""

    kind: Literal["duckdb", "redshift"]
    label: str  # as people write it
    holds: str  # which values it can hold, as recipes keep it
    text: int | None = None
    binary: int | None = None
    document: int | None = None  # JSON, before it is parsed
    weight: int | None = None  # of a key, in MySQL's collation
    nul: bool = True  # whether text may have U+0000
    # It runs on this machine, for one process at a time: its waits are limited, and it hands out its rows.
    embedded: bool = True
    hashes_bytes: bool = True

    def type_of(self, field: Field) -> str:
        """The type of a field's column in the target."""
        return field.duckdb if self.kind == "duckdb" else field.redshift

    def parses(self, field: Field) -> bool:
        """Whether it keeps the field's JSON parsed, which has the same meaning but another text."""
        return self.type_of(field) == SUPER

    def exceeded(self, field: Field) -> int | None:
        """How many bytes of a value it can hold, if the field's values may be longer."""
        text = self.document if self.parses(field) else self.text
        limit = text if field.is_text else self.binary
        return limit if limit is not None and field.max_bytes > limit else None


DUCKDB = Capabilities("duckdb", "DuckDB", "any")
REDSHIFT = Capabilities(
    "redshift", "Redshift", "redshift", MAX_VARCHAR, MAX_VARBYTE, MAX_VARCHAR, MAX_WEIGHT,
    nul=False, embedded=False, hashes_bytes=False,
)  # fmt: skip
# A cluster with large strings takes longer documents, not longer text.
LARGE_STRINGS = replace(REDSHIFT, holds="redshift with large strings", document=MAX_LARGE_STRING)
