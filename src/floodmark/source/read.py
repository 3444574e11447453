"""The reader: one SELECT as a stream of Arrow record batches, exactly as MySQL holds the values, in bounded memory.

A batch is delivered as soon as it is full, but the result is complete only if the iteration ends normally: a
lost connection raises, and so does a warning that the server lost a value. Cells arrive as text, or already as numbers
and times. Arrow's casts convert them, column by column; Python looks at single values only after a cast has failed. A
value that can't be represented is never guessed: the table's policies (`zero_dates`, `overflow`) decide, and every value
they change is counted.
"""

from __future__ import annotations

import datetime
import gc
import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute

from floodmark.model.errors import DataError, TransientError
from floodmark.model.policies import tells_rows_apart, when_too_long
from floodmark.model.table import Table
from floodmark.model.types import TWIN, Field, fields, is_moment, member_text, quote, schema_of
from floodmark.model.warehouse import UNLIMITED, Capabilities
from floodmark.model.window import Window
from floodmark.source import sql
from floodmark.source.errors import hint_for, meaning
from floodmark.source.rows.decoder import gathered
from floodmark.source.session import Session, Version, version

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

    Also counts: `rows` delivered, and by column the values that policies have changed.
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
        self.changes = Counter[str]()
        self._session, self._table, self._sql, self._limit = session, table, sql, rows
        self._fields = fields(table) if chosen is None else chosen
        self._schema = schema_of(self._fields)
        self._converters = [Converter(f, table, limits, self.changes) for f in self._fields]
        self._batches = self._read()

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


# pyarrow's stubs can't type arrays whose type is known only at run time.
Array: TypeAlias = Any
Convert = Callable[[Array], Array]

pc: Any = pyarrow.compute
_cast = pc.get_function("cast").call
_TEXT = pa.string()
_IN_KEY = "correct the value: it is part of the key, which must identify the row"
_ZERO_PARTS = r"^\d{4}-(00-|\d\d-00)"
_ESCAPED_NUL = re.compile(r"(\\\\)|\\u0000")  # in a pair of backslashes, neither begins an escape


class Unfit(Exception):
    """A value that can't be represented, and its index in the converted array."""

    def __init__(self, index: int, what: str, hint: str) -> None:
        super().__init__(what)
        self.index = index
        self.what = what
        self.hint = hint


def refused_above(field: Field, table: Table, limits: Capabilities) -> int | None:
    """The length in bytes above which a value of the field stops the read; None if no length does."""
    return limits.exceeded(field) if when_too_long(field, table) == "error" else None


def way_out(field: Field, table: Table, limits: Capabilities) -> str:
    """The hint for a value that is too long."""
    if not limits.parses(field):
        return _choices(field, table)
    return f"JSON can't be truncated: set {limits.longer}overflow: null, or exclude the column"


def to_arrow(
    field: Field, cells: list[bytes | None], table: Table, limits: Capabilities = UNLIMITED
) -> Array:
    """Converts the cells of one column, for few values. The reader keeps its converters instead."""
    return Converter(field, table, limits, Counter())(pa.array(cells, gathered(field.arrow)))


class Converter:
    """The conversion of raw cells to a field's array. Made once per column, called for every batch.

    `changes` counts the values that the table's policies change; no policy may touch a value that tells rows apart.
    """

    def __init__(self, field: Field, table: Table, limits: Capabilities, changes: Counter[str]) -> None:
        self._field, self._table, self._limits, self._changes = field, table, limits, changes
        self._in_key = tells_rows_apart(field, table)
        self._zero_dates = "error" if self._in_key else table.recipe.zero_dates
        self._overflow = "error" if self._in_key else table.recipe.overflow
        self._document = field.is_text and limits.parses(field)
        self._nul = not field.is_text or limits.nul
        self._named = field.is_text and field.name in table.key and member_text(table.column(field.name))
        binary = pa.types.is_binary(field.arrow) or pa.types.is_large_binary(field.arrow)
        limit = limits.binary if binary and not field.file_only else None
        if field.is_text:
            limit = limits.document if self._document else limits.text
        # Only if values of the column can exceed it.
        self._limit = None if limit is None or field.max_bytes <= limit else limit
        self._heaviest = limits.weight if field.file_only else None
        self._as_is = binary or field.file_only
        self._moment = is_moment(field)
        parsed = pa.timestamp("us") if self._moment and not pa.types.is_date32(field.arrow) else field.arrow
        self._options = pc.CastOptions.safe(parsed)

    def __call__(self, cells: Array) -> Array:
        if self._field.raw:  # the text of impossible dates; NULL for all others
            text = cells.view(_TEXT)
            return pc.if_else(_impossible(text), text, pa.scalar(None, _TEXT))
        if self._moment:
            return self._moments(cells)
        values = cells if self._as_is else self._values(cells)
        if self._heaviest is not None:
            self._check_weights(values, self._heaviest)
        elif self._limit is not None:
            values = self._within(values, self._limit)
        if self._named:
            self._check_members(values)
        return values if self._nul else self._without_nul(values)

    def _values(self, cells: Array) -> Array:
        """Numbers, or text."""
        text = self._field.is_text
        given = cells if text else _readable(cells)
        try:
            return _cast([given], self._options)  # of text: checks UTF-8, copies nothing
        except pa.ArrowInvalid:
            index = next(i for i in range(len(given)) if _fails(_cast, [given[i : i + 1]], self._options))
        value = cells[index].as_py()
        if text:
            shown = value[:32].hex() + ("…" if len(value) > 32 else "")
            raise Unfit(
                index,
                f"text that is not valid Unicode (0x{shown})",
                "correct the value, or exclude the column",
            )
        what = f"{value!r}, which is not a valid {self._field.arrow}"
        raise Unfit(index, what, "check the column's type, or exclude the column")

    def _check_weights(self, weights: Array, limit: int) -> None:
        """A key's weights stay unchanged: rows are merged by them."""
        lengths = pc.binary_length(weights)
        if (pc.max(lengths).as_py() or 0) > limit:
            index = pc.index(pc.fill_null(pc.greater(lengths, limit), False), True).as_py()
            raise Unfit(
                index,
                f"a key with {lengths[index].as_py():,} bytes of collation weights, but {self._limits.label} compares at most "
                f"{limit:,}",
                "give the key column a _bin collation, or shorten the value",
            )

    def _check_members(self, values: Array) -> None:
        """No value of a key's ENUM or SET may read like another one: the warehouse has only their text."""
        index = pc.index(pc.starts_with(values, TWIN), True).as_py()
        if index >= 0:
            number = values[index].as_py().removeprefix(TWIN)
            raise Unfit(index, f"the number {number}, whose text is that of another value", _IN_KEY)

    def _moments(self, cells: Array) -> Array:
        """Dates and times; impossible ones by `zero_dates`."""
        text = _readable(cells)
        try:
            return _cast([text], self._options).view(self._field.arrow)
        except pa.ArrowInvalid:
            bad = _impossible(text)
        if self._zero_dates == "error":
            index = max(pc.index(bad, True).as_py(), 0)
            choices = "set zero_dates: null, or keep (the exact text in a second column)"
            raise Unfit(index, f"the impossible date {text[index]}", _IN_KEY if self._in_key else choices)
        self._count(bad)
        possible = pc.if_else(bad, pa.scalar(None, _TEXT), text)
        return _cast([possible], self._options).view(self._field.arrow)

    def _within(self, values: Array, limit: int) -> Array:
        """The values within the warehouse's limit; longer ones by `overflow`."""
        lengths = pc.binary_length(values)
        if (pc.max(lengths).as_py() or 0) <= limit:
            return values
        policy = when_too_long(self._field, self._table)
        if policy == "error":
            longest = pc.max(lengths)
            raise Unfit(
                pc.index(lengths, longest).as_py(),
                f"a value of {longest.as_py():,} bytes, but the warehouse holds at most {limit:,}",
                way_out(self._field, self._table, self._limits),
            )
        long = pc.fill_null(pc.greater(lengths, limit), False)
        self._count(long)
        if policy == "null":
            return pc.if_else(long, pa.scalar(None, values.type), values)
        pairs = zip(values.to_pylist(), long.to_pylist(), strict=True)
        return pa.array([_cut(v, limit) if over else v for v, over in pairs], values.type)

    def _without_nul(self, values: Array) -> Array:
        """For a warehouse without U+0000 in text, which JSON documents write as an escape: refused, stripped of it, or NULL."""
        sign = r"\u0000" if self._document else "\0"
        if not pc.any(pc.match_substring(values, sign)).as_py():
            return values
        if self._document:
            texts = [t and _ESCAPED_NUL.sub(lambda found: found[1] or "", t) for t in values.to_pylist()]
            cleared = pa.array(texts, values.type)
        else:
            cleared = pc.replace_substring(values, sign, "")
        bad = pc.fill_null(pc.not_equal(values, cleared), False)
        if not pc.any(bad).as_py():
            return values
        if self._overflow == "error":
            what = "a document" if self._document else "text"
            said = f"{what} with the character U+0000, which the warehouse can't hold"
            raise Unfit(pc.index(bad, True).as_py(), said, _choices(self._field, self._table))
        self._count(bad)
        return pc.if_else(bad, pa.scalar(None, values.type), values) if self._overflow == "null" else cleared

    def _count(self, which: Array) -> None:
        """Counts the marked values as changed."""
        self._changes[self._field.column] += pc.sum(which).as_py() or 0


def _readable(cells: Array) -> Array:
    """The cells as text, unless they are already numbers or times."""
    return cells.view(_TEXT) if pa.types.is_binary(cells.type) else cells


def _fails(convert: Callable[..., object], *arguments: object) -> bool:
    """Whether a conversion refuses a value."""
    try:
        convert(*arguments)
    except ValueError:
        return True
    return False


def _impossible(text: Array) -> Array:
    """Which values are not dates; the answer itself is never NULL."""
    zero = pc.fill_null(pc.match_substring_regex(text, _ZERO_PARTS), False)
    rest = pc.if_else(zero, pa.scalar(None, _TEXT), pc.utf8_slice_codeunits(text, 0, 10))
    try:
        rest.cast(pa.date32())
    except pa.ArrowInvalid:  # days that don't exist in their month, stored under ALLOW_INVALID_DATES
        # Arrow and the warehouses know a year 0, Python doesn't; it has the same days as 2000.
        days = (v and v.replace("0000-", "2000-", 1) for v in rest.to_pylist())
        wrong = [v is not None and _fails(datetime.date.fromisoformat, v) for v in days]
        return pc.or_(zero, pa.array(wrong, pa.bool_()))
    return zero


def _cut(value: str | bytes, limit: int) -> str | bytes:
    """The longest prefix of whole characters that fits."""
    if isinstance(value, bytes):
        return value[:limit]
    return value.encode()[:limit].decode(errors="ignore")


def _choices(field: Field, table: Table) -> str:
    if tells_rows_apart(field, table):
        return _IN_KEY
    return "set overflow: truncate or null, or exclude the column"


# About as long as Spark takes to start.
LOOK_SECONDS = 2


def bounded(table: Table, limits: Capabilities) -> dict[Field, int]:
    """The fields whose values may stop the read, and how many bytes of them the warehouse holds."""
    return {f: limit for f in fields(table) if (limit := refused_above(f, table, limits)) is not None}


def check_lengths(session: Session, table: Table, window: Window | None, limits: Capabilities) -> None:
    """Raises DataError if it finds a value that the read would stop at."""
    found = bounded(table, limits)
    question = length_query(table, window, found, version(session)) if found else None
    if question is None:
        return
    try:
        rows = session.rows(question)
    except TransientError:  # the time is up; if the server is gone, the read will notice
        return
    for row in rows:
        for (field, limit), cell in zip(found.items(), row, strict=True):
            if cell is not None and int(cell) > limit:
                raise DataError(
                    f"column {field.column}: a value of {int(cell):,} bytes, but the warehouse holds at most {limit:,}",
                    hint=way_out(field, table, limits),
                    table=table.name,
                )


def length_query(
    table: Table, window: Window | None, found: Mapping[Field, int], server: Version
) -> str | None:
    """The query for one row with such a value; None if the server can't enforce a time limit."""
    texts = [f"CONVERT({f.select} USING utf8mb4)" if f.is_text else f.select for f in found]
    lengths = [f"OCTET_LENGTH({text})" for text in texts]  # in bytes as written to the file
    long = " OR ".join(f"{length} > {limit}" for length, limit in zip(lengths, found.values(), strict=True))
    inside = sql.between(table, table.order, window.low, window.high) if window and table.order else []
    if server.numbers < ((10, 1) if server.mariadb else (5, 7)):
        return None
    hint = "" if server.mariadb else f"/*+ MAX_EXECUTION_TIME({LOOK_SECONDS * 1000}) */ "
    query = sql.query(table, hint + ", ".join(lengths), [*inside, long], most=1)
    return f"SET STATEMENT max_statement_time = {LOOK_SECONDS} FOR {query}" if server.mariadb else query
