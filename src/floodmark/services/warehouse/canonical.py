"""The target's rows as canonical text, their hashes, and the queries for digests and rows. Pure SQL.

The counterpart of `mysql/canonical.py` for DuckDB and Redshift. Only counts, sums and hashes leave the
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

from floodmark.model.canonical import DIGITS, PIECE, Form, Scope, Span, groups
from floodmark.model.position import Position, Value
from floodmark.services.warehouse.columns import parsed
from floodmark.services.warehouse.protocol import DELETED_AT, quote
from floodmark.services.warehouse.statement_length import checked, cut, portioned

T = TypeVar("T")

FLAT = 16  # texts joined without parentheses
_NUMBER = re.compile(r"-?\d+(\.\d+)?\Z")
# The type that a printed value is cast to when it is compared with a column.
_TYPES = {"day": "DATE", "moment": "TIMESTAMP", "instant": "TIMESTAMPTZ"}


@dataclass(frozen=True)
class Dialect:
    """One warehouse's SQL; `{}` stands for the column or the text."""

    text: str  # a number as text
    float: Callable[[str], str]
    day: str
    moment: str
    instant: str
    bytes: str
    length: str  # in bytes
    hash: str  # of a text, or of bytes where the warehouse can
    number: str  # the first 15 hexadecimal digits of a hash
    bare: bool = False  # whether DECIMAL(n,n) prints 0.5 as .5


def _duckdb_float(name: str) -> str:
    """The eight bytes in hex, lowest first."""
    whole = f"hex(CAST(CAST(CAST({name} AS DOUBLE) AS BIT) AS BLOB))"
    return "(" + " || ".join(f"substr({whole}, {at}, 2)" for at in range(15, 0, -2)) + ")"


def _redshift_float(name: str) -> str:
    """The eight bytes in hex, from a point's WKB: one byte and one word precede its two coordinates."""
    return f"SUBSTRING(ST_AsHexWKB(ST_Point(CAST({name} AS DOUBLE PRECISION), 0)), 11, 16)"


def _with_year_0(words: str, first: str) -> str:
    """TO_CHAR has no year 0: it prints the year before year 1 as 1 as well."""
    return f"CASE WHEN {{0}} < {first} THEN '0000' || SUBSTRING({words}, 5) ELSE {words} END"


_US = "TO_CHAR({}, 'YYYY-MM-DD HH24:MI:SS.US')"
DUCKDB = Dialect(
    text="CAST({} AS VARCHAR)",
    float=_duckdb_float,
    day="strftime({}, '%Y-%m-%d')",
    moment="strftime({}, '%Y-%m-%d %H:%M:%S.%f')",
    # An infinite time has no number, and would be printed as if it were NULL.
    instant="coalesce(strftime(make_timestamp(epoch_us({0})), '%Y-%m-%d %H:%M:%S.%f'), CAST({0} AS VARCHAR))",
    bytes="hex({})",
    length="strlen({})",
    hash=f"substring(sha256({{}}), 1, {DIGITS})",
    number="CAST('0x' || substr({}, 1, 15) AS BIGINT)",
    bare=True,
)
REDSHIFT = Dialect(
    text="CAST({} AS VARCHAR(48))",
    float=_redshift_float,
    day=_with_year_0("TO_CHAR({0}, 'YYYY-MM-DD')", "CAST('0001-01-01' AS DATE)"),
    moment=_with_year_0(_US.format("{0}"), "CAST('0001-01-01' AS TIMESTAMP)"),
    instant=_US.format("{} AT TIME ZONE 'UTC'"),
    bytes="UPPER(TO_HEX({}))",
    length="OCTET_LENGTH({})",
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
        name, words = self.column(form), self.dialect
        match form.print:
            case "number" | "decimal":
                return self._digits(form, name)
            case "flag":
                return words.text.format(f"CAST({name} AS INTEGER)")
            case "float":
                return words.float(name)
            case "day":
                return words.day.format(name)
            case "moment":
                return words.moment.format(name)
            case "instant":
                return words.instant.format(name)
            case "bytes":
                return words.bytes.format(name)
            case "text digest" | "bytes digest":
                return words.hash.format(name)
            case "pieces":
                cuts = (f"SUBSTRING({name}, {i * PIECE + 1}, {PIECE})" for i in range(form.pieces))
                hashed = [words.hash.format(words.bytes.format(cut)) for cut in cuts]
                return " || ".join([words.text.format(words.length.format(name)), *hashed])
        return name

    def _digits(self, form: Form, name: str) -> str:
        """A number cut to the source's scale where the target's type has more decimals."""
        family, sizes = parsed(self.types.get(form.field.target, ""))
        text = self.dialect.text.format(name)
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
        value = self.printed(form)
        if form.print == "text":
            length = self.dialect.text.format(self.dialect.length.format(value))
            return f"coalesce({length} || ':' || {value}, 'N')"
        return f"coalesce({value}, 'N')"

    def hashed(self, chosen: Sequence[Form]) -> str:
        """The hash of the columns' text; if one text can't hold them all, the hash of its parts' hashes."""
        hashed = self.dialect.hash.format
        made = [hashed(_joined([self.element(f) for f in g], _COMMA)) for g in groups(chosen)]
        return made[0] if len(made) == 1 else hashed(_joined(made, " || "))


_COMMA = " || ',' || "


def _joined(texts: Sequence[str], between: str) -> str:
    """The texts concatenated, as a balanced tree: warehouses limit how deep an expression may nest."""
    if len(texts) <= FLAT:
        return between.join(texts)
    middle = len(texts) // 2
    return f"({_joined(texts[:middle], between)}){between}({_joined(texts[middle:], between)})"


# ---------------------------------------------------------------- queries


def digests(
    place: TargetSql, scope: Scope, spans: Sequence[Span], without: Sequence[str] = ()
) -> tuple[str, ...]:
    """Number, count and sum of each range, for ranges in key order; `without`: hashed keys to leave out.

    A range may have several rows in the answer; add them up.
    """

    def question(some: Sequence[tuple[int, Span]], which: _Which) -> str:
        chosen = [span for _, span in some]
        inside = _inside(place, scope, chosen) if scope.table.key else []
        part = _numbered(place, scope, chosen, some[0][0])
        return _summed(place, scope, part, inside, which)

    return _left_out(place, list(enumerate(spans)), question, without)


def grouped(
    place: TargetSql, scope: Scope, digits: int, without: Sequence[str] = (), prefixes: Sequence[str] = ()
) -> tuple[str, ...]:
    """The same for each group by the first digits of the keys' hashes; `prefixes`: only these groups."""
    part = f"substring({place.hashed(scope.keys)}, 1, {int(digits)})"

    def question(some: Sequence[str], which: _Which) -> str:
        return _summed(place, scope, part, [f"{part} IN ({_hexes(some)})"] if some else [], which)

    return _left_out(place, prefixes, question, without)


@dataclass(frozen=True)
class _Which:
    """The rows to sum: all, all but those with certain hashed keys, or only those, to be subtracted."""

    keys: Sequence[str] = ()
    taken_off: bool = False


_ALL = _Which()


def _left_out(
    place: TargetSql,
    items: Sequence[T],
    question: Callable[[Sequence[T], _Which], str],
    without: Sequence[str],
) -> tuple[str, ...]:
    """The statements that sum some items; keys that don't fit into one statement are subtracted by others."""
    whole = question(items, _Which(without))
    if place.longest is None or len(whole.encode()) <= place.longest:
        return (whole,)

    def taken_off(some: Sequence[T]) -> list[str]:
        some_keys = cut(without, lambda keys: question(some, _Which(keys, True)), place.longest)
        return [question(some, _Which(keys, True)) for keys in some_keys]

    room = place.longest // 2 if without else place.longest
    made: list[str] = []
    for some in cut(items, lambda some: question(some, _ALL), room):
        made += [question(some, _ALL), *(taken_off(some) if without else ())]
    return checked(place.longest, made)


def _summed(place: TargetSql, scope: Scope, part: str, inside: Sequence[str], which: _Which) -> str:
    number = f"CAST({place.dialect.number.format('h')} AS DECIMAL(38,0))"
    conditions = [*_scope(place, scope), *inside]
    if which.keys:
        conditions.append(
            f"{place.hashed(scope.keys)} {'' if which.taken_off else 'NOT '}IN ({_hexes(which.keys)})"
        )
    inner = f"SELECT {part} AS part, {place.hashed(scope.forms)} AS h FROM {place.table}{_where(conditions)}"
    sign = "-" if which.taken_off else ""
    return f"SELECT part, {sign}count(*), {sign}sum({number}) FROM ({inner}) AS hashed GROUP BY part"


def entries(
    place: TargetSql, scope: Scope, spans: Sequence[Span], prefixes: Sequence[str] = ()
) -> tuple[str, ...]:
    """Hashes and keys of the rows in some ranges, or of those whose hashed keys start with a prefix."""
    shown = ", ".join([place.hashed(scope.forms), *(place.printed(form) for form in scope.keys)])
    beginning = f"substring({place.hashed(scope.keys)}, 1, {len(prefixes[0])})" if prefixes else ""

    def question(conditions: Sequence[str]) -> str:
        return f"SELECT {shown} FROM {place.table}{_where([*_scope(place, scope), *conditions])}"

    if prefixes:
        return portioned(place.longest, prefixes, lambda some: question([f"{beginning} IN ({_hexes(some)})"]))
    return portioned(place.longest, spans, lambda some: question(_inside(place, scope, some) if some else []))


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

    def question(some: Sequence[Sequence[str | None]]) -> str:
        if scope.ordered:
            which = _any_of(place, scope, some)
        else:
            which = f"{place.hashed(scope.keys)} IN ({_hexes([hash_of(scope, key) for key in some])})"
        return f"SELECT {', '.join(shown)} FROM {place.table}{_where([*_present(place), which])}"

    return portioned(place.longest, keys, question)


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
    parts = [
        "N" if v is None else (f"{len(v.encode())}:{v}" if f.print == "text" else v)
        for f, v in zip(scope.keys, key, strict=True)
    ]
    return hashlib.sha256(",".join(parts).encode()).hexdigest()[:DIGITS]


# ---------------------------------------------------------------- conditions


def _where(conditions: Sequence[str]) -> str:
    return " WHERE " + " AND ".join(f"({c})" for c in conditions) if conditions else ""


def _present(place: TargetSql) -> list[str]:
    """Leaves out rows that are marked as deleted."""
    return [f"{quote(DELETED_AT)} IS NULL"] if DELETED_AT in place.types else []


def _scope(place: TargetSql, scope: Scope) -> list[str]:
    """Leaves out rows never promised: at or before the start and, without a key, past the watermark."""
    found = _present(place)
    order = scope.order
    if not order or order[0].print not in (*_TYPES, "number"):
        return found
    if scope.low is not None:
        found.append(_after(place, order, scope.low))
    if scope.high is not None and not scope.table.key:
        found.append(_upto(place, order, scope.high))
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
    zone = "+00" if form.print == "instant" else ""
    return f"CAST('{_plain(text)}{zone}' AS {_TYPES[form.print]})"


def _plain(text: str) -> str:
    if not re.fullmatch(r"[-0-9 :.]+", text):
        raise ValueError(f"not a time: {text!r}")
    return text


def _hexes(values: Sequence[str]) -> str:
    return ", ".join(f"'{int(v, 16):0{len(v)}x}'" for v in values)
