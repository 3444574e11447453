"""The oldest row, by one column, of a Parquet file that the older tool wrote."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from floodmark.services.store.store import Store
from floodmark.services.temp import scratched

_EPOCH = datetime(1970, 1, 1)
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


class Unreadable(Exception):
    """Why a file's oldest row can't be determined."""


def oldest(store: Store, path: str, cursor: str, key: Sequence[str]) -> datetime | str | None:
    """The smallest value of the cursor in the file; None if the file has no rows of such a table.

    Times keep their zone if the file has one; text is returned unchanged. Raises Unreadable.
    """
    with scratched("floodmark-older-") as folder:
        local = store.local(path)
        if local is None:
            local = folder / "file.parquet"
            store.download(path, local)
        try:
            return _oldest(local, cursor, key)
        except (pa.ArrowException, OSError, OverflowError) as error:
            raise Unreadable(f"it can't be read ({' '.join(str(error).split())[:100]})") from None


def _oldest(path: Path, cursor: str, key: Sequence[str]) -> datetime | str | None:
    with pq.ParquetFile(path) as file:
        names = {name.lower(): name for name in file.schema_arrow.names}
        if any(k.lower() not in names for k in key):
            return None  # a file of another table whose name looks the same
        if cursor.lower() not in names:
            raise Unreadable(f"it has no column {cursor}")
        least: Any = None
        for batch in file.iter_batches(columns=[names[cursor.lower()]]):
            found = pc.min(batch.column(0))
            if found.is_valid and (least is None or pc.less(found, least).as_py()):
                least = found
    return None if least is None else _moment(least, cursor)


def _moment(value: Any, cursor: str) -> datetime | str:
    kind = value.type
    if pa.types.is_timestamp(kind):
        # From the integer: as_py would need pandas for nanoseconds. Digits below a microsecond are cut off.
        wall = _EPOCH + timedelta(microseconds=value.value * 1_000_000 // _PER_SECOND[kind.unit])
        return wall.replace(tzinfo=UTC) if kind.tz else wall
    found = value.as_py()
    if isinstance(found, date):
        return datetime(found.year, found.month, found.day)
    if isinstance(found, str):
        return found
    raise Unreadable(f"its column {cursor} is not a time ({kind})")
