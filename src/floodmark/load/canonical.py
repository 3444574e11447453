"""A target's values and rows as canonical text, their hashes, and the queries for digests and rows. Pure SQL.

The counterpart of `source/canonical.py` for DuckDB and Redshift. Only counts, sums and hashes leave the
warehouse, plus the keys of rows in ranges that differ. A query too long for the warehouse is split into
several statements, whose rows together are the answer.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa

from floodmark.load.columns import parsed
from floodmark.load.protocol import DELETED_AT, HASH_FIELD, quote
from floodmark.model.canonical import DIGITS, Dialect, Form, Scope, Span
from floodmark.model.errors import DataError
from floodmark.model.position import Position, Value
from floodmark.model.types import KEY_FIELD

T = TypeVar("T")

_NUMBER = re.compile(r"-?\d+(\.\d+)?\Z")
# The type that a printed value is cast to when it is compared with a column.
_TYPES = {"day": "DATE", "moment": "TIMESTAMP", "instant": "TIMESTAMPTZ"}


# ---------------------------------------------------------------- values and rows as text


def numbers(text: str) -> dict[str, str]:
    """How numbers are printed, by what makes a text of one."""
    return {"number": text, "decimal": text, "flag": text.format("CAST({} AS INTEGER)")}


def _with_year_0(words: str, first: str) -> str:
    """TO_CHAR has no year 0: it prints the year before year 1 as 1 as well."""
    return f"CASE WHEN {{0}} < {first} THEN '0000' || SUBSTRING({words}, 5) ELSE {words} END"


_US = "TO_CHAR({}, 'YYYY-MM-DD HH24:MI:SS.US')"
_DOUBLE = "hex(CAST(CAST(CAST({0} AS DOUBLE) AS BIT) AS BLOB))"
DUCKDB = Dialect(
    prints={
        **numbers("CAST({} AS VARCHAR)"),
        # Its eight bytes in hex, lowest first.
        "float": "(" + " || ".join(f"substr({_DOUBLE}, {at}, 2)" for at in range(15, 0, -2)) + ")",
        "day": "strftime({}, '%Y-%m-%d')",
        "moment": "strftime({}, '%Y-%m-%d %H:%M:%S.%f')",
        # An infinite time has no number, and would be printed as if it were NULL.
        "instant": "coalesce(strftime(make_timestamp(epoch_us({0})), '%Y-%m-%d %H:%M:%S.%f'), CAST({0} AS VARCHAR))",
        "bytes": "hex({})",
    },
    sized="CAST(strlen({0}) AS VARCHAR) || ':' || {0}",
    size="CAST(octet_length({}) AS VARCHAR)",
    cut="array_slice({0}, {1}, {1} + {2} - 1)",
    hash=f"substring(sha256({{}}), 1, {DIGITS})",
    number="CAST('0x' || substr({}, 1, 15) AS BIGINT)",
    bare=True,
)
REDSHIFT = Dialect(
    prints={
        **numbers("CAST({} AS VARCHAR(48))"),
        # Its eight bytes in hex, from a point's WKB: one byte and one word precede its two coordinates.
        "float": "SUBSTRING(ST_AsHexWKB(ST_Point(CAST({} AS DOUBLE PRECISION), 0)), 11, 16)",
        "day": _with_year_0("TO_CHAR({0}, 'YYYY-MM-DD')", "CAST('0001-01-01' AS DATE)"),
        "moment": _with_year_0(_US.format("{0}"), "CAST('0001-01-01' AS TIMESTAMP)"),
        "instant": _US.format("{} AT TIME ZONE 'UTC'"),
        "bytes": "UPPER(TO_HEX({}))",
    },
    sized="CAST(OCTET_LENGTH({0}) AS VARCHAR(48)) || ':' || {0}",
    size="CAST(OCTET_LENGTH({}) AS VARCHAR(48))",
    cut="SUBSTRING({}, {}, {})",
    hash=f"LOWER(SUBSTRING(SHA2({{}}, 256), 1, {DIGITS}))",  # AWS does not document upper or lower case
    number="STRTOL(SUBSTRING({}, 1, 15), 16)",
)


@dataclass(frozen=True)
class TargetSql:
    """A target in one warehouse's SQL."""

    dialect: Dialect
    table: str  # quoted, with its schema
    types: Mapping[str, str]  # of the target's columns
    longest: int | None = None  # the longest statement allowed, in bytes

    def column(self, form: Form) -> str:
        return quote(form.field.target)

    def printed(self, form: Form) -> str:
        """The value as its canonical text; NULL stays NULL."""
        name = self.column(form)
        text = self.dialect.printed(form, name)
        return self._digits(form, name, text) if form.print in ("number", "decimal") else text

    def _digits(self, form: Form, name: str, text: str) -> str:
        """A number cut to the source's scale where the target's type has more decimals."""
        family, sizes = parsed(self.types.get(form.field.target, ""))
        if family != "DECIMAL" or len(sizes) != 2:
            return text
        if self.dialect.bare and sizes[0] == sizes[1]:
            text = f"CASE WHEN {name} < 0 THEN '-0' || substr({text}, 2) ELSE '0' || {text} END"
        scale = form.column.scale or 0 if form.print == "decimal" else 0
        tail = "0" * (sizes[1] - scale)
        if not scale and tail:
            tail = f".{tail}"
        if not tail:
            return text
        cut = f"SUBSTRING({text}, 1, LENGTH({text}) - {len(tail)})"
        return f"CASE WHEN {text} LIKE '%{tail}' THEN {cut} ELSE {text} END"

    def element(self, form: Form) -> str:
        """The value as one element of the row's text."""
        return self.dialect.element(form, self.printed(form))

    def hashed(self, chosen: Sequence[Form]) -> str:
        return self.dialect.hashed(chosen, self.element)


# ---------------------------------------------------------------- queries


def digests(
    place: TargetSql, scope: Scope, spans: Sequence[Span], without: Sequence[str] = ()
) -> tuple[str, ...]:
    """Number, count and sum of each range, for ranges in key order; `without`: hashed keys to leave out.

    A range may have several rows in the answer; add them up.
    """

    def question(some: Sequence[tuple[int, Span]], off: Sequence[str]) -> str:
        chosen = [span for _, span in some]
        inside = _inside(place, scope, chosen) if scope.table.key else []
        return _summed(place, scope, _numbered(place, scope, chosen, some[0][0]), inside, off)

    return _sums(place, list(enumerate(spans)), question, without)


def grouped(
    place: TargetSql, scope: Scope, digits: int, without: Sequence[str] = (), prefixes: Sequence[str] = ()
) -> tuple[str, ...]:
    """The same for each group by the first digits of the keys' hashes; `prefixes`: only these groups."""
    part = f"substring({place.hashed(scope.keys)}, 1, {int(digits)})"

    def question(some: Sequence[str], off: Sequence[str]) -> str:
        return _summed(place, scope, part, [f"{part} IN ({_hexes(some)})"] if some else [], off)

    return _sums(place, prefixes, question, without)


def _sums(
    place: TargetSql,
    items: Sequence[T],
    question: Callable[[Sequence[T], Sequence[str]], str],
    without: Sequence[str],
) -> tuple[str, ...]:
    """The statements that sum some items, and those that take off the rows with certain hashed keys."""
    room = place.longest // 2 if place.longest and without else place.longest
    made: list[str] = []
    for some in _cut(items, lambda some: question(some, ()), room):
        made.append(question(some, ()))
        if without:
            cut = _cut(without, lambda off, some=some: question(some, off), place.longest)  # type: ignore[misc]
            made += [question(some, off) for off in cut]
    return _checked(place.longest, made)


def _summed(place: TargetSql, scope: Scope, part: str, inside: Sequence[str], off: Sequence[str]) -> str:
    """`off`: the hashed keys of the rows to take off; else all rows are added."""
    number = f"CAST({place.dialect.number.format('h')} AS DECIMAL(38,0))"
    named = [f"{place.hashed(scope.keys)} IN ({_hexes(off)})"] if off else []
    where = _where([*_scope(place, scope), *inside, *named])
    inner = f"SELECT {part} AS part, {place.hashed(scope.forms)} AS h FROM {place.table}{where}"
    sign = "-" if off else ""
    return f"SELECT part, {sign}count(*), {sign}sum({number}) FROM ({inner}) AS hashed GROUP BY part"


def entries(
    place: TargetSql, scope: Scope, spans: Sequence[Span], prefixes: Sequence[str] = ()
) -> tuple[str, ...]:
    """Hashes and keys of the rows in some ranges, or of those whose hashed keys start with a prefix."""
    shown = ", ".join([place.hashed(scope.forms), *(place.printed(form) for form in scope.keys)])

    def question(conditions: Sequence[str]) -> str:
        return f"SELECT {shown} FROM {place.table}{_where([*_scope(place, scope), *conditions])}"

    if prefixes:
        part = f"substring({place.hashed(scope.keys)}, 1, {len(prefixes[0])})"
        return _portioned(place.longest, prefixes, lambda some: question([f"{part} IN ({_hexes(some)})"]))
    return _portioned(
        place.longest, spans, lambda some: question(_inside(place, scope, some) if some else [])
    )


def fetched(place: TargetSql, scope: Scope, spans: Sequence[Span] = ()) -> str:
    """The columns of the rows in ranges in key order, or of all, and the number of each row's range."""
    columns = ", ".join(place.column(form) for form in scope.forms)
    inside = _inside(place, scope, spans) if spans and scope.table.key else []
    part = _numbered(place, scope, spans, 0) if spans else "0"
    conditions = _where([*_scope(place, scope), *inside])
    return f"SELECT {columns}, CAST({part} AS INTEGER) FROM {place.table}{conditions}"


_SAME_VALUES = {
    "number": ("SMALLINT", "INTEGER", "BIGINT"), "flag": ("BOOLEAN", "SMALLINT", "INTEGER", "BIGINT"),
    "float": ("FLOAT", "DOUBLE"), "day": ("DATE",), "moment": ("TIMESTAMP",),
    "instant": ("TIMESTAMP WITH TIME ZONE",), "text": ("VARCHAR",), "text digest": ("VARCHAR",),
    "bytes": ("BLOB",), "bytes digest": ("BLOB",),
}  # fmt: skip


def same_values(scope: Scope, types: Mapping[str, str]) -> bool:
    """Whether the target's columns hold the values of the files as they are: equal values have equal hashes.

    A column that was widened to another kind of number, or altered by someone, is compared as text.
    """
    return all(_same_values(form, types.get(form.field.target, "")) for form in scope.forms)


def _same_values(form: Form, type_: str) -> bool:
    family, sizes = parsed(type_)
    if isinstance(form.field.arrow, pa.Decimal128Type):
        return family == "DECIMAL" and sizes[1:] == (form.field.arrow.scale,)
    return family in _SAME_VALUES.get(form.print, ()) and not sizes


def rows(place: TargetSql, scope: Scope, keys: Sequence[Sequence[str | None]]) -> tuple[str, ...]:
    """The rows with these printed keys, whatever their cursors: row hash, key, and one hash per column.

    Hashes, because the columns themselves may not fit into one row of an answer.
    """
    shown = [
        place.hashed(scope.forms),
        *(place.printed(form) for form in scope.keys),
        *(place.dialect.hash.format(place.element(form)) for form in scope.forms),
    ]

    return _with_keys(place, scope, keys, shown)


def keys(place: TargetSql, scope: Scope, among: Sequence[Sequence[str | None]]) -> tuple[str, ...]:
    """Those of some printed keys that rows have, whatever their cursors."""
    return _with_keys(place, scope, among, [place.printed(form) for form in scope.keys])


def weights(place: TargetSql, among: Sequence[bytes]) -> tuple[str, ...]:
    """Those of some weights of keys that the table of weights has, as `named_weight` names them."""
    # The table has the weights themselves, or hashes of them.
    shown = f"md5(lower(hex({quote(KEY_FIELD)})))" if KEY_FIELD in place.types else quote(HASH_FIELD)

    def question(some: Sequence[bytes]) -> str:
        named = ", ".join(f"'{name}'" for weight in some for name in named_weight(weight))
        return f"SELECT {shown} FROM {place.table} WHERE {shown} IN ({named})"

    return _portioned(place.longest, among, question)


def named_weight(weight: bytes) -> set[str]:
    """A weight's possible names in the answer of `weights`: AWS does not document the case of TO_HEX."""
    return {
        hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
        for text in (weight.hex(), weight.hex().upper())
    }


def _with_keys(
    place: TargetSql, scope: Scope, keys: Sequence[Sequence[str | None]], shown: Sequence[str]
) -> tuple[str, ...]:
    def question(some: Sequence[Sequence[str | None]]) -> str:
        if scope.ordered:
            which = _any_of(place, scope, some)
        else:
            which = f"{place.hashed(scope.keys)} IN ({_hexes([hash_of(scope, key) for key in some])})"
        return f"SELECT {', '.join(shown)} FROM {place.table}{_where([*_present(place), which])}"

    return _portioned(place.longest, keys, question)


def element_hash(element: str) -> str:
    """The hash of a column's element, as `rows` returns it."""
    return hashlib.sha256(element.encode()).hexdigest()[:DIGITS]


def _any_of(place: TargetSql, scope: Scope, keys: Sequence[Sequence[str | None]]) -> str:
    """The condition for the rows with these keys; IN looks the first values up instead of comparing each."""
    named = [(place.column(form), form) for form in scope.keys]
    first = ", ".join(dict.fromkeys(_literal(named[0][1], key[0]) for key in keys if key[0] is not None))
    null = [f"{named[0][0]} IS NULL"] if any(key[0] is None for key in keys) else []
    found = " OR ".join([*([f"{named[0][0]} IN ({first})"] if first else []), *null])
    if len(named) == 1:
        return found

    def term(key: Sequence[str | None]) -> str:
        pairs = zip(named, key, strict=True)
        return " AND ".join(
            f"{name} IS NULL" if v is None else f"{name} = {_literal(f, v)}" for (name, f), v in pairs
        )

    return f"({found}) AND ({' OR '.join(f'({term(key)})' for key in keys)})"


def hash_of(scope: Scope, key: Sequence[str | None]) -> str:
    """The hash of a printed key, as both sides compute it."""
    pairs = zip(scope.keys, key, strict=True)
    parts = ("N" if v is None else f"{len(v.encode())}:{v}" if f.print == "text" else v for f, v in pairs)
    return element_hash(",".join(parts))


# ---------------------------------------------------------------- conditions


def _where(conditions: Sequence[str]) -> str:
    return " WHERE " + " AND ".join(f"({c})" for c in conditions) if conditions else ""


def _present(place: TargetSql) -> list[str]:
    """Leaves out rows that are marked as deleted."""
    return [f"{quote(DELETED_AT)} IS NULL"] if DELETED_AT in place.types else []


def _scope(place: TargetSql, scope: Scope) -> list[str]:
    """Leaves out rows never promised: at or before the start and, without a key, past the watermark.

    Rows with a NULL cursor always count: they are loose.
    """
    found = _present(place)
    order = scope.order
    if not order or order[0].print not in (*_TYPES, "number"):
        return found
    if scope.low is not None:
        found.append(_after(place, order, scope.low))
    if scope.high is not None and not scope.table.key:
        found.append(f"{_upto(place, order, scope.high)} OR {place.column(order[0])} IS NULL")
    return found


def _inside(place: TargetSql, scope: Scope, spans: Sequence[Span]) -> list[str]:
    """Keys in any of the ranges; adjacent ranges are merged.

    NULL comes after every value, as in `_numbered`: no source row has it in such a key, but a target may.
    """
    joined: list[Span] = []
    for span in spans:
        if joined and joined[-1].upto == span.after and span.after is not None:
            joined[-1] = Span(joined[-1].after, span.upto)
        else:
            joined.append(span)
    terms = []
    for span in joined:
        ends = [_after(place, scope.keys, span.after, span.upto is None)] if span.after is not None else []
        ends += [_upto(place, scope.keys, span.upto)] if span.upto is not None else []
        if not ends:
            return []
        terms.append(" AND ".join(f"({end})" for end in ends))
    return [" OR ".join(f"({term})" for term in terms)]


def _numbered(place: TargetSql, scope: Scope, spans: Sequence[Span], first: int) -> str:
    """The number of the range that a key is in: nested CASEs that halve the ranges (logarithmic depth)."""
    if len(spans) == 1:
        return str(first)
    middle = len(spans) // 2
    upto = spans[middle - 1].upto
    assert upto is not None
    left = _numbered(place, scope, spans[:middle], first)
    right = _numbered(place, scope, spans[middle:], first + middle)
    return f"CASE WHEN {_upto(place, scope.keys, upto)} THEN {left} ELSE {right} END"


def _after(place: TargetSql, columns: Sequence[Form], position: Position, nulls: bool = True) -> str:
    """After a position, or NULL; `nulls`: False if another condition excludes NULL in the first column."""
    name, value = place.column(columns[0]), _literal(columns[0], position[0])
    later = f"{name} > {value} OR {name} IS NULL" if nulls else f"{name} > {value}"
    if len(position) == 1:
        return later
    return f"{later} OR ({name} = {value} AND ({_after(place, columns[1:], position[1:])}))"


def _upto(place: TargetSql, columns: Sequence[Form], position: Position) -> str:
    name, value = place.column(columns[0]), _literal(columns[0], position[0])
    if len(position) == 1:
        return f"{name} <= {value}"
    return f"{name} < {value} OR ({name} = {value} AND ({_upto(place, columns[1:], position[1:])}))"


def _literal(form: Form, value: Value) -> str:
    text = str(value)
    if form.print in ("number", "decimal"):
        if not _NUMBER.match(text):
            raise ValueError(f"not a number: {value!r}")
        return text
    if not re.fullmatch(r"[-0-9 :.]+", text):
        raise ValueError(f"not a time: {text!r}")
    zone = "+00" if form.print == "instant" else ""
    return f"CAST('{text}{zone}' AS {_TYPES[form.print]})"


def _hexes(values: Sequence[str]) -> str:
    return ", ".join(f"'{int(v, 16):0{len(v)}x}'" for v in values)


# ---------------------------------------------------------------- how long a statement may be


def _portioned(
    longest: int | None, items: Sequence[T], question: Callable[[Sequence[T]], str]
) -> tuple[str, ...]:
    """The query about some items, in statements of at most `longest` bytes."""
    return _checked(longest, [question(some) for some in _cut(items, question, longest)])


def _cut(
    items: Sequence[T], question: Callable[[Sequence[T]], str], longest: int | None
) -> list[Sequence[T]]:
    """The items, in order, in portions whose queries are short enough; a single item's may be too long."""
    if len(items) <= 1 or longest is None or len(question(items).encode()) <= longest:
        return [items]
    half = len(items) // 2
    return [*_cut(items[:half], question, longest), *_cut(items[half:], question, longest)]


def _checked(longest: int | None, statements: Sequence[str]) -> tuple[str, ...]:
    """The statements; DataError if one is too long even for a single item."""
    size = max(len(statement.encode()) for statement in statements)
    if longest is not None and size > longest:
        raise DataError(
            f"the table has too many columns: comparing them takes a statement of {size:,} bytes, "
            f"but this transport allows at most {longest:,}",
            hint="run verify with transport: socket, or leave out columns with `exclude`",
        )
    return tuple(statements)
