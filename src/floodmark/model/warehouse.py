"""The warehouses there are, as data: one descriptor each. How a warehouse works is in its folder of `load`.

No other module outside that folder knows which warehouses exist (docs/add-a-warehouse.md). This one is read with every
configuration, so it imports nothing heavy; what opens a warehouse is named, and imported when it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from floodmark.model.types import Field

SUPER = "SUPER"  # Redshift's type for parsed JSON

# Capacity of Redshift's columns, in bytes.
MAX_VARCHAR = 65_535
MAX_VARBYTE = 16_777_216
MAX_WEIGHT = MAX_VARCHAR // 2  # of a key's weights: they are hashed as text, in hexadecimal
MAX_LARGE_STRING = 16_000_000  # of SUPER, and of text in memory, if the cluster has large strings enabled

# The warehouse's type for each type of field (`Field.type`); braces stand for lengths, or digits and scale.
_TYPES = {
    "int16": "SMALLINT", "int32": "INTEGER", "int64": "BIGINT", "decimal": "DECIMAL({},{})", "flag": "BOOLEAN",
    "float": "FLOAT", "double": "DOUBLE", "date": "DATE", "moment": "TIMESTAMP", "instant": "TIMESTAMPTZ",
    "text": "VARCHAR", "document": "VARCHAR", "bytes": "BLOB", "weight": "BLOB",
}  # fmt: skip


@dataclass(frozen=True)
class Capabilities:
    """What a warehouse can do, and how many bytes a value may have (None: any)."""

    label: str  # as people write it
    holds: str  # which values it can hold, as recipes keep it
    types: Mapping[str, str]
    text: int | None = None
    binary: int | None = None
    document: int | None = None  # JSON, before it is parsed
    weight: int | None = None  # of a key, in MySQL's collation
    nul: bool = True  # whether text may have U+0000
    # It runs on this machine, for one process at a time: its waits are limited, and it hands out its rows.
    embedded: bool = False
    hashes_bytes: bool = True
    parsed: str | None = None  # its type for parsed JSON
    longer: str = ""  # how it holds longer documents, for a hint

    def type_of(self, field: Field) -> str:
        """The type of a field's column in the target."""
        name, *sizes = field.type
        limit = {"text": self.text, "bytes": self.binary}.get(name)
        return self.types[name].format(*(min(size, limit or size) for size in sizes))

    def parses(self, field: Field) -> bool:
        """Whether it keeps the field's JSON parsed, which has the same meaning but another text."""
        return field.document and self.parsed is not None

    def exceeded(self, field: Field) -> int | None:
        """How many bytes of a value it can hold, if the field's values may be longer."""
        text = self.document if self.parses(field) else self.text
        limit = text if field.is_text else self.binary
        return limit if limit is not None and field.max_bytes > limit else None


@dataclass(frozen=True)
class Descriptor:
    """A warehouse as the configuration needs it. Its URL is a file's, or that of a server's database."""

    can: Capabilities
    schema: str  # the tables' schema if the configuration names none
    example: str  # a URL
    # `module:function` that takes a WarehouseSpec, `linger`, `seconds` and `waits` (see `open_warehouse`).
    opens: str
    examines: str | None = None  # the same of a generator of checks for `floodmark doctor`
    port: int | None = None  # of a server, if the URL names none; None: it is a file
    options: tuple[str, ...] = ()  # those keys of the section that not every warehouse has
    large: Capabilities | None = None  # with `large_strings`
    s3: bool = False  # it reads the files itself, and only from S3
    slow: str = ""  # why it may take long to answer


def named(place: str) -> Callable[..., Any]:
    """The function that a descriptor names."""
    module, _, name = place.partition(":")
    found: Callable[..., Any] = getattr(import_module(module), name)
    return found


UNLIMITED = Capabilities("any warehouse", "any", _TYPES)
DUCKDB = replace(UNLIMITED, label="DuckDB", embedded=True)
REDSHIFT = Capabilities(
    "Redshift", "redshift",
    _TYPES | {
        "float": "REAL", "double": "DOUBLE PRECISION", "text": "VARCHAR({})", "document": SUPER,
        "bytes": "VARBYTE({})", "weight": f"VARBYTE({MAX_VARCHAR})",
    },
    MAX_VARCHAR, MAX_VARBYTE, MAX_VARCHAR, MAX_WEIGHT, nul=False, hashes_bytes=False, parsed=SUPER,
    longer="warehouse.large_strings: true if the cluster has enable_large_strings_opt_in, or ",
)  # fmt: skip
# A cluster with large strings takes longer documents, not longer text.
LARGE_STRINGS = replace(REDSHIFT, holds="redshift with large strings", document=MAX_LARGE_STRING, longer="")

# By the scheme of their URLs; the first is the one of a configuration that names none.
WAREHOUSES = {
    "duckdb": Descriptor(
        DUCKDB, "main", "duckdb:///warehouse.duckdb", "floodmark.load.duckdb.warehouse:opened",
        "floodmark.setup.doctor.warehouse:examine_duckdb",
    ),
    "redshift": Descriptor(
        REDSHIFT, "public", "redshift://user:password@host:5439/database",
        "floodmark.load.redshift.warehouse:opened", "floodmark.setup.doctor.warehouse:examine_redshift",
        5439, ("iam", "ssh", "transport", "statement_timeout", "large_strings"), LARGE_STRINGS, s3=True,
        slow=" (a paused cluster takes minutes to resume)",
    ),
}  # fmt: skip


def holding(holds: str | None) -> Capabilities:
    """The capabilities that a recipe was made for."""
    return next((one.can for one in WAREHOUSES.values() if one.can.holds == holds), REDSHIFT)
