"""The reader: one SELECT as a stream of Arrow record batches, in bounded memory.

A batch is delivered as soon as it is full, but the result is complete only if the iteration ends normally: a
lost connection raises, and so does a warning that the server lost a value.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing

import pyarrow as pa

from floodmark.model.errors import DataError
from floodmark.model.table import Table
from floodmark.model.types import TWIN, Field, fields, quote, schema_of
from floodmark.model.warehouse import UNLIMITED, Capabilities
from floodmark.source.convert import Array, Changes, Unfit, converter
from floodmark.source.errors import hint_for, meaning
from floodmark.source.session import Session

# Rows and bytes per batch.
ROWS = 16_384
BYTES = 16 << 20

# Warnings that don't concern the selected values: comparisons in the user's `where`, deprecated syntax.
_HARMLESS = {1287, 1292, 1681}
_TOO_LONG = 1301


class UnfitValue(DataError):
    """A value that no file could hold under the table's policies."""


class Batches:
    """The rows of a SELECT of the table's fields, or of those chosen, as record batches of their file schema.

    Also counts: `rows` delivered, and values `changed` by policy.
    """

    def __init__(
        self,
        session: Session,
        table: Table,
        sql: str,
        *,
        rows: int = ROWS,
        limits: Capabilities = UNLIMITED,
        chosen: Sequence[Field] | None = None,
    ) -> None:
        self.rows = 0
        self._session, self._table, self._sql, self._limit = session, table, sql, rows
        self._fields = fields(table) if chosen is None else chosen
        self._schema = schema_of(self._fields)
        self._changes = Changes()
        self._converters = [converter(f, table, limits, self._changes) for f in self._fields]
        self._batches = self._read()

    @property
    def changed(self) -> int:
        return self._changes.values

    @property
    def changes(self) -> tuple[tuple[str, int], ...]:
        """The values changed by policy, per column."""
        return tuple(self._changes.columns.items())

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        return next(self._batches)

    def close(self) -> None:
        """Stops reading early; closes the session."""
        self._batches.close()

    def _read(self) -> Generator[pa.RecordBatch, None, None]:
        collecting = gc.isenabled()
        gc.disable()  # many short-lived objects, never a cycle among them
        try:
            blocks = self._session.columns(self._sql, self._limit, [f.arrow for f in self._fields])
            with closing(blocks):
                yield from self._join(blocks)
            self._check_warnings()
        finally:
            if collecting:
                gc.enable()

    def _join(self, pieces: Iterator[list[Array]]) -> Iterator[pa.RecordBatch]:
        held: list[list[Array]] = []
        rows = size = 0
        for piece in pieces:
            held.append(piece)
            rows += len(piece[0])
            size += sum(column.nbytes for column in piece)
            del piece
            if rows >= self._limit or size >= BYTES:
                yield self._batch(held)
                held, rows, size = [], 0, 0
        if held:
            yield self._batch(held)

    def _batch(self, pieces: list[list[Array]]) -> pa.RecordBatch:
        columns = zip(*pieces, strict=True)
        cells = pieces[0] if len(pieces) == 1 else [_whole(column) for column in columns]
        pieces.clear()
        done: list[Array] = []
        for i, convert in enumerate(self._converters):
            try:
                done.append(convert(cells[i]))
            except Unfit as unfit:
                self._session.close()
                raise UnfitValue(
                    f"column {self._fields[i].column}: {unfit.what}{self._row(cells, unfit.index)}",
                    hint=unfit.hint,
                    table=self._table.name,
                ) from None
        self.rows += len(cells[0])
        return pa.RecordBatch.from_arrays(done, schema=self._schema)

    def _row(self, cells: list[Array], index: int) -> str:
        """Names the row by its key."""
        key = [
            f"{field.name} = {_shown(cells[i][index].as_py())}"
            for i, field in enumerate(self._fields)
            if field.column in self._table.key and field.name == field.column
        ]
        return f", in the row with {', '.join(key)}" if key else ""

    def _check_warnings(self) -> None:
        """Raises if a value was lost: above max_allowed_packet MySQL gives NULL with only a warning."""
        count = self._session.warnings()
        if not count:
            return
        said = self._session.rows("SHOW WARNINGS")
        serious = [(int(code or 0), message) for _, code, message in said if int(code or 0) not in _HARMLESS]
        # A field that selects nothing of the table can't lose a value of it.
        computed = any(f.select and f.select != quote(f.column) for f in self._fields)
        if serious or (count > len(said) and computed):
            code, message = serious[0] if serious else (_TOO_LONG, b"too many warnings to look at")
            raise DataError(
                f"MySQL warned that values were lost while reading: {(message or b'').decode(errors='replace')}",
                hint=hint_for(meaning(code), self._session.spec),
                table=self._table.name,
            )


def _whole(pieces: Sequence[Array]) -> Array:
    """Joins the pieces of a column. A piece with an invalid date holds texts, so all pieces become text."""
    if len({piece.type for piece in pieces}) > 1:
        pieces = [p if pa.types.is_binary(p.type) else p.cast(pa.string()).view(pa.binary()) for p in pieces]
    return pa.concat_arrays(pieces)


def _shown(value: object) -> str:
    if value is None:
        return "NULL"
    text = value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)
    return text.replace(TWIN, "number ")
