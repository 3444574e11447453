"""A column's definition before and after: whether MySQL may have rewritten its values in between. Pure.

ALTER TABLE changes values without touching the cursor. Only changes listed here as harmless are trusted; for
all others rows are reread. A property missing from an older description is unknown, and by itself is no
reason to reread.
"""

from __future__ import annotations

import re

from floodmark.model.table import Column

_BITS = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_ROOM = {  # capacity in bytes: each type holds every value of the smaller ones
    "tinytext": 255, "text": 65_535, "mediumtext": 2**24 - 1, "longtext": 2**32 - 1,
    "tinyblob": 255, "blob": 65_535, "mediumblob": 2**24 - 1, "longblob": 2**32 - 1,
}  # fmt: skip
_GENERATED = re.compile(r"(virtual|stored|persistent) generated|persistent", re.IGNORECASE)
_MEMBER = re.compile(r"'((?:[^']|'')*)'")
# Decimals with more digits are stored as text, where 1.5 and 1.50 differ.
_MOST_DIGITS, _MOST_SCALE = 38, 37


def rewritten(before: Column, now: Column) -> str | None:
    """Why the column's values may have changed, in a few words; None: they are proven unchanged."""
    if _expression_changed(before, now):
        return "its expression has changed"
    if before.nullable and not now.nullable:
        return "it no longer allows NULL"
    if now.auto_increment and not before.auto_increment:
        return "it is now AUTO_INCREMENT"
    if before.charset and now.charset and not _same_charset(before, now):
        return f"its character set changed from {before.charset} to {now.charset}"
    return None if _keeps(before, now) else f"it changed from {before.type} to {now.type}"


def described(name: str, type_: str) -> Column:
    """A column known only by the text of its type, such as `decimal(12,2) unsigned`."""
    kind = re.match(r"\w*", type_.lower())
    data_type = kind[0] if kind else ""
    given = re.match(r"\w+\((\d+)(?:,(\d+))?\)", type_)
    first, second = (int(n) if n is not None else None for n in (given.groups() if given else (None, None)))
    return Column(
        name,
        type_,
        data_type,
        characters=first if data_type in ("char", "varchar") else None,
        octets=first if data_type in ("binary", "varbinary") else None,
        precision=first if data_type == "decimal" else None,
        scale=(second or 0) if data_type == "decimal" else None,
        fraction=(first or 0) if data_type in ("datetime", "timestamp", "time") else None,
    )


def one_collation(before: Column, now: Column) -> bool:
    """Whether a column's collation is the same; MySQL and MariaDB have two names for utf8."""
    return _modern(before.collation) == _modern(now.collation)


def _expression_changed(before: Column, now: Column) -> bool:
    if before.generated is not None and now.generated is not None:
        return before.generated != now.generated
    return bool(_GENERATED.search(before.extra)) != bool(_GENERATED.search(now.extra))


def _same_charset(before: Column, now: Column) -> bool:
    was, is_ = _modern(before.charset), _modern(now.charset)
    # Any utf8 text has the same bytes in utf8mb4, however the column was changed.
    return was == is_ or (was, is_) == ("utf8mb3", "utf8mb4")


def _modern(name: str | None) -> str | None:
    return re.sub(r"^utf8(?=_|$)", "utf8mb3", name) if name else None


def _keeps(before: Column, now: Column) -> bool:
    """Whether every value of the first type keeps its value and its text in the second."""
    was, is_ = before.data_type, now.data_type
    if was in _BITS and is_ in _BITS:
        return _range(now)[0] <= _range(before)[0] and _range(before)[1] <= _range(now)[1]
    if was != is_:
        return _larger(before, now)
    match is_:
        case "decimal":
            return _same_number(before, now)
        case "float" | "double":
            return _bare(before) == _bare(now)
        case "datetime" | "timestamp":
            return (before.fraction or 0) <= (now.fraction or 0)
        case "time":
            return (before.fraction or 0) == (now.fraction or 0)
        case "enum" | "set":
            members = _MEMBER.findall(now.type)
            known = _MEMBER.findall(before.type)
            return members[: len(known)] == known
        case "char" | "varchar":
            return (before.characters or 0) <= (now.characters or 0)
        case "varbinary":
            return (before.octets or 0) <= (now.octets or 0)
        case "date" | "year" | "json" | "uuid" | "inet4" | "inet6":
            return True
    return is_ in _ROOM or before.type == now.type


def _range(column: Column) -> tuple[int, int]:
    bits = _BITS[column.data_type]
    return (0, 2**bits - 1) if column.unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _larger(before: Column, now: Column) -> bool:
    """Whether the second type is just a larger variant of the first."""
    if (before.data_type, now.data_type) == ("float", "double"):
        return (_bare(before), _bare(now)) == ("float", "double")
    room = _ROOM.get(now.data_type, 0)
    kinds = (before.data_type[-4:], now.data_type[-4:])
    if before.data_type in _ROOM:
        return kinds[0] == kinds[1] and room >= _ROOM[before.data_type]
    if (before.data_type, kinds[1]) in (("varchar", "text"), ("varbinary", "blob")):
        return room >= (before.octets or 2**32)
    return False


def _same_number(before: Column, now: Column) -> bool:
    if before.type == now.type and (before.precision, before.scale) == (now.precision, now.scale):
        return True
    digits = [(c.precision or 10, c.scale or 0) for c in (before, now)]
    if any(precision > _MOST_DIGITS or scale > _MOST_SCALE for precision, scale in digits):
        return False
    (precision, scale), (more, finer) = digits
    return finer >= scale and more - finer >= precision - scale and (before.unsigned or not now.unsigned)


def _bare(column: Column) -> str:
    return column.type.split()[0] + (" unsigned" if column.unsigned else "")
