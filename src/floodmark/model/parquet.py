"""The format of every data file: one Parquet dialect and one footer, for files of rows and files of keys.

The dialect is the strict one that Redshift's COPY accepts (types.py has the column types). The footer says
where a file belongs, should the log ever be lost. pyarrow is imported late, so that reading a log does not
wait for it.
"""

from __future__ import annotations

import hashlib
import io
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from floodmark.model.commit import DataFile
from floodmark.model.position import Position

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

_PREFIX = "floodmark."


@dataclass(frozen=True)
class Footer:
    """The metadata that a file carries besides its rows."""

    table: str
    log: str
    run: str
    claim: int
    window: str | None
    kind: str  # the slice's kind
    slice: int
    schema: str
    attempt: str
    first: Position | None = None
    last: Position | None = None

    def metadata(self) -> dict[str, str]:
        """The footer as the file's key-value metadata."""
        said = vars(self) | {
            "window": self.window or "",
            "slice": f"{self.kind}/{self.slice}",
            "first": json.dumps(self.first),
            "last": json.dumps(self.last),
        }
        return {_PREFIX + name: str(value) for name, value in said.items() if name != "kind"}


def writer(sink: pa.NativeFile, schema: pa.Schema, **more: Any) -> pq.ParquetWriter:
    """A Parquet writer in our dialect; `more` chooses the columns that get a dictionary or statistics."""
    from pyarrow.parquet import ParquetWriter

    return ParquetWriter(
        sink,
        schema,
        version="2.6",
        data_page_version="1.0",
        compression="zstd",
        compression_level=1,
        store_schema=False,
        **more,
    )


def data_file(path: str, content: bytes | pa.Buffer, footer: Footer, rows: int, **more: Any) -> DataFile:
    """A file as its commit describes it; `more` holds fields that can't be derived from the content."""
    return DataFile(
        path, rows, len(memoryview(content)), hashlib.sha256(content).hexdigest(),
        footer.slice, footer.first, footer.last, **more,
    )  # fmt: skip


def read_footer(content: bytes) -> tuple[Footer, int] | None:
    """A file's footer and number of rows; None if the file is not ours."""
    from pyarrow.parquet import read_metadata

    try:
        metadata: Any = read_metadata(io.BytesIO(content))
        said = {name.decode(): value.decode() for name, value in (metadata.metadata or {}).items()}
        found = {name.removeprefix(_PREFIX): said[name] for name in said if name.startswith(_PREFIX)}
        kind, _, number = found.pop("slice").rpartition("/")
        return Footer(
            claim=int(found.pop("claim")),
            window=found.pop("window") or None,
            kind=kind,
            slice=int(number),
            first=_position(found.pop("first")),
            last=_position(found.pop("last")),
            **{name: found[name] for name in ("table", "log", "run", "schema", "attempt")},
        ), metadata.num_rows
    except (OSError, ValueError, KeyError):
        return None


def _position(text: str) -> Position | None:
    values = json.loads(text)
    return tuple(values) if values is not None else None
