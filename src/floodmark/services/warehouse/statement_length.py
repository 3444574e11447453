"""Splits queries about many items into statements, none longer than the warehouse accepts. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from floodmark.model.errors import DataError

T = TypeVar("T")


def portioned(
    longest: int | None, items: Sequence[T], question: Callable[[Sequence[T]], str]
) -> tuple[str, ...]:
    """The query about some items, in statements of at most `longest` bytes."""
    return checked(longest, [question(some) for some in cut(items, question, longest)])


def cut(items: Sequence[T], question: Callable[[Sequence[T]], str], longest: int | None) -> list[Sequence[T]]:
    """The items, in order, in portions whose queries are short enough; a single item's may be too long."""
    if len(items) <= 1 or longest is None or len(question(items).encode()) <= longest:
        return [items]
    half = len(items) // 2
    return [*cut(items[:half], question, longest), *cut(items[half:], question, longest)]


def checked(longest: int | None, statements: Sequence[str]) -> tuple[str, ...]:
    """The statements; DataError if one is too long even for a single item."""
    size = max(len(statement.encode()) for statement in statements)
    if longest is not None and size > longest:
        raise DataError(
            f"the table has too many columns: comparing them takes a statement of {size:,} bytes, "
            f"but this transport allows at most {longest:,}",
            hint="run verify with transport: socket, or leave out columns with `exclude`",
        )
    return tuple(statements)
