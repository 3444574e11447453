"""Keys by the million: Arrow tables of a table's key columns, and the values in them as positions hold them. Pure.

Here two keys are the same only if their bytes are. Where MySQL also takes other spellings for the same key, both are
asked for: one row answers both, and whoever asks compares weights.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.model.position import Key, Value
from floodmark.model.table import Column, Table
from floodmark.model.types import TWIN

WHOLE = {"tinyint", "smallint", "mediumint", "int", "bigint"}
# A lookup costs about as much as four rows of a range. So keys that lie close together are read as a range, if there
# are enough of them to pay for a statement.
CLOSE = 8  # from one key to the next
SPARSEST = 3  # numbers in the range for each key
FEWEST = 200

Cells = Any  # pa.Array, or pa.ChunkedArray; pyarrow's stubs can't type arrays whose type is known only at run time


def values_of(column: Column, cells: Cells) -> list[Value | None]:
    """The values of a column's field as positions hold them."""
    if pa.types.is_temporal(cells.type):
        # Not through datetime: MySQL's years start at 0000.
        plain = cells if pa.types.is_date32(cells.type) else cells.cast(pa.timestamp("us"))
        return list(plain.cast(pa.string()).to_pylist())
    return [None if value is None else _value(column, value) for value in cells.to_pylist()]


def _value(column: Column, value: Any) -> Value:
    if isinstance(value, bytes):
        return "0x" + value.hex()
    if column.data_type in ("enum", "set") and value.startswith(TWIN):
        return int(value.removeprefix(TWIN))
    if column.data_type == "enum":
        return column.members.index(value) + 1 if value in column.members else 0
    if column.data_type == "set":
        return sum(1 << column.members.index(v) for v in value.split(",")) if value else 0
    if isinstance(value, int) or (isinstance(value, Decimal) and column.data_type != "decimal"):
        return int(value)  # BIGINT UNSIGNED and BIT(64) are decimals in files
    return format(value, "f") if isinstance(value, Decimal) else str(value)


def keys_of(table: Table, found: pa.Table) -> list[Key]:
    """The keys in these columns, in order."""
    columns = [values_of(table.column(name), found.column(name)) for name in table.key]
    return list(zip(*columns, strict=True))


def distinct(keys: pa.Table) -> pa.Table:
    """The keys in the order of their bytes, each once."""
    keys = keys.combine_chunks()
    if not keys.num_rows:
        return keys
    keys = keys.take(pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.column_names]))
    new = np.zeros(keys.num_rows, bool)
    new[0] = True
    for column in keys.combine_chunks().columns:
        cells: Cells = column.combine_chunks()
        differs = pc.not_equal(cells[1:], cells[:-1])
        one_null = pc.not_equal(pc.is_null(cells[1:]), pc.is_null(cells[:-1]))
        new[1:] |= pc.coalesce(differs, one_null).to_numpy(zero_copy_only=False)
    return keys if new.all() else keys.filter(pa.array(new))


def runs(table: Table, keys: pa.Table) -> list[tuple[int, int]]:
    """Where distinct keys are whole numbers close together: the index of the first one, and that after the last."""
    column = keys.column(0)
    whole = len(table.key) == 1 and table.column(table.key[0]).data_type in WHOLE
    if not whole or keys.num_rows < FEWEST or column.null_count:
        return []
    wide = pa.uint64() if pa.types.is_decimal(column.type) else pa.int64()
    numbers = column.cast(wide).to_numpy().view(np.uint64)
    gaps = np.diff(numbers)  # modulo 2^64, so that it is right for negative numbers, too
    edges = np.concatenate(([0], np.flatnonzero(gaps > CLOSE) + 1, [len(numbers)]))
    begin, end = edges[:-1], edges[1:]
    count, last = end - begin, numbers[end - 1] - numbers[begin]
    dense = (count >= FEWEST) & (last < (count * SPARSEST).astype(np.uint64))
    return list(zip(begin[dense].tolist(), end[dense].tolist(), strict=True))
