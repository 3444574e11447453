"""Converts MySQL's cells (text, or already numbers and times) into Arrow arrays, exactly, column by column.

Arrow's casts do the work; Python looks at single values only after a cast has failed. A value that can't be
represented is never guessed: the table's policies (`zero_dates`, `overflow`) decide, and every value they
change is counted.
"""

from __future__ import annotations

import datetime
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute

from floodmark.model.policies import tells_rows_apart, when_too_long
from floodmark.model.table import Table
from floodmark.model.types import TWIN, Field, is_moment, member_text
from floodmark.model.warehouse import UNLIMITED, Capabilities
from floodmark.source.rows.text import gathered

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
        texts = _bounded(_values(field), field, limit, table, changes, limits)
        if field.name in table.key and member_text(table.column(field.name)):
            texts = _unlike_others(texts)
        return texts if limits.nul else _without_nul(texts, field, table, changes, document=whole)
    if field.file_only:
        return _weights(limits)
    if pa.types.is_binary(field.arrow) or pa.types.is_large_binary(field.arrow):
        return _bounded(_same, field, limits.binary, table, changes, limits)
    return _values(field)


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
    return converter(field, table, limits, Changes())(pa.array(cells, gathered(field.arrow)))


def _same(cells: Array) -> Array:
    return cells


def _weights(limits: Capabilities) -> Convert:
    """A key's weights, unchanged; no policy may touch values that rows are merged by."""
    limit = limits.weight
    if limit is None:
        return _same

    def convert(cells: Array) -> Array:
        lengths = pc.binary_length(cells)
        if (pc.max(lengths).as_py() or 0) <= limit:
            return cells
        index = pc.index(pc.fill_null(pc.greater(lengths, limit), False), True).as_py()
        raise Unfit(
            index,
            f"a key with {lengths[index].as_py():,} bytes of collation weights, but {limits.label} compares at most "
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


def _bounded(
    inner: Convert, field: Field, limit: int | None, table: Table, changes: Changes, limits: Capabilities
) -> Convert:
    """The conversion with the warehouse's limit applied, if values of the column can exceed it."""
    if limit is None or field.max_bytes <= limit:
        return inner
    return lambda cells: _within(inner(cells), limit, field, table, changes, limits)


def _within(
    values: Array, limit: int, field: Field, table: Table, changes: Changes, limits: Capabilities
) -> Array:
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
            way_out(field, table, limits),
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


def _choices(field: Field, table: Table) -> str:
    if tells_rows_apart(field, table):
        return _IN_KEY
    return "set overflow: truncate or null, or exclude the column"
