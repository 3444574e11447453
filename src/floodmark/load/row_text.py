"""A target's values and rows as canonical text, and their hashes, in DuckDB's and Redshift's SQL. Pure.

The counterpart of the first half of `mysql/canonical.py`: both print the same value as the same text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from floodmark.load.columns import parsed
from floodmark.load.protocol import quote
from floodmark.model.canonical import DIGITS, PIECE, Form, groups

FLAT = 16  # texts joined without parentheses


@dataclass(frozen=True)
class Dialect:
    """One warehouse's SQL; `{}` stands for the column or the text."""

    text: str  # a number as text
    prints: Mapping[str, str]  # values of other kinds as text
    length: str  # of a text, in bytes
    size: str  # of a binary value, in bytes
    cut: str  # so many of its bytes, from a place on
    hash: str  # of a text, or of bytes where the warehouse can
    number: str  # the first 15 hexadecimal digits of a hash
    bare: bool = False  # whether DECIMAL(n,n) prints 0.5 as .5


def _with_year_0(words: str, first: str) -> str:
    """TO_CHAR has no year 0: it prints the year before year 1 as 1 as well."""
    return f"CASE WHEN {{0}} < {first} THEN '0000' || SUBSTRING({words}, 5) ELSE {words} END"


_US = "TO_CHAR({}, 'YYYY-MM-DD HH24:MI:SS.US')"
_DOUBLE = "hex(CAST(CAST(CAST({0} AS DOUBLE) AS BIT) AS BLOB))"
DUCKDB = Dialect(
    text="CAST({} AS VARCHAR)",
    prints={
        # Its eight bytes in hex, lowest first.
        "float": "(" + " || ".join(f"substr({_DOUBLE}, {at}, 2)" for at in range(15, 0, -2)) + ")",
        "day": "strftime({}, '%Y-%m-%d')",
        "moment": "strftime({}, '%Y-%m-%d %H:%M:%S.%f')",
        # An infinite time has no number, and would be printed as if it were NULL.
        "instant": "coalesce(strftime(make_timestamp(epoch_us({0})), '%Y-%m-%d %H:%M:%S.%f'), CAST({0} AS VARCHAR))",
        "bytes": "hex({})",
    },
    length="strlen({})",
    size="octet_length({})",
    cut="array_slice({0}, {1}, {1} + {2} - 1)",
    hash=f"substring(sha256({{}}), 1, {DIGITS})",
    number="CAST('0x' || substr({}, 1, 15) AS BIGINT)",
    bare=True,
)
REDSHIFT = Dialect(
    text="CAST({} AS VARCHAR(48))",
    prints={
        # Its eight bytes in hex, from a point's WKB: one byte and one word precede its two coordinates.
        "float": "SUBSTRING(ST_AsHexWKB(ST_Point(CAST({} AS DOUBLE PRECISION), 0)), 11, 16)",
        "day": _with_year_0("TO_CHAR({0}, 'YYYY-MM-DD')", "CAST('0001-01-01' AS DATE)"),
        "moment": _with_year_0(_US.format("{0}"), "CAST('0001-01-01' AS TIMESTAMP)"),
        "instant": _US.format("{} AT TIME ZONE 'UTC'"),
        "bytes": "UPPER(TO_HEX({}))",
    },
    length="OCTET_LENGTH({})",
    size="OCTET_LENGTH({})",
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
        name, words = self.column(form), self.dialect
        match form.print:
            case "number" | "decimal":
                return self._digits(form, name)
            case "flag":
                return words.text.format(f"CAST({name} AS INTEGER)")
            case "text digest" | "bytes digest":
                return words.hash.format(name)
            case "pieces":
                cuts = (words.cut.format(name, i * PIECE + 1, PIECE) for i in range(form.pieces))
                hashed = [words.hash.format(words.prints["bytes"].format(cut)) for cut in cuts]
                return " || ".join([words.text.format(words.size.format(name)), *hashed])
        return words.prints.get(form.print, "{}").format(name)

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
