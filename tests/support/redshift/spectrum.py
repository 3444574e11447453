"""Parquet as Redshift's Spectrum reads it: columns by position, with exactly matching physical types, or not at all.

Stricter than Redshift in one respect: a timestamp without a converted type, which Redshift reportedly loads as
garbage, is an error here. `lines` yields the rows in the text format of PostgreSQL's COPY.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tests.support.redshift.errors import internal_error, spectrum_error
from tests.support.redshift.wire import SqlError

_CODECS = {"UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD"}
_ENCODINGS = {"PLAIN", "RLE", "PLAIN_DICTIONARY", "RLE_DICTIONARY", "BIT_PACKED"}
_UTC = {"TIMESTAMP_MICROS", "TIMESTAMP_MILLIS"}
ROWS = 4096  # per batch: texts are up to 64 KB


class LoadError(Exception):
    """A value that can't be loaded, with its entry for STL_LOAD_ERRORS."""

    def __init__(self, error: SqlError, row: dict[str, object]) -> None:
        super().__init__(str(error))
        self.error, self.row = error, row


@dataclass(frozen=True)
class Target:
    """A column to load into; its type in Redshift's words: `character varying(20)`, `numeric(10,2)`."""

    name: str
    type: str
    not_null: bool

    @property
    def family(self) -> str:
        return self.type.split("(")[0]

    @property
    def sizes(self) -> list[int]:
        inside = self.type.partition("(")[2].partition(")")[0]
        return [int(size) for size in inside.split(",")] if inside else []


@dataclass(frozen=True)
class File:
    """One object to load."""

    url: str
    data: bytes

    def context(self, words: str) -> str:
        return f"File '{self.url.replace('s3://', 'https://s3.amazonaws.com/')}' {words}"


def minimal_bytes(precision: int) -> int:
    """The fewest bytes that hold a decimal of this many digits."""
    return next(size for size in range(1, 17) if 2 ** (8 * size - 1) - 1 >= 10**precision - 1)


def open_file(file: File, targets: Sequence[Target], *, to_json: bool, fill: bool) -> pq.ParquetFile:
    """Open the file and check that it fits these columns."""
    try:
        parquet = pq.ParquetFile(io.BytesIO(file.data), coerce_int96_timestamp_unit="us")
    except (pa.ArrowException, OSError) as error:
        words = f"has an invalid version number: {file.data[-4:]!r}" if "magic" in str(error) else str(error)
        raise spectrum_error(15001, file.context(words)) from None
    _check_layout(file, parquet)
    fields = list(parquet.schema_arrow)
    if len(fields) > len(targets) or (len(fields) < len(targets) and not fill):
        raise spectrum_error(
            15007,
            f"Unmatched number of columns between table and file. Table columns: {len(targets)}, "
            f"Data columns: {len(fields)}, File name: {file.url}",
        )
    leaves = iter([parquet.schema.column(number) for number in range(len(parquet.schema))])
    for target, field in zip(targets, fields, strict=False):
        _check_column(file, target, field, list(islice(leaves, _leaves(field.type))), to_json)
    for target in targets[len(fields) :]:
        if target.not_null:
            raise spectrum_error(15007, f"FILLRECORD: column {target.name} is declared NOT NULL")
    return parquet


def _leaves(kind: Any) -> int:
    """How many Parquet columns a type takes; a leaf's path is ambiguous if a name contains a dot."""
    if not pa.types.is_nested(kind):
        return 1
    return sum(_leaves(kind.field(number).type) for number in range(kind.num_fields))


def _check_layout(file: File, parquet: pq.ParquetFile) -> None:
    for group in range(parquet.metadata.num_row_groups):
        for number in range(parquet.metadata.num_columns):
            chunk = parquet.metadata.row_group(group).column(number)
            if chunk.compression not in _CODECS:
                raise spectrum_error(
                    15001, file.context(f"uses an unsupported compression: {chunk.compression}")
                )
            strange = set(chunk.encodings) - _ENCODINGS
            if strange:
                words = (
                    f"uses an unsupported encoding: {sorted(strange)[0]} for column '{chunk.path_in_schema}'"
                )
                raise spectrum_error(15001, file.context(words))


def _check_column(
    file: File, target: Target, field: pa.Field[Any], leaves: Sequence[Any], to_json: bool
) -> None:
    leaf = leaves[0]
    nested = pa.types.is_nested(field.type)
    if target.family == "super":
        if not to_json:
            raise SqlError("0A000", "SUPER column in COPY query requires SERIALIZETOJSON option")
        if nested or (leaf.physical_type, leaf.converted_type) == ("BYTE_ARRAY", "UTF8"):
            return
    if nested or not _fits(target, leaf):
        raise spectrum_error(15007, _incompatible(file, target, leaf))
    if target.family == "numeric":
        _check_decimal(file, target, leaf)


def _fits(target: Target, leaf: Any) -> bool:
    """Whether physical type and annotation are known to load into this column."""
    physical, converted = str(leaf.physical_type), str(leaf.converted_type)
    match target.family:
        case "smallint":
            return physical == "INT32" and converted in ("INT_8", "INT_16")
        case "integer":
            return physical == "INT32" and converted in ("NONE", "INT_32")
        case "bigint":
            return (
                physical == "INT64"
                and converted in ("NONE", "INT_64")
                and leaf.logical_type.type in ("NONE", "INT")
            )
        case "real":
            return physical == "FLOAT"
        case "double precision":
            return physical == "DOUBLE"
        case "boolean":
            return physical == "BOOLEAN"
        case "date":
            return physical == "INT32" and converted == "DATE"
        case "timestamp without time zone" | "timestamp with time zone":
            return physical == "INT96" or (physical == "INT64" and converted in _UTC)
        case "numeric":
            return converted == "DECIMAL" and physical in ("FIXED_LEN_BYTE_ARRAY", "INT32", "INT64")
        case "character varying" | "character":
            return physical == "BYTE_ARRAY" and converted == "UTF8"
        case "binary varying":
            return physical == "BYTE_ARRAY" and converted == "NONE" and leaf.logical_type.type == "NONE"
    return False


def _incompatible(file: File, target: Target, leaf: Any) -> str:
    kind = leaf.physical_type.lower()
    if leaf.physical_type == "FIXED_LEN_BYTE_ARRAY":
        kind = f"fixed_len_byte_array({leaf.length})"
    note = "" if leaf.converted_type == "NONE" else f" ({leaf.converted_type})"
    words = {
        "character varying": "VARCHAR",
        "binary varying": "VARBYTE",
        "character": "CHAR",
        "numeric": "DECIMAL",
    }
    kinds = words.get(target.family, target.family.split(" without")[0].upper())
    sizes = f"({','.join(map(str, target.sizes))})" if target.sizes else ""
    return file.context(
        f"has an incompatible Parquet schema for column '{file.url}.{leaf.name}'. Column type: {kinds}{sizes}, "
        f"Parquet schema:\\noptional {kind}{note} {leaf.name} [i:0 d:{leaf.max_definition_level} r:0]"
    )


def _check_decimal(file: File, target: Target, leaf: Any) -> None:
    precision, scale = target.sizes
    for word, of_file, of_table in (("scale", leaf.scale, scale), ("precision", leaf.precision, precision)):
        if of_file != of_table:
            words = (
                f"column '{leaf.name}' has a {word} that does not match the table metadata {word}. "
                f"File metadata {word}: {of_file}, Table metadata {word}: {of_table}"
            )
            raise spectrum_error(15001, file.context(words))
    if leaf.physical_type == "FIXED_LEN_BYTE_ARRAY" and leaf.length != minimal_bytes(precision):
        words = f"column '{leaf.name}' has an invalid type length. Expecting: {minimal_bytes(precision)} len in file: {leaf.length}"
        raise spectrum_error(15001, file.context(words))


def lines(file: File, parquet: pq.ParquetFile, targets: Sequence[Target]) -> Iterator[bytes]:
    """The rows of a file in COPY's text format, after checking each value."""
    first = 1
    for batch in parquet.iter_batches(ROWS):
        columns = []
        for number, target in enumerate(targets):
            if number >= batch.num_columns:
                columns.append(pa.nulls(len(batch), pa.large_string()))
                continue
            _check_values(file, target, batch.column(number), first)
            columns.append(_text(target, batch.column(number)))
        first += len(batch)
        if len(batch):
            row = pc.binary_join_element_wise(
                *columns, _wide("\t"), null_handling="replace", null_replacement="\\N"
            )
            yield _bytes(pc.binary_join_element_wise(row, _wide(""), _wide("\n")))


def _wide(value: str) -> Any:
    return pa.scalar(value, pa.large_string())


def _bytes(values: pa.LargeStringArray) -> bytes:
    """All values of an array, end to end, as they already are in memory."""
    _, offsets, data = values.buffers()
    if offsets is None or data is None:
        return b""
    ends = memoryview(offsets).cast("q")
    return bytes(memoryview(data)[ends[values.offset] : ends[values.offset + len(values)]])


def _check_values(file: File, target: Target, values: Any, first: int) -> None:
    if target.not_null and values.null_count:
        line = first + pc.index(pc.is_null(values), True).as_py()
        error = SqlError("XX000", f"Cannot insert a NULL value into column {target.name}")
        raise LoadError(error, _load_error(file, target, line, 1213, "Missing data for not-null field"))
    if pa.types.is_nested(values.type):
        return
    if target.family not in ("character varying", "character", "binary varying", "super") or not target.sizes:
        return
    sizes = pc.binary_length(values)
    longest = pc.max(sizes).as_py() or 0
    if longest > target.sizes[0]:
        raise spectrum_error(
            15001,
            f"The length of the data column {target.name} is longer than the length defined in the table. "
            f"Table: {target.sizes[0]}, Data: {longest}, File name: {file.url}",
        )
    if target.family in ("binary varying", "super"):
        return
    wrong = pc.match_substring(values, "\0")
    if target.family == "character":
        wrong = pc.or_kleene(wrong, pc.invert(pc.string_is_ascii(values)))
    if pc.any(wrong).as_py():
        line = first + pc.index(wrong, True).as_py()
        reason = "String contains invalid or unsupported UTF8 codepoints."
        raise LoadError(
            internal_error(reason, 8001, f"column {target.name}, line {line} of {file.url}"),
            _load_error(file, target, line, 1220, reason),
        )


def _load_error(file: File, target: Target, line: int, code: int, reason: str) -> dict[str, object]:
    return {
        "filename": file.url[:256], "line_number": line, "colname": target.name, "type": target.family[:10],
        "col_length": str(target.sizes[0]) if target.sizes else "", "position": 0, "raw_line": "",
        "raw_field_value": "", "err_code": code, "err_reason": reason[:100],
    }  # fmt: skip


def _text(target: Target, values: Any) -> Any:
    """A column as text, escaped for COPY."""
    wide = pa.large_string()
    match target.family:
        case "super":
            texts = pa.array(
                [None if v is None else json.dumps(v, default=str) for v in values.to_pylist()], wide
            )
        case "binary varying":
            texts = pa.array([None if v is None else f"\\x{v.hex()}" for v in values.to_pylist()], wide)
        case "date":
            return _year_0(values.cast(wide))
        case "timestamp without time zone":
            return _year_0(_moment(values).cast(wide))
        case "timestamp with time zone":
            return _year_0(pc.binary_join_element_wise(_moment(values).cast(wide), _wide("+00"), _wide("")))
        case "character varying" | "character":
            texts = values.cast(wide)
        case _:
            return values.cast(wide)
    for plain, escaped in (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r")):
        texts = pc.replace_substring(texts, plain, escaped)
    return texts


def _year_0(texts: Any) -> Any:
    """Arrow's year 0 is 1 BC in PostgreSQL."""
    return pc.replace_substring_regex(texts, "^0000-(.*)$", r"0001-\1 BC")


def _moment(values: Any) -> Any:
    """Timestamps as wall-clock time in UTC."""
    return values.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us"))
