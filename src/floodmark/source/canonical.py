"""A source row's canonical text, by which it is compared, its hash, and the queries for digests and rows.

If rows are fetched and hashed by our workers, the queries select plain columns, as an extraction does.
The texts are those of `compared`: what the warehouse holds once every value has arrived, with the table's
policies for impossible dates and overlong values applied.
"""

from __future__ import annotations

from collections.abc import Sequence

from floodmark.model.canonical import DIGITS, Dialect, Form, Scope, Span
from floodmark.model.position import Key, Position
from floodmark.model.table import Table
from floodmark.model.times import TEMPORAL
from floodmark.model.types import member_text, quote
from floodmark.source import sql

_MOMENT = "DATE_FORMAT({}, '%Y-%m-%d %H:%i:%s.%f')"
MYSQL = Dialect(
    prints={
        # The eight bytes themselves: a point's WKB is its two numbers.
        "float": "HEX(SUBSTR(ST_AsWKB(POINT({}, 0)), 6, 8))",
        "day": "CAST({} AS CHAR)",
        "moment": _MOMENT,
        "instant": _MOMENT,
        "bytes": "HEX({})",
    },
    sized="CONCAT(LENGTH({0}), ':', {0})",
    size="LENGTH({})",
    cut="SUBSTR({}, {}, {})",
    hash=f"LEFT(SHA2({{}}, 256), {DIGITS})",  # MD5 is no longer built in since MySQL 9.6
    # MySQL evaluates an expression once per occurrence, so we make do with one number.
    number="CAST(CONV(LEFT({}, 15), 16, 10) AS UNSIGNED)",
    joined=lambda texts, between: (
        f"CONCAT_WS('{between}', {', '.join(texts)})" if between else f"CONCAT({', '.join(texts)})"
    ),
)
_UTF8 = ("utf8mb4", "utf8mb3", "utf8", "ascii")
_PLAIN_TEXT = {"time", "uuid", "inet4", "inet6", "json", "decimal"}


def printed(form: Form, table: Table) -> str:
    """The value as its canonical text, as the policies leave it; NULL stays NULL."""
    text = MYSQL.printed(form, _value(form, table))
    if form.print in ("day", "moment", "instant") and form.policy and table.recipe.zero_dates != "error":
        return f"IF({_impossible(quote(form.column.name))}, NULL, {text})"
    return text


def _value(form: Form, table: Table) -> str:
    field, name, kind = form.field, quote(form.column.name), form.column.data_type
    match form.print:
        case "number" | "decimal" | "flag":
            return _number(form)
        case "float" | "day" | "moment" | "instant":
            return name
        case "bytes" | "bytes digest":
            return field.select
        case "pieces":
            return _within(form, table, field.select)
    if field.raw:
        return f"IF({_impossible(name)}, CAST({name} AS CHAR), NULL)"
    text = f"CAST({name} AS CHAR)" if kind in _PLAIN_TEXT else f"CONVERT({name} USING utf8mb4)"
    if field.name in table.key:
        text = member_text(form.column) or text
    if form.print == "text":
        return _without_nul(form, table, text)
    # A function over long text may return NULL with only a warning. Bytes that are UTF-8 already need no
    # function.
    value = name if form.column.charset in _UTF8 and kind not in _PLAIN_TEXT else text
    return _without_nul(form, table, _within(form, table, value))


def _number(form: Form) -> str:
    column, name = form.column, quote(form.column.name)
    if form.field.name != column.name:
        return form.field.select  # a geometry's SRID
    if column.data_type == "bit":
        return f"({name} | 0)"
    # Adding 0 prints a number without leading zeros.
    return f"({name} + 0)" if "zerofill" in column.type or column.data_type == "year" else name


def _impossible(name: str) -> str:
    """Whether a date is impossible; NULL for NULL."""
    last = f"DAYOFMONTH(LAST_DAY(DATE_FORMAT({name}, '%Y-%m-01')))"
    return f"MONTH({name}) = 0 OR DAYOFMONTH({name}) = 0 OR DAYOFMONTH({name}) > {last}"


def _within(form: Form, table: Table, value: str) -> str:
    """The value as the `overflow` policy leaves it."""
    if form.limit is None or not form.policy or table.recipe.overflow == "error":
        return value
    if table.recipe.overflow == "null":
        return f"IF(LENGTH({value}) > {form.limit}, NULL, {value})"
    if form.print == "pieces":
        return f"LEFT({value}, {form.limit})"
    # Cut before a character that doesn't fit whole: if the byte after the cut continues one, the cut moves
    # back.
    whole = f"CAST({value} AS BINARY)"
    arms = "".join(
        f" WHEN ORD(SUBSTR({whole}, {cut + 1}, 1)) NOT BETWEEN 128 AND 191 THEN LEFT({whole}, {cut})"
        for cut in range(form.limit, form.limit - 3, -1)
    )
    return (
        f"IF(LENGTH({value}) <= {form.limit}, {value}, CASE{arms} ELSE LEFT({whole}, {form.limit - 3}) END)"
    )


def _without_nul(form: Form, table: Table, value: str) -> str:
    """Text as `overflow` leaves it if U+0000 can't be stored; on bytes, so that no collation interferes."""
    if form.nul or table.recipe.overflow == "error":
        return value
    whole = f"CAST({value} AS BINARY)"
    if table.recipe.overflow == "null":
        return f"IF(LOCATE(X'00', {whole}), NULL, {value})"
    return f"REPLACE({whole}, X'00', '')"


def element(form: Form, table: Table) -> str:
    """The value as part of the row's text."""
    return MYSQL.element(form, printed(form, table))


def key_hash(scope: Scope) -> str:
    return MYSQL.hashed(scope.keys, lambda form: element(form, scope.table))


def row_hash(scope: Scope) -> str:
    return MYSQL.hashed(scope.forms, lambda form: element(form, scope.table))


# ---------------------------------------------------------------- queries


def _inside(scope: Scope) -> list[str]:
    table, loose = scope.table, _loose(scope)
    found = [
        *sql.between(table, table.order, scope.low, scope.high),
        *(_outside(table, a, b) for a, b in scope.skipped),
    ]
    return [f"({' AND '.join(f'({c})' for c in found)}) OR {loose}"] if found and loose else found


def _outside(table: Table, behind: Position | None, upto: Position) -> str:
    later = f"({sql.after(table, table.order, upto)})"
    return later if behind is None else f"({sql.upto(table, table.order, behind)}) OR {later}"


def _loose(scope: Scope) -> str | None:
    """Rows without a place in the change order, which every sync reads; None if there can't be any."""
    table = scope.table
    if table.cursor is None or not scope.order:
        return None
    column = table.column(table.cursor)
    zero = column.data_type in TEMPORAL and table.recipe.zero_dates != "error"
    possible = column.nullable or zero or scope.future is not None
    return sql.loose(table, scope.future, zero) if possible else None


def _beyond(scope: Scope) -> str | None:
    """Rows after the watermark that have a place in the change order; None if there can't be any."""
    table = scope.table
    if scope.high is None or table.cursor is None:
        return None
    later, loose = f"({sql.after(table, table.order, scope.high)})", _loose(scope)
    return f"{later} AND NOT {loose}" if loose else later


def _conditions(scope: Scope, span: Span, also: Sequence[str]) -> str:
    table = scope.table
    return sql.filtered(table, [*sql.between(table, table.key, span.after, span.upto), *also])


def digest(scope: Scope, span: Span, digits: int = 0) -> str:
    """Number, count and sum of a range's rows, by the first digits of their keys' hashes; if it has no rows, nothing."""
    part = f"LEFT({key_hash(scope)}, {digits})" if digits else "''"
    number = MYSQL.number.format(row_hash(scope))
    rows = _from(scope, span, _inside(scope))
    return f"SELECT {part} AS part, COUNT(*), SUM({number}) {rows} GROUP BY part"


def beyond(scope: Scope, span: Span, most: int | None) -> str | None:
    """The hashed keys of a range's left-out rows, or their count if `most` is None; None if there can't be any.

    Workers that hash rows get the columns of the keys instead.
    """
    condition = _beyond(scope)
    if condition is None or not scope.table.key:
        return None
    rows = f"FROM {sql.source(scope.table)}{_conditions(scope, span, [condition])}"
    if most is None:
        return f"SELECT COUNT(*) {rows}"
    return f"SELECT {key_hash(scope) if scope.hash_key is None else _selected(scope.keys)} {rows} LIMIT {int(most)}"


def fetched(scope: Scope, span: Span) -> str:
    """The columns of a range's rows, for workers that hash them."""
    return f"SELECT {_selected(scope.forms)} {_from(scope, span, _inside(scope))}"


def fetched_places(scope: Scope, span: Span) -> str:
    """The same of all rows that `entries` would list, and then whether the row is in the scope: 1 or 0."""
    place = f"IF({_place(scope)} IN ('in', 'loose'), 1, 0)"
    return f"SELECT {_selected(scope.forms)}, {place} {_from(scope, span, _listed(scope))}"


def _selected(chosen: Sequence[Form]) -> str:
    return ", ".join(form.field.select for form in chosen)


def _from(scope: Scope, span: Span, also: Sequence[str]) -> str:
    return f"FROM {sql.source(scope.table, scope.index)}{_conditions(scope, span, also)}"


def _listed(scope: Scope) -> list[str]:
    """Rows after the scope's start, whether or not they are in it."""
    table = scope.table
    if scope.low is None:
        return []
    bounds = [sql.after(table, table.order, scope.low), _beyond(scope), _loose(scope)]
    return [" OR ".join(f"({bound})" for bound in bounds if bound)]


def entries(scope: Scope, span: Span, prefixes: Sequence[str] = ()) -> str:
    """Keys, hashes and places of a range's rows, or only of those whose hashed keys have a given prefix."""
    also = _listed(scope)
    if prefixes:
        listed = ", ".join(f"'{_hex(p)}'" for p in prefixes)
        also.append(f"LEFT({key_hash(scope)}, {len(prefixes[0])}) IN ({listed})")
    return f"SELECT {_place(scope)}, {row_hash(scope)}, {_keys(scope)} {_from(scope, span, also)}"


def rows(scope: Scope, keys: Sequence[Key]) -> str:
    """The rows with these keys, whatever their cursors, column by column."""
    columns = ", ".join(element(form, scope.table) for form in scope.forms)
    return f"SELECT {_place(scope)}, {row_hash(scope)}, {_keys(scope)}, {columns} {_with_keys(scope, keys)}"


def places(scope: Scope, keys: Sequence[Key]) -> str:
    """The same rows without their hashes and columns."""
    return f"SELECT {_place(scope)}, '', {_keys(scope)} {_with_keys(scope, keys)}"


def _with_keys(scope: Scope, keys: Sequence[Key]) -> str:
    return f"FROM {sql.source(scope.table)}{_conditions(scope, Span(), [sql.any_of(scope.table, keys)])}"


def _keys(scope: Scope) -> str:
    return ", ".join(printed(form, scope.table) for form in scope.keys)


def _place(scope: Scope) -> str:
    inside = " AND ".join(f"({c})" for c in _inside(scope)) or "TRUE"
    places = [(_loose(scope), "loose"), (_beyond(scope), "beyond"), (inside, "in")]
    arms = (f"WHEN {condition} THEN '{place}'" for condition, place in places if condition)
    return f"CASE {' '.join(arms)} ELSE 'before' END"


def _hex(text: str) -> str:
    return f"{int(text, 16):0{len(text)}x}"
