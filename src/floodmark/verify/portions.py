"""What a search decides by itself: which keys are suspect, and which ranges and keys go into one query. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import TypeVar

from floodmark.model.canonical import Digest, Entry, Part, Printed, Scope, Span

T = TypeVar("T")

# Rows and ranges listed by one task.
LISTING = 50_000
SPANS = 20
# Ranges, and left-out keys, per query to the warehouse.
RANGES = 200
LEFT_OUT = 2000


def summed(rows: Iterable[Sequence[object]]) -> dict[str, Digest]:
    """The digest of each part; the answer may have several rows per part."""
    found: dict[str, Digest] = {}
    for part, count, total in rows:
        found[str(part)] = found.get(str(part), Digest()) + Digest(int(str(count)), int(str(total)))
    return found


def suspects(listed: Iterable[Entry], stored: Iterable[tuple[Printed, str]]) -> Iterator[Printed]:
    """The keys whose rows differ between the two sides; rows after the watermark are ignored."""
    mine: list[tuple[Printed, str]] = []
    passed: set[Printed] = set()
    for entry in listed:
        if entry.compared:
            mine.append((entry.key, entry.hash))
        else:
            passed.add(entry.key)
    theirs = list(stored)
    once = (set(mine), set(theirs))
    differing = once[0] ^ once[1]
    if (len(mine), len(theirs)) != (len(once[0]), len(once[1])):  # the same row more than once
        counts = (Counter(mine), Counter(theirs))
        differing |= {row for row in once[0] & once[1] if counts[0][row] != counts[1][row]}
    yield from {key: None for key, _ in differing if key not in passed}


def in_key_order(scope: Scope, parts: Iterable[Part]) -> list[Part]:
    """The parts by their ranges, in the order of their keys: numbers, or times of equal length."""

    def place(part: Part) -> tuple[bool, list[Decimal | str]]:
        after = zip(scope.keys, part.span.after or (), strict=False)
        numbers = ("number", "decimal")
        return bool(part.span.after), [Decimal(str(v)) if f.print in numbers else str(v) for f, v in after]

    return sorted(parts, key=place)


def listings(parts: Sequence[Part]) -> Iterator[tuple[Span, ...]]:
    """Groups ranges for one task each, up to a number of rows; adjacent ranges are joined."""
    spans: list[Span] = []
    rows = 0
    for part in parts:
        joins = bool(spans) and spans[-1].upto is not None and spans[-1].upto == part.span.after
        if spans and (rows + part.digest.rows > LISTING or (len(spans) >= SPANS and not joins)):
            yield tuple(spans)
            spans, rows, joins = [], 0, False
        if joins:
            spans[-1] = Span(spans[-1].after, part.span.upto)
        else:
            spans.append(part.span)
        rows += part.digest.rows
    if spans:
        yield tuple(spans)


def most_rows(part: str, *sides: Mapping[str, Digest]) -> int:
    """The rows that a part has on the side where it has more."""
    return max(side.get(part, Digest()).rows for side in sides)


def chunks(
    items: Sequence[T], size: Callable[[T], int], most: int = LEFT_OUT, at_once: int = RANGES
) -> Iterator[list[T]]:
    """The items, in order, in portions of one query each."""
    some: list[T] = []
    total = 0
    for item in items:
        if some and (total + size(item) > most or len(some) >= at_once):
            yield some
            some, total = [], 0
        some.append(item)
        total += size(item)
    if some:
        yield some
