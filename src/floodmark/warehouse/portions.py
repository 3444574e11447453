"""Questions about many things in as many statements as it takes, none longer than the warehouse takes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from floodmark.errors import DataError

T = TypeVar("T")


def portioned(
    longest: int | None, items: Sequence[T], question: Callable[[Sequence[T]], str]
) -> tuple[str, ...]:
    """The question about some items, in statements of so many bytes at most."""
    return checked(longest, [question(some) for some in cut(items, question, longest)])


def cut(items: Sequence[T], question: Callable[[Sequence[T]], str], longest: int | None) -> list[Sequence[T]]:
    """The items, in order, in portions about which a question is not too long; about a single one it may be."""
    if len(items) <= 1 or longest is None or len(question(items).encode()) <= longest:
        return [items]
    half = len(items) // 2
    return [*cut(items[:half], question, longest), *cut(items[half:], question, longest)]


def checked(longest: int | None, statements: Sequence[str]) -> tuple[str, ...]:
    """The statements; refused when one is too long even about a single item."""
    size = max(len(statement.encode()) for statement in statements)
    if longest is not None and size > longest:
        raise DataError(
            f"the table has too many columns: comparing them takes a statement of {size:,} bytes, "
            f"and this way into the warehouse takes {longest:,}",
            hint="run verify with transport: socket, or leave columns out with `exclude`",
        )
    return tuple(statements)
