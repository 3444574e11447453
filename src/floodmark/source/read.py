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
from dataclasses import replace
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute

from floodmark.model.errors import DataError, TransientError
from floodmark.model.policies import tells_rows_apart, when_too_long
from floodmark.model.table import Table
from floodmark.model.types import TWIN, Field, fields, is_moment, member_text, quote, schema_of
from floodmark.model.warehouse import DUCKDB, MAX_LARGE_STRING, SUPER, Capabilities
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

    Also counts: `rows` delivered, and values `changed` by policy.
    """

    def __init__(
        self,
        session: Session,
        table: Table,
        sql: str,
        *,
        rows: int = ROWS,
        limits: Capabilities = DUCKDB,
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


# pyarrow's stubs can't type arrays whose type is known only at run time.
Array: TypeAlias = Any
Convert = Callable[[Array], Array]

pc: Any = pyarrow.compute
_cast = pc.get_function("cast").call
_TEXT = pa.string()
_IN_KEY = "correct the value: it is part of the key, which must identify the row"
_ZERO_PARTS = r"^\d{4}-(00-|\d\d-00)"


class Unfit(Exception):
    """A value that can't be represented, and its index in the converted array."""

    def __init__(self, index: int, what: str, hint: str) -> None:
        super().__init__(what)
        self.index = index
        self.what = what
        self.hint = hint


class Changes:
    """How many values the table's policies have changed, per column."""

    def __init__(self) -> None:
        self.columns: Counter[str] = Counter()

    @property
    def values(self) -> int:
        return self.columns.total()

    def add(self, of: Field, which: Array) -> None:
        """Counts the marked values."""
        self.columns[of.column] += pc.sum(which).as_py() or 0


def converter(field: Field, table: Table, limits: Capabilities, changes: Changes) -> Convert:
    """The function from raw cells to the field's array. Made once per column, runs for every batch."""
    if field.raw:
        return _raw
    if tells_rows_apart(field, table):
        table = replace(table, recipe=replace(table.recipe, zero_dates="error", overflow="error"))
    if is_moment(field):
        return _moments(field, table, changes)
    if field.is_text:
        whole = limits.parses(field)
        limit = limits.document if whole else limits.text
        texts = _bounded(_values(field), field, limit, table, changes)
        if field.name in table.key and member_text(table.column(field.name)):
            texts = _unlike_others(texts)
        return texts if limits.nul else _without_nul(texts, field, table, changes, document=whole)
    if field.file_only:
        return _weights(limits.weight)
    if pa.types.is_binary(field.arrow) or pa.types.is_large_binary(field.arrow):
        return _bounded(_same, field, limits.binary, table, changes)
    return _values(field)


def refused_above(field: Field, table: Table, limits: Capabilities) -> int | None:
    """The length in bytes above which a value of the field stops the read; None if no length does."""
    return limits.exceeded(field) if when_too_long(field, table) == "error" else None


def way_out(field: Field, table: Table, limit: int) -> str:
    """The hint for a value that is too long."""
    return _document_choices(limit) if field.redshift == SUPER else _choices(field, table)


def to_arrow(field: Field, cells: list[bytes | None], table: Table, limits: Capabilities = DUCKDB) -> Array:
    """Converts the cells of one column, for few values. The reader keeps its converters instead."""
    return converter(field, table, limits, Changes())(pa.array(cells, gathered(field.arrow)))


def _same(cells: Array) -> Array:
    return cells


def _weights(limit: int | None) -> Convert:
    """A key's weights, unchanged; no policy may touch values that rows are merged by."""
    if limit is None:
        return _same

    def convert(cells: Array) -> Array:
        lengths = pc.binary_length(cells)
        if (pc.max(lengths).as_py() or 0) <= limit:
            return cells
        index = pc.index(pc.fill_null(pc.greater(lengths, limit), False), True).as_py()
        raise Unfit(
            index,
            f"a key with {lengths[index].as_py():,} bytes of collation weights, but Redshift compares at most "
            f"{limit:,}",
            "give the key column a _bin collation, or shorten the value",
        )

    return convert


def _values(field: Field) -> Convert:
    """Numbers, or text."""
    options = pc.CastOptions.safe(field.arrow)

    def convert(cells: Array) -> Array:
        given = cells if field.is_text else _readable(cells)
        try:
            return _cast([given], options)  # of text: checks UTF-8, copies nothing
        except pa.ArrowInvalid:
            index = next(i for i in range(len(given)) if _fails(_cast, [given[i : i + 1]], options))
            value = cells[index].as_py()
            what, hint = (
                f"{value!r}, which is not a valid {field.arrow}",
                "check the column's type, or exclude the column",
            )
            if field.is_text:
                shown = value[:32].hex() + ("…" if len(value) > 32 else "")
                what, hint = (
                    f"text that is not valid Unicode (0x{shown})",
                    "correct the value, or exclude the column",
                )
            raise Unfit(index, what, hint) from None

    return convert


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


def _unlike_others(inner: Convert) -> Convert:
    """The conversion of a key's ENUM or SET without values that read like others: the warehouse has only their text."""

    def convert(cells: Array) -> Array:
        values = inner(cells)
        index = pc.index(pc.starts_with(values, TWIN), True).as_py()
        if index >= 0:
            number = values[index].as_py().removeprefix(TWIN)
            raise Unfit(index, f"the number {number}, whose text is that of another value", _IN_KEY)
        return values

    return convert


# ---------------------------------------------------------------- zero_dates


def _moments(field: Field, table: Table, changes: Changes) -> Convert:
    parsed = field.arrow if pa.types.is_date32(field.arrow) else pa.timestamp("us")
    options = pc.CastOptions.safe(parsed)

    def convert(cells: Array) -> Array:
        text = _readable(cells)
        try:
            return _cast([text], options).view(field.arrow)
        except pa.ArrowInvalid:
            bad = _impossible(text)
        if table.recipe.zero_dates == "error":
            index = pc.index(bad, True).as_py()
            raise Unfit(
                max(index, 0),
                f"the impossible date {text[index]}",
                _IN_KEY
                if tells_rows_apart(field, table)
                else "set zero_dates: null, or keep (the exact text in a second column)",
            )
        changes.add(field, bad)
        possible = pc.if_else(bad, pa.scalar(None, _TEXT), text)
        return _cast([possible], options).view(field.arrow)

    return convert


def _raw(cells: Array) -> Array:
    """The text of impossible dates; NULL for all others."""
    text = cells.view(_TEXT)
    return pc.if_else(_impossible(text), text, pa.scalar(None, _TEXT))


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


# ---------------------------------------------------------------- overflow


def _bounded(inner: Convert, field: Field, limit: int | None, table: Table, changes: Changes) -> Convert:
    """The conversion with the warehouse's limit applied, if values of the column can exceed it."""
    if limit is None or field.max_bytes <= limit:
        return inner
    return lambda cells: _within(inner(cells), limit, field, table, changes)


def _within(values: Array, limit: int, field: Field, table: Table, changes: Changes) -> Array:
    lengths = pc.binary_length(values)
    if (pc.max(lengths).as_py() or 0) <= limit:
        return values
    long = pc.fill_null(pc.greater(lengths, limit), False)
    policy = when_too_long(field, table)
    if policy == "error":
        longest = pc.max(lengths)
        raise Unfit(
            pc.index(lengths, longest).as_py(),
            f"a value of {longest.as_py():,} bytes, but the warehouse holds at most {limit:,}",
            way_out(field, table, limit),
        )
    changes.add(field, long)
    if policy == "null":
        return pc.if_else(long, pa.scalar(None, values.type), values)
    cut = [
        _cut(v, limit) if over else v for v, over in zip(values.to_pylist(), long.to_pylist(), strict=True)
    ]
    return pa.array(cut, values.type)


def _cut(value: str | bytes, limit: int) -> str | bytes:
    """The longest prefix of whole characters that fits."""
    if isinstance(value, bytes):
        return value[:limit]
    return value.encode()[:limit].decode(errors="ignore")


_ESCAPED_NUL = re.compile(r"(\\\\)|\\u0000")  # in a pair of backslashes, neither begins an escape


def _without_nul(inner: Convert, field: Field, table: Table, changes: Changes, document: bool) -> Convert:
    """The conversion for a warehouse without U+0000 in text: values are refused, stripped of it, or NULL.

    In a JSON document, it is written as an escape.
    """
    sign, what = (r"\u0000", "a document") if document else ("\0", "text")

    def convert(cells: Array) -> Array:
        values = inner(cells)
        if not pc.any(pc.match_substring(values, sign)).as_py():
            return values
        if document:
            texts = [t and _ESCAPED_NUL.sub(lambda found: found[1] or "", t) for t in values.to_pylist()]
            cleared = pa.array(texts, values.type)
        else:
            cleared = pc.replace_substring(values, sign, "")
        bad = pc.fill_null(pc.not_equal(values, cleared), False)
        if not pc.any(bad).as_py():
            return values
        if table.recipe.overflow == "error":
            said = f"{what} with the character U+0000, which the warehouse can't hold"
            raise Unfit(pc.index(bad, True).as_py(), said, _choices(field, table))
        changes.add(field, bad)
        return (
            pc.if_else(bad, pa.scalar(None, values.type), values)
            if table.recipe.overflow == "null"
            else cleared
        )

    return convert


def _document_choices(limit: int) -> str:
    longer = "warehouse.large_strings: true if the cluster has enable_large_strings_opt_in, or "
    return f"JSON can't be truncated: set {longer if limit < MAX_LARGE_STRING else ''}overflow: null, or exclude the column"


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
                    hint=way_out(field, table, limit),
                    table=table.name,
                )


def length_query(
    table: Table, window: Window | None, found: Mapping[Field, int], server: Version
) -> str | None:
    """The query for one row with such a value; None if the server can't enforce a time limit."""
    lengths = {field: _length(field) for field in found}
    long = " OR ".join(f"{lengths[field]} > {limit}" for field, limit in found.items())
    conditions = sql.between(table, table.order, window.low, window.high) if window and table.order else []
    conditions += [sql.matches(table)] if table.recipe.where else []
    body = f"{', '.join(lengths.values())} FROM {sql.source(table)}{sql.where([*conditions, long])} LIMIT 1"
    if server.mariadb:
        limited = f"SET STATEMENT max_statement_time = {LOOK_SECONDS} FOR SELECT"
        return f"{limited} {body}" if server.numbers >= (10, 1) else None
    return (
        f"SELECT /*+ MAX_EXECUTION_TIME({LOOK_SECONDS * 1000}) */ {body}"
        if server.numbers >= (5, 7)
        else None
    )


def _length(field: Field) -> str:
    """A value's length in bytes as written to the file."""
    value = f"CONVERT({field.select} USING utf8mb4)" if field.is_text else field.select
    return f"OCTET_LENGTH({value})"
